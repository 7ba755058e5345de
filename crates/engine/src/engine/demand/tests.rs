//! Is a model that several clients ask for loaded once, and are all of them answered?

use std::sync::mpsc::{Receiver, channel};

use super::*;

const BOTH: [Peer; 2] = [Peer::User { uid: 1 }, Peer::User { uid: 2 }];

/// Queues a request for a model. Returns the channel of its result, and whether a thread must be started for the client's queue.
fn request(demand: &Demand, model: &str, peer: &Peer) -> (Receiver<Result<(), Status>>, bool) {
    let (sender, receiver) = channel();
    let lined_up =
        demand.line_up(model, peer, false, Box::new(move |outcome| sender.send(outcome).expect("the test listens")));
    (receiver, lined_up.expect("the line is short").1)
}

#[test]
fn a_model_that_two_clients_ask_for_is_loaded_once() {
    let demand = Demand::new(None);
    let [x, y] = BOTH;
    let (of_x, begins) = request(&demand, "model", &x);
    assert!(begins);
    assert_eq!(demand.next_in_line(&x).as_deref(), Some("model"));
    let (of_y, begins) = request(&demand, "model", &y);
    let (other_of_y, begins_again) = request(&demand, "other", &y);
    assert_eq!((begins, begins_again), (true, false));
    assert_eq!(demand.waiting_peers("model"), BTreeSet::from([x.clone(), y.clone()]));
    // The load of the other client serves both requests, so this queue goes on to its next model.
    assert_eq!(demand.next_in_line(&y).as_deref(), Some("other"));
    demand.finish("other", &Err(Status::unavailable("its own")));
    assert_eq!(other_of_y.try_recv(), Ok(Err(Status::unavailable("its own"))));
    assert_eq!(demand.next_in_line(&y), None);
    assert!(of_x.try_recv().is_err() && of_y.try_recv().is_err() && demand.is_loading("model"));
    demand.finish("model", &Ok(()));
    assert_eq!((of_x.try_recv(), of_y.try_recv()), (Ok(Ok(())), Ok(Ok(()))));
    assert!(!demand.is_loading("model") && demand.waiting_peers("model").is_empty());
    assert_eq!((demand.next_in_line(&x), demand.counts().waiting), (None, 0));
    // A later request loads it again.
    let (_of_y, begins) = request(&demand, "model", &y);
    assert!(begins);
    assert_eq!(demand.next_in_line(&y).as_deref(), Some("model"));
}

#[test]
fn a_loaded_model_stays_until_those_that_hold_it_are_admitted() {
    let demand = Demand::new(None);
    let waiting = |peer: &Peer, holds: bool| {
        let (number, _) = demand.line_up("model", peer, holds, Box::new(|_| ())).expect("the line is short");
        Waiting { demand: Arc::clone(&demand), model: "model".to_owned(), number }
    };
    let [x, y] = BOTH;
    let (of_x, of_y) = (waiting(&x, true), waiting(&y, false));
    of_y.hold();
    // This request holds the model too late, after the load. So it does not keep the model from others.
    let slow = waiting(&y, false);
    assert_eq!(demand.next_in_line(&x).as_deref(), Some("model"));
    demand.finish("model", &Ok(()));
    slow.hold();
    let now_us = now_us();
    assert!(!demand.is_loading("model") && demand.is_kept("model", now_us));
    assert_eq!((demand.needed(now_us), demand.counts().waiting), (vec!["model".to_owned()], 0));
    drop(of_x);
    assert!(demand.is_kept("model", now_us), "Y's request was not admitted");
    // Y's request holds the model until this time at most.
    let over_us = now_us + ADMISSION_HOLD_US_MAX;
    assert!(!demand.is_kept("model", over_us) && demand.needed(over_us).is_empty());
    drop(of_y);
    assert!(!demand.is_kept("model", now_us) && demand.needed(now_us).is_empty());
    // If the load fails, a request does not hold the model.
    let of_x = waiting(&x, true);
    assert_eq!(demand.next_in_line(&x).as_deref(), Some("model"));
    demand.finish("model", &Err(Status::unavailable("no room")));
    assert!(!demand.is_kept("model", now_us));
    drop((of_x, slow));
}

#[test]
fn a_model_that_is_chosen_to_leave_is_not_taken_for_loaded() {
    let demand = Demand::new(None);
    demand.eviction_begins("model");
    assert!(demand.is_kept("model", now_us()), "nobody else evicts it as well");
    let (sender, awaited) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            demand.await_eviction("model");
            sender.send(()).expect("the test listens");
        });
        assert!(awaited.recv_timeout(2 * LEAVE_PATIENCE).is_err());
        demand.eviction_ends("model");
        awaited.recv().expect("the thread goes on");
    });
    demand.await_eviction("model");
}

#[test]
fn nobody_waits_once_the_server_stops() {
    let demand = Demand::new(None);
    let [x, y] = BOTH;
    let (of_x, _) = request(&demand, "model", &x);
    assert_eq!(demand.next_in_line(&x).as_deref(), Some("model"));
    let (of_y, _) = request(&demand, "other", &y);
    let refusal = Status::unavailable("the server stops");
    demand.refuse_all(&refusal);
    let refused = Ok(Err(refusal.clone()));
    assert_eq!((of_x.try_recv(), of_y.try_recv(), demand.counts().waiting), (refused.clone(), refused, 0));
    assert_eq!(demand.line_up("model", &y, false, Box::new(|_| ())).err(), Some(refusal));
    // The load that has begun ends, and no other one begins.
    demand.finish("model", &Ok(()));
    assert_eq!((demand.next_in_line(&x), demand.next_in_line(&y)), (None, None));
}
