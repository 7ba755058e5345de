//! How are models loaded and retired while requests are served?

mod control;
mod demand;
mod dependents;
mod eviction;
mod imports;
mod infer;
mod load_counts;
mod namespaces;
mod overrides;
mod parts;
mod poll;
mod repositories;
mod resize;
mod retire;
mod step_counts;
mod with_parts;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use arc_swap::ArcSwap;
use nerite_backend::{Models, PendingVersions};
use nerite_budget::Budgets;
use nerite_locks::Mutex;
use nerite_repository::{
    ControlMode, Facts, Generation, Lifecycle, LoadOutcome, LoadStep, Missing, ModelSource, State, Store, phrase,
    startup,
};
use nerite_request::Status;
use nerite_request::report::{CustomFamily, IndexEntry};
use nerite_request::setting::LoadOptions;

use self::demand::Demand;
pub use self::demand::{DemandCounts, Waiting};
use self::dependents::Ensembles;
use self::infer::admit;
pub use self::load_counts::LoadCount;
use self::load_counts::LoadCounts;
use self::namespaces::Namespaces;
use self::overrides::Overrides;
use self::parts::Reason;
pub use self::poll::FileChanges;
use self::poll::PollStop;
pub use self::repositories::RepositoryChange;
use self::retire::Retiring;
pub use self::retire::Unended;
use crate::admission::Admission;
use crate::catalog::Catalog;
use crate::load::Loader;
use crate::load_admission::LoadAdmission;
use crate::load_queue::LoadQueue;
use crate::progress::{Loads, Progress};
use crate::served::Served;
use crate::unsupported;

/// All models of a server: which are served, and how they are loaded and unloaded.
pub struct Engine {
    store: Store,
    pub(crate) loader: Loader,
    /// For threads that outlive a call.
    this: Weak<Engine>,
    /// For models that make requests of other models.
    models: Models,
    options: Options,
    pub(crate) catalog: ArcSwap<Catalog>,
    lifecycle: Mutex<Lifecycle>,
    generations: Mutex<HashMap<Generation, Arc<Served>>>,
    admission: LoadAdmission,
    queue: LoadQueue,
    ensembles: Ensembles,
    overrides: Overrides,
    retiring: Retiring,
    loads: Loads,
    load_counts: LoadCounts,
    /// `Some` with `--model-namespacing`.
    namespaces: Option<Namespaces>,
    /// `Some` in control mode `demand`.
    demand: Option<Arc<Demand>>,
    poll_stop: Arc<PollStop>,
    /// Whether [`Engine::start`] has loaded its models. In control mode `demand`, models that were loaded before that are never evicted.
    has_started: AtomicBool,
    /// Whether the start failed. Then no model is served.
    has_failed: AtomicBool,
}

/// The operator's decisions about models.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who decides which models are loaded.
    pub control: ControlMode,
    /// `--load-model`.
    pub load_models: Vec<String>,
    /// Models loading at the same time.
    pub load_threads: usize,
    /// How often a load that failed is tried again.
    pub load_retries: usize,
    /// The most bytes that the files of loaded models may have, in control mode `demand`; `None` for no limit.
    pub models_bytes_max: Option<u64>,
    /// The memory that clients may make the server hold.
    pub budgets: Budgets,
}

impl Engine {
    /// An engine over these repositories, with nothing loaded.
    pub fn new(store: Store, loader: Loader, options: Options) -> Arc<Engine> {
        let queue = LoadQueue::new(options.load_threads);
        let admission = LoadAdmission::new(store.options().allow_upload, options.budgets.clone());
        let is_on_demand = options.control == ControlMode::Demand;
        let demand = is_on_demand.then(|| Demand::new(options.models_bytes_max));
        Arc::new_cyclic(|engine: &Weak<Engine>| {
            let models = Models::of(Weak::<Engine>::clone(engine));
            loader.runtimes.count_in(models.metrics());
            Engine {
                this: Weak::clone(engine),
                models,
                namespaces: store.is_namespaced().then(Namespaces::default),
                store,
                loader,
                options,
                catalog: ArcSwap::default(),
                lifecycle: Mutex::default(),
                generations: Mutex::default(),
                admission,
                queue,
                ensembles: Ensembles::default(),
                overrides: Overrides::default(),
                retiring: Retiring::default(),
                loads: Loads::default(),
                load_counts: LoadCounts::default(),
                demand,
                has_started: AtomicBool::new(false),
                poll_stop: Arc::default(),
                has_failed: AtomicBool::new(false),
            }
        })
    }

