//! What happens to ensembles when a model that they are made of changes?
//!
//! As in Triton, they are loaded anew, because whether an ensemble is decoupled, and where its tensors may lie, depends on its parts. An ensemble
//! that does not fit its parts any more takes no requests until it fits them again. The index says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_backend::PendingVersions;
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_repository::{Generation, ModelSource, Store, phrase};
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

use super::Engine;
use super::parts::Reason;
use super::step_counts::{Sources, check_steps};
use crate::limits::MAKE_WAY_MAX;
use crate::served::Served;

/// What each ensemble was loaded from, by its identifier: those that are up, those that are being loaded, and those that do not fit their parts.
#[derive(Default)]
pub(super) struct Ensembles {
    all: Mutex<Sources>,
    /// Models whose changes took ensembles out of service.
    made_way: Mutex<BTreeSet<String>>,
}

impl Ensembles {
    /// Notes what a model is loaded from, before its parts are checked. Returns the source that was noted before.
    fn put(&self, model: &str, source: Option<Arc<ModelSource>>) -> Option<Arc<ModelSource>> {
        let mut all = self.lock();
        match source {
            Some(source) => all.insert(model.to_owned(), source),
            None => all.remove(model),
        }
    }

    /// Forgets an ensemble that was unloaded.
    pub fn forget(&self, model: &str) {
        self.lock().remove(model);
    }

    /// Forgets all ensembles.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn get(&self, model: &str) -> Option<Arc<ModelSource>> {
        self.lock().get(model).cloned()
    }

    /// The ensembles that are made of this model, directly or through others. Each comes after those that it is made of.
    fn users(&self, model: &str) -> Vec<String> {
        users(&self.lock().iter().map(|(ensemble, source)| (ensemble.clone(), source.needs())).collect(), model)
    }

    /// As [`Ensembles::users`], by the models that the repositories have now.
    fn users_now(&self, model: &str, store: &Store) -> Vec<String> {
        // The lock is not held while directories are looked at.
        let all: Vec<Arc<ModelSource>> = self.lock().values().cloned().collect();
        let needs = all.iter().map(|source| (source.identifier.clone(), relinked(source, store).needs())).collect();
        users(&needs, model)
    }

    /// Checks how many steps a request to an ensemble would start, with its parts as they are loaded now. Err: there are too many.
    pub fn check_steps(&self, ensemble: &str) -> Result<(), String> {
        check_steps(ensemble, &self.lock())
    }

    /// Whether ensembles were taken out of service for this model since the last call.
    pub fn has_made_way(&self, model: &str) -> bool {
        self.made_way.lock().unwrap_or_else(PoisonError::into_inner).remove(model)
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// As [`Engine::load_alone`]. If the model is an ensemble, what it is loaded from is noted for as long as it is up.
    pub(super) fn load_noted(
        self: &Arc<Self>,
        model: &str,
        source: &ModelSource,
        reason: &Reason,
    ) -> Result<(), Status> {
        let noted = (!source.needs.is_empty()).then(|| Arc::new(source.clone()));
        let before = self.ensembles.put(model, noted.clone());
        let is_relinked = before.as_ref().is_some_and(|before| before.needs != source.needs);
        let outcome = self.load_alone(model, source, reason, is_relinked);
        if outcome.is_err() {
            let mut all = self.ensembles.lock();
            let is_same = all.get(model).map(Arc::as_ptr) == noted.as_ref().map(Arc::as_ptr);
            // Otherwise the model was unloaded meanwhile.
            if is_same {
                match before {
                    Some(before) => drop(all.insert(model.to_owned(), before)),
                    None => drop(all.remove(model)),
                }
            }
        }
        outcome
    }

    /// The versions of a model that take requests when a load has ended: those that were loaded, and those that are served and stay.
    pub(super) fn versions_after(
        &self,
        source: &ModelSource,
        loaded: &[Arc<Served>],
    ) -> BTreeMap<i64, Arc<ModelConfig>> {
        let mut stay = self.served(&source.identifier);
        stay.retain(|served| source.versions.contains(&served.version()));
        stay.iter().chain(loaded).map(|served| (served.version(), Arc::clone(served.config()))).collect()
    }

    /// Takes the ensembles out of service that will not fit the versions that a model is about to have, and waits for a while until their requests
    /// have ended. Otherwise requests of these ensembles would fail halfway until [`Engine::renew_users`] has checked the ensembles.
    pub(super) fn make_way(self: &Arc<Self>, model: &str, versions: BTreeMap<i64, Arc<ModelConfig>>) {
        let pending = PendingVersions { model: model.to_owned(), versions };
        let mut out: Vec<(String, String)> = Vec::new();
        for user in self.ensembles.users(model).into_iter().filter(|user| !self.served(user).is_empty()) {
            let Some(source) = self.ensembles.get(&user) else { continue };
            let needs = source.needs();
            let lost = needs.iter().find(|need| out.iter().any(|(gone, _)| gone == *need));
            let why = match lost {
                Some(lost) => Some(phrase::needs_unloaded(&user, lost, "")),
                None if needs.iter().any(|need| need == model) => {
                    self.check_versions(&source, Some(pending.clone())).err()
                }
                None => None,
            };
            let why = why.or_else(|| self.ensembles.check_steps(&user).err());
            out.extend(why.map(|why| (user, why)));
        }
        if out.is_empty() {
            return;
        }
        self.ensembles.made_way.lock().unwrap_or_else(PoisonError::into_inner).insert(model.to_owned());
        // This is not logged here, but by [`Engine::renew_users`].
        let mut lifecycle = self.lifecycle();
        let retire: Vec<Generation> = out
            .iter()
            .flat_map(|(ensemble, why)| lifecycle.take_misfit_out(ensemble, &phrase::coded(&Status::invalid(why))))
            .collect();
        self.withdraw(&lifecycle, &retire);
        drop(lifecycle);
        self.retire(retire.clone());
        if !self.retiring.wait_for(&retire, Instant::now() + MAKE_WAY_MAX) {
            log::warn!("requests of ensembles that will not fit '{model}' any more go on and may fail");
        }
    }

    /// Loads the ensembles anew that are made of a model whose versions have changed.
    /// `waiter` is the model whose load waits for this.
    pub(super) fn renew_users(self: &Arc<Self>, model: &str, waiter: Option<&str>) {
        let mut changed = BTreeSet::from([model.to_owned()]);
        for user in self.ensembles.users_now(model, self.store()) {
            // An ensemble that was taken out of service before the model changed counts as changed, too.
            if self.renew(&user, &changed, waiter) || self.served(&user).is_empty() {
                changed.insert(user);
            }
        }
    }

    /// Loads an ensemble anew if one of these models is a part of it. Returns whether other generations of it take requests now.
    fn renew(self: &Arc<Self>, ensemble: &str, changed: &BTreeSet<String>, waiter: Option<&str>) -> bool {
        let _turn = match self.queue.load(ensemble, None, waiter) {
            Ok(turn) => turn,
            Err(status) => {
                log::error!("ensemble '{ensemble}' is not loaded anew: {status}");
                return false;
            }
        };
        // A load of the ensemble that was in progress has ended by now, and may have failed.
        let Some(source) = self.ensembles.get(ensemble).map(|source| relinked(&source, self.store())) else {
            return false;
        };
        if !source.needs().iter().any(|need| changed.contains(need)) {
            return false;
        }
        let before = self.lifecycle().serving(ensemble);
        match self.check_fit(&source) {
            Ok(()) => {
                log::info!("ensemble '{ensemble}' is loaded anew: a model that it is made of has changed");
                // An error was logged by the load. The ensemble stays as it was.
                let outcome = self.load_as_it_is(ensemble, &LoadOptions::default(), source, &Reason::changed_part());
                self.count_load(ensemble, &outcome);
            }
            Err(why) => self.take_out(ensemble, &why),
        }
        self.lifecycle().serving(ensemble) != before
    }

    /// Takes an ensemble out of service that does not fit its parts, until it is loaded again.
    fn take_out(self: &Arc<Self>, ensemble: &str, why: &str) {
        log::error!("ensemble '{ensemble}' takes no requests until it fits its models again: {why}");
        let mut lifecycle = self.lifecycle();
        let retire = lifecycle.take_misfit_out(ensemble, &phrase::coded(&Status::invalid(why)));
        self.withdraw(&lifecycle, &retire);
        drop(lifecycle);
        self.retire(retire);
    }
}

