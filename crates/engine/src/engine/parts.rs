//! Which models are loaded before an ensemble that is made of them?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nerite_backend::PendingVersions;
use nerite_repository::{ModelSource, load_order, phrase};
use nerite_request::setting::LoadOptions;
use nerite_request::{Cancel, Peer};

use crate::catalog::Catalog;
use crate::engine::Engine;

/// The reason of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reason {
    /// Whether the model is loaded only because an ensemble needs it.
    is_part: bool,
    /// Whether a request needs it, in control mode `demand`.
    is_demand: bool,
    /// Whether it is loaded although its own files did not change.
    is_anew: bool,
    /// The client that requested the load. `None` for the server itself.
    peer: Option<Peer>,
    /// The model whose load waits for this one.
    waiter: Option<Arc<str>>,
    /// Set when this client has gone.
    gone: Cancel,
    /// Models whose loads were already tried for the same reason, successful or not. They are not tried again.
    tried: Arc<BTreeSet<String>>,
}

impl Reason {
    /// The model itself is to be loaded. The loads of the models in `tried` were tried before.
    pub(crate) fn requested(tried: Arc<BTreeSet<String>>) -> Reason {
        Reason { tried, ..Reason::default() }
    }

    /// A file that the model imported from outside its directory has changed. The loads of the models in `tried` were tried before.
    pub(crate) fn changed_import(tried: Arc<BTreeSet<String>>) -> Reason {
        Reason { is_anew: true, ..Reason::requested(tried) }
    }

    /// A client requests the load. `gone` is set when the client does not wait any more.
    pub(crate) fn of_client(peer: &Peer, gone: Cancel) -> Reason {
        Reason { peer: client(peer), gone, ..Reason::default() }
    }

    /// The same reason, for a load for which the load of the model `waiter` waits.
    #[must_use]
    pub(crate) fn waited_for_by(self, waiter: Option<&str>) -> Reason {
        Reason { waiter: waiter.map(Arc::from), ..self }
    }

    /// A request of a client needs the model.
    pub(crate) fn demanded(peer: &Peer) -> Reason {
        Reason { is_demand: true, peer: client(peer), ..Reason::default() }
    }

    /// A model that it is made of has changed.
    pub(crate) fn changed_part() -> Reason {
        Reason { is_part: true, is_anew: true, ..Reason::default() }
    }

    /// Whether it is loaded although its own files did not change.
    pub(crate) fn is_anew(&self) -> bool {
        self.is_anew
    }

    /// Whether it is loaded because a model that it is made of has changed.
    pub(crate) fn is_changed_part(&self) -> bool {
        self.is_anew && self.is_part
    }

    /// The client that requested the load.
    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// The model whose load waits for this one.
    pub(crate) fn waiter(&self) -> Option<&str> {
        self.waiter.as_deref()
    }

    /// The flag that is set when the client that requested the load has gone.
    pub(crate) fn gone(&self) -> &Cancel {
        &self.gone
    }

    /// Whether a request needs the model, or an ensemble that is made of it.
    pub(crate) fn is_demand(&self) -> bool {
        self.is_demand
    }

    /// Whether the model itself was to be loaded, and not only as a part.
    pub(crate) fn is_explicit(&self) -> bool {
        !self.is_part
    }

    /// Whether the load of this model was tried before for the same reason.
    pub(crate) fn has_tried(&self, model: &str) -> bool {
        self.tried.contains(model)
    }

    /// The reason of the load of a part, if its ensemble is loaded for this reason.
    fn of_part(&self) -> Reason {
        Reason { is_part: true, is_anew: false, ..self.clone() }
    }
}

impl Engine {
    /// The models that a loaded model is made of, with the parts of these models.
    pub(crate) fn parts_of(&self, model: &str) -> BTreeSet<String> {
        let mut parts = BTreeSet::new();
        collect_parts(&self.catalog.load(), model, &mut parts);
        parts
    }

    /// The parts of an ensemble that are not loaded.
    pub(crate) fn missing_parts(&self, source: &ModelSource) -> Vec<String> {
        source.needs().into_iter().filter(|part| self.served(part).is_empty()).collect()
    }

