//! Do front threads run only requests that are known to be quick?
#![allow(clippy::unwrap_used)]

use nerite_backend::ModelVersion;
use nerite_config::{Padding, parse_text};
use nerite_memory::Buffer;
use nerite_request::{AdmittedRequest, Reply, Wanted};
use nerite_tensor::{DataType, Shape, Tensor};

use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

#[expect(clippy::unnecessary_wraps, reason = "all of its callers want an option")]
fn size(class: u64, bytes: usize) -> Option<Size> {
    // A class is a hash. Its upper bits distinguish classes.
    Some(Size { class: class << TAG_SHIFT, bytes, on_host: true })
}

/// Notes runs of `(class, bytes, ns)`. Then checks whether a request of that class and size is quick.
#[track_caller]
fn check(bound: CostBound, runs: &[(u64, usize, u64)], (class, bytes): (u64, usize), quick: bool) {
    let quickness = Quickness::new(bound);
    for (class, bytes, ns) in runs {
        quickness.note(size(*class, *bytes), *ns);
    }
    assert_eq!(quickness.is_quick(size(class, bytes)), quick, "{class} {bytes} after {runs:?}");
}

/// The same run, `count` times.
fn times(count: usize, run: (u64, usize, u64)) -> Vec<(u64, usize, u64)> {
    vec![run; count]
}

#[test]
fn a_size_is_quick_once_three_of_it_were() {
    let bounded = CostBound::InputSizes;
    check(bounded, &[], (1, 64), false);
    check(bounded, &times(2, (1, 64, US)), (1, 64), false);
    check(bounded, &times(3, (1, 64, US)), (1, 64), true);
    check(bounded, &times(3, (1, 64, 150 * US)), (1, 64), true);
    check(bounded, &times(300, (1, 64, 160 * US)), (1, 64), false);
}

#[test]
fn a_size_that_never_ran_is_not_quick_whatever_others_were() {
    check(CostBound::InputSizes, &times(300, (1, 64, US)), (2, 64), false);
    check(CostBound::InputSizes, &times(300, (1, 64, US)), (2, 32), false);
}

#[test]
fn nothing_is_quick_without_a_bound() {
    check(CostBound::Unknown, &times(300, (1, 64, US)), (1, 64), false);
}

#[test]
fn many_bytes_and_memory_of_a_device_are_never_quick() {
    let quickness = Quickness::new(CostBound::InputSizes);
    let many = size(1, QUICK_BYTES_MAX + 1);
    let away = size(2, 64).map(|size| Size { on_host: false, ..size });
    for size in [many, away] {
        for _ in 0..9 {
            let _ = quickness.note(size, US);
        }
        assert!(!quickness.is_quick(size), "{size:?}");
    }
}

#[test]
fn a_first_run_does_not_count_against_a_size() {
    let warm = [times(1, (1, 64, 900 * MS)), times(2, (1, 64, US))].concat();
    check(CostBound::InputSizes, &warm, (1, 64), true);
}

#[test]
fn runs_that_are_a_little_too_long_go_to_workers_until_the_mean_is_down() {
    let hiccup = [times(300, (1, 64, 20 * US)), times(1, (1, 64, 3 * MS))].concat();
    check(CostBound::InputSizes, &hiccup, (1, 64), false);
    check(CostBound::InputSizes, &[hiccup, times(40, (1, 64, 20 * US))].concat(), (1, 64), true);
}

#[test]
fn a_size_that_was_slow_is_not_quick_for_many_runs_nor_is_a_larger_one() {
    let runs = [times(300, (1, 64, US)), times(300, (2, 4096, US)), times(1, (1, 64, SLOW_NS))].concat();
    let runs = [runs, times(200, (1, 64, US)), times(3, (3, 63, US)), times(100_000, (4, 32, US))].concat();
    for (class, bytes, quick) in [(1, 64, false), (2, 4096, false), (3, 63, false), (4, 32, true)] {
        check(CostBound::InputSizes, &runs, (class, bytes), quick);
    }
}

