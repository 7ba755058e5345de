//! What is said on the channel for calls, where any thread of a model's process asks?

use std::fmt::{Display, Formatter};

use nerite_request::{Parameters, Status};
use serde_json::Value;

use super::answer::{Failure, Response};
use super::command::RequestRead;
use super::numbers;
use super::tensors::{At, List, PlaceFor, SegmentOffset, TensorAt, Text};
use crate::words::parameters_text;

/// A packet of the process's as the server reads it.
#[derive(Clone, Debug)]
pub struct CallSaid(Value);

/// What a process wants.
#[derive(Clone, Debug)]
pub enum Call<'a> {
    /// To send a response, or to say that none follows; answered with [`Places`] or [`Over`] if more may follow.
    Respond(Respond),
    /// A place for an output of an open request; answered with [`Place`] or [`NoPlace`].
    Place {
        /// The request's number.
        number: u64,
        /// The output's name.
        name: &'a str,
        /// The bytes that it takes.
        bytes: usize,
    },
    /// To have open requests run again ([`CallSaid::again`]); answered with [`Done`].
    Again,
    /// Memory for the inputs of a request to another model; answered with [`Place`] or [`NoPlace`].
    Space(usize),
    /// A request to another model; answered with [`Answered`], or [`Unknown`] if an input lies where the server does not find it.
    Infer(Asked<'a>),
    /// To load a model: its name, a configuration if one is given, and files that lie as inputs do. Answered with [`Done`] or [`NoPlace`].
    Load {
        /// Its name.
        model: &'a str,
        /// Its configuration in JSON, or nothing.
        config: &'a str,
        /// Paths, and where the files lie.
        files: Vec<(&'a str, SegmentOffset, usize)>,
    },
    /// To unload a model, and those that it is made of if that is wanted. Answered with [`Done`] or [`NoPlace`].
    Unload(&'a str, bool),
    /// Whether a version of a model is ready; answered with [`Done`].
    IsReady(&'a str, Option<i64>),
    /// To be asked whether the process's own model is ready, and the answer to the last time, if there was one; answered with [`Done`]
    /// when that is asked.
    Readiness(Option<Result<bool, &'a str>>),
}

/// A request to another model as the server reads it. What is not there is nothing, or 0.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a>(&'a Value);

impl<'a> Asked<'a> {
    /// The model's name.
    pub fn model(self) -> &'a str {
        self.0.get("model").and_then(Value::as_str).unwrap_or_default()
    }

    /// The version asked; `None` for the highest.
    pub fn version(self) -> Option<i64> {
        self.0.get("version").and_then(Value::as_i64).filter(|version| *version > 0)
    }

    /// Names of the outputs that are wanted; none for all.
    pub fn wanted(self) -> impl Iterator<Item = &'a str> {
        self.0.get("wanted").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether any number of responses is taken.
    pub fn is_decoupled(self) -> bool {
        self.flag("decoupled")
    }

    /// Whether the instance waits for the answer before it takes another batch.
    pub fn is_waited_for(self) -> bool {
        self.flag("waits")
    }

    /// The number of the request in whose trace it belongs; `None` for none.
    pub fn traced(self) -> Option<u64> {
        self.0.get("trace").and_then(Value::as_u64)
    }

    /// The rest of it.
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
    /// Whether none follows.
    pub is_last: bool,
}

/// The model has let go of a request, and of its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The request's number.
    pub number: u64,
}

impl CallSaid {
    /// From the packet's text.
    pub fn read(text: &[u8]) -> serde_json::Result<CallSaid> {
        serde_json::from_slice(text).map(CallSaid)
    }

    /// The number of the call, which its answer repeats.
    pub fn number(&self) -> u64 {
        self.0.get("call").and_then(Value::as_u64).unwrap_or_default()
    }

    /// What is wanted; `None` where it makes no sense, or nothing is.
    pub fn call(&self) -> Option<Call<'_>> {
        if let Some(number) = self.0.get("respond") {
            let response = self.0.get("response").cloned().map(Response::new);
            let is_last = self.0.get("final").and_then(Value::as_bool).unwrap_or(false);
            return Some(Call::Respond(Respond { number: number.as_u64()?, response, is_last }));
        }
        if self.0.get("again").is_some() {
            return Some(Call::Again);
        }
        if let Some(asked) = self.0.get("infer") {
            return Some(Call::Infer(Asked(asked)));
        }
        if let Some(bytes) = self.0.get("space") {
            return Some(Call::Space(bytes.as_u64()? as usize));
        }
        self.place().or_else(|| self.control())
    }

    fn place(&self) -> Option<Call<'_>> {
        let [number, name, bytes] = self.0.get("place")?.as_array()?.as_slice() else { return None };
        Some(Call::Place { number: number.as_u64()?, name: name.as_str()?, bytes: bytes.as_u64()? as usize })
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

    /// The request to another model of which a response was taken.
    pub fn taken(&self) -> Option<u64> {
        self.0.get("taken")?.as_u64()
    }

    /// The request to another model of which nothing is wanted any more.
    pub fn cancelled(&self) -> Option<u64> {
        self.0.get("cancel")?.as_u64()
    }

    /// The request that the model has let go of.
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

fn read_file(told: &Value) -> Option<(&str, SegmentOffset, usize)> {
    let [path, segment, offset, bytes] = told.as_array()?.as_slice() else { return None };
    let spot = SegmentOffset { segment: segment.as_u64()?, offset: offset.as_u64()? as usize };
    Some((path.as_str()?, spot, bytes.as_u64()? as usize))
}

/// The places of the next response's outputs. `O` gives them.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a, O> {
    /// Which call is answered.
    pub call: u64,
    /// The places.
    pub outputs: O,
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl<'p, O: Iterator<Item = PlaceFor<'p>> + Clone> Display for Places<'_, O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Places { call, outputs, map } = self;
        write!(f, r#"{{"call":{call},"outputs":{},"map":[{map}]}}"#, List(outputs.clone()))
    }
}

/// The request has ended: nobody takes further responses.
#[derive(Clone, Copy, Debug)]
pub struct Over(pub u64);

impl Display for Over {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"over":true}}"#, self.0)
    }
}

