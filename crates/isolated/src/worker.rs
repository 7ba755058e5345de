//! How does a child answer its server's commands?
//!
//! One after another, on one thread, until it is told to finalize its model or the server closes the channel.

mod answers;
mod logger;
mod memory;
mod requests;
mod talk;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use nerite_backend::{Batch, Instance, InstanceSpec, Meter, Model, Outcome, RequestTimes, Runtime, Times};
use nerite_memory::{Reason, copied_bytes};
use nerite_process::{Channel, Packet, code_word};
use nerite_request::Status;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};

use crate::context;
use crate::limits::ERROR_BYTES_MAX;
use requests::Requests;
use talk::Talk;

/// What a process does that [`crate::Isolated`] started: it runs one instance of a model on the runtime that `open` gives, until its
/// server has no use for it. Its standard input is its server's end of the channel.
pub fn work(open: impl FnOnce() -> Result<Arc<dyn Runtime>, String>) -> ExitCode {
    match begin() {
        Ok(talk) => Worker { talk, open: Some(open), runtime: None, model: None }.serve(),
        Err(error) => {
            eprintln!(
                "nerite instance-worker: standard input is no server's channel ({error}); servers start it themselves"
            );
            ExitCode::from(2)
        }
    }
}

/// Takes the channel, and whatever else a process of a server's needs.
fn begin() -> io::Result<Arc<Talk>> {
    // It must not outlive its server, not even in the midst of a long computation. Where the server ended before this call, the channel
    // says so.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // What `ps` and `top` call it: "exe" says nothing.
    let _ = rustix::thread::set_name(c"nerite-worker");
    let channel = Channel::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let (mut packet, mut descriptors) = (Packet::default(), Vec::new());
    channel.receive_all(&mut packet, &mut descriptors)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let side = descriptors.into_iter().next().ok_or_else(|| io::Error::other("the first packet has no descriptor"))?;
    logger::install(side);
    Ok(Arc::new(Talk::new(channel, packet)))
}

/// The child: its engine, and its instance once there is one.
struct Worker<O> {
    talk: Arc<Talk>,
    /// Opens the engine, once.
    open: Option<O>,
    runtime: Option<Arc<dyn Runtime>>,
    model: Option<Loaded>,
}

struct Loaded {
    name: Arc<str>,
    version: Arc<str>,
    instance: Box<dyn Instance>,
    /// After the instance, because fields drop in order.
    _model: Arc<dyn Model>,
}

impl<O: FnOnce() -> Result<Arc<dyn Runtime>, String>> Worker<O> {
    fn serve(mut self) -> ExitCode {
        // An error, or nothing more to receive: the server is gone, or has no use for this process.
        while let Ok(Some((command, descriptors))) = self.talk.next_command() {
            let Some(name) = command.get("do").and_then(Value::as_str) else { continue };
            let answer = match name {
                "execute" => self.execute(&command, descriptors),
                "complete" => self.complete(&command).unwrap_or_else(|status| error(&status)),
                "initialize" => self.initialize(&command).unwrap_or_else(|status| error(&status)),
                "finalize" => {
                    self.model = None;
                    json!({ "done": true })
                }
                other => error(&Status::unsupported(format!("there is no command '{other}'"))),
            };
            if self.talk.answer(&answer).is_err() || name == "finalize" {
                break;
            }
        }
        ExitCode::SUCCESS
    }

    /// The engine, opened if it is not.
    fn runtime(&mut self) -> Result<Arc<dyn Runtime>, Status> {
        if let Some(open) = self.open.take() {
            self.runtime = Some(open().map_err(Status::internal)?);
        }
        self.runtime.clone().ok_or_else(|| Status::internal("the engine could not be opened"))
    }

    fn complete(&mut self, command: &Value) -> Result<Value, Status> {
        let context = context::heard(command.get("context").unwrap_or(&Value::Null))?;
        let config = self.runtime()?.complete(&context)?;
        let config: Value = serde_json::from_str(&nerite_config::to_json(&config))
            .map_err(|error| Status::internal(format!("the configuration of model '{}': {error}", context.model)))?;
        Ok(json!({ "config": config }))
    }

