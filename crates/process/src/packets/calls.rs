//! What is said on the channel for calls, where any thread of a model's process asks?

use std::fmt::{Display, Formatter, Result};

use serde_json::Value;

use super::answer::Response;
use super::numbers;
use super::tensors::{At, List, PlaceFor, SegmentOffset, Text};

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
        let [number, name, bytes] = self.0.get("place")?.as_array()?.as_slice() else { return None };
        Some(Call::Place { number: number.as_u64()?, name: name.as_str()?, bytes: bytes.as_u64()? as usize })
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
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Places { call, outputs, map } = self;
        write!(f, r#"{{"call":{call},"outputs":{},"map":[{map}]}}"#, List(outputs.clone()))
    }
}

/// The request has ended: nobody takes further responses.
#[derive(Clone, Copy, Debug)]
pub struct Over(pub u64);

impl Display for Over {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
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
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
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
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"call":{},"error":{}}}"#, self.call, Text(self.why))
    }
}
