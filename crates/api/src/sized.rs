//! Which responses are delivered by workers, because their steps are much work?
//!
//! ```text
//!   the thread that has a response ──┬── little work ──────────────────────► it takes the steps itself
//!                                    └── much, or much work came before ──► queue ──► a worker for large messages
//! ```
//! That thread may be a front thread, or a worker whose run has answers for other clients as well.

use std::sync::Arc;

use nerite_memory::Slot;
use nerite_request::limits::INLINE_WORK_BYTES_MAX;
use nerite_request::{Deliver, PeerAccount, PlaceQuery, Reply, RequestTrace, Response, ResponseWindow, Status};
use tokio::runtime::Handle;

use crate::Api;
use crate::api::Client;
use crate::aside::on_response_worker;
use crate::delivery::{Delivery, ModelSide, take_place};
use crate::places::OutputLease;
use crate::queue::Queue;

/// Delivers the responses of a request whose steps may be much work.
struct SizedReply<S> {
    client: Arc<Client>,
    runtime: Handle,
    /// `None` only while it changes.
    way: Option<Way<S>>,
}

enum Way<S> {
    /// No response was much work yet.
    Here(Delivery<S>),
    /// All further responses wait for workers, so that they keep their order.
    Apart(Arc<Queue<Delivery<S>>>, ModelSide),
}

impl Api {
    /// The reply of a request whose steps may be much work. `Err`: there are no workers here, and no front threads that could be kept.
    pub(crate) fn sized_reply<S>(&self, delivery: Delivery<S>) -> Result<Reply, Delivery<S>>
    where
        S: FnMut(Response, Vec<OutputLease>) + Send + 'static,
    {
        let Ok(runtime) = Handle::try_current() else { return Err(delivery) };
        Ok(Reply::through(SizedReply { client: Arc::clone(&self.client), runtime, way: Some(Way::Here(delivery)) }))
    }
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send + 'static> SizedReply<S> {
    fn side(&self) -> Option<&ModelSide> {
        Some(match self.way.as_ref()? {
            Way::Here(delivery) => &delivery.side,
            Way::Apart(_, side) => side,
        })
    }
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send + 'static> Deliver for SizedReply<S> {
    fn deliver(&mut self, mut response: Response) {
        if let Some(Way::Here(delivery)) = &mut self.way
            && delivery.work(&response) <= INLINE_WORK_BYTES_MAX
        {
            return delivery.deliver(response);
        }
        let (queue, side) = match self.way.take() {
            Some(Way::Here(delivery)) => {
                let (client, side) = (Arc::clone(&self.client), delivery.side.clone());
                let on_worker = |flow: &_, work| on_response_worker(flow, work);
                (Queue::new(client, self.runtime.clone(), on_worker, delivery), side)
            }
            Some(Way::Apart(queue, side)) => (queue, side),
            None => return,
        };
        if let Some(window) = &side.window {
            take_place(window, &mut response);
        }
        queue.push(response);
        self.way = Some(Way::Apart(queue, side));
    }

    fn waited(&mut self, queue_ns: u64) {
        self.side().into_iter().for_each(|side| side.waited(queue_ns));
    }

    fn offers_places(&self) -> bool {
        self.side().is_some_and(|side| side.places.is_some())
    }

    fn account(&self) -> Option<PeerAccount> {
        self.side()?.account.clone()
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.side()?.trace.clone()
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.side()?.window.clone()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.side().map_or(Ok(None), |side| side.place(query))
    }
}
