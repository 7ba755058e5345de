//! Which `hypotf` does the operator Asinh use?
//!
//! `f32::asinh` of Rust 1.95 calls the C function `hypotf`. A program that is linked to the one of glibc 2.35 does not start with an older glibc. It is
//! the only function of that version that the server needs. With the one here, the server runs with glibc 2.34. It is hidden: neither the program nor
//! `libtritonserver.so` exports it. If a linker takes that of glibc instead, results are the same.

#![expect(unsafe_code, reason = "only assembly can define a hidden symbol")]

// SAFETY: no other code of the program defines `hypotf`, and what calls it wants this C function. Arguments and result are in the registers that C's
// calling convention says, and the jump leaves registers and stack as they are.
core::arch::global_asm!(
    ".pushsection .text.hypotf, \"ax\", @progbits",
    ".globl hypotf",
    ".hidden hypotf",
    ".type hypotf, @function",
    "hypotf:",
    "jmp {own}",
    ".size hypotf, . - hypotf",
    ".popsection",
    own = sym own,
);

/// The square root of x² + y², as C99 (F.9.4.3) has it: infinite if either is, whatever the other is. Squares of `f32` and their sum do not overflow
/// in `f64`.
extern "C" fn own(x: f32, y: f32) -> f32 {
    if x.is_infinite() || y.is_infinite() {
        return f32::INFINITY;
    }
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(x: f32, y: f32, expect: f32) {
        for found in [own(x, y), own(-y, x), std::hint::black_box(x).hypot(y)] {
            assert!(found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan(), "{x} {y}: {found}");
        }
    }

    #[test]
    fn it_is_exact_where_the_squares_would_be_too_large_or_too_small() {
        check(3.0, 4.0, 5.0);
        check(0.0, -0.0, 0.0);
        check(3e38, 0.0, 3e38);
        check(f32::MAX, f32::MAX, f32::INFINITY);
        check(3e-45, 4e-45, f32::from_bits(4));
        check(1e-30, 1e-30, 1.414_213_6e-30);
    }

    #[test]
    fn infinities_win_over_what_is_no_number() {
        check(f32::NEG_INFINITY, f32::NAN, f32::INFINITY);
        check(f32::INFINITY, 1.0, f32::INFINITY);
        check(f32::NAN, 1.0, f32::NAN);
    }
}
