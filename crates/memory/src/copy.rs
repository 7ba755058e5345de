//! Who copied tensor bytes, and why?

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why tensor bytes were copied. Shown as the label `reason` of `nerite_copied_bytes_total`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name),* }

        impl Reason {
            /// Every reason, in the order of the metric.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// The metric's label.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// From the pieces a socket delivered into one aligned block: the one copy an inline request may cost.
    InlineRequest = "inline_request",
    /// From memory that cannot go to a socket as it is into memory that can.
    InlineResponse = "inline_response",
    /// Because the runtime needs a stricter alignment than the message gave.
    Unaligned = "unaligned",
    /// Several requests' rows into one batch.
    BatchGather = "batch_gather",
    /// One batch's rows out to several requests.
    BatchScatter = "batch_scatter",
    /// From where a runtime left an output to where the client wants it.
    OutputPlacement = "output_placement",
    /// Into another number format, for an engine that lacks the first.
    Convert = "convert",
    /// Strings, whose lengths must be read once out of memory that others can write.
    Strings = "strings",
    /// Indices and sizes, which must not change between their check and their use, out of memory that others can write.
    Indices = "indices",
    /// Between host and device.
    CrossDevice = "cross_device",
    /// The model's own work: what the identity model does instead of computing.
    Model = "model",
}

static COPIED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// Bytes copied for this reason since the process started.
pub fn copied_bytes(reason: Reason) -> u64 {
    COPIED[reason as usize].load(Ordering::Relaxed)
}

/// Notes a copy made by a library on our behalf, such as a decompressor or a tensor conversion.
pub fn count_copied(reason: Reason, bytes: usize) {
    COPIED[reason as usize].fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Copies `len` bytes and counts them.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes, and the two do not overlap unless both belong to a mapping
/// that a peer controls, where the outcome is the peer's own garbage.
pub(crate) unsafe fn copy_counted(from: *const u8, to: *mut u8, len: usize, reason: Reason) {
    // SAFETY: the caller promised both ranges. `copy` (memmove) and not `copy_nonoverlapping`, because a client may name
    // the same region for input and output; it is a libc call, so no assumption about the peer's writes is compiled in.
    unsafe { std::ptr::copy(from, to, len) };
    count_copied(reason, len);
}
