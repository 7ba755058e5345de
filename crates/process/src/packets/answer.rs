//! Which packets does a model's process send on the channel?

use std::fmt::{Display, Formatter, Result};

use nerite_memory::Reason;
use nerite_request::{Parameters, Status};
use serde_json::Value;

use super::numbers;
use super::packed::{OneResponse, PackedOutputs, PackedResponses};
use super::ready::Ready;
use super::tensors::{List, TensorAt, Text};
use crate::words::{code_word, parameters_of, parameters_text, status_of};

/// A packet of the process, as the server reads it.
#[derive(Clone, Debug)]
pub struct Said(Value, Option<PackedResponses>);

impl Said {
    /// Parses a packet, which is JSON or packed.
    pub fn read(packet: &[u8]) -> serde_json::Result<Said> {
        let Some((responses, rest)) = PackedResponses::read(packet) else {
            return Ok(Said(serde_json::from_slice(packet)?, None));
        };
        let value = if rest.is_empty() { Value::Null } else { serde_json::from_slice(rest)? };
        Ok(Said(value, Some(responses)))
    }

    /// The memory that it asks for. The inner `None` means that the question is invalid.
    pub fn need(&self) -> Option<Option<Need<'_>>> {
        self.0.get("need").map(Need::read)
    }

    /// Why a command failed as a whole: a text, or a code and a text. The text is empty if it is invalid.
    pub fn failure(&self) -> Option<Status> {
        self.0.get("error").map(status_of)
    }

    /// Why a command failed as a whole. The inner `None` means that the reason is no text.
    pub fn error(&self) -> Option<Option<&str>> {
        self.0.get("error").map(Value::as_str)
    }

    /// The configuration in the answer to `complete`, as JSON.
    pub fn config(&self) -> String {
        self.0.get("config").unwrap_or(&Value::Null).to_string()
    }

    /// The answer to `initialize`.
    pub fn ready(&self) -> Ready<'_> {
        Ready::read(self.0.get("ready").unwrap_or(&Value::Null))
    }

    /// The answer to [`super::IS_READY`].
    pub fn is_ready(&self) -> bool {
        self.0.get("is_ready").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether a command without a result was carried out.
    pub fn is_done(&self) -> bool {
        self.0.get("done").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The process ID in the answer to [`super::FORK`].
    pub fn forked(&self) -> Option<u32> {
        u32::try_from(self.0.get("forked")?.as_u64()?).ok()
    }

    /// The wait status of the process that was to be reaped, if it has ended.
    pub fn reaped(&self) -> Option<i32> {
        i32::try_from(self.0.get("reaped")?.as_i64()?).ok()
    }

    /// Takes the responses in the answer to `execute`, in the order of the requests.
    pub fn take_responses(&mut self) -> Option<Responses> {
        if let Some(packed) = self.1.take() {
            return Some(Responses(Written::Packed(packed)));
        }
        match self.0.get_mut("responses").map(Value::take) {
            Some(Value::Array(responses)) => Some(Responses(Written::Json(responses.into_iter()))),
            _ => None,
        }
    }

    /// Memory that was missing when it was accessed: segments, and offsets in them.
    pub fn lost(&self) -> impl Iterator<Item = (u64, usize)> {
        self.list("lost").filter_map(|pair| {
            let [segment, at] = pair.as_array()?.as_slice() else { return None };
            Some((segment.as_u64()?, at.as_u64()? as usize))
        })
    }

    /// The executions of a batch, if the process reports them.
    pub fn executions(&self) -> Option<impl Iterator<Item = Execution>> {
        Some(self.0.get("executions")?.as_array()?.iter().filter_map(Execution::read))
    }

    /// Copied bytes, by reason.
    pub fn copied(&self) -> impl Iterator<Item = (Reason, u64)> {
        copied(&self.0)
    }

    /// Memory of the server that the model's arrays use from now on.
    pub fn held(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("held"))
    }

    /// Memory that the model's arrays do not use any more.
    pub fn let_go(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("let_go"))
    }

    /// Memory that could not be mapped.
    pub fn unmapped(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("unmapped"))
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &Value> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten()
    }
}

