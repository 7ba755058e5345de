//! What does the server report about its models?

use std::collections::BTreeSet;
use std::sync::Arc;

use nerite_request::Status;
use nerite_request::report::IndexEntry;

use super::{Generation, Known, Lifecycle, Missing, Record, State};
use crate::phrase;
use crate::store::Listing;

impl Lifecycle {
    /// The generation that takes requests for a model: of this version, or of the highest ready one if none is named.
    pub fn look_up(&self, model: &str, version: Option<i64>) -> Result<Generation, Status> {
        let Some((name, known)) = self.models.get_key_value(model) else { return Err(phrase::unknown_model(model)) };
        let generation = |(version, operation)| Generation { model: name.clone(), version, operation };
        let Some(version) = version else {
            return known.ready().next_back().map(generation).ok_or_else(|| phrase::no_version_ready(model));
        };
        match known.versions.get(&version) {
            None => Err(phrase::unknown_version(model, version, &self.ready_versions(model))),
            Some(record) if record.state == State::Ready => Ok(generation((version, record.operation))),
            Some(_) => Err(phrase::version_not_ready(model, version)),
        }
    }

    /// The generations of a model that take requests, by their versions.
    pub fn serving(&self, model: &str) -> Vec<Generation> {
        let Some((name, known)) = self.models.get_key_value(model) else { return Vec::new() };
        known.ready().map(|(version, operation)| Generation { model: name.clone(), version, operation }).collect()
    }

    /// The versions of a model that take requests, ascending.
    pub fn ready_versions(&self, model: &str) -> Vec<i64> {
        self.models.get(model).map_or_else(Vec::new, |known| known.ready().map(|(version, _)| version).collect())
    }

    /// All generations that take requests, by model and version.
    pub fn ready_generations(&self) -> Vec<Generation> {
        let mut generations = Vec::new();
        for (model, known) in &self.models {
            let generation = |(version, operation)| Generation { model: model.clone(), version, operation };
            generations.extend(known.ready().map(generation));
        }
        generations
    }

    /// The state of a version, if the model was ever asked for and has it.
    pub fn state(&self, model: &str, version: i64) -> Option<&State> {
        self.models.get(model)?.versions.get(&version).map(|record| &record.state)
    }

    /// The models that were ever requested. With each, whether a version of it is loaded, is being loaded, or failed to load. Otherwise it was
    /// unloaded.
    pub fn requested(&self) -> impl Iterator<Item = (&str, bool)> {
        let is_present = |state: &State| !matches!(state, State::Unloading | State::Unloaded);
        self.models
            .iter()
            .map(move |(model, known)| (&**model, known.versions.values().any(|record| is_present(&record.state))))
    }

    /// The requested models that are not up, by version: a version is being loaded, failed to load, or does not fit its parts, or there is none. What was
    /// unloaded on purpose is not missing.
    pub fn missing(&self) -> impl Iterator<Item = Missing> + '_ {
        self.models.iter().flat_map(|(model, known)| {
            let missing = |version, reason: &str| Missing {
                model: model.clone(),
                version,
                reason: phrase::one_line(reason).to_owned(),
            };
            let without_version =
                known.versions.is_empty().then(|| missing(None, self.failure(model).unwrap_or_default()));
            let versions = known.versions.iter().filter_map(move |(&version, record)| match &record.state {
                State::Ready | State::Unloading | State::Unloaded => None,
                State::Loading => Some(missing(Some(version), "it is being loaded")),
                State::Failed(reason) | State::Misfit(reason) => Some(missing(Some(version), reason)),
            });
            without_version.into_iter().chain(versions)
        })
    }

    /// Why the last load of a model failed, or why it takes no requests any more.
    pub fn failure(&self, model: &str) -> Option<&str> {
        let of_versions = || self.models.get(model).and_then(Known::failure);
        self.failures.get(model).map(String::as_str).or_else(of_versions)
    }

    /// The models that take requests although their last load failed.
    pub fn failed_reloads(&self) -> impl Iterator<Item = &Arc<str>> {
        let serves = |model: &&Arc<str>| self.models.get(*model).is_some_and(|known| known.ready().next().is_some());
        self.failures.keys().filter(serves)
    }

    /// The repository index: the directories of `listing` by name, with the versions that the server knows. A model that came with a request is served
    /// but not listed. A model in two repositories is listed once, without a version.
    pub fn index(&self, listing: &Listing, ready_only: bool) -> Vec<IndexEntry> {
        let mut index = Vec::new();
        for (model, places) in listing.models() {
            let name = places.first().and_then(|place| place.file_name());
            let name = name.map_or_else(|| model.into(), |name| name.to_string_lossy());
            let entry = |version, (state, reason): (&'static str, &str)| IndexEntry {
                name: name.clone().into_owned(),
                identifier: model.to_owned(),
                version,
                state,
                reason: reason.to_owned(),
            };
            if places.len() > 1 {
                // As in Triton, it is listed even if only ready models are requested.
                index.push(entry(None, ("UNAVAILABLE", phrase::DUPLICATE)));
                continue;
            }
            let failure = self.failures.get(model);
            let versions = self.models.get(model).map(|known| &known.versions).filter(|versions| !versions.is_empty());
            let Some(versions) = versions else {
                let words = failure.map_or(("", ""), |reason| ("UNAVAILABLE", reason));
                index.extend((!ready_only).then(|| entry(None, words)));
                continue;
            };
            for (&version, record) in versions {
                let is_ready = record.state == State::Ready;
                if ready_only && !is_ready {
                    continue;
                }
                let (state, reason) = record.state.words();
                match failure.filter(|_| is_ready) {
                    Some(failure) => index.push(entry(Some(version), (state, &phrase::last_load_failed(failure)))),
                    None => index.push(entry(Some(version), (state, reason))),
                }
            }
        }
        index
    }

    /// The models that are served, or would be if they fitted their parts or their loads had not failed, and that are no longer in exactly one repository.
    /// Polling unloads them.
    pub fn vanished(&self, listing: &Listing) -> BTreeSet<Arc<str>> {
        let is_up = |record: &Record| matches!(record.state, State::Ready | State::Misfit(_));
        let up = self.models.iter().filter(|(_, known)| known.versions.values().any(is_up) && known.origin.is_some());
        let wanted = up.map(|(model, _)| model).chain(self.failures.keys());
        wanted.filter(|model| listing.places(model).len() != 1).cloned().collect()
    }
}
