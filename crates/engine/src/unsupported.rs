//! Which settings of a model's configuration have no effect?

use nerite_config::ModelConfig;
use nerite_config::proto::model_optimization_policy::ModelPriority;
use nerite_config::proto::{ModelInstanceGroup, ModelOptimizationPolicy};

use crate::latencies::FIRST_RESPONSE;
use crate::services::Services;

/// Backends that send one response to each request, even if the configuration says decoupled.
const ANSWER_ONCE: [&str; 2] = ["identity", "onnxruntime"];

/// Backends that write a new state of a sequence to memory of its own. Compiled ones overwrite the previous state if the configuration says so.
const OWN_STATES: [&str; 3] = ["identity", "onnxruntime", "python"];

/// Backends that get no tensors that the server makes for a batch. A compiled backend may make them itself.
const WITHOUT_BATCH_TENSORS: [&str; 2] = ["identity", "python"];

/// One warning with all settings of a model that are accepted and have no effect. `None` if there are none.
pub fn warning(config: &ModelConfig, services: &Services) -> Option<String> {
    let unsupported = unsupported(config, services);
    if unsupported.is_empty() {
        return None;
    }
    Some(format!(
        "model '{}': these settings of its configuration have no effect: {}",
        config.name,
        unsupported.join("; ")
    ))
}

/// The settings, in the order of the schema of `config.pbtxt`, each with what happens instead if that is not obvious.
fn unsupported(config: &ModelConfig, services: &Services) -> Vec<String> {
    let mut unsupported: Vec<&str> = Vec::new();
    let mut note = |is_set: bool, setting| {
        if is_set {
            unsupported.push(setting);
        }
    };
    if let Some(optimization) = &config.optimization {
        note_optimization(optimization, config.backend_name() == "onnxruntime", &mut note);
    }
    let group = |is_set: fn(&ModelInstanceGroup) -> bool| config.instance_group.iter().any(is_set);
    note(
        group(|group| group.rate_limiter.is_some()) && services.rates.is_none(),
        "instance_group.rate_limiter (start the server with --rate-limit=execution_count)",
    );
    note(group(|group| !group.secondary_devices.is_empty()), "instance_group.secondary_devices");
    let is_unknown = |group: &ModelInstanceGroup| {
        !group.host_policy.is_empty() && !services.policies.0.contains_key(&group.host_policy)
    };
    note(
        config.instance_group.iter().any(is_unknown),
        "instance_group.host_policy (start the server with --host-policy=<policy>,<setting>=<value>)",
    );
    let states = config.sequence_batching().map_or(&[][..], |batching| &batching.state);
    // `use_growable_memory` needs no note: each new state is as large as the model makes it.
    note(
        states.iter().any(|state| state.use_same_buffer_for_input_output)
            && OWN_STATES.contains(&config.backend_name()),
        "sequence_batching.state.use_same_buffer_for_input_output (a new state has memory of its own, which does not hold the old one)",
    );
    let makes_none = WITHOUT_BATCH_TENSORS.contains(&config.backend_name());
    note(makes_none && !config.batch_input.is_empty(), "batch_input (the backend makes no tensors for a batch)");
    note(makes_none && !config.batch_output.is_empty(), "batch_output (the backend makes no tensors for a batch)");
    let steps = config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    note(
        steps.iter().any(|step| !step.model_namespace.is_empty()),
        "ensemble_scheduling.step.model_namespace (a step's model is looked for in the ensemble's own repository first)",
    );
    note(!config.cc_model_filenames.is_empty(), "cc_model_filenames");
    let libraries = config.model_operations.as_ref().map_or(&[][..], |operations| &operations.op_library_filename);
    note(!libraries.is_empty() && config.backend_name() != "onnxruntime", "model_operations.op_library_filename");
    note(
        config.decoupled() && ANSWER_ONCE.contains(&config.backend_name()),
        "model_transaction_policy.decoupled (the backend gives one response to each request)",
    );
    note(
        has_other_metrics(config),
        "model_metrics.metric_control (only the family nv_inference_first_response_histogram_ms has buckets)",
    );
    note(
        config.caches_responses() && services.cache.is_none(),
        "response_cache (the server has no cache; start it with --cache-config=local,size=<bytes>)",
    );
    unsupported.into_iter().map(str::to_owned).collect()
}

/// Whether buckets are set for a family without them.
fn has_other_metrics(config: &ModelConfig) -> bool {
    let mut controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    controls.any(|control| control.metric_identifier.as_ref().is_some_and(|one| one.family != FIRST_RESPONSE))
}

