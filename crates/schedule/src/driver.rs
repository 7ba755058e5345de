//! How do decisions become runs and answers?

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::action::{Action, Actions, Batch, Controls, Rejection, Slot};
use crate::event::{Arrival, Event, InstanceChange, InstanceId, Ticket, Wants};
use crate::{Context, Scheduler};

/// A scheduler, and the jobs behind its tickets.
///
/// After each call, the caller must take all results of [`Driver::next_run`], [`Driver::next_rejected`], [`Driver::take_over`] and
/// [`Driver::take_unbound`], and call [`Driver::wake`] at [`Driver::wake_at_us`].
pub struct Driver<J> {
    scheduler: Box<dyn Scheduler + Send>,
    rule: Option<JoinRule<J>>,
    last: Ticket,
    /// By ticket. Most jobs run at once, so few wait. Then a lookup takes less time than hashing the ticket.
    waiting: BTreeMap<Ticket, J>,
    actions: Actions,
    /// The instances that may start.
    granted: Vec<bool>,
    running: usize,
    runs: VecDeque<Run<J>>,
    rejected: VecDeque<(J, Rejection)>,
    wake_at_us: Option<u64>,
}

/// A model's own rule for which jobs share a batch, beside its policy: whether the second job may join a batch that begins with the first. If it may
/// not, the batch is closed and runs as soon as an instance is free.
pub type JoinRule<J> = Box<dyn Fn(&J, &J) -> bool + Send>;

/// Jobs that are to run on an instance.
#[derive(Debug)]
pub struct Run<J> {
    /// The instance they run on.
    pub instance: InstanceId,
    /// The jobs, in the order in which their rows lie in the batch.
    pub slots: SmallVec<[RunSlot<J>; 1]>,
}

/// A place in a batch.
#[derive(Debug)]
pub enum RunSlot<J> {
    /// The place of a sequence that has no request now.
    Empty,
    /// A job, and its sequence controls.
    Job(J, Option<Box<Controls>>),
}

impl<J> Run<J> {
    /// The jobs without the empty places.
    pub fn jobs(&self) -> impl Iterator<Item = &J> {
        self.slots.iter().filter_map(|slot| match slot {
            RunSlot::Empty => None,
            RunSlot::Job(job, _) => Some(job),
        })
    }
}

impl<J> Driver<J> {
    /// A driver of this scheduler. No instance is granted yet.
    pub fn new(scheduler: Box<dyn Scheduler + Send>) -> Driver<J> {
        Driver {
            scheduler,
            rule: None,
            last: Ticket(0),
            waiting: BTreeMap::new(),
            actions: Actions::default(),
            granted: Vec::new(),
            running: 0,
            runs: VecDeque::new(),
            rejected: VecDeque::new(),
            wake_at_us: None,
        }
    }

    /// The same driver, which asks this rule before a job joins a batch.
    pub fn with_join_rule(mut self, rule: impl Fn(&J, &J) -> bool + Send + 'static) -> Driver<J> {
        self.rule = Some(Box::new(rule));
        self
    }

    /// Which properties of arrivals the scheduler reads.
    pub fn wants(&self) -> Wants {
        self.scheduler.wants()
    }

    /// Adds a job, which `arrival` describes. Returns its ticket.
    pub fn arrive(&mut self, job: J, arrival: impl FnOnce(Ticket) -> Arrival, now_us: u64) -> Ticket {
        let ticket = Ticket(self.last.0 + 1);
        self.last = ticket;
        self.waiting.insert(ticket, job);
        self.handle_event(Event::Arrived(arrival(ticket)), now_us);
        ticket
    }

    /// An instance finished its batch.
    pub fn done(&mut self, instance: InstanceId, now_us: u64) {
        self.running -= 1;
        self.handle_event(Event::Done(instance), now_us);
    }

    /// An instance may start.
    pub fn grant(&mut self, instance: InstanceId, now_us: u64) {
        if self.granted.len() <= instance.0 {
            self.granted.resize(instance.0 + 1, false);
        }
        self.granted[instance.0] = true;
        self.handle_event(Event::Granted(instance), now_us);
    }

    /// Withdraws an instance that may start. Returns false if it runs or was not granted.
    pub fn withdraw(&mut self, instance: InstanceId, now_us: u64) -> bool {
        let was_granted = self.granted.get_mut(instance.0).is_some_and(std::mem::take);
        if was_granted {
            self.handle_event(Event::Withdrawn(instance), now_us);
        }
        was_granted
    }

    /// Whether a batch would start on an instance that is idle and not granted, if it were granted now.
    pub fn would_start(&mut self, instance: InstanceId, now_us: u64) -> bool {
        let wake_at_us = self.wake_at_us;
        self.call(wake_at_us, now_us, |scheduler, context| scheduler.would_start(instance, context))
    }

