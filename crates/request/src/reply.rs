//! How does a response get back to the client, exactly once?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_budget::PeerAccount;
use nerite_memory::{Buffer, Place, Slot};
use nerite_tensor::Name;

use crate::reused_box::{boxed, keep};
use crate::{InputMemory, RequestTrace, Response, ResponseWindow, Status, WantedOutputs};

/// Takes the responses of one request. It is called on the thread that made them, so it must not block for long unless
/// it says so ([`Deliver::may_wait`]).
pub trait Deliver: Send {
    /// Takes one response. No response comes after the last one.
    fn deliver(&mut self, response: Response);

    /// Called once the request is admitted to its model, with the outputs that it named and their indices in the configuration of the model. The
    /// functions below name outputs by these indices. It is not called if the caller admitted the request itself.
    fn admitted(&mut self, _: &WantedOutputs) {}

    /// Called when a response is made, on the thread that made it. The response is delivered later, perhaps on another thread.
    fn made(&mut self, _: &Response) {}

    /// Takes the error of a request that was not accepted. It is the only response.
    fn refuse(&mut self, why: Status) {
        self.deliver(Response::refused(why));
    }

    /// Called once the request has run, before its last response: how long it waited in the queue, in ns.
    fn waited(&mut self, _queue_ns: u64) {}

    /// Whether taking a response may block, for example in callbacks of other code. Then the request must not run on a thread that serves connections.
    fn may_wait(&self) -> bool {
        false
    }

    /// Whether [`Deliver::place`] may offer memory.
    fn offers_places(&self) -> bool {
        false
    }

    /// Whether outputs may lie in memory of the server that a model's process can still write to. This must be false for outputs that are sent to a socket or
    /// kept for others, because they must not change.
    fn takes_shared(&self) -> bool {
        false
    }

    /// The input memory of the model that reads the output with this index next. `None` if it has none, or if the output must not lie there.
    fn input_memory(&self, _output: usize) -> Option<Arc<dyn InputMemory>> {
        None
    }

    /// The window of the request. Its model waits while the window is full. `None` if each response is taken at once.
    fn window(&self) -> Option<Arc<ResponseWindow>> {
        None
    }

    /// The trace of the request, if it has one.
    fn trace(&self) -> Option<Arc<RequestTrace>> {
        None
    }

    /// The account that is charged for memory that the request leaves behind, such as the state of its sequence. `None` if there is none.
    fn account(&self) -> Option<PeerAccount> {
        None
    }

    /// The kind of memory that [`Deliver::place`] would offer for an output, for a runtime that needs to know before it computes. `None` if it is not known.
    fn likely_place(&self, _output: &str) -> Option<Place> {
        None
    }

    /// Data that replaces inputs of the request on the instances of a host policy.
    fn policy_data(&self) -> &[PolicyData] {
        &[]
    }

    /// Memory for an output for which the client named no memory. `None` if the output may lie anywhere.
    fn place(&mut self, _: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        Ok(None)
    }
}

/// Data of an input for instances of one host policy.
#[derive(Clone, Debug)]
pub struct PolicyData {
    /// The policy's name.
    pub policy: Name,
    /// The input's name.
    pub input: Name,
    /// The data. It has as many bytes as the input's shape says.
    pub data: Buffer,
}

/// Takes the responses of many requests, each of which has a number. So the state that the requests share is made once. See [`Deliver`] for one request.
pub trait DeliverNumbered: Send + Sync {
    /// Takes one response of the request with that number. None comes after the last.
    fn deliver(&self, number: u64, response: Response);
}

/// One request of a [`DeliverNumbered`].
pub struct Numbered {
    /// Takes the responses.
    pub to: Arc<dyn DeliverNumbered>,
    /// The request's number.
    pub number: u64,
}

/// Counts one in a number until it is dropped.
#[derive(Debug)]
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Adds one to `all`.
    pub fn one(all: &Arc<AtomicUsize>) -> Counted {
        all.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(all))
    }

    /// Adds one more to the same count.
    #[must_use]
    pub fn again(&self) -> Counted {
        Counted::one(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An output that needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceQuery<'q> {
    /// Its index in the model's configuration.
    pub index: usize,
    /// The model's name for it.
    pub output: &'q str,
    /// How large it is.
    pub bytes: usize,
    /// The memory that the runtime prefers. The answer may be other memory: the slot says where it lies.
    pub preferred: Place,
}

/// The only way back to the client. It takes any number of responses up to the last. If it is dropped before the last response, the client gets an error. So
/// no client waits for ever.
pub struct Reply(Option<Way>);

enum Way {
    /// Made for this request.
    Own(Box<dyn Own>),
    /// Shared with others. The request is counted until its last response was taken.
    Shared { numbered: Numbered, _counted: Counted },
}

/// A [`Deliver`] in a box that is used again.
trait Own: Send {
    fn get(&self) -> &dyn Deliver;
    fn get_mut(&mut self) -> &mut dyn Deliver;
    /// Drops the [`Deliver`], and keeps its box.
    fn end(self: Box<Self>);
}

/// `None` only in a box that is kept.
impl<D: Deliver + 'static> Own for Option<D> {
    fn get(&self) -> &dyn Deliver {
        self.as_ref().expect("only a box that is kept is empty")
    }

    fn get_mut(&mut self) -> &mut dyn Deliver {
        self.as_mut().expect("only a box that is kept is empty")
    }

    fn end(self: Box<Self>) {
        keep(self);
    }
}