/// A place that was found.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Which call is answered.
    pub call: u64,
    /// Where it is.
    pub spot: SegmentOffset,
    /// Its bytes.
    pub capacity: usize,
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Place { call, spot, capacity, map } = self;
        write!(f, r#"{{"call":{call},"at":[{},{capacity}],"map":[{map}]}}"#, At(Some(*spot)))
    }
}

/// Why there is none, or why something else could not be done.
#[derive(Clone, Copy, Debug)]
pub struct NoPlace<'a> {
    /// Which call is answered.
    pub call: u64,
    /// Why.
    pub why: &'a str,
}

impl Display for NoPlace<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"error":{}}}"#, self.call, Text(self.why))
    }
}

/// A response to a request to another model, or its end.
#[derive(Clone, Debug)]
pub struct Answered<'a> {
    /// Which call is answered.
    pub call: u64,
    /// The response, if there is one.
    pub response: Option<Result<(&'a [TensorAt<'a>], &'a Parameters), &'a Status>>,
    /// Whether no other follows.
    pub is_last: bool,
    /// Memory that nobody else has: what lies there may be written to.
    pub own: &'a [u64],
    /// As in [`super::Execute`].
    pub map: &'a str,
}

impl Display for Answered<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Answered { call, response, is_last, own, map } = self;
        write!(f, r#"{{"call":{call},"final":{is_last}"#)?;
        match response {
            None => {}
            Some(Ok((outputs, parameters))) => {
                let parameters = parameters_text(parameters);
                write!(f, r#","response":{{"outputs":{},"parameters":{parameters}}}"#, List(outputs.iter()))?;
            }
            Some(Err(status)) => write!(f, r#","response":{{"error":{}}}"#, Failure(status))?,
        }
        write!(f, r#","own":{},"map":[{map}]}}"#, List(own.iter()))
    }
}

/// An input lies where the server does not find it: it is to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Unknown(pub u64);

impl Display for Unknown {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"unknown":true}}"#, self.0)
    }
}

/// Something was done, or holds.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Which call is answered.
    pub call: u64,
    /// Whether it holds.
    pub is: bool,
}

impl Display for Done {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"call":{},"done":{}}}"#, self.call, self.is)
    }
}
