//! Do the requests of a sequence run one after the other, in their slot, in any order of events?

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nerite_schedule::{
    Arrival, BatchPolicy, Deadline, Direct, DirectPolicy, Driver, InstanceId, Oldest, OldestPolicy, Rejection, RunSlot,
    Scheduler, SequenceId, SequenceStep, Ticket, TimeoutAction,
};
use proptest::prelude::*;

const IDLE_US: u64 = 400;
const RUN_US: u64 = 20;

/// One request: its sequence, and whether it is the first or the last.
#[derive(Clone, Debug)]
struct SequenceRequest {
    sequence: u64,
    start: bool,
    end: bool,
    patience_us: Option<u64>,
}

#[derive(Clone, Debug)]
enum Deed {
    Send(SequenceRequest),
    Cancel { back: usize },
    Stop,
}

/// A run: `(number of the request, state, instance, position, start, end)`.
type Ran = (usize, u64, usize, usize, bool, bool);

/// When a request came, and when it started or was rejected.
#[derive(Default)]
struct Times {
    arrived_us: Vec<u64>,
    ended_us: BTreeMap<usize, u64>,
}

struct Play {
    driver: Driver<usize>,
    now_us: u64,
    busy: BTreeMap<InstanceId, (u64, Vec<u64>)>,
    sent: Vec<SequenceRequest>,
    times: Times,
    ran: Vec<Ran>,
    rejected: BTreeMap<usize, Rejection>,
    rows_max: usize,
    stopped_us: Option<u64>,
}

impl Play {
    fn new(scheduler: impl Scheduler + Send + 'static, instances: usize, rows_max: usize) -> Play {
        let mut driver = Driver::new(Box::new(scheduler));
        (0..instances).for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (busy, rejected) = (BTreeMap::new(), BTreeMap::new());
        Play {
            driver,
            now_us: 0,
            busy,
            sent: Vec::new(),
            times: Times::default(),
            ran: Vec::new(),
            rejected,
            rows_max,
            stopped_us: None,
        }
    }

    fn send(&mut self, step: &SequenceRequest) -> Ticket {
        let number = self.sent.len();
        self.sent.push(step.clone());
        self.times.arrived_us.push(self.now_us);
        let action = TimeoutAction::Reject;
        let deadline = step.patience_us.map(|patience_us| Deadline { at_us: self.now_us + patience_us, action });
        let sequence = Some(SequenceStep { id: SequenceId::Number(step.sequence), start: step.start, end: step.end });
        let arrival = |ticket| Arrival { sequence, deadline, ..Arrival::new(ticket, 1) };
        let ticket = self.driver.arrive(number, arrival, self.now_us);
        self.take();
        ticket
    }

    fn take(&mut self) {
        while let Some(run) = self.driver.next_run() {
            let (at, mut states) = (run.instance, Vec::new());
            assert!(run.slots.len() <= self.rows_max, "oversized");
            assert!(!matches!(run.slots.last(), None | Some(RunSlot::Empty)), "a batch ends with a request");
            for (position, slot) in run.slots.into_iter().enumerate() {
                let RunSlot::Job(number, controls) = slot else { continue };
                let controls = controls.expect("a request of a sequence has controls");
                let runs = self.busy.values().any(|(_, states)| states.contains(&controls.state));
                assert!(!runs && !states.contains(&controls.state), "two requests of a sequence run at once");
                states.push(controls.state);
                self.times.ended_us.insert(number, self.now_us);
                self.ran.push((number, controls.state, at.0, position, controls.start, controls.end));
            }
            assert!(self.busy.insert(at, (self.now_us + RUN_US, states)).is_none(), "{at:?} runs already");
        }
        while let Some((number, why)) = self.driver.next_rejected() {
            assert!(self.rejected.insert(number, why).is_none(), "rejected twice");
            self.times.ended_us.insert(number, self.now_us);
        }
    }

    fn stop(&mut self) {
        self.stopped_us.get_or_insert(self.now_us);
        self.driver.stop(self.now_us);
        self.take();
    }

