//! Which runs may a front thread do itself?
//!
//! A model must not block a thread that serves connections. Such a thread runs a request itself only if a bound holds for that request:
//!
//! - The model says what bounds the time of its runs ([`CostBound`]). Without a bound all requests run on workers.
//! - If the sizes of the inputs are the bound, a run is judged by earlier runs of the same *class*: the same inputs, each dimension within the same
//!   power of two, and the same outputs. The number of bytes does not suffice: `[n,1]` by `[1,n]` makes n² numbers from 2n. Within a class the time
//!   differs by a factor of two for each dimension that a client may choose. The first requests of a class run on workers. Sizes are those that the model
//!   gets: of two lengths within a power of two, one may be padded to a small bucket and one to the largest.
//! - After a run that took [`SLOW_NS`], no request with as many input bytes (in powers of two) or more counts as quick. They run on workers, until
//!   [`RECOVERY_RUNS_MIN`] of them were quick there and none was slow: a busy machine makes a run look slow now and then. After each recovery they need
//!   twice as many, at most [`RECOVERY_RUNS_MAX`]. The processor time of the thread would not tell such a run from a slow one, because most engines
//!   compute on threads of their own while this one waits.
//!   Runs that are only a little too long raise the mean of their class. The class runs on workers until its mean has come down.
//!
//! These are pure decisions over values that are passed in. The clock and the threads are the pool's.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use foldhash::quality::RandomState;
use nerite_backend::{CostBound, Job};
use nerite_config::Padding;
use nerite_tensor::{Tensor, byte_size};

use crate::limits::{
    QUICK_BYTES_MAX, QUICK_NS_MAX, QUICK_RUNS_MIN, RECOVERY_RUNS_MAX, RECOVERY_RUNS_MIN, SIZE_CLASSES, SLOW_NS,
};

/// Measurements of the runs of one model version.
pub struct Quickness {
    bound: CostBound,
    padding: Padding,
    keys: RandomState,
    /// One [`Record`] for each place. The hash of a class chooses its place. The place holds the class that ran there last.
    classes: Box<[AtomicU64]>,
    /// The smallest class of input bytes (see [`class_of`]) that had a slow run and has not recovered; `u32::MAX` if none.
    slow_from: AtomicU32,
    /// Quick runs of these classes since the last slow one.
    recovered_runs: AtomicU32,
    /// The number of such runs after which the classes count as quick again.
    recovery_runs: AtomicU32,
}

/// The properties of a request that determine the time of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The hash of the class, with a random key so that clients cannot predict it.
    class: u64,
    /// Bytes of all inputs, as the model gets them.
    bytes: usize,
    /// Whether all its memory is on the host. A copy from or to a device waits for the device's other work.
    on_host: bool,
}

/// What a run changes for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was slow. Requests with this many input bytes or more do not count as quick any more.
    Slow { bytes_min: u64 },
    /// It was the last of many quick ones. Requests with this many input bytes or more are judged by their own runs again.
    Recovered { bytes_min: u64 },
}

impl Quickness {
    /// For a model that has not run yet.
    pub fn new(bound: CostBound) -> Quickness {
        let places = if bound == CostBound::Unknown { 0 } else { SIZE_CLASSES };
        Quickness {
            bound,
            padding: Padding::default(),
            keys: RandomState::default(),
            classes: (0..places).map(|_| AtomicU64::new(0)).collect(),
            slow_from: AtomicU32::new(u32::MAX),
            recovered_runs: AtomicU32::new(0),
            recovery_runs: AtomicU32::new(RECOVERY_RUNS_MIN),
        }
    }

    /// The same, for a model of which some inputs are padded.
    pub fn with_padding(self, padding: Padding) -> Quickness {
        Quickness { padding, ..self }
    }

