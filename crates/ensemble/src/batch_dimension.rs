//! How does the shape of a tensor change between a model that batches and one that does not?

use nerite_tensor::Shape;

/// What happens to the batch dimension of a tensor on its way to a reader. The rule is Triton's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchDimension {
    /// The shape stays as it is, because both sides batch or neither does.
    Kept,
    /// Only the reader batches: a tensor of exactly these dimensions becomes a batch of one.
    Prepended(Vec<i64>),
    /// Only the writer batches: a batch of one whose whole shape is not of these dimensions becomes a tensor without a batch dimension.
    Stripped(Vec<i64>),
}

impl BatchDimension {
    /// For a tensor whose writer and reader batch or do not, where the reader declares these dimensions.
    pub fn between(writer_batches: bool, reader_batches: bool, dims: &[i64]) -> BatchDimension {
        match (writer_batches, reader_batches) {
            (false, true) => BatchDimension::Prepended(dims.to_vec()),
            (true, false) => BatchDimension::Stripped(dims.to_vec()),
            (true, true) | (false, false) => BatchDimension::Kept,
        }
    }

    /// The shape that the reader gets.
    pub fn apply(&self, mut shape: Shape) -> Shape {
        match self {
            BatchDimension::Prepended(dims) if fits(&shape, dims) => shape.insert(0, 1),
            BatchDimension::Stripped(dims) if shape.first() == Some(&1) && !fits(&shape, dims) => drop(shape.remove(0)),
            BatchDimension::Kept | BatchDimension::Prepended(_) | BatchDimension::Stripped(_) => {}
        }
        shape
    }
}

/// Whether a tensor may have both shapes; -1 stands for any size.
pub fn fits(one: &[i64], other: &[i64]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(&a, &b)| a == b || a == -1 || b == -1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expect` holds the shapes between sides that batch alike, into a reader that alone batches, and out of a writer that alone does.
    #[track_caller]
    fn check(shape: &[i64], dims: &[i64], expect: [&[i64]; 3]) {
        let found = |writer, reader| BatchDimension::between(writer, reader, dims).apply(Shape::from_slice(shape));
        assert_eq!(found(true, true), found(false, false));
        let found = [found(true, true), found(false, true), found(true, false)];
        assert_eq!(found.each_ref().map(Shape::as_slice), expect, "{shape:?} for {dims:?}");
    }

    #[test]
    fn a_batch_of_one_comes_and_goes_where_one_side_batches() {
        check(&[3], &[3], [&[3], &[1, 3], &[3]]);
        check(&[1, 3], &[3], [&[1, 3], &[1, 3], &[3]]);
        check(&[2, 3], &[3], [&[2, 3], &[2, 3], &[2, 3]]);
        check(&[1, 3], &[-1, 3], [&[1, 3], &[1, 1, 3], &[1, 3]]);
        check(&[2, 3], &[-1, 3], [&[2, 3], &[1, 2, 3], &[2, 3]]);
        check(&[1, 2, 3], &[-1, 3], [&[1, 2, 3], &[1, 2, 3], &[2, 3]]);
        check(&[1], &[1], [&[1], &[1, 1], &[1]]);
        check(&[4], &[3], [&[4], &[4], &[4]]);
        check(&[], &[3], [&[], &[], &[]]);
        check(&[0, 3], &[3], [&[0, 3], &[0, 3], &[0, 3]]);
    }
}
