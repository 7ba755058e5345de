//! Which options of a session does a configuration set?

use nerite_backend::LoadContext;
use nerite_backend::onnx::{configured_threads, number, parameter_or_setting, threads};
use nerite_request::Status;
use ort::AsPointer;
use ort::environment::Environment;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};

use crate::allocator::USE_ENV_ALLOCATORS;
use crate::cuda::{self, CudaOptions};
use crate::provider::append_cuda;
use crate::traps::PoolThreads;

/// The options of ONNX Runtime for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads within one operator.
    intra_threads: usize,
    /// Threads for operators side by side; 0 for the library's default.
    inter_threads: usize,
    /// Whether operators run side by side at all.
    parallel: bool,
    /// Whether idle threads wait in a loop. They do not by default, because the cores are shared with clients and other models.
    spinning: bool,
    /// Whether the library allocates from an arena of its own.
    arena: bool,
    /// Whether the session allocates from the environment's allocator: see [`crate::allocator`].
    memory_of_server: bool,
    memory_pattern: bool,
    optimization: i32,
    /// `memory.enable_memory_arena_shrinkage`, an option of each run.
    pub arena_shrinkage: Option<String>,
    device_initializers: Option<String>,
    /// Whether the session computes on the threads that all sessions share, if the operator configured them.
    on_common_pool: bool,
    operator_libraries: Vec<std::path::PathBuf>,
    cuda: CudaOptions,
}

impl Options {
    /// Reads the model's parameters and the backend's settings, and those of the CUDA provider if any instance runs on
    /// a GPU.
    pub fn of(context: &LoadContext, on_gpus: bool) -> Result<Options, Status> {
        let config = &context.config;
        let flag = |key| Ok::<_, Status>(number(context, key)?.is_none_or(|value| value != 0));
        let optimization = config.optimization.as_ref();
        let accelerators = optimization.and_then(|o| o.execution_accelerators.as_ref());
        if let Some(accelerator) = accelerators.and_then(|a| a.cpu_execution_accelerator.first()) {
            return Err(Status::unsupported(format!(
                "model '{}' asks for the execution accelerator '{}', which this server does not offer; remove \
                 'execution_accelerators' from its configuration",
                context.model, accelerator.name
            )));
        }
        let libraries = config.model_operations.as_ref().map(|o| o.op_library_filename.as_slice()).unwrap_or_default();
        Ok(Options {
            intra_threads: threads(context)?,
            inter_threads: configured_threads(context, "inter_op_thread_count")?.unwrap_or(0),
            parallel: number(context, "execution_mode")? == Some(1),
            spinning: number(context, "session.intra_op.allow_spinning")? == Some(1),
            arena: flag("enable_mem_arena")?,
            memory_of_server: false,
            memory_pattern: flag("enable_mem_pattern")?,
            optimization: optimization.and_then(|o| o.graph.as_ref()).map_or(0, |graph| graph.level),
            arena_shrinkage: parameter_or_setting(context, "memory.enable_memory_arena_shrinkage").map(str::to_owned),
            device_initializers: parameter_or_setting(context, "session.use_device_allocator_for_initializers")
                .map(str::to_owned),
            on_common_pool: false,
            operator_libraries: libraries.iter().map(|file| context.model_dir.join(file)).collect(),
            // Without an instance on a GPU they are not read, so mistakes in them are not reported.
            cuda: if on_gpus { cuda::options(context)? } else { CudaOptions::new() },
        })
    }

    /// The same options for a session that this many instances share: its pool has as many threads as theirs would have together.
    pub fn shared_by(self, instances: usize) -> Options {
        Options { intra_threads: (self.intra_threads - 1) * instances.max(1) + 1, ..self }
    }

    /// The same options for a session that computes on the threads that all sessions share.
    pub fn on_common_pool(self) -> Options {
        Options { on_common_pool: true, ..self }
    }

    /// The same options for a session that allocates from the environment's allocator, which is no arena.
    pub fn with_memory_of_server(self) -> Options {
        Options { arena: false, memory_of_server: true, arena_shrinkage: None, ..self }
    }

    /// Whether the session computes on the threads that all sessions share.
    pub fn is_on_common_pool(&self) -> bool {
        self.on_common_pool
    }

    /// Whether a session computes only on the thread that calls it.
    pub fn is_without_pool(&self) -> bool {
        self.intra_threads == 1 && !self.parallel
    }

    /// Whether all operators are the library's own. Operators of others may not work if one session runs several times
    /// at once.
    pub fn has_own_operators_only(&self) -> bool {
        self.operator_libraries.is_empty()
    }

    /// Options for a session that is only opened to read the graph's inputs and outputs.
    pub fn to_look() -> Options {
        Options {
            intra_threads: 1,
            inter_threads: 1,
            parallel: false,
            spinning: false,
            arena: false,
            memory_of_server: false,
            memory_pattern: false,
            optimization: 2,
            arena_shrinkage: None,
            device_initializers: None,
            on_common_pool: false,
            operator_libraries: Vec::new(),
            cuda: CudaOptions::new(),
        }
    }

    /// A builder with these options for sessions on `device` or on the host. `threads` makes the threads of their
    /// pools.
    pub fn builder(
        &self,
        environment: &Environment,
        device: Option<u32>,
        threads: PoolThreads,
    ) -> Result<SessionBuilder, ort::Error> {
        let spinning = if self.spinning { "1" } else { "0" };
        let mut builder = SessionBuilder::new(environment)?
            .with_log_level(ort::logging::LogLevel::Fatal)?
            .with_intra_threads(self.intra_threads)?
            .with_inter_threads(self.inter_threads)?
            .with_parallel_execution(self.parallel)?
            .with_memory_pattern(self.memory_pattern)?
            .with_config_entry("session.intra_op.allow_spinning", spinning)?
            .with_config_entry("session.inter_op.allow_spinning", spinning)?
            .with_optimization_level(self.level())?
            .with_thread_manager(threads)?;
        if !self.on_common_pool {
            builder = builder.with_independent_thread_pool()?;
        }
        if let Some(value) = &self.device_initializers {
            builder = builder.with_config_entry("session.use_device_allocator_for_initializers", value)?;
        }
        for library in &self.operator_libraries {
            builder = builder.with_operator_library(library)?;
        }
        if self.memory_of_server {
            builder = builder.with_config_entry(USE_ENV_ALLOCATORS, "1")?;
        }
        if !self.arena {
            // SAFETY: the options are alive and this builder is their only user; the call only clears a flag in them.
            let status = unsafe { (ort::api().DisableCpuMemArena)(builder.ptr_mut()) };
            // SAFETY: a status that the library has just returned, handed on once.
            unsafe { ort::Error::result_from_status(status) }?;
        }
        if let Some(device) = device {
            append_cuda(&mut builder, &self.cuda, device)?;
        }
        Ok(builder)
    }

    /// `optimization.graph.level`: −1 basic, 1 extended, 2 none, else all.
    fn level(&self) -> GraphOptimizationLevel {
        match self.optimization {
            -1 => GraphOptimizationLevel::Level1,
            1 => GraphOptimizationLevel::Level2,
            2 => GraphOptimizationLevel::Disable,
            _ => GraphOptimizationLevel::All,
        }
    }
}
