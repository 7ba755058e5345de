//! What does the command line say is to be measured, and how?

mod parse;
mod range;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use nerite_client::Parameter;

pub(crate) use self::parse::parse;
pub(crate) use self::range::Range;
pub(crate) use self::table::{long_names, usage};

/// The options of one command, with perf_analyzer's names and defaults.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) model: String,
    /// Empty: the latest.
    pub(crate) version: String,
    /// `host:port`, `http://…`, `https://…`, `unix:/path`. Empty: the default of the protocol.
    pub(crate) url: String,
    /// Where the requests go. Empty: to `url`.
    pub(crate) load_url: String,
    pub(crate) protocol: Protocol,
    pub(crate) session_calls: SessionCalls,
    pub(crate) is_streaming: bool,
    /// As `-a` and `--sync` say. Requests are sent in the same way, so this is only part of the report.
    pub(crate) is_async: Option<bool>,
    pub(crate) batch: usize,
    pub(crate) load: Load,
    pub(crate) distribution: Distribution,
    pub(crate) is_binary_search: bool,
    /// Connections at most, in rate modes.
    pub(crate) connections_max: Option<usize>,
    /// Whether a window ends after [`Options::count_min`] requests, and not after the interval.
    pub(crate) is_count_mode: bool,
    pub(crate) count_min: u64,
    /// 0: windows until three of them agree.
    pub(crate) request_count: u64,
    pub(crate) interval: Duration,
    /// How far windows may differ, in percent.
    pub(crate) stability: f64,
    pub(crate) trials_max: usize,
    /// The percentile that decides on stability. `None`: the average.
    pub(crate) percentile: Option<u8>,
    pub(crate) latency_max: Option<Duration>,
    pub(crate) warm_up_requests: u64,
    pub(crate) tensors: Tensors,
    pub(crate) memory: Memory,
    /// Bytes of the region for an output of variable size, for each item of a batch.
    pub(crate) output_bytes: usize,
    pub(crate) sequence: Sequence,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) parameters: Vec<(String, Parameter)>,
    pub(crate) compression: Compression,
    pub(crate) tls: TlsFiles,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) trace: Vec<(String, Vec<String>)>,
    /// Models that a model calls by itself, with their versions.
    pub(crate) composing: Vec<(String, String)>,
    pub(crate) files: Files,
    pub(crate) verbosity: usize,
    /// The server's processes, whose processor time is counted. Empty: found by the port.
    pub(crate) server_pids: Vec<u32>,
    pub(crate) sweep: Option<Sweep>,
    pub(crate) sizes: Vec<usize>,
}

/// The protocol of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Http,
    Grpc,
    Session,
}

/// How a session sends requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SessionCalls {
    /// Names and shapes each time.
    #[default]
    Plain,
    /// The number of an inference that the server has read before.
    Prepared,
    /// As many of those in one packet.
    Batched(usize),
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Load {
    /// So many requests are under way at any time.
    Concurrency(Range<usize>),
    /// So many requests are sent a second.
    Rate(Range<f64>),
    /// These times lie between requests, again and again.
    Intervals(PathBuf),
}

/// How the times between requests of a rate are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Distribution {
    #[default]
    Constant,
    Poisson,
}

/// When a measurement window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// After this time.
    Time(Duration),
    /// After this many requests.
    Count(u64),
    /// One window of this many requests, without a test of stability.
    Fixed(u64),
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Memory {
    /// In the message.
    #[default]
    Inline,
    /// In system shared memory that this program makes and registers.
    System,
    /// In CUDA shared memory.
    Cuda,
    /// In memory that a session borrows from the server.
    Lease,
}

/// What inputs hold, and their form in a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensors {
    pub(crate) data: InputData,
    /// Shapes for inputs with variable dimensions.
    pub(crate) shapes: Vec<(String, Vec<i64>)>,
    pub(crate) string_len: usize,
    pub(crate) string: Option<String>,
    pub(crate) is_input_json: bool,
    pub(crate) is_output_json: bool,
}

/// Where the contents of inputs come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum InputData {
    #[default]
    Random,
    Zero,
    /// A folder with a file for each input, or files of JSON.
    Paths(Vec<PathBuf>),
}

/// The sequences of a stateful model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sequence {
    /// Sequences under way, in rate modes.
    pub(crate) count: usize,
    /// `None`: that of the data, or 20.
    pub(crate) len: Option<usize>,
    /// In percent.
    pub(crate) variation: f64,
    pub(crate) first_id: u64,
    /// The id after the last one. `None`: without bounds.
    pub(crate) end_id: Option<u64>,
    pub(crate) is_serial: bool,
}

/// The compression of gRPC messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Compression {
    #[default]
    None,
    Gzip,
    Deflate,
}

