//! What bounds a file of tokens, and what clients send for one?

use std::time::Duration;

/// Bytes of the file.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Tokens of the file.
pub const TOKENS_MAX: usize = 1024;
/// Characters of a token's name.
pub const NAME_CHARS_MAX: usize = 64;
/// Models, or beginnings of names of models, of one token.
pub const PATTERNS_MAX: usize = 256;
/// Bytes of a secret. A longer one is refused before it is hashed.
pub const SECRET_BYTES_MAX: usize = 512;
/// Time between two looks at the file.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);
