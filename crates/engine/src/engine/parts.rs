//! Which models are loaded before an ensemble that is made of them?

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nerite_backend::Coming;
use nerite_repository::{ModelSource, load_order, phrase};
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

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
    /// Models whose loads were already tried for the same reason, successful or not. They are not tried again.
    tried: Arc<BTreeSet<String>>,
}

impl Reason {
    /// The model itself is to be loaded. The loads of the models in `tried` were tried before.
    pub(crate) fn requested(tried: Arc<BTreeSet<String>>) -> Reason {
        Reason { tried, ..Reason::default() }
    }

    /// A request needs the model.
    pub(crate) fn demanded() -> Reason {
        Reason { is_demand: true, ..Reason::default() }
    }

    /// A model that it is made of has changed.
    pub(crate) fn changed_part() -> Reason {
        Reason { is_part: true, is_anew: true, ..Reason::default() }
    }

    /// Whether it is loaded although its own files did not change.
    pub(crate) fn is_anew(&self) -> bool {
        self.is_anew
    }

    /// Whether a request needs the model, or an ensemble that is made of it.
    pub(crate) fn is_demand(&self) -> bool {
        self.is_demand
    }

    /// Whether the model itself was to be loaded, and not only as a part.
    pub(crate) fn is_explicit(&self) -> bool {
        !self.is_part
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

    /// The parts of an ensemble that are not loaded, and whose loads were not tried.
    pub(crate) fn missing_parts(&self, source: &ModelSource, reason: &Reason) -> Vec<String> {
        let is_missing = |part: &String| self.served(part).is_empty() && !reason.tried.contains(part);
        source.needs().into_iter().filter(is_missing).collect()
    }

    /// Loads parts of an ensemble. Only a cycle is an error here. Other failures are reported when the ensemble itself is loaded.
    pub(crate) fn load_parts(
        self: &Arc<Self>,
        ensemble: &str,
        parts: &[String],
        reason: &Reason,
    ) -> Result<(), Status> {
        if let Some(last) = self.last_before(ensemble, ensemble, &mut BTreeSet::new()) {
            return Err(phrase::load_failed(ensemble, &phrase::circular(ensemble, &last)));
        }
        for part in parts {
            // The error was logged by the load.
            drop(self.load_for(part, &LoadOptions::default(), &reason.of_part()));
        }
        Ok(())
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

    /// Checks that the parts of an ensemble are loaded, and that the ensemble fits them.
    pub(crate) fn check_parts(&self, source: &ModelSource) -> Result<(), Status> {
        self.check_fit(source).map_err(|why| phrase::load_failed(&source.identifier, &why))
    }

    /// As [`Engine::check_parts`], with the reason alone.
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
        self.check_versions(source, None)
    }

    /// Whether the versions of the models of an ensemble are there, and fit it; when `coming` has come, if there is one.
    pub(crate) fn check_versions(&self, source: &ModelSource, coming: Option<Coming>) -> Result<(), String> {
        let is_there = |need: &str, version: i64| match &coming {
            Some(coming) if coming.model == need => coming.versions.contains_key(&version),
            _ => self.find(need, Some(version)).is_ok(),
        };
        for step in source.config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step) {
            let version = Some(step.model_version).filter(|version| *version != -1);
            let need = source.needs.iter().find(|(name, _)| *name == step.model_name).map_or("", |(_, need)| need);
            if let Some(version) = version.filter(|version| !is_there(need, *version)) {
                return Err(phrase::needs_version(&source.identifier, &step.model_name, version));
            }
        }
        self.check_models(source, coming).map_err(|status| status.message)
    }

    /// The models to load at the start, in groups. The parts of an ensemble are in an earlier group than the ensemble.
    pub(crate) fn waves(&self, models: &[String]) -> Vec<Vec<String>> {
        let needs = |model: &String| {
            let source = self.store().read(model, &LoadOptions::default());
            (model.clone(), source.map(|source| source.needs()).unwrap_or_default())
        };
        let order = load_order(&models.iter().map(needs).collect::<BTreeMap<_, _>>());
        let mut waves = order.waves;
        // The load of each of them reports the cycle.
        waves.push(order.circular.into_iter().map(|(model, _)| model).collect());
        waves
    }
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
