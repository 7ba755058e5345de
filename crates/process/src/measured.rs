//! How are a process's calls about its metrics answered?

use nerite_backend::MetricOwner;

use crate::packets::{Measured, MetricQuestion};

/// Carries out a call about metrics.
pub(crate) fn measured(owner: Option<&mut MetricOwner>, question: MetricQuestion<'_>) -> Measured {
    let Some(owner) = owner else { return Measured::Error("this process may have no metrics".to_owned()) };
    let done = match question {
        MetricQuestion::Family { name, description, kind } => {
            owner.family(name, description, kind).map(Measured::Number)
        }
        MetricQuestion::Metric { family, labels, buckets } => {
            labels.and_then(|labels| owner.metric(family, labels, buckets)).map(Measured::Number)
        }
        MetricQuestion::Change { metric, change } => owner.change(metric, change).map(Measured::Value),
    };
    done.unwrap_or_else(Measured::Error)
}
