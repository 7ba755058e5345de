//! How is one level of load measured?

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::caller::{Caller, endpoint};
use crate::cost::{self, Meter, Used, listening_at};
use crate::dataset::{Dataset, Sequences};
use crate::load::{Linker, Load, Pace, Record, Schedule, Wire};
use crate::machine::since_1970;
use crate::memory::Held;
use crate::metrics::{Gpus, Reader};
use crate::model::Model;
use crate::options::{Distribution, Load as Wanted, Memory, Options, Protocol, Window};
use crate::plan::Plan;
use crate::results::{self, Client, Level, Point, Records};
use crate::stability::{Figures, WINDOWS, is_stable, is_too_slow};
use crate::statistics::{Counts, Watched};
use crate::wire::{Encoder, Endpoint, SessionKind};

/// Connections at most in rate modes, if the user does not say how many.
const CONNECTIONS_MAX: usize = 256;

/// What is measured, ready for any level of load.
pub(crate) struct Profiler<'o> {
    options: &'o Options,
    pub(crate) model: Model,
    caller: Caller,
    linker: Linker,
    held: Held,
    data: Dataset,
    /// `None`: the server has no statistics.
    watched: Option<Watched>,
    meter: Meter,
    metrics: Option<Reader>,
    intervals: Vec<Duration>,
}

/// What is known at the end of a window.
struct Mark {
    at: Instant,
    used: Used,
    counts: Option<Counts>,
    copied_bytes: Option<f64>,
}

/// What is seen within windows.
#[derive(Default)]
struct Seen {
    cores: cost::Seen,
    gpus: Gpus,
}

/// One window.
struct Measured {
    record: Record,
    seconds: f64,
}

