//! Does a client get a slot for its sequence in its turn, and a place in the queue, however many sequences another one has there?

use nerite_schedule::{Direct, DirectPolicy, Oldest, OldestPolicy, Rejection, Scheduler};
use proptest::prelude::*;

use crate::sequences::{
    RUN_US, SequenceRequest, SimulatedEvent, Simulation, check, direct, direct_policy, events, oldest, oldest_policy,
};

/// The peer that sends more than the server can do.
const FLOOD: u64 = 1;
/// The peer that has one sequence at a time.
const WITNESS: u64 = 2;

/// Sends a request of sequence `sequence` of that peer: with START if `flags` has `s`, with END if it has `e`.
fn send(simulation: &mut Simulation, peer: u64, sequence: u64, flags: &str) {
    let (start, end) = (flags.contains('s'), flags.contains('e'));
    simulation.send(&SequenceRequest { peer, sequence, start, end, patience_us: None, shapes: 0 });
}

/// Lets the flood start `flood` sequences of one request, and the witness then one. Returns the number of requests that ran before its own.
fn ran_before(scheduler: impl Scheduler + Send + 'static, rows_max: usize, flood: u64) -> usize {
    let mut simulation = Simulation::new(scheduler, 1, rows_max);
    (0..flood).for_each(|sequence| send(&mut simulation, FLOOD, 10 + sequence, "se"));
    send(&mut simulation, WITNESS, 1, "se");
    simulation.pass_until((flood + 2) * RUN_US);
    let order = simulation.ran.iter().map(|(number, ..)| *number as u64);
    let (own, all) = (order.clone().position(|number| number == flood), order.count() as u64);
    assert_eq!(all, flood + 1, "all run");
    own.expect("it ran")
}

#[test]
fn a_backlog_of_thousands_keeps_nobody_waiting() {
    for slots in [1, 2, 4] {
        // Those that have slots, and one turn of the flood.
        assert!(ran_before(direct(1, slots, 0, 0.0), slots, 3_000) <= slots + 1, "{slots} slots");
        assert!(ran_before(oldest(1, slots, 1, 0), 1, 3_000) <= slots + 1, "{slots} candidates");
    }
}

#[test]
fn one_client_alone_is_served_in_the_order_of_arrival() {
    for mut simulation in with_queue_of(100) {
        (0..50).for_each(|sequence| send(&mut simulation, FLOOD, sequence, "se"));
        simulation.pass_until(60 * RUN_US);
        assert!(simulation.ran.iter().map(|(number, ..)| *number).eq(0..50));
    }
}

/// Both strategies with one slot and a queue of that length.
fn with_queue_of(requests_max: usize) -> [Simulation; 2] {
    let requests_max = Some(requests_max);
    let direct = Direct::new(DirectPolicy { requests_max, ..direct_policy(1, 1, 0, 0.0) });
    let oldest = Oldest::new(OldestPolicy { requests_max, ..oldest_policy(1, 1, 1, 0) });
    [Simulation::new(direct, 1, 1), Simulation::new(oldest, 1, 1)]
}

/// Checks that these requests were rejected because the queue was full, and no others, and which ran.
#[track_caller]
fn check_ends(simulation: &mut Simulation, overloaded: &[usize], ran: &[usize]) {
    simulation.pass_until(simulation.now_us + 20 * RUN_US);
    assert!(simulation.rejected.values().all(|why| *why == Rejection::Overloaded), "{:?}", simulation.rejected);
    assert!(simulation.rejected.keys().eq(overloaded), "{:?}", simulation.rejected);
    assert_eq!(simulation.ran.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), ran);
}

#[test]
fn a_flood_leaves_places_in_the_backlog() {
    for mut simulation in with_queue_of(4) {
        (0..6).for_each(|sequence| send(&mut simulation, FLOOD, 10 + sequence, "se"));
        // The first runs, and three wait.
        send(&mut simulation, WITNESS, 1, "se");
        send(&mut simulation, WITNESS, 2, "se");
        check_ends(&mut simulation, &[4, 5, 7], &[0, 1, 6, 2, 3]);
    }
}