/// Copied bytes in a packet, by reason.
pub(super) fn copied(value: &Value) -> impl Iterator<Item = (Reason, u64)> {
    let copied = value.get("copied").and_then(Value::as_object).into_iter().flatten();
    copied
        .filter_map(|(name, bytes)| Some((*Reason::ALL.iter().find(|reason| reason.name() == name)?, bytes.as_u64()?)))
}

/// Whether a model reports that it is ready.
#[derive(Clone, Copy, Debug)]
pub struct IsReady(pub bool);

impl Display for IsReady {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"is_ready":{}}}"#, self.0)
    }
}

/// The question for memory for an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need<'a> {
    /// The request's index in its batch.
    pub index: usize,
    /// The output's name.
    pub name: &'a str,
    /// Its size in bytes.
    pub bytes: usize,
}

impl<'a> Need<'a> {
    fn read(value: &'a Value) -> Option<Need<'a>> {
        let [index, name, bytes] = value.as_array()?.as_slice() else { return None };
        Some(Need { index: index.as_u64()? as usize, name: name.as_str()?, bytes: bytes.as_u64()? as usize })
    }
}

impl Display for Need<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"need":[{},{},{}]}}"#, self.index, Text(self.name), self.bytes)
    }
}

/// The responses of a batch. Each is parsed when it is taken, because a process may send more of them than there are requests.
#[derive(Clone, Debug)]
pub struct Responses(Written);

#[derive(Clone, Debug)]
enum Written {
    Json(std::vec::IntoIter<Value>),
    Packed(PackedResponses),
}

impl Iterator for Responses {
    type Item = Response;

    fn next(&mut self) -> Option<Response> {
        match &mut self.0 {
            Written::Json(responses) => responses.next().map(Response::new),
            Written::Packed(responses) => match responses.next()? {
                OneResponse::Outputs(outputs) => Some(Response { value: Value::Null, outputs }),
                // Invalid JSON counts as a missing response.
                OneResponse::Text(text) => serde_json::from_slice(&text).ok().map(Response::new),
            },
        }
    }
}

/// The response of one request, as the server reads it.
#[derive(Clone, Debug)]
pub struct Response {
    value: Value,
    /// The outputs, if they are packed.
    outputs: Vec<u8>,
}

impl Response {
    pub(crate) fn new(value: Value) -> Response {
        Response { value, outputs: Vec::new() }
    }

    /// An error that the model set.
    pub fn error(&self) -> Option<Status> {
        self.value.get("error").map(status_of)
    }

    /// A failure of the runtime, and not an error that the model set.
    pub fn failed(&self) -> Option<Status> {
        self.value.get("failed").map(status_of)
    }

    /// Whether the request is to run again. Then there is no response.
    pub fn is_again(&self) -> bool {
        self.value.get("again").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether it comes later, on the channel for calls.
    pub fn is_later(&self) -> bool {
        self.value.get("later").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The states that the model of a failed request kept for the next one of its sequence. `None` for an invalid one.
    pub fn states(&self) -> impl Iterator<Item = Option<TensorAt<'_>>> {
        self.value.get("states").and_then(Value::as_array).into_iter().flatten().map(TensorAt::read)
    }

    /// Its parameters.
    pub fn parameters(&self) -> Option<Parameters> {
        self.value.get("parameters").and_then(Value::as_object).map(parameters_of)
    }

    /// Its outputs. `None` for an invalid one.
    pub fn outputs(&self) -> impl Iterator<Item = Option<TensorAt<'_>>> {
        let outputs = self.value.get("outputs").and_then(Value::as_array).into_iter().flatten();
        outputs.map(TensorAt::read).chain(PackedOutputs(&self.outputs))
    }
}

/// One execution, as the process reports it. `[rows, input_ns, infer_ns, output_ns]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Rows of all its requests.
    pub rows: u64,
    /// The time for preparing the inputs.
    pub input_ns: u64,
    /// The time of the inference.
    pub infer_ns: u64,
    /// The time for writing the outputs.
    pub output_ns: u64,
}

impl Execution {
    fn read(value: &Value) -> Option<Execution> {
        let [rows, input_ns, infer_ns, output_ns] = value.as_array()?.as_slice() else { return None };
        let (rows, input_ns) = (rows.as_u64()?, input_ns.as_u64()?);
        Some(Execution { rows, input_ns, infer_ns: infer_ns.as_u64()?, output_ns: output_ns.as_u64()? })
    }
}

