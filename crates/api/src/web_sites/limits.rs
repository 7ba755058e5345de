//! What are the limits of what a browser is told?

/// The most characters of a host, or of an origin, that a refusal quotes.
pub const QUOTED_CHARS_MAX: usize = 100;
/// The most bytes of the header names that a preflight request asks for. The answer repeats them.
pub const REQUESTED_HEADERS_BYTES_MAX: usize = 4 << 10;
/// How long a browser may use the answer to a preflight request, in seconds. No browser keeps it for longer than a day.
pub const PREFLIGHT_AGE_S: u32 = 7200;
