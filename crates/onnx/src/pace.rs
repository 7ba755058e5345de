//! How many stages does a run take, so that none is long and quick runs stay whole?
//!
//! A stage costs some µs by itself (`examples/stages_cost.rs`), and the engine allocates anew in each. So runs that are known to be quick stay whole,
//! and the others are done in as few stages as they need. Both are judged by earlier runs of the same graph and the same *class*: the same inputs,
//! each dimension within the same power of two, and the same outputs. The number of elements does not suffice: `[1,n]` by `[n,1]` makes one number of
//! 2n, `[n,1]` by `[1,n]` makes n². The first run of a class has all stages. It shows which part of the time each takes.
//!
//! If the values of a graph's inputs decide how much is computed, shapes say nothing about its time ([`CostBound`]). Its runs always have all stages.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_backend::CostBound;
use nerite_locks::Mutex;

/// The time that a stage is intended to take.
const STAGE: Duration = Duration::from_millis(20);
/// After a stage that took longer, the next run has all stages again, because the known times were wrong.
const STAGE_MAX: Duration = STAGE.saturating_mul(3);
/// Runs of a class are quick if the last one took less.
const QUICK: Duration = Duration::from_millis(10);
/// The most quick classes of a graph, and the most other classes. Those that ran last are kept.
const CLASSES_MAX: usize = 64;

const _: () = assert!(CLASSES_MAX == u64::BITS as usize, "there is a bit for each quick class");

/// At which boundaries a run is interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum Stops {
    /// At none.
    None,
    /// At all of them.
    All,
    /// Behind the stages with these indices.
    Behind(Vec<usize>),
}

/// The class of a run: the hash of what determines its time, with a random key so that clients cannot predict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u64);

/// Measurements of the runs of a graph.
pub struct Pace {
    /// Whether the shapes of the inputs determine the time of a run.
    is_by_shapes: bool,
    keys: RandomState,
    /// A run of a quick class takes no lock, because it may be on a front thread, and such runs are many.
    quick: QuickClasses,
    /// The measurements of the other classes. The class that ran last comes first. While they are locked, nothing is allocated: a thread that runs
    /// out of memory sleeps forever ([`crate::runner`]), and all other runs of the graph would wait for it.
    records: Mutex<Vec<Record>>,
}

/// The classes whose last run was quick. There are no locks: other threads see a change a moment later.
struct QuickClasses {
    /// The keys of the classes. 0 where there is none.
    classes: [AtomicU64; CLASSES_MAX],
    /// A bit for each class. Its runs set it, and the search for a place clears it.
    ran: AtomicU64,
    /// Where the next search for a place begins.
    next: AtomicUsize,
}

/// Measurements of the runs of a class.
#[derive(Clone)]
struct Record {
    class: Class,
    /// The time of a run: an average in which later runs count more.
    took: Duration,
    /// The part of the time that each stage took in the last run with all stages. 0 for a stage that was joined to the next, because the boundary
    /// between them is of no use. `None` if there was no such run, or if a later run has shown that its times were wrong.
    shares: Option<Arc<[f64]>>,
}

/// Hashes what determines the time of a run.
pub struct Classifier(Option<<RandomState as BuildHasher>::Hasher>);

impl Pace {
    /// The pace of a graph that has not run yet.
    pub fn new(bound: CostBound) -> Pace {
        let is_by_shapes = bound == CostBound::InputSizes;
        let records = Vec::with_capacity(if is_by_shapes { CLASSES_MAX } else { 0 });
        Pace { is_by_shapes, keys: RandomState::new(), quick: QuickClasses::new(), records: Mutex::new(records) }
    }

    /// The classifier for one run.
    pub fn classifier(&self) -> Classifier {
        Classifier(self.is_by_shapes.then(|| self.keys.build_hasher()))
    }

    /// Where a run of this class is to be interrupted.
    pub fn stops(&self, class: Class) -> Stops {
        if !self.is_by_shapes {
            return Stops::All;
        }
        if self.quick.has(class) {
            return Stops::None;
        }
        let known = find(&mut self.records(), class).cloned();
        known.map_or(Stops::All, |record| record.stops())
    }

