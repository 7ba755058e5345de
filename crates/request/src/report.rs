//! What may a client read about the server and its models?

use nerite_tensor::DataType;

/// The server's own metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// The name given with `--id`.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// Protocol extensions, in Triton's order.
    pub extensions: Vec<String>,
}

impl ServerReport {
    const ID: &str = "nerite_server(";

    /// The id of the server process among its extensions, if there is one. Its session socket has the same.
    pub fn server_id(&self) -> Option<&str> {
        self.extensions.iter().find_map(|one| one.strip_prefix(Self::ID)?.strip_suffix(')'))
    }

    /// The extension that names the server process.
    pub fn id_extension(id: &str) -> String {
        format!("{}{id})", Self::ID)
    }
}

/// A model's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReport {
    /// The model's name.
    pub name: String,
    /// The requested version, or all ready versions, ascending.
    pub versions: Vec<i64>,
    /// The platform's name, such as `onnxruntime_onnx`.
    pub platform: String,
    /// Inputs as the client must send them, batch dimension included as −1.
    pub inputs: Vec<TensorReport>,
    /// Outputs as the client gets them, batch dimension included as −1.
    pub outputs: Vec<TensorReport>,
}

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: DataType,
    /// Its dimensions, −1 where free.
    pub shape: Vec<i64>,
}

/// One line of the repository index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model's name.
    pub name: String,
    /// The server's identifier of the model: its name, or its repository and its name. Only the status page shows it.
    pub identifier: String,
    /// The version; `None` for a model that was never loaded.
    pub version: Option<i64>,
    /// `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`; empty for a model that was never loaded.
    pub state: &'static str,
    /// Why it is in this state; may be empty.
    pub reason: String,
}

/// A count and a sum of nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duration {
    /// How many times.
    pub count: u64,
    /// How long in all, in ns.
    pub ns: u64,
}

impl Duration {
    /// Adds one duration of `ns`.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// Memory of one kind that a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// `CPU`, `CPU_PINNED` or `GPU`.
    pub kind: &'static str,
    /// The number of the device.
    pub id: i64,
    /// How much.
    pub bytes: u64,
}

impl MemoryUsage {
    /// So many bytes of the host's memory. No entry for 0.
    pub fn of_host(bytes: u64) -> Vec<MemoryUsage> {
        if bytes == 0 { Vec::new() } else { vec![MemoryUsage { kind: "CPU", id: 0, bytes }] }
    }
}

/// The statistics of one model version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatisticsReport {
    /// The model's name.
    pub name: String,
    /// The version.
    pub version: i64,
    /// Time of the last execution in ms since 1970; 0 for never.
    pub last_inference_ms: u64,
    /// Rows of all successful requests.
    pub inference_count: u64,
    /// Executions of the backend.
    pub execution_count: u64,
    /// Successful requests, arrival to answer.
    pub success: Duration,
    /// Failed requests, arrival to answer.
    pub fail: Duration,
    /// Time in the queue.
    pub queue: Duration,
    /// Making the inputs ready.
    pub compute_input: Duration,
    /// The model's own work.
    pub compute_infer: Duration,
    /// Taking the outputs out.
    pub compute_output: Duration,
    /// Answers from the response cache.
    pub cache_hit: Duration,
    /// Look-ups in the response cache that found nothing.
    pub cache_miss: Duration,
    /// One entry per batch size that was executed, ascending.
    pub batches: Vec<BatchReport>,
    /// One entry for each position of a response, ascending. Only of models that may answer many times.
    pub responses: Vec<ResponseReport>,
    /// The memory that its backend reports.
    pub memory: Vec<MemoryUsage>,
    /// Requests that wait now.
    pub pending: u64,
    /// Failed requests by reason: rejected, cancelled, backend, other.
    pub failures: [u64; 4],
    /// How long the load took, in ns.
    pub load_ns: u64,
    /// Its repository, if models of several repositories may have the same name.
    pub namespace: String,
    /// The GPU that all its instances compute on; empty if they compute on the host, or on several devices.
    pub gpu_uuid: String,
    /// If the model's instances compute on several devices: the counts of each GPU, and the counts of all other devices together. Fields that exist only for
    /// the whole model are empty in these. Empty if there is one device.
    pub by_device: Vec<StatisticsReport>,
}

