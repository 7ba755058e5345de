//! How are responses sent in the order in which their requests were started?
//!
//! A scheduler starts requests in order, and several instances end them in any order. So a response is held until all requests that started earlier
//! have been answered. Requests that are never started (timed out or rejected) are answered at once.
//!
//! The number and the bytes of held responses are bounded. At the bound no further request is started. The request that the others wait for is
//! running already, so the held responses are sent in the end.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::Slot;
use nerite_request::{Deliver, InputMemory, PeerAccount, PlaceQuery, Reply, Response, ResponseWindow, Status};

/// The order of the responses of one model version.
#[derive(Clone)]
pub(crate) struct ResponseOrder(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    bounds: Bounds,
    /// Called, without a lock, when the held responses are within their bounds again.
    on_room: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The bounds of the held responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub responses: usize,
    pub bytes: usize,
}

#[derive(Default)]
struct State {
    /// The number that the next started request gets.
    next: u64,
    /// The number of the request whose response is sent next.
    turn: u64,
    held: BTreeMap<u64, (Reply, Last)>,
    held_bytes: usize,
    /// Whether the bounds were reached since `on_room` was last called.
    was_full: bool,
    /// Whether a thread is sending responses now. It also sends those that other threads add.
    delivering: bool,
}

/// The end of a request.
enum Last {
    Response(Response),
    Refusal(Status),
}

impl Last {
    fn inline_bytes(&self) -> usize {
        match self {
            Last::Response(response) => response.inline_bytes(),
            Last::Refusal(why) => why.message.len(),
        }
    }

    fn send(self, reply: &mut Reply) {
        match self {
            Last::Response(response) => reply.send(response),
            Last::Refusal(why) => reply.refuse(why),
        }
    }
}

impl ResponseOrder {
    /// An order without requests, with these bounds.
    pub fn new(bounds: Bounds) -> ResponseOrder {
        ResponseOrder(Arc::new(Shared { state: Mutex::default(), bounds, on_room: OnceLock::new() }))
    }

    /// Sets the function that is called each time the held responses are within their bounds again.
    pub fn on_room(&self, callback: impl Fn() + Send + Sync + 'static) {
        // It is set once, when the pool is made.
        drop(self.0.on_room.set(Box::new(callback)));
    }

    /// Whether the bounds are reached, so no further request may be started.
    pub fn is_full(&self) -> bool {
        self.lock().is_full(self.0.bounds)
    }

    /// Wraps the reply of the request that is started next. It takes one response.
    pub fn in_turn(&self, reply: Reply) -> Reply {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        drop(state);
        Reply::through(InTurn { order: self.clone(), number, reply: Some(reply) })
    }

    /// Sends all responses that are next in the order. No lock is held meanwhile, because an answer may cause the next request.
    fn ended(&self, number: u64, reply: Reply, last: Last) {
        let mut state = self.lock();
        state.was_full |= state.is_full(self.0.bounds);
        state.held_bytes = state.held_bytes.saturating_add(last.inline_bytes());
        state.held.insert(number, (reply, last));
        state.was_full |= state.is_full(self.0.bounds);
        if state.delivering {
            return;
        }
        state.delivering = true;
        loop {
            let turn = state.turn;
            let Some((mut reply, last)) = state.held.remove(&turn) else { break };
            state.held_bytes = state.held_bytes.saturating_sub(last.inline_bytes());
            state.turn += 1;
            drop(state);
            last.send(&mut reply);
            drop(reply);
            state = self.lock();
        }
        state.delivering = false;
        let has_room = state.was_full && !state.is_full(self.0.bounds);
        state.was_full &= !has_room;
        drop(state);
        if let Some(callback) = self.0.on_room.get().filter(|_| has_room) {
            callback();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Responses that are next in the order do not count, because they are being sent.
    fn is_full(&self, bounds: Bounds) -> bool {
        let waits = !self.held.contains_key(&self.turn);
        waits && (self.held.len() >= bounds.responses || self.held_bytes >= bounds.bytes)
    }
}

/// Takes the response of a request and holds it until it is next in the order.
struct InTurn {
    order: ResponseOrder,
    number: u64,
    reply: Option<Reply>,
}

impl Deliver for InTurn {
    fn deliver(&mut self, response: Response) {
        if let Some(mut reply) = self.reply.take_if(|_| response.is_last()) {
            // The thread that sends it may be a front thread, which must not do the slow part of the work.
            reply.made(&response);
            self.order.ended(self.number, reply, Last::Response(response));
        } else if let Some(reply) = &mut self.reply {
            reply.send(response);
        }
    }

    fn refuse(&mut self, why: Status) {
        if let Some(reply) = self.reply.take() {
            self.order.ended(self.number, reply, Last::Refusal(why));
        }
    }

    fn may_wait(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::may_wait)
    }

    fn offers_places(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::offers_places)
    }