#[test]
fn a_size_that_looked_slow_recovers_by_quick_runs_of_it_and_each_time_later() {
    let quickness = Quickness::new(CostBound::InputSizes);
    let one = size(1, 64);
    let run = |count: u32, ns| (0..count).filter_map(|_| quickness.note(one, ns)).collect::<Vec<_>>();
    assert_eq!(run(9, US), []);
    let mut wanted = RECOVERY_RUNS_MIN;
    while wanted < RECOVERY_RUNS_MAX {
        assert_eq!(run(1, SLOW_NS), [Change::Slow { bytes_min: 33 }]);
        assert_eq!(run(wanted - 1, US), []);
        assert!(!quickness.is_quick(one), "after {} of {wanted}", wanted - 1);
        assert_eq!(run(1, US), [Change::Recovered { bytes_min: 33 }]);
        assert!(quickness.is_quick(one), "after {wanted}");
        wanted *= 2;
    }
    for _ in 0..2 {
        assert_eq!(run(1, SLOW_NS).len(), 1);
        assert_eq!(run(RECOVERY_RUNS_MAX - 1, US).len(), 0);
        assert_eq!(run(1, US).len(), 1, "it does not take more and more");
    }
}

#[test]
fn another_slow_run_begins_the_recovery_again_and_a_middling_one_does_not_count() {
    let quickness = Quickness::new(CostBound::InputSizes);
    let run = |count: u32, ns| (0..count).filter_map(|_| quickness.note(size(1, 64), ns)).count();
    assert_eq!((run(9, US), run(1, SLOW_NS)), (0, 1));
    assert_eq!((run(RECOVERY_RUNS_MIN - 1, US), run(1, SLOW_NS), run(RECOVERY_RUNS_MIN - 1, US)), (0, 0, 0));
    assert_eq!((run(9, MS), run(1, US)), (0, 1));
}

#[test]
fn a_slow_run_is_reported_once_for_its_bytes_and_again_for_fewer() {
    let quickness = Quickness::new(CostBound::InputSizes);
    let run = |class, bytes, ns| match quickness.note(size(class, bytes), ns)? {
        Change::Slow { bytes_min } => Some(bytes_min),
        Change::Recovered { .. } => None,
    };
    assert_eq!(run(1, 4096, 900 * MS), None, "the first of a size");
    assert_eq!(run(1, 4096, 900 * MS), Some(2049));
    assert_eq!(run(1, 4096, 900 * MS), None);
    assert_eq!(run(2, 64, US), None);
    assert_eq!(run(2, 64, SLOW_NS - 1), None);
    assert_eq!(run(2, 64, SLOW_NS), Some(33));
    assert_eq!(run(1, 4096, 900 * MS), None);
}

#[test]
fn models_with_the_bound_patience_may_be_slow_and_quick_again() {
    let runs = [times(9, (1, 64, US)), times(1, (1, 64, 900 * MS))].concat();
    check(CostBound::Timeout, &runs, (1, 64), false);
    check(CostBound::Timeout, &[runs, times(40, (1, 64, US))].concat(), (1, 64), true);
}

#[test]
fn classes_with_the_same_place_replace_each_other() {
    let quickness = Quickness::new(CostBound::InputSizes);
    let (one, other) = (size(1, 64), size(2, 64));
    for _ in 0..9 {
        let _ = quickness.note(one, US);
    }
    assert!(quickness.is_quick(one) && !quickness.is_quick(other));
    quickness.note(other, US);
    assert!(!quickness.is_quick(one) && !quickness.is_quick(other));
}

#[test]
fn numbers_are_classed_by_powers_of_two() {
    for (number, class) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5), (u64::MAX, 65)] {
        assert_eq!(class_of(number), class, "{number}");
    }
    for class in 0..64 {
        assert_eq!(class_of(least_of(class)), class);
        assert!(class == 0 || class_of(least_of(class) - 1) == class - 1, "{class}");
    }
}

fn job(inputs: &[(&str, &[i64])], wanted: &[&str]) -> Job {
    let tensor = |(name, shape): &(&str, &[i64])| {
        let data = Buffer::from(vec![0; 4 * shape.iter().product::<i64>() as usize]);
        Tensor { name: (*name).into(), datatype: DataType::Fp32, shape: Shape::from_slice(shape), data }
    };
    // The model gives y and z.
    let index = |name: &str| usize::from(name == "z");
    let request = AdmittedRequest {
        inputs: inputs.iter().map(tensor).collect(),
        wanted: wanted.iter().map(|name| (index(name), Wanted { name: (*name).into(), slot: None })).collect(),
        ..AdmittedRequest::new(Reply::new(drop))
    };
    Job::new(request, ModelVersion::unmetered("m").begin(), 0)
}