    fn pass_until(&mut self, until_us: u64) {
        loop {
            let done = self.busy.iter().map(|(instance, (at_us, _))| (*at_us, Some(*instance))).min();
            let wake = self.driver.wake_at_us().map(|at_us| (at_us.max(self.now_us), None));
            let Some((at_us, what)) = done.into_iter().chain(wake).min_by_key(|(at_us, _)| *at_us) else { break };
            if at_us > until_us {
                break;
            }
            self.now_us = at_us;
            match what {
                Some(instance) => {
                    self.busy.remove(&instance);
                    self.driver.done(instance, at_us);
                    self.driver.grant(instance, at_us);
                }
                None => self.driver.wake(at_us),
            }
            self.take();
        }
        self.now_us = until_us;
    }

    fn do_all(&mut self, deeds: &[(u64, Deed)]) {
        let mut tickets: Vec<Ticket> = Vec::new();
        for (pause_us, deed) in deeds {
            self.pass_until(self.now_us + pause_us);
            match deed {
                Deed::Send(step) => tickets.push(self.send(step)),
                Deed::Cancel { back } => {
                    if let Some(ticket) = tickets.iter().rev().nth(*back) {
                        self.driver.cancel(*ticket, self.now_us);
                    }
                }
                Deed::Stop => self.stop(),
            }
            self.take();
        }
        // Sequences in the backlog get a slot when earlier ones have been idle for too long.
        self.pass_until(self.now_us + 200 * IDLE_US);
    }
}

fn deeds() -> impl Strategy<Value = Vec<(u64, Deed)>> {
    let step = (1u64..6, any::<bool>(), 0u32..4, prop::option::of(0u64..500)).prop_map(
        |(sequence, start, end, patience_us)| {
            Deed::Send(SequenceRequest { sequence, start, end: end == 0, patience_us })
        },
    );
    let deed = prop_oneof![10 => step, 2 => (0usize..5).prop_map(|back| Deed::Cancel { back }), 1 => Just(Deed::Stop)];
    prop::collection::vec((0u64..90, deed), 0..60)
}

fn direct(instances: usize, rows_max: usize, delay_us: u64, utilization_min: f32) -> Direct {
    let hold_back = nerite_schedule::HoldBack::default();
    Direct::new(DirectPolicy {
        instances,
        rows_max,
        idle_us: IDLE_US,
        delay_us,
        utilization_min,
        by_shapes: false,
        hold_back,
    })
}

fn oldest(instances: usize, candidates_max: usize, rows_max: u32, delay_us: u64) -> Oldest {
    let batch = BatchPolicy { rows_max, preferred: vec![rows_max], delay_us, ..BatchPolicy::default() };
    Oldest::new(OldestPolicy { instances, candidates_max, idle_us: IDLE_US, batch })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn every_request_of_a_sequence_ends_once_and_in_order(
        deeds in deeds(), instances in 1usize..3, places in 1usize..4, delay_us in 0u64..60, rows_max in 1u32..4,
        utilization_min in 0.0f32..1.0,
    ) {
        let mut play = Play::new(direct(instances, places, delay_us, utilization_min), instances, places);
        play.do_all(&deeds);
        check(&play, true);
        check_deadlines(&play, delay_us + (places as u64 + 1) * RUN_US);
        check_stop(&play);
        let mut play = Play::new(oldest(instances, places, rows_max, delay_us), instances, rows_max as usize);
        play.do_all(&deeds);
        check(&play, false);
        check_deadlines(&play, delay_us + (places as u64 + 1) * RUN_US);
        check_stop(&play);
    }
}