    /// Whether the scheduler binds requests to an instance before they run.
    pub fn binds(&self) -> bool {
        self.scheduler.binds()
    }

    /// Passes a change of an instance to the scheduler, if it binds.
    pub fn change(&mut self, instance: InstanceId, change: InstanceChange, now_us: u64) {
        if self.binds() {
            self.handle_event(Event::Changed(instance, change), now_us);
        }
    }

    /// The client of a job cancelled it. Has no effect if the job does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket, now_us: u64) {
        if self.waiting.contains_key(&ticket) {
            self.handle_event(Event::Cancelled(ticket), now_us);
        }
    }

    /// A request of the sequence whose state has this number did not run to its end. Called before [`Driver::done`] for its instance.
    pub fn cut_short(&mut self, sequence: u64, now_us: u64) {
        self.handle_event(Event::CutShort(sequence), now_us);
    }

    /// Passes the time to the scheduler, if the scheduler requested to be woken by then.
    pub fn wake(&mut self, now_us: u64) {
        if self.wake_at_us.is_some_and(|at_us| at_us <= now_us) {
            self.handle_event(Event::Time, now_us);
        }
    }

    /// Refuses further jobs. Jobs that wait are still run.
    pub fn stop(&mut self, now_us: u64) {
        self.handle_event(Event::Stop, now_us);
    }

    /// The next run. Call [`Driver::done`] for its instance afterwards.
    pub fn next_run(&mut self) -> Option<Run<J>> {
        self.runs.pop_front()
    }

    /// The next job that is rejected, with the reason.
    pub fn next_rejected(&mut self) -> Option<(J, Rejection)> {
        self.rejected.pop_front()
    }

    /// The numbers of the sequences that have ended since the last call.
    pub fn take_over(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.actions.over)
    }

    /// The removed instances whose last sequence has ended since the last call, and those that had none. They may be withdrawn.
    pub fn take_unbound(&mut self) -> Vec<InstanceId> {
        std::mem::take(&mut self.actions.unbound)
    }

    /// When [`Driver::wake`] must be called, if no other event comes before.
    pub fn wake_at_us(&self) -> Option<u64> {
        self.wake_at_us
    }

    /// The job behind a ticket, if it waits.
    pub fn job(&self, ticket: Ticket) -> Option<&J> {
        self.waiting.get(&ticket)
    }

    /// As [`Driver::job`], to change it.
    pub fn job_mut(&mut self, ticket: Ticket) -> Option<&mut J> {
        self.waiting.get_mut(&ticket)
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no job waits and no instance runs.
    pub fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    fn handle_event(&mut self, event: Event, now_us: u64) {
        self.call(None, now_us, |scheduler, context| scheduler.handle(event, context));
        let mut decided = std::mem::take(&mut self.actions.list);
        decided.drain(..).for_each(|action| self.apply(action));
        self.actions.list = decided;
    }

    /// Calls the scheduler. `wake_at_us` is when it wants to be woken in any case.
    fn call<T>(
        &mut self,
        wake_at_us: Option<u64>,
        now_us: u64,
        handle: impl FnOnce(&mut dyn Scheduler, &mut Context<'_>) -> T,
    ) -> T {
        let Driver { scheduler, waiting, actions, rule, .. } = self;
        actions.wake_at_us = wake_at_us;
        let may_join = |first: Ticket, next: Ticket| match (rule.as_ref(), waiting.get(&first), waiting.get(&next)) {
            (Some(rule), Some(first), Some(next)) => rule(first, next),
            _ => true,
        };
        let answer = handle(&mut **scheduler, &mut Context { now_us, actions, may_join: &may_join });
        self.wake_at_us = self.actions.wake_at_us;
        answer
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Run(Batch { instance, slots }) => {
                let granted = self.granted.get_mut(instance.0).is_some_and(std::mem::take);
                assert!(granted, "{instance:?} may not start: it was not granted, or runs");
                let waiting = &mut self.waiting;
                let fill = |slot| match slot {
                    Slot::Empty => RunSlot::Empty,
                    Slot::Request { ticket, controls } => {
                        let job = waiting.remove(&ticket);
                        RunSlot::Job(job.unwrap_or_else(|| panic!("{ticket:?} does not wait")), controls)
                    }
                };
                let slots = slots.into_iter().map(fill).collect();
                self.running += 1;
                self.runs.push_back(Run { instance, slots });
            }
            Action::Reject(ticket, rejection) => {
                let job = self.waiting.remove(&ticket);
                self.rejected.push_back((job.unwrap_or_else(|| panic!("{ticket:?} does not wait")), rejection));
            }
        }
    }
}