    fn initialize(&mut self, command: &Value) -> Result<Value, Status> {
        let context = context::heard(command.get("context").unwrap_or(&Value::Null))?;
        let told = command.get("instance").unwrap_or(&Value::Null);
        let name = told.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let index = told.get("index").and_then(Value::as_u64).unwrap_or_default() as usize;
        let model = self.runtime()?.load(&context)?;
        let instance = model.instance(&InstanceSpec { name, index, device: None })?;
        let (name, version) = (context.model.into(), context.version.to_string().into());
        self.model = Some(Loaded { name, version, instance, _model: model });
        Ok(json!({ "ready": { "guard": true } }))
    }

    fn execute(&mut self, command: &Value, descriptors: Vec<OwnedFd>) -> Value {
        let copied = copies();
        if let Err(text) = self.talk.memory().map(command.get("map"), descriptors) {
            let unmapped = self.talk.memory().take_unmapped();
            return json!({ "error": text, "unmapped": unmapped });
        }
        let Some(loaded) = &mut self.model else { return json!({ "error": "it has no model" }) };
        let requests = Requests::read(&self.talk, command.get("requests"));
        let executions = Arc::new(Executions::default());
        let jobs = requests.jobs(&loaded.name, &loaded.version);
        if !jobs.is_empty() {
            let batch = Batch { jobs, meter: Arc::<Executions>::clone(&executions) };
            // Jobs that a panic drops are answered with an error; the instance goes on, as it does within the server.
            if catch_unwind(AssertUnwindSafe(|| loaded.instance.run(batch))).is_err() {
                log::error!("model '{}' panicked; its request was answered with an error", loaded.name);
            }
        }
        let responses: Vec<Value> = requests.answers();
        let mut answer = json!({ "responses": responses, "executions": executions.told() });
        let lost = requests.lost();
        let unmapped = self.talk.memory().take_unmapped();
        for (key, list) in [("lost", json!(lost)), ("unmapped", json!(unmapped))] {
            if list.as_array().is_some_and(|list| !list.is_empty()) {
                answer[key] = list;
            }
        }
        if let Some(more) = copied_since(&copied) {
            answer["copied"] = more;
        }
        answer
    }
}

fn error(status: &Status) -> Value {
    json!({ "error": told(status) })
}

/// A failure as packets tell it.
fn told(status: &Status) -> Value {
    let end = status.message.floor_char_boundary(ERROR_BYTES_MAX);
    json!([code_word(status.code), status.message.get(..end).unwrap_or_default()])
}

/// What the runtime reports of its executions.
#[derive(Default)]
struct Executions(Mutex<Vec<(u64, Times)>>);

impl Executions {
    fn told(&self) -> Vec<[u64; 4]> {
        let each = |(rows, times): &(u64, Times)| {
            let Times { start, input_end, infer_end, end } = *times;
            let between = |from: u64, to: u64| to.saturating_sub(from);
            [*rows, between(start, input_end), between(input_end, infer_end), between(infer_end, end)]
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(each).collect()
    }
}

impl Meter for Executions {
    fn request(&self, _: &RequestTimes, _: Outcome) {}

    fn batch(&self, rows: u64, times: &Times) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((rows, *times));
    }
}

/// Bytes that this process has copied so far, by reason.
fn copies() -> Vec<u64> {
    Reason::ALL.iter().map(|reason| copied_bytes(*reason)).collect()
}

/// What was copied since, by reason: the server counts it as its own.
fn copied_since(before: &[u64]) -> Option<Value> {
    let more = Reason::ALL.iter().zip(before).map(|(reason, before)| (reason, copied_bytes(*reason) - before));
    let more: Map<String, Value> =
        more.filter(|(_, bytes)| *bytes > 0).map(|(reason, bytes)| (reason.name().to_owned(), bytes.into())).collect();
    (!more.is_empty()).then_some(Value::Object(more))
}