/// Checks that no request is lost or run twice, and that each sequence keeps its order, its instance and, if promised, its position.
fn check(play: &Play, keeps_position: bool) {
    assert!(play.driver.is_drained() && play.busy.is_empty(), "something waits for ever");
    let ran: BTreeSet<usize> = play.ran.iter().map(|(number, ..)| *number).collect();
    assert_eq!(ran.len(), play.ran.len(), "run twice");
    assert!(ran.iter().all(|number| !play.rejected.contains_key(number)), "ended twice");
    assert_eq!(ran.len() + play.rejected.len(), play.sent.len(), "lost");
    let mut last: HashMap<u64, (usize, usize, usize)> = HashMap::new();
    for (number, state, instance, position, ..) in &play.ran {
        let position = if keeps_position { *position } else { 0 };
        if let Some((before, at, place)) = last.insert(*state, (*number, *instance, position)) {
            assert!(before < *number, "request {number} of sequence {state} ran before {before}");
            assert_eq!((at, place), (*instance, position), "sequence {state} moved");
        }
    }
}

/// Checks that a sequence without a slot is rejected when the time of one of its requests is up, and that no other is. A sequence that got a slot
/// in time starts within `start_us`.
fn check_deadlines(play: &Play, start_us: u64) {
    let due_us =
        |number: usize| play.sent[number].patience_us.map(|patience_us| play.times.arrived_us[number] + patience_us);
    for (number, why) in &play.rejected {
        let at_us = play.times.ended_us[number];
        let same = |other: &usize| play.sent[*other].sequence == play.sent[*number].sequence;
        let is_due = (0..play.sent.len()).filter(same).any(|other| due_us(other) == Some(at_us));
        assert!(*why != Rejection::SequenceTimedOut || is_due, "{number} timed out at {at_us}, when nothing was due");
    }
    for (number, .., start, _) in &play.ran {
        let late = due_us(*number).is_some_and(|due_us| play.times.ended_us[number] > due_us + start_us);
        assert!(
            !(*start && late),
            "{number} began at {}, long after {:?}",
            play.times.ended_us[number],
            due_us(*number)
        );
    }
}

/// Checks that requests that waited at a stop ended as fast as an instance can run them, and that no later ones were taken.
fn check_stop(play: &Play) {
    let Some(stopped_us) = play.stopped_us else { return };
    let waited = play.times.ended_us.iter().filter(|(_, ended_us)| **ended_us > stopped_us).map(|(number, _)| number);
    let (early, late): (Vec<usize>, Vec<usize>) =
        waited.partition(|number| play.times.arrived_us[**number] <= stopped_us);
    assert!(late.iter().all(|number| play.rejected.get(number) == Some(&Rejection::Stopping)), "taken: {late:?}");
    let last_us = early.iter().map(|number| play.times.ended_us[number]).max().unwrap_or(stopped_us);
    let most_us = stopped_us + early.len() as u64 * RUN_US;
    assert!(last_us <= most_us, "{} waited at {stopped_us}, and the last one until {last_us}", early.len());
}

fn send(play: &mut Play, sequence: u64, flags: &str) {
    let (start, end) = (flags.contains('s'), flags.contains('e'));
    play.send(&SequenceRequest { sequence, start, end, patience_us: None });
}

fn shown(play: &Play) -> Vec<(usize, usize, usize)> {
    play.ran.iter().map(|(number, _, instance, position, ..)| (*number, *instance, *position)).collect()
}

#[test]
fn sequences_spread_over_instances_and_keep_their_position() {
    let mut play = Play::new(direct(2, 2, 0, 0.0), 2, 2);
    for sequence in 1..=3 {
        send(&mut play, sequence, "s");
    }
    play.pass_until(100);
    (1..=3).for_each(|sequence| send(&mut play, sequence, ""));
    play.pass_until(200);
    assert_eq!(shown(&play), [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 0, 0), (4, 1, 0), (5, 0, 1)]);
}

