//! What are the limits of the engine?

use std::time::Duration;

/// Requests that may wait for the instances of one model version, unless the operator sets another number. This is far more than the requests that
/// clients usually wait for. Each costs a few KiB beside its tensors, which are charged to its client.
pub const QUEUE_REQUESTS_MAX: usize = 16_384;
/// If similar requests take less than this on average, in ns, a request runs on the front thread that received it.
pub const QUICK_NS_MAX: u64 = 150_000;
/// The number of measured runs of a size before the size can count as quick.
pub const QUICK_RUNS_MIN: u64 = 3;
/// A run of this time, in ns, is slow. It is half of the time by which one client may delay another. A smaller value would count runs as slow on a
/// machine that is busy with other work.
pub const SLOW_NS: u64 = 50_000_000;
/// How long a model's new version waits for the requests of ensembles that it does not fit.
pub const MAKE_WAY_MAX: Duration = Duration::from_secs(5);
/// After a slow run, requests of as many bytes or more count as quick again once this many of their runs were quick and none was slow.
pub const RECOVERY_RUNS_MIN: u32 = 256;
/// The most quick runs that are required, however often a run was slow. A client that can make its runs slow or quick at will delays others by one
/// slow run in this many.
pub const RECOVERY_RUNS_MAX: u32 = 1 << 16;
/// Classes of sizes that are remembered for each model, one word each.
pub const SIZE_CLASSES: usize = 256;
/// Requests with more input bytes than this never run on a front thread.
pub const QUICK_BYTES_MAX: usize = 1 << 20;
/// How long a front thread waits for an instance that computes elsewhere, such as in another process. Then a worker waits for it.
pub const QUICK_PATIENCE: Duration = Duration::from_micros(250);
/// A run that was begun on a front thread ends on a worker if it took longer than this, in ns.
pub const TAKEN_OVER_NS_MAX: u64 = 2_000_000;
/// Jobs of other connections that a front thread runs in a row before it goes back to its own work.
pub const QUICK_RUNS_IN_A_ROW: usize = 8;

const _: () =
    assert!(QUICK_PATIENCE.as_micros() * QUICK_RUNS_IN_A_ROW as u128 <= 2_000, "the same for those that wait");
const _: () =
    assert!(QUICK_NS_MAX * QUICK_RUNS_IN_A_ROW as u64 <= 2_000_000, "a front end's thread must stay responsive");

/// Nested runs on one thread: sending the answer of one run may start the next one. Deeper ones run on a worker, so that a chain of requests does not
/// overflow the stack.
pub const NESTED_RUNS_MAX: usize = 4;

/// Threads of one model version that answer requests that its queue rejected. They are used if the answer calls code that may wait.
pub const REFUSING_THREADS_MAX: usize = 4;

/// Removed instances that still run or have sequences, while new ones are added. Loads do not wait for them, and each keeps its memory.
pub const LEAVING_INSTANCES_MAX: usize = 16;

/// Responses of a model with ordered responses that may wait for an earlier one. With more, no further request is started.
pub const ORDERED_RESPONSES_MAX: usize = 1024;
/// Bytes of these responses.
pub const ORDERED_BYTES_MAX: usize = 256 << 20;

/// Batches of up to this size are counted without a lock.
pub const BATCH_SIZES_MAX: usize = 4096;
/// Responses of one request that are counted one by one in the statistics. Each costs 96 bytes for each model version that may answer many times, and
/// about 250 bytes in an answer about its statistics.
pub const RESPONSE_INDICES_MAX: usize = 256;
/// The most threads on which an ensemble starts steps.
pub const ENSEMBLE_INSTANCES_MAX: usize = 8;

/// Bytes of the tensors that one version's configuration requires: the inputs of all its warmup samples, or all its initial states.
pub const CONFIG_TENSOR_BYTES_MAX: u64 = 4 << 30;
/// Runs of all warmup samples on all instances that one load makes.
pub const WARMUP_RUNS_MAX: u64 = 100_000;
/// How long the warmup of a configuration that a client sent may take. The time is checked every [`PROGRESS_INTERVAL_US`].
pub const SENT_WARMUP_MAX: Duration = Duration::from_mins(10);
/// Counted for a request of a warmup sample beside its tensors: the job, its reply and its lists of tensors.
pub const WARMUP_REQUEST_BYTES: u64 = 2048;

/// The interval at which a load logs its progress, in µs.
pub const PROGRESS_INTERVAL_US: u64 = 10_000_000;

/// How often a load is repeated because the model's files changed while they were read.
pub const CHANGED_LOADS_MAX: usize = 3;

/// Requests of one client that may wait for models that are not loaded.
pub const DEMANDS_PER_PEER_MAX: usize = 64;

/// How long a load waits before it checks again whether a model has ended.
pub const LEAVE_PATIENCE: Duration = Duration::from_millis(100);

/// How long a model that was loaded for a request is kept for it before the request is admitted, in µs. Others may wait for the model's space, and a
/// client that reads no answers may delay the admission of its own request.
pub const ADMISSION_HOLD_US_MAX: u64 = 1_000_000;

/// How often admission is tried for a request, if each version that is found has ended before the request could enter.
pub const ADMISSIONS_MAX: usize = 16;

/// How long the instances of a model may take to answer a readiness check, as in Triton.
pub const READINESS_MAX: Duration = Duration::from_secs(5);

/// The most time in µs that the server lets a request of a sequence run on after its client has gone, however long the sequence may be idle. No
/// client waits for the run, and other requests cannot use its instance.
pub const RUN_ON_US_MAX: u64 = 60_000_000;

/// How long a model that is unloaded waits for its last request before this is logged.
pub const LAST_REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// The most requests that this line of the log names.
pub const NAMED_REQUESTS_MAX: usize = 16;