/// Who looks at a measurement while it goes on.
pub(crate) trait Observer {
    /// A level begins.
    fn level(&mut self, _level: Level) {}
    /// The `trial`th window of a level has ended, in which the client saw this.
    fn window(&mut self, _trial: usize, _client: &Client) {}
    /// Whether the user wants to end the measurement.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Measures the level with which the options begin.
pub(crate) fn measure_first(options: &Options, observer: &mut dyn Observer) -> Result<Point, String> {
    let profiler = Profiler::new(options)?;
    let level = match &options.load {
        Wanted::Concurrency(range) => Level::Concurrency(range.start),
        Wanted::Rate(range) => Level::Rate(range.start),
        Wanted::Intervals(_) => Level::Intervals(profiler.intervals_rate()),
    };
    let point = profiler.measure(level, observer);
    profiler.end()?;
    point
}

impl<'o> Profiler<'o> {
    /// Reads what the server says of the model, and makes data and memory for its requests.
    pub(crate) fn new(options: &'o Options) -> Result<Profiler<'o>, String> {
        let caller = Caller::new(options)?;
        let (_, has_statistics) = caller.server()?;
        let model = Model::read(&caller, &options.model, &options.version)?;
        if !options.trace.is_empty() {
            caller.trace(&model.name, &trace_settings(&options.trace))?;
        }
        let data = Dataset::read(&model, options)?;
        let plan = Plan::new(&model, options, &data);
        let watched = if has_statistics { Some(Watched::new(&model, options, &caller)?) } else { None };
        let intervals = match &options.load {
            Wanted::Intervals(path) => intervals(path)?,
            _ => Vec::new(),
        };
        let metrics = options.metrics.as_ref().map(Reader::new).transpose()?;
        let endpoint = endpoint(options)?;
        let pids = if options.server_pids.is_empty() { server_at(&endpoint) } else { options.server_pids.clone() };
        let held = Held::make(options, &plan, &caller)?;
        let linker = match linker(options, &model, plan, &held, endpoint) {
            Ok(linker) => linker,
            Err(reason) => {
                held.end()?;
                return Err(reason);
            }
        };
        let meter = Meter::new(&pids);
        Ok(Profiler { options, model, caller, linker, held, data, watched, meter, metrics, intervals })
    }

    /// The average rate of the file of intervals.
    pub(crate) fn intervals_rate(&self) -> f64 {
        self.intervals.len() as f64 / self.intervals.iter().sum::<Duration>().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Gives the memory back.
    pub(crate) fn end(self) -> Result<(), String> {
        self.held.end()
    }

    /// Sends one request, so that a refusal is known with its reason before the load begins.
    fn try_once(&self) -> Result<(), String> {
        let Linker::Wire(wire) = &self.linker else { return Ok(()) };
        let Some(request) = wire.requests.first().filter(|_| !self.model.is_decoupled) else { return Ok(()) };
        let request = match self.sequences() {
            Some(mut sequences) => sequences.alone().part_of(request),
            None => request.clone(),
        };
        self.caller.infer(&request).map(|_| ())
    }

    /// Measures one level.
    pub(crate) fn measure(&self, level: Level, observer: &mut dyn Observer) -> Result<Point, String> {
        observer.level(level);
        self.try_once()?;
        let load = self.start(level);
        let measured = self.windows(&load, level, observer);
        let failure = load.failure();
        load.stop();
        match failure {
            Some(reason) => Err(reason),
            None => measured,
        }
    }

    fn start(&self, level: Level) -> Load {
        let options = self.options;
        let (pace, workers) = match level {
            Level::Concurrency(clients) => (Pace::Closed, (clients, clients)),
            Level::Rate(rate) => {
                let mean = Duration::from_secs_f64(1.0 / rate);
                let schedule = match options.distribution {
                    Distribution::Constant => Schedule::Constant(mean),
                    Distribution::Poisson => Schedule::Poisson(mean),
                };
                (Pace::open(schedule), self.workers())
            }
            Level::Intervals(_) => (Pace::open(Schedule::Intervals(self.intervals.clone())), self.workers()),
        };
        Load::start(self.linker.clone(), pace, workers, self.sequences(), options.files.export.is_some())
    }

    /// Workers at first and at most in rate modes. A sequence has one request under way at a time.
    fn workers(&self) -> (usize, usize) {
        if self.model.is_sequence {
            return (self.options.sequence.count, self.options.sequence.count);
        }
        (1, self.options.connections_max.unwrap_or(CONNECTIONS_MAX))
    }

    fn sequences(&self) -> Option<Sequences> {
        let mut first = 0;
        let streams = self.data.streams.iter().map(|steps| {
            let at = first;
            first += steps.len();
            (at, steps.len())
        });
        let streams = streams.collect();
        self.model.is_sequence.then(|| Sequences::new(self.options.sequence, streams, self.data.is_given))
    }

    /// Measures windows until the last ones agree.
    fn windows(&self, load: &Load, level: Level, observer: &mut dyn Observer) -> Result<Point, String> {
        let options = self.options;
        let window = options.window();
        if options.warm_up_requests > 0 {
            load.allow(options.warm_up_requests);
            self.wait(load, Window::Fixed(options.warm_up_requests), &mut Seen::default(), observer)?;
        }
        let latency_max_us = options.latency_max.map(|max| max.as_secs_f64() * 1e6);
        let (mut marks, mut windows, mut figures) = (vec![self.mark(load)?.1], Vec::<Measured>::new(), Vec::new());
        let mut seen = Seen::default();
        let trials = match window {
            Window::Fixed(requests) => {
                load.allow(requests);
                1
            }
            Window::Time(_) | Window::Count(_) => {
                load.allow_all();
                options.trials_max
            }
        };
        let mut agree = false;
        for trial in 1..=trials {
            self.wait(load, window, &mut seen, observer)?;
            let (record, mark) = self.mark(load)?;
            let seconds = marks.last().map_or(0.0, |before| (mark.at - before.at).as_secs_f64());
            marks.push(mark);
            windows.push(Measured { record, seconds });
            if let Some(old) = windows.len().checked_sub(WINDOWS + 1) {
                // Only the last windows are reported.
                windows[old].record = Record::default();
            }
            let all = self.client(&windows[trial - 1..]);
            let now = Figures { throughput: all.throughput, latency_us: all.stabilized_us(options.percentile) };
            figures.push(now);
            observer.window(trial, &all);
            agree = is_stable(&figures, options.stability);
            if agree || is_too_slow(&figures, latency_max_us) || load.failure().is_some() || observer.is_interrupted() {
                break;
            }
        }
        let from = windows.len().saturating_sub(WINDOWS);
        let client = self.client(&windows[from..]);
        let (before, after) = (&marks[from], &marks[windows.len()]);
        let server = self.watched.as_ref().zip(before.counts.as_ref()).zip(after.counts.as_ref());
        let server = server.and_then(|((watched, before), after)| watched.difference(before, after));
        let mut cost = self.meter.cost(&before.used, &after.used, client.requests, &seen.cores);
        let copied = before.copied_bytes.zip(after.copied_bytes).map(|(before, after)| after - before);
        cost.copied_bytes = copied.map(|bytes| bytes / client.requests.max(1) as f64);
        let gpus = self.metrics.is_some().then(|| seen.gpus.whole());
        let is_stable = matches!(window, Window::Fixed(_)) || agree;
        let records = options.files.export.is_some().then(|| records(&windows[from..], &marks[from..]));
        Ok(Point { level, client, server, cost, is_stable, gpus, records })
    }

    /// Ends a window: what was recorded in it, and the state of both sides.
    fn mark(&self, load: &Load) -> Result<(Record, Mark), String> {
        let (record, at, used) = (load.take(), Instant::now(), self.meter.read());
        let counts = self.watched.as_ref().map(|watched| watched.read(&self.caller)).transpose()?;
        let copied_bytes = match &self.metrics {
            Some(metrics) => metrics.read()?.copied_bytes,
            None => None,
        };
        Ok((record, Mark { at, used, counts, copied_bytes }))
    }

    /// Waits until the window has ended, a worker has failed, or the user wants to end.
    #[expect(clippy::disallowed_methods, reason = "the main thread has nothing else to do")]
    fn wait(&self, load: &Load, window: Window, seen: &mut Seen, observer: &dyn Observer) -> Result<(), String> {
        let since = Instant::now();
        let first = load.done();
        let (mut last_look, mut last_read) = (since, since);
        loop {
            let is_over = match window {
                Window::Time(length) => since.elapsed() >= length,
                Window::Count(count) => load.done() >= first + count,
                Window::Fixed(_) => load.done() >= load.allowed(),
            };
            if is_over || load.failure().is_some() || observer.is_interrupted() {
                return Ok(());
            }
            let left = match window {
                Window::Time(length) => length.saturating_sub(since.elapsed()).min(SLEEP_MAX),
                Window::Count(_) | Window::Fixed(_) => LOOK_EVERY,
            };
            std::thread::sleep(left);
            if last_look.elapsed() >= CORES_EVERY {
                last_look = Instant::now();
                self.meter.look(&mut seen.cores);
            }
            if let (Some(metrics), Some(wanted)) = (&self.metrics, &self.options.metrics)
                && last_read.elapsed() >= wanted.interval
            {
                last_read = Instant::now();
                seen.gpus.add(&metrics.read()?);
            }
        }
    }

    /// What the client saw in these windows together.
    fn client(&self, windows: &[Measured]) -> Client {
        let mut all = Record::default();
        for window in windows {
            all.join(&window.record);
        }
        let seconds: f64 = windows.iter().map(|window| window.seconds).sum();
        let count = all.requests.max(1) as f64;
        let us = |sum_ns: f64| sum_ns / count / 1e3;
        let mean_us = us(all.sum_ns);
        let variance = all.squares_ns / count / 1e6 - mean_us * mean_us;
        let is_decoupled = self.model.is_decoupled;
        Client {
            seconds,
            requests: all.requests,
            throughput: all.requests as f64 * self.options.batch as f64 / seconds.max(f64::MIN_POSITIVE),
            response_throughput: is_decoupled.then(|| all.responses as f64 / seconds.max(f64::MIN_POSITIVE)),
            mean_us,
            deviation_us: variance.max(0.0).sqrt(),
            send_us: us(all.send_ns),
            wait_us: us(all.wait_ns),
            receive_us: us(all.receive_ns),
            late: all.late,
            sequences: self.model.is_sequence.then_some(all.sequences),
            latencies: all.latencies,
        }
    }
}

/// The settings as Triton's protocol has them. Only the level is a list.
fn trace_settings(settings: &[(String, Vec<String>)]) -> String {
    let value = |name: &str, values: &[String]| match (name, values.last()) {
        ("trace_level", _) => serde_json::json!(values),
        (_, last) => serde_json::json!(last),
    };
    serde_json::Value::Object(settings.iter().map(|(name, values)| (name.clone(), value(name, values))).collect())
        .to_string()
}

/// All requests of these windows, in the order in which they began. `marks` are the ends of the windows, and the beginning of the first one.
fn records(windows: &[Measured], marks: &[Mark]) -> Records {
    let (now, now_ns) = (Instant::now(), since_1970().as_nanos() as u64);
    let ns = |at: Instant| now_ns - now.saturating_duration_since(at).as_nanos() as u64;
    let mut all: Vec<_> = windows.iter().flat_map(|window| &window.record.each).collect();
    all.sort_by_key(|each| each.start);
    Records {
        requests: all
            .iter()
            .map(|each| results::Record {
                start_ns: ns(each.start),
                sequence_id: each.sequence,
                responses: each.responses.len() as u32,
            })
            .collect(),
        responses_ns: all.iter().flat_map(|each| &each.responses).map(|at| ns(*at)).collect(),
        windows_ns: marks.iter().map(|mark| ns(mark.at)).collect(),
    }
}

/// How long the main thread sleeps, so that a failure and the user's Ctrl-C are noticed soon.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// The same where requests are counted.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time between two looks at the cores of both sides.
const CORES_EVERY: Duration = Duration::from_millis(500);

fn linker(options: &Options, model: &Model, plan: Plan, held: &Held, endpoint: Endpoint) -> Result<Linker, String> {
    if options.protocol == Protocol::Session {
        let kind = SessionKind {
            calls: options.session_calls,
            memory: options.memory,
            is_decoupled: model.is_decoupled,
            region: held.name().map(str::to_owned),
        };
        let steps = plan.steps();
        return Ok(Linker::Session { address: options.address(), plan: Arc::new(plan), kind, steps });
    }
    let requests = match held.name() {
        Some(name) if options.memory != Memory::Inline => plan.placed(name),
        _ => plan.inline().map_err(|error| error.to_string())?,
    };
    let types = model.inputs.iter().map(|input| (input.name.clone(), input.datatype)).collect();
    let encoder = Encoder::new(options, &endpoint, types);
    let messages = requests.iter().map(|request| encoder.encode(request)).collect::<Result<_, _>>()?;
    Ok(Linker::Wire(Arc::new(Wire {
        endpoint,
        protocol: options.protocol,
        is_streaming: options.is_streaming,
        headers: encoder.grpc_headers(options),
        encoder,
        requests,
        messages,
    })))
}

/// The process that listens at this address on this host.
fn server_at(endpoint: &Endpoint) -> Vec<u32> {
    let Endpoint::Tcp { authority, .. } = endpoint else { return Vec::new() };
    let Some((host, port)) = authority.rsplit_once(':') else { return Vec::new() };
    let is_here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    port.parse().ok().filter(|_| is_here).and_then(listening_at).into_iter().collect()
}

fn intervals(path: &std::path::Path) -> Result<Vec<Duration>, String> {
    let fault = |reason: String| format!("--request-intervals {}: {reason}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let all = lines
        .map(|line| line.parse().map(Duration::from_micros).map_err(|_| fault(format!("'{line}' is no number of µs"))));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if all.iter().all(Duration::is_zero) { Err(fault("it has no time above 0".to_owned())) } else { Ok(all) }
}