    /// Refuses an ensemble that needs itself by what is in the repositories.
    pub(crate) fn check_circle(&self, ensemble: &str) -> Result<(), String> {
        match self.last_before(ensemble, ensemble, &mut BTreeSet::new()) {
            Some(last) => Err(phrase::circular(ensemble, &last)),
            None => Ok(()),
        }
    }

    /// Loads parts of an ensemble. Failures are reported when the ensemble itself is loaded.
    pub(crate) fn load_parts(self: &Arc<Self>, parts: &[String], reason: &Reason) {
        for part in parts {
            // The error was logged by the load.
            drop(self.load_for(part, &LoadOptions::default(), &reason.of_part()));
        }
    }

    /// The model that needs `ensemble` on the path from `from` to it. `None` if `from` does not need `ensemble`, directly or indirectly.
    fn last_before(&self, ensemble: &str, from: &str, seen: &mut BTreeSet<String>) -> Option<String> {
        let source = self.store().read(from, &LoadOptions::default()).ok()?;
        let needs = source.needs();
        if needs.iter().any(|need| need == ensemble) {
            return Some(from.to_owned());
        }
        needs.iter().find_map(|need| {
            let is_new = seen.insert(need.clone());
            is_new.then(|| self.last_before(ensemble, need, seen)).flatten()
        })
    }

    /// Checks that the parts of an ensemble are loaded, and that the ensemble fits them. The error is the reason alone.
    pub(crate) fn check_fit(&self, source: &ModelSource) -> Result<(), String> {
        let (model, needs) = (&source.identifier, source.needs());
        if needs.is_empty() {
            return Ok(());
        }
        let unknown: Vec<&str> = needs.iter().map(String::as_str).filter(|need| !self.is_known(need)).collect();
        if !unknown.is_empty() {
            return Err(phrase::needs_unknown(model, &unknown));
        }
        self.check_needs(model, &needs)?;
        self.check_steps(model)?;
        self.check_versions(source, None)
    }

    /// Checks that the model versions that the steps of an ensemble name take requests, and that the ensemble fits its models. `pending` replaces the
    /// versions of its model, as if they were loaded already.
    pub(crate) fn check_versions(&self, source: &ModelSource, pending: Option<PendingVersions>) -> Result<(), String> {
        let is_there = |need: &str, version: i64| match &pending {
            Some(pending) if pending.model == need => pending.versions.contains_key(&version),
            _ => self.find(need, Some(version)).is_ok(),
        };
        for step in source.config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step) {
            let version = Some(step.model_version).filter(|version| *version != -1);
            let need = source.needs.iter().find(|(name, _)| *name == step.model_name).map_or("", |(_, need)| need);
            if let Some(version) = version.filter(|version| !is_there(need, *version)) {
                return Err(phrase::needs_version(&source.identifier, &step.model_name, version));
            }
        }
        self.check_models(source, pending).map_err(|status| status.message)
    }

    /// The models to load at the start, in groups. The parts of an ensemble are in an earlier group than the ensemble.
    pub(crate) fn waves(&self, models: &[String]) -> Vec<Vec<String>> {
        let needs = |model: &String| {
            let source = self.store().read(model, &LoadOptions::default());
            (model.clone(), source.map(|source| source.needs()).unwrap_or_default())
        };
        let order = load_order(&models.iter().map(needs).collect::<BTreeMap<_, _>>());
        let mut waves = order.waves;
        // The last group has the models that need each other. The load of each reports the cycle.
        waves.push(order.circular.into_iter().map(|(model, _)| model).collect());
        waves
    }
}

/// The client, unless a model requested the load.
fn client(peer: &Peer) -> Option<Peer> {
    Some(peer.clone()).filter(|peer| *peer != Peer::Unknown)
}

fn collect_parts(catalog: &Catalog, model: &str, parts: &mut BTreeSet<String>) {
    let ensembles = catalog.versions(model).iter().filter_map(|served| served.config().ensemble_scheduling());
    for step in ensembles.flat_map(|ensemble| &ensemble.step) {
        if !parts.contains(&step.model_name) {
            parts.insert(step.model_name.clone());
            collect_parts(catalog, &step.model_name, parts);
        }
    }
}
