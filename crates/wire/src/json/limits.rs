//! How much may a JSON text make us do?

/// Arrays inside arrays in a tensor's `data`, as in Triton.
pub const DATA_DEPTH_MAX: usize = 100;
/// Values of one setting.
pub const SETTING_VALUES_MAX: usize = 1024;
/// What an input or an output takes beside its strings and values, in a vector of twice the length.
pub const ITEM_BYTES: usize = 1024;
/// What a dimension takes: 8 bytes in a vector of twice the length.
pub const DIM_BYTES: usize = 16;
/// Characters of a correlation id that is a text, as in Triton.
pub const SEQUENCE_ID_CHARS_MAX: usize = 128;
/// Characters of a name that an error quotes before it is known how long names may be.
pub const QUOTED_CHARS_MAX: usize = 256;
/// Bytes of one base64 text in a load request, as in Triton.
pub const FILE_TEXT_BYTES_MAX: u64 = i32::MAX as u64;
/// A string of a spooled text that is longer than this stays on disk.
pub const SPOOLED_STRING_BYTES_MIN: usize = 4 << 10;
/// What of a spooled text does not stay on disk.
pub const SPOOLED_TEXT_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read at once from a spooled text.
pub const SPOOLED_STEP_BYTES: usize = 256 << 10;
/// A configuration in a spooled text, as long as a load without files may be.
pub const SPOOLED_CONFIG_BYTES_MAX: u64 = nerite_request::limits::LOAD_CONFIG_BYTES_MAX;
/// Before as much is made of a text, or a text of as much, it is seen whether there is room.
pub const ROOM_BYTES_MIN: usize = 1 << 20;
/// How much longer than its bytes a tensor's text may need its memory to be: four characters for a byte, in a text that
/// doubles as it grows.
pub const TEXT_GROWTH: usize = 8;
