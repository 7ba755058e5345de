//! How much may one request have?
//!
//! The readers of all three front ends check these limits while they read, before they allocate anything large. The
//! numbers are far above what an honest client sends. A model whose configuration has more inputs or outputs raises its
//! own limit.

use std::time::Duration;

use crate::Status;

/// Bytes of one tensor that a trace keeps. A front thread copies them in some 10 µs.
pub const TRACED_TENSOR_BYTES_MAX: usize = 64 << 10;
/// Bytes that one trace may hold, including its tensors.
pub const TRACE_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(TRACED_TENSOR_BYTES_MAX < TRACE_BYTES_MAX);

/// Inputs of one request, and outputs, unless the model has more.
pub const TENSORS_MAX: usize = 4096;
/// Parameters of one request.
pub const PARAMETERS_MAX: usize = 4096;
/// Parameters of one input or output; four have a meaning.
pub const TENSOR_PARAMETERS_MAX: usize = 256;
/// Bytes of the message of a call that is neither an inference nor a load: settings, registrations, the index. It is read on a front thread.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Dimensions of one shape; runtimes take far fewer.
pub const DIMS_MAX: usize = 4096;
/// The product of the dimensions other than 0 in a shape without elements. In other shapes the bytes of the tensor bound the dimensions. Runtimes
/// multiply these dimensions too, with the bytes of an element and the rows of a batch, and fail if the product does not fit into 64 bits.
pub const EMPTY_DIMS_PRODUCT_MAX: u64 = 1 << 40;
/// Strings in all BYTES inputs of one request, unless the model has more.
pub const STRINGS_MAX: usize = 16 << 20;
/// Bytes that a string takes in a runtime beside its own bytes. This includes the bytes of a short string.
pub const STRING_BYTES: usize = 64;
/// Bytes of strings that are not charged to the client, like other small parts of a request.
pub const STRINGS_UNCHARGED_BYTES: usize = 256 << 10;
/// Bytes of a name of a model, a tensor, a region or a request. Names are repeated in answers and errors.
pub const NAME_BYTES_MAX: usize = 1 << 20;
/// Bytes of a list of names in an error; the names beyond are counted.
pub const LISTED_BYTES_MAX: usize = 64 << 10;
/// Responses to one request that may wait for its client before its model has to wait as well.
pub const WINDOW_RESPONSES_MAX: usize = 64;
/// Bytes of such responses. One response may be larger.
pub const WINDOW_BYTES_MAX: usize = 1 << 20;
/// Bytes of such responses for a model that cannot wait, because others would wait for it.
pub const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Bytes that each such response counts in addition to its own.
pub const BACKLOG_RESPONSE_BYTES: usize = 1 << 10;
/// The most time that one run may wait for clients that do not read, in all its waits together. No client may delay others by more than 100 ms.
pub const CLIENT_WAITS_MAX: Duration = Duration::from_millis(50);
const _: () = assert!(BACKLOG_BYTES_MAX > WINDOW_BYTES_MAX + WINDOW_RESPONSES_MAX * BACKLOG_RESPONSE_BYTES);
/// Files of one load request.
pub const LOAD_FILES_MAX: usize = 10_000;
/// Bytes of a load request that may bring files; over HTTP they are in base64.
pub const LOAD_BYTES_MAX: u64 = 4 << 30;
/// Bytes of a load request without files: enough for a configuration in which each character is escaped twice.
pub const LOAD_CONFIG_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a configuration that a load request brings, as JSON text. It is kept as long as the model, and each request for the
/// model's configuration writes it again.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
/// The smallest output in bytes that stays in memory of a model's process for the model that reads it next. A smaller one is
/// copied, because it would hold whole pages and a descriptor.
pub const SHARED_BYTES_MIN: usize = 16 << 10;
/// Work on at most this many bytes of a request is done on the thread that serves the connection, because it takes at most a few milliseconds.
pub const INLINE_WORK_BYTES_MAX: usize = 256 << 10;
/// How many bytes can be copied in the time in which one byte is read or written as text.
pub const COPIED_BYTES: usize = 16;

const _: () = assert!(TENSOR_PARAMETERS_MAX <= PARAMETERS_MAX);
const _: () = assert!(LISTED_BYTES_MAX < NAME_BYTES_MAX);
const _: () = assert!(STRINGS_UNCHARGED_BYTES < STRINGS_MAX * STRING_BYTES);

/// How many inputs and outputs a request may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorsMax {
    /// Inputs.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
}

impl Default for TensorsMax {
    fn default() -> TensorsMax {
        TensorsMax { inputs: TENSORS_MAX, outputs: TENSORS_MAX }
    }
}

impl TensorsMax {
    /// The limits for a model that has this many inputs and outputs.
    pub fn of_model(inputs: usize, outputs: usize) -> TensorsMax {
        TensorsMax { inputs: inputs.max(TENSORS_MAX), outputs: outputs.max(TENSORS_MAX) }
    }
}

/// An error: the request has too many of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request has at most {max} {what}, got {got}; {}", what.cure())]
pub struct TooMany {
    /// The kind of items.
    pub what: Counted,
    /// How many it has.
    pub got: usize,
    /// How many it may have.
    pub max: usize,
}

/// What is counted in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Counted {
    Inputs,
    Outputs,
    RawContents,
    Parameters,
    TensorParameters,
    Dims,
    Members,
    LoadParameters,
    Strings,
}

impl Counted {
    fn cure(self) -> &'static str {
        match self {
            Counted::Inputs | Counted::RawContents => "send each input that the model's configuration names once",
            Counted::Outputs => "ask for each output that the model's configuration names once",
            Counted::Parameters | Counted::TensorParameters => "send large data as an input",
            Counted::Dims => "send the shape that the model's configuration describes",
            Counted::Members => "send many values as one array",
            Counted::LoadParameters => "put the model into the repository",
            Counted::Strings => "send fewer strings at once, or longer ones",
        }
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Counted::Inputs => "inputs",
            Counted::Outputs => "outputs",
            Counted::RawContents => "raw input contents",
            Counted::Parameters => "parameters",
            Counted::TensorParameters => "parameters of one tensor",
            Counted::Dims => "dimensions in one shape",
            Counted::Members => "members",
            Counted::LoadParameters => "load parameters",
            Counted::Strings => "strings",
        })
    }
}

/// Refuses more than `max`.
pub fn check_count(what: Counted, got: usize, max: usize) -> Result<(), TooMany> {
    if got <= max { Ok(()) } else { Err(TooMany { what, got, max }) }
}

impl From<TooMany> for Status {
    fn from(refused: TooMany) -> Status {
        Status::invalid(refused.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(what: Counted, got: usize, max: usize, refusal: Option<&str>) {
        let found = check_count(what, got, max).map_err(|refused| Status::from(refused).message);
        assert_eq!(found.err().as_deref(), refusal);
    }

    #[test]
    fn a_refusal_names_both_numbers_and_the_cure() {
        check(Counted::Inputs, 4096, 4096, None);
        let text =
            "a request has at most 4096 inputs, got 60000; send each input that the model's configuration names once";
        check(Counted::Inputs, 60_000, 4096, Some(text));
        let text = "a request has at most 256 parameters of one tensor, got 257; send large data as an input";
        check(Counted::TensorParameters, 257, 256, Some(text));
    }

    #[test]
    fn a_model_with_more_tensors_raises_its_limit() {
        assert_eq!(TensorsMax::of_model(2, 1), TensorsMax::default());
        assert_eq!(TensorsMax::of_model(5000, 9), TensorsMax { inputs: 5000, outputs: TENSORS_MAX });
    }
}