#[track_caller]
fn check_same(one: &Job, other: &Job, same: bool) {
    let quickness = Quickness::new(CostBound::InputSizes);
    let (one, other) = (quickness.size(one).unwrap(), quickness.size(other).unwrap());
    assert_eq!(one.class == other.class, same, "{one:?} {other:?}");
}

#[test]
fn a_class_is_told_by_each_dimension_and_by_the_outputs() {
    let product = job(&[("a", &[1, 64]), ("b", &[64, 1])], &["y"]);
    check_same(&product, &job(&[("a", &[1, 64]), ("b", &[64, 1])], &["y"]), true);
    check_same(&product, &job(&[("a", &[1, 33]), ("b", &[60, 1])], &["y"]), true);
    // The same number of bytes gives 4,096 times as many numbers.
    check_same(&product, &job(&[("a", &[64, 1]), ("b", &[1, 64])], &["y"]), false);
    check_same(&product, &job(&[("a", &[1, 65]), ("b", &[64, 1])], &["y"]), false);
    check_same(&product, &job(&[("a", &[1, 64]), ("b", &[64, 1])], &["z"]), false);
    check_same(&product, &job(&[("a", &[1, 64]), ("b", &[64, 1])], &["y", "z"]), false);
    // An input without bytes: a sum over its first dimension still has as many elements as its second dimension.
    check_same(&job(&[("a", &[0, 1 << 40])], &["y"]), &job(&[("a", &[0, 1])], &["y"]), false);
    check_same(&job(&[("a", &[1; 12])], &["y"]), &job(&[("a", &[1; 13])], &["y"]), false);
}

#[test]
fn a_size_has_the_bytes_of_all_inputs_and_none_where_it_does_not_matter() {
    let request = job(&[("a", &[2, 8]), ("b", &[3])], &["y"]);
    assert_eq!(Quickness::new(CostBound::InputSizes).size(&request).unwrap().bytes, 4 * (16 + 3));
    assert_eq!(Quickness::new(CostBound::Unknown).size(&request), None);
}

fn padding(buckets: &str) -> Padding {
    let text = format!(
        "name: 'm' backend: 'onnxruntime' max_batch_size: 8 input {{ name: 'a' data_type: TYPE_FP32 dims: -1 }} \
         parameters {{ key: 'nerite.pad' value {{ string_value: 'a: {buckets}' }} }}"
    );
    Padding::of(&parse_text("", text.as_bytes()).unwrap()).unwrap()
}

#[test]
fn a_padded_input_has_the_size_that_the_model_gets() {
    let quickness = Quickness::new(CostBound::InputSizes).with_padding(padding("40,1000000"));
    let size = |length| quickness.size(&job(&[("a", &[1, length])], &["y"])).unwrap();
    for length in [0, 1, 33] {
        assert_eq!(size(length), size(40), "{length}");
    }
    // Both lengths are within a power of two, but one of them is padded to 25,000 times as much.
    assert_ne!(size(41).class, size(40).class);
    assert_eq!((size(40).bytes, size(41).bytes), (160, 4_000_000));
    for _ in 0..9 {
        let _ = quickness.note(Some(size(40)), US);
        let _ = quickness.note(Some(size(41)), US);
    }
    assert!(quickness.is_quick(Some(size(40))) && !quickness.is_quick(Some(size(41))));
    // An input that is not padded has its own size.
    assert_eq!(size(1_000_001).bytes, 4_000_004);
}

#[test]
fn what_is_too_large_to_be_padded_is_never_quick() {
    let quickness = Quickness::new(CostBound::InputSizes).with_padding(padding("4,9000000000000000000"));
    let size = quickness.size(&job(&[("a", &[1, 5])], &["y"])).unwrap();
    for _ in 0..9 {
        let _ = quickness.note(Some(size), US);
    }
    assert_eq!(size.bytes, usize::MAX);
    assert!(!quickness.is_quick(Some(size)));
}
