//! Do the requests of a sequence run one after the other, in their slot, in any order of events?

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nerite_schedule::{
    Arrival, BatchPolicy, Client, Deadline, Direct, DirectPolicy, Driver, InstanceChange, InstanceId, Oldest,
    OldestPolicy, Rejection, RunSlot, Scheduler, SequenceId, SequenceKey, SequenceStep, Ticket, TimeoutAction,
};
use proptest::prelude::*;

pub(super) const IDLE_US: u64 = 400;
pub(super) const RUN_US: u64 = 20;

/// One request: its sequence, and whether it is the first or the last.
#[derive(Clone, Debug)]
pub(super) struct SequenceRequest {
    pub(super) peer: u64,
    pub(super) sequence: u64,
    pub(super) start: bool,
    pub(super) end: bool,
    pub(super) patience_us: Option<u64>,
    pub(super) shapes: u64,
}

#[derive(Clone, Debug)]
pub(super) enum SimulatedEvent {
    Send(SequenceRequest),
    Cancel { back: usize },
    CutShort { at: usize },
    Down { at: usize, is_down: bool },
    Add,
    Remove { at: usize },
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

pub(super) struct Simulation {
    pub(super) driver: Driver<usize>,
    pub(super) now_us: u64,
    busy: BTreeMap<InstanceId, (u64, Vec<u64>)>,
    sent: Vec<SequenceRequest>,
    times: Times,
    pub(super) ran: Vec<Ran>,
    pub(super) rejected: BTreeMap<usize, Rejection>,
    /// The states of sequences of which a request was cut short, and the number of that request.
    cut_short: BTreeMap<u64, usize>,
    rows_max: usize,
    /// The instances, except removed ones.
    instances: BTreeSet<InstanceId>,
    /// The removed instances that still have sequences, since when, and the states of sequences that ran there since.
    leaving: BTreeMap<InstanceId, (u64, BTreeSet<u64>)>,
    /// All numbers of removed instances. Later instances get them again.
    removed: BTreeSet<InstanceId>,
    /// The most sequences on an instance.
    places: usize,
    /// Whether requests share a batch only if their shapes are equal.
    by_shapes: bool,
    stopped_us: Option<u64>,
    /// The instances that are down, and since when.
    down: BTreeMap<InstanceId, u64>,
    /// Requests that came after the instance where they started a sequence had gone down.
    started_at_down: Vec<usize>,
}

impl Simulation {
    /// `rows_max` is also the most sequences on an instance, if not more are stated.
    pub(super) fn new(scheduler: impl Scheduler + Send + 'static, instances: usize, rows_max: usize) -> Simulation {
        let mut driver = Driver::new(Box::new(scheduler));
        (0..instances).for_each(|instance| driver.grant(InstanceId(instance), 0));
        let (busy, rejected) = (BTreeMap::new(), BTreeMap::new());
        Simulation {
            driver,
            now_us: 0,
            busy,
            sent: Vec::new(),
            times: Times::default(),
            ran: Vec::new(),
            rejected,
            cut_short: BTreeMap::new(),
            rows_max,
            instances: (0..instances).map(InstanceId).collect(),
            leaving: BTreeMap::new(),
            removed: BTreeSet::new(),
            places: rows_max,
            by_shapes: false,
            stopped_us: None,
            down: BTreeMap::new(),
            started_at_down: Vec::new(),
        }
    }

    /// The same for a scheduler that looks at shapes.
    fn by_shapes(self, by_shapes: bool) -> Simulation {
        Simulation { by_shapes, ..self }
    }

    /// The same for a scheduler that has this number of sequences on each instance.
    pub(super) fn with_places(self, places: usize) -> Simulation {
        Simulation { places, ..self }
    }

    pub(super) fn send(&mut self, step: &SequenceRequest) -> Ticket {
        let number = self.sent.len();
        self.sent.push(step.clone());
        self.times.arrived_us.push(self.now_us);
        let action = TimeoutAction::Reject;
        let deadline = step.patience_us.map(|patience_us| Deadline { at_us: self.now_us + patience_us, action });
        let key = SequenceKey { owner: 0, id: SequenceId::Number(step.sequence) };
        let sequence = Some(SequenceStep { key, start: step.start, end: step.end });
        let (shapes, client) = (if self.by_shapes { step.shapes } else { 0 }, Client { peer: step.peer, flow: 0 });
        let arrival = |ticket| Arrival { sequence, deadline, shapes, client, ..Arrival::new(ticket, 1) };
        let ticket = self.driver.arrive(number, arrival, self.now_us);
        self.take();
        ticket
    }

