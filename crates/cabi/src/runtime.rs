//! How does a compiled backend run models?

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, TryLockError, Weak};

use nerite_backend::{CustomMetrics, LoadContext, Model, ModelSuppliedRuntime, Runtime};
use nerite_config::ModelConfig;
use nerite_config::proto::ModelInstanceGroup;
use nerite_locks::Mutex;
use nerite_request::Status;

use crate::find::model_supplied;
use crate::loaded::{Loaded, Presence};
use crate::model::CompiledModel;
use crate::objects::count_in;
use crate::server_calls::LateReports;

/// The setting with the least compute capability of a GPU that is used.
pub const MIN_COMPUTE_CAPABILITY: &str = "min-compute-capability";

/// A backend with a library file. The library is opened when the first model needs it, and closed after the last one.
pub struct CompiledBackend {
    name: String,
    path: PathBuf,
    options: Options,
    /// The backend that was opened last.
    last: Mutex<Option<(Weak<Loaded>, Arc<Presence>)>>,
    /// Models that have completed their configuration and are being loaded, by the directories of their versions: models of different repositories
    /// may have the same name.
    completed: Mutex<HashMap<PathBuf, Arc<CompiledModel>>>,
    /// The backend, kept open for models whose preferred groups were read and whose load has not begun, by the same directories.
    kept_open: Mutex<HashMap<PathBuf, Arc<Loaded>>>,
}

/// Properties of the server for backends.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of backends, as the operator set it.
    pub directory: PathBuf,
    /// Whether configurations are completed.
    pub auto_complete: bool,
    /// What the server reports; `None` where a backend has a process of its own.
    pub reports: Option<LateReports>,
}

impl CompiledBackend {
    /// The backend of that name, whose library is at `path`.
    pub fn new(name: &str, path: &Path, options: Options) -> CompiledBackend {
        CompiledBackend {
            name: name.to_owned(),
            path: path.to_owned(),
            options,
            last: Mutex::default(),
            completed: Mutex::default(),
            kept_open: Mutex::default(),
        }
    }

    /// Whether a model uses it or is about to, or its `Finalize` is running.
    fn is_loaded(&self) -> bool {
        let last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is being opened, which may take long. Loads of other backends must not wait for that.
            Err(TryLockError::WouldBlock) => return true,
        };
        last.as_ref().is_some_and(|(_, presence)| !presence.is_over())
    }

    fn open(&self, settings: &BTreeMap<String, String>) -> Result<Arc<Loaded>, Status> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((loaded, presence)) = &*last {
            if let Some(loaded) = loaded.upgrade() {
                return Ok(loaded);
            }
            // Its `Finalize` may still run on another thread, and must end before `Initialize` is called again.
            presence.wait();
        }
        let presence = Arc::default();
        let new = Arc::new(Loaded::open(&self.name, &self.path, self.settings_text(settings), &presence)?);
        *last = Some((Arc::downgrade(&new), presence));
        Ok(new)
    }

    /// The operator's settings in Triton's form: all values are strings.
    fn settings_text(&self, settings: &BTreeMap<String, String>) -> String {
        let mut all = settings.clone();
        all.insert("auto-complete-config".to_owned(), self.options.auto_complete.to_string());
        all.insert("backend-directory".to_owned(), self.options.directory.display().to_string());
        let least = || format!("{:.6}", nerite_config::MIN_COMPUTE_CAPABILITY);
        all.entry(MIN_COMPUTE_CAPABILITY.to_owned()).or_insert_with(least);
        serde_json::json!({ "cmdline": all }).to_string()
    }

    /// Stops keeping the backend open for this load. The model keeps it open itself, or does not need it any more.
    fn forget_kept_open(&self, context: &LoadContext) {
        let kept_open = self.kept_open.lock().unwrap_or_else(PoisonError::into_inner).remove(&context.version_dir);
        // The lock is not held here, because this may call `Finalize`.
        drop(kept_open);
    }

    fn begin(&self, context: &LoadContext, completes: bool) -> Result<Arc<CompiledModel>, Status> {
        let loaded = self.open(&context.settings);
        self.forget_kept_open(context);
        let loaded = loaded?;
        Ok(Arc::new(CompiledModel::initialize(loaded, context, completes, self.options.reports.clone())?))
    }
}

impl Runtime for CompiledBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn engine(&self) -> String {
        self.path.display().to_string()
    }

    fn preferred_groups(&self, context: &LoadContext) -> Result<Vec<ModelInstanceGroup>, Status> {
        let loaded = self.open(&context.settings)?;
        let preferred = loaded.preferred.clone();
        let key = context.version_dir.clone();
        let former = self.kept_open.lock().unwrap_or_else(PoisonError::into_inner).insert(key, loaded);
        drop(former);
        Ok(preferred)
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        let model = self.begin(context, self.options.auto_complete)?;
        let config = ModelConfig::clone(&model.config());
        let key = context.version_dir.clone();
        let former = self.completed.lock().unwrap_or_else(PoisonError::into_inner).insert(key, model);
        // This is the model of a load that failed. It is dropped, and so finalised, without the lock.
        drop(former);
        Ok(config)
    }

    fn give_up(&self, context: &LoadContext) {
        self.forget_kept_open(context);
        let completed = self.completed.lock().unwrap_or_else(PoisonError::into_inner).remove(&context.version_dir);
        // The lock is not held here, because this may call `ModelFinalize`.
        drop(completed);
    }

    fn offers_gpus(&self) -> Result<(), String> {
        // The backend decides how it uses its device.
        Ok(())
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let completed = self.completed.lock().unwrap_or_else(PoisonError::into_inner).remove(&context.version_dir);
        let model = match completed {
            Some(model) => model,
            None => self.begin(context, false)?,
        };
        model.settle(Arc::clone(&context.config));
        Ok(model)
    }
}

/// The backends in the directories of models.
pub struct ModelLibraries {
    options: Options,
    /// The backends by their libraries, so that `Initialize` is called once, however many models a backend runs.
    known: Mutex<HashMap<PathBuf, Arc<CompiledBackend>>>,
}

impl ModelLibraries {
    /// No backends yet.
    pub fn new(options: Options) -> ModelLibraries {
        ModelLibraries { options, known: Mutex::default() }
    }
}

impl ModelSuppliedRuntime for ModelLibraries {
    fn count_in(&self, metrics: &Arc<CustomMetrics>) {
        count_in(metrics);
    }

    fn find(&self, config: &ModelConfig, model_dir: &Path, version_dir: &Path) -> Option<Arc<dyn Runtime>> {
        let path = model_supplied(config, model_dir, version_dir)?;
        let path = std::path::absolute(&path).unwrap_or(path);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Backends without models are removed, unless one is being loaded.
        known.retain(|_, backend| backend.is_loaded() || Arc::strong_count(backend) > 1);
        let new = || Arc::new(CompiledBackend::new(&config.backend, &path, self.options.clone()));
        Some(Arc::clone(known.entry(path.clone()).or_insert_with(new)) as Arc<dyn Runtime>)
    }
}
