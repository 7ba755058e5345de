//! Which sentences of the model repository do clients and scripts match on?
//!
//! They are exactly Triton's. The tests of each caller check them.

use nerite_config::listed;
use nerite_request::Status;

use crate::limits::{FAILURE_BYTES_MAX, VERSIONS_NAMED_MAX};

/// Why a version is unavailable after an unload.
pub const UNLOADED: &str = "unloaded";

/// Why a model that is in two repositories is not loaded.
pub const DUPLICATE: &str = "model appears in two or more repositories";

/// The refusal of a load or unload in a mode that does not allow them. Triton's text mentions polling in all these modes, and clients match on it. So
/// the mode and the cure are appended.
pub fn control_refused(mode: &str) -> Status {
    Status::unavailable(format!(
        "explicit model load / unload is not allowed if polling is enabled; the server runs with --model-control-mode={mode}, and \
         only with --model-control-mode=explicit clients may load and unload"
    ))
}

/// `--load-model=*` beside other names.
pub fn wildcard_not_alone() -> Status {
    Status::invalid("Wildcard model name '*' must be the ONLY startup model if specified at all.")
}

/// A load without a name.
pub fn empty_name() -> Status {
    Status::invalid("Model name cannot be empty. Please enter a valid name to deploy.")
}

/// A name that would leave the repository.
pub fn traversal(model: &str) -> Status {
    Status::invalid(format!("invalid model name '{model}', model name must not contain path traversal characters"))
}

/// The error that a client gets for a failure before loading starts. Triton's text has no reason.
pub fn poll_failed(model: &str, reason: &str) -> Status {
    Status::internal(format!("failed to load '{model}', failed to poll from model repository: {reason}"))
}

/// A load that failed for the reason given. The line feed at its end is Triton's.
pub fn load_failed(model: &str, reason: &str) -> Status {
    Status::invalid(format!("load failed for model '{model}': {reason}\n"))
}

/// The first line of a reason, of at most [`FAILURE_BYTES_MAX`] bytes.
pub fn one_line(reason: &str) -> &str {
    let line = reason.trim().lines().next().unwrap_or_default().trim_end();
    line.get(..line.floor_char_boundary(FAILURE_BYTES_MAX)).unwrap_or(line)
}

/// What is said beside the error of a look-up, and of a version that serves on.
pub fn last_load_failed(reason: &str) -> String {
    format!("the last load of the model failed: {reason}")
}

/// The part of one version in the reason of a failed load.
pub fn version_failed(version: i64, reason: &str) -> String {
    format!("version {version} is at UNAVAILABLE state: {reason};")
}

/// A failure as the index and the log print it: `{Code}: {message}`.
pub fn coded(status: &Status) -> String {
    format!("{}: {}", status.code.name(), status.message)
}

/// The reason of a load that a later operation on the model has replaced.
pub fn outdated() -> String {
    "Newer operation has been applied to the model lifecycle, current load operation is out-dated.".to_owned()
}

/// The reason why a load failed: a composing model is not loaded. `failures` says why, if its load failed.
pub fn needs_unloaded(ensemble: &str, model: &str, failures: &str) -> String {
    let why = match failures {
        "" => String::new(),
        failures => format!(" Model '{model}' loading failed with error: {failures}"),
    };
    format!("ensemble '{ensemble}' depends on '{model}' which has no loaded version.{why}")
}

/// The reason why a load failed: a composing model is loaded, but not in the version that a step asks for.
pub fn needs_version(ensemble: &str, model: &str, version: i64) -> String {
    format!("ensemble '{ensemble}' depends on '{model}' whose required version {version} is not loaded.")
}

/// The reason why a load failed: the ensemble needs itself, and `last` is the last model in the circle.
pub fn circular(ensemble: &str, last: &str) -> String {
    format!("circular dependency between ensembles: {ensemble} -> ... -> {last} -> {ensemble}")
}

/// The reason why a load failed: with this ensemble, there would be too long a row of ensembles that are each made of the next.
pub fn nested_too_deep(ensemble: &str, count: usize, max: usize) -> String {
    format!("ensemble '{ensemble}' would stand in a row of {count} ensembles, each made of the next; at most {max} may")
}

/// The reason why a load failed: a request to this ensemble would start too many steps.
pub fn too_many_steps(ensemble: &str, count: u64, max: usize) -> String {
    format!(
        "a request to ensemble '{ensemble}' would start {count} steps, with those of the ensembles in it; at most {max} are possible: give it \
         fewer steps, or fewer that are ensembles"
    )
}

/// The reason why a load failed: composing models are in no repository, or in several.
pub fn needs_unknown(ensemble: &str, models: &[&str]) -> String {
    format!("ensemble {ensemble} contains models that are not available or ambiguous: {}", models.join(", "))
}

/// The error of an unload after which versions are still ready.
pub fn unload_failed(model: &str, ready: &[i64]) -> Status {
    let versions: Vec<String> = ready.iter().map(i64::to_string).collect();
    let versions = versions.join(",");
    Status::internal(format!("failed to unload '{model}', versions that are still available: {versions}"))
}

/// A name that models of several repositories have.
pub fn ambiguous(model: &str, identifiers: usize) -> Status {
    Status::invalid(format!(
        "There are {identifiers} identifiers of model '{model}' in global map, model namespace must be provided to resolve ambiguity."
    ))
}

/// The error for a name whose models were all unloaded, if models of several repositories may have it.
pub fn no_identifier(model: &str) -> Status {
    Status::not_found(format!("Identifier of model '{model}' is not found in global map"))
}

/// A model that no operation has ever touched.
pub fn unknown_model(model: &str) -> Status {
    Status::not_found(format!("Request for unknown model: '{model}' is not found"))
}

/// A version that the model does not have. `ready` are the versions that take requests.
pub fn unknown_version(model: &str, version: i64, ready: &[i64]) -> Status {
    let ready = match listed(ready, VERSIONS_NAMED_MAX) {
        none if none.is_empty() => none,
        listed => format!("; versions that take requests: {listed}"),
    };
    Status::not_found(format!("Request for unknown model: '{model}' version {version} is not found{ready}"))
}

/// A request without a version for a model of which no version is ready.
pub fn no_version_ready(model: &str) -> Status {
    Status::not_found(format!("Request for unknown model: '{model}' has no available versions"))
}

/// A request for a version that is loading, unloading, unloaded or failed.
pub fn version_not_ready(model: &str, version: i64) -> Status {
    Status::unavailable(format!("Request for unknown model: '{model}' version {version} is not at ready state"))
}