    fn takes_shared(&self) -> bool {
        self.reply.as_ref().is_some_and(Reply::takes_shared)
    }

    fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
        self.reply.as_ref()?.input_memory(output)
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.reply.as_ref().and_then(Reply::window)
    }

    fn account(&self) -> Option<PeerAccount> {
        self.reply.as_ref().and_then(Reply::account)
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.reply.as_mut().map_or(Ok(None), |reply| reply.place(query))
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nerite_memory::Buffer;
    use nerite_request::{InferResponse, Output};
    use nerite_tensor::DataType;

    use super::*;

    const BOUNDS: Bounds = Bounds { responses: 3, bytes: 100 };

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
        let order = ResponseOrder::new(BOUNDS);
        let mut replies: Vec<_> = (0..ends.len()).map(|number| Some(reply(&order, number, &to))).collect();
        for (end, expect) in ends.iter().zip(expect) {
            let mut reply = replies[*end].take().expect("it ends once");
            reply.fail(Status::internal("the end"));
            assert_eq!(answers.try_iter().map(|(number, _)| number.to_string()).collect::<Vec<_>>().join(" "), *expect);
        }
        assert!(order.lock().held.is_empty());
    }

    #[test]
    fn an_early_response_waits_for_those_of_earlier_requests() {
        check(&[0, 1, 2], &["0", "1", "2"]);
        check(&[2, 1, 0], &["", "", "0 1 2"]);
        check(&[1, 0, 3, 2], &["", "0 1", "", "2 3"]);
    }

    fn response(bytes: usize) -> Response {
        let data = Buffer::from(vec![0; bytes]);
        let shape = [bytes as i64].into_iter().collect();
        let output = Output { index: 0, name: "Y".into(), datatype: DataType::Uint8, shape, data, placed: false };
        Response::Final(InferResponse { outputs: vec![output].into(), ..InferResponse::default() }.into())
    }

    /// Ends the second request and the later ones with this many bytes. Checks whether the bounds are reached, and how often `on_room` was called.
    #[track_caller]
    fn check_full(bytes: &[usize], expect: bool) {
        let (to, answers) = mpsc::channel();
        let order = ResponseOrder::new(BOUNDS);
        let (sender, room) = mpsc::channel();
        order.on_room(move || sender.send(()).expect("it is heard"));
        let mut first = reply(&order, 0, &to);
        for (at, bytes) in bytes.iter().enumerate() {
            reply(&order, at + 1, &to).send(response(*bytes));
        }
        assert_eq!(order.is_full(), expect, "{bytes:?}");
        first.send(response(1000));
        assert!(!order.is_full());
        assert_eq!((answers.try_iter().count(), room.try_iter().count()), (bytes.len() + 1, usize::from(expect)));
    }

    #[test]
    fn held_responses_are_bounded_and_free_space_is_reported() {
        check_full(&[], false);
        check_full(&[10, 10], false);
        check_full(&[10, 10, 10], true);
        check_full(&[99], false);
        check_full(&[100], true);
    }

    /// Sends a message for each request that was refused.
    struct Refusals(mpsc::Sender<&'static str>);

    impl Deliver for Refusals {
        fn deliver(&mut self, _: Response) {
            self.0.send("answered").expect("it is heard");
        }

        fn refuse(&mut self, _: Status) {
            self.0.send("refused").expect("it is heard");
        }
    }

    #[test]
    fn a_refusal_has_its_turn_and_stays_one() {
        let (to, ends) = mpsc::channel();
        let order = ResponseOrder::new(BOUNDS);
        let mut replies: Vec<_> = (0..2).map(|_| order.in_turn(Reply::through(Refusals(to.clone())))).collect();
        replies[1].refuse(Status::unavailable("no room"));
        assert!(ends.try_iter().next().is_none());
        replies[0].fail(Status::internal("the end"));
        assert_eq!(ends.try_iter().collect::<Vec<_>>(), ["answered", "refused"]);
    }

    #[test]
    fn a_dropped_reply_does_not_block_later_ones() {
        let (to, answers) = mpsc::channel();
        let order = ResponseOrder::new(BOUNDS);
        let (first, mut second) = (reply(&order, 1, &to), reply(&order, 2, &to));
        second.fail(Status::internal("the end"));
        assert!(answers.try_iter().next().is_none());
        drop(first);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [(1, true), (2, true)]);
    }
}
