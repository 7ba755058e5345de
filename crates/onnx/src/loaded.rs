//! What do all instances of a graph share?

use nerite_backend::onnx::{Port, Ports, UntrustedInputs};
use nerite_memory::CountedWeights;
use nerite_request::Status;
use nerite_tensor::Tensor;
use rten::NodeId;

use crate::audit::MagnitudeBounds;
use crate::feed::Feed;
use crate::losses::Losses;
use crate::pieces::Program;
use crate::program::Compiled;
use crate::staged::Staged;

/// A graph in the engine, shared by all instances.
pub struct Loaded {
    /// The graph.
    pub graph: Graph,
    /// The inputs and outputs of the graph.
    pub ports: Ports,
    /// The values of inputs that a request may leave out.
    pub defaults: Vec<Tensor>,
    /// Inputs that must not change while the graph runs.
    pub untrusted_inputs: UntrustedInputs,
    /// The bounds for its INT64 values.
    pub magnitudes: MagnitudeBounds,
    /// Bytes of its constants, as the engine keeps them.
    pub constant_bytes: u64,
    /// Counts its weights, as far as they are in the model's file.
    pub _weights: CountedWeights,
    /// Threads that were lost because they needed more memory than they may have.
    pub losses: Losses,
}

/// A graph in the engine.
pub enum Graph {
    /// The whole graph, with the engine's ids of its inputs and outputs. A run can be ended between stages.
    Whole(Box<Staged>, PortIds<NodeId>),
    /// A graph in pieces, with loops between them, and the indices of the program's inputs and outputs. A run can be ended between any two of these.
    Cut(Program<Compiled>, PortIds<usize>),
}

/// The ids of a graph's inputs and outputs, in the order of its [`Ports`]; `None` for those that it does not know.
pub struct PortIds<I> {
    /// The inputs.
    pub inputs: Vec<Option<I>>,
    /// The outputs.
    pub outputs: Vec<Option<I>>,
}

impl Graph {
    /// A graph in one piece.
    pub fn whole(graph: Staged, ports: &Ports) -> Graph {
        let all = |ports: &[Port]| ports.iter().map(|port| graph.model().find_node(&port.name)).collect();
        let ids = PortIds { inputs: all(&ports.inputs), outputs: all(&ports.outputs) };
        Graph::Whole(Box::new(graph), ids)
    }

    /// A graph in pieces.
    pub fn cut(program: Program<Compiled>, ports: &Ports) -> Graph {
        let all = |ports: &[Port], known: &[(String, usize)]| {
            ports.iter().map(|port| known.iter().position(|(name, _)| *name == port.name)).collect()
        };
        let inputs = all(&ports.inputs, &program.inputs);
        let ids = PortIds { inputs, outputs: all(&ports.outputs, &program.outputs) };
        Graph::Cut(program, ids)
    }

    /// Whether a run with these inputs and outputs may be ended. A run that is known to be quick may not.
    pub fn can_be_ended(&self, inputs: &[Feed], wanted: &[usize]) -> bool {
        match self {
            Graph::Whole(graph, ids) => graph.can_be_ended(
                inputs.iter().filter_map(|feed| Some((ids.input(feed.index)?, dims(&feed.tensor)))),
                wanted.iter().filter_map(|at| ids.output(*at)),
            ),
            Graph::Cut(..) => true,
        }
    }

    fn knows_input(&self, index: usize) -> bool {
        match self {
            Graph::Whole(_, ids) => ids.input(index).is_some(),
            Graph::Cut(_, ids) => ids.input(index).is_some(),
        }
    }

    fn knows_output(&self, index: usize) -> bool {
        match self {
            Graph::Whole(_, ids) => ids.output(index).is_some(),
            Graph::Cut(_, ids) => ids.output(index).is_some(),
        }
    }
}

impl<I: Copy> PortIds<I> {
    /// The id of an input.
    pub fn input(&self, index: usize) -> Option<I> {
        self.inputs.get(index).copied().flatten()
    }

    /// The id of an output.
    pub fn output(&self, index: usize) -> Option<I> {
        self.outputs.get(index).copied().flatten()
    }
}

impl Loaded {
    /// The input called `name`, which has the index `in_requests` in requests, and its index in the graph.
    pub fn input(&self, name: &str, in_requests: usize) -> Result<(&Port, usize), Status> {
        let index = self.ports.input_index(name, in_requests);
        let index = index.ok_or_else(|| Status::invalid(format!("the model has no input '{name}'")))?;
        if self.graph.knows_input(index) { Ok((&self.ports.inputs[index], index)) } else { Err(unknown(name)) }
    }

    /// The output called `name`, which has the index `in_requests` in requests, and its index in the graph.
    pub fn output(&self, name: &str, in_requests: usize) -> Result<(&Port, usize), Status> {
        let index = self.ports.output_index(name, in_requests).filter(|index| self.graph.knows_output(*index));
        index.map(|index| (&self.ports.outputs[index], index)).ok_or_else(|| unknown(name))
    }
}

fn dims(tensor: &Tensor) -> impl Iterator<Item = usize> {
    tensor.shape.iter().map(|dim| usize::try_from(*dim).unwrap_or_default())
}

fn unknown(name: &str) -> Status {
    Status::internal(format!("the engine's graph has no '{name}'"))
}
