//! How are tokens shown as metrics?

use nerite_access::{Counters, Counts};

use super::page::{Page, Value};

/// The use of each token, and of requests without a known token. The names come from the operator's file, so their number is bounded.
pub(super) fn write(page: &mut Page, counters: &Counters) {
    let Counters { tokens, unknown, without, faults, is_current } = counters;
    let requests = |counts: &Counts| {
        let by_outcome = [("passed", counts.passed), ("denied", counts.denied), ("limited", counts.limited)];
        by_outcome.map(|(outcome, count)| sample("outcome", outcome, &counts.name, count))
    };
    page.family(
        "nerite_token_requests_total",
        "counter",
        "Calls by token: passed, denied for want of a scope or a model, or limited by a quota",
        tokens.iter().flat_map(requests),
    );
    let bytes = |counts: &Counts| {
        [("in", counts.bytes_in), ("out", counts.bytes_out)]
            .map(|(direction, bytes)| sample("direction", direction, &counts.name, bytes))
    };
    page.family(
        "nerite_token_bytes_total",
        "counter",
        "Bytes of tensors in messages of inferences, by token",
        tokens.iter().flat_map(bytes),
    );
    page.family(
        "nerite_token_refused_total",
        "counter",
        "Calls refused because they brought no token, or one that is not known",
        [("unknown", unknown), ("without", without)]
            .map(|(reason, count)| (format!("{{reason=\"{reason}\"}}"), Value::Whole(*count))),
    );
    let whole = |value| [(String::new(), Value::Whole(value))];
    let help = "Number of times the file of tokens was found changed and could not be used";
    page.family("nerite_token_file_faults_total", "counter", help, whole(*faults));
    let help = "Whether the tokens in force are those of the file as it is";
    page.family("nerite_token_file_current", "gauge", help, whole((*is_current).into()));
}

fn sample(label: &str, value: &str, token: &str, count: u64) -> (String, Value) {
    (format!("{{{label}=\"{value}\",token=\"{token}\"}}"), Value::Whole(count))
}
