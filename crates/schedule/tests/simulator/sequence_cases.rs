//! What becomes of sequences in a few plain cases?

use std::collections::BTreeMap;

use nerite_schedule::{BatchPolicy, Oldest, OldestPolicy, Rejection, Scheduler};

use crate::sequences::{IDLE_US, RUN_US, SequenceRequest, Simulation, direct, oldest, send};

fn shown(simulation: &Simulation) -> Vec<(usize, usize, usize)> {
    simulation.ran.iter().map(|(number, _, instance, position, ..)| (*number, *instance, *position)).collect()
}

#[test]
fn sequences_spread_over_instances_and_keep_their_position() {
    let mut simulation = Simulation::new(direct(2, 2, 0, 0.0), 2, 2);
    for sequence in 1..=3 {
        send(&mut simulation, sequence, "s");
    }
    simulation.pass_until(100);
    for sequence in 1..=3 {
        send(&mut simulation, sequence, "");
    }
    simulation.pass_until(200);
    assert_eq!(shown(&simulation), [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 0, 0), (4, 1, 0), (5, 0, 1)]);
}

#[test]
fn a_sequence_without_a_slot_waits_for_the_end_of_another() {
    for end in [true, false] {
        let mut simulation = Simulation::new(direct(1, 1, 0, 0.0), 1, 1);
        send(&mut simulation, 1, "s");
        send(&mut simulation, 2, "s");
        simulation.pass_until(100);
        assert_eq!(simulation.ran.len(), 1);
        if end {
            send(&mut simulation, 1, "e");
            simulation.pass_until(160);
        } else {
            // The first sequence gets no more requests.
            simulation.pass_until(RUN_US + IDLE_US);
        }
        assert_eq!(simulation.ran.last().unwrap().0, 1, "{end}");
    }
}

#[test]
fn a_sequence_begins_with_its_start() {
    let mut simulation = Simulation::new(oldest(1, 2, 2, 0), 1, 2);
    send(&mut simulation, 1, "");
    send(&mut simulation, 2, "se");
    send(&mut simulation, 2, "");
    simulation.pass_until(100);
    assert_eq!(simulation.rejected, BTreeMap::from([(0, Rejection::MissingStart), (2, Rejection::MissingStart)]));
    // A sequence that was idle for too long is over.
    send(&mut simulation, 3, "s");
    simulation.pass_until(100 + RUN_US + IDLE_US);
    send(&mut simulation, 3, "");
    assert_eq!(simulation.rejected.get(&4), Some(&Rejection::MissingStart));
}

#[test]
fn a_request_in_the_backlog_waits_no_longer_than_it_may() {
    let mut simulation = Simulation::new(oldest(1, 1, 1, 0), 1, 1);
    send(&mut simulation, 1, "s");
    simulation.send(&SequenceRequest {
        peer: 0,
        sequence: 2,
        start: true,
        end: false,
        patience_us: Some(50),
        shapes: 0,
    });
    simulation.send(&SequenceRequest { peer: 0, sequence: 2, start: false, end: false, patience_us: None, shapes: 0 });
    simulation.pass_until(49);
    assert!(simulation.rejected.is_empty());
    simulation.pass_until(50);
    let timed_out = Rejection::SequenceTimedOut;
    assert_eq!(simulation.rejected, BTreeMap::from([(1, timed_out), (2, timed_out)]), "all of the sequence");
}

#[test]
fn an_instance_waits_for_more_sequences_up_to_its_delay() {
    let mut simulation = Simulation::new(direct(1, 4, 100, 0.5), 1, 4);
    send(&mut simulation, 1, "s");
    simulation.pass_until(60);
    assert!(simulation.ran.is_empty());
    send(&mut simulation, 2, "s");
    assert_eq!(shown(&simulation), [(0, 0, 0), (1, 0, 1)], "half of the places are enough");
    simulation.pass_until(100);
    send(&mut simulation, 2, "");
    simulation.pass_until(199);
    assert_eq!(simulation.ran.len(), 2);
    simulation.pass_until(200);
    assert_eq!(shown(&simulation)[2..], [(2, 0, 1)], "behind an empty place");
}

#[test]
fn candidates_share_batches_and_their_requests_do_not() {
    let mut simulation = Simulation::new(oldest(1, 3, 4, 0), 1, 4);
    send(&mut simulation, 1, "s");
    for sequence in [1, 2, 2, 3] {
        send(&mut simulation, sequence, "s");
    }
    simulation.pass_until(RUN_US);
    assert_eq!(simulation.ran.len(), 4, "one of each id at a time: {:?}", simulation.ran);
    simulation.pass_until(2 * RUN_US);
    assert_eq!(simulation.ran.len(), 5, "the second START of 2 gets the slot of the first: {:?}", simulation.ran);
}

/// Three sequences without END come while one place is free. Checks that all that wait at a stop run at once, and that nothing is left to wait for.
#[track_caller]
fn check_stopped(scheduler: impl Scheduler + Send + 'static) {
    let mut simulation = Simulation::new(scheduler, 1, 4);
    for sequence in [1, 2, 3, 3] {
        send(&mut simulation, sequence, "s");
    }
    send(&mut simulation, 2, "");
    simulation.pass_until(3 * RUN_US);
    let before = simulation.ran.len();
    assert!(before < 5, "the others have no slot, or are held back");
    simulation.stop();
    simulation.pass_until(3 * RUN_US + 5 * RUN_US);
    assert_eq!((simulation.ran.len(), &simulation.rejected), (5, &BTreeMap::new()), "{before} ran before");
    assert!(simulation.driver.is_drained() && simulation.driver.wake_at_us().is_none());
}

#[test]
fn after_a_stop_no_request_waits_for_a_sequence_that_is_idle() {
    check_stopped(direct(1, 1, 0, 0.0));
    check_stopped(oldest(1, 1, 1, 0));
    check_stopped(oldest(1, 1, 4, 300));
}

#[test]
fn after_a_stop_no_request_waits_for_others() {
    check_stopped(direct(1, 4, 1_000_000, 1.0));
    check_stopped(oldest(1, 4, 4, 1_000_000));
    let batch = BatchPolicy { rows_max: 4, preferred: vec![4], hold_back: 9, ..BatchPolicy::default() };
    check_stopped(Oldest::new(OldestPolicy {
        instances: 1,
        candidates_max: 2,
        idle_us: 1_000_000,
        requests_max: None,
        batch,
    }));
}
