//! On which thread does the engine run, and what if that thread is lost?
//!
//! A graph may want any amount of memory: an outer product of two long vectors is enough. The engine cannot be told to stop, and
//! where an allocation fails Rust ends the process. So the engine runs on an expendable thread ([`nerite_memory::expendable`]),
//! which takes what it needs along: if it wants too much it sleeps for ever, the request fails, and the next one gets a new
//! thread. What a lost thread held is lost with it, so a model may lose only a few.
//!
//! The thread is one of the engine's own pool, so that no further change of thread is needed to compute.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nerite_memory::{Shortage, expendable};
use nerite_request::Status;
use nerite_tensor::Tensor;
use rten::{NodeId, RunOptions, ThreadPool, Value};

use crate::convert;
use crate::loaded::Loaded;

/// A graph to run, with all it needs.
pub struct Task {
    /// The graph.
    pub loaded: Arc<Loaded>,
    /// What goes in and what is wanted.
    pub lists: Lists,
}

/// What a run is given. The lists go to the engine's thread and come back, so that the next run makes no others.
#[derive(Default)]
pub struct Lists {
    /// The graph's inputs, each in the shape that the graph wants.
    pub feeds: Vec<(NodeId, Tensor)>,
    /// The outputs that are wanted.
    pub nodes: Vec<NodeId>,
}

/// What became of a task.
pub enum RunOutcome {
    /// The outputs, or why there are none, and the lists, emptied.
    Done(Result<Vec<Value>, Status>, Lists),
    /// The thread wanted more memory than it may have, and is gone.
    Lost(Shortage),
}

/// A thread that runs graphs, one after the other.
pub struct Runner {
    tasks: Sender<Task>,
    outcomes: Receiver<RunOutcome>,
}

impl Runner {
    /// Starts one that computes with `threads` threads and may use `bytes_max` bytes at one time.
    pub fn start(threads: usize, bytes_max: usize) -> Result<Runner, Status> {
        let (tasks, inbox) = channel();
        let (tell, outcomes) = channel();
        let serve = move || {
            let pool = Arc::new(ThreadPool::with_num_threads(threads));
            let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&pool)));
            pool.run(move || serve(&inbox, &tell, &options, bytes_max));
        };
        let started = thread::Builder::new().name("rten".into()).spawn(serve);
        started.map_err(|fault| {
            Status::unavailable(format!("the system gave the embedded engine no thread to run on: {fault}"))
        })?;
        Ok(Runner { tasks, outcomes })
    }

    /// Runs `task` and waits for its end. After [`RunOutcome::Lost`] nothing can be asked of this runner any more.
    pub fn run(&mut self, task: Task) -> RunOutcome {
        let gone =
            || RunOutcome::Done(Err(Status::internal("the embedded engine's thread has ended")), Lists::default());
        match self.tasks.send(task) {
            Ok(()) => self.outcomes.recv().unwrap_or_else(|_| gone()),
            Err(_) => gone(),
        }
    }
}

fn serve(inbox: &Receiver<Task>, tell: &Sender<RunOutcome>, options: &RunOptions, bytes_max: usize) {
    while let Ok(task) = inbox.recv() {
        // Whoever waited may have gone: then nobody wants the outcome.
        let lost = |shortage| drop(tell.send(RunOutcome::Lost(shortage)));
        let done = expendable(bytes_max, &lost, || run(&task, options));
        // The client's memory is let go before the client hears of it.
        let Task { loaded, mut lists } = task;
        drop(loaded);
        lists.feeds.clear();
        lists.nodes.clear();
        if tell.send(RunOutcome::Done(done, lists)).is_err() {
            return;
        }
    }
}

fn run(task: &Task, options: &RunOptions) -> Result<Vec<Value>, Status> {
    let Task { loaded, lists } = task;
    let inputs = lists.feeds.iter().map(|(node, tensor)| Ok((*node, convert::to_engine(tensor, &tensor.shape)?)));
    let inputs: Vec<_> = inputs.collect::<Result<_, Status>>()?;
    let run = || loaded.model.run(inputs, &lists.nodes, Some(options.clone()));
    // A graph that trips over a mistake of the engine's fails its request, not the server.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e| failed(&e.to_string())),
        Err(_) => Err(failed("it stopped in the middle of its work; support for this graph is not complete")),
    }
}

/// The engine learns of some things it lacks only when it comes to them.
fn failed(why: &str) -> Status {
    let lacks = why.contains("support") || why.contains("expected tensor with");
    let cure = if lacks { format!("; {}", convert::CURE) } else { String::new() };
    Status::internal(format!("the embedded engine failed: {why}{cure}"))
}
