//! What was measured?
//!
//! All times are in µs, and all costs are those of one request.

use hdrhistogram::Histogram;

use crate::options::{Memory, Protocol};

/// What one command measured.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    pub(crate) about: About,
    /// One for each level of load, in the order in which they were measured.
    pub(crate) points: Vec<Point>,
    /// One for each protocol. Empty without `--sweep sizes`.
    pub(crate) sizes: Vec<SizeSweep>,
    /// Empty without `--sweep config`.
    pub(crate) configs: Vec<ConfigPoint>,
}

/// What was measured where.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// UTC, as `2026-11-30T13:00:00Z`.
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// Name and version of the server.
    pub(crate) server: String,
    pub(crate) address: String,
    pub(crate) model: String,
    /// Empty: the latest.
    pub(crate) version: String,
    pub(crate) protocol: Protocol,
    pub(crate) memory: Memory,
    /// Rows of a request.
    pub(crate) batch: usize,
    /// The percentile that was held stable. `None`: the average.
    pub(crate) percentile: Option<u8>,
}

/// The machine of the load generator.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Load averages over 1, 5 and 15 minutes, before the first measurement.
    pub(crate) load: [f64; 3],
}

/// The load of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Level {
    /// Requests under way.
    Concurrency(usize),
    /// Requests a second.
    Rate(f64),
    /// Requests at the times of a file, which has this many a second on average.
    Intervals(f64),
}

/// The measurement of one level of load: its last stable windows, joined.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) level: Level,
    pub(crate) client: Client,
    /// `None`: the server has no statistics.
    pub(crate) server: Option<Server>,
    pub(crate) cost: Cost,
    /// Whether the windows agreed.
    pub(crate) is_stable: bool,
    /// `None`: the metrics were not collected.
    pub(crate) gpus: Option<Vec<Gpu>>,
    /// `None`: no file of requests is wanted.
    pub(crate) records: Option<Records>,
}

/// What the client saw.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// The length of the windows together, in seconds.
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    /// Inferences a second: requests times their batch size.
    pub(crate) throughput: f64,
    /// Responses a second of a decoupled model.
    pub(crate) response_throughput: Option<f64>,
    /// Latencies in ns.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) mean_us: f64,
    pub(crate) deviation_us: f64,
    pub(crate) send_us: f64,
    /// From the last byte sent to the first one received.
    pub(crate) wait_us: f64,
    pub(crate) receive_us: f64,
    /// Requests of a rate that were sent late, because all connections had a request under way. Their latency begins when they were due.
    pub(crate) late: u64,
    /// Sequences that ended. `None`: the model has no sequences.
    pub(crate) sequences: Option<u64>,
}

/// What the server counted meanwhile, of one model version. Times are averages over the requests that had this stage: with a
/// response cache, those that missed it have computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) inferences: u64,
    pub(crate) executions: u64,
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    pub(crate) request_us: f64,
    pub(crate) queue_us: f64,
    pub(crate) input_us: f64,
    pub(crate) infer_us: f64,
    pub(crate) output_us: f64,
    /// `None`: the model has no response cache.
    pub(crate) cache: Option<Cache>,
    /// Requests by the size of the batch in which they ran: size, executions.
    pub(crate) batches: Vec<(u64, u64)>,
    /// The models of an ensemble's steps, and models that the model calls.
    pub(crate) composing: Vec<Server>,
}

/// The lookups in the response cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// For each hit, and for each miss.
    pub(crate) hit_us: f64,
    pub(crate) miss_us: f64,
}

/// What one request cost. `None`: the server is on another host, or belongs to another user.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) client_cpu_us: f64,
    /// Times that a thread of the client slept and was woken.
    pub(crate) client_wake_ups: f64,
    pub(crate) server_cpu_us: Option<f64>,
    pub(crate) server_wake_ups: Option<f64>,
    /// Bytes of tensors that the server copied, as its metrics say.
    pub(crate) copied_bytes: Option<f64>,
    /// The share of the time in which the machine's cores slept.
    pub(crate) idle: f64,
    /// Whether client and server ran on the same core.
    pub(crate) is_one_core: Option<bool>,
    /// The largest resident memory of this program, in bytes.
    pub(crate) client_bytes: u64,
    pub(crate) server_bytes: Option<u64>,
}

