//! Which settings do the built-in backends have?
//!
//! `--backend-config=<backend>,<setting>=<value>`. `docs/flags.md` is written from these tables. Settings of Triton's backend that have no effect
//! here are no mistake.

use crate::flags::Honour;

/// A setting of a backend.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only docs/flags.md shows what a setting means"))]
pub(crate) struct BackendSetting {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether it is Triton's, and whether it has an effect here.
    pub(crate) honour: Honour,
    /// What it means.
    pub(crate) about: &'static str,
}

/// Settings that some backends have.
pub(crate) struct Group {
    /// The backends.
    pub(crate) backends: &'static [&'static str],
    /// Their settings.
    pub(crate) settings: &'static [BackendSetting],
}

macro_rules! settings {
    ($($name:literal $honour:ident, $about:literal;)*) => {
        &[$(BackendSetting { name: $name, honour: Honour::$honour, about: $about },)*]
    };
}

/// Settings that every backend has, also with an empty name of the backend: `--backend-config=<setting>=<value>`.
pub(crate) const OF_ALL: &[BackendSetting] = settings! {
    "auto-complete-config" Accepted, "Accepted, ignored: use --disable-auto-complete-config.";
    "backend-directory" Accepted, "Accepted, ignored: use --backend-directory.";
    "default-max-batch-size" Yes, "The max_batch_size of a model that can batch and whose configuration sets none. Default is 4.";
    "min-compute-capability" Yes, "What compiled backends get as the oldest GPU. Default is --min-supported-compute-capability. Built-in backends ignore it.";
};

/// The settings by backend.
pub(crate) const GROUPS: &[Group] = &[
    Group {
        backends: &["python"],
        settings: settings! {
            "interpreter" Own, "Python of models without an environment: a path, or a name on the PATH. Default: that of an active virtual environment, else python3.";
            "stub-timeout-seconds" Yes, "Seconds for each phase of a load and for finalize. Default: no limit, but 30 for a model that a load request sent.";
            "execute-timeout-seconds" Own, "Seconds for execute of one batch, after which the process is killed and started again; 0 for no limit. Default is 0.";
            "debug" Own, "MODEL:PORT: the processes of that model wait for debugpy at that port of 127.0.0.1, and have no time limits.";
            "shm-default-byte-size" Accepted, "Accepted, ignored: nerite has no memory pool. At least 1048576, as in Triton.";
            "shm-growth-byte-size" Accepted, "Accepted, ignored: nerite has no memory pool. Above 0, as in Triton.";
            "shm-region-prefix-name" Accepted, "Accepted, ignored: nerite has no memory pool. Letters, digits, _ and -.";
            "shm_message_queue_size" Accepted, "Accepted, ignored: nerite has no message queue.";
            "thread-pool-size" Accepted, "Accepted, ignored: nerite has no such threads. At least 1, as in Triton.";
        },
    },
    Group {
        backends: &["onnxruntime"],
        settings: settings! {
            "intra_op_thread_count" Yes, "Threads within one operator of a session. A model's parameter of this name wins.";
            "inter_op_thread_count" Yes, "Threads for operators that run at the same time. A model's parameter of this name wins.";
            "enable-global-threadpool" Yes, "1: all sessions share the threads of intra_op_thread_count and inter_op_thread_count. Default is 0.";
            "session.intra_op.allow_spinning" Yes, "1: idle threads wait in a loop. Default is 0, unlike Triton's. A model's parameter of this name wins.";
            "execution_mode" Yes, "1: operators of a graph may run at the same time. Default is 0. A model's parameter of this name wins.";
            "enable_mem_arena" Yes, "0: ONNX Runtime allocates without an arena. Default is 1. A model's parameter of this name wins.";
            "enable_mem_pattern" Yes, "0: ONNX Runtime plans no memory ahead. Default is 1. A model's parameter of this name wins.";
            "memory.enable_memory_arena_shrinkage" Yes, "Devices whose arena shrinks after each run: cpu:0;gpu:0. A model's parameter of this name wins.";
            "session.use_device_allocator_for_initializers" Yes, "1: weights are allocated outside of the arena. A model's parameter of this name wins.";
            "arena_extend_strategy" Yes, "CUDA: 0 (kNextPowerOfTwo) or 1 (kSameAsRequested). A model's parameter of this name wins.";
            "cudnn_conv_algo_search" Yes, "CUDA: 0 (EXHAUSTIVE), 1 (HEURISTIC) or 2 (DEFAULT). A model's parameter of this name wins.";
            "do_copy_in_default_stream" Yes, "CUDA: 1: copies use the default stream. A model's parameter of this name wins.";
            "gpu_mem_limit" Yes, "CUDA: bytes of device memory of a session's arena. A model's parameter of this name wins.";
            "isolated" Own, "true: each instance runs in a process of its own. A model's parameter of this name wins. Default is false.";
        },
    },
    Group {
        backends: &["python", "onnxruntime"],
        settings: settings! {
            "sandbox" Own, "Confinement of models' processes: 'on', 'best-effort' or 'off'. Default is 'off'.";
            "sandbox-network" Own, "Whether a confined process may make sockets: 'on' or 'off'. Default is 'off'.";
            "sandbox-memory" Own, "Bytes of private memory of each confined process. Default is no limit.";
            "sandbox-group-memory" Own, "Bytes of all memory of each confined instance, counted by a control group. Default is no limit.";
            "sandbox-processes" Own, "Processes and threads of each confined instance besides its own; 'any' for no limit. Default is 0.";
            "sandbox-file-size" Own, "Bytes of each file that a confined process writes. Default is no limit.";
            "sandbox-read" Own, "Folders, with ':' between them. A model's SANDBOX_READ may name folders below them. Default is none.";
            "sandbox-write" Own, "Folders, with ':' between them. A model's SANDBOX_WRITE may name folders below them. Default is none.";
            "sandbox-models" Own, "Models, with ',' between them, that confined models may load and unload. Default is none.";
        },
    },
];
