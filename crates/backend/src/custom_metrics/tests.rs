//! Are equal names and labels one metric, and are names, labels and values that are not allowed refused?

use nerite_request::report::CustomValue;

use super::*;

fn labels(text: &str) -> Labels {
    let pair = |one: &str| one.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split_whitespace().filter_map(pair).collect()
}

fn made() -> (Arc<CustomMetrics>, MetricOwner) {
    let registry = Arc::new(CustomMetrics::default());
    let owner = registry.owner();
    (registry, owner)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, String>, text: &str) {
    let found = outcome.expect_err("refused");
    assert!(found.contains(text), "{found}");
}

#[test]
fn what_several_make_under_one_name_is_one_until_the_last_has_gone() {
    let (registry, mut first) = made();
    let mut second = registry.owner();
    let families = [&mut first, &mut second].map(|owner| owner.family("hits", "Hits", MetricKind::Counter));
    let [one, two] = families.map(|family| family.expect("taken"));
    let of_first = first.metric(one, labels("a=1"), None).expect("taken");
    let of_second = second.metric(two, labels("a=1"), None).expect("taken");
    assert_eq!(first.metric(one, labels("a=1"), None), Ok(of_first), "asked again it is the same");
    assert_eq!(first.change(of_first, MetricChange::Increment(2.5)), Ok(2.5));
    assert_eq!(second.change(of_second, MetricChange::Value), Ok(2.5));
    drop(first);
    assert_eq!(registry.report().len(), 1);
    second.drop_family(two);
    refused(second.change(of_second, MetricChange::Value), "no such metric");
    assert_eq!(registry.report(), []);
}

#[test]
fn a_histogram_counts_what_is_within_each_bound() {
    let (registry, mut owner) = made();
    let family = owner.family("h", "", MetricKind::Histogram).expect("taken");
    let metric = owner.metric(family, labels(""), Some(vec![0.1, 1.0, 10.5])).expect("taken");
    for seen in [0.5, 100.0, 1.0, f64::NAN] {
        assert_eq!(owner.change(metric, MetricChange::Observe(seen)), Ok(0.0));
    }
    let (_, value) = registry.report().remove(0).metrics.remove(0);
    let CustomValue::Histogram(buckets, 4, sum) = value else { panic!("{value:?}") };
    assert!(sum.is_nan() && buckets == [(0.1, 0), (1.0, 2), (10.5, 2)]);
}

#[test]
fn what_prometheus_or_the_kind_does_not_allow_is_refused() {
    let (registry, mut owner) = made();
    for name in ["", "1x", "a b", "a-b", "ü"] {
        refused(owner.family(name, "", MetricKind::Gauge), "Invalid metric name");
    }
    for name in ["nv_inference_count", "nerite_sessions", "nv_mine", "process_start_time_seconds"] {
        refused(owner.family(name, "", MetricKind::Counter), "Family name already exists with different type");
    }
    let [c, g, h] = [("c:1", MetricKind::Counter), ("g", MetricKind::Gauge), ("h", MetricKind::Histogram)]
        .map(|(name, kind)| owner.family(name, "", kind).expect("taken"));
    refused(owner.family("g", "", MetricKind::Counter), "Family name already exists with different type");
    for (family, label) in [(c, "=1"), (c, "a-b=1"), (c, "__a=1"), (c, "a:b=1"), (h, "le=1")] {
        let buckets = (family == h).then(Vec::new);
        refused(owner.metric(family, labels(label), buckets), "Invalid label name");
    }
    refused(owner.metric(h, labels(""), None), "Missing required buckets");
    refused(owner.metric(g, labels(""), Some(vec![1.0])), "Unexpected buckets");
    for bounds in [vec![2.0, 1.0], vec![1.0, 1.0], vec![f64::NAN]] {
        refused(owner.metric(h, labels(""), Some(bounds)), "strictly sorted");
    }
    let counter = owner.metric(c, labels("le=1"), None).expect("taken");
    refused(owner.change(counter, MetricChange::Increment(-1.0)), "non-negative");
    refused(owner.change(counter, MetricChange::Set(1.0)), "KIND_COUNTER does not support Set");
    let gauge = owner.metric(g, labels(""), None).expect("taken");
    refused(owner.change(gauge, MetricChange::Observe(1.0)), "KIND_GAUGE does not support Observe");
    refused(owner.change(77, MetricChange::Value), "no such metric");
    refused(owner.metric(77, labels(""), None), "no such metric family");
    assert_eq!(registry.report().iter().map(|family| family.metrics.len()).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn a_model_has_no_more_than_its_share() {
    let (registry, mut owner) = made();
    let family = owner.family("c", "", MetricKind::Counter).expect("taken");
    let histogram = owner.family("h", "", MetricKind::Histogram).expect("taken");
    refused(owner.family(&"c".repeat(METRIC_NAME_BYTES_MAX + 1), "", MetricKind::Counter), "at most");
    refused(owner.family("d", &"d".repeat(METRIC_TEXT_BYTES_MAX + 1), MetricKind::Counter), "at most");
    refused(owner.metric(family, labels(&format!("a={}", "b".repeat(METRIC_LABEL_BYTES_MAX))), None), "at most");
    let bounds = (0..=METRIC_BUCKETS_MAX).map(|bound| bound as f64).collect();
    refused(owner.metric(histogram, labels(""), Some(bounds)), "at most");
    for number in 0..METRICS_MAX {
        assert!(owner.metric(family, labels(&format!("a={number}")), None).is_ok());
    }
    refused(owner.metric(family, labels("a=more"), None), "at most");
    for number in 2..METRIC_FAMILIES_MAX {
        assert!(owner.family(&format!("f{number}"), "", MetricKind::Gauge).is_ok());
    }
    refused(owner.family("more", "", MetricKind::Gauge), "at most");
    assert!(registry.owner().family("others", "", MetricKind::Gauge).is_ok(), "others have theirs");
    drop(owner);
    assert_eq!(registry.report(), []);
}