/// What a GPU of the server did meanwhile, as its metrics say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    /// 0 to 1, on average.
    pub(crate) utilization: f64,
    /// On average.
    pub(crate) power_watts: f64,
    /// At most.
    pub(crate) used_bytes: f64,
    pub(crate) total_bytes: f64,
}

/// All requests of a level, in ns since 1970.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    /// In the order in which they began.
    pub(crate) requests: Vec<Record>,
    /// The times of the responses: those of the first request, of the second, and so on.
    pub(crate) responses_ns: Vec<u64>,
    /// Where the windows begin, and the end of the last one.
    pub(crate) windows_ns: Vec<u64>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) start_ns: u64,
    /// 0: none.
    pub(crate) sequence_id: u64,
    pub(crate) responses: u32,
}

/// How two kinds of memory compare over the size of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct SizeSweep {
    pub(crate) protocol: Protocol,
    /// By size.
    pub(crate) points: Vec<SizePoint>,
}

/// The same requests with tensors in the message and in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct SizePoint {
    pub(crate) bytes: u64,
    pub(crate) inline: Point,
    pub(crate) shared: Point,
}

/// A configuration of the model, and what was measured with it.
#[derive(Clone, Debug)]
pub(crate) struct ConfigPoint {
    /// Rows of a batch at most.
    pub(crate) batch: usize,
    pub(crate) instances: usize,
    /// How long a batch waits for more requests.
    pub(crate) delay_us: u64,
    pub(crate) point: Point,
    /// Whether it is the one to choose.
    pub(crate) is_best: bool,
    /// Whether no other configuration is better in both throughput and latency.
    pub(crate) is_front: bool,
}

/// The percentiles that a report has.
pub(crate) const PERCENTILES: [u8; 4] = [50, 90, 95, 99];

impl Client {
    /// A percentile of the latencies, in µs.
    pub(crate) fn percentile_us(&self, percentile: f64) -> f64 {
        self.latencies.value_at_quantile(percentile / 100.0) as f64 / 1e3
    }

    /// The latency that is held stable.
    pub(crate) fn stabilized_us(&self, percentile: Option<u8>) -> f64 {
        percentile.map_or(self.mean_us, |percentile| self.percentile_us(percentile.into()))
    }

    /// Sending, waiting and receiving.
    pub(crate) fn transfer_us(&self) -> f64 {
        self.send_us + self.wait_us + self.receive_us
    }

    /// The percentiles of a report, with the one that is held stable.
    pub(crate) fn percentiles_us(&self, stable: Option<u8>) -> Vec<(u8, f64)> {
        let mut percentiles: Vec<u8> = PERCENTILES.into_iter().chain(stable).collect();
        percentiles.sort_unstable();
        percentiles.dedup();
        percentiles.into_iter().map(|percentile| (percentile, self.percentile_us(percentile.into()))).collect()
    }
}

impl Server {
    /// Reading the inputs, the model's run, and writing the outputs.
    pub(crate) fn compute_us(&self) -> f64 {
        self.input_us + self.infer_us + self.output_us
    }

    /// The cache of the model or of a model of its steps.
    pub(crate) fn is_cached(&self) -> bool {
        self.cache.is_some() || self.composing.iter().any(Server::is_cached)
    }

    /// What a request took in the model and in the cache: a hit no model, a miss both.
    pub(crate) fn cached_compute_us(&self) -> f64 {
        let Some(cache) = self.cache else { return self.compute_us() };
        let hits = cache.hits as f64 * cache.hit_us;
        let misses = cache.misses as f64 * (cache.miss_us + self.compute_us());
        (hits + misses) / (cache.hits + cache.misses).max(1) as f64
    }
}

impl Level {
    /// The number in reports.
    pub(crate) fn value(self) -> f64 {
        match self {
            Level::Concurrency(clients) => clients as f64,
            Level::Rate(rate) | Level::Intervals(rate) => rate,
        }
    }
}
