//! On which thread does the engine run, and what if that thread is lost?
//!
//! A graph may need any amount of memory: an outer product of two long vectors is enough. An operator cannot be stopped,
//! and after a failed allocation Rust ends the process. So the engine runs on a bounded thread
//! ([`nerite_memory::run_bounded`]), which owns all that it needs. If it needs too much memory, it sleeps forever, the
//! request fails, and the next request gets a new thread. Its large allocations go back to the system. The
//! threads of its pool keep their stacks and small allocations, so a model may lose only some ([`crate::losses`]).
//!
//! The thread is one of the engine's own pool, so that no further change of thread is needed to compute.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nerite_memory::{NoMemory, run_bounded};
use nerite_request::{Code, Status};
use rten::{NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use smallvec::SmallVec;

use crate::conditions::{Conditions, Fault};
use crate::convert;
use crate::feed::Feed;
use crate::loaded::{Graph, Loaded};
use crate::spares::Spares;

/// How long a lost thread waits for the other threads of its pool.
const PARKED_WITHIN_MS: u32 = 5000;

/// A graph to run, with all that the run needs.
pub struct Task {
    /// The graph.
    pub loaded: Arc<Loaded>,
    /// The inputs and the wanted outputs.
    pub lists: Lists,
    /// Set by another thread if the run is to end.
    pub is_over: Arc<AtomicBool>,
}

/// The lists of a run. They move to the engine's thread and come back, so that the next run allocates none.
#[derive(Default)]
pub struct Lists {
    /// The inputs.
    pub feeds: Vec<Feed>,
    /// The indices of the wanted outputs.
    pub wanted: Vec<usize>,
    /// Vectors of earlier runs.
    pub spares: Spares,
}

/// The result of a task.
pub enum RunOutcome {
    /// The outputs or the error, and the emptied lists.
    Done(Result<Vec<Value>, Status>, Lists),
    /// The thread needed more memory than it may have, and is lost.
    Lost(NoMemory),
}

/// A thread that runs graphs, one after the other.
pub struct Runner {
    tasks: Sender<Task>,
    outcomes: Receiver<RunOutcome>,
}

impl Runner {
    /// Starts a thread that computes with `threads` threads and may use `bytes_max` bytes at a time.
    pub fn start(threads: usize, bytes_max: usize) -> Result<Runner, Status> {
        let (tasks, inbox) = channel();
        let (sender, outcomes) = channel();
        let serve = move || {
            let pool = Arc::new(ThreadPool::with_num_threads(threads));
            let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&pool)));
            pool.run(move || serve(&inbox, &sender, &options, bytes_max));
        };
        let started = thread::Builder::new().name("rten".into()).spawn(serve);
        started.map_err(|fault| {
            Status::unavailable(format!("the system gave the embedded engine no thread to run on: {fault}"))
        })?;
        Ok(Runner { tasks, outcomes })
    }

    /// Runs `task` and waits for its end. After [`RunOutcome::Lost`] this runner must not be used any more.
    pub fn run(&mut self, task: Task) -> RunOutcome {
        let gone =
            || RunOutcome::Done(Err(Status::internal("the embedded engine's thread has ended")), Lists::default());
        match self.tasks.send(task) {
            Ok(()) => self.outcomes.recv().unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }
}

fn serve(inbox: &Receiver<Task>, sender: &Sender<RunOutcome>, options: &RunOptions, bytes_max: usize) {
    while let Ok(mut task) = inbox.recv() {
        let mut spares = std::mem::take(&mut task.lists.spares);
        // If the caller has gone, nobody needs the outcome.
        let lost = |refused| {
            drop(sender.send(RunOutcome::Lost(refused)));
            park_other_threads()
        };
        // SAFETY: the engine computes on the threads of its pool alone. If `lost` returns true, all others sleep for ever. Outputs go to other threads only
        // after the run.
        #[expect(unsafe_code, reason = "the memory of a lost thread would be lost otherwise")]
        let done = unsafe { run_bounded(bytes_max, &lost, || run(&mut task, &mut spares, options)) };
        // The client's memory is released before the client gets the answer.
        let Task { loaded, mut lists, .. } = task;
        drop(loaded);
        lists.feeds.clear();
        lists.wanted.clear();
        lists.spares = spares;
        if sender.send(RunOutcome::Done(done, lists)).is_err() {
            return;
        }
    }
}