impl Way {
    fn get(&self) -> &dyn Deliver {
        match self {
            Way::Own(own) => own.get(),
            Way::Shared { numbered, .. } => numbered,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Deliver {
        match self {
            Way::Own(own) => own.get_mut(),
            Way::Shared { numbered, .. } => numbered,
        }
    }

    /// Drops the way back after the last response.
    fn end(self) {
        match self {
            Way::Own(own) => own.end(),
            Way::Shared { .. } => {}
        }
    }
}

impl Deliver for Numbered {
    fn deliver(&mut self, response: Response) {
        self.to.deliver(self.number, response);
    }
}

impl Reply {
    /// A reply that hands responses to `sink`, which must not block: it runs on the thread that computed the response.
    pub fn new(sink: impl FnMut(Response) + Send + 'static) -> Reply {
        Reply::through(Sink(sink))
    }

    /// A reply that may also offer memory for outputs.
    pub fn through(deliver: impl Deliver + 'static) -> Reply {
        Reply(Some(Way::Own(boxed(deliver))))
    }

    /// A reply of one request among many, which allocates nothing.
    pub fn numbered(numbered: Numbered, counted: Counted) -> Reply {
        Reply(Some(Way::Shared { numbered, _counted: counted }))
    }

    /// A reply after the last response.
    pub fn closed() -> Reply {
        Reply(None)
    }

    /// As [`Deliver::offers_places`].
    pub fn offers_places(&self) -> bool {
        self.0.as_ref().is_some_and(|way| way.get().offers_places())
    }

    /// As [`Deliver::takes_shared`].
    pub fn takes_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|way| way.get().takes_shared())
    }

    /// As [`Deliver::input_memory`].
    pub fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
        self.0.as_ref()?.get().input_memory(output)
    }

    /// As [`Deliver::may_wait`].
    pub fn may_wait(&self) -> bool {
        self.0.as_ref().is_some_and(|way| way.get().may_wait())
    }

    /// As [`Deliver::window`].
    pub fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.0.as_ref()?.get().window()
    }

    /// As [`Deliver::trace`].
    pub fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.0.as_ref()?.get().trace()
    }

    /// As [`Deliver::policy_data`].
    pub fn policy_data(&self) -> &[PolicyData] {
        self.0.as_ref().map_or(&[], |way| way.get().policy_data())
    }

    /// As [`Deliver::account`].
    pub fn account(&self) -> Option<PeerAccount> {
        self.0.as_ref()?.get().account()
    }

    /// As [`Deliver::place`].
    pub fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.0.as_mut().map_or(Ok(None), |way| way.get_mut().place(query))
    }

    /// As [`Deliver::likely_place`].
    pub fn likely_place(&self, output: &str) -> Option<Place> {
        self.0.as_ref()?.get().likely_place(output)
    }

    /// As [`Deliver::admitted`].
    pub fn admitted(&mut self, wanted: &WantedOutputs) {
        if let Some(way) = &mut self.0 {
            way.get_mut().admitted(wanted);
        }
    }

    /// As [`Deliver::made`], for a response that is sent later.
    pub fn made(&mut self, response: &Response) {
        if let Some(way) = &mut self.0 {
            way.get_mut().made(response);
        }
    }

    /// As [`Deliver::waited`].
    pub fn waited(&mut self, queue_ns: u64) {
        if let Some(way) = &mut self.0 {
            way.get_mut().waited(queue_ns);
        }
    }

    /// Sends one response. Nothing is sent after the last.
    pub fn send(&mut self, response: Response) {
        if response.is_last() {
            if let Some(mut way) = self.0.take() {
                way.get_mut().deliver(response);
                way.end();
            }
        } else if let Some(way) = &mut self.0 {
            way.get_mut().deliver(response);
        }
    }

    /// Ends a request that was not given to its model.
    pub fn refuse(&mut self, why: Status) {
        if let Some(mut way) = self.0.take() {
            way.get_mut().refuse(why);
            way.end();
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

    /// The error of a request whose reply was dropped.
    pub fn lost() -> Status {
        Status::internal("the model ended its work on this request without a final response")
    }
}

impl Default for Reply {
    fn default() -> Reply {
        Reply::closed()
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

/// A function that takes responses.
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
    use crate::Recycled;

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
    fn requests_of_one_way_are_known_by_their_numbers_and_counted_until_their_last_response() {
        struct Log(Mutex<Vec<(u64, bool)>>);
        impl DeliverNumbered for Log {
            fn deliver(&self, number: u64, response: Response) {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push((number, response.is_last()));
            }
        }
        let (log, all) = (Arc::new(Log(Mutex::default())), Arc::new(AtomicUsize::new(0)));
        let reply = |number| {
            let to: Arc<dyn DeliverNumbered> = Arc::<Log>::clone(&log);
            Reply::numbered(Numbered { to, number }, Counted::one(&all))
        };
        let (mut one, two) = (reply(1), reply(2));
        one.send(Response::Part(Recycled::new()));
        assert_eq!(all.load(Ordering::Relaxed), 2);
        drop(two);
        one.send(Response::End);
        assert!(one.is_closed() && all.load(Ordering::Relaxed) == 0);
        assert_eq!(*log.0.lock().unwrap_or_else(PoisonError::into_inner), [(1, false), (2, true), (1, true)]);
    }

    #[test]
    fn a_dropped_reply_is_an_error_and_an_answered_one_is_silent() {
        let (part, last) = (|| Response::Part(Recycled::new()), || Response::Final(Recycled::new()));
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