/// The same ensemble, made of the models that the repositories have now: a nearer one of a name may have come since it was loaded, or gone.
fn relinked(source: &ModelSource, store: &Store) -> ModelSource {
    ModelSource { needs: store.needs(&source.identifier, &source.config), ..source.clone() }
}

/// The models that are made of this one by `needs`, directly or through others. Each comes after those that it is made of.
fn users(needs: &BTreeMap<String, Vec<String>>, model: &str) -> Vec<String> {
    let mut left = BTreeSet::new();
    let mut open = vec![model];
    while let Some(part) = open.pop() {
        let of_part = needs.iter().filter(|(_, parts)| parts.iter().any(|one| one == part));
        open.extend(of_part.filter(|(user, _)| left.insert(user.as_str())).map(|(user, _)| user.as_str()));
    }
    let mut ordered = Vec::with_capacity(left.len());
    while let Some(first) = left.first().copied() {
        let is_next = |user: &&str| needs[*user].iter().all(|part| part == user || !left.contains(part.as_str()));
        // Ensembles that need each other are never loaded.
        let next = left.iter().copied().find(is_next).unwrap_or(first);
        left.remove(next);
        ordered.push(next.to_owned());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `needs` as `a=b,c d=e`.
    #[track_caller]
    fn check(needs: &str, model: &str, expect: &[&str]) {
        let each = needs.split_whitespace().filter_map(|one| one.split_once('='));
        let needs =
            each.map(|(user, parts)| (user.to_owned(), parts.split(',').map(str::to_owned).collect())).collect();
        assert_eq!(users(&needs, model), expect);
    }

    #[test]
    fn users_come_after_what_they_are_made_of() {
        check("e=a,b f=b", "a", &["e"]);
        check("e=a,b f=b", "b", &["e", "f"]);
        check("e=a,b f=b", "c", &[]);
        check("a=z b=a,c c=a", "z", &["a", "c", "b"]);
        check("a=b b=a", "b", &["a", "b"]);
    }
}
