//! Which vectors of numbers does an instance keep for its next run?
//!
//! The engine takes its inputs as views or as vectors of its own, and gives its outputs as vectors. A small input that has to be copied or converted
//! anyway goes into a vector that an earlier run gave. The engine may then compute an output in the place of an input, and allocates less.

use nerite_memory::Number;

/// The most vectors of each type that an instance keeps.
const VECTORS_MAX: usize = 4;
/// The most bytes of a vector that is kept.
pub const BYTES_MAX: usize = 16 << 10;

/// The vectors, between two runs.
#[derive(Default)]
pub struct Spares {
    floats: Vec<Vec<f32>>,
    integers: Vec<Vec<i32>>,
}

/// A type of numbers whose vectors are kept.
pub trait Spare: Number {
    /// The kept vectors of this type.
    fn kept(spares: &mut Spares) -> &mut Vec<Vec<Self>>;
}

impl Spare for f32 {
    fn kept(spares: &mut Spares) -> &mut Vec<Vec<f32>> {
        &mut spares.floats
    }
}

impl Spare for i32 {
    fn kept(spares: &mut Spares) -> &mut Vec<Vec<i32>> {
        &mut spares.integers
    }
}

impl Spares {
    /// An empty vector with room for `len` numbers: one that was kept, or a new one.
    pub fn take<T: Spare>(&mut self, len: usize) -> Vec<T> {
        let kept = T::kept(self);
        let fits = kept.iter().position(|vector| vector.capacity() >= len);
        fits.map_or_else(|| Vec::with_capacity(len), |at| kept.swap_remove(at))
    }

    /// Keeps a vector, if it is small and there are not enough yet.
    pub fn keep<T: Spare>(&mut self, mut vector: Vec<T>) {
        let kept = T::kept(self);
        let bytes = vector.capacity().saturating_mul(size_of::<T>());
        if kept.len() < VECTORS_MAX && (1..=BYTES_MAX).contains(&bytes) {
            vector.clear();
            kept.push(vector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_vector_serves_a_later_run_that_fits() {
        let mut spares = Spares::default();
        let (vector, other) = (vec![1_i32; 8], vec![1.0_f32; 8]);
        let place = vector.as_ptr();
        spares.keep(vector);
        spares.keep(other);
        let larger = spares.take::<i32>(9);
        assert_ne!(larger.as_ptr(), place, "it is too small");
        let again = spares.take::<i32>(3);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert_eq!((spares.integers.len(), spares.floats.len()), (0, 1));
    }

    #[test]
    fn few_and_small_vectors_are_kept() {
        let mut spares = Spares::default();
        let numbers = BYTES_MAX / size_of::<f32>();
        spares.keep(Vec::<f32>::new());
        spares.keep(vec![0.0_f32; numbers + 1]);
        assert!(spares.floats.is_empty());
        for _ in 0..2 * VECTORS_MAX {
            spares.keep(vec![0.0_f32; numbers]);
        }
        assert_eq!(spares.floats.len(), VECTORS_MAX);
    }
}
