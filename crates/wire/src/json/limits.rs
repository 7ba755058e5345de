//! Which limits does the JSON reader have?

/// Nesting depth of arrays in a tensor's `data`, as in Triton.
pub const DATA_DEPTH_MAX: usize = 100;
/// The most values of one setting.
pub const SETTING_VALUES_MAX: usize = 1024;
/// Memory for an input or an output without its strings and values, in a vector with twice the capacity.
pub const ITEM_BYTES: usize = 1024;
/// Memory for a dimension: 8 bytes in a vector with twice the capacity.
pub const DIM_BYTES: usize = 16;
/// The most characters of a correlation id that is a string, as in Triton.
pub const SEQUENCE_ID_CHARS_MAX: usize = 128;
/// Characters of a name that are quoted in an error if the length of the name was not checked yet.
pub const QUOTED_CHARS_MAX: usize = 256;
/// The most bytes of one base64 text in a load request, as in Triton.
pub const FILE_TEXT_BYTES_MAX: u64 = i32::MAX as u64;
/// Strings of a spooled text that are longer than this remain on disk.
pub const SPOOLED_STRING_BYTES_MIN: usize = 4 << 10;
/// The most bytes of a spooled text that are held in memory.
pub const SPOOLED_TEXT_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read from a spooled text at one time.
pub const SPOOLED_STEP_BYTES: usize = 256 << 10;
/// The most bytes of a configuration in a spooled text. The same limit as for a load request without files.
pub const SPOOLED_CONFIG_BYTES_MAX: u64 = nerite_request::limits::LOAD_CONFIG_BYTES_MAX;
/// Memory is reserved before this many bytes or more are allocated at once for a text, or for what is decoded from it.
pub const RESERVED_BYTES_MIN: usize = 1 << 20;
/// Bytes of memory that writing one byte of a tensor as text may take: four characters, in a text that doubles its capacity as it grows.
pub const TEXT_GROWTH: usize = 8;
