//! Which library guards a model's process against memory that clients remove?

/// A shared library for this machine with the six functions of `nerite_guard::library`. Empty if it could not be built (see `build.rs`): then there
/// is no guard.
pub(crate) static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard_library"));

#[cfg(test)]
mod tests {
    use super::LIBRARY;

    #[test]
    fn the_library_is_a_small_shared_object_or_empty() {
        let built = LIBRARY.starts_with(b"\x7fELF") && LIBRARY.len() < 64 << 10;
        // Tests are built for the machine that runs them, where the library can always be built.
        assert!(if cfg!(miri) { LIBRARY.is_empty() } else { built }, "{} bytes", LIBRARY.len());
    }
}
