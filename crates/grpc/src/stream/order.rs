//! Which response is sent next?
//!
//! Models that send one response to each request are answered in the order of the requests. Decoupled models send responses at any time, in between.

use std::collections::VecDeque;
use std::sync::Arc;

use nerite_request::{Cancel, InferResponse, Name, Recycled, RequestTrace, Response, Status};

/// The fields of a request that its responses need.
#[derive(Debug, Default)]
pub(super) struct Item {
    pub(super) id: Name,
    pub(super) model: Name,
    pub(super) version: Name,
    pub(super) decoupled: bool,
    pub(super) cancel: Cancel,
    /// The trace of the request, if it is traced.
    pub(super) trace: Option<Arc<RequestTrace>>,
}

impl Item {
    /// A response that only identifies its request.
    pub(super) fn as_response(&self) -> Recycled<InferResponse> {
        let Item { id, model, version, .. } = self;
        InferResponse { id: id.clone(), model: model.clone(), version: version.clone(), ..InferResponse::default() }
            .into()
    }
}

/// What is sent to the client of a stream about one of its requests.
#[derive(Debug)]
pub(super) enum StreamAnswer {
    /// The request was refused before it began.
    Refused(Status),
    /// A response.
    Response(Response),
}

/// A response that is to be sent now.
#[derive(Debug)]
pub(super) struct ReadyResponse {
    pub(super) item: Arc<Item>,
    pub(super) response: StreamAnswer,
}

/// The requests of a stream whose last response has not arrived or is held back, oldest first. Responses that can be sent are in `ready`.
#[derive(Debug, Default)]
pub(super) struct Order {
    entries: VecDeque<Entry>,
    ready: VecDeque<ReadyResponse>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    item: Arc<Item>,
    /// Responses that arrived before those of earlier requests.
    held: VecDeque<StreamAnswer>,
    done: bool,
}

impl Order {
    pub(super) fn new() -> Order {
        Order::default()
    }

    /// Adds a request. Returns its number.
    pub(super) fn admit(&mut self, item: Arc<Item>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.push_back(Entry { number, item, held: VecDeque::new(), done: false });
        number
    }

    /// Call this when a request was refused.
    pub(super) fn refuse(&mut self, number: u64, why: Status) {
        self.take(number, Some(StreamAnswer::Refused(why)), true);
    }

    /// Call this when a response has arrived. `None` is an end without tensors that is not sent.
    pub(super) fn arrived(&mut self, number: u64, response: Option<Response>, last: bool) {
        self.take(number, response.map(StreamAnswer::Response), last);
    }

    fn take(&mut self, number: u64, outcome: Option<StreamAnswer>, last: bool) {
        // Entries are removed anywhere but added at the end, so they are sorted by number.
        let Ok(at) = self.entries.binary_search_by_key(&number, |entry| entry.number) else { return };
        let entry = &mut self.entries[at];
        entry.done |= last;
        if entry.item.decoupled {
            let item = Arc::clone(&entry.item);
            self.ready.extend(outcome.map(|response| ReadyResponse { item, response }));
            if last {
                self.entries.remove(at);
            }
            return;
        }
        entry.held.extend(outcome);
        if self.entries.iter().take(at).all(|before| before.item.decoupled) {
            self.release(at);
        }
    }

    /// Makes the responses of the request at `at` ready to be sent. If they include its last one, continues with the next request.
    fn release(&mut self, mut at: usize) {
        while let Some(entry) = self.entries.get_mut(at) {
            if entry.item.decoupled {
                at += 1;
                continue;
            }
            let item = &entry.item;
            self.ready.extend(entry.held.drain(..).map(|response| ReadyResponse { item: Arc::clone(item), response }));
            if !entry.done {
                return;
            }
            self.entries.remove(at);
        }
    }

    /// The next response to send.
    pub(super) fn next(&mut self) -> Option<ReadyResponse> {
        self.ready.pop_front()
    }

    /// Number of requests whose last response has not arrived or is held back.
    pub(super) fn waiting(&self) -> usize {
        self.entries.len()
    }

    /// Whether all responses were sent.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.ready.is_empty()
    }

    /// Cancels and removes all requests whose last response has not arrived or is held back, and drops the responses that are not sent.
    pub(super) fn cancel(&mut self) {
        for entry in self.entries.drain(..) {
            entry.item.cancel.cancel();
        }
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script: `d` and `o` admit a decoupled or an ordered request. `3` is a response to request 3, `3!` its last one, `3.` an end without a
    /// response, `3x` a refusal. Expects the numbers of the requests in the order of sending.
    #[track_caller]
    fn check(script: &str, sent: &str) {
        let mut order = Order::new();
        let mut got = Vec::new();
        for word in script.split_whitespace() {
            match word {
                "d" | "o" => {
                    let item = Item { id: order.next.to_string().into(), decoupled: word == "d", ..Item::default() };
                    order.admit(Arc::new(item));
                }
                _ => {
                    let number = u64::from(word.as_bytes()[0] - b'0');
                    match &word[1..] {
                        "" => order.arrived(number, Some(Response::Part(Recycled::new())), false),
                        "!" => order.arrived(number, Some(Response::Part(Recycled::new())), true),
                        "." => order.arrived(number, None, true),
                        _ => order.refuse(number, Status::invalid("no")),
                    }
                }
            }
            got.extend(std::iter::from_fn(|| order.next()).map(|turn| turn.item.id.clone()));
        }
        assert_eq!(got.join(" "), sent, "{script}");
        let open = script.split_whitespace().filter(|w| matches!(*w, "d" | "o")).count();
        let closed = script.split_whitespace().filter(|w| w.ends_with(['!', '.', 'x'])).count();
        assert_eq!(order.is_idle(), open == closed);
    }

    #[test]
    fn ordered_requests_are_answered_in_order() {
        check("o 0!", "0");
        check("o o 1! 0!", "0 1");
        check("o o o 2! 1! 0!", "0 1 2");
        check("o o 1! o 2! 0!", "0 1 2");
        check("o o 1x 0!", "0 1");
        check("o o o 2! 0! 1.", "0 2");
        check("o o 1! 0", "0");
        check("o o 1! 0 0 0!", "0 0 0 1");
    }

    #[test]
    fn decoupled_requests_do_not_wait() {
        check("d d 1 0 1 0! 1!", "1 0 1 0 1");
        check("o d 1 1! 0!", "1 1 0");
        check("d o 1! 0 0.", "1 0");
        check("o d o 2! 1 0! 1.", "1 0 2");
        check("d o o 2! 1! 0x", "1 2 0");
    }

    #[test]
    fn responses_after_the_last_are_dropped() {
        let mut order = Order::new();
        order.admit(Arc::default());
        order.arrived(0, None, true);
        order.arrived(0, Some(Response::Part(Recycled::new())), true);
        order.arrived(9, Some(Response::Part(Recycled::new())), true);
        assert!(order.next().is_none() && order.is_idle());
    }

    #[test]
    fn cancelling_reaches_every_open_request() {
        let mut order = Order::new();
        let items: Vec<Arc<Item>> = (0..3).map(|_| Arc::default()).collect();
        for item in &items {
            order.admit(Arc::clone(item));
        }
        order.arrived(0, Some(Response::Part(Recycled::new())), true);
        order.cancel();
        let cancelled: Vec<bool> = items.iter().map(|item| item.cancel.is_cancelled()).collect();
        assert_eq!(cancelled, [false, true, true]);
        assert!(order.is_idle());
    }
}