    /// The job's size. `None` if sizes do not bound the time of a run, or its answers may wait.
    pub fn size(&self, job: &Job) -> Option<Size> {
        if self.bound == CostBound::Unknown || job.may_wait() {
            return None;
        }
        let mut hasher = self.keys.build_hasher();
        let mut bytes = 0;
        for input in job.inputs() {
            add_name(&mut hasher, &input.name);
            let padded = self.padding.input(&input.name).map(|padded| padded.padded(&input.shape));
            let input_bytes = padded.as_ref().map_or(input.data.len(), |shape| padded_bytes(input, shape));
            let shape = padded.as_ref().unwrap_or(&input.shape);
            add_classes(&mut hasher, shape.iter().map(|dim| *dim as u64));
            // Elements of BYTES have no fixed size, so the length of the data counts as well.
            hasher.write_u32(class_of(input_bytes as u64));
            bytes = input_bytes.saturating_add(bytes);
        }
        // A runtime may compute only the requested outputs.
        job.responder().wanted_outputs().indexed().for_each(|(index, _)| hasher.write_usize(index));
        Some(Size { class: hasher.finish(), bytes, on_host: job.is_on_host() })
    }

    /// Whether a front thread may run a job of this size.
    pub fn is_quick(&self, size: Option<Size>) -> bool {
        let Some(size) = size.filter(|size| size.bytes <= QUICK_BYTES_MAX && size.on_host) else { return false };
        let Some(place) = self.place(size) else { return false };
        class_of(size.bytes as u64) < self.slow_from.load(Ordering::Relaxed)
            && Record(place.load(Ordering::Relaxed)).is_quick(size.class)
    }

    /// Whether a front thread may give a job of this size to an instance whose work is done elsewhere, and leave the
    /// rest to another thread.
    pub fn is_small(&self, size: Option<Size>) -> bool {
        self.bound == CostBound::Timeout && size.is_some_and(|size| size.bytes <= QUICK_BYTES_MAX && size.on_host)
    }

    /// Adds the time of a run of this size. Returns what it changes for requests with as many bytes or more.
    pub fn note(&self, size: Option<Size>, ns: u64) -> Option<Change> {
        let size = size?;
        let place = self.place(size)?;
        // Two threads may overwrite each other's record, so a run can be lost. That is harmless for a mean and for a count up to three.
        let before = Record(place.load(Ordering::Relaxed)).of(size.class);
        place.store(before.after(ns).0, Ordering::Relaxed);
        let class = class_of(size.bytes as u64);
        // A first run fills caches and allocates memory for later ones, so it does not count as slow. With `CostBound::Timeout` a front thread never
        // waits longer than [`crate::limits::QUICK_PATIENCE`], so no run counts as slow.
        if ns < SLOW_NS || before.runs() == 0 || self.bound == CostBound::Timeout {
            return if ns <= QUICK_NS_MAX { self.note_recovery(class) } else { None };
        }
        self.recovered_runs.store(0, Ordering::Relaxed);
        let was = self.slow_from.fetch_min(class, Ordering::Relaxed);
        (class < was).then(|| Change::Slow { bytes_min: least_of(class) })
    }