#[test]
fn further_requests_have_places_of_their_own() {
    for mut simulation in with_queue_of(4) {
        send(&mut simulation, FLOOD, 10, "s");
        (0..4).for_each(|sequence| send(&mut simulation, FLOOD, 20 + sequence, "se"));
        // The backlog has no more places for the flood, and three requests of its sequence may wait beside it.
        for flags in ["", "", "", "e"] {
            send(&mut simulation, FLOOD, 10, flags);
        }
        send(&mut simulation, WITNESS, 1, "s");
        send(&mut simulation, WITNESS, 1, "e");
        assert_eq!(simulation.rejected.keys().collect::<Vec<_>>(), [&4, &8]);
        // The END that was rejected may be sent again.
        simulation.pass_until(simulation.now_us + 4 * RUN_US);
        send(&mut simulation, FLOOD, 10, "e");
        check_ends(&mut simulation, &[4, 8], &[0, 5, 6, 7, 11, 1, 9, 10, 2, 3]);
    }
}

#[test]
fn requests_of_candidates_have_places_too() {
    let policy = OldestPolicy { requests_max: Some(4), ..oldest_policy(1, 8, 1, 0) };
    let mut simulation = Simulation::new(Oldest::new(policy), 1, 1);
    (0..6).for_each(|sequence| send(&mut simulation, FLOOD, 10 + sequence, "s"));
    send(&mut simulation, WITNESS, 1, "se");
    check_ends(&mut simulation, &[4, 5], &[0, 1, 6, 2, 3]);
}

#[test]
fn nobody_keeps_a_slot_by_starting_an_id_again_and_again() {
    for mut simulation in with_queue_of(100) {
        (0..5).for_each(|_| send(&mut simulation, FLOOD, 10, "s"));
        send(&mut simulation, WITNESS, 1, "se");
        send(&mut simulation, WITNESS, 1, "se");
        check_ends(&mut simulation, &[], &[0, 5, 1, 6, 2, 3, 4]);
    }
    // Nor if each one starts when the one before it has run.
    for mut simulation in with_queue_of(100) {
        send(&mut simulation, FLOOD, 10, "s");
        send(&mut simulation, WITNESS, 1, "se");
        simulation.pass_until(2 * RUN_US);
        send(&mut simulation, FLOOD, 10, "s");
        check_ends(&mut simulation, &[], &[0, 1, 2]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn every_request_of_several_clients_ends_once_and_in_order(
        events in events(), peers in prop::collection::vec(1u64..4, 60), instances in 1usize..3, places in 1usize..4,
        requests_max in 0usize..12,
    ) {
        let mut events = events;
        for ((_, event), peer) in events.iter_mut().zip(peers) {
            if let SimulatedEvent::Send(step) = event {
                (step.peer, step.patience_us) = (peer, None);
            }
        }
        let requests_max = Some(requests_max);
        let scheduler = Direct::new(DirectPolicy { requests_max, ..direct_policy(instances, places, 10, 0.5) });
        let mut simulation = Simulation::new(scheduler, instances, places);
        simulation.do_all(&events);
        check(&simulation, true);
        let scheduler = Oldest::new(OldestPolicy { requests_max, ..oldest_policy(instances, places, 2, 10) });
        let mut simulation = Simulation::new(scheduler, instances, 2).with_places(places);
        simulation.do_all(&events);
        check(&simulation, false);
    }

    #[test]
    fn a_sequence_gets_a_slot_in_its_turn(
        lengths in prop::collection::vec(1u64..4, 20..80), slots in 1usize..4, own in 1u64..4, begins in 0usize..20,
    ) {
        for is_direct in [true, false] {
            let mut simulation = if is_direct {
                Simulation::new(direct(1, slots, 0, 0.0), 1, slots)
            } else {
                Simulation::new(oldest(1, slots, slots as u32, 0), 1, slots)
            };
            let mut witness = 0;
            for (at, length) in lengths.iter().enumerate() {
                if at == begins {
                    witness = simulation.sent_len();
                    (0..own).for_each(|step| send_step(&mut simulation, WITNESS, 1, step, own));
                }
                (0..*length).for_each(|step| send_step(&mut simulation, FLOOD, 10 + at as u64, step, *length));
            }
            // Sequences that have slots and one more have three runs each at most, and then the witness begins.
            simulation.pass_until((3 + 3 + 1) * RUN_US);
            prop_assert!(simulation.ran.iter().any(|(number, ..)| *number == witness), "{:?}", simulation.ran);
        }
    }
}

fn send_step(simulation: &mut Simulation, peer: u64, sequence: u64, step: u64, length: u64) {
    let flags = if step == 0 { "s" } else { "" };
    let end = if step + 1 == length { "e" } else { "" };
    send(simulation, peer, sequence, &format!("{flags}{end}"));
}
