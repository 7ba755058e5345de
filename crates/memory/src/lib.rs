//! Where are bytes, what keeps them alive, and why were they copied?
//!
//! ```text
//!   Block (heap, 64-byte aligned, reused)  ─┐
//!   bytes::Bytes (a message from a socket) ─┼─► Buffer  readable, cloned and sliced without a copy
//!   a mapping of another process's memory  ─┘   Slot    writable once, becomes a Buffer when filled
//! ```
//!
//! A [`Buffer`] knows where its bytes are ([`Place`]) and owns what keeps them alive ([`MemoryOwner`]). Dropping the last Buffer over a mapping
//! unmaps it, without a flag or a callback. The owner of device memory copies its bytes ([`DeviceCopier`]). Every copy of tensor bytes goes through
//! [`copy`] and names its [`Reason`], so that "zero copies" can be measured.
//!
//! ```
//! use nerite_memory::{Buffer, Extent, Reason, Slot, copied_bytes};
//!
//! let input = Buffer::from(vec![1u8, 2, 3, 4]);
//! let tail = input.slice(Extent::new(2, 2, input.len()).expect("2+2 is within 4"));
//! let before = copied_bytes(Reason::Model);
//! let mut slot = Slot::heap(2);
//! slot.fill_from(0, &tail, Reason::Model).expect("two bytes fit in two");
//! assert_eq!(slot.filled().into_buffer().private_bytes(), Some(&[3u8, 4][..]));
//! assert_eq!(copied_bytes(Reason::Model) - before, 2);
//! ```

mod allowed;
mod bad_alloc;
mod block;
mod buffer;
mod cells;
mod copy;
#[cfg(feature = "counting")]
mod counting;
mod device_copier;
mod extent;
mod file;
mod growable_buffer;
mod headroom;
mod heap;
mod large;
mod memory_owner;
mod numa;
mod number;
mod owned_pages;
mod page;
mod place;
mod private_copy;
mod regular_file;
mod reservation;
mod rewritable;
mod run_memory;
mod same_place;
mod share;
mod slot;
mod staging;
mod unmapping;

pub use allowed::{Group, allocatable_bytes, allowed_bytes, group, host_bytes};
pub use bad_alloc::{can_throw_bad_alloc, throw_bad_alloc};
pub use block::{Block, POOLED_BYTES_MIN, RewritableBlock, limit_pool, pooled_bytes, trim_heap, trim_pool};
pub use buffer::Buffer;
pub use cells::{Cells, CellsMut};
pub use copy::{Reason, copied_bytes, count_copied};
#[cfg(feature = "counting")]
pub use counting::{CountingHeap, allocations, exempt_this_thread, trace_allocations, traced_allocations};
pub use device_copier::{DeviceBytes, DeviceCopier};
pub use extent::{Extent, ExtentError};
pub use file::FileBytes;
pub use growable_buffer::{GrowableBuffer, shortage};
pub use headroom::{NoMemory, SPARE_BYTES};
pub use heap::{Heap, check_memory, fit_heap, run_bounded};
pub use memory_owner::{Access, IpcSource, IpcWindow, MemoryOwner};
pub use numa::MemoryPolicy;
pub use number::Number;
pub use place::Place;
pub use regular_file::read_regular_file;
pub use reservation::{MemoryReservation, is_short};
pub use run_memory::{
    CountedWeights, allocate_for_run, charge_run, credit_run, free_of_run, load_with_memory, run_bytes_max,
    run_with_memory,
};
pub use share::{DeviceShare, ProcessPermit, ReleaseListener, Share, ShareMark, SharedWindow};
pub use slot::{Filled, Slot, SlotError, Vacant};
pub use staging::{HeapStaging, PinnedBytes, Staging, StagingFull};
pub use unmapping::{OwnerId, Queue, UNMAPPER, unmap_in_pieces};
