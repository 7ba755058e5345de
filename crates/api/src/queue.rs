//! How are the responses of one request delivered by workers, one after the other?
//!
//! The thread that has a response adds it to the queue. A worker delivers the first one. Each response waits for its own turn on a worker, because a request may
//! have any number of responses.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_budget::Charge;
use nerite_locks::Mutex;
use nerite_request::{Deliver, Response};
use nerite_watchdog::{Flow, FrontEnd, watched};
use tokio::runtime::Handle;

use crate::api::Client;
use crate::aside::Aside;

/// Begins work of this flow on a worker of one kind.
pub(crate) type OnWorker = fn(&Flow, Box<dyn FnOnce() + Send>) -> Aside<()>;

/// The responses that wait for a worker, and what delivers them.
pub(crate) struct Queue<D> {
    client: Arc<Client>,
    runtime: Handle,
    on_worker: OnWorker,
    waiting: Mutex<Waiting>,
    /// Used by one worker at a time. Locked after `waiting` was released, because the model's thread must not wait for it.
    deliver: Mutex<D>,
}

#[derive(Default)]
struct Waiting {
    responses: VecDeque<(Response, Charge)>,
    /// Whether a worker was asked for.
    is_served: bool,
}

impl<D: Deliver + 'static> Queue<D> {
    /// A queue of this client, whose responses are delivered by `deliver`.
    pub(crate) fn new(client: Arc<Client>, runtime: Handle, on_worker: OnWorker, deliver: D) -> Arc<Queue<D>> {
        Arc::new(Queue { client, runtime, on_worker, waiting: Mutex::default(), deliver: Mutex::new(deliver) })
    }

    /// Adds a response. The client is charged for it until it is delivered.
    pub(crate) fn push(self: &Arc<Self>, response: Response) {
        let charge = self.client.account.charge(response.inline_bytes());
        let mut waiting = lock(&self.waiting);
        waiting.responses.push_back((response, charge));
        let was_served = std::mem::replace(&mut waiting.is_served, true);
        drop(waiting);
        if !was_served {
            self.serve();
        }
    }

    /// Has a worker deliver the first response in the queue.
    fn serve(self: &Arc<Self>) {
        let queue = Arc::clone(self);
        let work = (self.on_worker)(&self.client.flow, Box::new(move || queue.deliver_first()));
        // An error means that the work panicked. Then the sink is dropped, and the client gets an error.
        drop(self.runtime.spawn(watched(FrontEnd::Server, async move { drop(work.await) })));
    }

    fn deliver_first(self: Arc<Self>) {
        let Some((response, _charge)) = lock(&self.waiting).responses.pop_front() else { return };
        lock(&self.deliver).deliver(response);
        let mut waiting = lock(&self.waiting);
        waiting.is_served = !waiting.responses.is_empty();
        let has_more = waiting.is_served;
        drop(waiting);
        if has_more {
            self.serve();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
