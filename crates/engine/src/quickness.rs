//! Which runs may a front end's thread do itself?
//!
//! A thread that serves connections is not to be held by a model. It runs a request itself only if a bound holds for that request:
//!
//! - The model says what bounds its runs ([`CostBound`]). Without a bound everything runs on workers.
//! - If the sizes of the inputs bound them, a run is judged by runs of the same *class*: the same inputs, each dimension within the
//!   same power of two, and the same outputs. Bytes alone do not tell: `[n,1]` by `[1,n]` makes n² numbers of 2n. Within a class the
//!   cost differs by a factor of two for each dimension that a client may choose. What never ran goes to a worker first.
//! - What took [`SLOW_NS`] once is slow: no request with as many input bytes (in powers of two), or more, is quick again until the model is
//!   loaded anew. What is a little too long raises the mean of its class and goes to workers until the mean has come down.
//!
//! All of it is decided by values that are passed in; the clock and the threads are the pool's.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use foldhash::quality::RandomState;
use nerite_backend::{CostBound, Job};

use crate::limits::{QUICK_BYTES_MAX, QUICK_NS_MAX, QUICK_RUNS_MIN, SIZE_CLASSES, SLOW_NS};

/// What is known of the runs of one model version.
pub struct Quickness {
    bound: CostBound,
    keys: RandomState,
    /// One [`Record`] per place. A class has one place, by its hash; the class that ran there last has it.
    classes: Box<[AtomicU64]>,
    /// Inputs of this many bytes (a class, see [`class_of`]) were slow.
    slow_from: AtomicU32,
}

/// How large a request is, as far as the cost of a run follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// A hash of the class that no client can foresee.
    class: u64,
    /// Bytes of all inputs.
    bytes: usize,
    /// Whether all its memory is the host's. A copy from or to a device waits for what else the device has to do.
    on_host: bool,
}

/// A run that was slow for the first time at that many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Inputs of so many bytes or more do not count as quick any more.
    pub bytes_min: u64,
}

impl Quickness {
    /// Of a model that has not run yet.
    pub fn new(bound: CostBound) -> Quickness {
        let places = if bound == CostBound::Unknown { 0 } else { SIZE_CLASSES };
        Quickness {
            bound,
            keys: RandomState::default(),
            classes: (0..places).map(|_| AtomicU64::new(0)).collect(),
            slow_from: AtomicU32::new(u32::MAX),
        }
    }

    /// The job's size; `None` if it does not matter because nothing bounds a run.
    pub fn size(&self, job: &Job) -> Option<Size> {
        if self.bound == CostBound::Unknown {
            return None;
        }
        let mut hasher = self.keys.build_hasher();
        let mut bytes = 0;
        for input in job.inputs() {
            add_name(&mut hasher, &input.name);
            add_classes(&mut hasher, input.shape.iter().map(|dim| *dim as u64));
            // Elements of BYTES have no size of their own.
            hasher.write_u32(class_of(input.data.len() as u64));
            bytes += input.data.len();
        }
        // A runtime may compute only what is asked for.
        job.wanted().for_each(|name| add_name(&mut hasher, name));
        Some(Size { class: hasher.finish(), bytes, on_host: job.is_on_host() })
    }

    /// Whether a front end's thread may run a job of this size.
    pub fn is_quick(&self, size: Option<Size>) -> bool {
        let Some(size) = size.filter(|size| size.bytes <= QUICK_BYTES_MAX && size.on_host) else { return false };
        let Some(place) = self.place(size) else { return false };
        class_of(size.bytes as u64) < self.slow_from.load(Ordering::Relaxed)
            && Record(place.load(Ordering::Relaxed)).is_quick(size.class)
    }

    /// A job of this size took so long, on whichever thread. Says so if that is the first time that one of its bytes was slow.
    pub fn note(&self, size: Option<Size>, ns: u64) -> Option<Slow> {
        let size = size?;
        let place = self.place(size)?;
        // Two threads may lose one of their runs to each other; neither a mean nor a count of three minds.
        let before = Record(place.load(Ordering::Relaxed)).of(size.class);
        place.store(before.after(ns).0, Ordering::Relaxed);
        // A first run makes ready what later ones find (caches, code, memory). Who is waited for no longer than patience is never slow.
        if ns < SLOW_NS || before.runs() == 0 || self.bound == CostBound::Patience {
            return None;
        }
        let class = class_of(size.bytes as u64);
        let was = self.slow_from.fetch_min(class, Ordering::Relaxed);
        (class < was).then(|| Slow { bytes_min: least_of(class) })
    }

    fn place(&self, size: Size) -> Option<&AtomicU64> {
        self.classes.get(size.class as usize % SIZE_CLASSES)
    }
}

/// What is known of one class: its tag, how many runs were seen (as far as it matters), and their mean.
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

// Two bits count that far, and the hash's lower bits choose the place.
const _: () = assert!(QUICK_RUNS_MIN <= 3 && SIZE_CLASSES.is_power_of_two() && SIZE_CLASSES <= 1 << TAG_SHIFT);
const _: () = assert!(QUICK_NS_MAX < MEAN_UNIT_NS * MEAN_MAX, "what is too long for a mean is too long");

impl Record {
    /// The record if it is this class's, else a new one.
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

    /// With one more run. The first is counted and not weighed.
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

/// 0 for 0, 1 for 1, 2 for 2, 3 up to 4, 4 up to 8, 5 up to 16, and so on.
fn class_of(number: u64) -> u32 {
    if number == 0 { 0 } else { u64::BITS - (number - 1).leading_zeros() + 1 }
}

/// The least number of a class.
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

/// Nine classes of seven bits fit into a word behind a one that says where they begin.
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
