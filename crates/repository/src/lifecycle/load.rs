//! Which versions does a load request load, and what is its result?

use std::sync::Arc;

use nerite_request::Status;

use super::{Generation, Known, Lifecycle, LoadOutcome, LoadPlan, LoadStep, Operation, Record, Running, State};
use crate::nesting::{Needs, check_nesting};
use crate::phrase;
use crate::store::Facts;

impl Lifecycle {
    /// Requests to load a model as `facts` describe it: by name (`explicit`), or only because an ensemble that is loaded after it needs it. On an
    /// error, which is the reason alone, nothing is loaded, and served versions stay.
    pub fn load_requested(&mut self, model: &str, facts: Facts, explicit: bool) -> Result<LoadStep, String> {
        self.check_needs(model, &facts.needs)?;
        check_nesting(model, &facts.needs, &self.all_needs())?;
        let name: Arc<str> = self.models.get_key_value(model).map_or_else(|| model.into(), |(name, _)| name.clone());
        if facts.versions.is_empty() {
            // Such a model in a repository makes the server unready, as in Triton. One that a request describes is refused and leaves nothing.
            if !facts.has_sent_files {
                self.models.entry(name).or_default();
            }
            return Err(nerite_config::no_version_to_load(model).to_string());
        }
        let known = self.models.entry(name.clone()).or_default();
        known.explicit |= explicit;
        let keep = kept(known, &facts);
        let versions: Vec<i64> = facts.versions.iter().copied().filter(|version| !keep.contains(version)).collect();
        let (facts, resize) = resizing(&name, known, &keep, facts);
        if versions.is_empty() {
            known.origin = Some(facts.fingerprint);
            self.failures.remove(model);
            return Ok(LoadStep::Settled { retire: retire_others(&name, known, &keep), resize });
        }
        let plan = self.begin(name, versions, keep, facts);
        Ok(LoadStep::Load(LoadPlan { resize, ..plan }))
    }

    /// Notes why a load of a model failed before its versions were loaded. The note stays until a load succeeds, or the model is unloaded.
    pub fn note_failure(&mut self, model: &str, reason: &str) {
        let name = self.models.get_key_value(model).map_or_else(|| model.into(), |(name, _)| name.clone());
        self.failures.insert(name, phrase::one_line(reason).to_owned());
    }

    /// Notes that all generations to be resized now have the instances of the configuration with this fingerprint.
    pub fn resized(&mut self, model: &str, served: u64) {
        if let Some(origin) = self.models.get_mut(model).and_then(|known| known.origin.as_mut()) {
            origin.served = served;
        }
    }

    /// Whether the models that an ensemble is made of are loaded. The error says which is not.
    pub fn check_needs(&self, model: &str, needs: &[String]) -> Result<(), String> {
        match needs.iter().find(|need| self.ready_versions(need).is_empty()) {
            Some(need) => Err(phrase::needs_unloaded(model, need, &self.failures(need))),
            None => Ok(()),
        }
    }

