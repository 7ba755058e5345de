//! In which order are the inputs of a request, and how is one found?
//!
//! A model's configuration numbers its inputs. An admitted request has them in that order, and lacks optional ones that its client left out:
//!
//! ```text
//!   configuration:  A (0)   B (1, optional)   C (2)     inputs that the server adds:  3, 4, …
//!   request:        A       C                           left out: 1
//!   position:       0       1                           2, 3, …
//! ```
//! So an input is found by its index without a search for its name.

use std::ops::{Deref, DerefMut};

use nerite_tensor::Tensor;
use smallvec::SmallVec;

use crate::recycled::clear_list;

/// The tensors that go into a model. A list of one or two needs no allocation.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    tensors: SmallVec<[Tensor; 2]>,
    /// The indices of the inputs that the request leaves out, in ascending order.
    left_out: SmallVec<[usize; 2]>,
}

impl Inputs {
    /// The same inputs in the order of a configuration that has `count` inputs. `index` gives the index of an input in the configuration, or an index of at
    /// least `count` for an input that the server added. It must give each input another index. Its first error is returned.
    pub fn arranged<E>(
        mut self,
        count: usize,
        index: impl FnMut(&mut Tensor) -> Result<usize, E>,
    ) -> Result<Inputs, E> {
        let mut indices = self.tensors.iter_mut().map(index).collect::<Result<SmallVec<[usize; 16]>, E>>()?;
        if !indices.is_sorted() {
            let mut numbered: Vec<(usize, Tensor)> = indices.iter().copied().zip(self.tensors).collect();
            numbered.sort_unstable_by_key(|(index, _)| *index);
            self.tensors = numbered.into_iter().map(|(_, tensor)| tensor).collect();
            indices.sort_unstable();
        }
        self.left_out.clear();
        if indices.partition_point(|index| *index < count) < count {
            let mut sent = indices.into_iter().peekable();
            self.left_out.extend((0..count).filter(|index| sent.next_if_eq(index).is_none()));
        }
        Ok(self)
    }

    /// The same inputs, which are in order already, for a request that leaves out the inputs with these indices.
    #[must_use]
    pub fn lacking(self, left_out: &[usize]) -> Inputs {
        Inputs { left_out: SmallVec::from_slice(left_out), ..self }
    }

    /// The input with this index in the model's configuration. `None` if the request leaves it out.
    pub fn at(&self, index: usize) -> Option<&Tensor> {
        let before = self.left_out.partition_point(|left_out| *left_out < index);
        let is_left_out = self.left_out.get(before) == Some(&index);
        if is_left_out { None } else { self.tensors.get(index - before) }
    }

    /// The index of the input at this position.
    pub fn index_of(&self, position: usize) -> usize {
        // A binary search for the number of left-out inputs that come before this position. `left_out[n] - n` sent inputs come before `left_out[n]`.
        let (mut least, mut most) = (0, self.left_out.len());
        while least < most {
            let middle = usize::midpoint(least, most);
            if self.left_out[middle] - middle <= position {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        position + least
    }

    /// The indices of the inputs that the request leaves out, in ascending order.
    pub fn left_out(&self) -> &[usize] {
        &self.left_out
    }

    /// Adds an input behind all others.
    pub fn push(&mut self, tensor: Tensor) {
        self.tensors.push(tensor);
    }

    /// Drops all tensors, and the lists' memory on the heap.
    pub fn clear(&mut self) {
        clear_list(&mut self.tensors);
        clear_list(&mut self.left_out);
    }

    /// Keeps only the first `count` inputs.
    pub fn truncate(&mut self, count: usize) {
        self.tensors.truncate(count);
    }

    /// Removes and returns all inputs.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Tensor> {
        self.tensors.drain(..)
    }
}

impl Deref for Inputs {
    type Target = [Tensor];

    fn deref(&self) -> &[Tensor] {
        &self.tensors
    }
}

impl DerefMut for Inputs {
    fn deref_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }
}

impl From<Vec<Tensor>> for Inputs {
    fn from(tensors: Vec<Tensor>) -> Inputs {
        Inputs { tensors: tensors.into(), left_out: SmallVec::new() }
    }
}

impl FromIterator<Tensor> for Inputs {
    fn from_iter<I: IntoIterator<Item = Tensor>>(tensors: I) -> Inputs {
        Inputs { tensors: tensors.into_iter().collect(), left_out: SmallVec::new() }
    }
}

impl IntoIterator for Inputs {
    type Item = Tensor;
    type IntoIter = smallvec::IntoIter<[Tensor; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl<'i> IntoIterator for &'i Inputs {
    type Item = &'i Tensor;
    type IntoIter = std::slice::Iter<'i, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.iter()
    }
}

impl<'i> IntoIterator for &'i mut Inputs {
    type Item = &'i mut Tensor;
    type IntoIter = std::slice::IterMut<'i, Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use nerite_tensor::{Buffer, DataType, Shape};

    use super::*;

    fn tensor(index: usize) -> Tensor {
        Tensor { name: index.to_string().into(), datatype: DataType::Fp32, shape: Shape::new(), data: Buffer::empty() }
    }

    /// Inputs with these indices, of `count`, are each found by their index, also behind an input that the server adds.
    #[track_caller]
    fn check(sent: &[usize], count: usize, left_out: &[usize]) {
        let (sent_inputs, mut next) = (sent.iter().map(|index| tensor(*index)).collect::<Inputs>(), sent.iter());
        let arranged = sent_inputs.arranged(count, |_| next.next().copied().ok_or("there are as many as tensors"));
        let mut inputs = arranged.expect("each has an index");
        assert_eq!(inputs.left_out(), left_out);
        inputs.push(tensor(count));
        for index in 0..=count + 1 {
            let expected = (sent.contains(&index) || index == count).then(|| index.to_string());
            let found = inputs.at(index).map(|tensor| tensor.name.to_string());
            assert_eq!(found, expected, "{index} of {sent:?}");
        }
        for (position, tensor) in inputs.iter().enumerate() {
            assert_eq!(inputs.index_of(position).to_string(), *tensor.name, "{position} of {sent:?}");
        }
    }

    #[test]
    fn inputs_are_found_by_their_index_whatever_the_client_left_out() {
        check(&[], 0, &[]);
        check(&[0, 1, 2], 3, &[]);
        check(&[2, 0, 1], 3, &[]);
        check(&[0, 2], 3, &[1]);
        check(&[3, 1], 5, &[0, 2, 4]);
        check(&[], 2, &[0, 1]);
        check(&[4], 5, &[0, 1, 2, 3]);
        let (thirds, others): (Vec<usize>, Vec<usize>) = (0..40).rev().partition(|index| index % 3 == 0);
        check(&thirds, 40, &others.into_iter().rev().collect::<Vec<_>>());
    }
}