    pub(super) fn take(&mut self) {
        while let Some(run) = self.driver.next_run() {
            let (at, mut states, mut shapes) = (run.instance, Vec::new(), BTreeSet::new());
            assert!(run.slots.len() <= self.rows_max, "oversized");
            // A request of another shape waits there and does not join.
            let may_end_empty = self.by_shapes && run.jobs().next().is_some();
            assert!(may_end_empty || matches!(run.slots.last(), Some(RunSlot::Job(..))), "a batch ends with a request");
            for (position, slot) in run.slots.into_iter().enumerate() {
                let RunSlot::Job(number, controls) = slot else { continue };
                let controls = controls.expect("a request of a sequence has controls");
                let runs = self.busy.values().any(|(_, states)| states.contains(&controls.state));
                assert!(!runs && !states.contains(&controls.state), "two requests of a sequence run at once");
                states.push(controls.state);
                shapes.insert(self.sent[number].shapes);
                if controls.start && self.down.get(&at).is_some_and(|since| self.times.arrived_us[number] > *since) {
                    self.started_at_down.push(number);
                }
                if let Some((since, states)) = self.leaving.get_mut(&at) {
                    assert!(
                        !controls.start || self.times.arrived_us[number] <= *since,
                        "{number} starts at removed {at:?}"
                    );
                    states.insert(controls.state);
                    assert!(states.len() <= self.places, "more sequences on removed {at:?} than it had: {states:?}");
                }
                self.times.ended_us.insert(number, self.now_us);
                self.ran.push((number, controls.state, at.0, position, controls.start, controls.end));
            }
            assert!(!self.by_shapes || shapes.len() == 1, "a batch of unequal shapes: {shapes:?}");
            assert!(self.busy.insert(at, (self.now_us + RUN_US, states)).is_none(), "{at:?} runs already");
        }
        while let Some((number, why)) = self.driver.next_rejected() {
            assert!(self.rejected.insert(number, why).is_none(), "rejected twice");
            self.times.ended_us.insert(number, self.now_us);
        }
        for at in self.driver.take_unbound() {
            assert!(self.leaving.remove(&at).is_some(), "{at:?} was not removed");
            assert!(!self.busy.contains_key(&at), "{at:?} runs");
            self.driver.withdraw(at, self.now_us);
        }
        assert!(
            self.stopped_us.is_none() || !self.driver.is_drained() || self.leaving.is_empty(),
            "something stays after the stop"
        );
    }

    /// The last request of that sequence which runs now does not run to its end.
    pub(super) fn cut_short(&mut self, state: u64) {
        let runs = self.ran.iter().rev().find(|(_, of, ..)| *of == state).map(|(number, ..)| *number);
        self.cut_short.insert(state, runs.expect("a request of that sequence runs"));
        self.driver.cut_short(state, self.now_us);
        self.take();
    }

    /// The process of an instance dies, or another one is up. At least one instance is always up.
    fn set_down(&mut self, at: InstanceId, is_down: bool) {
        let is_last = self.down.len() + 1 == self.instances.len();
        let changes = if is_down {
            !is_last && !self.down.contains_key(&at) && self.down.insert(at, self.now_us).is_none()
        } else {
            self.down.remove(&at).is_some()
        };
        if changes {
            self.change(at, if is_down { InstanceChange::Down } else { InstanceChange::Up });
        }
    }

    fn change(&mut self, at: InstanceId, change: InstanceChange) {
        self.driver.change(at, change, self.now_us);
        self.take();
    }

    /// Adds an instance, with the first number that is free.
    pub(super) fn add(&mut self) {
        let is_free = |at: &InstanceId| !self.instances.contains(at) && !self.leaving.contains_key(at);
        let at = (0..=self.instances.len() + self.leaving.len()).map(InstanceId).find(is_free).unwrap();
        self.instances.insert(at);
        self.change(at, InstanceChange::Added);
        self.driver.grant(at, self.now_us);
        self.take();
    }

    /// Removes an instance, unless it is the last. If all others are down, all are used.
    pub(super) fn remove(&mut self, at: InstanceId) {
        if self.instances.len() == 1 || !self.instances.remove(&at) {
            return;
        }
        self.leaving.insert(at, (self.now_us, BTreeSet::new()));
        self.removed.insert(at);
        self.down.remove(&at);
        let is_any_up = self.down.len() < self.instances.len();
        let come_up = if is_any_up { BTreeMap::new() } else { std::mem::take(&mut self.down) };
        self.change(at, InstanceChange::Removed);
        for at in come_up.into_keys() {
            self.change(at, InstanceChange::Up);
        }
    }

