//! Does the same id of two owners mean two sequences?

use nerite_schedule::{
    Arrival, BatchPolicy, Direct, DirectPolicy, Driver, InstanceId, Oldest, OldestPolicy, RunSlot, Scheduler,
    SequenceId, SequenceKey, SequenceStep,
};

const IDLE_US: u64 = 1_000_000;

fn direct() -> Box<dyn Scheduler + Send> {
    let requests_max = Some(16);
    let policy = DirectPolicy { instances: 1, rows_max: 2, idle_us: IDLE_US, requests_max, ..DirectPolicy::default() };
    Box::new(Direct::new(policy))
}

fn oldest() -> Box<dyn Scheduler + Send> {
    let batch = BatchPolicy { rows_max: 2, ..BatchPolicy::default() };
    let policy = OldestPolicy { instances: 1, candidates_max: 2, idle_us: IDLE_US, requests_max: Some(16), batch };
    Box::new(Oldest::new(policy))
}

/// Each event is a request: `+` if it starts its sequence, the owner, the id, and `.` if it is the last one. Checks the number of the state that each
/// reads, in the order in which sequences started, and `-` for one that is refused.
#[track_caller]
fn check(events: &str, expect: &str) {
    for scheduler in [direct(), oldest()] {
        let mut driver = Driver::new(scheduler);
        driver.grant(InstanceId(0), 0);
        let mut found = Vec::new();
        for event in events.split(' ') {
            let (start, end) = (event.starts_with('+'), event.ends_with('.'));
            let (owner, id) = event.trim_matches(['+', '.']).split_at(1);
            let (owner, id) = (u64::from(owner.as_bytes()[0]), SequenceId::Text(id.into()));
            let step = SequenceStep { key: SequenceKey { owner, id: id.clone() }, start, end };
            driver.arrive((), |ticket| Arrival { sequence: Some(step), ..Arrival::new(ticket, 1) }, 0);
            let run = driver.next_run();
            found.push(run.map_or("-".to_owned(), |run| {
                let controls = run.slots.into_iter().find_map(|slot| match slot {
                    RunSlot::Job((), controls) => controls,
                    RunSlot::Empty => None,
                });
                let controls = controls.expect("a request of a sequence has controls");
                assert_eq!((controls.id, controls.start, controls.end), (id, start, end), "{event} of {events}");
                driver.done(InstanceId(0), 0);
                driver.grant(InstanceId(0), 0);
                controls.state.to_string()
            }));
        }
        assert_eq!(found.join(" "), expect, "{events}");
    }
}

#[test]
fn an_owner_neither_continues_nor_restarts_nor_ends_the_sequence_of_another() {
    check("+a7 +b7 a7 b7", "1 2 1 2");
    check("+a7 b7 b7. a7", "1 - - 1");
    check("+a7 +b7 b7. b7 a7 a7.", "1 2 2 - 1 1");
    check("+a7 +b7 +b7 a7 b7", "1 2 3 1 3");
    check("+a7 a8 b7 +b8 b8. a8 a7.", "1 - - 2 2 - 1");
}
