//! How large may things of the engine become?

use std::time::Duration;

/// Requests that may wait for the instances of one model version, unless the operator says otherwise. Far more than clients have under
/// way that wait for answers; each costs a few KiB beside its tensors, which are charged to its client.
pub const QUEUE_REQUESTS_MAX: usize = 16_384;
/// A request whose like take less than this on the average runs on the thread that brought it, in ns.
pub const QUICK_NS_MAX: u64 = 150_000;
/// Runs of requests of a size to be seen before that size is called quick.
pub const QUICK_RUNS_MIN: u64 = 3;
/// A run that takes so long is slow, in ns: half of what one client may delay another. Less would blame models for a machine that is
/// busy with something else.
pub const SLOW_NS: u64 = 50_000_000;
/// Classes of sizes that are remembered of a model. One word each.
pub const SIZE_CLASSES: usize = 256;
/// Requests with more input bytes than this never run on the thread that brought them.
pub const QUICK_BYTES_MAX: usize = 1 << 20;
/// How long such a thread waits for an instance whose work is done elsewhere, in another process say; then a worker waits.
pub const QUICK_PATIENCE: Duration = Duration::from_micros(250);
/// Jobs that one thread runs in a row for others before it goes back to its own work.
pub const QUICK_RUNS_IN_A_ROW: usize = 8;

const _: () =
    assert!(QUICK_PATIENCE.as_micros() * QUICK_RUNS_IN_A_ROW as u128 <= 2_000, "the same for those that wait");
const _: () =
    assert!(QUICK_NS_MAX * QUICK_RUNS_IN_A_ROW as u64 <= 2_000_000, "a front end's thread must stay responsive");

/// Runs that lie within each other's answers on one thread. What is asked within the answer of the last of them runs on a worker, so that
/// requests that follow from each other do not need an ever deeper stack.
pub const NESTED_RUNS_MAX: usize = 4;

/// Instances that were taken away and still run, while others may come. Loads do not wait for them, and each has its memory.
pub const LEAVING_INSTANCES_MAX: usize = 16;

/// Responses of a model that keeps their order which may wait for one before them. With more, nothing is started.
pub const ORDERED_RESPONSES_MAX: usize = 1024;
/// Bytes of these responses.
pub const ORDERED_BYTES_MAX: usize = 256 << 20;

/// Sizes of batches whose statistics take no lock.
pub const BATCH_SIZES_MAX: usize = 4096;
/// Threads on which an ensemble starts steps, at most.
pub const ENSEMBLE_INSTANCES_MAX: usize = 8;

/// A load says in the log how far it is whenever so much time has passed, in µs.
pub const PROGRESS_INTERVAL_US: u64 = 10_000_000;

/// Times that a load begins again because the model's files changed while they were read.
pub const CHANGED_LOADS_MAX: usize = 3;

/// Requests of one client that may wait for models that are not loaded.
pub const DEMANDS_PER_PEER_MAX: usize = 64;

/// How long a load waits before it looks again whether a model has left.
pub const LEAVE_PATIENCE: Duration = Duration::from_millis(100);

/// Versions that a request is admitted to, each of which ended before it could enter.
pub const ADMISSIONS_MAX: usize = 16;

/// How long the instances of a model may take to say whether they are ready, as in Triton.
pub const READINESS_MAX: Duration = Duration::from_secs(5);
