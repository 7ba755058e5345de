//! What do the samples of a page of metrics say?

use std::collections::BTreeMap;

use nerite_wire::prometheus::Sample;

/// The numbers of one model, all versions together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelNumbers {
    /// Requests that succeeded.
    pub(super) success: f64,
    /// Requests that failed.
    pub(super) failure: f64,
    /// Rows of the runs, of failed ones as well.
    pub(super) rows: f64,
    /// Runs of the model.
    pub(super) runs: f64,
    /// µs from arrival to answer, of all.
    pub(super) request_us: f64,
    /// µs of these in the queue.
    pub(super) queue_us: f64,
    /// µs of these in the model.
    pub(super) compute_us: f64,
    /// Requests that wait now.
    pub(super) waiting: f64,
    /// Versions that could take requests.
    pub(super) ready: f64,
}

/// All numbers of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Numbers {
    /// By the identifier of the model: its name, or with `--model-namespacing` its repository and its name.
    pub(super) models: BTreeMap<String, ModelNumbers>,
    /// Numbers that belong to no model, by name; those with one label as `name.label`.
    pub(super) others: BTreeMap<String, f64>,
}

/// Labels by which the samples of a family differ, if it has one of these.
const KINDS: [&str; 3] = ["reason", "kind", "state"];

impl Numbers {
    /// Reads the page. Lines that are no samples are passed over.
    pub(super) fn read(page: &str) -> Numbers {
        let mut numbers = Numbers::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some(sample) = Sample::read(line) else { continue };
            numbers.add(&sample);
        }
        numbers
    }

    /// A number of no model; 0 where there is none.
    pub(super) fn other(&self, name: &str) -> f64 {
        self.others.get(name).copied().unwrap_or_default()
    }

    /// The samples of a family by their label.
    pub(super) fn family<'n>(&'n self, name: &'n str) -> impl Iterator<Item = (&'n str, f64)> {
        let labelled = self
            .others
            .iter()
            .filter_map(move |(key, value)| Some((key.strip_prefix(name)?.strip_prefix('.')?, *value)));
        labelled.filter(|(label, _)| !label.is_empty())
    }

    fn add(&mut self, sample: &Sample<'_>) {
        let Some(model) = sample.label("model") else {
            let kind = KINDS.iter().find_map(|kind| sample.label(kind));
            let name = kind.map_or_else(|| sample.name.to_owned(), |kind| format!("{}.{kind}", sample.name));
            self.others.insert(name, sample.value);
            return;
        };
        let identifier = match sample.label("namespace") {
            Some(namespace) => format!("{namespace}::{model}"),
            None => model,
        };
        let model = self.models.entry(identifier).or_default();
        let place = match sample.name {
            "nv_inference_request_success" => &mut model.success,
            "nv_inference_request_failure" => &mut model.failure,
            "nerite_model_run_rows_total" => &mut model.rows,
            "nv_inference_exec_count" => &mut model.runs,
            "nv_inference_request_duration_us" => &mut model.request_us,
            "nv_inference_queue_duration_us" => &mut model.queue_us,
            "nv_inference_compute_infer_duration_us" => &mut model.compute_us,
            "nv_inference_pending_request_count" => &mut model.waiting,
            "nerite_model_ready" => &mut model.ready,
            _ => return,
        };
        *place += sample.value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_added_up_by_model_and_kept_by_name() {
        let page = "# HELP x y\nnv_inference_request_success{model=\"a\",version=\"1\"} 3\n\
                    nv_inference_request_success{model=\"a\",version=\"2\"} 4\n\
                    nv_inference_request_failure{model=\"a\",reason=\"OTHER\",version=\"1\"} 2\n\
                    nerite_copied_bytes_total{reason=\"unaligned\"} 64\nnv_cpu_utilization 0.25\nno sample\n{} 7\n";
        let numbers = Numbers::read(page);
        let expect = ModelNumbers { success: 7.0, failure: 2.0, ..ModelNumbers::default() };
        assert_eq!(numbers.models, BTreeMap::from([("a".to_owned(), expect)]));
        assert_eq!(numbers.others.get("nv_cpu_utilization"), Some(&0.25));
        assert_eq!(numbers.family("nerite_copied_bytes_total").collect::<Vec<_>>(), [("unaligned", 64.0)]);
    }

    #[test]
    fn models_of_two_repositories_stay_apart() {
        let numbers = Numbers::read(
            "nerite_model_run_rows_total{model=\"m\",namespace=\"/a\",version=\"1\"} 5\nnerite_model_run_rows_total{model=\"m\",namespace=\"/b\",version=\"1\"} 7\n",
        );
        let rows: Vec<_> = numbers.models.iter().map(|(identifier, model)| (identifier.as_str(), model.rows)).collect();
        assert_eq!(rows, [("/a::m", 5.0), ("/b::m", 7.0)]);
    }

    #[test]
    fn a_name_may_hold_what_labels_escape() {
        let numbers =
            Numbers::read("nerite_model_run_rows_total{_t=\"}, {\",model=\"x\\\"\\\\ y=\\\"z\",version=\"1\"} 5");
        assert_eq!(numbers.models.keys().collect::<Vec<_>>(), ["x\"\\ y=\"z"]);
    }
}