    /// Whether a removed instance still has sequences.
    pub(super) fn is_leaving(&self, at: InstanceId) -> bool {
        self.leaving.contains_key(&at)
    }

    /// One of the instances.
    fn instance(&self, at: usize) -> InstanceId {
        *self.instances.iter().nth(at % self.instances.len()).unwrap()
    }

    pub(super) fn stop(&mut self) {
        self.stopped_us.get_or_insert(self.now_us);
        self.driver.stop(self.now_us);
        self.take();
    }

    pub(super) fn pass_until(&mut self, until_us: u64) {
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
                    let was_leaving = self.leaving.contains_key(&instance);
                    self.driver.done(instance, at_us);
                    self.take();
                    if was_leaving && !self.leaving.contains_key(&instance) {
                        continue;
                    }
                    let would_start = self.driver.would_start(instance, at_us);
                    self.driver.grant(instance, at_us);
                    self.take();
                    assert_eq!(self.busy.contains_key(&instance), would_start, "{instance:?} starts as announced");
                }
                None => self.driver.wake(at_us),
            }
            self.take();
        }
        self.now_us = until_us;
    }

    /// The number of requests that were sent.
    pub(super) fn sent_len(&self) -> usize {
        self.sent.len()
    }

    /// The numbers of the requests of each batch, if there is one instance.
    pub(super) fn batches(&self) -> Vec<Vec<usize>> {
        let mut batches: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (number, ..) in &self.ran {
            batches.entry(self.times.ended_us[number]).or_default().push(*number);
        }
        batches.into_values().collect()
    }

    pub(super) fn do_all(&mut self, events: &[(u64, SimulatedEvent)]) {
        let mut tickets: Vec<Ticket> = Vec::new();
        for (pause_us, event) in events {
            self.pass_until(self.now_us + pause_us);
            match event {
                SimulatedEvent::Send(step) => tickets.push(self.send(step)),
                SimulatedEvent::Cancel { back } => {
                    if let Some(ticket) = tickets.iter().rev().nth(*back) {
                        self.driver.cancel(*ticket, self.now_us);
                    }
                }
                SimulatedEvent::CutShort { at } => {
                    let running = self.busy.values().flat_map(|(_, states)| states).copied();
                    running.skip(*at).take(1).collect::<Vec<_>>().into_iter().for_each(|state| self.cut_short(state));
                }
                SimulatedEvent::Down { at, is_down } => self.set_down(self.instance(*at), *is_down),
                SimulatedEvent::Add if self.instances.len() < 4 => self.add(),
                SimulatedEvent::Add => {}
                SimulatedEvent::Remove { at } => self.remove(self.instance(*at)),
                SimulatedEvent::Stop => self.stop(),
            }
            self.take();
        }
        // Sequences in the backlog get a slot when earlier ones have been idle for too long.
        self.pass_until(self.now_us + 200 * IDLE_US);
    }
}

pub(super) fn events() -> impl Strategy<Value = Vec<(u64, SimulatedEvent)>> {
    let step = (1u64..6, any::<bool>(), 0u32..4, prop::option::of(0u64..500), 0u64..2).prop_map(
        |(sequence, start, end, patience_us, shapes)| {
            SimulatedEvent::Send(SequenceRequest { peer: 0, sequence, start, end: end == 0, patience_us, shapes })
        },
    );
    let event = prop_oneof![
        10 => step,
        2 => (0usize..5).prop_map(|back| SimulatedEvent::Cancel { back }),
        2 => (0usize..3).prop_map(|at| SimulatedEvent::CutShort { at }),
        3 => (0usize..3, any::<bool>()).prop_map(|(at, is_down)| SimulatedEvent::Down { at, is_down }),
        2 => Just(SimulatedEvent::Add),
        2 => (0usize..4).prop_map(|at| SimulatedEvent::Remove { at }),
        1 => Just(SimulatedEvent::Stop),
    ];
    prop::collection::vec((0u64..90, event), 0..60)
}

pub(super) fn direct(instances: usize, rows_max: usize, delay_us: u64, utilization_min: f32) -> Direct {
    Direct::new(direct_policy(instances, rows_max, delay_us, utilization_min))
}

pub(super) fn direct_policy(instances: usize, rows_max: usize, delay_us: u64, utilization_min: f32) -> DirectPolicy {
    DirectPolicy { instances, rows_max, idle_us: IDLE_US, delay_us, utilization_min, ..DirectPolicy::default() }
}

pub(super) fn oldest(instances: usize, candidates_max: usize, rows_max: u32, delay_us: u64) -> Oldest {
    Oldest::new(oldest_policy(instances, candidates_max, rows_max, delay_us))
}

