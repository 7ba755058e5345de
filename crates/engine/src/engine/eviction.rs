//! How is space made for a model that is loaded on demand?

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use nerite_repository::{Generation, Vacancy};
use nerite_request::{Peer, Status};

use super::Engine;
use super::demand::Demand;
use crate::limits::LEAVE_PATIENCE;
use crate::timer::now_us;

impl Engine {
    /// Waits until the model fits into the limit, and reserves its bytes. The clients that wait for the model determine how long this waits and which
    /// models may be evicted. `peer` does so if no client waits any more.
    pub(crate) fn make_room(
        self: &Arc<Self>,
        demand: &Demand,
        model: &str,
        bytes: u64,
        peer: &Peer,
    ) -> Result<(), Status> {
        let mut rounds = 0;
        loop {
            let askers = demand.askers(model);
            let is_awaited = !askers.is_empty();
            let clients = if is_awaited { askers } else { BTreeSet::from([peer.clone()]) };
            let in_use = self.in_use();
            let is_busy = |other: &str| demand.is_loading(other) || in_use.contains(other);
            let mut residence = demand.residence();
            let room = residence.vacancy(model, bytes, &clients, now_us(), is_busy);
            match room {
                Vacancy::Fits => {
                    residence.loaded(model, bytes, false, now_us());
                    return Ok(());
                }
                Vacancy::Evict(other) => {
                    drop(residence);
                    log::info!("model '{other}' leaves to make room for '{model}', which has {bytes} bytes");
                    demand.count_eviction();
                    self.evict(demand, &other)?;
                }
                Vacancy::Busy if is_awaited || demand.is_loading_explicitly(model) && rounds < EXPLICIT_ROUNDS => {
                    rounds += 1;
                    drop(demand.changed.wait_timeout(residence, LEAVE_PATIENCE));
                }
                Vacancy::Busy if rounds >= EXPLICIT_ROUNDS => {
                    return Err(Status::unavailable(format!(
                        "there is no room for model '{model}', which has {bytes} bytes: the models that may leave have requests in flight; load it \
                         again later"
                    )));
                }
                Vacancy::Busy => return Err(Status::unavailable(format!("nobody waits for model '{model}' any more"))),
                Vacancy::Held { share } => {
                    return Err(Status::unavailable(format!(
                        "there is no room for model '{model}', which has {bytes} bytes: others hold the models that are loaded, and \
                         keep within {share} bytes each; raise --models-max-bytes, or ask again later"
                    )));
                }
                Vacancy::TooLarge { bytes_max } => {
                    return Err(Status::unavailable(format!(
                        "model '{model}' has {bytes} bytes, and beside the models that stay there is room for {bytes_max}; raise \
                         --models-max-bytes"
                    )));
                }
            }
        }
    }

    /// Gives back the bytes of a model that is neither loaded nor being loaded. Call this whenever either may have become true.
    pub(crate) fn forget_if_gone(&self, demand: &Demand, model: &str) {
        let mut residence = demand.residence();
        // A load is in `is_loading` before it takes this lock to reserve its bytes.
        if !demand.is_loading(model) && self.generations_of(model).is_empty() {
            residence.unloaded(model);
        }
        drop(residence);
        demand.changed.notify_all();
    }

    /// Unloads a model, and waits until it has ended, for a minute at most.
    fn evict(self: &Arc<Self>, demand: &Demand, model: &str) -> Result<(), Status> {
        // Only these generations are waited for. The model may be requested and loaded again before they have ended.
        let leaving = self.generations_of(model);
        self.unload_now(model, false)?;
        for _ in 0..LEAVE_ROUNDS {
            let residence = demand.residence();
            if !self.generations_of(model).iter().any(|generation| leaving.contains(generation)) {
                drop(residence);
                self.forget_if_gone(demand, model);
                return Ok(());
            }
            drop(demand.changed.wait_timeout(residence, LEAVE_PATIENCE));
        }
        // Its bytes count as free now, although its memory is freed later.
        log::warn!("model '{model}' has been leaving for long; its room is given away");
        let mut residence = demand.residence();
        if !demand.is_loading(model) && self.served(model).is_empty() {
            residence.unloaded(model);
        }
        Ok(())
    }

    /// The models that have requests in flight, and the models that they are made of, because an ensemble is unloaded with each of its parts.
    fn in_use(&self) -> HashSet<String> {
        let mut in_use = HashSet::new();
        for served in self.all().iter().filter(|served| served.in_flight() > 0) {
            in_use.extend(self.parts_of(served.name()));
            in_use.insert(served.name().to_owned());
        }
        in_use
    }

    fn generations_of(&self, model: &str) -> Vec<Generation> {
        self.generations().keys().filter(|generation| *generation.model == *model).cloned().collect()
    }
}

/// How often a load by name waits [`LEAVE_PATIENCE`] for models to have no requests in flight.
const EXPLICIT_ROUNDS: u32 = 100;

/// How often a load waits [`LEAVE_PATIENCE`] for a model to end.
const LEAVE_ROUNDS: u32 = 600;

const _: () = assert!(LEAVE_PATIENCE.as_millis() as u32 * LEAVE_ROUNDS <= 60_000, "a minute");
