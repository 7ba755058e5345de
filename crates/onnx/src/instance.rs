//! How does the embedded engine run a batch?

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_backend::onnx::snapshot;
use nerite_backend::{Execute, Times, Work};
use nerite_memory::{Access, Buffer, Reason, Shortage, allowed_bytes};
use nerite_request::Status;
use nerite_tensor::{Shape, Tensor};
use rten::{NodeId, Value};
use rten_tensor::Layout;

use crate::convert;
use crate::loaded::Loaded;
use crate::runner::{RunOutcome, Runner, Task};

/// Threads that one model may lose.
const LOST_MAX: u32 = 8;
/// A request may use one part in so many of the memory that the process may have.
const MEMORY_SHARE: u64 = 2;

/// One instance: its threads, and the graph it shares with the others.
pub struct EmbeddedInstance {
    loaded: Arc<Loaded>,
    threads: usize,
    runner: Option<Runner>,
}

impl EmbeddedInstance {
    /// An instance with `threads` of its own.
    pub fn new(loaded: &Arc<Loaded>, threads: usize) -> EmbeddedInstance {
        EmbeddedInstance { loaded: Arc::clone(loaded), threads, runner: None }
    }

    fn feeds(&self, work: &Work<'_>) -> Result<Vec<(NodeId, Tensor)>, Status> {
        let feed = |tensor: &Tensor| {
            let port = self.loaded.ports.inputs.iter().find(|port| port.name == tensor.name);
            let port = port.ok_or_else(|| Status::invalid(format!("the model has no input '{}'", tensor.name)))?;
            let data = out_of_reach(tensor, snapshot(tensor, &self.loaded.untrusted_inputs)?)?;
            let shape = port.graph_shape(&tensor.shape);
            Ok((self.node(&port.name)?, Tensor { data, shape, ..tensor.clone() }))
        };
        let is_given = |name: &str| work.inputs().iter().any(|input| *input.name == *name);
        let left_out = self.loaded.defaults.iter().filter(|default| !is_given(&default.name));
        let left_out = left_out.map(|default| Ok((self.node(&default.name)?, default.clone())));
        work.inputs().iter().map(feed).chain(left_out).collect()
    }

    /// The graph may compute with INT64 values: refuses those that could leave 32 bits on the way.
    fn check_reach(&self, feeds: &[(NodeId, Tensor)]) -> Result<(), Status> {
        if self.loaded.magnitudes.is_trivial() {
            return Ok(());
        }
        let input = |name: &str| feeds.iter().map(|(_, tensor)| tensor).find(|tensor| *tensor.name == *name);
        let checked = self.loaded.magnitudes.check(|name| input(name).map(convert::extremes));
        checked.map_err(|why| Status::invalid(format!("{why}; {}", convert::CURE)))
    }

    fn node(&self, name: &str) -> Result<NodeId, Status> {
        self.loaded.model.find_node(name).ok_or_else(|| Status::internal(format!("the engine's graph has no '{name}'")))
    }

    /// Runs the graph on the instance's own thread, which is made when it is first needed, and anew when it was lost.
    fn run(&mut self, feeds: Vec<(NodeId, Tensor)>, nodes: Vec<NodeId>) -> Result<Vec<Value>, Status> {
        let lost = self.loaded.lost.load(Ordering::Relaxed);
        if lost >= LOST_MAX {
            return Err(Status::unavailable(format!(
                "the embedded engine ran out of memory {lost} times with this model, which holds what it had then; load the \
                 model again, or {}",
                convert::CURE
            )));
        }
        let mut runner = match self.runner.take() {
            Some(runner) => runner,
            None => Runner::start(self.threads, usize::try_from(allowed_bytes() / MEMORY_SHARE).unwrap_or(usize::MAX))?,
        };
        match runner.run(Task { loaded: Arc::clone(&self.loaded), feeds, nodes }) {
            RunOutcome::Done(done) => {
                self.runner = Some(runner);
                done
            }
            RunOutcome::Lost(Shortage { asked, had, bytes_max }) => {
                self.loaded.lost.fetch_add(1, Ordering::Relaxed);
                let why = format!(
                    "the embedded engine wanted {asked} bytes beside {had} that it had, and may have {bytes_max} for a request; \
                     ask for less, or {}",
                    convert::CURE
                );
                log::error!("a thread of the embedded engine is lost: {why}");
                Err(Status::internal(why))
            }
        }
    }
}

/// The bytes where no peer can write them: the engine computes on slices, which must not change under it. `data` is that of
/// `input`, aligned.
fn out_of_reach(input: &Tensor, data: Buffer) -> Result<Buffer, Status> {
    if data.access() == Access::Private {
        return Ok(data);
    }
    let refuse = |refused| Status::no_memory(format_args!("a copy of input '{}'", input.name), refused);
    data.try_private(Reason::Slices).map_err(refuse)
}

impl Execute for EmbeddedInstance {
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status> {
        let feeds = self.feeds(work)?;
        self.check_reach(&feeds)?;
        let nodes: Vec<NodeId> = work.wanted().iter().map(|name| self.node(name)).collect::<Result<_, _>>()?;
        times.input_ends();
        let values = self.run(feeds, nodes)?;
        times.infer_ends();
        for (at, value) in values.into_iter().enumerate() {
            let Some(name) = work.wanted().get(at).cloned() else { break };
            let port = self.loaded.ports.output(&name).and_then(|port| Some((port, port.datatype?)));
            let (port, datatype) = port.ok_or_else(|| Status::invalid(format!("the model has no output '{name}'")))?;
            let shape: Shape = value.as_view().shape().iter().map(|dim| *dim as i64).collect();
            convert::from_engine(work, &name, datatype, &port.client_shape(&shape), value)?;
        }
        Ok(())
    }
}
