//! How are the loads of models shown as metrics?

use super::missing::labels_of;
use super::page::{Page, Value};

/// The loads of one model that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelLoads {
    /// The model's name.
    pub name: String,
    /// Its repository, with `--model-namespacing`; otherwise empty.
    pub namespace: String,
    /// Loads that succeeded.
    pub successes: u64,
    /// Loads that failed.
    pub failures: u64,
}

pub(super) fn write(page: &mut Page, loads: &[ModelLoads]) {
    let samples = |of: &ModelLoads| {
        let sample = |outcome, count| (labels_of(&of.name, &of.namespace, ("outcome", outcome)), Value::Whole(count));
        [sample("failure", of.failures), sample("success", of.successes)]
    };
    page.family(
        "nerite_model_loads_total",
        "counter",
        "Loads and reloads that ended, of models that a repository has, by outcome; a load that was ended early is a failure",
        loads.iter().flat_map(samples),
    );
}