/// A part of a request whose time is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// A successful request, arrival to answer.
    Request,
    /// Its time in the queue.
    Queue,
    /// Making its inputs ready.
    ComputeInput,
    /// The model's own work.
    ComputeInfer,
    /// Taking its outputs out.
    ComputeOutput,
    /// An answer from the response cache.
    CacheHit,
    /// A look-up in the response cache that found nothing, and storing the response.
    CacheMiss,
}

/// How the latencies of a model version are distributed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyReport {
    /// The latencies that are recorded.
    pub summaries: Vec<(Latency, SummaryReport)>,
    /// The time from a request to its first response, if it is recorded.
    pub first_response: Option<BucketReport>,
}

/// Times as quantiles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryReport {
    /// For each quantile from 0 to 1, its value in µs over the recent requests; `None` if there was no recent request.
    pub quantiles: Vec<(f64, Option<u64>)>,
    /// The number of times since the start.
    pub count: u64,
    /// The sum of all times, in µs.
    pub sum_us: u64,
}

/// Times as a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BucketReport {
    /// Upper bounds in ms, ascending, each with the number of times up to it.
    pub buckets: Vec<(f64, u64)>,
    /// The number of all times.
    pub count: u64,
    /// The sum of all times, in ms.
    pub sum_ms: f64,
}

impl StatisticsReport {
    /// Rows of all runs, of failed ones as well. Divided by `execution_count` they are the mean rows of a run.
    pub fn run_rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.batch_size.saturating_mul(batch.compute_infer.count)).sum()
    }
}

/// The statistics of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchReport {
    /// Rows of the batch.
    pub batch_size: u64,
    /// Making the inputs ready.
    pub compute_input: Duration,
    /// The model's own work.
    pub compute_infer: Duration,
    /// Taking the outputs out.
    pub compute_output: Duration,
}

/// The times of all responses with the same position in their requests: the first of each request, the second, …
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseReport {
    /// The position, from 0.
    pub index: u64,
    /// The model's own work, from the response before it.
    pub compute_infer: Duration,
    /// Taking its outputs out.
    pub compute_output: Duration,
    /// Responses with outputs.
    pub success: Duration,
    /// Responses with an error.
    pub fail: Duration,
    /// The end of a request, without outputs.
    pub empty_response: Duration,
    /// Responses that were not sent, because the client had gone.
    pub cancel: Duration,
}

/// A registered system region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemRegionReport {
    /// Its registered name.
    pub name: String,
    /// Its POSIX key.
    pub key: String,
    /// First byte of the object that it covers.
    pub offset: u64,
    /// Bytes.
    pub byte_size: u64,
}

/// A registered CUDA region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaRegionReport {
    /// Its registered name.
    pub name: String,
    /// The device it lies on.
    pub device_id: u64,
    /// Bytes.
    pub byte_size: u64,
}

/// A family of metrics that models made.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomFamily {
    /// Its name.
    pub name: String,
    /// What it is about; may be empty.
    pub description: String,
    /// What it counts.
    pub kind: MetricKind,
    /// Labels in the order of their names, and the value, of each metric.
    pub metrics: Vec<(Vec<(String, String)>, CustomValue)>,
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// The distribution of observed values.
    Histogram,
}

/// The value of such a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum CustomValue {
    /// The value of a counter or a gauge.
    Number(f64),
    /// Upper bounds, ascending, each with the number of values up to it. Then the number of all values, and their sum.
    Histogram(Vec<(f64, u64)>, u64, f64),
}
