//! Which packets are sent on the channel for calls, which any thread of a model's process uses?

use std::fmt::{Display, Formatter};

use nerite_memory::Reason;
use nerite_request::{Parameters, Status};
use serde_json::Value;

use super::answer::{Failure, Response, copied};
use super::command::RequestRead;
use super::numbers;
use super::tensors::{At, List, OutputMemory, SegmentOffset, TensorAt, Text};
use crate::words::parameters_text;

/// A packet of the process, as the server reads it.
#[derive(Clone, Debug)]
pub struct CallSaid(Value);

/// The kinds of calls.
#[derive(Clone, Debug)]
pub enum Call<'a> {
    /// Sends a response, or says that none follows. The answer is [`NextOutputMemory`] or [`Over`], unless it is the last one.
    Respond(Respond),
    /// Asks for memory for an output of an open request. The answer is [`MemoryFound`] or [`CallFailed`].
    OutputMemory {
        /// The request's number.
        number: u64,
        /// The output's name.
        name: &'a str,
        /// Its size in bytes.
        bytes: usize,
    },
    /// Schedules open requests again ([`CallSaid::again`]). The answer is [`Done`].
    Again,
    /// Asks for memory for the inputs of a nested request. The answer is [`MemoryFound`] or [`CallFailed`].
    Space(usize),
    /// Sends a nested request. The answer is [`Answered`], or [`Unknown`] if an input is in memory that the server does not know.
    Infer(InferCallRead<'a>),
    /// Loads a model. Files are in shared memory, like inputs. The answer is [`Done`] or [`CallFailed`].
    Load {
        /// Its name.
        model: &'a str,
        /// Its configuration in JSON. Empty if there is none.
        config: &'a str,
        /// The paths of the files, and the memory in which they lie.
        files: Vec<(&'a str, SegmentOffset, usize)>,
    },
    /// Unloads a model and, if the flag is set, those that it is made of. The answer is [`Done`] or [`CallFailed`].
    Unload(&'a str, bool),
    /// Asks for the configuration of a version of a model. The answer is [`super::ConfigAnswer`].
    Config(&'a str, Option<i64>),
    /// Asks whether a version of a model is ready. The answer is [`Done`].
    IsReady(&'a str, Option<i64>),
    /// Waits for a readiness check of the process's own model. It has the answer to the last check, if there was one.
    /// The answer is [`Done`], at the next check.
    Readiness(Option<Result<bool, &'a str>>),
}

/// A nested request, as the server reads it. Missing fields are empty or 0.
#[derive(Clone, Copy, Debug)]
pub struct InferCallRead<'a>(&'a Value);

impl<'a> InferCallRead<'a> {
    /// The model's name.
    pub fn model(self) -> &'a str {
        self.0.get("model").and_then(Value::as_str).unwrap_or_default()
    }

    /// The requested version. `None` for the highest.
    pub fn version(self) -> Option<i64> {
        self.0.get("version").and_then(Value::as_i64).filter(|version| *version > 0)
    }

    /// Names of the requested outputs. None means all.
    pub fn wanted(self) -> impl Iterator<Item = &'a str> {
        self.0.get("wanted").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether any number of responses is accepted.
    pub fn is_decoupled(self) -> bool {
        self.flag("decoupled")
    }

    /// Whether the process gets failures unchanged, and not as Python models know them.
    pub fn is_plain(self) -> bool {
        self.flag("plain")
    }

    /// Its priority. 0 for the model's default.
    pub fn priority(self) -> u64 {
        self.0.get("priority").and_then(Value::as_u64).unwrap_or_default()
    }

    /// Whether the instance waits for the answer before it takes another batch.
    pub fn is_waited_for(self) -> bool {
        self.flag("waits")
    }

    /// The number of the request to whose trace it belongs. `None` for none.
    pub fn traced(self) -> Option<u64> {
        self.0.get("trace").and_then(Value::as_u64)
    }

    /// The other fields.
    pub fn request(self) -> RequestRead<'a> {
        RequestRead::new(self.0)
    }

    fn flag(self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// A response to an open request.
#[derive(Clone, Debug)]
pub struct Respond {
    /// The request's number.
    pub number: u64,
    /// The response, if there is one.
    pub response: Option<Response>,
    /// Whether it is the last one.
    pub is_last: bool,
}

/// The model has dropped a request and its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The request's number.
    pub number: u64,
}

impl CallSaid {
    /// Parses a packet.
    pub fn read(text: &[u8]) -> serde_json::Result<CallSaid> {
        serde_json::from_slice(text).map(CallSaid)
    }

    /// The number of the call in a packet that cannot be parsed. Each call begins with it.
    pub fn number_of_unreadable(text: &[u8]) -> Option<u64> {
        let rest = text.strip_prefix(br#"{"call":"#)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        // A number that was cut off would be a different number.
        let is_whole = rest.get(digits).is_some_and(|byte| matches!(byte, b',' | b'}'));
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok().filter(|_| is_whole)
    }

    /// The number of the call, if the packet has one. Such a packet gets an answer.
    pub fn answered_as(&self) -> Option<u64> {
        self.0.get("call")?.as_u64()
    }

    /// The number of the call, which its answer repeats.
    pub fn number(&self) -> u64 {
        self.0.get("call").and_then(Value::as_u64).unwrap_or_default()
    }

    /// The call. `None` if it is invalid, or if the packet has no call.
    pub fn call(&self) -> Option<Call<'_>> {
        if let Some(number) = self.0.get("respond") {
            let response = self.0.get("response").cloned().map(Response::new);
            let is_last = self.0.get("final").and_then(Value::as_bool).unwrap_or(false);
            return Some(Call::Respond(Respond { number: number.as_u64()?, response, is_last }));
        }
        if self.0.get("again").is_some() {
            return Some(Call::Again);
        }
        if let Some(call_read) = self.0.get("infer") {
            return Some(Call::Infer(InferCallRead(call_read)));
        }
        if let Some(bytes) = self.0.get("space") {
            return Some(Call::Space(bytes.as_u64()? as usize));
        }
        self.output_memory().or_else(|| self.control())
    }

    fn output_memory(&self) -> Option<Call<'_>> {
        let [number, name, bytes] = self.0.get("place")?.as_array()?.as_slice() else { return None };
        Some(Call::OutputMemory { number: number.as_u64()?, name: name.as_str()?, bytes: bytes.as_u64()? as usize })
    }

    fn control(&self) -> Option<Call<'_>> {
        if let Some(answer) = self.0.get("readiness") {
            let text = || Err(answer.as_str().unwrap_or("it makes no sense"));
            return Some(Call::Readiness((!answer.is_null()).then(|| answer.as_bool().map_or_else(text, Ok))));
        }
        let pair = |key: &str| match self.0.get(key)?.as_array()?.as_slice() {
            [model, more] => Some((model.as_str()?, more)),
            _ => None,
        };
        if let Some((model, version)) = pair("is_ready") {
            return Some(Call::IsReady(model, version.as_i64()));
        }
        if let Some((model, version)) = pair("config") {
            return Some(Call::Config(model, version.as_i64().filter(|version| *version > 0)));
        }
        if let Some((model, dependents)) = pair("unload") {
            return Some(Call::Unload(model, dependents.as_bool()?));
        }
        let [model, config, files] = self.0.get("load")?.as_array()?.as_slice() else { return None };
        let files: Option<Vec<_>> = files.as_array()?.iter().map(read_file).collect();
        Some(Call::Load { model: model.as_str()?, config: config.as_str()?, files: files? })
    }

    /// The numbers of open requests that are to run again.
    pub fn again(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("again"))
    }

    /// The nested request of which a response was read.
    pub fn taken(&self) -> Option<u64> {
        self.0.get("taken")?.as_u64()
    }

    /// The nested request that the instance waits for from now on, because a batch that began before it has not ended.
    pub fn waited_for(&self) -> Option<u64> {
        self.0.get("waits")?.as_u64()
    }

    /// The nested request that is cancelled.
    pub fn cancelled(&self) -> Option<u64> {
        self.0.get("cancel")?.as_u64()
    }

    /// The request that the model has dropped.
    pub fn release(&self) -> Option<Release> {
        Some(Release { number: self.0.get("release")?.as_u64()? })
    }

    /// As [`super::Said::lost`].
    pub fn lost(&self) -> impl Iterator<Item = (u64, usize)> {
        let lost = self.0.get("lost").and_then(Value::as_array).into_iter().flatten();
        lost.filter_map(|pair| {
            let [segment, at] = pair.as_array()?.as_slice() else { return None };
            Some((segment.as_u64()?, at.as_u64()? as usize))
        })
    }

    /// As [`super::Said::copied`].
    pub fn copied(&self) -> impl Iterator<Item = (Reason, u64)> {
        copied(&self.0)
    }

    /// As [`super::Said::held`].
    pub fn held(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("held"))
    }

    /// As [`super::Said::let_go`].
    pub fn let_go(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("let_go"))
    }

    /// As [`super::Said::unmapped`].
    pub fn unmapped(&self) -> impl Iterator<Item = u64> {
        numbers(self.0.get("unmapped"))
    }
}

