//! Which Rust types may raw tensor bytes be read as?

mod sealed {
    pub trait Sealed {}
}

/// A plain number: every bit pattern is a value, there is no padding and no pointer inside.
pub trait Number: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! numbers {
    ($($t:ty),*) => { $(impl sealed::Sealed for $t {} impl Number for $t {})* };
}

numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
// Both types are a `u16` (`repr(transparent)`), and every bit pattern is a value.
#[cfg(feature = "half")]
numbers!(half::f16, half::bf16);
