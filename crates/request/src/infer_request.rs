//! What does a client's request contain before it is checked?

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::LocalKey;

use nerite_memory::Buffer;
use nerite_tensor::{DataType, Name, Shape};
use smallvec::SmallVec;

use crate::limits::INLINE_WORK_BYTES_MAX;
use crate::recycled::{FreeList, clear_list};
use crate::{Parameters, Recycle, RegionRef, RequestTrace, SessionRef};

thread_local! {
    static FREE: FreeList<InferRequest> = const { RefCell::new(Vec::new()) };
}

/// An inference request as `wire` read it. Its syntax was checked, but its names were not.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// Name of the model.
    pub model: Name,
    /// Version as the client wrote it; empty for the highest that is ready.
    pub version: Name,
    /// The client's own name for the request; may be empty.
    pub id: Name,
    /// Priority, 0 for the model's default.
    pub priority: u64,
    /// Time in the queue after which the client no longer wants an answer, in µs; 0 for the model's default.
    pub timeout_us: u64,
    /// The sequence that the request belongs to.
    pub sequence: Sequence,
    /// Parameters for the model: everything that is not one of the fields here.
    pub parameters: Parameters,
    /// Input tensors in the client's order.
    pub inputs: InferInputs,
    /// The whole body of a raw binary HTTP request. The model's configuration names its one input, and `inputs` is empty. In a box, because it is
    /// rare.
    pub raw_input: Option<Box<Buffer>>,
    /// The outputs wanted; empty for all.
    pub outputs: RequestedOutputs,
    /// Whether a client of a stream wants a response for an end without tensors.
    pub empty_final: bool,
    /// The trace of the request, if it has one.
    pub trace: Option<Arc<RequestTrace>>,
}

impl InferRequest {
    /// Bytes of tensors that came with the request.
    pub fn inline_bytes(&self) -> usize {
        let inputs = self.inputs.iter().map(|input| match &input.source {
            Source::Inline(buffer) => buffer.len(),
            Source::Region(_) => 0,
        });
        inputs.sum::<usize>() + self.raw_input.as_ref().map_or(0, |body| body.len())
    }

    /// Whether the thread that serves the connection may check this request against its model. The check reads the lengths of BYTES elements, so it is quick
    /// if these inputs are small.
    pub fn is_light(&self) -> bool {
        let raw = self.raw_input.as_ref().map_or(0, |body| body.len());
        let strings = self.inputs.iter().filter(|input| input.datatype == DataType::Bytes);
        let strings = strings.fold(0u64, |all, input| all.saturating_add(input.source.byte_size()));
        strings.saturating_add(raw as u64) <= INLINE_WORK_BYTES_MAX as u64
    }

    /// Whether the request names memory: regions or leases for its tensors, or sessions in whose leases outputs are placed.
    pub fn names_memory(&self) -> bool {
        self.inputs.iter().any(|input| input.source.region().is_some())
            || self.outputs.iter().any(|output| output.region.is_some() || output.session.is_some())
    }
}

impl Recycle for InferRequest {
    fn clear(&mut self) {
        let InferRequest {
            model,
            version,
            id,
            priority,
            timeout_us,
            sequence,
            parameters,
            inputs,
            raw_input,
            outputs,
            empty_final,
            trace,
        } = self;
        for name in [model, version, id] {
            *name = Name::default();
        }
        (*priority, *timeout_us, *empty_final) = (0, 0, false);
        *sequence = Sequence::default();
        *parameters = Parameters::new();
        clear_list(inputs);
        clear_list(outputs);
        (*raw_input, *trace) = (None, None);
    }

    fn free_list() -> &'static LocalKey<FreeList<InferRequest>> {
        &FREE
    }
}

impl Source {
    /// The region that it names; `None` for bytes in the message.
    pub fn region(&self) -> Option<&RegionRef> {
        match self {
            Source::Inline(_) => None,
            Source::Region(region) => Some(region),
        }
    }

    /// Bytes that the input has, or claims to have.
    pub fn byte_size(&self) -> u64 {
        match self {
            Source::Inline(data) => data.len() as u64,
            Source::Region(region) => region.byte_size,
        }
    }
}

/// The inputs of a request. A list of one or two needs no allocation.
pub type InferInputs = SmallVec<[InferInput; 2]>;

/// One input tensor.
#[derive(Clone, Debug)]
pub struct InferInput {
    /// The model's name for it.
    pub name: Name,
    /// Datatype the client claims.
    pub datatype: DataType,
    /// Shape the client claims.
    pub shape: Shape,
    /// Where its bytes are.
    pub source: Source,
}

/// Where an input's bytes are.
#[derive(Clone, Debug)]
pub enum Source {
    /// In the message.
    Inline(Buffer),
    /// In shared memory.
    Region(RegionRef),
}

/// The outputs that a client asks for. A list of one or two needs no allocation.
pub type RequestedOutputs = SmallVec<[InferRequestedOutput; 2]>;

/// One output wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferRequestedOutput {
    /// The model's name for it.
    pub name: Name,
    /// The shared memory for it; `None` to send it inline.
    pub region: Option<RegionRef>,
    /// The session whose quota pays for memory that the server chooses; `region` is `None` then.
    pub session: Option<SessionRef>,
    /// How many of the best classes to send in place of the tensor; 0 for the tensor itself.
    pub classes: u64,
}

/// The sequence a request belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Its correlation id.
    pub id: SequenceId,
    /// Whether the request is the first of it.
    pub start: bool,
    /// Whether the request is the last of it.
    pub end: bool,
}

/// A correlation id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SequenceId {
    /// No sequence (0 and the empty string mean the same).
    #[default]
    None,
    /// A number above 0.
    Number(u64),
    /// A text of 1 to 128 characters.
    Text(String),
}