pub(super) fn oldest_policy(instances: usize, candidates_max: usize, rows_max: u32, delay_us: u64) -> OldestPolicy {
    let batch = BatchPolicy { rows_max, preferred: vec![rows_max], delay_us, ..BatchPolicy::default() };
    OldestPolicy { instances, candidates_max, idle_us: IDLE_US, requests_max: None, batch }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn every_request_of_a_sequence_ends_once_and_in_order(
        events in events(), instances in 1usize..4, places in 1usize..4, delay_us in 0u64..60, rows_max in 1u32..4,
        utilization_min in 0.0f32..1.0, by_shapes in any::<bool>(),
    ) {
        let scheduler = Direct::new(DirectPolicy { by_shapes, ..direct_policy(instances, places, delay_us, utilization_min) });
        let mut simulation = Simulation::new(scheduler, instances, places).by_shapes(by_shapes);
        simulation.do_all(&events);
        check(&simulation, true);
        check_deadlines(&simulation, delay_us + (places as u64 + 1) * RUN_US);
        check_stop(&simulation);
        let mut policy = oldest_policy(instances, places, rows_max, delay_us);
        policy.batch.by_shapes = by_shapes;
        let mut simulation = Simulation::new(Oldest::new(policy), instances, rows_max as usize).by_shapes(by_shapes).with_places(places);
        simulation.do_all(&events);
        check(&simulation, false);
        check_deadlines(&simulation, delay_us + (places as u64 + 1) * RUN_US);
        check_stop(&simulation);
    }
}

/// Checks that no request is lost or run twice, and that each sequence keeps its order, its instance and, if promised, its position.
pub(super) fn check(simulation: &Simulation, keeps_position: bool) {
    check_whole(simulation);
    check_down(simulation);
    check_ids(simulation, keeps_position);
    assert!(simulation.driver.is_drained() && simulation.busy.is_empty(), "something waits for ever");
    assert!(simulation.leaving.is_empty(), "{:?} are never reported", simulation.leaving);
    let ran: BTreeSet<usize> = simulation.ran.iter().map(|(number, ..)| *number).collect();
    assert_eq!(ran.len(), simulation.ran.len(), "run twice");
    assert!(ran.iter().all(|number| !simulation.rejected.contains_key(number)), "ended twice");
    assert_eq!(ran.len() + simulation.rejected.len(), simulation.sent.len(), "lost");
    let mut last: HashMap<u64, (usize, usize, usize)> = HashMap::new();
    for (number, state, instance, position, ..) in &simulation.ran {
        let position = if keeps_position { *position } else { 0 };
        if let Some((before, at, place)) = last.insert(*state, (*number, *instance, position)) {
            assert!(before < *number, "request {number} of sequence {state} ran before {before}");
            assert_eq!((at, place), (*instance, position), "sequence {state} moved");
        }
        let cut_short = simulation.cut_short.get(state);
        assert!(cut_short.is_none_or(|cut_short| number <= cut_short), "request {number} ran after {cut_short:?}");
    }
}

/// Checks that no sequence starts at an instance that is down, but one that follows another one there.
fn check_down(simulation: &Simulation) {
    for number in &simulation.started_at_down {
        assert!(
            before(simulation, *number).is_some(),
            "request {number} started a sequence at an instance that is down"
        );
    }
}

/// Whether the request came while the last one of its sequence, or of one with the same id whose END did not come, waited or ran. Also returns that one.
fn before(simulation: &Simulation, number: usize) -> Option<usize> {
    let id = simulation.sent[number].sequence;
    let is_taken =
        |other: &usize| !matches!(simulation.rejected.get(other), Some(Rejection::MissingStart | Rejection::Stopping));
    let earlier = (0..number).rev().filter(|other| simulation.sent[*other].sequence == id).filter(is_taken);
    let mut line = earlier.take_while(|other| !simulation.sent[*other].end);
    let over_us = |other: &usize| {
        let takes_us = if simulation.rejected.contains_key(other) { 0 } else { RUN_US };
        simulation.times.ended_us[other] + takes_us
    };
    line.find(|other| over_us(other) > simulation.times.arrived_us[number])
}