/// Makes the other threads of this pool sleep for ever, as this one will. Returns whether all do so in time. A thread that computes first completes
/// its part.
#[expect(clippy::disallowed_methods, reason = "this thread is lost, and nobody waits for it")]
fn park_other_threads() -> bool {
    if rayon::current_thread_index().is_none() {
        return false;
    }
    let (others, parked) = (rayon::current_num_threads() - 1, Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&parked);
    // This thread gets the job as well, and never does it.
    rayon::spawn_broadcast(move |_| {
        counter.fetch_add(1, Ordering::AcqRel);
        loop {
            thread::park();
        }
    });
    for _ in 0..PARKED_WITHIN_MS {
        if parked.load(Ordering::Acquire) == others {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}

fn run(task: &mut Task, spares: &mut Spares, options: &RunOptions) -> Result<Vec<Value>, Status> {
    let Task { loaded, lists, is_over } = task;
    let inputs = lists.feeds.iter_mut().map(|Feed { index, tensor, copy }| match copy.take() {
        Some(copy) => Ok((*index, copy.into())),
        None => Ok((*index, convert::to_engine(tensor, &tensor.shape, spares)?)),
    });
    let inputs: Vec<_> = inputs.collect::<Result<_, Status>>()?;
    let conditions = Conditions { options, is_over };
    // If a mistake of the engine makes it panic at a graph, the request fails and the server continues.
    match catch_unwind(AssertUnwindSafe(|| run_graph(&loaded.graph, inputs, &lists.wanted, &conditions))) {
        Ok(Ok(values)) => Ok(values),
        Ok(Err(Fault::Stopped)) => Err(Status::new(Code::Cancelled, "the run was ended: nobody waits for it any more")),
        Ok(Err(Fault::NoMemory(refused))) => Err(Status::no_memory_to_compute(refused)),
        Ok(Err(Fault::Failed(why))) => Err(failed(&why)),
        Err(_) => Err(failed("it stopped in the middle of its work; support for this graph is not complete")),
    }
}

fn run_graph(
    graph: &Graph,
    inputs: Vec<(usize, ValueOrView<'_>)>,
    wanted: &[usize],
    conditions: &Conditions<'_>,
) -> Result<Vec<Value>, Fault> {
    let unknown = || Fault::Failed("the graph has no such input or output".into());
    match graph {
        Graph::Whole(graph, ids) => {
            let named = inputs.into_iter().map(|(at, value)| Some((ids.input(at)?, value)));
            let named: Vec<(NodeId, ValueOrView<'_>)> = named.collect::<Option<_>>().ok_or_else(unknown)?;
            let nodes: Option<SmallVec<[NodeId; 4]>> = wanted.iter().map(|at| ids.output(*at)).collect();
            graph.run(named, &nodes.ok_or_else(unknown)?, conditions)
        }
        Graph::Cut(program, ids) => {
            let mut given: Vec<Option<ValueOrView<'_>>> = Vec::new();
            given.resize_with(program.inputs.len(), || None);
            for (at, value) in inputs {
                *ids.input(at).and_then(|at| given.get_mut(at)).ok_or_else(unknown)? = Some(value);
            }
            for (value, (name, _)) in given.iter().zip(&program.inputs) {
                if value.is_none() {
                    return Err(Fault::Failed(format!("missing input '{name}'")));
                }
            }
            let nodes: Vec<usize> =
                wanted.iter().map(|at| ids.output(*at)).collect::<Option<_>>().ok_or_else(unknown)?;
            let is_wanted = |at: usize| nodes.contains(&at);
            let part = (!(0..program.outputs.len()).all(is_wanted)).then(|| program.plan_for(is_wanted));
            let plan = part.as_ref().unwrap_or(&program.plan);
            let mut made = program.run(given.into_iter().flatten(), plan, conditions)?;
            let take = |at: &usize| made.get_mut(*at)?.take();
            nodes.iter().map(take).collect::<Option<_>>().ok_or_else(unknown)
        }
    }
}

/// The error of a failed run. The engine reports some missing features only during a run.
fn failed(why: &str) -> Status {
    let lacks = why.contains("support") || why.contains("expected tensor with");
    let cure = if lacks { format!("; {}", convert::CURE) } else { String::new() };
    Status::internal(format!("the embedded engine failed: {why}{cure}"))
}
