//! How are numbers read and written if another process may write them at the same time?
//!
//! A slice promises the compiler that nothing else writes its memory. Memory that a peer has mapped too breaks that promise, so it is never borrowed as a
//! slice. Cells read and write one number at a time, or copy whole ranges, through pointers. Two reads of one cell may give two values.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::Number;

/// Numbers that may be read while others write them.
#[derive(Clone, Copy, Debug)]
pub struct Cells<'m, T> {
    first: NonNull<T>,
    len: usize,
    memory: PhantomData<&'m T>,
}

/// Numbers that may be read and written while others do the same.
#[derive(Debug)]
pub struct CellsMut<'m, T> {
    cells: Cells<'m, T>,
}

impl<'m, T: Number> Cells<'m, T> {
    /// `len` numbers from `first` on.
    ///
    /// # Safety
    /// `first` is aligned, and the numbers are initialised, mapped and readable for `'m`.
    pub(crate) unsafe fn new(first: NonNull<T>, len: usize) -> Cells<'m, T> {
        Cells { first, len, memory: PhantomData }
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number at `at`. It is read once. `None` past the end.
    pub fn get(&self, at: usize) -> Option<T> {
        (at < self.len).then(|| self.read(at))
    }

    /// The numbers in order, each read once.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'m, T> {
        let cells = *self;
        (0..cells.len).map(move |at| cells.read(at))
    }

    /// The number at `at`. The caller has checked that `at` is less than `len`.
    fn read(&self, at: usize) -> T {
        let number = self.place(at);
        // SAFETY: `place` found it inside the memory that `new` promised; every bit pattern is a Number. The read is volatile,
        // because a peer may write at this moment.
        unsafe { number.read_volatile() }
    }

    /// The address of the number at `at`, or of the end.
    fn place(&self, at: usize) -> NonNull<T> {
        assert!(at <= self.len, "{at} of {}", self.len);
        // SAFETY: `new` promised `len` numbers, and `at` is no more, by the assertion.
        unsafe { self.first.add(at) }
    }

    /// A copy of all numbers.
    #[expect(clippy::disallowed_methods, reason = "the program copies numbers for its own use; no tensor is passed on")]
    pub fn to_vec(&self) -> Vec<T> {
        let mut copy = Vec::with_capacity(self.len);
        // SAFETY: `len` numbers are readable here, by `new`, and there is room for as many in a vector of this process, which
        // overlaps no memory of a peer.
        unsafe { std::ptr::copy_nonoverlapping(self.first.as_ptr(), copy.as_mut_ptr(), self.len) };
        // SAFETY: the line above has written the first `len` numbers.
        unsafe { copy.set_len(self.len) };
        copy
    }

    /// Copies the first `to.len()` numbers to `to`.
    ///
    /// # Panics
    /// If there are fewer numbers.
    #[expect(clippy::disallowed_methods, reason = "the program copies numbers for its own use; no tensor is passed on")]
    pub fn copy_to(&self, to: &mut [T]) {
        assert!(to.len() <= self.len, "{} numbers asked of {}", to.len(), self.len);
        // SAFETY: as many numbers are readable here, by the assertion and `new`, as `to` has; `to` is borrowed mutably, so it
        // is no memory of a peer.
        unsafe { std::ptr::copy_nonoverlapping(self.first.as_ptr(), to.as_mut_ptr(), to.len()) };
    }
}