fn read_file(value: &Value) -> Option<(&str, SegmentOffset, usize)> {
    let [path, segment, offset, bytes] = value.as_array()?.as_slice() else { return None };
    let location = SegmentOffset { segment: segment.as_u64()?, offset: offset.as_u64()? as usize };
    Some((path.as_str()?, location, bytes.as_u64()? as usize))
}

/// The memory for the next response's outputs. `O` iterates over the outputs.
#[derive(Clone, Copy, Debug)]
pub struct NextOutputMemory<'a, O> {
    /// The call that is answered.
    pub call: u64,
    /// The outputs with their memory.
    pub outputs: O,
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl<'p, O: Iterator<Item = OutputMemory<'p>> + Clone> Display for NextOutputMemory<'_, O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let NextOutputMemory { call, outputs, map } = self;
        write!(f, r#"{{"call":{call},"outputs":{},"map":[{map}]}}"#, List(outputs.clone()))
    }
}

/// The request has ended. Further responses are not accepted.
#[derive(Clone, Copy, Debug)]
pub struct Over(pub u64);

impl Display for Over {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"over":true}}"#, self.0)
    }
}

/// Memory that was found.
#[derive(Clone, Copy, Debug)]
pub struct MemoryFound<'a> {
    /// The call that is answered.
    pub call: u64,
    /// Where it lies.
    pub location: SegmentOffset,
    /// Its size in bytes.
    pub capacity: usize,
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl Display for MemoryFound<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let MemoryFound { call, location, capacity, map } = self;
        write!(f, r#"{{"call":{call},"at":[{},{capacity}],"map":[{map}]}}"#, At(Some(*location)))
    }
}

