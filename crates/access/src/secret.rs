//! How is a secret compared without revealing it by the time that this takes?
//!
//! Only hashes are kept and compared. The table of tokens is looked up by a keyed hash of that hash. No client knows the key. Two hashes are compared
//! in a time that does not depend on their bytes.

use std::hash::{Hash, Hasher};

use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

use crate::limits::SECRET_BYTES_MAX;

const BYTES: usize = 32;

/// The SHA-256 of a secret.
#[derive(Clone, Copy)]
pub(crate) struct SecretHash([u8; BYTES]);

impl SecretHash {
    /// The hash of a secret. `None` if the secret is empty or too long.
    pub(crate) fn of(secret: &[u8]) -> Option<SecretHash> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return None;
        }
        digest(&SHA256, secret).as_ref().try_into().ok().map(SecretHash)
    }

    /// The hash of the secret in a value of the header `Authorization`: `Bearer`, in any case, and the secret.
    pub(crate) fn of_header(value: &[u8]) -> Option<SecretHash> {
        let (scheme, secret) = value.split_at_checked(b"bearer".len())?;
        let rest = secret.strip_prefix(b" ").filter(|_| scheme.eq_ignore_ascii_case(b"bearer"))?;
        SecretHash::of(rest.trim_ascii())
    }

    /// Written as 64 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<SecretHash> {
        let digits = text.as_bytes();
        let mut bytes = [0; BYTES];
        if digits.len() != 2 * BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
            *byte = (digit(0)? * 16 + digit(1)?) as u8;
        }
        Some(SecretHash(bytes))
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &SecretHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretHash {}

impl Hash for SecretHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl std::fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretHash")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &[u8], secret: Option<&[u8]>) {
        assert_eq!(SecretHash::of_header(header), secret.and_then(SecretHash::of), "{header:?}");
    }

    #[test]
    fn the_header_names_its_scheme_and_a_secret_that_is_not_too_long() {
        check(b"Bearer secret", Some(b"secret"));
        check(b"bearer  secret ", Some(b"secret"));
        check(b"BEARER s", Some(b"s"));
        for none in [&b""[..], b"Bearer", b"Bearer ", b"Bearersecret", b"Basic c2VjcmV0", b"secret"] {
            check(none, None);
        }
        let long = |bytes: usize| [b"Bearer ".to_vec(), vec![b'x'; bytes]].concat();
        assert!(SecretHash::of_header(&long(SECRET_BYTES_MAX)).is_some());
        assert!(SecretHash::of_header(&long(SECRET_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn a_hash_is_written_as_sha256sum_writes_it() {
        let written = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        assert_eq!(SecretHash::parse(written), SecretHash::of(b"secret"));
        assert_eq!(SecretHash::parse(&written.to_uppercase()), SecretHash::of(b"secret"));
        for wrong in ["", "2bb8", &"g".repeat(64), &"ü".repeat(32)] {
            assert_eq!(SecretHash::parse(wrong), None, "{wrong}");
        }
    }
}
