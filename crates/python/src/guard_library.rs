//! Which bytes does a child load as its guard against memory that its clients take away?

/// A shared library for this machine with the four functions of `nerite_guard::library`. Empty where it could not be built
/// (see `build.rs`): then there is no guard.
pub(crate) static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard_library"));

#[cfg(test)]
mod tests {
    use super::LIBRARY;

    #[test]
    fn it_is_a_small_shared_object_or_nothing() {
        let built = LIBRARY.starts_with(b"\x7fELF") && LIBRARY.len() < 64 << 10;
        // CI builds for a machine that it runs on, where nothing is in its way.
        assert!(if cfg!(miri) { LIBRARY.is_empty() } else { built }, "{} bytes", LIBRARY.len());
    }
}
