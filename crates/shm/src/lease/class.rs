//! How large is a lease for a given number of bytes?

use super::limits::{LEASE_BYTES_MAX, LEASE_BYTES_MIN};

/// The size class for `need` bytes: four classes for each power of two, in whole pages. So at most a quarter is unused. `None` for 0 bytes and for
/// more than `LEASE_BYTES_MAX`.
pub(super) fn class_bytes(need: usize) -> Option<usize> {
    if need == 0 || need > LEASE_BYTES_MAX {
        return None;
    }
    if need <= 4 * LEASE_BYTES_MIN {
        return Some(need.div_ceil(LEASE_BYTES_MIN) * LEASE_BYTES_MIN);
    }
    let step = ((need - 1).ilog2() - 2).min(usize::BITS - 2);
    Some(need.div_ceil(1 << step) << step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(need: usize, class: Option<usize>) {
        assert_eq!(class_bytes(need), class, "{need} bytes");
    }

    #[test]
    fn classes_are_quarters_of_powers_of_two_in_whole_pages() {
        check(0, None);
        check(1, Some(4096));
        check(4096, Some(4096));
        check(4097, Some(8192));
        check(16 << 10, Some(16 << 10));
        check((16 << 10) + 1, Some(20 << 10));
        check(1 << 20, Some(1 << 20));
        check((1 << 20) + 1, Some(5 << 18));
        check(3 << 20, Some(3 << 20));
        check(LEASE_BYTES_MAX, Some(LEASE_BYTES_MAX));
        check(LEASE_BYTES_MAX + 1, None);
        check(usize::MAX, None);
    }

    proptest! {
        #[test]
        fn a_class_fits_is_made_of_pages_and_wastes_at_most_a_quarter(need in 1usize..=LEASE_BYTES_MAX) {
            let class = class_bytes(need).expect("within the bounds");
            prop_assert!(class >= need && class.is_multiple_of(LEASE_BYTES_MIN));
            prop_assert!(class - need <= (need / 4).max(LEASE_BYTES_MIN));
            prop_assert_eq!(class_bytes(class), Some(class));
        }
    }
}
