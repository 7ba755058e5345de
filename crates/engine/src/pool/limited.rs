//! When may the scheduler use an instance that shares resources with others?
//!
//! An idle instance is granted to the scheduler when it has its resources, and not before. Until then requests gather in the queue: clients take turns,
//! later requests join the next batch, and the timeouts of the queue apply. An instance requests its resources while the scheduler would start a run on
//! it. After a run it gives them back and requests them again as one decision, so that the priorities of models hold.

use std::sync::Arc;

use nerite_schedule::InstanceId;

use super::{Shared, State};
use crate::rates::{Claimed, Claims, Granted, Turns};
use crate::response_order::ResponseOrder;
use crate::timer::now_us;

/// The idle instances of one model version.
pub(super) struct Limited {
    claims: Claims,
    /// Instances that requested their resources.
    waiting: Vec<InstanceId>,
    /// The others. The one that ran last is last.
    idle: Vec<InstanceId>,
    /// The pools to notify, without the lock: their instances were granted resources.
    turns: Turns,
}

impl Limited {
    pub fn new(claims: Claims) -> Limited {
        Limited { claims, waiting: Vec::new(), idle: Vec::new(), turns: Turns::none() }
    }

    /// The claims of the instances on the resources.
    pub fn claims(&mut self) -> &mut Claims {
        &mut self.claims
    }

    /// Adds the claim of a new instance.
    pub fn put(&mut self, at: InstanceId, claimed: Claimed) {
        self.claims.put(at, claimed);
    }

    /// Removes the claim of an instance that was removed.
    pub fn forget(&mut self, at: InstanceId) {
        self.turns.and(self.claims.remove(at));
    }

    /// Notes that an instance is idle.
    pub fn offer(&mut self, at: InstanceId) {
        self.idle.push(at);
    }

    /// Makes an instance unavailable. Returns whether it was idle.
    pub fn withdraw(&mut self, at: InstanceId) -> bool {
        if let Some(place) = self.waiting.iter().position(|one| *one == at) {
            self.stop_waiting(place);
        }
        let place = self.idle.iter().position(|one| *one == at);
        place.map(|place| self.idle.remove(place)).is_some()
    }

    fn stop_waiting(&mut self, place: usize) {
        let at = self.waiting.remove(place);
        self.turns.and(self.claims.decline(at));
        self.idle.push(at);
    }

    /// Requests the resources of an idle instance. Gives back those of its last run.
    fn request(&mut self, at: InstanceId) {
        self.idle.retain(|one| *one != at);
        self.waiting.push(at);
        self.turns.and(self.claims.request(at));
    }

    /// Takes the pools to notify.
    pub fn take_turns(&mut self) -> Turns {
        std::mem::replace(&mut self.turns, Turns::none())
    }
}

impl State {
    /// Makes an idle instance available to the scheduler.
    pub(super) fn offer(&mut self, at: InstanceId) {
        match &mut self.limited {
            Some(limited) => limited.offer(at),
            None => self.driver.grant(at, now_us()),
        }
    }

    /// Makes an instance unavailable to the scheduler. Returns whether it was idle.
    pub(super) fn withdraw(&mut self, at: InstanceId) -> bool {
        match &mut self.limited {
            Some(limited) => limited.withdraw(at),
            None => self.driver.withdraw(at, now_us()),
        }
    }

    /// Gives back the resources of an instance after its run, and requests them again if it is to run again.
    pub(super) fn release(&mut self, at: InstanceId) {
        let may_start = self.may_start();
        let State { limited: Some(limited), driver, .. } = self else { return };
        if may_start && limited.idle.contains(&at) && driver.would_start(at, now_us()) {
            limited.request(at);
        } else {
            limited.turns.and(limited.claims.release(at));
        }
    }

    /// Whether a run may start: its responses have room in their order.
    pub(super) fn may_start(&self) -> bool {
        !self.order.as_ref().is_some_and(ResponseOrder::is_full)
    }

    /// Grants the scheduler one instance that has its resources, and on which it starts a run then. Requests resources for instances on which a run would
    /// start, and withdraws other requests. Returns whether an instance was granted.
    pub(super) fn grant_limited(&mut self) -> bool {
        let may_start = self.may_start();
        let State { limited: Some(limited), driver, .. } = self else { return false };
        let now_us = now_us();
        for place in (0..limited.waiting.len()).rev() {
            if !may_start || !driver.would_start(limited.waiting[place], now_us) {
                limited.stop_waiting(place);
            }
        }
        let mut granted = limited.waiting.iter().copied().find(|at| limited.claims.has(*at));
        for at in limited.idle.clone().into_iter().rev() {
            // If requests may run on any instance, one of those that need the same is enough.
            let is_spare = || !driver.binds() && limited.waiting.iter().any(|one| limited.claims.are_alike(*one, at));
            if granted.is_none() && may_start && !is_spare() && driver.would_start(at, now_us) {
                limited.request(at);
                granted = limited.claims.has(at).then_some(at);
            }
        }
        let Some(at) = granted else { return false };
        limited.waiting.retain(|one| *one != at);
        driver.grant(at, now_us);
        true
    }
}

impl Granted for Shared {
    fn granted(self: Arc<Self>) {
        let mut state = self.lock();
        let work = self.settle(&mut state, false);
        drop(state);
        self.carry_out(work);
    }
}
