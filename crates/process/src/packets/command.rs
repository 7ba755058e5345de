//! Which packets does the server send to a model's process on the channel?

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

use nerite_request::{Parameters, Sequence, SequenceId, Status, TraceContext};
use serde_json::Value;

use super::numbers;
use super::tensors::{At, List, OutputMemory, Segment, SegmentOffset, TensorAt, Text};
use crate::words::{parameters_of, parameters_text, status_of};

/// The first packet to an interpreter: the modules that it imports, and the main one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// Sources by the names of their modules.
    pub modules: BTreeMap<&'a str, &'a str>,
    /// The module with the function `run`.
    pub main: &'a str,
}

impl Display for Greeting<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(r#"{"modules":{"#)?;
        for (at, (name, source)) in self.modules.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", Text(name), Text(source))?;
        }
        write!(f, r#"}},"main":{}}}"#, Text(self.main))
    }
}

/// The names of a model, for an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its version.
    pub version: String,
    /// The name of the file with its class.
    pub file: &'a str,
    /// The folder of its version.
    pub version_dir: String,
    /// Its folder.
    pub model_dir: String,
    /// The folder of the file with its class, if the folder belongs to its backend and not to its version.
    pub class_dir: Option<String>,
    /// The instance's name.
    pub instance: &'a str,
    /// What lists of processes show for the process.
    pub title: String,
}

impl Display for Model<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Model { name, version, file, version_dir, model_dir, class_dir, instance, title } = self;
        let (name, version, file) = (Text(name), Text(version), Text(file));
        write!(f, r#"{{"name":{name},"version":{version},"file":{file},"version_dir":{}"#, Text(version_dir))?;
        if let Some(class_dir) = class_dir {
            write!(f, r#","class_dir":{}"#, Text(class_dir))?;
        }
        write!(f, r#","model_dir":{},"instance":{},"title":{}}}"#, Text(model_dir), Text(instance), Text(title))
    }
}

/// The command to complete a model's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Complete<'a> {
    /// The configuration, as JSON.
    pub config: &'a str,
    /// The model.
    pub model: &'a Model<'a>,
}

impl Display for Complete<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"do":"complete","config":{},"model":{}}}"#, self.config, self.model)
    }
}

/// The command to make an instance of a model.
#[derive(Clone, Copy, Debug)]
pub struct Initialize<'a> {
    /// The arguments of the model's `initialize`: strings by name, in this order.
    pub args: &'a [(&'a str, &'a str)],
    /// The model.
    pub model: &'a Model<'a>,
    /// Whether it is decoupled.
    pub decoupled: bool,
    /// Whether its process is a template that others are forked from.
    pub template: bool,
    /// The port at which a debugger attaches before the model is imported.
    pub debug: Option<u16>,
}

impl Display for Initialize<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Initialize { args, model, decoupled, template, debug } = self;
        f.write_str(r#"{"do":"initialize","args":{"#)?;
        for (at, (name, text)) in args.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", Text(name), Text(text))?;
        }
        write!(f, r#"}},"model":{model},"decoupled":{decoupled}"#)?;
        if let Some(port) = debug {
            write!(f, r#","debug":{port}"#)?;
        }
        f.write_str(if *template { r#","template":true}"# } else { "}" })
    }
}

/// The command to reap an ended process, to the process that forked it.
#[derive(Clone, Copy, Debug)]
pub struct Reap(pub u32);

impl Display for Reap {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"do":"reap","pid":{}}}"#, self.0)
    }
}

/// The command to execute a batch.
#[derive(Clone, Copy, Debug)]
pub struct Execute<'a> {
    /// The [`Request`]s, with commas between them.
    pub requests: &'a str,
    /// The [`Segment`]s of the packet's descriptors, with commas between them.
    pub map: &'a str,
    /// Memory that was removed.
    pub forget: &'a [u64],
}

impl Display for Execute<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Execute { requests, map, forget } = self;
        let forget = List(forget.iter());
        write!(f, r#"{{"do":"execute","requests":[{requests}],"map":[{map}],"forget":{forget}}}"#)
    }
}