/// The reason why there is no memory, or why another call failed.
#[derive(Clone, Copy, Debug)]
pub struct CallFailed<'a> {
    /// The call that is answered.
    pub call: u64,
    /// The reason.
    pub why: &'a str,
}

impl Display for CallFailed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"error":{}}}"#, self.call, Text(self.why))
    }
}

/// A response of a nested request, or its end.
#[derive(Clone, Debug)]
pub struct Answered<'a> {
    /// The call that is answered.
    pub call: u64,
    /// The response, if there is one.
    pub response: Option<Result<(&'a [TensorAt<'a>], &'a Parameters), &'a Status>>,
    /// Whether it is the last one.
    pub is_last: bool,
    /// The model that made it, with its version, for a process that needs them.
    pub from: Option<(&'a str, &'a str)>,
    /// Memory that no other request uses, so the process may write to it.
    pub own: &'a [u64],
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl Display for Answered<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Answered { call, response, is_last, from, own, map } = self;
        write!(f, r#"{{"call":{call},"final":{is_last}"#)?;
        match response {
            None => {}
            Some(Ok((outputs, parameters))) => {
                let parameters = parameters_text(parameters);
                write!(f, r#","response":{{"outputs":{},"parameters":{parameters}"#, List(outputs.iter()))?;
                if let Some((model, version)) = from {
                    write!(f, r#","model":{},"version":{}"#, Text(model), Text(version))?;
                }
                f.write_str("}")?;
            }
            Some(Err(status)) => write!(f, r#","response":{{"error":{}}}"#, Failure(status))?,
        }
        write!(f, r#","own":{},"map":[{map}]}}"#, List(own.iter()))
    }
}

/// An input is in memory that the server does not know, so the process must copy it.
#[derive(Clone, Copy, Debug)]
pub struct Unknown(pub u64);

impl Display for Unknown {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"unknown":true}}"#, self.0)
    }
}

/// A call was carried out, or has a boolean as its answer.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The call that is answered.
    pub call: u64,
    /// The boolean.
    pub is: bool,
}

impl Display for Done {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"done":{}}}"#, self.call, self.is)
    }
}