/// Checks that a sequence that starts before the END of another one with the same id runs after it, in its place.
fn check_ids(simulation: &Simulation, keeps_position: bool) {
    let ran: HashMap<usize, (usize, usize)> =
        simulation.ran.iter().map(|(number, _, instance, position, ..)| (*number, (*instance, *position))).collect();
    for (number, (instance, position)) in &ran {
        let Some(before) = before(simulation, *number) else { continue };
        let Some((at, place)) = ran.get(&before) else { continue };
        let [first_us, then_us] = [before, *number].map(|one| simulation.times.ended_us[&one]);
        assert!(first_us + RUN_US <= then_us, "request {number} ran at {then_us} and {before} at {first_us}");
        // Its slot may be another peer's turn, or be gone with its instance.
        if simulation.sent.iter().any(|step| step.peer != 0) || simulation.removed.contains(&InstanceId(*at)) {
            continue;
        }
        assert_eq!(at, instance, "request {number} ran elsewhere than {before}");
        assert!(!keeps_position || place == position, "request {number} ran at {position} and {before} at {place}");
    }
}

/// Checks that no sequence goes on without one of its requests: after the first one that is rejected, none runs, and all end at the same time.
fn check_whole(simulation: &Simulation) {
    let mut current: HashMap<u64, usize> = HashMap::new();
    let mut sequences: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, step) in simulation.sent.iter().enumerate() {
        // One that found no room may be sent again.
        if matches!(
            simulation.rejected.get(&number),
            Some(Rejection::MissingStart | Rejection::Stopping | Rejection::Overloaded)
        ) {
            continue;
        }
        let first = if step.start { number } else { current[&step.sequence] };
        current.insert(step.sequence, first);
        sequences.entry(first).or_default().push(number);
    }
    for (first, requests) in sequences {
        let ran = requests.iter().take_while(|number| !simulation.rejected.contains_key(number)).count();
        let end = |number: &usize| (simulation.rejected.get(number), simulation.times.ended_us[number]);
        let mut ends = requests[ran..].iter().map(end);
        let expect = ends.next();
        assert!(ends.all(|end| Some(end) == expect), "the sequence of request {first} goes on after {expect:?}");
    }
}

/// Checks that a sequence without a slot is rejected when the time of one of its requests is up, and that no other is. A sequence that got a slot
/// in time starts within `start_us`.
fn check_deadlines(simulation: &Simulation, start_us: u64) {
    let due_us = |number: usize| {
        simulation.sent[number].patience_us.map(|patience_us| simulation.times.arrived_us[number] + patience_us)
    };
    for (number, why) in &simulation.rejected {
        let at_us = simulation.times.ended_us[number];
        let same = |other: &usize| simulation.sent[*other].sequence == simulation.sent[*number].sequence;
        // One that followed another one on a removed instance waits for a slot afterwards, and its time may be over then.
        let is_due_at = |due_us: u64| due_us == at_us || due_us < at_us && !simulation.removed.is_empty();
        let is_due = (0..simulation.sent.len()).filter(same).any(|other| due_us(other).is_some_and(is_due_at));
        assert!(*why != Rejection::SequenceTimedOut || is_due, "{number} timed out at {at_us}, when nothing was due");
    }
    // A sequence that follows another one waits for its requests as well, and requests of unequal shapes for each other.
    let waits_for_others = |number: usize| simulation.by_shapes || before(simulation, number).is_some();
    for (number, .., start, _) in simulation.ran.iter().filter(|(number, ..)| !waits_for_others(*number)) {
        let late = due_us(*number).is_some_and(|due_us| simulation.times.ended_us[number] > due_us + start_us);
        assert!(
            !(*start && late),
            "{number} began at {}, long after {:?}",
            simulation.times.ended_us[number],
            due_us(*number)
        );
    }
}

/// Checks that requests that waited at a stop ended as fast as an instance can run them, and that no later ones were taken.
fn check_stop(simulation: &Simulation) {
    let Some(stopped_us) = simulation.stopped_us else { return };
    let waited =
        simulation.times.ended_us.iter().filter(|(_, ended_us)| **ended_us > stopped_us).map(|(number, _)| number);
    let (early, late): (Vec<usize>, Vec<usize>) =
        waited.partition(|number| simulation.times.arrived_us[**number] <= stopped_us);
    assert!(late.iter().all(|number| simulation.rejected.get(number) == Some(&Rejection::Stopping)), "taken: {late:?}");
    let last_us = early.iter().map(|number| simulation.times.ended_us[number]).max().unwrap_or(stopped_us);
    let most_us = stopped_us + early.len() as u64 * RUN_US;
    assert!(last_us <= most_us, "{} waited at {stopped_us}, and the last one until {last_us}", early.len());
}

pub(super) fn send(simulation: &mut Simulation, sequence: u64, flags: &str) -> Ticket {
    let (start, end) = (flags.contains('s'), flags.contains('e'));
    simulation.send(&SequenceRequest { peer: 0, sequence, start, end, patience_us: None, shapes: 0 })
}
