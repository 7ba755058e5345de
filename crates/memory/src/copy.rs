//! Why were tensor bytes copied, and how many?

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Block, DeviceCopier, Place};

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

impl Reason {
    /// The reason of a copy from one place to another: [`Reason::CrossDevice`] if the bytes leave the host or the device, else `self`.
    #[must_use]
    pub fn between(self, from: Place, to: Place) -> Reason {
        if from == to || (from.is_host() && to.is_host()) { self } else { Reason::CrossDevice }
    }
}

reasons! {
    /// From the pieces that a socket delivered into one aligned block. It is the only copy of an inline request.
    InlineRequest = "inline_request",
    /// From memory that cannot be sent to a socket directly into memory that can.
    InlineResponse = "inline_response",
    /// Because the runtime needs a stricter alignment than the message gave.
    Unaligned = "unaligned",
    /// Several requests' rows into one batch.
    BatchGather = "batch_gather",
    /// One batch's rows out to several requests.
    BatchScatter = "batch_scatter",
    /// From the memory where a runtime left an output to the place that the client named.
    OutputPlacement = "output_placement",
    /// Into another number format, for an engine that does not support the tensor's own.
    Convert = "convert",
    /// Strings in memory that others can write: their lengths must be read only once.
    Strings = "strings",
    /// Numbers in memory that others can write, for an engine that computes on slices.
    Slices = "slices",
    /// Indices and sizes in memory that others can write: they must not change between check and use.
    Indices = "indices",
    /// From several pieces of an input into one piece, for a request that a compiled backend sends to another model.
    ModelRequest = "model_request",
    /// Into memory that is shared with the model's process.
    ModelProcess = "model_process",
    /// Between private memory and memory of a client that made threads wait for its memory before.
    Staged = "staged",
    /// The state of a sequence, to the memory where a compiled backend writes the next state over it.
    SequenceState = "sequence_state",
    /// Into the response cache, and out of it to a place that a client named.
    ResponseCache = "response_cache",
    /// Between host and device.
    CrossDevice = "cross_device",
    /// Into a trace.
    Trace = "trace",
    /// The work of the identity model itself.
    Model = "model",
}

static COPIED: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// Bytes copied for this reason since the process started.
pub fn copied_bytes(reason: Reason) -> u64 {
    COPIED[reason as usize].load(Ordering::Relaxed)
}

/// Counts a copy that a library made, such as a decompressor or a tensor conversion.
pub fn count_copied(reason: Reason, bytes: usize) {
    #[cfg(feature = "counting")]
    if crate::counting::is_exempt() {
        return;
    }
    COPIED[reason as usize].fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Copies `len` bytes and counts them.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes. The two may overlap only if both belong to a mapping that a peer controls. The copied bytes may
/// then be wrong, which only affects that peer.
#[expect(clippy::disallowed_methods, reason = "this is the counted copy")]
pub(crate) unsafe fn copy_counted(from: *const u8, to: *mut u8, len: usize, reason: Reason) {
    // SAFETY: the caller promised both ranges. `copy` (memmove) is used and not `copy_nonoverlapping`, because a client may name the same region for input and
    // output. It is a call of libc, so the compiler makes no assumption about what a peer writes.
    unsafe { std::ptr::copy(from, to, len) };
    count_copied(reason, len);
}

/// One end of a copy: an address, its place, and the copier if this process cannot access it.
#[derive(Clone, Copy)]
pub(crate) struct CopyEndpoint<'c> {
    pub ptr: *mut u8,
    pub place: Place,
    pub copier: Option<&'c dyn DeviceCopier>,
}

impl CopyEndpoint<'_> {
    fn copier(&self) -> Result<&dyn DeviceCopier, String> {
        self.copier.ok_or_else(|| format!("nobody carries bytes of {:?}", self.place))
    }
}

/// Copies `len` bytes between any two places, and counts them when the copy is complete.
///
/// # Safety
/// As for [`copy_counted`] if the end is on this host. An end on a device has `len` allocated bytes that its copier can access.
pub(crate) unsafe fn copy_across(
    from: CopyEndpoint<'_>,
    to: CopyEndpoint<'_>,
    len: usize,
    reason: Reason,
) -> Result<(), String> {
    match (from.place.is_host(), to.place.is_host()) {
        (true, true) => {
            // SAFETY: both ends are on this host, and the caller promised both ranges.
            unsafe { copy_counted(from.ptr, to.ptr, len, reason) };
            return Ok(());
        }
        // SAFETY: `from` is the copier's and `to` is on this host; the caller promised both ranges.
        (false, true) => unsafe { from.copier()?.to_host(from.ptr, to.ptr, len) }?,
        // SAFETY: `from` is on this host and `to` is the copier's; the caller promised both ranges.
        (true, false) => unsafe { to.copier()?.to_device(from.ptr, to.ptr, len) }?,
        // SAFETY: both ends are on one device, so its copier can access both; the caller promised both ranges.
        (false, false) if from.place == to.place => unsafe { to.copier()?.within(from.ptr, to.ptr, len) }?,
        (false, false) => {
            let between = Block::try_new(len).map_err(|refused| refused.to_string())?;
            let host = between.as_ptr().as_ptr();
            // SAFETY: `from` is the copier's, as the caller promised, and the block has `len` bytes.
            unsafe { from.copier()?.to_host(from.ptr, host, len) }?;
            // SAFETY: the block has `len` bytes, just written, and `to` is the copier's, as the caller promised.
            unsafe { to.copier()?.to_device(host, to.ptr, len) }?;
        }
    }
    count_copied(reason, len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place::{Device, Host, Pinned};

    #[track_caller]
    fn check(one: Place, other: Place, crosses: bool) {
        let expected = if crosses { Reason::CrossDevice } else { Reason::BatchGather };
        for (from, to) in [(one, other), (other, one)] {
            assert_eq!(Reason::BatchGather.between(from, to), expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn only_what_leaves_the_host_or_a_device_crosses() {
        check(Host, Pinned, false);
        check(Device(1), Device(1), false);
        check(Device(1), Device(0), true);
        check(Device(0), Host, true);
        check(Device(0), Pinned, true);
    }
}
