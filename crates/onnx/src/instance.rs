//! How does the embedded engine run a batch?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nerite_backend::{Execute, StopGuard, Times, Work};
use nerite_memory::{Access, Buffer, run_bytes_max};
use nerite_request::{Status, Wanted};
use nerite_tensor::{Shape, Tensor};
use rten::Value;
use rten_tensor::Layout;

use crate::convert;
use crate::copies::{CopyBlock, out_of_reach};
use crate::feed::Feed;
use crate::loaded::Loaded;
use crate::runner::{Lists, RunOutcome, Runner, Task};

/// One instance: its thread, and the graph that it shares with the others.
pub struct EmbeddedInstance {
    loaded: Arc<Loaded>,
    threads: usize,
    runner: Option<Runner>,
    /// The emptied lists of the last run. The next run uses their memory, so that it allocates none.
    lists: Lists,
    /// Keeps the block of the last run.
    copies: CopyBlock,
    /// Whether the present run is to end.
    is_over: Arc<AtomicBool>,
}

impl EmbeddedInstance {
    /// An instance that computes with `threads` threads of its own.
    pub fn new(loaded: &Arc<Loaded>, threads: usize) -> EmbeddedInstance {
        let (loaded, is_over) = (Arc::clone(loaded), Arc::new(AtomicBool::new(false)));
        EmbeddedInstance {
            loaded,
            threads,
            runner: None,
            lists: Lists::default(),
            copies: CopyBlock::default(),
            is_over,
        }
    }

    /// Ends the run after its present stage, or round of a loop, if the clients of all its requests go away.
    fn stopping(&self, work: &Work<'_>, lists: &Lists) -> Option<StopGuard> {
        self.is_over.store(false, Ordering::Relaxed);
        if !self.loaded.graph.can_be_ended(&lists.feeds, &lists.wanted) {
            return None;
        }
        let is_over = Arc::clone(&self.is_over);
        Some(work.stopping(move || is_over.store(true, Ordering::Relaxed)))
    }

    /// The inputs of the graph, including the defaults of those that are left out, and the wanted outputs.
    fn lists(&mut self, work: &Work<'_>) -> Result<Lists, Status> {
        let (loaded, inputs, mut lists) = (&self.loaded, work.inputs(), std::mem::take(&mut self.lists));
        let data = out_of_reach(inputs, &loaded.untrusted_inputs, &mut self.copies)?;
        for (at, (input, data)) in inputs.iter().zip(data).enumerate() {
            let (port, index) = loaded.input(&input.name, work.index_of(at))?;
            let (name, shape) = (input.name.clone(), port.graph_shape(&input.shape));
            let mut tensor = Tensor { name, datatype: input.datatype, shape, data };
            let is_shared = tensor.data.access() == Access::Shared;
            let copy = is_shared.then(|| convert::copied(&tensor, &mut lists.spares)).transpose()?;
            if copy.is_some() {
                tensor.data = Buffer::empty();
            }
            lists.feeds.push(Feed { index, tensor, copy });
        }
        let left_out = loaded.defaults.iter().filter(|default| work.input(&default.name).is_none());
        for (at, default) in left_out.enumerate() {
            let index = loaded.input(&default.name, at)?.1;
            lists.feeds.push(Feed { index, tensor: default.clone(), copy: None });
        }
        self.check_reach(&lists.feeds)?;
        for (index, output) in work.wanted().indexed() {
            lists.wanted.push(self.loaded.output(&output.name, index)?.1);
        }
        Ok(lists)
    }

    /// Refuses values that could lead to numbers beyond 32 bits, if the graph computes with INT64 values.
    fn check_reach(&self, feeds: &[Feed]) -> Result<(), Status> {
        if self.loaded.magnitudes.is_trivial() {
            return Ok(());
        }
        let input = |name: &str| feeds.iter().map(|feed| &feed.tensor).find(|tensor| *tensor.name == *name);
        let checked = self.loaded.magnitudes.check(|name| input(name).map(convert::extremes));
        checked.map_err(|why| Status::invalid(format!("{why}; {}", convert::CURE)))
    }

    /// Runs the graph on the instance's own thread. The thread is started when it is first needed, and again after it
    /// was lost.
    fn run(&mut self, lists: Lists) -> Result<Vec<Value>, Status> {
        let values = lists.feeds.iter().map(Feed::values).fold(0, u64::saturating_add);
        self.loaded.losses.check(values, Instant::now())?;
        let mut runner = match self.runner.take() {
            Some(runner) => runner,
            None => Runner::start(self.threads, run_bytes_max())?,
        };
        match runner.run(Task { loaded: Arc::clone(&self.loaded), lists, is_over: Arc::clone(&self.is_over) }) {
            RunOutcome::Done(done, lists) => {
                (self.runner, self.lists) = (Some(runner), lists);
                done
            }
            RunOutcome::Lost(refused) => {
                self.loaded.losses.add(values, Instant::now());
                let status = Status::no_memory_to_compute(refused);
                log::error!("a thread of the embedded engine is lost: {}", status.message);
                Err(status)
            }
        }
    }
}

impl Execute for EmbeddedInstance {
    fn execute(&mut self, work: &mut Work<'_>, times: &mut Times) -> Result<(), Status> {
        let lists = self.lists(work)?;
        times.mark_input_end();
        let stopping = self.stopping(work, &lists);
        let values = self.run(lists)?;
        drop(stopping);
        times.mark_infer_end();
        for (at, value) in values.into_iter().enumerate() {
            let Some((index, Wanted { name, .. })) = work.wanted().indexed().nth(at) else { break };
            let (port, _) = self.loaded.output(name, index)?;
            let datatype = port.datatype;
            let datatype = datatype.ok_or_else(|| Status::invalid(format!("the model has no output '{name}'")))?;
            let shape: Shape = value.as_view().shape().iter().map(|dim| *dim as i64).collect();
            convert::from_engine(work, index, datatype, &port.client_shape(&shape), value, &mut self.lists.spares)?;
        }
        Ok(())
    }
}
