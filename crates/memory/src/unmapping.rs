//! Which thread unmaps memory if that takes long?
//!
//! ```text
//!   private memory that is not kept ─┬─ little ─► this thread
//!                                    └─ much ───► mappings ─┬─► nerite-unmap
//!   a value that holds shared memory (crate shm) ─► values ─┘
//! ```
//!
//! The kernel takes about 76 ms to unmap 1 GiB of private memory that was used. The thread that frees the memory may serve connections. So the memory is passed
//! to the thread `nerite-unmap`, which ends when nothing waits. That thread unmaps memory in pieces, because other threads cannot map memory meanwhile.
//!
//! Its two lists take turns. A turn of the first list is one piece of a mapping. A turn of the second list is one value. A value that takes long is unmapped in
//! pieces as well ([`unmap_in_pieces`]), and one piece of a mapping is unmapped after each of them. So each list waits only for one piece of the other list.
//! Other work in a value's drop, such as calls of a GPU's driver, is not interrupted.
//!
//! The allocator passes memory on too, so the list of mappings does not allocate ([`mappings`]). Memory that waits to be unmapped counts in
//! [`crate::headroom`], even if it did not count while it was used. So the amount that waits is bounded. An allocation that would be refused first unmaps
//! waiting memory ([`crate::block`]).

mod mappings;
mod pieces;
mod runner;
mod values;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nerite_locks::Mutex;

pub(crate) use mappings::Mapping;
pub use values::OwnerId;

use mappings::Mappings;
use pieces::PieceSize;
use runner::Runner;
use values::Values;

/// The most bytes that a thread unmaps itself before it passes the next mapping on. This takes about 1.2 ms.
const UNMAPPED_HERE_BYTES_MAX: usize = 16 << 20;
/// If more bytes wait, a thread that adds a mapping unmaps one piece itself.
const WAITING_BYTES_MAX: usize = 4 << 30;
/// The longest wait for a piece that another thread is unmapping.
const PIECE_TIME_MAX: Duration = Duration::from_millis(100);

thread_local! {
    /// Bytes that this thread has unmapped since it passed a mapping on. It has no destructor, so the allocator can use it at any time.
    static UNMAPPED_HERE: Cell<usize> = const { Cell::new(0) };
    /// The queue whose value this thread is dropping.
    static DROPS_FOR: Cell<Option<&'static Queue>> = const { Cell::new(None) };
}

/// The queue of the thread `nerite-unmap`.
pub static UNMAPPER: Queue = Queue::new("nerite-unmap");

/// Unmaps a mapping on this thread, or passes it on.
pub(crate) fn unmap(mapping: Mapping) {
    let (is_passed_on, unmapped) = choose(UNMAPPED_HERE.get(), mapping.bytes(), UNMAPPER.runner.is_running());
    UNMAPPED_HERE.set(unmapped);
    if is_passed_on {
        UNMAPPER.push_mapping(mapping);
    } else {
        mapping.unmap();
    }
}

/// Unmaps a mapping on this thread, in pieces. Returns its bytes.
pub(crate) fn unmap_here(mapping: Mapping) -> usize {
    let bytes = mapping.bytes();
    mapping.unmap_by(|start, len| {
        // SAFETY: a Mapping consists of whole pages that nobody uses, and it is consumed.
        unsafe { unmap_in_pieces(start, len) };
    });
    bytes
}

/// Whether a mapping of `bytes` bytes is passed on to the other thread, and how many bytes this thread has then unmapped since it last passed one on. `before`
/// is that number before this mapping. Many small mappings take as long as a large one, so they are added up. While the other thread runs, every mapping is
/// passed on, because no thread has to be started.
fn choose(before: usize, bytes: usize, is_running: bool) -> (bool, usize) {
    let unmapped = before.saturating_add(bytes);
    if cfg!(miri) {
        // Miri cannot unmap a part of a mapping.
        (false, 0)
    } else if is_running || unmapped > UNMAPPED_HERE_BYTES_MAX {
        (true, 0)
    } else {
        (false, unmapped)
    }
}