    /// The parts of each ensemble that is loaded or being loaded.
    fn all_needs(&self) -> Needs<'_> {
        let up = self.models.iter().map(|(model, known)| (&**model, &known.needs));
        let loading = self.running.values().map(|running| (&*running.model, &running.needs));
        let mut all = Needs::new();
        for (model, needs) in up.chain(loading).filter(|(_, needs)| !needs.is_empty()) {
            all.entry(model).or_default().extend(needs.iter().map(String::as_str));
        }
        all
    }

    /// Why versions of a model, or the whole model, failed to load, or do not fit their parts. Empty if none failed.
    fn failures(&self, model: &str) -> String {
        let versions = self.models.get(model).into_iter().flat_map(|known| &known.versions);
        let failed = versions.filter_map(|(&version, record)| match &record.state {
            State::Failed(reason) | State::Misfit(reason) => Some(phrase::version_failed(version, reason)),
            _ => None,
        });
        let failed: String = failed.collect();
        if failed.is_empty() { self.failures.get(model).cloned().unwrap_or_default() } else { failed }
    }

    /// Notes that one version of an operation was loaded or failed. The call for the last version returns the outcome of the operation.
    pub fn loaded(&mut self, operation: Operation, version: i64, result: Result<(), Status>) -> Option<LoadOutcome> {
        let running = self.running.get_mut(&operation)?;
        let result = result.map_err(|status| phrase::coded(&status));
        let record = self.models.get_mut(&running.model).and_then(|known| known.versions.get_mut(&version));
        // A version that is still served by an older generation stays ready.
        if let (Err(reason), Some(record)) = (&result, record.filter(|record| record.operation == operation)) {
            record.state = State::Failed(reason.clone());
        }
        *running.results.get_mut(&version)? = Some(result);
        if running.results.values().any(Option::is_none) {
            return None;
        }
        let running = self.running.remove(&operation)?;
        Some(self.end(operation, running))
    }

    /// Starts an operation. Versions that are not served are shown as loading.
    fn begin(&mut self, model: Arc<str>, versions: Vec<i64>, keep: Vec<i64>, facts: Facts) -> LoadPlan {
        let operation = self.next_operation();
        let known = self.models.entry(model.clone()).or_default();
        known.latest = operation;
        for &version in &versions {
            let record = Record { state: State::Loading, operation };
            let seen = known.versions.entry(version).or_insert_with(|| record.clone());
            if seen.state != State::Ready {
                *seen = record;
            }
        }
        let running = Running {
            model: model.clone(),
            results: versions.iter().map(|&version| (version, None)).collect(),
            keep,
            // A model whose files came with a request is always replaced by the next load.
            origin: (!facts.has_sent_files).then_some(facts.fingerprint),
            needs: facts.needs,
        };
        self.running.insert(operation, running);
        LoadPlan { model, operation, versions, resize: Vec::new() }
    }

    fn end(&mut self, operation: Operation, running: Running) -> LoadOutcome {
        let known = self.models.entry(running.model.clone()).or_default();
        let failed: Vec<(i64, &String)> = running
            .results
            .iter()
            .filter_map(|(&version, result)| Some((version, result.as_ref()?.as_ref().err()?)))
            .collect();
        let is_latest = known.latest == operation;
        let reason = match failed.first() {
            _ if !is_latest => phrase::outdated(),
            Some((_, first)) => {
                self.failures.insert(running.model.clone(), phrase::one_line(first).to_owned());
                failed.iter().map(|(version, reason)| phrase::version_failed(*version, reason)).collect()
            }
            None => {
                self.failures.remove(&running.model);
                return succeed(known, operation, running);
            }
        };
        let answer = Err(phrase::load_failed(&running.model, &reason));
        let well = running.results.iter().filter(|(_, result)| matches!(result, Some(Ok(()))));
        let retire: Vec<Generation> =
            well.map(|(&version, _)| Generation { model: running.model.clone(), version, operation }).collect();
        for generation in &retire {
            let record = known.versions.get_mut(&generation.version).filter(|record| record.operation == operation);
            if let Some(record) = record {
                record.state = State::Unloading;
            }
        }
        LoadOutcome { answer, publish: Vec::new(), retire }
    }
}

/// The versions that are served already with the files that `facts` describe.
fn kept(known: &Known, facts: &Facts) -> Vec<i64> {
    let Some(origin) = known.origin.as_ref().filter(|_| !facts.has_sent_files && !facts.anew) else {
        return Vec::new();
    };
    let same = |version: &i64| {
        let is_completed = facts.completed.contains(version) && origin.same_files(&facts.fingerprint, *version);
        known.is_ready(*version) && (is_completed || origin.same_version(&facts.fingerprint, *version))
    };
    facts.versions.iter().copied().filter(same).collect()
}

/// The kept generations whose instances differ from `facts`. Their part of the fingerprint does not change until they are resized.
fn resizing(model: &Arc<str>, known: &Known, keep: &[i64], mut facts: Facts) -> (Facts, Vec<Generation>) {
    let Some(origin) = known.origin.as_ref().filter(|origin| origin.served != facts.fingerprint.served) else {
        return (facts, Vec::new());
    };
    let kept = keep.iter().filter_map(|version| Some((*version, known.versions.get(version)?.operation)));
    let resize: Vec<Generation> =
        kept.map(|(version, operation)| Generation { model: model.clone(), version, operation }).collect();
    if !resize.is_empty() {
        facts.fingerprint.served = origin.served;
    }
    (facts, resize)
}

/// Ends an operation whose versions are all loaded. They replace all versions that were served, except those to keep.
fn succeed(known: &mut Known, operation: Operation, running: Running) -> LoadOutcome {
    let retire = retire_others(&running.model, known, &running.keep);
    let publish: Vec<Generation> = running
        .results
        .keys()
        .map(|&version| Generation { model: running.model.clone(), version, operation })
        .collect();
    for new in &publish {
        known.versions.insert(new.version, Record { state: State::Ready, operation });
    }
    known.origin = running.origin;
    known.needs = running.needs;
    LoadOutcome { answer: Ok(()), publish, retire }
}

/// Takes all ready versions out of service, except those to keep. Misfits and failed versions that are not to be loaded any more are unloaded.
fn retire_others(model: &Arc<str>, known: &mut Known, keep: &[i64]) -> Vec<Generation> {
    let mut retire = Vec::new();
    for (&version, record) in &mut known.versions {
        if !keep.contains(&version) && record.withdraw() {
            retire.push(Generation { model: model.clone(), version, operation: record.operation });
        }
    }
    retire
}
