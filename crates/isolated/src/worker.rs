//! How does a child answer its server's commands?
//!
//! The commands are answered one after another, on one thread, until the server orders to finalize the model or closes the channel.

mod calls;
mod gone;
mod logger;
mod memory;
mod metrics;
mod models;
mod requests;
mod server_channel;
mod worker_request;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};

use nerite_backend::{
    Batch, Infer, Instance, InstanceSpec, LoadContext, Meter, MetricSource, Model, ModelVersion, Models, RequestTimes,
    ResponseDurations, Runtime, Times,
};
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_process::packets::{Answer, Command, DONE, Execution, MemoryReported, Ready, Responded, WrittenResponse};
use nerite_process::{Channel, Packet};
use nerite_request::report::MemoryUsage;
use nerite_request::{Name, Status};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::Value;

use crate::context;
use crate::limits::{ERROR_BYTES_MAX, GONE_PATIENCE};
use calls::Calls;
use gone::Gone;
use metrics::ServerMetrics;
use models::ServerModels;
use requests::{Names, Requests};
use server_channel::ServerChannel;
use worker_request::{Answered, WorkerRequest};

/// The main function of a process that [`crate::Isolated`] started. It runs one instance of a model on the runtime that `open` returns, until the
/// server ends it. `open` gets the object that makes the engine's metrics. The process's standard input is the server's channel.
#[expect(clippy::print_stderr, reason = "the worker is a program; its standard error is the server's log")]
pub fn work(open: impl FnOnce(Arc<dyn MetricSource>) -> Result<Arc<dyn Runtime>, String>) -> ExitCode {
    match begin() {
        Ok((server, metrics)) => Worker {
            server,
            open: Some(|| open(Arc::new(metrics))),
            runtime: None,
            model: None,
            kept: None,
            models: None,
            later: Vec::new(),
        }
        .serve(),
        Err(error) => {
            eprintln!(
                "nerite instance-worker: standard input is no server's channel ({error}); servers start it themselves"
            );
            ExitCode::from(2)
        }
    }
}

/// Opens the channel, and prepares the process.
fn begin() -> io::Result<(Arc<ServerChannel>, ServerMetrics)> {
    // The process must not outlive its server, even during a long computation. If the server ended before this call, the channel is closed, and the
    // first read ends the process.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The name that `ps` and `top` show. Without it they would show "exe".
    let _ = rustix::thread::set_name(c"nerite-worker");
    let channel = Channel::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let (mut packet, mut descriptors) = (Packet::default(), Vec::new());
    channel.receive_all(&mut packet, &mut descriptors)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut descriptors = descriptors.into_iter();
    let side = descriptors.next().ok_or_else(|| io::Error::other("the first packet has no descriptor"))?;
    let side = Arc::new(Channel::from(side));
    logger::install(Arc::clone(&side));
    let calls = descriptors.next().map(Calls::new);
    let gone = Gone::new(calls.is_none().then_some(GONE_PATIENCE), end_in_vain);
    let (metrics, measured) = ServerMetrics::new(&side);
    gone.listen(Arc::clone(&side), measured)?;
    Ok((Arc::new(ServerChannel::new(channel, side, packet, gone, calls)?), metrics))
}

/// Ends the process, because no client waits for its run and the run cannot be stopped.
#[expect(
    clippy::disallowed_methods,
    reason = "the thread that would return to main computes; the server holds all that outlives the process"
)]
fn end_in_vain() {
    log::warn!(
        "a run went on for {} s after its last client had gone; its process ends, and the next request starts another",
        GONE_PATIENCE.as_secs()
    );
    std::process::exit(1);
}

/// The child: its engine, and its instance once there is one.
struct Worker<O> {
    server: Arc<ServerChannel>,
    /// Opens the engine, once.
    open: Option<O>,
    runtime: Option<Arc<dyn Runtime>>,
    model: Option<Loaded>,
    /// The model of a load that this process has only prepared. The runtime may keep data for that load, although another process loads the model.
    kept: Option<LoadContext>,
    /// The server's models, if this process has a channel for calls.
    models: Option<Arc<dyn Infer>>,
    /// Requests of the last batch that are answered by calls, after the batch itself was answered.
    later: Vec<Arc<WorkerRequest>>,
}

