//! Which fields and parameters of a configuration may a client set?

/// What a text of a configuration means for the server, and so what a client may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// It names no file.
    Name,
    /// It names a file of data in the model's directory, also in one that a client sent. The reader of the file refuses paths that lead out of it.
    Data,
    /// It chooses the code that runs the model. A client changes it only where it may send files. What it names is never looked for in a directory that a
    /// client sent.
    Code,
    /// It names the model's file, which is code for a Python model: as [`Field::Code`] then, and otherwise [`Field::Data`].
    Script,
    /// It names a library that the server's process opens: only the model's own configuration in the repository may.
    Library,
}

/// What a client may do with a parameter that the server reads. Parameters that only a backend or the model's code reads are not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parameter {
    /// Any value.
    Free,
    /// It names an environment, which runs as code: a client sets it where it may send files.
    Environment,
    /// A client may leave it out, and sets no value but the author's.
    Authors(&'static str),
    /// A client does not change it.
    Fixed(&'static str),
    /// A client sets at most as many threads as there are cores.
    Threads,
    /// A client may isolate the model.
    Isolation,
    /// A client may add a sandbox.
    Sandbox,
}

/// All fields of the schema that are texts.
pub(super) const FIELDS: &[(&str, Field)] = &[
    ("name", Field::Name),
    ("platform", Field::Name),
    ("backend", Field::Code),
    ("runtime", Field::Code),
    ("input.name", Field::Name),
    ("output.name", Field::Name),
    ("output.label_filename", Field::Data),
    ("batch_input.target_name", Field::Name),
    ("batch_input.source_input", Field::Name),
    ("batch_output.target_name", Field::Name),
    ("batch_output.source_input", Field::Name),
    ("optimization.execution_accelerators.gpu_execution_accelerator.name", Field::Name),
    ("optimization.execution_accelerators.gpu_execution_accelerator.parameters", Field::Name),
    ("optimization.execution_accelerators.cpu_execution_accelerator.name", Field::Name),
    ("optimization.execution_accelerators.cpu_execution_accelerator.parameters", Field::Name),
    ("sequence_batching.control_input.name", Field::Name),
    ("sequence_batching.state.input_name", Field::Name),
    ("sequence_batching.state.output_name", Field::Name),
    ("sequence_batching.state.initial_state.data_file", Field::Data),
    ("sequence_batching.state.initial_state.name", Field::Name),
    ("ensemble_scheduling.step.model_name", Field::Name),
    ("ensemble_scheduling.step.input_map", Field::Name),
    ("ensemble_scheduling.step.output_map", Field::Name),
    ("ensemble_scheduling.step.model_namespace", Field::Name),
    ("instance_group.name", Field::Name),
    ("instance_group.rate_limiter.resources.name", Field::Name),
    ("instance_group.profile", Field::Name),
    ("instance_group.host_policy", Field::Name),
    ("default_model_filename", Field::Script),
    ("cc_model_filenames", Field::Script),
    ("metric_tags", Field::Name),
    // See [`PARAMETERS`].
    ("parameters.string_value", Field::Name),
    ("model_warmup.name", Field::Name),
    ("model_warmup.inputs.input_data_file", Field::Data),
    ("model_operations.op_library_filename", Field::Library),
    ("model_repository_agents.agents.name", Field::Name),
    ("model_repository_agents.agents.parameters", Field::Name),
    ("model_metrics.metric_control.metric_identifier.family", Field::Name),
];

/// All parameters of a model that the server reads.
pub(super) const PARAMETERS: &[(&str, Parameter)] = &[
    ("EXECUTION_ENV_PATH", Parameter::Environment),
    ("creation_delay_sec", Parameter::Authors("a load holds one of few places meanwhile")),
    ("nerite.cost_bound", Parameter::Authors("such runs may delay all clients")),
    ("session.intra_op.allow_spinning", Parameter::Authors("threads that wait would use the cores of all clients")),
    ("intra_op_thread_count", Parameter::Threads),
    ("inter_op_thread_count", Parameter::Threads),
    ("EXECUTE_TIMEOUT_SECONDS", Parameter::Fixed("it bounds how long a run that hangs keeps others waiting")),
    ("FORCE_CPU_ONLY_INPUT_TENSORS", Parameter::Fixed("it keeps memory that clients may free from the model")),
    ("gpu_mem_limit", Parameter::Fixed("it leaves memory of the GPU to other models")),
    (super::ISOLATED, Parameter::Isolation),
    (super::SANDBOX, Parameter::Sandbox),
    ("SANDBOX_NETWORK", Parameter::Sandbox),
    ("SANDBOX_MEMORY", Parameter::Sandbox),
    ("SANDBOX_GROUP_MEMORY", Parameter::Sandbox),
    ("SANDBOX_PROCESSES", Parameter::Sandbox),
    ("SANDBOX_FILE_SIZE", Parameter::Sandbox),
    ("SANDBOX_READ", Parameter::Sandbox),
    ("SANDBOX_WRITE", Parameter::Sandbox),
    ("SHARE_INITIALIZE", Parameter::Free),
    ("nerite.timeout_ends_runs", Parameter::Free),
    ("nerite.latency_bound_microseconds", Parameter::Free),
    ("nerite.pad", Parameter::Free),
    ("nerite.pad_value", Parameter::Free),
    ("execution_mode", Parameter::Free),
    ("enable_mem_arena", Parameter::Free),
    ("enable_mem_pattern", Parameter::Free),
    ("memory.enable_memory_arena_shrinkage", Parameter::Free),
    ("session.use_device_allocator_for_initializers", Parameter::Free),
    ("cudnn_conv_algo_search", Parameter::Free),
    ("arena_extend_strategy", Parameter::Free),
    ("do_copy_in_default_stream", Parameter::Free),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nerite_config::text_fields;

    use super::*;

    #[test]
    fn the_table_has_each_text_of_the_schema_once() {
        let known: Vec<&str> = FIELDS.iter().map(|(path, _)| *path).collect();
        let (schema, table): (BTreeSet<String>, BTreeSet<String>) =
            (text_fields().into_iter().collect(), known.iter().map(|path| (*path).to_owned()).collect());
        assert_eq!(schema, table, "say what a client may do with each field");
        assert_eq!(known.len(), table.len());
    }
}
