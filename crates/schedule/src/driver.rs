//! How do decisions become runs and answers?

use std::collections::{HashMap, VecDeque};

use smallvec::SmallVec;

use crate::action::{Action, Actions, Batch, Controls, Rejection, Slot};
use crate::event::{Arrival, Event, InstanceId, Ticket, Wants};
use crate::{Context, Scheduler};

/// Asks whether a job may join those of a batch.
type MayJoin<J> = Box<dyn FnMut(&[&J], &J) -> bool + Send>;

/// A scheduler, and the jobs behind its tickets.
///
/// After each call the caller takes all of [`Driver::next_run`] and [`Driver::next_rejected`], and sees to it that [`Driver::wake`] is
/// called at [`Driver::wake_at_us`].
pub struct Driver<J> {
    scheduler: Box<dyn Scheduler + Send>,
    may_join: Option<MayJoin<J>>,
    last: Ticket,
    waiting: HashMap<Ticket, J>,
    actions: Actions,
    /// Which instances may start.
    granted: Vec<bool>,
    running: usize,
    runs: VecDeque<Run<J>>,
    rejected: VecDeque<(J, Rejection)>,
    wake_at_us: Option<u64>,
}

/// Jobs on their way to their instance.
#[derive(Debug)]
pub struct Run<J> {
    /// Where they run.
    pub instance: InstanceId,
    /// The jobs in the order of their rows.
    pub slots: SmallVec<[RunSlot<J>; 1]>,
}

/// A place in a batch.
#[derive(Debug)]
pub enum RunSlot<J> {
    /// Of a sequence that has no request now.
    Empty,
    /// A job, and what the model is told about its sequence.
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
            may_join: None,
            last: Ticket(0),
            waiting: HashMap::new(),
            actions: Actions::default(),
            granted: Vec::new(),
            running: 0,
            runs: VecDeque::new(),
            rejected: VecDeque::new(),
            wake_at_us: None,
        }
    }

    /// The same; `may_join` is asked before a job joins those of a batch.
    pub fn asking(mut self, may_join: impl FnMut(&[&J], &J) -> bool + Send + 'static) -> Driver<J> {
        self.may_join = Some(Box::new(may_join));
        self
    }

    /// What arrivals have to tell.
    pub fn wants(&self) -> Wants {
        self.scheduler.wants()
    }

    /// A job came; `arrival` describes it. Its ticket.
    pub fn arrive(&mut self, job: J, arrival: impl FnOnce(Ticket) -> Arrival, now_us: u64) -> Ticket {
        let ticket = Ticket(self.last.0 + 1);
        self.last = ticket;
        self.waiting.insert(ticket, job);
        self.tell(Event::Arrived(arrival(ticket)), now_us);
        ticket
    }

    /// An instance finished what it was given.
    pub fn done(&mut self, instance: InstanceId, now_us: u64) {
        self.running -= 1;
        self.tell(Event::Done(instance), now_us);
    }

    /// An instance may start.
    pub fn grant(&mut self, instance: InstanceId, now_us: u64) {
        if self.granted.len() <= instance.0 {
            self.granted.resize(instance.0 + 1, false);
        }
        self.granted[instance.0] = true;
        self.tell(Event::Granted(instance), now_us);
    }

    /// Takes an instance away that may start. False: it may not, because it runs or was not granted.
    pub fn withdraw(&mut self, instance: InstanceId, now_us: u64) -> bool {
        let was_granted = self.granted.get_mut(instance.0).is_some_and(std::mem::take);
        if was_granted {
            self.tell(Event::Withdrawn(instance), now_us);
        }
        was_granted
    }

    /// The client of a job gave it up. Nothing happens if the job does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket, now_us: u64) {
        if self.waiting.contains_key(&ticket) {
            self.tell(Event::Cancelled(ticket), now_us);
        }
    }

    /// Tells the time, if it is the one that was waited for.
    pub fn wake(&mut self, now_us: u64) {
        if self.wake_at_us.is_some_and(|at_us| at_us <= now_us) {
            self.tell(Event::Time, now_us);
        }
    }

    /// Takes no more jobs; those that wait are still run.
    pub fn stop(&mut self, now_us: u64) {
        self.tell(Event::Stop, now_us);
    }

    /// What is to be run next. Its instance is [`Driver::done`] afterwards.
    pub fn next_run(&mut self) -> Option<Run<J>> {
        self.runs.pop_front()
    }

    /// What is to be answered with its reason.
    pub fn next_rejected(&mut self) -> Option<(J, Rejection)> {
        self.rejected.pop_front()
    }

    /// When [`Driver::wake`] is to be called, if nothing else happens before.
    pub fn wake_at_us(&self) -> Option<u64> {
        self.wake_at_us
    }

    /// The job behind a ticket, if it waits.
    pub fn job(&self, ticket: Ticket) -> Option<&J> {
        self.waiting.get(&ticket)
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_drained(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }

    fn tell(&mut self, event: Event, now_us: u64) {
        let Driver { scheduler, waiting, actions, may_join, .. } = self;
        actions.wake_at_us = None;
        let mut ask = |batch: &[Ticket], next: Ticket| {
            let (Some(may_join), Some(next)) = (may_join.as_mut(), waiting.get(&next)) else { return true };
            let batch: Vec<&J> = batch.iter().filter_map(|ticket| waiting.get(ticket)).collect();
            may_join(&batch, next)
        };
        scheduler.handle(event, &mut Context { now_us, actions, may_join: &mut ask });
        self.wake_at_us = self.actions.wake_at_us;
        let mut decided = std::mem::take(&mut self.actions.list);
        decided.drain(..).for_each(|action| self.apply(action));
        self.actions.list = decided;
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
