//! What is unloaded when a model is unloaded?

use std::sync::Arc;

use nerite_request::Status;

use super::{Generation, Lifecycle, State, Withdrawn};
use crate::phrase;

impl Lifecycle {
    /// Unloads a model and the ensembles that need it. With `dependents`, the models that it is made of are unloaded too, unless they were loaded by name or
    /// another model needs them. For an unknown model nothing is unloaded. An unfinished load is replaced.
    pub fn unload_requested(&mut self, model: &str, dependents: bool) -> Withdrawn {
        let mut gone = Withdrawn::default();
        self.failures.remove(model);
        let Some((name, _)) = self.models.get_key_value(model) else { return gone };
        let name = name.clone();
        let parts = self.withdraw(&name, &mut gone);
        if dependents {
            self.withdraw_parts(parts, &mut gone);
        }
        gone
    }

    /// Unloads everything, because the server stops.
    pub fn unload_all(&mut self) -> Withdrawn {
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
        let mut gone = Withdrawn::default();
        for name in names {
            self.withdraw(&name, &mut gone);
        }
        gone
    }

    /// Takes an ensemble out of service that does not fit the models it is made of any more. `reason` stays in the index until it is loaded again or
    /// unloaded. Returns the generations that take no requests from now on.
    pub fn take_misfit_out(&mut self, model: &str, reason: &str) -> Vec<Generation> {
        let mut retire = Vec::new();
        let Some((name, _)) = self.models.get_key_value(model) else { return retire };
        let name = name.clone();
        for (&version, record) in self.models.get_mut(model).into_iter().flat_map(|known| &mut known.versions) {
            match record.state {
                State::Ready => {
                    retire.push(Generation { model: name.clone(), version, operation: record.operation });
                }
                State::Misfit(_) => {}
                State::Loading | State::Unloading | State::Unloaded | State::Failed(_) => continue,
            }
            record.state = State::Misfit(reason.to_owned());
        }
        retire
    }

    /// Notes that the last reference to a retired generation was dropped.
    pub fn drained(&mut self, generation: &Generation) {
        let Some(known) = self.models.get_mut(&generation.model) else { return };
        // A version that was loaded again meanwhile belongs to another operation and is not changed.
        let record =
            known.versions.get_mut(&generation.version).filter(|record| record.operation == generation.operation);
        if let Some(record) = record.filter(|record| record.state == State::Unloading) {
            record.state = State::Unloaded;
        }
    }

    /// Checks after an unload that no later load made versions ready again.
    pub fn check_unloaded(&self, model: &str) -> Result<(), Status> {
        let ready = self.ready_versions(model);
        if ready.is_empty() { Ok(()) } else { Err(phrase::unload_failed(model, &ready)) }
    }

    /// Unloads a model, and the ensembles that need it. Returns what it was made of.
    fn withdraw(&mut self, model: &Arc<str>, gone: &mut Withdrawn) -> Vec<String> {
        if let Some(known) = self.models.get_mut(model) {
            known.explicit = false;
            gone.models.push(model.clone());
        }
        self.take_out(model, gone)
    }

    /// Takes a model, and the ensembles that need it, out of service. Returns what it was made of.
    fn take_out(&mut self, model: &Arc<str>, gone: &mut Withdrawn) -> Vec<String> {
        let operation = self.next_operation();
        self.failures.remove(model);
        let Some(known) = self.models.get_mut(model) else { return Vec::new() };
        known.latest = operation;
        known.origin = None;
        let parts = std::mem::take(&mut known.needs);
        for (&version, record) in &mut known.versions {
            if record.withdraw() {
                gone.retire.push(Generation { model: model.clone(), version, operation: record.operation });
            }
        }
        if known.versions.is_empty() {
            self.models.remove(model);
        }
        // Its needs are cleared above, so a cycle of ensembles ends here.
        let users: Vec<Arc<str>> = self
            .models
            .iter()
            .filter(|(_, known)| known.needs.iter().any(|need| **need == **model))
            .map(|(name, _)| name.clone())
            .collect();
        for user in users {
            self.take_out(&user, gone);
            gone.users.push(user);
        }
        parts
    }

    fn withdraw_parts(&mut self, parts: Vec<String>, gone: &mut Withdrawn) {
        for part in parts {
            let Some((name, known)) = self.models.get_key_value(part.as_str()) else { continue };
            let needed = self.models.values().any(|other| other.needs.contains(&part));
            if known.explicit || needed {
                continue;
            }
            let name = name.clone();
            let inner = self.withdraw(&name, gone);
            self.withdraw_parts(inner, gone);
        }
    }
}
