//! How much may a JSON text make us do?

/// Arrays inside arrays in a tensor's `data`, as in Triton.
pub const DATA_DEPTH_MAX: usize = 100;
/// Parameters of one request. Looking for a repeated key walks over the ones before it, so their number needs an end.
pub const PARAMETERS_MAX: usize = 4096;
/// Characters of a correlation id that is a text, as in Triton.
pub const SEQUENCE_ID_CHARS_MAX: usize = 128;
/// Bytes of one base64 text in a load request, as in Triton.
pub const FILE_TEXT_BYTES_MAX: usize = i32::MAX as usize;