impl<'m, T: Number> CellsMut<'m, T> {
    /// As [`Cells::new`], for numbers that may also be written.
    ///
    /// # Safety
    /// As for [`Cells::new`], and the numbers are writable for `'m`.
    pub(crate) unsafe fn new(first: NonNull<T>, len: usize) -> CellsMut<'m, T> {
        // SAFETY: the caller's promise.
        CellsMut { cells: unsafe { Cells::new(first, len) } }
    }

    /// The same numbers, for reading.
    pub fn cells(&self) -> Cells<'_, T> {
        self.cells
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.cells.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Writes one number. False if `at` is past the end.
    pub fn set(&mut self, at: usize, number: T) -> bool {
        let is_there = at < self.cells.len;
        if is_there {
            let place = self.cells.place(at);
            // SAFETY: `at` is below `len`, up to which `new` promised writable numbers.
            unsafe { place.write_volatile(number) };
        }
        is_there
    }

    /// Writes `number` to all cells.
    pub fn fill(&mut self, number: T) {
        self.fill_with((0..self.cells.len).map(|_| number));
    }

    /// Writes `numbers` in order, until there are no more cells or no more numbers. Returns how many were written.
    pub fn fill_with(&mut self, numbers: impl IntoIterator<Item = T>) -> usize {
        let mut count = 0;
        for (at, number) in (0..self.cells.len).zip(numbers) {
            let place = self.cells.place(at);
            // SAFETY: the range ends at `len`, up to which `new` promised writable numbers.
            unsafe { place.write(number) };
            count += 1;
        }
        count
    }

    /// Copies `from` to the numbers from `at` on.
    ///
    /// # Panics
    /// If there are fewer numbers.
    #[expect(clippy::disallowed_methods, reason = "the program copies numbers for its own use; no tensor is passed on")]
    pub fn copy_from(&mut self, at: usize, from: &[T]) {
        let fits = at.checked_add(from.len()).is_some_and(|end| end <= self.cells.len);
        assert!(fits, "{} numbers at {at} of {}", from.len(), self.cells.len);
        let to = self.cells.place(at);
        // SAFETY: as many numbers are writable there, by the assertion and `new`; `from` is a slice, so it is no memory of a peer.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Copies as many numbers of `from` as fit, from the first one on. Both may be the same memory.
    #[expect(clippy::disallowed_methods, reason = "the program copies numbers for its own use; no tensor is passed on")]
    pub fn copy_cells(&mut self, from: Cells<'_, T>) {
        let len = self.cells.len.min(from.len);
        // SAFETY: both have `len` numbers, by `new` of either; `copy` is for ranges that may overlap.
        unsafe { std::ptr::copy(from.first.as_ptr(), self.cells.first.as_ptr(), len) };
    }
}

#[cfg(test)]
mod tests {
    use crate::{Buffer, Reason, Slot};

    #[test]
    fn numbers_are_read_and_written_within_their_memory() {
        let mut slot = Slot::heap(16);
        let mut cells = slot.cells_mut::<i32>().expect("aligned and whole");
        cells.fill(7);
        assert!(cells.set(3, -1) && !cells.set(4, 9));
        cells.copy_from(1, &[1, 2]);
        assert_eq!(cells.fill_with([5]), 1);
        assert_eq!(cells.cells().to_vec(), [5, 1, 2, -1]);
        let buffer = slot.filled().into_buffer();
        let cells = buffer.cells::<i32>().expect("aligned and whole");
        assert_eq!((cells.len(), cells.get(3), cells.get(4)), (4, Some(-1), None));
        assert_eq!(cells.iter().collect::<Vec<_>>(), [5, 1, 2, -1]);
        let mut two = [0; 2];
        cells.copy_to(&mut two);
        assert_eq!(two, [5, 1]);
        let mut other = Slot::heap(12);
        other.cells_mut::<i32>().expect("aligned and whole").copy_cells(cells);
        assert_eq!(other.filled().into_buffer().numbers::<i32>(), Some(&[5, 1, 2][..]));
    }

    #[test]
    fn no_number_is_seen_where_none_can_lie() {
        let bytes = Buffer::from(vec![0; 6]);
        assert!(bytes.cells::<i32>().is_none());
        assert!(Buffer::empty().cells::<i64>().is_some_and(|cells| cells.is_empty() && cells.to_vec().is_empty()));
        let mut slot = Slot::heap(6);
        assert!(slot.cells_mut::<f64>().is_none());
        slot.write(0, &[1; 6], Reason::Model).expect("its own length");
    }

    #[test]
    #[should_panic(expected = "2 numbers at 3 of 4")]
    fn a_range_past_the_end_is_refused() {
        Slot::heap(4).cells_mut::<u8>().expect("bytes").copy_from(3, &[1, 2]);
    }
}
