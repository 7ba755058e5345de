//! How do tests and examples of other crates get an engine?

use std::path::Path;
use std::sync::Arc;

use nerite_budget::Budgets;
use nerite_config::HostFacts;
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::Status;

use crate::{ClientInstances, Engine, Loader, Options, QueueLimits, Runtimes, Services};

impl Engine {
    /// An engine with all models of a repository, without accelerators and with the default settings. A model that does not load is an error.
    pub fn for_tests(repository: &Path, runtimes: Runtimes) -> Result<Arc<Engine>, Status> {
        let repositories = vec![repository.to_owned()];
        let store = Store::open(StoreOptions { repositories, ..StoreOptions::default() });
        let store = store.map_err(|error| Status::internal(error.to_string()))?;
        let engine = Engine::new(store, Loader::for_tests(runtimes), Options::for_tests());
        match engine.start()?.as_slice() {
            [] => Ok(engine),
            failed => Err(Status::internal(format!("these models failed to load: {}", failed.join(", ")))),
        }
    }
}

impl Loader {
    /// A loader for a host of two cores without accelerators, with the default settings. Tests make other loaders by struct update, so that a new
    /// field needs a value only here.
    pub fn for_tests(runtimes: Runtimes) -> Loader {
        Loader {
            runtimes,
            host: HostFacts::cpu_only(),
            cores: 2,
            auto_complete: false,
            queues: QueueLimits::default(),
            services: Services::default(),
            threads: 2,
            client_instances: ClientInstances::at_most(usize::MAX),
        }
    }
}

impl Options {
    /// All models of the repository are loaded, one at a time, once, and without a limit.
    pub fn for_tests() -> Options {
        Options {
            control: ControlMode::None,
            load_models: Vec::new(),
            load_threads: 1,
            load_retries: 0,
            models_bytes_max: None,
            budgets: Budgets::default(),
        }
    }
}
