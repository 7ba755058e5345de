//! Are responses sent in the order of their requests, in whatever order the requests end?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_memory::Buffer;
use nerite_request::{InferResponse, Output};
use nerite_tensor::DataType;
use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds { responses: 4, bytes: 300 };

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Answers { bytes: usize },
    Fails,
    IsRefused,
    IsDropped,
}

#[derive(Clone, Debug)]
enum Step {
    /// A request is started. When its client gets the last response, another running request ends: the one with this number, counted from the oldest.
    Start { ends_another: Option<usize> },
    /// A request sends a response that is not its last.
    SendPart { which: usize },
    /// A request ends.
    End { which: usize, end: End },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = prop_oneof![
        4 => (0usize..200).prop_map(|bytes| End::Answers { bytes }),
        1 => Just(End::Fails),
        1 => Just(End::IsRefused),
        1 => Just(End::IsDropped),
    ];
    let step = prop_oneof![
        4 => prop::option::weighted(0.2, 0usize..4).prop_map(|ends_another| Step::Start { ends_another }),
        1 => (0usize..8).prop_map(|which| Step::SendPart { which }),
        4 => (0usize..8, end).prop_map(|(which, end)| Step::End { which, end }),
    ];
    prop::collection::vec(step, 0..80)
}

fn content(bytes: usize) -> InferResponse {
    let shape = [bytes as i64].into_iter().collect();
    let data = Buffer::from(vec![0; bytes]);
    let output = Output { index: 0, name: "Y".into(), datatype: DataType::Uint8, shape, data, placed: false };
    InferResponse { outputs: vec![output].into(), ..InferResponse::default() }
}

/// The bytes that the response counts while it is held.
fn held_bytes(end: End) -> usize {
    match end {
        End::Answers { bytes } => Last::Response(Response::Final(content(bytes).into())),
        End::Fails => Last::Response(Response::failed(failure())),
        End::IsRefused => Last::Refusal(refusal()),
        End::IsDropped => Last::Response(Response::failed(Reply::lost())),
    }
    .inline_bytes()
}

fn end_by(mut reply: Reply, end: End) {
    match end {
        End::Answers { bytes } => reply.send(Response::Final(content(bytes).into())),
        End::Fails => reply.fail(failure()),
        End::IsRefused => reply.refuse(refusal()),
        End::IsDropped => drop(reply),
    }
}

fn failure() -> Status {
    Status::internal("the end")
}

fn refusal() -> Status {
    Status::unavailable("there is no room for it")
}

/// All requests of a test. The expected order follows from these, and is not read from the [`ResponseOrder`].
#[derive(Default)]
struct Requests {
    started: usize,
    running: BTreeMap<usize, Reply>,
    /// The bytes of those that have ended, and whose clients did not get the last response yet.
    held: BTreeMap<usize, usize>,
    /// The numbers of requests whose clients got the last response.
    heard: Vec<usize>,
    /// Responses that were not the last ones.
    parts: Vec<usize>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Requests>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, order: &ResponseOrder, ends_another: Option<usize>) {
        let mut requests = self.lock();
        let number = requests.started;
        let client = Client { number, requests: self.clone(), ends_another };
        requests.started += 1;
        requests.running.insert(number, order.in_turn(Reply::through(client)));
    }

    /// Takes one of the requests that run, counted from the oldest.
    fn take_running(&self, which: usize) -> Option<(usize, Reply)> {
        let mut requests = self.lock();
        let number = requests.running.keys().nth(which).copied()?;
        requests.running.remove_entry(&number)
    }

    fn send_part(&self, which: usize) {
        let Some((number, mut reply)) = self.take_running(which) else { return };
        reply.send(Response::Part(content(1).into()));
        let mut requests = self.lock();
        assert_eq!(requests.parts.last(), Some(&number), "a part does not wait for earlier requests");
        requests.running.insert(number, reply);
    }

    fn end(&self, which: usize, end: End) {
        let Some((number, reply)) = self.take_running(which) else { return };
        self.lock().held.insert(number, held_bytes(end));
        end_by(reply, end);
    }

    /// Checks that all requests before the oldest one that runs were answered, in order, and no others. Returns whether the others fill the bounds.
    fn check(&self) -> bool {
        let requests = self.lock();
        let oldest = requests.running.keys().next().copied().unwrap_or(requests.started);
        assert_eq!(requests.heard, (0..oldest).collect::<Vec<_>>(), "request {oldest} is the oldest that runs");
        requests.held.len() >= BOUNDS.responses || requests.held.values().sum::<usize>() >= BOUNDS.bytes
    }
}

/// A client. When it gets the last response, it may end another request.
struct Client {
    number: usize,
    requests: Shared,
    ends_another: Option<usize>,
}

impl Client {
    fn hears_last(&mut self) {
        let mut requests = self.requests.lock();
        requests.held.remove(&self.number);
        requests.heard.push(self.number);
        drop(requests);
        if let Some(which) = self.ends_another {
            self.requests.end(which, End::Answers { bytes: 1 });
        }
    }
}

impl Deliver for Client {
    fn deliver(&mut self, response: Response) {
        if response.is_last() {
            self.hears_last();
        } else {
            self.requests.lock().parts.push(self.number);
        }
    }

    fn refuse(&mut self, _: Status) {
        self.hears_last();
    }
}

proptest! {
    #[test]
    fn last_responses_leave_in_the_order_of_the_starts(steps in steps()) {
        let (order, requests) = (ResponseOrder::new(BOUNDS), Shared::default());
        let rooms = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&rooms);
        order.on_room(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let (mut was_full, mut rooms_before) = (false, 0);
        for step in steps {
            match step {
                Step::Start { ends_another } => requests.start(&order, ends_another),
                Step::SendPart { which } => requests.send_part(which),
                Step::End { which, end } => requests.end(which, end),
            }
            let is_full = requests.check();
            prop_assert_eq!(order.is_full(), is_full);
            let rooms_now = rooms.load(Ordering::Relaxed);
            prop_assert!(rooms_now > rooms_before || is_full || !was_full, "nobody was told of the room");
            prop_assert!(rooms_now == rooms_before || !is_full, "somebody was told of room that is not there");
            (was_full, rooms_before) = (is_full, rooms_now);
        }
        // A pool starts no request while the bounds are reached. Here all that run end, and all are answered.
        while !requests.lock().running.is_empty() {
            requests.end(0, End::Fails);
        }
        prop_assert!(!requests.check() && !order.is_full());
    }

    #[test]
    fn responses_of_several_threads_leave_in_order(threads in prop::collection::vec(0usize..4, 1..60)) {
        let (order, requests) = (ResponseOrder::new(BOUNDS), Shared::default());
        for _ in &threads {
            requests.start(&order, None);
        }
        let mut work: [Vec<Reply>; 4] = Default::default();
        for thread in &threads {
            let (number, reply) = requests.take_running(0).expect("as many as there are threads in the list");
            requests.lock().held.insert(number, 0);
            work[*thread].push(reply);
        }
        std::thread::scope(|scope| {
            for (at, replies) in work.into_iter().enumerate() {
                // Every second thread answers from the last request to the first.
                let replies: Vec<Reply> = if at % 2 == 0 { replies } else { replies.into_iter().rev().collect() };
                scope.spawn(|| {
                    for reply in replies {
                        end_by(reply, End::Answers { bytes: 1 });
                    }
                });
            }
        });
        prop_assert!(!requests.check());
    }
}