struct Loaded {
    name: Name,
    version: Name,
    names: Names,
    is_decoupled: bool,
    /// Whether its requests may run again.
    repeats: bool,
    /// Its executions, also those that it reports after a run.
    executions: Arc<Executions>,
    instance: Box<dyn Instance>,
    /// It is declared after the instance, because fields are dropped in this order.
    model: Arc<dyn Model>,
    /// The memory that was last reported to the server.
    memory: Vec<MemoryUsage>,
}

impl<O: FnOnce() -> Result<Arc<dyn Runtime>, String>> Worker<O> {
    fn serve(mut self) -> ExitCode {
        // An error or the end of the channel means that the server has ended, or does not need this process any more.
        while let Ok(Some((command, descriptors))) = self.server.next_command() {
            let Some(name) = command.name() else { continue };
            let answer = match name {
                "execute" => self.execute(&command, descriptors),
                "prefer" => self.prefer(&command).unwrap_or_else(error),
                "complete" => self.complete(&command).unwrap_or_else(error),
                "initialize" => self.initialize(&command).unwrap_or_else(error),
                "finalize" => {
                    self.finalize();
                    DONE.to_owned()
                }
                other => error(Status::unsupported(format!("there is no command '{other}'"))),
            };
            if self.server.answer(&answer).is_err() || name == "finalize" {
                break;
            }
            self.later.drain(..).for_each(|request| request.go_on());
        }
        ExitCode::SUCCESS
    }

    fn finalize(&mut self) {
        self.model = None;
        if let (Some(runtime), Some(context)) = (&self.runtime, self.kept.take()) {
            // Another process loads the model.
            runtime.give_up(&context);
        }
    }

    /// The engine. The first call opens it.
    fn runtime(&mut self) -> Result<Arc<dyn Runtime>, Status> {
        if let Some(open) = self.open.take() {
            self.runtime = Some(open().map_err(Status::internal)?);
        }
        self.runtime.clone().ok_or_else(|| Status::internal("the engine could not be opened"))
    }

    /// The instance groups that the backend prefers, as those of a configuration.
    fn prefer(&mut self, command: &Command) -> Result<String, Status> {
        let context = context::from_value(command.part("context"))?;
        let instance_group = self.runtime()?.preferred_groups(&context)?;
        self.answer_with(context, &ModelConfig { instance_group, ..ModelConfig::default() })
    }

    fn complete(&mut self, command: &Command) -> Result<String, Status> {
        let context = context::from_value(command.part("context"))?;
        let config = self.runtime()?.complete(&context)?;
        self.answer_with(context, &config)
    }

    /// Answers with a configuration, and notes the load, because the runtime may keep data for it.
    fn answer_with(&mut self, context: LoadContext, config: &ModelConfig) -> Result<String, Status> {
        let config: Value = serde_json::from_str(&nerite_config::to_json(config))
            .map_err(|error| Status::internal(format!("the configuration of model '{}': {error}", context.model)))?;
        self.kept = Some(context);
        Ok(Answer { config: Some(&config), ..Answer::default() }.to_string())
    }

    fn initialize(&mut self, command: &Command) -> Result<String, Status> {
        let mut context = context::from_value(command.part("context"))?;
        if let Some(calls) = self.server.calls() {
            let models: Arc<dyn Infer> = Arc::new(ServerModels::new(&self.server, calls));
            context.models = Models::of(Arc::downgrade(self.models.insert(models)));
        }
        let read = command.part("instance");
        let name = read.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let index = read.get("index").and_then(Value::as_u64).unwrap_or_default() as usize;
        let model = self.runtime()?.load(&context)?;
        let instance = model.instance(&InstanceSpec { name, index, ..InstanceSpec::default() })?;
        context.files.end(&context.model)?;
        let is_decoupled = context.config.decoupled();
        let repeats = context.config.sequence_batching().is_some_and(|batching| batching.iterative_sequence);
        let names = Names {
            inputs: context.config.input.iter().map(|input| input.name.as_str().into()).collect(),
            outputs: context.config.output.iter().map(|output| output.name.as_str().into()).collect(),
        };
        let (name, version) = (context.model.into(), context.version.to_string().into());
        let executions = Arc::new(Executions { since: Mutex::default(), server: Arc::clone(&self.server) });
        let memory = Vec::new();
        let mut loaded = Loaded { name, version, names, is_decoupled, repeats, executions, instance, model, memory };
        loaded.report_memory(&self.server);
        self.model = Some(loaded);
        Ok(Ready { guard: true, ..Ready::default() }.to_string())
    }