    /// Whether runs of this class are interrupted nowhere.
    pub fn is_whole(&self, class: Class) -> bool {
        self.is_by_shapes && (self.quick.has(class) || find(&mut self.records(), class).is_some_and(Record::is_whole))
    }

    /// Notes a run of this class. `stages` are the times of its stages. `is_complete` says that the run was interrupted wherever it can be.
    pub fn note(&self, class: Class, stages: &[Duration], is_complete: bool) {
        if !self.is_by_shapes {
            return;
        }
        let took: Duration = stages.iter().sum();
        if took < QUICK {
            return self.note_quick(class, took);
        }
        self.quick.remove(class);
        let part = |stage: &Duration| stage.as_secs_f64() / took.as_secs_f64();
        let shares = is_complete.then(|| stages.iter().map(part).collect());
        let mut records = self.records();
        if find(&mut records, class).is_none() {
            records.truncate(CLASSES_MAX - 1);
            records.insert(0, Record { class, took, shares: None });
        }
        let Some(record) = records.first_mut() else { return };
        record.took = (record.took + took) / 2;
        if shares.is_some() {
            record.shares = shares;
        } else if stages.iter().any(|stage| *stage > STAGE_MAX) {
            record.shares = None;
        }
    }

    fn note_quick(&self, class: Class, took: Duration) {
        if self.quick.has(class) {
            return;
        }
        let mut records = self.records();
        if find(&mut records, class).is_some()
            && let Some(record) = records.first_mut()
        {
            record.took = took;
        }
        self.quick.add(class);
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QuickClasses {
    fn new() -> QuickClasses {
        let classes = [const { AtomicU64::new(0) }; CLASSES_MAX];
        QuickClasses { classes, ran: AtomicU64::new(0), next: AtomicUsize::new(0) }
    }

    /// Whether the class is known as quick. This call counts as a run of it.
    fn has(&self, class: Class) -> bool {
        let key = class.key();
        let Some(at) = self.classes.iter().position(|found| found.load(Ordering::Relaxed) == key) else { return false };
        // The bit is written only if it changes, because all threads read it.
        if self.ran.load(Ordering::Relaxed) & (1 << at) == 0 {
            self.ran.fetch_or(1 << at, Ordering::Relaxed);
        }
        true
    }

    /// Adds a class in the place of one that has not run since this search last passed it. Two threads may add the same class twice.
    fn add(&self, class: Class) {
        for _ in 0..=CLASSES_MAX {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % CLASSES_MAX;
            let Some(place) = self.classes.get(at) else { return };
            let has_run = self.ran.fetch_and(!(1 << at), Ordering::Relaxed) & (1 << at) != 0;
            if !has_run || place.load(Ordering::Relaxed) == 0 {
                return place.store(class.key(), Ordering::Relaxed);
            }
        }
    }

    fn remove(&self, class: Class) {
        let key = class.key();
        for place in &self.classes {
            // Another thread may have put another class there meanwhile. That one stays.
            let _ = place.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The record of a class, which becomes the first.
fn find(records: &mut [Record], class: Class) -> Option<&Record> {
    let at = records.iter().position(|record| record.class == class)?;
    records.get_mut(..=at)?.rotate_right(1);
    records.first()
}

impl Record {
    fn is_whole(&self) -> bool {
        self.took < QUICK || self.shares.is_some() && self.took <= STAGE
    }

    fn stops(&self) -> Stops {
        match &self.shares {
            _ if self.is_whole() => Stops::None,
            None => Stops::All,
            Some(shares) => Stops::Behind(divide(shares, STAGE.as_secs_f64() / self.took.as_secs_f64())),
        }
    }
}

impl Class {
    /// The class as a number that is not 0.
    fn key(self) -> u64 {
        self.0.max(1)
    }
}

impl Classifier {
    /// Adds an input of the run, with these dimensions.
    pub fn input(&mut self, id: impl Hash, dims: impl Iterator<Item = usize>) {
        let Some(hasher) = &mut self.0 else { return };
        id.hash(hasher);
        // No dimension has the class that ends the list.
        dims.map(class_of).chain([u8::MAX]).for_each(|class| hasher.write_u8(class));
    }

    /// Adds an output that the run is to give.
    pub fn wanted(&mut self, id: impl Hash) {
        self.0.iter_mut().for_each(|hasher| id.hash(hasher));
    }

    /// The class. If shapes do not determine the time, all runs have the same class.
    pub fn class(self) -> Class {
        Class(self.0.map_or(0, |hasher| hasher.finish()))
    }
}

/// The class of a dimension: 0 for 0, 1 for 1, 2 for 2, 3 up to 4, 4 up to 8, and so on.
fn class_of(dim: usize) -> u8 {
    if dim == 0 { 0 } else { (usize::BITS - (dim - 1).leading_zeros() + 1) as u8 }
}

/// The stages behind which a run is interrupted, so that each section takes about this part of the time. A stage that takes more is a section of its
/// own. A run is interrupted only behind stages with a share above 0, because the boundaries behind the others cannot be used.
fn divide(shares: &[f64], part: f64) -> Vec<usize> {
    let (mut stops, mut sum, mut last) = (Vec::new(), 0.0, None);
    for (at, share) in shares.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        if let Some(last) = last.filter(|_| sum + share > part) {
            stops.push(last);
            sum = 0.0;
        }
        sum += share;
        last = Some(at);
    }
    stops
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[track_caller]
    fn check_divided(shares: &[f64], part: f64, expect: &[usize]) {
        assert_eq!(divide(shares, part), expect);
    }

    #[test]
    fn stages_are_joined_as_long_as_they_are_short_together() {
        check_divided(&[], 0.5, &[]);
        check_divided(&[1.0], 0.5, &[]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 0.5, &[1]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 0.3, &[0, 1, 2]);
        check_divided(&[0.1, 0.8, 0.05, 0.05], 0.2, &[0, 1]);
        check_divided(&[0.1, 0.1, 0.7, 0.1], 0.2, &[1, 2]);
        check_divided(&[0.25, 0.25, 0.25, 0.25], 2.0, &[]);
    }

    #[test]
    fn no_run_is_interrupted_at_a_boundary_that_is_of_no_use() {
        check_divided(&[0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25], 0.5, &[2]);
        check_divided(&[0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25], 0.3, &[0, 2, 4]);
        check_divided(&[0.0, 0.0, 0.5, 0.0, 0.5], 0.1, &[2]);
        check_divided(&[0.0, 0.0, 0.0, 1.0], 0.1, &[]);
        let shares: Vec<f64> = (0..100).map(|at| if at % 2 == 0 { 0.02 } else { 0.0 }).collect();
        let stops = divide(&shares, 0.05);
        assert_eq!((stops.len(), stops.iter().all(|at| at % 2 == 0)), (24, true), "{stops:?}");
    }

    fn class(pace: &Pace, shapes: &[&[usize]]) -> Class {
        let mut classifier = pace.classifier();
        shapes.iter().enumerate().for_each(|(at, shape)| classifier.input(at, shape.iter().copied()));
        classifier.wanted(0);
        classifier.class()
    }

    fn by_shapes() -> (Pace, Class) {
        let pace = Pace::new(CostBound::InputSizes);
        let class = class(&pace, &[&[100, 100]]);
        (pace, class)
    }

    #[test]
    fn runs_of_one_class_have_about_the_same_shapes() {
        let (pace, of_100) = by_shapes();
        assert_eq!(class(&pace, &[&[65, 128]]), of_100);
        for other in [&[&[64, 100][..]][..], &[&[129, 100]], &[&[100]], &[&[100, 100, 1]], &[&[100], &[100]], &[]] {
            assert_ne!(class(&pace, other), of_100, "{other:?}");
        }
        let (inner, outer) = (class(&pace, &[&[1, 100], &[100, 1]]), class(&pace, &[&[100, 1], &[1, 100]]));
        pace.note(inner, &[MS], false);
        assert_eq!((pace.stops(inner), pace.stops(outer)), (Stops::None, Stops::All), "as many elements");
    }

    #[test]
    fn quick_runs_stay_whole_after_the_first_of_their_class() {
        let (pace, class) = by_shapes();
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::All, false));
        pace.note(class, &[MS / 2, MS / 2], true);
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::None, true));
        // One run was slow, perhaps because the machine was busy.
        pace.note(class, &[30 * MS], false);
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::All, false));
        pace.note(class, &[MS], false);
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::None, true));
    }

    #[test]
    fn long_runs_are_divided_by_what_they_took() {
        let (pace, class) = by_shapes();
        pace.note(class, &[10 * MS; 8], true);
        assert_eq!(pace.stops(class), Stops::Behind(vec![1, 3, 5]));
        // The machine has become slower.
        for _ in 0..20 {
            pace.note(class, &[40 * MS; 4], false);
        }
        assert_eq!(pace.stops(class), Stops::Behind((0..7).collect()));
        for _ in 0..20 {
            pace.note(class, &[15 * MS], false);
        }
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::None, true));
    }

    #[test]
    fn a_stage_that_was_slow_once_does_not_count_as_slow_for_ever() {
        let (pace, class) = by_shapes();
        let mut stages = [MS; 8];
        stages[2] = 993 * MS;
        pace.note(class, &stages, true);
        assert_eq!(pace.stops(class), Stops::Behind(vec![1, 2]));
        pace.note(class, &[20 * MS, 10 * MS, 61 * MS], false);
        assert_eq!(pace.stops(class), Stops::All, "a stage was much longer than it should be");
        pace.note(class, &[10 * MS; 8], true);
        let Stops::Behind(stops) = pace.stops(class) else { panic!("it is known") };
        assert!(stops.contains(&5), "{stops:?}");
    }

    #[test]
    fn nothing_is_quick_if_shapes_do_not_tell_the_time() {
        let pace = Pace::new(CostBound::Unknown);
        let class = class(&pace, &[&[]]);
        pace.note(class, &[MS], true);
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::All, false));
    }

    /// A class that is different for each `wanted`.
    fn of(pace: &Pace, wanted: usize) -> Class {
        let mut classifier = pace.classifier();
        classifier.wanted(wanted);
        classifier.class()
    }

    #[test]
    fn only_the_quick_classes_that_ran_last_are_kept() {
        let (pace, _) = by_shapes();
        let of = |wanted| of(&pace, wanted);
        (0..CLASSES_MAX).for_each(|at| pace.note(of(at), &[MS], false));
        assert!(pace.is_whole(of(0)));
        pace.note(of(CLASSES_MAX), &[MS], false);
        assert_eq!([0, 1, 2, CLASSES_MAX].map(|at| pace.is_whole(of(at))), [true, false, true, true]);
        // All have run, but one is replaced all the same.
        for at in 0..=CLASSES_MAX {
            pace.is_whole(of(at));
        }
        pace.note(of(1), &[MS], false);
        assert!(pace.is_whole(of(1)));
        assert_eq!((0..=CLASSES_MAX).filter(|at| pace.is_whole(of(*at))).count(), CLASSES_MAX);
    }

    #[test]
    fn only_the_long_classes_that_ran_last_are_kept() {
        let (pace, _) = by_shapes();
        let of = |wanted| of(&pace, wanted);
        let is_known = |at| pace.stops(of(at)) != Stops::All;
        (0..CLASSES_MAX).for_each(|at| pace.note(of(at), &[10 * MS; 8], true));
        assert!(is_known(0));
        pace.note(of(CLASSES_MAX), &[10 * MS; 8], true);
        assert_eq!((is_known(0), is_known(1)), (true, false));
        let records = pace.records();
        assert_eq!((records.len(), records.capacity()), (CLASSES_MAX, CLASSES_MAX));
    }

    #[test]
    fn quick_runs_take_no_lock() {
        let (pace, class) = by_shapes();
        pace.note(class, &[MS], true);
        // A thread that took the lock would wait for ever.
        let _locked = pace.records();
        assert_eq!((pace.stops(class), pace.is_whole(class)), (Stops::None, true));
        pace.note(class, &[MS], false);
    }
}
