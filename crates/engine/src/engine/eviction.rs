//! How is space made for a model that is loaded on demand?

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use nerite_repository::{Generation, Vacancy};
use nerite_request::{Peer, Status};

use super::Engine;
use super::demand::{Demand, ModelWithParts};
use crate::limits::LEAVE_PATIENCE;
use crate::timer::now_us;

impl Engine {
    /// Waits until there is space for the model and its parts, and reserves it. Parts that are loaded are not evicted for this model. While it waits,
    /// they may be evicted for others. Otherwise two waiting ensembles could wait for each other's parts. The clients that wait for the model
    /// determine how long this waits and which models may be evicted. If no client waits any more, `peer` determines it.
    pub(crate) fn make_room(
        self: &Arc<Self>,
        demand: &Demand,
        whole: &ModelWithParts,
        peer: &Peer,
    ) -> Result<(), Status> {
        self.measure_models(demand);
        let (model, parts) = (&*whole.model, whole.parts.keys().cloned().collect());
        let bytes = whole.parts.values().copied().fold(whole.bytes, u64::saturating_add);
        let mut rounds = 0;
        loop {
            let waiting_peers = demand.waiting_peers(model);
            let is_awaited = !waiting_peers.is_empty();
            let clients = if is_awaited { waiting_peers } else { BTreeSet::from([peer.clone()]) };
            let mut residence = demand.residence();
            // This must be computed with the residence locked. When the load of an ensemble ends, its parts are not kept as parts any more, and are
            // in use if requests wait for the ensemble.
            let now_us = now_us();
            let in_use = self.in_use(demand, now_us);
            let is_busy = |other: &str| demand.is_kept(other, now_us) || in_use.contains(other);
            let room = residence.vacancy(model, &parts, bytes, &clients, now_us, is_busy);
            match room {
                Vacancy::Fits => {
                    demand.reserve(&mut residence, whole, now_us);
                    return Ok(());
                }
                Vacancy::Evict(other) => {
                    demand.eviction_begins(&other);
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

    /// Notes how much memory each loaded model has now. That is known only once it is loaded, and may have grown since.
    fn measure_models(&self, demand: &Demand) {
        if !demand.residence().is_limited() {
            return;
        }
        let mut measured: BTreeMap<String, u64> = BTreeMap::new();
        for served in self.all() {
            let bytes = served.memory_usage().iter().fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
            let of_model = measured.entry(served.name().to_owned()).or_default();
            *of_model = of_model.saturating_add(bytes);
        }
        let mut residence = demand.residence();
        for (model, bytes) in measured {
            residence.measured(&model, bytes);
        }
    }

    /// Gives back the bytes of a model that is neither loaded nor being loaded. Call this whenever a load or an unload of the model may have ended.
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
        let unloaded = self.unload_now(model, false, None);
        demand.eviction_ends(model);
        unloaded?;
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

    /// The models that have requests in flight, with their parts, and the parts of models that are being loaded or were just loaded for requests.
    /// Parts count because an ensemble is unloaded with each of its parts.
    fn in_use(&self, demand: &Demand, now_us: u64) -> HashSet<String> {
        let mut in_use: HashSet<String> = demand.needed(now_us).iter().flat_map(|model| self.parts_of(model)).collect();
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
