//! How many stages does a run take, so that none is long and quick runs stay whole?
//!
//! A stage costs some µs by itself (`examples/stages_cost.rs`), and the engine allocates anew in each. So runs stay whole that are known to be quick, and
//! the others are done in as few stages as they need. Both are judged by earlier runs of the same graph and the same *class*: the same inputs, each
//! dimension within the same power of two, and the same outputs. The number of elements does not suffice: `[1,n]` by `[n,1]` makes one number of 2n,
//! `[n,1]` by `[1,n]` makes n². The first run of a class has all stages. It shows which part of the time each takes.
//!
//! Shapes say nothing about a graph where the values of its inputs decide how much is computed ([`CostBound`]). Its runs always have all stages.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_backend::CostBound;

/// A stage is to take about this long.
const STAGE: Duration = Duration::from_millis(20);
/// After a stage that took longer, the next run has all stages again. What was known of their times was wrong.
const STAGE_MAX: Duration = STAGE.saturating_mul(3);
/// Runs of a class are quick if the last one took less.
const QUICK: Duration = Duration::from_millis(10);
/// The most classes of a graph. Those that ran last are kept.
const CLASSES_MAX: usize = 64;

/// At which boundaries a run is interrupted.
#[derive(Clone, Debug, PartialEq)]
pub enum Stops {
    /// At none.
    None,
    /// At all.
    All,
    /// Behind the stages with these indices.
    Behind(Vec<usize>),
}

/// The class of a run: the hash of what determines its time, with a random key so that clients cannot predict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u64);

/// Measurements of the runs of a graph.
pub struct Pace {
    /// Whether the shapes of the inputs tell the time of a run.
    is_by_shapes: bool,
    keys: RandomState,
    /// The one that ran last comes first. While they are locked, nothing is allocated: a thread that runs out of memory sleeps forever
    /// ([`crate::runner`]), and all other runs of the graph would wait for it.
    records: Mutex<Vec<Record>>,
}

/// Measurements of the runs of a class.
#[derive(Clone)]
struct Record {
    class: Class,
    /// The time of a run, lately.
    took: Duration,
    /// The part that each stage had of the last run with all stages; 0 for one that was joined to the next because their boundary is of no use. `None` if
    /// nothing is known, or what was known was wrong.
    shares: Option<Arc<[f64]>>,
}

/// Hashes what determines the time of a run.
pub struct Classifier(Option<<RandomState as BuildHasher>::Hasher>);

impl Pace {
    /// Nothing is known yet.
    pub fn new(bound: CostBound) -> Pace {
        let is_by_shapes = bound == CostBound::InputSizes;
        let records = Vec::with_capacity(if is_by_shapes { CLASSES_MAX } else { 0 });
        Pace { is_by_shapes, keys: RandomState::new(), records: Mutex::new(records) }
    }

    /// For the class of a run.
    pub fn classifier(&self) -> Classifier {
        Classifier(self.is_by_shapes.then(|| self.keys.build_hasher()))
    }

    /// Where a run of this class is to be interrupted.
    pub fn stops(&self, class: Class) -> Stops {
        if !self.is_by_shapes {
            return Stops::All;
        }
        let known = find(&mut self.records(), class).cloned();
        known.map_or(Stops::All, |record| record.stops())
    }

    /// Whether runs of this class are interrupted nowhere.
    pub fn is_whole(&self, class: Class) -> bool {
        self.is_by_shapes && find(&mut self.records(), class).is_some_and(Record::is_whole)
    }

    /// A run of this class was done. `stages` are the times of its stages; of all, if it was interrupted wherever it can be (`is_complete`).
    pub fn note(&self, class: Class, stages: &[Duration], is_complete: bool) {
        if !self.is_by_shapes {
            return;
        }
        let took: Duration = stages.iter().sum();
        let part = |stage: &Duration| stage.as_secs_f64() / took.as_secs_f64();
        let shares = (is_complete && took >= QUICK).then(|| stages.iter().map(part).collect());
        let mut records = self.records();
        if find(&mut records, class).is_none() {
            records.truncate(CLASSES_MAX - 1);
            records.insert(0, Record { class, took, shares: None });
        }
        let Some(record) = records.first_mut() else { return };
        record.took = if took < QUICK { took } else { (record.took + took) / 2 };
        if shares.is_some() {
            record.shares = shares;
        } else if stages.iter().any(|stage| *stage > STAGE_MAX) {
            record.shares = None;
        }
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Classifier {
    /// The run has this input, with these dimensions.
    pub fn input(&mut self, id: impl Hash, dims: impl Iterator<Item = usize>) {
        let Some(hasher) = &mut self.0 else { return };
        id.hash(hasher);
        // No dimension has the class that ends the list.
        dims.map(class_of).chain([u8::MAX]).for_each(|class| hasher.write_u8(class));
    }

    /// The run is to give this output.
    pub fn wanted(&mut self, id: impl Hash) {
        self.0.iter_mut().for_each(|hasher| id.hash(hasher));
    }

    /// The class. All runs have the same one if shapes tell nothing.
    pub fn class(self) -> Class {
        Class(self.0.map_or(0, |hasher| hasher.finish()))
    }
}

/// The class of a dimension: 0 for 0, 1 for 1, 2 for 2, 3 up to 4, 4 up to 8, and so on.
fn class_of(dim: usize) -> u8 {
    if dim == 0 { 0 } else { (usize::BITS - (dim - 1).leading_zeros() + 1) as u8 }
}

/// Behind which stages a run is interrupted, so that what lies between has about this part of the time. A stage that has more stays alone. It is interrupted
/// only behind stages that have a part: at the boundary behind another it cannot be.
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
        // Once it was slow: a busy machine, perhaps.
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

    #[test]
    fn only_the_classes_that_ran_last_are_kept() {
        let (pace, _) = by_shapes();
        let of = |wanted: usize| {
            let mut classifier = pace.classifier();
            classifier.wanted(wanted);
            classifier.class()
        };
        (0..CLASSES_MAX).for_each(|at| pace.note(of(at), &[MS], false));
        assert!(pace.is_whole(of(0)));
        pace.note(of(CLASSES_MAX), &[MS], false);
        assert_eq!((pace.is_whole(of(0)), pace.is_whole(of(1))), (true, false));
        let records = pace.records();
        assert_eq!((records.len(), records.capacity()), (CLASSES_MAX, CLASSES_MAX));
    }
}
