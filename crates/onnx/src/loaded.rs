//! What do all instances of a graph share?

use std::sync::atomic::AtomicU32;

use nerite_backend::onnx::{Port, Ports, UntrustedInputs};
use nerite_request::Status;
use nerite_tensor::Tensor;
use rten::{Model, NodeId};

use crate::audit::MagnitudeBounds;

/// A graph in the engine, shared by all instances.
pub struct Loaded {
    /// The engine's own.
    pub model: Model,
    /// The inputs and outputs of the graph.
    pub ports: Ports,
    /// The engine's ids of these.
    pub nodes: PortNodes,
    /// The values of inputs that a request may leave out.
    pub defaults: Vec<Tensor>,
    /// Inputs that must not change while it runs.
    pub untrusted_inputs: UntrustedInputs,
    /// The bounds for its INT64 values.
    pub magnitudes: MagnitudeBounds,
    /// Threads that were lost because they needed more memory than they may have.
    pub lost: AtomicU32,
}

/// The engine's ids of a graph's inputs and outputs, in the order of its [`Ports`]; `None` for those that the engine
/// does not know.
pub struct PortNodes {
    inputs: Vec<Option<NodeId>>,
    outputs: Vec<Option<NodeId>>,
}

impl PortNodes {
    /// The ids of these ports.
    pub fn of(model: &Model, ports: &Ports) -> PortNodes {
        let all = |ports: &[Port]| ports.iter().map(|port| model.find_node(&port.name)).collect();
        PortNodes { inputs: all(&ports.inputs), outputs: all(&ports.outputs) }
    }
}

impl Loaded {
    /// The input called `name`, which is usually the one at `place`, and its id.
    pub fn input(&self, name: &str, place: usize) -> Result<(&Port, NodeId), Status> {
        let found = find(&self.ports.inputs, &self.nodes.inputs, name, place);
        let (port, node) = found.ok_or_else(|| Status::invalid(format!("the model has no input '{name}'")))?;
        Ok((port, node.ok_or_else(|| unknown(name))?))
    }

    /// The output called `name`, which is usually the one at `place`, and its id.
    pub fn output(&self, name: &str, place: usize) -> Result<(&Port, NodeId), Status> {
        let found = find(&self.ports.outputs, &self.nodes.outputs, name, place);
        found.and_then(|(port, node)| Some((port, node?))).ok_or_else(|| unknown(name))
    }
}

/// Clients usually name tensors in the order in which the graph declares them.
fn find<'p>(
    ports: &'p [Port],
    nodes: &[Option<NodeId>],
    name: &str,
    place: usize,
) -> Option<(&'p Port, Option<NodeId>)> {
    let is_named = |at: &usize| ports.get(*at).is_some_and(|port| port.name == name);
    let at = Some(place).filter(is_named).or_else(|| ports.iter().position(|port| port.name == name))?;
    Some((ports.get(at)?, nodes.get(at).copied().flatten()))
}

fn unknown(name: &str) -> Status {
    Status::internal(format!("the engine's graph has no '{name}'"))
}
