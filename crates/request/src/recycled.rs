//! How is a large value passed on without a copy, and without an allocation for each value?
//! The value lies in a box, and only the box is moved. The thread that drops the value keeps the box for a later value.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

use smallvec::{Array, SmallVec};

/// The most boxes of one type that a thread keeps.
const FREE_MAX: usize = 64;

/// The boxes of one type that a thread keeps. Their values were cleared.
pub type FreeList<T> = RefCell<Vec<Box<T>>>;

/// A value whose box is used again.
pub trait Recycle: Default + 'static {
    /// Makes the value like a new one. Drops its content, and the memory of its lists.
    fn clear(&mut self);

    /// The boxes that this thread keeps.
    fn free_list() -> &'static LocalKey<FreeList<Self>>;
}

/// A value in a box that is used again.
pub struct Recycled<T: Recycle>(
    /// `None` only while it is dropped.
    Option<Box<T>>,
);

impl<T: Recycle> Recycled<T> {
    /// A value that is like a new one.
    pub fn new() -> Recycled<T> {
        // A thread that is ending keeps no boxes.
        let free = T::free_list().try_with(|free| free.borrow_mut().pop()).ok().flatten();
        Recycled(Some(free.unwrap_or_default()))
    }
}

impl<T: Recycle> Default for Recycled<T> {
    fn default() -> Recycled<T> {
        Recycled::new()
    }
}

impl<T: Recycle> From<T> for Recycled<T> {
    fn from(value: T) -> Recycled<T> {
        let mut recycled = Recycled::new();
        *recycled = value;
        recycled
    }
}

impl<T: Recycle + Clone> Clone for Recycled<T> {
    fn clone(&self) -> Recycled<T> {
        T::clone(self).into()
    }
}

impl<T: Recycle> Deref for Recycled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("only `drop` takes the value")
    }
}

impl<T: Recycle> DerefMut for Recycled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("only `drop` takes the value")
    }
}

impl<T: Recycle> Drop for Recycled<T> {
    fn drop(&mut self) {
        let Some(mut value) = self.0.take() else { return };
        // The value is cleared before the list is borrowed, because clearing it may make and drop other values of this type.
        value.clear();
        // An error means that the thread ends.
        let _ = T::free_list().try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < FREE_MAX {
                free.push(value);
            }
        });
    }
}

impl<T: Recycle + fmt::Debug> fmt::Debug for Recycled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

/// Empties a list, and drops its memory on the heap.
pub fn clear_list<A: Array>(list: &mut SmallVec<A>) {
    list.clear();
    list.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_tensor::{DataType, Shape};

    use super::*;
    use crate::{InferResponse, Output, Outputs, Parameter, Response};

    fn free_count() -> usize {
        InferResponse::free_list().with_borrow(Vec::len)
    }

    #[test]
    fn a_response_is_small_and_its_box_is_used_again() {
        assert!(size_of::<Response>() <= 64);
        let one = Recycled::<InferResponse>::new();
        let address = std::ptr::from_ref::<InferResponse>(&one);
        drop(one);
        assert_eq!((free_count(), std::ptr::from_ref::<InferResponse>(&Recycled::new())), (1, address));
    }

    #[test]
    fn nothing_of_a_response_is_left_in_its_box() {
        let output = || Output {
            index: 0,
            name: "a".into(),
            datatype: DataType::Int8,
            shape: Shape::new(),
            data: Buffer::empty(),
            placed: true,
        };
        let mut full = Recycled::from(InferResponse {
            model: "m".into(),
            version: "1".into(),
            id: "i".into(),
            outputs: Outputs::from_vec((0..100).map(|_| output()).collect()),
            ..InferResponse::default()
        });
        full.parameters.insert("p", Parameter::Bool(true));
        drop(full);
        let next = Recycled::<InferResponse>::new();
        assert_eq!(format!("{next:?}"), format!("{:?}", InferResponse::default()));
        assert!(!next.outputs.spilled(), "no memory for many outputs is kept");
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_boxes() {
        let many: Vec<Recycled<InferResponse>> = (0..2 * FREE_MAX).map(|_| Recycled::new()).collect();
        drop(many);
        assert_eq!(free_count(), FREE_MAX);
    }
}
