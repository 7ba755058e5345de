//! Which outputs does a request want, and how is one found?
//!
//! A model's configuration numbers its outputs. Admission finds the index of each output that a request names. From then on an output is found by
//! its index, and its response carries the index:
//!
//! ```text
//!   configuration:  X (0)   Y (1)   Z (2)     outputs that the server adds:  3, 4, …
//!   request:        Z       X                 in the order of the client
//!   index:          2       0
//! ```

use std::ops::Deref;

use nerite_memory::Slot;
use nerite_tensor::Name;
use smallvec::SmallVec;

use crate::recycled::clear_list;

/// One output wanted, and the memory for it.
#[derive(Debug)]
pub struct Wanted {
    /// The model's name for it.
    pub name: Name,
    /// The client's own memory for it; `None` when the bytes travel in the response.
    pub slot: Option<Slot>,
}

/// The outputs that a request names, before they are checked against its model. A list of one or two needs no allocation.
pub type NamedOutputs = SmallVec<[Wanted; 2]>;

/// The outputs that an admitted request wants, in the client's order. A list of one or two needs no allocation.
#[derive(Debug, Default)]
pub struct WantedOutputs {
    outputs: SmallVec<[Wanted; 2]>,
    /// The index of each of them in the model's configuration.
    indices: SmallVec<[usize; 2]>,
}

/// Identifies an output by its index in the model's configuration, or by its name. Only code whose own interface names outputs uses names.
pub trait OutputKey: Copy {
    /// The position of the output among those wanted. `None` if it is not wanted.
    fn position(self, wanted: &WantedOutputs) -> Option<usize>;

    /// The text for errors in place of the name, if the output is not wanted.
    fn text(self) -> Name;
}

impl OutputKey for usize {
    fn position(self, wanted: &WantedOutputs) -> Option<usize> {
        // Most requests want all outputs, in the order of the configuration.
        if wanted.indices.get(self) == Some(&self) {
            return Some(self);
        }
        wanted.indices.iter().position(|index| *index == self)
    }

    fn text(self) -> Name {
        self.to_string().into()
    }
}

impl<N: AsRef<str> + ?Sized> OutputKey for &N {
    fn position(self, wanted: &WantedOutputs) -> Option<usize> {
        wanted.outputs.iter().position(|output| output.name.as_str() == self.as_ref())
    }

    fn text(self) -> Name {
        self.as_ref().into()
    }
}

impl WantedOutputs {
    /// Adds an output, which has this index.
    pub fn push(&mut self, index: usize, output: Wanted) {
        self.outputs.push(output);
        self.indices.push(index);
    }

    /// The output that `key` means, with its index. `None` if it is not wanted.
    pub fn find(&self, key: impl OutputKey) -> Option<(usize, &Wanted)> {
        let position = key.position(self)?;
        Some((*self.indices.get(position)?, self.outputs.get(position)?))
    }

    /// The output at this position.
    pub fn at_mut(&mut self, position: usize) -> Option<&mut Wanted> {
        self.outputs.get_mut(position)
    }

    /// The outputs, each with its index.
    pub fn indexed(&self) -> impl Iterator<Item = (usize, &Wanted)> {
        self.indices.iter().copied().zip(&self.outputs)
    }

    /// As [`WantedOutputs::indexed`], to change them.
    pub fn indexed_mut(&mut self) -> impl Iterator<Item = (usize, &mut Wanted)> {
        self.indices.iter().copied().zip(&mut self.outputs)
    }

    /// The same outputs, without memory for them.
    #[must_use]
    pub fn without_slots(&self) -> WantedOutputs {
        self.indexed().map(|(index, output)| (index, Wanted { name: output.name.clone(), slot: None })).collect()
    }

    /// Keeps only the first `count` outputs.
    pub fn truncate(&mut self, count: usize) {
        self.outputs.truncate(count);
        self.indices.truncate(count);
    }

    /// Drops all outputs, and the memory of the lists on the heap.
    pub fn clear(&mut self) {
        clear_list(&mut self.outputs);
        clear_list(&mut self.indices);
    }
}

impl Deref for WantedOutputs {
    type Target = [Wanted];

    fn deref(&self) -> &[Wanted] {
        &self.outputs
    }
}

impl FromIterator<(usize, Wanted)> for WantedOutputs {
    fn from_iter<I: IntoIterator<Item = (usize, Wanted)>>(outputs: I) -> WantedOutputs {
        let mut wanted = WantedOutputs::default();
        outputs.into_iter().for_each(|(index, output)| wanted.push(index, output));
        wanted
    }
}

/// The index of each output is its position.
impl FromIterator<Wanted> for WantedOutputs {
    fn from_iter<I: IntoIterator<Item = Wanted>>(outputs: I) -> WantedOutputs {
        outputs.into_iter().enumerate().collect()
    }
}

/// The index of each output is its position.
impl From<Vec<Wanted>> for WantedOutputs {
    fn from(outputs: Vec<Wanted>) -> WantedOutputs {
        outputs.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs with these indices, each called `o` and its index, are found by index and by name, and no others are.
    #[track_caller]
    fn check(indices: &[usize]) {
        let output = |index: &usize| (*index, Wanted { name: format!("o{index}").into(), slot: None });
        let wanted: WantedOutputs = indices.iter().map(output).collect();
        for index in 0..6 {
            let (name, expected) = (format!("o{index}"), indices.iter().position(|one| *one == index));
            assert_eq!(
                (index.position(&wanted), name.position(&wanted)),
                (expected, expected),
                "{index} of {indices:?}"
            );
            let found = wanted.find(index).map(|(index, output)| (index, output.name.as_str()));
            assert_eq!(found, expected.map(|_| (index, name.as_str())));
        }
    }

    #[test]
    fn outputs_are_found_by_index_and_by_name_in_any_order() {
        check(&[]);
        check(&[0, 1, 2]);
        check(&[2, 0]);
        check(&[4]);
        check(&[1, 5, 0, 3]);
    }
}
