//! What does the server tell a model's process on the channel?

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Result};

use nerite_request::{Parameters, Sequence, SequenceId};
use serde_json::Value;

use super::numbers;
use super::tensors::{At, List, PlaceFor, Segment, SegmentOffset, TensorAt, Text};
use crate::words::{parameters_of, parameters_text};

/// The first packet to an interpreter: the modules that it imports, and the one that takes over.
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

/// Which model, to an interpreter.
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
    /// The instance's name.
    pub instance: &'a str,
}

impl Display for Model<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Model { name, version, file, version_dir, model_dir, instance } = self;
        let (name, version, file) = (Text(name), Text(version), Text(file));
        write!(f, r#"{{"name":{name},"version":{version},"file":{file},"version_dir":{}"#, Text(version_dir))?;
        write!(f, r#","model_dir":{},"instance":{}}}"#, Text(model_dir), Text(instance))
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
    /// What the model's `initialize` is given: texts by their names, in this order.
    pub args: &'a [(&'a str, &'a str)],
    /// The model.
    pub model: &'a Model<'a>,
    /// Whether it answers a request with any number of responses.
    pub decoupled: bool,
    /// Whether its process is to be the template of others.
    pub template: bool,
}

impl Display for Initialize<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Initialize { args, model, decoupled, template } = self;
        f.write_str(r#"{"do":"initialize","args":{"#)?;
        for (at, (name, text)) in args.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", Text(name), Text(text))?;
        }
        write!(f, r#"}},"model":{model},"decoupled":{decoupled}"#)?;
        f.write_str(if *template { r#","template":true}"# } else { "}" })
    }
}

/// The command to take a process that ended off the system's hands, to the process that forked it.
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
    /// The [`Segment`]s of the descriptors beside the packet, with commas between them.
    pub map: &'a str,
    /// Memory that is no more.
    pub forget: &'a [u64],
}

impl Display for Execute<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Execute { requests, map, forget } = self;
        let forget = List(forget.iter());
        write!(f, r#"{{"do":"execute","requests":[{requests}],"map":[{map}],"forget":{forget}}}"#)
    }
}

/// One request of a batch. `I` and `O` give its inputs and the places of its outputs.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a, I, O> {
    /// Its number, which no other request of this server ever has.
    pub number: u64,
    /// What the client calls it.
    pub id: &'a str,
    /// Its rows.
    pub rows: u32,
    /// The sequence that it belongs to.
    pub sequence: &'a Sequence,
    /// Its timeout; 0 for none.
    pub timeout_us: u64,
    /// Its parameters.
    pub parameters: &'a Parameters,
    /// Its inputs.
    pub inputs: I,
    /// Its outputs.
    pub outputs: O,
    /// Whether a decoupled model asks for places before its first response in this run too: the client may not have taken those of an earlier
    /// run.
    pub asks: bool,
}

impl<I, O> Display for Request<'_, I, O>
where
    I: Iterator<Item: Display> + Clone,
    O: Iterator<Item: Display> + Clone,
{
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Request { number, id, rows, sequence, timeout_us, parameters, inputs, outputs, asks } = self;
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
        f.write_str(if *asks { r#","asks":true}"# } else { "}" })
    }
}

/// OutputSpace that was found for an output, which answers [`super::Need`].
#[derive(Clone, Copy, Debug)]
pub struct OutputSpace<'a> {
    /// Where it is.
    pub spot: SegmentOffset,
    /// Its bytes.
    pub capacity: usize,
    /// As in [`Execute`].
    pub map: &'a str,
}

impl Display for OutputSpace<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"at":[{},{}],"map":[{}]}}"#, At(Some(self.spot)), self.capacity, self.map)
    }
}

/// Why there is no room, which answers [`super::Need`] as well.
#[derive(Clone, Copy, Debug)]
pub struct NoRoom<'a>(pub &'a str);

impl Display for NoRoom<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"error":{}}}"#, Text(self.0))
    }
}

/// Memory that is no more, told to a process that was asked nothing.
#[derive(Clone, Copy, Debug)]
pub struct Forget<'a>(pub &'a [u64]);

impl Display for Forget<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"forget":{}}}"#, List(self.0.iter()))
    }
}

/// A packet of the server's as the process reads it.
#[derive(Clone, Debug)]
pub struct Command(Value);

impl Command {
    /// From the packet's text.
    pub fn read(text: &[u8]) -> serde_json::Result<Command> {
        serde_json::from_slice(text).map(Command)
    }

    /// What is to be done; nothing, where the packet only tells something.
    pub fn name(&self) -> Option<&str> {
        self.0.get("do")?.as_str()
    }

    /// A part of a command about the model, which the runtimes agree on among themselves.
    pub fn part(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    /// Memory that the packet introduces; `None` where it makes no sense.
    pub fn map(&self) -> Option<Vec<Segment>> {
        self.list("map").map(Segment::read).collect()
    }

    /// Memory that is no more.
    pub fn forget(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("forget"))
    }

    /// The requests to execute.
    pub fn requests(&self) -> impl Iterator<Item = RequestRead<'_>> {
        self.list("requests").map(RequestRead)
    }

    /// The room that was asked for, and its bytes; the inner `None` where it makes no sense.
    pub fn room(&self) -> Option<Option<(SegmentOffset, usize)>> {
        let at = self.0.get("at")?.as_array()?;
        let number = |index: usize| at.get(index).and_then(Value::as_u64);
        let room = number(0).zip(number(1)).zip(number(2));
        Some(
            room.map(|((segment, offset), bytes)| (SegmentOffset { segment, offset: offset as usize }, bytes as usize)),
        )
    }

    /// Why there is no room.
    pub fn error(&self) -> Option<&str> {
        self.0.get("error")?.as_str()
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &Value> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}

/// A [`Request`] as the process reads it. What is not there is nothing, or 0.
#[derive(Clone, Copy, Debug)]
pub struct RequestRead<'a>(&'a Value);

impl<'a> RequestRead<'a> {
    pub(super) fn new(told: &'a Value) -> RequestRead<'a> {
        RequestRead(told)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.count("number")
    }

    /// What the client calls it.
    pub fn id(self) -> &'a str {
        self.0.get("id").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its rows.
    pub fn rows(self) -> u32 {
        self.count("rows") as u32
    }

    /// Its timeout; 0 for none.
    pub fn timeout_us(self) -> u64 {
        self.count("timeout")
    }

    /// The sequence that it belongs to.
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

    /// Its inputs; `None` for one that makes no sense.
    pub fn inputs(self) -> impl Iterator<Item = Option<TensorAt<'a>>> {
        self.list("inputs").map(TensorAt::read)
    }

    /// The places of its outputs; `None` for one that makes no sense.
    pub fn outputs(self) -> impl Iterator<Item = Option<PlaceFor<'a>>> {
        self.list("outputs").map(PlaceFor::read)
    }

    fn count(self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).unwrap_or_default()
    }

    fn list(self, key: &str) -> impl Iterator<Item = &'a Value> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}
