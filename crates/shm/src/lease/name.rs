//! How is a lease named?

use std::io;

const PREFIX: &str = "lease-";
const BYTES: usize = 16;

/// 128 random bits, written as `lease-` and 32 hexadecimal digits. Any client that knows the name may use the lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseName([u8; BYTES]);

impl LeaseName {
    /// A name that cannot be guessed.
    pub(super) fn random() -> io::Result<LeaseName> {
        random_bits().map(|bits| LeaseName(bits.to_be_bytes()))
    }

    /// Parses a name. Each name has exactly one spelling.
    pub fn parse(text: &str) -> Option<LeaseName> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        let digits: &[u8; 2 * BYTES] = digits.try_into().ok()?;
        let mut bytes = [0u8; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(LeaseName(bytes))
    }

    /// The first digits of the name, which tell leases apart in a list. 104 bits remain secret.
    pub(super) fn beginning(self) -> String {
        let [a, b, c, ..] = self.0;
        format!("{PREFIX}{a:02x}{b:02x}{c:02x}…")
    }

    /// The index of the name's shard, of `parts` shards.
    pub(super) fn part(self, parts: usize) -> usize {
        usize::from(self.0[0]) % parts
    }
}

/// 128 random bits from the kernel.
pub fn random_bits() -> io::Result<u128> {
    let mut bytes = [0u8; BYTES];
    loop {
        // SAFETY: `bytes` is writable for as many bytes as are requested.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
        if got == BYTES as isize {
            return Ok(u128::from_be_bytes(bytes));
        }
        let error = io::Error::last_os_error();
        // The kernel never shortens a request of up to 256 bytes once its generator is initialised.
        if got >= 0 || error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

impl std::fmt::Display for LeaseName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{PREFIX}{:032x}", u128::from_be_bytes(self.0))
    }
}

impl std::fmt::Debug for LeaseName {
    /// Omits the bits, as for [`super::Lease`].
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseName")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, is_name: bool) {
        assert_eq!(LeaseName::parse(text).map(|name| name.to_string()), is_name.then(|| text.to_owned()), "{text}");
    }

    #[test]
    fn a_name_has_one_spelling() {
        check("lease-00000000000000000000000000000000", true);
        check("lease-0123456789abcdef0123456789abcdef", true);
        check("lease-0123456789ABCDEF0123456789abcdef", false);
        check("lease-0123456789abcdef0123456789abcde", false);
        check("lease-0123456789abcdef0123456789abcdef0", false);
        check("lease-0123456789abcdeg0123456789abcdef", false);
        check("lease-", false);
        check("0123456789abcdef0123456789abcdef", false);
        check("", false);
        check("lease-é123456789abcdef0123456789abcd", false);
    }

    #[test]
    fn names_differ() {
        let names: std::collections::HashSet<_> = (0..100).map(|_| LeaseName::random().expect("getrandom")).collect();
        assert_eq!(names.len(), 100);
    }
}