/// Unmaps memory piece by piece, on this thread. If this is called while a queue drops a value, one piece of the queue's mappings is unmapped after each piece.
///
/// # Safety
/// `len` bytes from `start` on are mapped, and `start` is the beginning of a page. The caller owns this memory, and nobody uses it any more.
pub unsafe fn unmap_in_pieces(start: NonNull<u8>, len: usize) {
    let (mut size, mut at) = (PieceSize::first(), 0);
    while at < len {
        // Miri cannot unmap a part of a mapping.
        let piece = if cfg!(miri) { len } else { size.bytes().min(len - at) };
        let begun = Instant::now();
        // SAFETY: the pieces add up to `len`, so this one begins within the memory.
        let start = unsafe { start.add(at) };
        // SAFETY: the caller owns the memory. Each piece but the last has whole pages, so each starts at a page, and no piece is unmapped twice. munmap
        // fails only if the process has too many mappings. The range then remains mapped and unused.
        let failed = unsafe { libc::munmap(start.as_ptr().cast(), piece) };
        debug_assert_eq!(failed, 0, "munmap of memory of our own");
        size.took(begun.elapsed());
        at += piece;
        if let Some(queue) = DROPS_FOR.get() {
            queue.help();
        }
    }
}

/// The mappings and values that one thread unmaps or drops. The thread is started when an item is added, and ends when nothing waits.
pub struct Queue {
    thread: &'static str,
    runner: Runner,
    mappings: Mutex<Mappings>,
    /// Notified when a piece of a mapping was unmapped.
    unmapped: Condvar,
    values: Mutex<Values>,
    /// Notified when a value was dropped.
    dropped: Condvar,
}

impl Queue {
    /// An empty queue. The thread will have this name.
    pub const fn new(thread: &'static str) -> Queue {
        Queue {
            thread,
            runner: Runner::new(),
            mappings: Mutex::new(Mappings::new()),
            unmapped: Condvar::new(),
            values: Mutex::new(Values::new()),
            dropped: Condvar::new(),
        }
    }

    /// Adds a value, which the thread drops. If no thread can be started, all waiting items are dropped before this returns.
    pub fn push(&'static self, owner: OwnerId, value: Box<dyn Send>) {
        self.values().push(owner, value);
        if self.runner.added() && !self.start() {
            self.work();
        }
    }

    /// The first waiting value of this owner.
    pub fn take_of(&self, owner: OwnerId) -> Option<Box<dyn Send>> {
        self.values().pop_of(owner)
    }

    /// Waits until no value of this owner is being dropped by the thread. Returns whether one was.
    pub fn wait_for(&self, owner: OwnerId) -> bool {
        let values = self.values();
        let is_dropped = values.is_current(owner);
        drop(self.dropped.wait_while(values, |values| values.is_current(owner)));
        is_dropped
    }

    /// Starts the thread if values wait and no thread runs. This happens if the allocator could not start a thread, because the allocator must not drop values
    /// itself.
    pub(crate) fn resume(&'static self) {
        if !self.values().is_empty() && !self.runner.is_running() && self.runner.added() && !self.start() {
            self.work();
        }
    }

    /// Adds a mapping, which the thread unmaps. If no thread can be started, all waiting mappings are unmapped before this returns.
    fn push_mapping(&'static self, mapping: Mapping) {
        self.mappings().push(mapping.counted());
        if self.runner.added() && !self.start() {
            self.work_on(|| self.unmap_piece(&mut PieceSize::first()) > 0);
        }
        // Many threads together may free memory faster than one thread unmaps it.
        if self.waiting_bytes() > WAITING_BYTES_MAX {
            self.help();
        }
    }

    /// Unmaps one piece of the mappings that wait, on this thread. Returns its bytes, 0 if none waits.
    pub(crate) fn help(&self) -> usize {
        self.unmap_piece(&mut PieceSize::first())
    }

    /// Waits until another thread has unmapped a piece. Returns the bytes of the pieces that were being unmapped, 0 if none was or none ended.
    pub(crate) fn wait_for_piece(&self) -> usize {
        let mappings = self.mappings();
        let (current, before) = (mappings.current_bytes(), mappings.unmapped_pieces());
        let is_same = |mappings: &mut Mappings| current > 0 && mappings.unmapped_pieces() == before;
        // The time limit is for a process that was forked meanwhile, because the thread that unmaps does not exist there.
        let (mappings, _) =
            self.unmapped.wait_timeout_while(mappings, PIECE_TIME_MAX, is_same).unwrap_or_else(PoisonError::into_inner);
        if mappings.unmapped_pieces() == before { 0 } else { current }
    }

