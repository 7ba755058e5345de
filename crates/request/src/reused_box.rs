//! How is a box reused if its type has no name, such as the type of a closure?
//!
//! This works as [`crate::Recycled`], but one list of a thread holds the boxes of all types. A box is found by its type.

use std::any::Any;
use std::cell::RefCell;

/// The most boxes that a thread keeps.
const FREE_MAX: usize = 64;
/// A larger box is not kept.
const FREE_BYTES_MAX: usize = 4096;

thread_local! {
    /// Empty boxes of any types, the one that was kept last at the end.
    static FREE: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// A box with that value. [`keep`] takes it back.
pub(crate) fn boxed<T: 'static>(value: T) -> Box<Option<T>> {
    // A thread that is ending keeps none.
    let free = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        let at = free.iter().rposition(|any| any.is::<Option<T>>())?;
        free.remove(at).downcast::<Option<T>>().ok()
    });
    match free.ok().flatten() {
        Some(mut free) => {
            *free = Some(value);
            free
        }
        None => Box::new(Some(value)),
    }
}

/// Drops the value, and keeps the box for a later value of the same type.
pub(crate) fn keep<T: 'static>(mut full: Box<Option<T>>) {
    // The value is dropped before the list is borrowed, because its drop may make and drop other boxes.
    *full = None;
    if size_of::<Option<T>>() > FREE_BYTES_MAX {
        return;
    }
    // An error means that the thread ends.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() == FREE_MAX {
            // The oldest box is freed, so that boxes of types that have become rare do not fill the list.
            free.remove(0);
        }
        free.push(full);
    });
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn free_count() -> usize {
        FREE.with_borrow(Vec::len)
    }

    #[test]
    fn a_box_is_used_again_for_its_own_type_only() {
        let (number, text) = (boxed(7_u64), boxed("seven"));
        let (number_at, text_at) = (&raw const *number, &raw const *text);
        keep(number);
        keep(text);
        let again = (boxed(8_u64), boxed("eight"));
        assert_eq!((&raw const *again.0, &raw const *again.1), (number_at, text_at));
        assert_eq!((*again.0, *again.1), (Some(8), Some("eight")));
        assert_eq!(free_count(), 0);
    }

    #[test]
    fn nothing_of_a_value_is_kept() {
        let value = Rc::new(());
        keep(boxed(Rc::clone(&value)));
        assert_eq!((Rc::strong_count(&value), free_count()), (1, 1));
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_boxes_the_last_ones() {
        keep(boxed("first"));
        let many: Vec<_> = (0..2 * FREE_MAX).map(boxed).collect();
        many.into_iter().for_each(keep);
        assert_eq!(free_count(), FREE_MAX);
        drop(boxed("second"));
        assert_eq!(free_count(), FREE_MAX, "the box of the first text is gone");
        keep(boxed([0_u8; FREE_BYTES_MAX]));
        assert_eq!(free_count(), FREE_MAX);
        FREE.with_borrow(|free| assert!(free.iter().all(|any| any.is::<Option<usize>>())));
    }
}
