//! What are the limits of a file of tokens, and of what clients use with a token?

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
/// The longest time for which a token that went beyond its quota of bytes is made to wait, apart from the time in which its bucket fills. What it owes beyond is forgotten.
pub const DEBT_MAX: Duration = Duration::from_hours(1);
/// Bytes that are booked for a message whose length is not announced. More are booked as they come.
pub const UNANNOUNCED_BYTES: u64 = 1 << 20;
/// Peers without a token whose quotas are kept at a time. Further ones share the quotas of one.
pub const ANONYMOUS_PEERS_MAX: usize = 4096;
/// How often peers whose quotas are full again are forgotten, if there are so many.
pub const FORGET_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at the file.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);
