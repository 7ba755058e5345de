//! How do responses leave in the order in which their requests were started?
//!
//! A scheduler starts requests in their order. Several instances end them in any order, so what ends early is held until all that
//! started before has been answered. Requests that are never started (timed out, turned away) are answered at once.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::Slot;
use nerite_request::{Deliver, PlaceQuery, Reply, Response, ResponseWindow, Status};

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
    pub fn in_turn(&self, reply: Reply) -> Reply {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        drop(state);
        Reply::through(InTurn { order: self.clone(), number, reply: Some(reply) })
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

/// Where the response of a request goes that has its turn.
struct InTurn {
    order: ResponseOrder,
    number: u64,
    reply: Option<Reply>,
}

impl Deliver for InTurn {
    fn deliver(&mut self, response: Response) {
        if let Some(reply) = self.reply.take_if(|_| response.is_last()) {
            self.order.ended(self.number, reply, response);
        } else if let Some(reply) = &mut self.reply {
            reply.send(response);
        }
    }

    fn offers_places(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::offers_places)
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.reply.as_ref().and_then(Reply::window)
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.reply.as_mut().map_or(Ok(None), |reply| reply.place(query))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn reply(order: &ResponseOrder, number: usize, to: &mpsc::Sender<(usize, bool)>) -> Reply {
        let to = to.clone();
        order.in_turn(Reply::new(move |response: Response| {
            let failed = response.into_content().is_some_and(|content| content.is_err());
            to.send((number, failed)).expect("it is heard");
        }))
    }

    /// Requests are started as 0, 1, 2 …; `ends` says in which order they end, and `expect` which responses have left after each.
    #[track_caller]
    fn check(ends: &[usize], expect: &[&str]) {
        let (to, answers) = mpsc::channel();
        let order = ResponseOrder::default();
        let mut replies: Vec<_> = (0..ends.len()).map(|number| Some(reply(&order, number, &to))).collect();
        for (end, expect) in ends.iter().zip(expect) {
            let mut reply = replies[*end].take().expect("it ends once");
            reply.fail(Status::internal("the end"));
            assert_eq!(answers.try_iter().map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(" "), *expect);
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
        let (first, mut second) = (reply(&order, 1, &to), reply(&order, 2, &to));
        second.fail(Status::internal("the end"));
        assert!(answers.try_iter().next().is_none());
        drop(first);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, true), (2, true)]);
    }
}
