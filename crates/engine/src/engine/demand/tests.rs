//! Is a model that several clients ask for loaded once, and are all of them answered?

use std::sync::mpsc::{Receiver, channel};

use super::*;

const BOTH: [Peer; 2] = [Peer::User { uid: 1 }, Peer::User { uid: 2 }];

/// Asks for a model. Returns the channel of its result, and whether a thread must be started for the client's queue.
fn request(demand: &Demand, model: &str, peer: &Peer) -> (Receiver<Result<(), Status>>, bool) {
    let (sender, receiver) = channel();
    let lined_up =
        demand.line_up(model, peer, Box::new(move |outcome| sender.send(outcome).expect("the test listens")));
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
    assert_eq!(demand.askers("model"), BTreeSet::from([x.clone(), y.clone()]));
    // The load of the other client serves both requests, so this queue goes on to its next model.
    assert_eq!(demand.next_in_line(&y).as_deref(), Some("other"));
    demand.finish("other", &Err(Status::unavailable("its own")));
    assert_eq!(other_of_y.try_recv(), Ok(Err(Status::unavailable("its own"))));
    assert_eq!(demand.next_in_line(&y), None);
    assert!(of_x.try_recv().is_err() && of_y.try_recv().is_err() && demand.is_loading("model"));
    demand.finish("model", &Ok(()));
    assert_eq!((of_x.try_recv(), of_y.try_recv()), (Ok(Ok(())), Ok(Ok(()))));
    assert!(!demand.is_loading("model") && demand.askers("model").is_empty());
    assert_eq!((demand.next_in_line(&x), demand.counts().waiting), (None, 0));
    // Asked for again it is loaded again.
    let (_of_y, begins) = request(&demand, "model", &y);
    assert!(begins);
    assert_eq!(demand.next_in_line(&y).as_deref(), Some("model"));
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
    assert_eq!(demand.line_up("model", &y, Box::new(|_| ())).err(), Some(refusal));
    // The load that has begun ends, and no other one begins.
    demand.finish("model", &Ok(()));
    assert_eq!((demand.next_in_line(&x), demand.next_in_line(&y)), (None, None));
}
