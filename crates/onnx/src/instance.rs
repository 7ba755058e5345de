//! How does the embedded engine run a batch?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use nerite_backend::onnx::{Exposed, Port, Ports, steady};
use nerite_backend::{Execute, Times, Work};
use nerite_request::Status;
use nerite_tensor::{Shape, Tensor};
use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::Layout;

use crate::audit::Reach;
use crate::convert;

/// A graph in the engine, shared by all instances.
pub struct Loaded {
    /// The engine's own.
    pub model: Model,
    /// What the graph takes and gives.
    pub ports: Ports,
    /// Inputs that must not change while it runs.
    pub exposed: Exposed,
    /// What its INT64 inputs must not lead to.
    pub reach: Reach,
}

/// One instance: its threads, and the graph it shares with the others.
pub struct EmbeddedInstance {
    loaded: Arc<Loaded>,
    options: RunOptions,
}

impl EmbeddedInstance {
    /// An instance with `threads` of its own.
    pub fn new(loaded: &Arc<Loaded>, threads: usize) -> EmbeddedInstance {
        let pool = Arc::new(ThreadPool::with_num_threads(threads));
        EmbeddedInstance { loaded: Arc::clone(loaded), options: RunOptions::default().with_thread_pool(Some(pool)) }
    }

    fn feeds(&self, work: &Work<'_>) -> Result<Vec<(NodeId, Tensor)>, Status> {
        let feed = |tensor: &Tensor| {
            let port = self.loaded.ports.inputs.iter().find(|port| port.name == tensor.name);
            let port = port.ok_or_else(|| Status::invalid(format!("the model has no input '{}'", tensor.name)))?;
            let data = steady(tensor, &self.loaded.exposed)?;
            let shape = port.graph_shape(&tensor.shape);
            Ok((self.node(&port.name)?, Tensor { data, shape, ..tensor.clone() }))
        };
        work.inputs().iter().map(feed).collect()
    }

    /// The graph may compute with INT64 values: refuses those that could leave 32 bits on the way.
    fn check_reach(&self, work: &Work<'_>) -> Result<(), Status> {
        if self.loaded.reach.is_trivial() {
            return Ok(());
        }
        let checked = self.loaded.reach.check(|name| work.input(name).map(convert::extremes));
        checked.map_err(|why| Status::invalid(format!("{why}; {}", convert::CURE)))
    }

    fn node(&self, name: &str) -> Result<NodeId, Status> {
        self.loaded.model.find_node(name).ok_or_else(|| Status::internal(format!("the engine's graph has no '{name}'")))
    }

    fn run(&self, inputs: Vec<(NodeId, ValueOrView<'_>)>, outputs: &[NodeId]) -> Result<Vec<Value>, Status> {
        let run = || self.loaded.model.run(inputs, outputs, Some(self.options.clone()));
        // A graph that trips over a mistake of the engine's fails its request, not the server.
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.map_err(|e| failed(&e.to_string())),
            Err(_) => Err(failed("it stopped in the middle of its work; support for this graph is not complete")),
        }
    }
}

/// The engine learns of some things it lacks only when it comes to them.
fn failed(why: &str) -> Status {
    let lacks = why.contains("support") || why.contains("expected tensor with");
    let cure = if lacks { format!("; {}", convert::CURE) } else { String::new() };
    Status::internal(format!("the embedded engine failed: {why}{cure}"))
}

impl Execute for EmbeddedInstance {
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status> {
        let feeds = self.feeds(work)?;
        let inputs = feeds.iter().map(|(node, tensor)| Ok((*node, convert::to_engine(tensor, &tensor.shape)?)));
        let inputs: Vec<_> = inputs.collect::<Result<_, Status>>()?;
        self.check_reach(work)?;
        let wanted = work.wanted().to_vec();
        let nodes: Vec<NodeId> = wanted.iter().map(|name| self.node(name)).collect::<Result<_, _>>()?;
        times.input_ends();
        let values = self.run(inputs, &nodes)?;
        times.infer_ends();
        for (name, value) in wanted.iter().zip(values) {
            let port = self.loaded.ports.output(name);
            let datatype = port.and_then(|port| port.datatype);
            let datatype = datatype.ok_or_else(|| Status::invalid(format!("the model has no output '{name}'")))?;
            let shape: Shape = value.as_view().shape().iter().map(|dim| *dim as i64).collect();
            convert::from_engine(work, name, datatype, &Port::client_shape(&shape), value)?;
        }
        Ok(())
    }
}
