//! How does an answer find its way back, exactly once?

use std::sync::Arc;

use nerite_memory::{Place, Slot};

use crate::{RequestTrace, Response, ResponseWindow, Status};

/// Where the responses of one request go. Called on the thread that made them, so nothing in it may block for long.
pub trait Deliver: Send {
    /// Takes one response. None comes after the last.
    fn deliver(&mut self, response: Response);

    /// Sees a response as soon as it is made, on the thread that made it. It is delivered later, perhaps on another.
    fn made(&mut self, _: &Response) {}

    /// Takes the reason why the request was not accepted. Nothing else comes.
    fn refuse(&mut self, why: Status) {
        self.deliver(Response::failed(why));
    }

    /// Whether [`Deliver::place`] may find a place.
    fn offers_places(&self) -> bool {
        false
    }

    /// The window of the request, whose model waits while it is full. `None` where responses are taken at once.
    fn window(&self) -> Option<Arc<ResponseWindow>> {
        None
    }

    /// Where the request is traced, if it is.
    fn trace(&self) -> Option<Arc<RequestTrace>> {
        None
    }

    /// A place for an output that the client named no memory for; `None` if it may lie anywhere.
    fn place(&mut self, _: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        Ok(None)
    }
}

/// An output for which a place is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceQuery<'q> {
    /// The model's name for it.
    pub output: &'q str,
    /// How large it is.
    pub bytes: usize,
    /// Where the runtime would write it best. Whoever places it may choose otherwise: the place itself tells where it is.
    pub preferred: Place,
}

/// The one edge back to the client. It takes any number of responses up to the last; dropped before that, it tells the
/// client so: a lost reply is an error, never a hang.
pub struct Reply(Option<Box<dyn Deliver>>);

impl Reply {
    /// A reply that hands responses to `sink`, which must not block: it runs on the thread that computed the response.
    pub fn new(sink: impl FnMut(Response) + Send + 'static) -> Reply {
        Reply::through(Sink(sink))
    }

    /// A reply that may find places for outputs as well.
    pub fn through(deliver: impl Deliver + 'static) -> Reply {
        Reply(Some(Box::new(deliver)))
    }

    /// Where nothing can be sent any more.
    pub fn closed() -> Reply {
        Reply(None)
    }

    /// Whether it may find a place for an output that the client named no memory for.
    pub fn offers_places(&self) -> bool {
        self.0.as_ref().is_some_and(|deliver| deliver.offers_places())
    }

    /// As [`Deliver::window`].
    pub fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.0.as_ref()?.window()
    }

    /// As [`Deliver::trace`].
    pub fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.0.as_ref()?.trace()
    }

    /// A place for an output that the client named no memory for; `None` if it may lie anywhere.
    pub fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.0.as_mut().map_or(Ok(None), |deliver| deliver.place(query))
    }

    /// As [`Deliver::made`], for a response that is sent later.
    pub fn made(&mut self, response: &Response) {
        if let Some(deliver) = &mut self.0 {
            deliver.made(response);
        }
    }

    /// Sends one response. Nothing is sent after the last.
    pub fn send(&mut self, response: Response) {
        if response.is_last() {
            if let Some(mut deliver) = self.0.take() {
                deliver.deliver(response);
            }
        } else if let Some(deliver) = &mut self.0 {
            deliver.deliver(response);
        }
    }

    /// Ends a request that its model was not given.
    pub fn refuse(&mut self, why: Status) {
        if let Some(mut deliver) = self.0.take() {
            deliver.refuse(why);
        }
    }

    /// Ends the request with an error.
    pub fn fail(&mut self, error: Status) {
        self.send(Response::failed(error));
    }

    /// Whether the last response has been sent.
    pub fn is_closed(&self) -> bool {
        self.0.is_none()
    }

    /// What a client is told whose request was dropped.
    pub fn lost() -> Status {
        Status::internal("the model ended its work on this request without a final response")
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_closed() {
            self.fail(Reply::lost());
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({})", if self.is_closed() { "closed" } else { "open" })
    }
}

/// A function to which responses go.
struct Sink<F>(F);

impl<F: FnMut(Response) + Send> Deliver for Sink<F> {
    fn deliver(&mut self, response: Response) {
        (self.0)(response);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;
    use crate::InferResponse;

    #[track_caller]
    fn check(act: impl FnOnce(Reply), expected: &str) {
        let seen = Arc::new(Mutex::new(String::new()));
        let into = Arc::clone(&seen);
        let reply = Reply::new(move |response| {
            let word = match response {
                Response::Part(_) => "part ",
                Response::Final(_) => "final ",
                Response::End => "end ",
                Response::Failed { more: false, .. } => "failed ",
                Response::Failed { more: true, .. } => "error ",
            };
            into.lock().unwrap_or_else(PoisonError::into_inner).push_str(word);
        });
        act(reply);
        assert_eq!(seen.lock().unwrap_or_else(PoisonError::into_inner).trim(), expected);
    }

    #[test]
    fn a_dropped_reply_is_an_error_and_an_answered_one_is_silent() {
        let (part, last) = (|| Response::Part(InferResponse::default()), || Response::Final(InferResponse::default()));
        check(drop, "failed");
        check(|mut reply| reply.send(last()), "final");
        check(|mut reply| reply.send(Response::End), "end");
        check(|mut reply| reply.fail(Status::internal("no")), "failed");
        check(|mut reply| reply.send(part()), "part failed");
        check(|mut reply| reply.send(Response::failed_part(Status::internal("no"))), "error failed");
        check(
            |mut reply| {
                reply.send(part());
                reply.send(last());
                reply.send(part());
            },
            "part final",
        );
    }
}