    fn execute(&mut self, command: &Command, descriptors: Vec<OwnedFd>) -> String {
        if let Err(text) = self.server.memory().map(command.map(), descriptors) {
            return Answer { error: Some(&text), ..Answer::default() }.to_string();
        }
        let Some(loaded) = &mut self.model else {
            return Answer { error: Some("it has no model"), ..Answer::default() }.to_string();
        };
        let requests = Requests::read(&self.server, command, &loaded.names, loaded.is_decoupled);
        let meter = Arc::<Executions>::clone(&loaded.executions);
        let version = ModelVersion::new(loaded.name.clone(), loaded.version.clone(), meter);
        let jobs = requests.jobs(&version, loaded.repeats);
        if !jobs.is_empty() {
            let batch = Batch { jobs, meter: Arc::<Executions>::clone(&loaded.executions) };
            // Jobs that a panic drops are answered with an error. The instance continues, as it does within the server.
            if catch_unwind(AssertUnwindSafe(|| loaded.instance.run(batch))).is_err() {
                log::error!("model '{}' panicked; its request was answered with an error", loaded.name);
            }
        }
        loaded.report_memory(&self.server);
        let executions = Arc::clone(&loaded.executions);
        let answers = self.answers(&requests);
        let responses: Vec<_> =
            answers.iter().map(|one| one.as_ref().map_or(WrittenResponse::Later, Answered::read)).collect();
        let (executions, lost) = (executions.take(), requests.lost());
        let answer = Answer {
            responses: Some(&responses),
            lost: (!lost.is_empty()).then_some(&lost),
            executions: Some(&executions),
            copied: &self.server.take_copied(),
            unmapped: &self.server.memory().take_unmapped(),
            ..Answer::default()
        };
        answer.to_string()
    }

    /// The answer of each request after the run has ended; `None` for those that are answered by calls. Without calls,
    /// this waits for each answer.
    fn answers(&mut self, requests: &Requests) -> Vec<Option<Answered>> {
        if self.server.calls().is_none() {
            let answers = requests.answers().map(|(request, response)| Some(Answered::of(request, response))).collect();
            self.server.gone().is_over();
            return answers;
        }
        let settle = |request: &Arc<WorkerRequest>| {
            let response = request.settle();
            if response.is_none() {
                self.later.push(Arc::clone(request));
            }
            response.map(|response| Answered::of(request, response))
        };
        requests.each().iter().map(settle).collect()
    }
}

impl Loaded {
    /// Reports the memory of the backend to the server if it has changed.
    fn report_memory(&mut self, server: &ServerChannel) {
        let memory = self.model.memory_usage();
        if memory != self.memory {
            server.report(&MemoryReported(&memory));
            self.memory = memory;
        }
    }
}

fn error(status: Status) -> String {
    Answer { failure: Some(&cut(status)), ..Answer::default() }.to_string()
}

/// A failure that is short enough for a packet.
fn cut(mut status: Status) -> Status {
    status.message.truncate(status.message.floor_char_boundary(ERROR_BYTES_MAX));
    status
}

/// The executions and single responses that the runtime reports.
struct Executions {
    /// Executions since the last report to the server.
    since: Mutex<Vec<(u64, Times)>>,
    server: Arc<ServerChannel>,
}

impl Executions {
    /// Takes the executions since the last report to the server.
    fn take(&self) -> Vec<Execution> {
        let each = |(rows, times): &(u64, Times)| {
            let Times { start, input_end, infer_end, end } = *times;
            let between = |from: u64, to: u64| to.saturating_sub(from);
            Execution {
                rows: *rows,
                input_ns: between(start, input_end),
                infer_ns: between(input_end, infer_end),
                output_ns: between(infer_end, end),
            }
        };
        let all = std::mem::take(&mut *self.since.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter().map(each).collect()
    }
}

impl Meter for Executions {
    fn request(&self, _: &RequestTimes, _: nerite_backend::Outcome) {}

    fn batch(&self, rows: u64, times: &Times) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).push((rows, *times));
    }

    fn response(&self, index: u64, durations: &ResponseDurations) {
        self.server.report(&Responded(index, *durations));
    }
}