    /// The version that takes requests for this name and number; without a number the highest.
    pub fn find(&self, model: &str, version: Option<i64>) -> Result<Arc<Served>, Status> {
        let model = &*self.identifier(model)?;
        if let Some(served) = self.catalog.load().find(model, version) {
            return Ok(Arc::clone(served));
        }
        match self.lifecycle().look_up(model, version) {
            Err(status) => Err(status),
            // The version was published between the two look-ups. The catalog is updated while the lifecycle's lock is held, so it has the version
            // now.
            Ok(generation) => {
                self.generation(&generation).ok_or_else(|| Status::unavailable("the model is being loaded"))
            }
        }
    }

    /// Admits a request to that version of the model; without a number to the highest.
    pub fn admit(&self, model: &str, version: Option<i64>) -> Result<Admission, Status> {
        admit(|| self.find(model, version))
    }

    /// All versions of a model that take requests, ascending. Empty if the name means several models.
    pub fn served(&self, model: &str) -> Vec<Arc<Served>> {
        let Ok(identifier) = self.identifier(model) else { return Vec::new() };
        self.catalog.load().versions(&identifier).to_vec()
    }

    /// All versions of all models that take requests, by name.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.catalog.load().all()
    }

    /// Notes that the engine could not be started. The server then runs without models.
    pub fn mark_failed(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Whether [`Engine::mark_failed`] was called.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The repositories that models are read from.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Whether a repository has the model, or it is loaded. A load request may have contained the files of a model that no repository has.
    pub(crate) fn is_known(&self, model: &str) -> bool {
        self.store.has(model) || !self.served(model).is_empty()
    }

    /// As [`Lifecycle::check_needs`].
    pub(crate) fn check_needs(&self, model: &str, needs: &[String]) -> Result<(), String> {
        self.lifecycle().check_needs(model, needs)
    }

    /// As [`Ensembles::check_steps`].
    pub(crate) fn check_steps(&self, ensemble: &str) -> Result<(), String> {
        self.ensembles.check_steps(ensemble)
    }

    /// As [`nerite_backend::Runtime::check_models`], by the runtime of the model.
    pub(crate) fn check_models(&self, source: &ModelSource, pending: Option<PendingVersions>) -> Result<(), Status> {
        let version = source.versions.last().copied().unwrap_or_default();
        let runtime = self.loader.runtime_of(&source.config, &source.directory, version)?;
        let models = self.models.with_aliases(&source.needs);
        let models = match pending {
            Some(pending) => models.with_pending_versions(pending),
            None => models,
        };
        runtime.check_models(&source.config, &models)
    }

    /// The model versions that should be up and are not. Such a version makes the server unready.
    pub fn missing(&self) -> Vec<Missing> {
        // In control mode `demand`, requests load their models. A model that cannot be loaded fails its requests, and does not make the server
        // unready.
        if self.is_on_demand() { Vec::new() } else { self.lifecycle().missing().collect() }
    }

    /// The models that take requests although their last load failed, by their identifiers.
    pub fn failed_reloads(&self) -> HashSet<Arc<str>> {
        self.lifecycle().failed_reloads().cloned().collect()
    }

    /// The name of the model with this identifier.
    pub fn name_of<'a>(&self, identifier: &'a str) -> &'a str {
        self.store.name_of(identifier)
    }

    /// Why the last load of a model failed, or why it takes no requests any more, in one line.
    pub fn failure(&self, model: &str) -> Option<String> {
        let identifier = self.identifier(model).ok()?;
        self.lifecycle().failure(&identifier).map(str::to_owned)
    }

    /// Notes why a load of a model in a repository failed. Names of models that are in none are not kept, because a client may send any number of them.
    pub(super) fn note_failure(&self, model: &str, why: &str) {
        if self.store.has(model) {
            self.lifecycle().note_failure(model, why);
        }
    }

    /// The models of the repositories, and the state of each.
    pub fn index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Status> {
        let listing = self.store.list().map_err(|error| error.status())?;
        let mut index = self.lifecycle().index(&listing, ready_only);
        for entry in index.iter_mut().filter(|entry| entry.state == State::Loading.words().0) {
            let progress = entry.version.and_then(|version| self.loads.of(&entry.identifier, version));
            entry.reason = progress.unwrap_or_default();
        }
        for entry in index.iter_mut().filter(|entry| entry.state == State::Ready.words().0) {
            let served = self.catalog.load().find(&entry.identifier, entry.version).cloned();
            let Some(served) = served else { continue };
            if let Some(fault) = served.fault() {
                (entry.state, entry.reason) = (State::Failed(String::new()).words().0, fault.message);
            } else if let Some(contradiction) = served.contradiction().filter(|_| entry.reason.is_empty()) {
                contradiction.clone_into(&mut entry.reason);
            }
        }
        index.retain(|entry| !ready_only || entry.state == State::Ready.words().0);
        Ok(index)
    }

    /// Whether models have made custom metrics.
    pub fn has_custom_metrics(&self) -> bool {
        !self.models.metrics().is_empty()
    }

    /// The custom metrics that models made.
    pub fn custom_metrics(&self) -> Vec<CustomFamily> {
        self.models.metrics().report()
    }

    /// The parts that all models share.
    pub fn services(&self) -> &crate::Services {
        &self.loader.services
    }

    /// The runtimes of this server.
    pub fn runtimes(&self) -> &crate::Runtimes {
        &self.loader.runtimes
    }

    /// Loads the models that the server starts with, and waits until they are loaded. Returns the names of the models that failed.
    pub fn start(self: &Arc<Self>) -> Result<Vec<String>, Status> {
        let listing = self.store.list().map_err(|error| error.status())?;
        let plan = startup(self.options.control, &self.options.load_models, &listing)?;
        let mut failed = Vec::new();
        for refused in &plan.refused {
            log::error!("{refused}");
            failed.push(refused.to_string());
        }
        let models = match self.options.control {
            // The operator named these models.
            ControlMode::Explicit | ControlMode::Demand if self.namespaces.is_some() => {
                plan.models.iter().flat_map(|model| self.to_load(model, &LoadOptions::default())).collect()
            }
            _ => plan.models,
        };
        let tried = Arc::new(models.iter().cloned().collect());
        for wave in self.waves(&models) {
            failed.extend(self.load_wave(&wave, &Reason::requested(Arc::clone(&tried))));
        }
        self.has_started.store(true, Ordering::Release);
        Ok(failed)
    }

    /// Loads these models in parallel. Returns the names of those that failed.
    fn load_wave(self: &Arc<Self>, models: &[String], reason: &Reason) -> Vec<String> {
        let mut failed = Vec::new();
        std::thread::scope(|scope| {
            let loads: Vec<_> = models
                .iter()
                .map(|model| {
                    let load = || self.load_for(model, &LoadOptions::default(), reason);
                    let thread = std::thread::Builder::new().name("nerite-load".to_owned()).spawn_scoped(scope, load);
                    // If the system refuses a thread, this thread loads the model.
                    (model, thread.map_err(|_| load()))
                })
                .collect();
            for (model, load) in loads {
                let outcome = match load {
                    Ok(thread) => {
                        thread.join().unwrap_or_else(|_| Err(Status::internal("the loading thread panicked")))
                    }
                    Err(outcome) => outcome,
                };
                if outcome.is_err() {
                    failed.push(model.clone());
                }
            }
        });
        failed
    }

    /// Ends the loads that are under way, and all later ones, because the server stops.
    pub fn end_loads(&self) {
        self.loads.stop();
    }

    /// Retires all models and waits for the last request, at most until `deadline`. Returns whether all ended in time.
    pub fn stop(self: &Arc<Self>, deadline: Instant) -> bool {
        self.poll_stop.stop();
        self.end_loads();
        let mut lifecycle = self.lifecycle();
        // A load that ends after this sees that generations have changed. It must not load ensembles anew that the stop unloads.
        self.ensembles.clear();
        let retire = lifecycle.unload_all().retire;
        self.withdraw(&lifecycle, &retire);
        drop(lifecycle);
        self.retire(retire);
        self.wait_for_retired(deadline)
    }

    fn unload_now(self: &Arc<Self>, model: &str, dependents: bool, waiter: Option<&str>) -> Result<(), Status> {
        // This is checked first, because an unload that is refused must not end the load that requested it.
        self.queue.check(model, waiter)?;
        let _ends_loads = self.loads.unload(model);
        let _turn = self.queue.unload(model, waiter)?;
        let mut lifecycle = self.lifecycle();
        let gone = lifecycle.unload_requested(model, dependents);
        // In control mode `explicit`, an ensemble comes back when the model that it is made of does. In the other modes polling or a request loads it.
        let users = if self.options.control == ControlMode::Explicit { &[][..] } else { &gone.users };
        for gone in gone.models.iter().chain(users).map(|gone| &**gone).chain([model]) {
            self.ensembles.forget(gone);
            self.overrides.forget(gone);
            self.forget_load_count(gone);
        }
        self.withdraw(&lifecycle, &gone.retire);
        let answer = lifecycle.check_unloaded(model);
        drop(lifecycle);
        self.retire(gone.retire);
        answer
    }

    /// Loads a model. The models that it is made of are loaded first. If the model has changed, the ensembles that are made of it are loaded anew.
    pub(crate) fn load_for(
        self: &Arc<Self>,
        model: &str,
        options: &LoadOptions,
        reason: &Reason,
    ) -> Result<(), Status> {
        let before = self.lifecycle().serving(model);
        let outcome = self.load_with_parts(model, options, reason);
        self.count_load(model, &outcome);
        let has_made_way = self.ensembles.has_made_way(model);
        if has_made_way || self.lifecycle().serving(model) != before {
            self.renew_users(model, reason.waiter());
        }
        outcome
    }

    fn load_with_parts(self: &Arc<Self>, model: &str, options: &LoadOptions, reason: &Reason) -> Result<(), Status> {
        let parts = {
            let _turn = self.queue.load(model, reason.peer(), reason.waiter())?;
            let source = self.read(model, options)?;
            let missing = self.missing_parts(&source);
            if !missing.is_empty() {
                self.check_circle(model).map_err(|why| self.refuse_load(model, &why))?;
            }
            let parts: Vec<String> = missing.into_iter().filter(|part| !reason.has_tried(part)).collect();
            if parts.is_empty() {
                return self.load_as_it_is(model, options, source, reason);
            }
            parts
        };
        // No turn is held while the parts load. Otherwise two ensembles that need each other would wait for each other.
        self.load_parts(&parts, reason);
        let _turn = self.queue.load(model, reason.peer(), reason.waiter())?;
        let source = self.read(model, options)?;
        self.load_as_it_is(model, options, source, reason)
    }

    fn read(&self, model: &str, options: &LoadOptions) -> Result<ModelSource, Status> {
        self.store.read(model, options).map_err(|error| {
            log::error!("{error}");
            self.note_failure(model, &error.reason());
            error.status()
        })
    }

    /// The error of a load that failed before any version was loaded.
    fn refuse_load(&self, model: &str, why: &str) -> Status {
        let error = phrase::load_failed(model, why);
        log::error!("{error}");
        self.note_failure(model, why);
        error
    }

    /// `is_relinked`: the source has other parts than the ensemble that is up.
    fn load_alone(
        self: &Arc<Self>,
        model: &str,
        source: &ModelSource,
        reason: &Reason,
        is_relinked: bool,
    ) -> Result<(), Status> {
        for warning in &source.warnings {
            log::warn!("{warning}");
        }
        if let Some(warning) = unsupported::warning(&source.config, &self.loader.services) {
            log::warn!("{warning}");
        }
        self.check_fit(source).map_err(|why| self.refuse_load(model, &why))?;
        let mut served = self.served(&source.identifier);
        served.retain(|served| source.fingerprint.is_of(served.config()));
        let completed = served.iter().map(|served| served.version()).collect();
        let facts = Facts { anew: reason.is_anew() || is_relinked, completed, ..source.facts() };
        let step = self.lifecycle().load_requested(model, facts, reason.is_explicit());
        let step = step.map_err(|why| self.refuse_load(model, &why))?;
        self.note_names(&self.lifecycle());
        match step {
            LoadStep::Settled { retire, resize } => {
                if !retire.is_empty() {
                    self.make_way(model, self.versions_after(source, &[]));
                }
                self.withdraw(&self.lifecycle(), &retire);
                self.retire(retire);
                let answer = self.resize(source, &resize, reason);
                if let (Ok(()), Some(demand), true) = (&answer, &self.demand, source.overridden) {
                    demand.residence().sent(model, Some(self.parts_of(model)));
                }
                answer
            }
            LoadStep::Load(plan) => {
                let (mut outcome, mut loaded) = (None, Vec::new());
                for &version in &plan.versions {
                    let result = self.load_version(source, version, reason).and_then(|served| {
                        self.check_unchanged(source, reason)?;
                        Ok(served)
                    });
                    loaded.extend(result.as_ref().ok().cloned());
                    // This was the last version. If none has failed, all of them are about to take requests.
                    if plan.versions.last() == Some(&version) && loaded.len() == plan.versions.len() {
                        self.make_way(model, self.versions_after(source, &loaded));
                    }
                    outcome = self.take_over(&plan, version, result).or(outcome);
                }
                let answer = outcome.map_or_else(
                    || Err(Status::internal(format!("the load of '{model}' ended without an outcome"))),
                    |outcome| outcome.answer,
                );
                if answer.is_ok() {
                    log::info!("successfully loaded '{model}'");
                }
                if let (Ok(()), Some(demand)) = (&answer, &self.demand) {
                    demand.loaded(model, source.bytes(), !self.has_started.load(Ordering::Acquire));
                    let sent = source.overridden.then(|| self.parts_of(model));
                    demand.residence().sent(model, sent);
                    demand.count_load(reason.is_demand());
                }
                answer.and_then(|()| self.resize(source, &plan.resize, reason))
            }
        }
    }

    /// Notes that the load of a version begins. If a client sent the configuration, the load ends when the client has gone.
    fn load_begins(&self, source: &ModelSource, version: i64, reason: &Reason) -> Progress {
        self.loads.begin(&source.identifier, version, source.overridden.then(|| reason.gone()))
    }

    fn load_version(&self, source: &ModelSource, version: i64, reason: &Reason) -> Result<Arc<Served>, Status> {
        let name = &source.identifier;
        log::info!("loading: {name}:{version}");
        let progress = self.load_begins(source, version, reason);
        let sender = reason.peer().filter(|_| source.overridden);
        let load = || {
            let load =
                std::panic::AssertUnwindSafe(|| self.loader.load(source, version, sender, &self.models, &progress));
            // If a file of the model makes a runtime panic, the load fails and the server continues.
            std::panic::catch_unwind(load)
                .unwrap_or_else(|_| Err(Status::internal("the runtime panicked while it read the model")))
                // What was ended with the load reports its own end.
                .map_err(|error| progress.ending().check(name).err().unwrap_or(error))
        };
        let mut result = load();
        for _ in 0..self.options.load_retries {
            if result.is_ok() || progress.ending().check(name).is_err() {
                break;
            }
            result = load();
        }
        if let Err(error) = &result {
            log::error!("failed to load '{name}' version {version}: {}: {}", error.code.name(), error.message);
        }
        result.map(Arc::new)
    }

    /// Reports the end of a version's load to the lifecycle, and carries out the lifecycle's decision.
    fn take_over(
        self: &Arc<Self>,
        plan: &nerite_repository::LoadPlan,
        version: i64,
        result: Result<Arc<Served>, Status>,
    ) -> Option<LoadOutcome> {
        let generation = Generation { model: Arc::clone(&plan.model), version, operation: plan.operation };
        let result = result.map(|served| drop(self.generations().insert(generation, served)));
        let mut lifecycle = self.lifecycle();
        let outcome = lifecycle.loaded(plan.operation, version, result)?;
        self.catalog.rcu(|catalog| {
            let mut next = Catalog::clone(catalog);
            let generations = self.generations();
            outcome.publish.iter().filter_map(|e| generations.get(e)).for_each(|s| next.publish(Arc::clone(s)));
            next
        });
        self.withdraw(&lifecycle, &outcome.retire);
        drop(lifecycle);
        self.retire(outcome.retire.clone());
        Some(outcome)
    }

    /// Removes generations from the catalog. The lifecycle's lock is held, so the catalog and the lifecycle differ only for a moment.
    fn withdraw(&self, held: &MutexGuard<'_, Lifecycle>, retire: &[Generation]) {
        self.note_names(held);
        self.catalog.rcu(|catalog| {
            let mut next = Catalog::clone(catalog);
            let generations = self.generations();
            retire.iter().filter_map(|generation| generations.get(generation)).for_each(|served| next.withdraw(served));
            next
        });
    }

    pub(crate) fn generation(&self, generation: &Generation) -> Option<Arc<Served>> {
        self.generations().get(generation).cloned()
    }

    pub(crate) fn generations(&self) -> MutexGuard<'_, HashMap<Generation, Arc<Served>>> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does `work` on a new thread. On an error, `work` is dropped.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}