impl Display for Execution {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Execution { rows, input_ns, infer_ns, output_ns } = self;
        write!(f, "[{rows},{input_ns},{infer_ns},{output_ns}]")
    }
}

/// The response of one request, as the process writes it.
#[derive(Clone, Debug)]
pub enum WrittenResponse<'a> {
    /// Its outputs and parameters.
    Outputs(Vec<TensorAt<'a, &'a [i64]>>, &'a Parameters),
    /// [`Response::error`].
    Error(Status),
    /// [`Response::failed`].
    Failed(Status),
    /// The same, and the states that the model kept nevertheless: [`Response::states`].
    FailedWith(Status, Vec<TensorAt<'a, &'a [i64]>>),
    /// [`Response::is_later`].
    Later,
}

impl Display for WrittenResponse<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            WrittenResponse::Outputs(outputs, parameters) => {
                write!(f, r#"{{"outputs":{},"parameters":{}}}"#, List(outputs.iter()), parameters_text(parameters))
            }
            WrittenResponse::Error(status) => write!(f, r#"{{"error":{}}}"#, Failure(status)),
            WrittenResponse::Failed(status) => write!(f, r#"{{"failed":{}}}"#, Failure(status)),
            WrittenResponse::FailedWith(status, states) => {
                write!(f, r#"{{"failed":{},"states":{}}}"#, Failure(status), List(states.iter()))
            }
            WrittenResponse::Later => f.write_str(r#"{"later":true}"#),
        }
    }
}

/// A code and a text.
pub(super) struct Failure<'a>(pub(super) &'a Status);

impl Display for Failure<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"["{}",{}]"#, code_word(self.0.code), Text(&self.0.message))
    }
}

/// An answer to a command, as the process writes it. Empty parts are left out.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The failure of the whole command: [`Said::error`], as a text only.
    pub error: Option<&'a str>,
    /// The same failure, with its code.
    pub failure: Option<&'a Status>,
    /// The answer to `complete`.
    pub config: Option<&'a Value>,
    /// The answer to `execute`.
    pub responses: Option<&'a [WrittenResponse<'a>]>,
    /// [`Said::lost`]
    pub lost: Option<&'a [[u64; 2]]>,
    /// [`Said::executions`]
    pub executions: Option<&'a [Execution]>,
    /// [`Said::copied`]
    pub copied: &'a [(Reason, u64)],
    /// [`Said::held`]
    pub held: &'a [u64],
    /// [`Said::let_go`]
    pub let_go: &'a [u64],
    /// [`Said::unmapped`]
    pub unmapped: &'a [u64],
}

impl Display for Answer<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut parts = Parts { f, any: false };
        parts.add("error", self.error.map(Text))?;
        parts.add("error", self.failure.map(Failure))?;
        parts.add("config", self.config)?;
        parts.add("responses", self.responses.map(|all| List(all.iter())))?;
        let pair = |[segment, at]: &[u64; 2]| format!("[{segment},{at}]");
        parts.add("lost", self.lost.map(|lost| List(lost.iter().map(pair))))?;
        parts.add("executions", self.executions.map(|all| List(all.iter())))?;
        parts.add("copied", (!self.copied.is_empty()).then_some(Copied(self.copied)))?;
        for (key, numbers) in [("held", self.held), ("let_go", self.let_go), ("unmapped", self.unmapped)] {
            parts.add(key, (!numbers.is_empty()).then(|| List(numbers.iter())))?;
        }
        parts.end()
    }
}

/// The parts of an object, with commas between them.
struct Parts<'f, 'b> {
    f: &'f mut Formatter<'b>,
    any: bool,
}

impl Parts<'_, '_> {
    fn add(&mut self, key: &str, value: Option<impl Display>) -> Result {
        let Some(value) = value else { return Ok(()) };
        let before = if std::mem::replace(&mut self.any, true) { ',' } else { '{' };
        write!(self.f, r#"{before}"{key}":{value}"#)
    }

    fn end(self) -> Result {
        self.f.write_str(if self.any { "}" } else { "{}" })
    }
}

/// Bytes by reason.
pub(super) struct Copied<'a>(pub(super) &'a [(Reason, u64)]);

impl Display for Copied<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut parts = Parts { f, any: false };
        for (reason, bytes) in self.0 {
            parts.add(reason.name(), Some(bytes))?;
        }
        parts.end()
    }
}