/// One request of a batch. `I` and `O` iterate over its inputs and over the memory for its outputs.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a, I, O> {
    /// Its number, which is unique in this server.
    pub number: u64,
    /// The client's id.
    pub id: &'a str,
    /// Its rows.
    pub rows: u32,
    /// Its sequence.
    pub sequence: &'a Sequence,
    /// Its timeout. 0 for none.
    pub timeout_us: u64,
    /// Its parameters.
    pub parameters: &'a Parameters,
    /// Its inputs.
    pub inputs: I,
    /// Its outputs.
    pub outputs: O,
    /// Whether a decoupled model must wait for memory before its first response in this run too, because the client may
    /// not have read the responses of an earlier run.
    pub must_wait: bool,
    /// Its span, if its trace becomes spans.
    pub trace: Option<&'a TraceContext>,
    /// How many of its outputs the client wants. `Some` if the server wants more: the states of sequences come after the client's.
    pub own: Option<usize>,
}

impl<I, O> Display for Request<'_, I, O>
where
    I: Iterator<Item: Display> + Clone,
    O: Iterator<Item: Display> + Clone,
{
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Request { number, id, rows, sequence, timeout_us, parameters, inputs, outputs, must_wait, trace, own } =
            self;
        write!(f, r#"{{"number":{number},"id":{},"rows":{rows},"correlation":"#, Text(id))?;
        match &sequence.id {
            SequenceId::None => f.write_str("0")?,
            SequenceId::Number(number) => write!(f, "{number}")?,
            SequenceId::Text(text) => Text(text).fmt(f)?,
        }
        let flags = u32::from(sequence.start) | u32::from(sequence.end) << 1;
        let parameters = parameters_text(parameters);
        write!(f, r#","flags":{flags},"timeout":{timeout_us},"parameters":{parameters}"#)?;
        write!(f, r#","inputs":{},"outputs":{}"#, List(inputs.clone()), List(outputs.clone()))?;
        f.write_str(if *must_wait { r#","asks":true"# } else { "" })?;
        if let Some(own) = own {
            write!(f, r#","own":{own}"#)?;
        }
        write!(f, "{}}}", Traced(*trace))
    }
}

/// The part of a request that names its span; empty if it has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traced<'a>(pub(super) Option<&'a TraceContext>);

impl Display for Traced<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some(context) = self.0 else { return Ok(()) };
        write!(f, r#","trace":{{"traceparent":{}"#, Text(&context.traceparent()))?;
        if !context.state.is_empty() {
            write!(f, r#","tracestate":{}"#, Text(&context.state))?;
        }
        f.write_str("}")
    }
}

/// The memory for an output. It is the answer to [`super::Need`].
#[derive(Clone, Copy, Debug)]
pub struct OutputSpace<'a> {
    /// Where it lies.
    pub location: SegmentOffset,
    /// Its size in bytes.
    pub capacity: usize,
    /// As in [`Execute`].
    pub map: &'a str,
}

impl Display for OutputSpace<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"at":[{},{}],"map":[{}]}}"#, At(Some(self.location)), self.capacity, self.map)
    }
}

/// The reason why there is no memory. It is an answer to [`super::Need`] too.
#[derive(Clone, Copy, Debug)]
pub struct NoMemoryFound<'a>(pub &'a str);

impl Display for NoMemoryFound<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"error":{}}}"#, Text(self.0))
    }
}

/// Removed memory, for a process that is not running a command.
#[derive(Clone, Copy, Debug)]
pub struct Forget<'a>(pub &'a [u64]);

impl Display for Forget<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"forget":{}}}"#, List(self.0.iter()))
    }
}

/// A packet of the server, as the process reads it.
#[derive(Clone, Debug)]
pub struct Command(Value);

impl Command {
    /// Parses a packet.
    pub fn read(text: &[u8]) -> serde_json::Result<Command> {
        serde_json::from_slice(text).map(Command)
    }

    /// The name of the command. `None` if the packet is only a notice.
    pub fn name(&self) -> Option<&str> {
        self.0.get("do")?.as_str()
    }

    /// A part of a command about the model. Each runtime defines its own parts.
    pub fn part(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    /// Memory that the packet introduces. `None` if it is invalid.
    pub fn map(&self) -> Option<Vec<Segment>> {
        self.list("map").map(Segment::read).collect()
    }

    /// Memory that was removed.
    pub fn forget(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("forget"))
    }

