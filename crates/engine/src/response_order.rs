//! How do responses leave in the order in which their requests were started?
//!
//! A scheduler starts requests in their order. Several instances end them in any order, so what ends early is held until all that
//! started before has been answered. Requests that are never started (timed out, turned away) are answered at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nerite_request::{Reply, Response};

/// The order of the responses of one model version.
#[derive(Clone, Default)]
pub(crate) struct ResponseOrder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The number of the next request to be started.
    next: u64,
    /// Whose response leaves next.
    turn: u64,
    held: BTreeMap<u64, (Reply, Response)>,
    /// Whether a thread hands responses on now; it takes along what others bring.
    delivering: bool,
}

impl ResponseOrder {
    /// The reply of the request that is started next. It takes one response.
    pub fn in_turn(&self, id: &str, reply: Reply) -> Reply {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        drop(state);
        let (order, offers) = (self.clone(), reply.offers());
        let inner = Arc::new(Mutex::new(Some(reply)));
        let ended = Arc::clone(&inner);
        let ordered = Reply::new(id, move |response| {
            if let Some(reply) = ended.lock().unwrap_or_else(PoisonError::into_inner).take() {
                order.ended(number, reply, response);
            }
        });
        if !offers {
            return ordered;
        }
        ordered.offering(move |output, bytes| match &mut *inner.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reply) => reply.place(output, bytes),
            None => Ok(None),
        })
    }

    /// Hands on all responses whose turn it is. No lock is held meanwhile: an answer may bring the next request.
    fn ended(&self, number: u64, reply: Reply, response: Response) {
        let mut state = self.lock();
        state.held.insert(number, (reply, response));
        if state.delivering {
            return;
        }
        state.delivering = true;
        loop {
            let turn = state.turn;
            let Some((mut reply, response)) = state.held.remove(&turn) else { break };
            state.turn += 1;
            drop(state);
            reply.send(response);
            drop(reply);
            state = self.lock();
        }
        state.delivering = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Requests are started as 0, 1, 2 …; `ends` says in which order they end, and `expect` which responses have left after each.
    #[track_caller]
    fn check(ends: &[usize], expect: &[&str]) {
        let (to, answers) = mpsc::channel();
        let order = ResponseOrder::default();
        let started = |number: usize| {
            let to = to.clone();
            let reply = Reply::new(number.to_string(), move |response: Response| drop(to.send(response.id)));
            Some(order.in_turn(&number.to_string(), reply))
        };
        let mut replies: Vec<_> = (0..ends.len()).map(started).collect();
        for (end, expect) in ends.iter().zip(expect) {
            let mut reply = replies[*end].take().expect("it ends once");
            reply.send(Response { id: end.to_string().into(), last: true, ..Response::default() });
            assert_eq!(answers.try_iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" "), *expect);
        }
        assert!(order.lock().held.is_empty());
    }

    #[test]
    fn what_ends_early_waits_for_what_started_before() {
        check(&[0, 1, 2], &["0", "1", "2"]);
        check(&[2, 1, 0], &["", "", "0 1 2"]);
        check(&[1, 0, 3, 2], &["", "0 1", "", "2 3"]);
    }

    #[test]
    fn a_reply_that_is_dropped_holds_nobody_up() {
        let (to, answers) = mpsc::channel();
        let order = ResponseOrder::default();
        let reply = |id: &'static str| {
            let to = to.clone();
            order.in_turn(
                id,
                Reply::new(id, move |response| to.send((id, response.error.is_some())).expect("it is heard")),
            )
        };
        let (first, mut second) = (reply("first"), reply("second"));
        second.send(Response { last: true, ..Response::default() });
        drop(first);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [("first", true), ("second", false)]);
    }

    #[test]
    fn places_for_outputs_are_still_offered() {
        let order = ResponseOrder::default();
        let offering =
            Reply::new("", drop).offering(|_, bytes| Ok(Some(nerite_memory::Slot::try_heap(bytes).expect("memory"))));
        let mut reply = order.in_turn("", offering);
        assert!(reply.offers());
        assert_eq!(reply.place("O", 5).expect("a place").map(|slot| slot.len()), Some(5));
        assert!(!order.in_turn("", Reply::new("", drop)).offers());
    }
}