    /// Counts a quick run of this class of bytes, if a run of as many or fewer was slow. A count that two threads write at a time may be one too low.
    fn note_recovery(&self, class: u32) -> Option<Change> {
        let slow_from = self.slow_from.load(Ordering::Relaxed);
        if class < slow_from {
            return None;
        }
        let (runs, wanted) =
            (self.recovered_runs.load(Ordering::Relaxed) + 1, self.recovery_runs.load(Ordering::Relaxed));
        self.recovered_runs.store(if runs < wanted { runs } else { 0 }, Ordering::Relaxed);
        let is_over = runs >= wanted
            && self.slow_from.compare_exchange(slow_from, u32::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_over {
            return None;
        }
        self.recovery_runs.store((2 * wanted).min(RECOVERY_RUNS_MAX), Ordering::Relaxed);
        Some(Change::Recovered { bytes_min: least_of(slow_from) })
    }

    fn place(&self, size: Size) -> Option<&AtomicU64> {
        self.classes.get(size.class as usize % SIZE_CLASSES)
    }
}

/// The bytes of an input that is padded to that shape. An input that is too large to be padded is never quick.
fn padded_bytes(input: &Tensor, shape: &[i64]) -> usize {
    byte_size(input.datatype, shape).ok().flatten().unwrap_or(usize::MAX)
}

/// The record of one class: its tag, the number of runs up to [`QUICK_RUNS_MIN`], and their mean.
///
/// ```text
///   63        18 17  16 15       0
///   | tag       | runs | mean     |   mean in units of 64 ns, at most 4.2 ms
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record(u64);

const TAG_SHIFT: u32 = 18;
const RUNS_SHIFT: u32 = 16;
const MEAN_UNIT_NS: u64 = 64;
const MEAN_MAX: u64 = u16::MAX as u64;

// Two bits hold the number of runs. The lower bits of the hash choose the place, so the tag need not have them.
const _: () = assert!(QUICK_RUNS_MIN <= 3 && SIZE_CLASSES.is_power_of_two() && SIZE_CLASSES <= 1 << TAG_SHIFT);
const _: () = assert!(QUICK_NS_MAX < MEAN_UNIT_NS * MEAN_MAX, "a time that does not fit into the mean is not quick");

impl Record {
    /// This record if it is of this class, else a new one.
    fn of(self, class: u64) -> Record {
        let tag = class >> TAG_SHIFT << TAG_SHIFT;
        if self.0 >> TAG_SHIFT << TAG_SHIFT == tag { self } else { Record(tag) }
    }

    fn runs(self) -> u64 {
        self.0 >> RUNS_SHIFT & 3
    }

    fn mean_ns(self) -> u64 {
        (self.0 & MEAN_MAX) * MEAN_UNIT_NS
    }

    fn is_quick(self, class: u64) -> bool {
        let own = self.of(class);
        own.runs() >= QUICK_RUNS_MIN && own.mean_ns() <= QUICK_NS_MAX
    }

    /// The record with one more run. The first run is counted, and not part of the mean.
    fn after(self, ns: u64) -> Record {
        let ns = ns.min(MEAN_MAX * MEAN_UNIT_NS);
        let mean_ns = match self.runs() {
            0 => 0,
            1 => ns,
            _ => self.mean_ns() - self.mean_ns() / 8 + ns / 8,
        };
        let mean = mean_ns / MEAN_UNIT_NS;
        let runs = (self.runs() + 1).min(QUICK_RUNS_MIN);
        Record(self.0 >> TAG_SHIFT << TAG_SHIFT | runs << RUNS_SHIFT | mean)
    }
}

/// The class of a number: 0 for 0, 1 for 1, 2 for 2, 3 up to 4, 4 up to 8, 5 up to 16, and so on.
fn class_of(number: u64) -> u32 {
    if number == 0 { 0 } else { u64::BITS - (number - 1).leading_zeros() + 1 }
}

/// The smallest number of a class.
fn least_of(class: u32) -> u64 {
    match class {
        0..=2 => u64::from(class),
        class => (1 << (class - 2)) + 1,
    }
}

fn add_name(hasher: &mut impl Hasher, name: &str) {
    hasher.write_usize(name.len());
    hasher.write(name.as_bytes());
}

/// Nine classes of seven bits fit into a word. A leading one bit marks where they begin.
fn add_classes(hasher: &mut impl Hasher, dims: impl Iterator<Item = u64>) {
    let mut word = 1u64;
    for dim in dims {
        if word >> 63 != 0 {
            hasher.write_u64(word);
            word = 1;
        }
        word = word << 7 | u64::from(class_of(dim));
    }
    hasher.write_u64(word);
}

#[cfg(test)]
mod tests;