    /// The requests to execute.
    pub fn requests(&self) -> impl Iterator<Item = RequestRead<'_>> {
        self.list("requests").map(RequestRead)
    }

    /// The memory that was asked for, and its size. The inner `None` means that it is invalid.
    pub fn space(&self) -> Option<Option<(SegmentOffset, usize)>> {
        let at = self.0.get("at")?.as_array()?;
        let number = |index: usize| at.get(index).and_then(Value::as_u64);
        let space = number(0).zip(number(1)).zip(number(2));
        Some(
            space
                .map(|((segment, offset), bytes)| (SegmentOffset { segment, offset: offset as usize }, bytes as usize)),
        )
    }

    /// The call that it answers.
    pub fn call(&self) -> Option<u64> {
        self.0.get("call")?.as_u64()
    }

    /// Whether the request of that call has ended.
    pub fn is_over(&self) -> bool {
        self.flag("over")
    }

    /// The memory for the outputs of that request's next response. `None` for an invalid one.
    pub fn output_memory(&self) -> impl Iterator<Item = Option<OutputMemory<'_>>> {
        self.list("outputs").map(OutputMemory::read)
    }

    /// Why a call failed: a code and a text, or only a text.
    pub fn failure(&self) -> Option<Status> {
        self.0.get("error").map(status_of)
    }

    /// Whether a nested request has an input in memory that the server does not know.
    pub fn is_unknown(&self) -> bool {
        self.flag("unknown")
    }

    /// Whether no further response of a nested request follows.
    pub fn is_final(&self) -> bool {
        self.flag("final")
    }

    /// Why a nested request has no outputs.
    pub fn response_failure(&self) -> Option<Status> {
        self.0.get("response")?.get("error").map(status_of)
    }

    /// The outputs of a nested request's response. `None` for an invalid one.
    pub fn response_outputs(&self) -> Option<impl Iterator<Item = Option<TensorAt<'_>>>> {
        Some(self.0.get("response")?.get("outputs")?.as_array()?.iter().map(TensorAt::read))
    }

    /// The parameters of that response.
    pub fn response_parameters(&self) -> Parameters {
        let parameters = self.0.get("response").and_then(|response| response.get("parameters"));
        parameters.and_then(Value::as_object).map_or_else(Parameters::new, parameters_of)
    }

    /// The model that made that response, with its version.
    pub fn response_model(&self) -> (&str, &str) {
        let text = |key: &str| self.0.get("response")?.get(key)?.as_str();
        (text("model").unwrap_or_default(), text("version").unwrap_or_default())
    }

    fn flag(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The reason why there is no memory.
    pub fn error(&self) -> Option<&str> {
        self.0.get("error")?.as_str()
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &Value> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}

/// A [`Request`], as the process reads it. Missing fields are empty or 0.
#[derive(Clone, Copy, Debug)]
pub struct RequestRead<'a>(&'a Value);

impl<'a> RequestRead<'a> {
    pub(super) fn new(value: &'a Value) -> RequestRead<'a> {
        RequestRead(value)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.count("number")
    }

    /// The client's id.
    pub fn id(self) -> &'a str {
        self.0.get("id").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its rows.
    pub fn rows(self) -> u32 {
        self.count("rows") as u32
    }

    /// Its timeout. 0 for none.
    pub fn timeout_us(self) -> u64 {
        self.count("timeout")
    }

    /// Its sequence.
    pub fn sequence(self) -> Sequence {
        let id = match self.0.get("correlation") {
            Some(Value::String(text)) if !text.is_empty() => SequenceId::Text(text.clone()),
            Some(value) => value.as_u64().filter(|number| *number > 0).map_or(SequenceId::None, SequenceId::Number),
            None => SequenceId::None,
        };
        let flags = self.count("flags");
        Sequence { id, start: flags & 1 != 0, end: flags & 2 != 0 }
    }

    /// Its parameters.
    pub fn parameters(self) -> Parameters {
        self.0.get("parameters").and_then(Value::as_object).map_or_else(Parameters::new, parameters_of)
    }

    /// Its inputs. `None` for an invalid one.
    pub fn inputs(self) -> impl Iterator<Item = Option<TensorAt<'a>>> {
        self.list("inputs").map(TensorAt::read)
    }

    /// The memory for its outputs. `None` for an invalid one.
    pub fn outputs(self) -> impl Iterator<Item = Option<OutputMemory<'a>>> {
        self.list("outputs").map(OutputMemory::read)
    }

    /// How many of its outputs the client wants. `None` for all.
    pub fn own(self) -> Option<usize> {
        Some(self.0.get("own")?.as_u64()? as usize)
    }

    fn count(self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    fn list(self, key: &str) -> impl Iterator<Item = &'a Value> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}