/// The certificates, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Whether gRPC uses TLS.
    pub(crate) is_grpc: bool,
    pub(crate) roots: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// The metrics of the server that are read meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metrics {
    pub(crate) url: String,
    pub(crate) interval: Duration,
}

/// The files that are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) csv: Option<PathBuf>,
    pub(crate) is_csv_verbose: bool,
    pub(crate) export: Option<PathBuf>,
    pub(crate) html: Option<PathBuf>,
    /// The plot of a sweep over sizes alone, in SVG.
    pub(crate) picture: Option<PathBuf>,
    /// One JSON object on the standard output in place of the report.
    pub(crate) is_json: bool,
}

/// What is varied besides the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// The size of a tensor, inline and in shared memory.
    Sizes,
    /// Batch size, instances and delay of the model's configuration.
    Config,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Http => "HTTP",
            Protocol::Grpc => "gRPC",
            Protocol::Session => "session",
        }
    }
}

impl Memory {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Memory::Inline => "inline",
            Memory::System => "system shared memory",
            Memory::Cuda => "CUDA shared memory",
            Memory::Lease => "lease",
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            model: String::new(),
            version: String::new(),
            url: String::new(),
            load_url: String::new(),
            protocol: Protocol::default(),
            session_calls: SessionCalls::default(),
            is_streaming: false,
            is_async: None,
            batch: 1,
            load: Load::Concurrency(Range::one(1)),
            distribution: Distribution::default(),
            is_binary_search: false,
            connections_max: None,
            is_count_mode: false,
            count_min: 50,
            request_count: 0,
            interval: Duration::from_secs(5),
            stability: 10.0,
            trials_max: 10,
            percentile: None,
            latency_max: None,
            warm_up_requests: 0,
            tensors: Tensors::default(),
            memory: Memory::default(),
            output_bytes: 102_400,
            sequence: Sequence::default(),
            headers: Vec::new(),
            parameters: Vec::new(),
            compression: Compression::default(),
            tls: TlsFiles::default(),
            metrics: None,
            trace: Vec::new(),
            composing: Vec::new(),
            files: Files::default(),
            verbosity: 0,
            server_pids: Vec::new(),
            sweep: None,
            sizes: Vec::new(),
        }
    }
}

impl Default for Tensors {
    fn default() -> Tensors {
        Tensors {
            data: InputData::default(),
            shapes: Vec::new(),
            string_len: 128,
            string: None,
            is_input_json: false,
            is_output_json: false,
        }
    }
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence { count: 4, len: None, variation: 20.0, first_id: 1, end_id: None, is_serial: false }
    }
}

impl Options {
    /// The address, or the protocol's usual one. A session has that of its server's HTTP.
    pub(crate) fn address(&self) -> String {
        match (self.protocol, self.url.as_str()) {
            (Protocol::Grpc, "") => self.with_scheme("localhost:8001"),
            (_, "") => "localhost:8000".to_owned(),
            (_, url) => self.with_scheme(url),
        }
    }

    /// Where the requests of the measurement go.
    pub(crate) fn load_address(&self) -> String {
        if self.load_url.is_empty() { self.address() } else { self.with_scheme(&self.load_url) }
    }

    /// The address, with `https://` where the options want TLS for gRPC. A Unix socket has no TLS.
    fn with_scheme(&self, address: &str) -> String {
        let is_secured = self.protocol == Protocol::Grpc && self.tls.is_grpc;
        let has_scheme = address.starts_with("unix:") || address.contains("://");
        if is_secured && !has_scheme { format!("https://{address}") } else { address.to_owned() }
    }

    /// When a window ends.
    pub(crate) fn window(&self) -> Window {
        match (self.request_count, self.is_count_mode) {
            (0, false) => Window::Time(self.interval),
            (0, true) => Window::Count(self.count_min),
            (count, _) => Window::Fixed(count),
        }
    }

    /// A parameter as perf_analyzer writes it: `name:value:type`.
    fn add_parameter(&mut self, text: &str) -> Result<(), String> {
        let fault =
            || format!("--request-parameter is name:value:type with a type of int, bool, string, and is '{text}'");
        let (name, rest) = text.split_once(':').ok_or_else(fault)?;
        let (value, kind) = rest.rsplit_once(':').ok_or_else(fault)?;
        let value = match kind {
            "int" | "uint" => Parameter::Int(value.parse().map_err(|_| fault())?),
            "bool" => Parameter::Bool(value.parse().map_err(|_| fault())?),
            "string" => Parameter::String(value.into()),
            _ => return Err(fault()),
        };
        self.parameters.push((name.to_owned(), value));
        Ok(())
    }
}