fn note_optimization(optimization: &ModelOptimizationPolicy, onnx: bool, note: &mut impl FnMut(bool, &'static str)) {
    // The ONNX runtimes read the optimization level and the accelerators. An engine that lacks one of them warns itself.
    note(optimization.graph.is_some() && !onnx, "optimization.graph");
    note(optimization.execution_accelerators.is_some() && !onnx, "optimization.execution_accelerators");
    note(optimization.priority() != ModelPriority::PriorityDefault, "optimization.priority");
    note(optimization.cuda.is_some(), "optimization.cuda");
    // `true` is the default, which was filled in before.
    note(optimization.input_pinned_memory.is_some_and(|pinned| !pinned.enable), "optimization.input_pinned_memory");
    note(optimization.output_pinned_memory.is_some_and(|pinned| !pinned.enable), "optimization.output_pinned_memory");
    note(optimization.gather_kernel_buffer_threshold > 0, "optimization.gather_kernel_buffer_threshold");
    note(
        optimization.eager_batching,
        "optimization.eager_batching (a batch forms when an instance is free, with all requests that wait by then)",
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use nerite_cache::ResponseCache;

    use super::*;

    #[track_caller]
    fn check(settings: &str, expect: &[&str]) {
        let backend = if settings.contains("backend") { "" } else { "backend: 'identity'" };
        let text = format!("name: 'm' {backend} {settings}");
        let config = nerite_config::parse_text("config.pbtxt", text.as_bytes()).unwrap();
        assert_eq!(unsupported(&nerite_config::normalise(config, "m"), &Services::default()), expect, "{settings}");
    }

    #[test]
    fn settings_with_an_effect_cause_no_warning() {
        check("max_batch_size: 4", &[]);
        check("dynamic_batching { priority_levels: 2 default_queue_policy { max_queue_size: 3 } }", &[]);
        check("instance_group { count: 2 kind: KIND_CPU passive: true }", &[]);
        check("optimization { input_pinned_memory { enable: true } }", &[]);
        check("response_cache { enable: false } model_transaction_policy { decoupled: false }", &[]);
        check("backend: 'onnxruntime' optimization { graph { level: -1 } execution_accelerators { } }", &[]);
        check("backend: 'python' model_transaction_policy { decoupled: true }", &[]);
        check(
            "parameters { key: 'execute_delay_ms' value { string_value: '1' } } metric_tags { key: 'a' value: 'b' }",
            &[],
        );
    }

    #[test]
    fn settings_without_effect_are_named_with_what_happens_instead() {
        check("optimization { graph { level: 1 } }", &["optimization.graph"]);
        check("optimization { execution_accelerators { } }", &["optimization.execution_accelerators"]);
        check(
            "optimization { priority: PRIORITY_MAX eager_batching: true }",
            &[
                "optimization.priority",
                "optimization.eager_batching (a batch forms when an instance is free, with all requests that wait by then)",
            ],
        );
        check(
            "optimization { cuda { graphs: true } gather_kernel_buffer_threshold: 3 }",
            &["optimization.cuda", "optimization.gather_kernel_buffer_threshold"],
        );
        check("optimization { input_pinned_memory { enable: false } }", &["optimization.input_pinned_memory"]);
        check("optimization { output_pinned_memory { enable: false } }", &["optimization.output_pinned_memory"]);
        check(
            "instance_group { rate_limiter { priority: 2 } }",
            &["instance_group.rate_limiter (start the server with --rate-limit=execution_count)"],
        );
        check(
            "instance_group { host_policy: 'numa' secondary_devices { } }",
            &[
                "instance_group.secondary_devices",
                "instance_group.host_policy (start the server with --host-policy=<policy>,<setting>=<value>)",
            ],
        );
        check("sequence_batching { state { use_growable_memory: true } }", &[]);
        check("backend: 'mine' sequence_batching { state { use_same_buffer_for_input_output: true } }", &[]);
        check(
            "backend: 'python' sequence_batching { state { } state { use_same_buffer_for_input_output: true } }",
            &[
                "sequence_batching.state.use_same_buffer_for_input_output (a new state has memory of its own, which does not hold the old one)",
            ],
        );
        check("cc_model_filenames { key: '8.0' value: 'x' }", &["cc_model_filenames"]);
        check("model_warmup { name: 'w' }", &[]);
        check(
            "model_transaction_policy { decoupled: true }",
            &["model_transaction_policy.decoupled (the backend gives one response to each request)"],
        );
        check(
            "response_cache { enable: true }",
            &["response_cache (the server has no cache; start it with --cache-config=local,size=<bytes>)"],
        );
        // No agent is skipped.
        check("model_repository_agents { }", &[]);
    }

    #[test]
    fn settings_that_only_some_backends_follow_are_named_for_others() {
        check(
            "batch_input { } batch_output { }",
            &[
                "batch_input (the backend makes no tensors for a batch)",
                "batch_output (the backend makes no tensors for a batch)",
            ],
        );
        check("backend: 'onnxruntime' batch_input { } batch_output { }", &[]);
        check(
            "platform: 'ensemble' backend: '' ensemble_scheduling { step { model_name: 'x' } step { model_namespace: 'y' } }",
            &[
                "ensemble_scheduling.step.model_namespace (a step's model is looked for in the ensemble's own repository first)",
            ],
        );
        check("model_operations { op_library_filename: 'x.so' }", &["model_operations.op_library_filename"]);
        check("backend: 'onnxruntime' model_operations { op_library_filename: 'x.so' }", &[]);
        let buckets = |family: &str| {
            format!(
                "model_metrics {{ metric_control {{ metric_identifier {{ family: '{family}' }} histogram_options {{ buckets: 1 }} }} }}"
            )
        };
        check(&buckets(FIRST_RESPONSE), &[]);
        check(
            &buckets("nv_inference_request_duration_us"),
            &["model_metrics.metric_control (only the family nv_inference_first_response_histogram_ms has buckets)"],
        );
    }

    #[test]
    fn all_of_it_is_one_line() {
        let text = b"name: 'm' backend: 'x' optimization { eager_batching: true } cc_model_filenames { } response_cache { enable: true }";
        let config = nerite_config::parse_text("", text).unwrap();
        let none = Services::default();
        let cache = Some(Arc::new(ResponseCache::new(1)));
        let all = Services { cache, rates: Some(Arc::default()), ..Services::default() };
        let text = "model 'm': these settings of its configuration have no effect: \
                    optimization.eager_batching (a batch forms when an instance is free, with all requests that wait by then); \
                    cc_model_filenames";
        assert_eq!(warning(&config, &all).unwrap(), text);
        assert!(
            warning(&config, &none)
                .unwrap()
                .contains("; response_cache (the server has no cache; start it with --cache-config")
        );
        assert_eq!(warning(&ModelConfig::default(), &none), None);
    }
}