#[test]
fn a_sequence_without_a_slot_waits_for_the_end_of_another() {
    for end in [true, false] {
        let mut play = Play::new(direct(1, 1, 0, 0.0), 1, 1);
        send(&mut play, 1, "s");
        send(&mut play, 2, "s");
        play.pass_until(100);
        assert_eq!(play.ran.len(), 1);
        if end {
            send(&mut play, 1, "e");
            play.pass_until(160);
        } else {
            // The first sequence gets no more requests.
            play.pass_until(RUN_US + IDLE_US);
        }
        assert_eq!(play.ran.last().unwrap().0, 1, "{end}");
    }
}

#[test]
fn a_sequence_begins_with_its_start() {
    let mut play = Play::new(oldest(1, 2, 2, 0), 1, 2);
    send(&mut play, 1, "");
    send(&mut play, 2, "se");
    send(&mut play, 2, "");
    play.pass_until(100);
    assert_eq!(play.rejected, BTreeMap::from([(0, Rejection::MissingStart), (2, Rejection::MissingStart)]));
    // A sequence that was idle for too long is over.
    send(&mut play, 3, "s");
    play.pass_until(100 + RUN_US + IDLE_US);
    send(&mut play, 3, "");
    assert_eq!(play.rejected.get(&4), Some(&Rejection::MissingStart));
}

#[test]
fn a_request_in_the_backlog_waits_no_longer_than_it_may() {
    let mut play = Play::new(oldest(1, 1, 1, 0), 1, 1);
    send(&mut play, 1, "s");
    play.send(&SequenceRequest { sequence: 2, start: true, end: false, patience_us: Some(50) });
    play.send(&SequenceRequest { sequence: 2, start: false, end: false, patience_us: None });
    play.pass_until(49);
    assert!(play.rejected.is_empty());
    play.pass_until(50);
    let timed_out = Rejection::SequenceTimedOut;
    assert_eq!(play.rejected, BTreeMap::from([(1, timed_out), (2, timed_out)]), "all of the sequence");
}

#[test]
fn an_instance_waits_for_more_sequences_up_to_its_delay() {
    let mut play = Play::new(direct(1, 4, 100, 0.5), 1, 4);
    send(&mut play, 1, "s");
    play.pass_until(60);
    assert!(play.ran.is_empty());
    send(&mut play, 2, "s");
    assert_eq!(shown(&play), [(0, 0, 0), (1, 0, 1)], "half of the places are enough");
    play.pass_until(100);
    send(&mut play, 2, "");
    play.pass_until(199);
    assert_eq!(play.ran.len(), 2);
    play.pass_until(200);
    assert_eq!(shown(&play)[2..], [(2, 0, 1)], "behind an empty place");
}

#[test]
fn candidates_share_batches_and_their_requests_do_not() {
    let mut play = Play::new(oldest(1, 3, 4, 0), 1, 4);
    send(&mut play, 1, "s");
    for sequence in [1, 2, 2, 3] {
        send(&mut play, sequence, "s");
    }
    // The second START of a waiting sequence makes another one, which waits for a slot too.
    play.pass_until(RUN_US);
    assert!(play.ran.len() >= 3, "{:?}", play.ran);
    play.pass_until(100 * IDLE_US);
    assert_eq!(play.ran.len(), 5);
}

/// Three sequences without END come while one place is free. Checks that all that wait at a stop run at once, and that nothing is left to wait for.
#[track_caller]
fn check_stopped(scheduler: impl Scheduler + Send + 'static) {
    let mut play = Play::new(scheduler, 1, 4);
    for sequence in [1, 2, 3, 3] {
        send(&mut play, sequence, "s");
    }
    send(&mut play, 2, "");
    play.pass_until(3 * RUN_US);
    let before = play.ran.len();
    assert!(before < 5, "the others have no slot, or are held back");
    play.stop();
    play.pass_until(3 * RUN_US + 5 * RUN_US);
    assert_eq!((play.ran.len(), &play.rejected), (5, &BTreeMap::new()), "{before} ran before");
    assert!(play.driver.is_drained() && play.driver.wake_at_us().is_none());
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
    check_stopped(Oldest::new(OldestPolicy { instances: 1, candidates_max: 2, idle_us: 1_000_000, batch }));
}