    /// Bytes of mappings that wait or are being unmapped.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.mappings().bytes()
    }

    fn start(&'static self) -> bool {
        Builder::new().name(self.thread.to_owned()).spawn(|| self.work()).is_ok()
    }

    fn work(&'static self) {
        let mut size = PieceSize::first();
        self.work_on(|| {
            let is_unmapped = self.unmap_piece(&mut size) > 0;
            self.drop_value() || is_unmapped
        });
    }

    /// Calls `step` until it returns false and nothing was added meanwhile.
    fn work_on(&self, mut step: impl FnMut() -> bool) {
        loop {
            let round = self.runner.begins_round();
            while step() {}
            if self.runner.may_end(round) {
                return;
            }
        }
    }

    /// Returns the bytes of the piece, 0 if nothing waits.
    fn unmap_piece(&self, size: &mut PieceSize) -> usize {
        let Some(piece) = self.mappings().take(size.bytes()) else { return 0 };
        let (bytes, begun) = (piece.bytes(), Instant::now());
        piece.unmap();
        size.took(begun.elapsed());
        self.mappings().unmapped(bytes);
        self.unmapped.notify_all();
        bytes
    }

    /// Returns whether there was a value.
    fn drop_value(&'static self) -> bool {
        let Some(value) = self.next_value() else { return false };
        // If a drop panics, the panic hook has logged it, and the remaining values must still be dropped.
        DROPS_FOR.set(Some(self));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
        DROPS_FOR.set(None);
        self.values().dropped();
        self.dropped.notify_all();
        true
    }

    fn next_value(&self) -> Option<Box<dyn Send>> {
        self.values().pop()
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Miri cannot unmap a part of a mapping.
#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    const MIB: usize = 1 << 20;
    const PATIENCE: Duration = Duration::from_mins(1);

    #[test]
    fn a_thread_unmaps_little_itself_and_everything_else_is_passed_on() {
        let limit = UNMAPPED_HERE_BYTES_MAX;
        assert_eq!(choose(0, limit, false), (false, limit));
        assert_eq!(choose(0, limit + 1, false), (true, 0));
        assert_eq!(choose(limit - MIB, MIB, false), (false, limit));
        assert_eq!(choose(limit, MIB, false), (true, 0));
        assert_eq!(choose(0, 4096, true), (true, 0));
        assert_eq!(choose(7, usize::MAX, false), (true, 0));
    }

    /// Sends the name of the thread that drops it, and waits for an answer.
    struct Halt(Sender<Option<String>>, Receiver<()>);

    impl Drop for Halt {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().map(str::to_owned));
            let _ = self.1.recv_timeout(PATIENCE);
        }
    }

    /// Blocks the queue's thread until the sender is used or dropped.
    fn halt(queue: &'static Queue, owner: OwnerId) -> Sender<()> {
        let ((name, name_seen), (go_on, answer)) = (channel(), channel());
        queue.push(owner, Box::new(Halt(name, answer)));
        assert_eq!(name_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some(queue.thread));
        go_on
    }

    fn mapping(bytes: usize) -> Mapping {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the mapping that was just made.
        unsafe { Mapping::new(NonNull::new(start.cast()).unwrap(), bytes, false) }
    }

    #[track_caller]
    fn comes_to_an_end(queue: &Queue) {
        let begun = Instant::now();
        while queue.runner.is_running() && begun.elapsed() < PATIENCE {
            thread::yield_now();
        }
        assert!(!queue.runner.is_running());
    }

    #[test]
    fn a_thread_that_needs_memory_unmaps_piece_by_piece_what_waits() {
        static QUEUE: Queue = Queue::new("test-pieces");
        let go_on = halt(&QUEUE, 1);
        for _ in 0..2 {
            QUEUE.push_mapping(mapping(40 * MIB));
        }
        let mut pieces = Vec::new();
        while pieces.iter().sum::<usize>() < 48 * MIB {
            pieces.push(QUEUE.help());
        }
        assert!(pieces.iter().all(|piece| (1..18 * MIB).contains(piece)), "{pieces:?}");
        drop(go_on);
        comes_to_an_end(&QUEUE);
        assert_eq!((QUEUE.help(), QUEUE.wait_for_piece()), (0, 0));
    }

    /// Unmaps its mapping in pieces when it is dropped. Sends how many pieces of the queue's mappings were unmapped meanwhile.
    struct LargeValue(&'static Queue, Option<Mapping>, Sender<u64>);

    impl Drop for LargeValue {
        fn drop(&mut self) {
            let before = self.0.mappings().unmapped_pieces();
            unmap_here(self.1.take().unwrap());
            let _ = self.2.send(self.0.mappings().unmapped_pieces() - before);
        }
    }

    #[test]
    fn private_memory_is_unmapped_between_the_pieces_of_a_large_value() {
        static QUEUE: Queue = Queue::new("test-turns");
        let (go_on, (pieces, pieces_seen)) = (halt(&QUEUE, 1), channel());
        QUEUE.push(1, Box::new(LargeValue(&QUEUE, Some(mapping(256 * MIB)), pieces)));
        QUEUE.push_mapping(mapping(80 * MIB));
        drop(go_on);
        // The value has at least 5 pieces. The first piece of the mapping, of less than 18 MiB, is unmapped before the value. The remaining pieces are not
        // larger.
        assert!(pieces_seen.recv_timeout(PATIENCE).unwrap() >= 4);
        comes_to_an_end(&QUEUE);
    }

    #[test]
    fn a_thread_that_needs_memory_waits_for_the_piece_that_another_one_unmaps() {
        static QUEUE: Queue = Queue::new("test-waits");
        QUEUE.mappings().push(mapping(8 * MIB).counted());
        let mut piece = QUEUE.mappings().take(8 * MIB).unwrap();
        let mut waited = 0;
        // The other thread may call `wait_for_piece` between two pieces. Then it does not wait.
        while waited == 0 {
            let waits = thread::Builder::new().spawn(|| QUEUE.wait_for_piece()).unwrap();
            while !waits.is_finished() {
                // The next piece has the same size.
                QUEUE.mappings().push(mapping(8 * MIB).counted());
                let bytes = unmap_here(piece);
                QUEUE.mappings().unmapped(bytes);
                piece = QUEUE.mappings().take(8 * MIB).unwrap();
                QUEUE.unmapped.notify_all();
            }
            waited = waits.join().unwrap();
            assert!([0, 8 * MIB].contains(&waited));
        }
        let bytes = unmap_here(piece);
        QUEUE.mappings().unmapped(bytes);
        while let Some(piece) = QUEUE.mappings().take(8 * MIB) {
            let bytes = unmap_here(piece);
            QUEUE.mappings().unmapped(bytes);
        }
        assert_eq!(QUEUE.wait_for_piece(), 0);
    }

    #[test]
    fn who_waits_for_an_owner_waits_until_the_value_was_dropped() {
        static QUEUE: Queue = Queue::new("test-owners");
        let go_on = halt(&QUEUE, 7);
        QUEUE.push(8, Box::new(()));
        assert!(QUEUE.take_of(8).is_some() && QUEUE.take_of(8).is_none());
        assert!(!QUEUE.wait_for(8));
        let waits = thread::Builder::new().spawn(|| QUEUE.wait_for(7)).unwrap();
        drop(go_on);
        let _ = waits.join().unwrap();
        assert!(!QUEUE.wait_for(7));
        comes_to_an_end(&QUEUE);
    }

    #[test]
    fn values_that_no_thread_could_be_started_for_are_dropped_in_the_next_round() {
        static QUEUE: Queue = Queue::new("test-resumes");
        let ((name, name_seen), (go_on, answer)) = (channel(), channel());
        drop(go_on);
        QUEUE.values().push(1, Box::new(Halt(name, answer)));
        QUEUE.resume();
        assert_eq!(name_seen.recv_timeout(PATIENCE).unwrap().as_deref(), Some("test-resumes"));
        comes_to_an_end(&QUEUE);
    }
}
