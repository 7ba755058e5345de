//! How does a library decide which requests share a batch?
//!
//! ```text
//!   ModelBatcherInitialize ─► ( ModelBatchInitialize ─► ModelBatchIncludeRequest … ─► ModelBatchFinalize ) … ─► ModelBatcherFinalize
//! ```
//! A library of this kind has these five functions. It may be a backend too. It may read a waiting request, and do
//! nothing else with it.

mod functions;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_backend::{BatchStrategy, LoadContext, Model, WaitingRequest};
use nerite_config::ModelConfig;
use nerite_request::Status;

use crate::fault::Fault;
use crate::model::CompiledModel;
use crate::objects::{BackendObject, BackendParts, Kept, ModelObject, ModelParts, RequestObject, ServerObject};
use crate::reentry::calling_strategy;
use crate::table::Handle;
use functions::Functions;

/// The parameter of a model that names the library.
const PARAMETER: &str = "TRITON_BATCH_STRATEGY_PATH";
/// The file name of a library that no parameter names.
const FILE_NAME: &str = "batchstrategy.so";
/// A call that takes longer is logged, because all requests of the model wait for it.
const SLOW: Duration = Duration::from_millis(10);
/// The most messages of one kind for one model.
const MESSAGES_MAX: u32 = 10;

/// The library of a model: where its configuration says, in its directories, or in that of its backend.
pub fn library_of(context: &LoadContext, backends: &Path) -> Result<Option<PathBuf>, Status> {
    let config = &context.config;
    if config.sequence_batching().is_some() {
        return match config.parameter(PARAMETER) {
            Some(_) => Err(Status::invalid(format!(
                "{PARAMETER} cannot be specified with sequence batcher, using default batching strategy"
            ))),
            None => Ok(None),
        };
    }
    if let Some(named) = config.parameter(PARAMETER) {
        let path = PathBuf::from(named);
        let missing = || Status::not_found(format!("Batching library path not found: {named}"));
        return if path.exists() { Ok(Some(path)) } else { Err(missing()) };
    }
    let backend = (!config.backend_name().contains('/')).then(|| backends.join(config.backend_name()));
    let folders = [Some(context.version_dir.clone()), Some(context.model_dir.clone()), backend];
    Ok(folders.into_iter().flatten().map(|folder| folder.join(FILE_NAME)).find(|path| path.is_file()))
}

/// The strategy of one version of a model.
pub(crate) struct LibraryStrategy {
    functions: Functions,
    model: StrategyModel,
    /// The address that `ModelBatcherInitialize` returned.
    batcher: Kept,
    batch: Option<Forming>,
    /// The messages of each kind so far.
    errors: u32,
    slow: u32,
    has_refused_first: bool,
}

/// The batch that is forming.
#[derive(Clone, Copy)]
struct Forming {
    /// The address that `ModelBatchInitialize` returned for it; NULL if it failed.
    userp: Kept,
    /// Whether others may join. They may not if the strategy refused the first request.
    is_open: bool,
}

/// The model as the strategy sees it.
struct StrategyModel {
    object: Arc<ModelObject>,
    handle: Handle<ModelObject>,
    // Dropped last.
    _whose: Whose,
}

/// The owner of the model's object.
enum Whose {
    /// The compiled backend that runs the model.
    Backend { _model: Arc<dyn Model> },
    /// The strategy itself, for a model of a built-in backend.
    Own { backend: Handle<BackendObject>, model: Handle<ModelObject> },
}

impl LibraryStrategy {
    /// Opens the library and calls `ModelBatcherInitialize`. `None` for a library that has none of the functions.
    pub fn open(path: &Path, model: &Arc<dyn Model>, context: &LoadContext) -> Result<Option<LibraryStrategy>, Status> {
        let name = &context.model;
        let Some(functions) = Functions::open(path, name)? else { return Ok(None) };
        log::info!("Loading custom batching strategy library {} for model {name}", path.display());
        let model = StrategyModel::new(model, context)
            .map_err(|fault| fault.into_status("TRITONBACKEND_ModelBatcherInitialize"))?;
        let mut made = LibraryStrategy {
            functions,
            batcher: Kept(std::ptr::null_mut()),
            model,
            batch: None,
            errors: 0,
            slow: 0,
            has_refused_first: false,
        };
        // After a failure it is dropped, which calls `ModelBatcherFinalize`, as in Triton.
        let initialized = calling_strategy(|| made.functions.batcher_initialize(made.model.handle, &mut made.batcher));
        initialized
            .inspect_err(|status| log::error!("the batching strategy of model '{name}' cannot be used: {status}"))?;
        Ok(Some(made))
    }

    /// Calls `ModelBatchIncludeRequest`. An error counts as no.
    fn includes(&mut self, userp: Kept, waiting: &WaitingRequest) -> bool {
        let request =
            RequestObject::waiting(waiting, &self.model.object).and_then(|request| Handle::to(Box::new(request)));
        let request = match request {
            Ok(request) => request,
            Err(fault) => {
                let status = fault.into_status("TRITONBACKEND_ModelBatchIncludeRequest");
                self.log_error("include", &status);
                return false;
            }
        };
        let includes = self.timed(|functions| functions.includes(request, userp));
        // The strategy cannot have deleted it.
        drop(request.take());
        includes.unwrap_or_else(|status| {
            self.log_error("include", &status);
            false
        })
    }

    fn timed<T>(&mut self, call: impl FnOnce(&Functions) -> T) -> T {
        let start = Instant::now();
        let done = calling_strategy(|| call(&self.functions));
        let took = start.elapsed();
        if took > SLOW && self.slow < MESSAGES_MAX {
            self.slow += 1;
            log::warn!(
                "the batching strategy of model '{}' took {} ms for one call, in which the requests of the model wait; it should take less than {} ms",
                self.model.name(),
                took.as_millis(),
                SLOW.as_millis()
            );
        }
        done
    }

    fn log_error(&mut self, which: &str, status: &Status) {
        if self.errors < MESSAGES_MAX {
            self.errors += 1;
            let last = if self.errors == MESSAGES_MAX { "; further errors are not logged" } else { "" };
            log::error!("Custom batching {which} function failed for model {}: {status}{last}", self.model.name());
        }
    }

    fn finalize(&mut self) {
        // As in Triton, a batch for which the library made nothing is not finalized.
        let made = self.batch.take().map(|batch| batch.userp).filter(|userp| !userp.0.is_null());
        let Some(userp) = made else { return };
        if let Err(status) = self.timed(|functions| functions.batch_finalize(userp)) {
            self.log_error("finalization", &status);
        }
    }
}

impl BatchStrategy for LibraryStrategy {
    fn begins(&mut self, first: &WaitingRequest) {
        self.finalize();
        let batcher = self.batcher;
        let userp = match self.timed(|functions| functions.batch_initialize(batcher)) {
            Ok(userp) => userp,
            Err(status) => {
                self.log_error("initialization", &status);
                self.batch = Some(Forming { userp: Kept(NO_BATCH), is_open: false });
                return;
            }
        };
        let is_open = self.includes(userp, first);
        self.batch = Some(Forming { userp, is_open });
        // In Triton the request would wait forever.
        if !is_open && !self.has_refused_first {
            self.has_refused_first = true;
            log::warn!(
                "the batching strategy of model '{}' refuses a request that no other is before: it runs alone",
                self.model.name()
            );
        }
    }

    fn may_join(&mut self, next: &WaitingRequest) -> bool {
        match self.batch {
            Some(Forming { userp, is_open: true }) => self.includes(userp, next),
            Some(_) | None => false,
        }
    }

    fn ends(&mut self) {
        self.finalize();
    }
}

impl Drop for LibraryStrategy {
    fn drop(&mut self) {
        self.finalize();
        let batcher = self.batcher;
        if let Err(status) = calling_strategy(|| self.functions.batcher_finalize(batcher)) {
            log::error!("Custom batcher finalization failed for model {}: {status}", self.model.name());
        }
    }
}

impl StrategyModel {
    fn new(model: &Arc<dyn Model>, context: &LoadContext) -> Result<StrategyModel, Fault> {
        let known: &dyn std::any::Any = &**model;
        if let Some(compiled) = known.downcast_ref::<CompiledModel>() {
            let (object, handle) = compiled.object();
            return Ok(StrategyModel { object, handle, _whose: Whose::Backend { _model: Arc::clone(model) } });
        }
        let config: &Arc<ModelConfig> = &context.config;
        let parts = BackendParts { name: config.backend_name(), directory: "", config: r#"{"cmdline":{}}"#.to_owned() };
        let backend = Arc::new(BackendObject::new(parts)?);
        let backend_handle = Handle::to(Arc::clone(&backend))?;
        let repository = std::path::absolute(&context.model_dir).unwrap_or_else(|_| context.model_dir.clone());
        let object = Arc::new(ModelObject::new(ModelParts {
            server: Arc::new(ServerObject::new(&backend.owner, context.models.clone(), None)),
            backend,
            backend_handle,
            name: &context.model,
            version: context.version,
            repository: &repository.display().to_string(),
            config: Arc::clone(config),
            completes: false,
        })?);
        object.settle(Arc::clone(config));
        let handle = Handle::to(Arc::clone(&object))?;
        Ok(StrategyModel { object, handle, _whose: Whose::Own { backend: backend_handle, model: handle } })
    }

    fn name(&self) -> String {
        self.object.name.to_string_lossy().into_owned()
    }
}

impl Drop for Whose {
    fn drop(&mut self) {
        if let Whose::Own { backend, model } = self {
            // The strategy cannot have deleted them.
            drop((model.take(), backend.take()));
        }
    }
}

/// No batch: NULL.
pub(super) const NO_BATCH: *mut c_void = std::ptr::null_mut();

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nerite_backend::conformance::context;

    use super::*;

    #[track_caller]
    fn check(files: &[&str], config: &str, expected: Result<Option<&str>, &str>) {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for file in files {
            std::fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            std::fs::write(at(file), "").unwrap();
        }
        let config = config.replace("HERE", &folder.path().display().to_string());
        let mut context = context(folder.path(), nerite_config::parse_text("", config.as_bytes()).unwrap());
        (context.model_dir, context.version_dir) = (at("m"), at("m/1"));
        let found = library_of(&context, &at("backends")).map_err(|status| status.message);
        assert_eq!(
            found.as_ref().map_err(String::as_str),
            expected.map(|path| path.map(at)).as_ref().map_err(|text| *text)
        );
    }

    #[test]
    fn the_library_lies_where_triton_looks_for_it() {
        let all = ["m/1/batchstrategy.so", "m/batchstrategy.so", "backends/b/batchstrategy.so", "named.so"];
        check(&all, "backend: 'b'", Ok(Some(all[0])));
        check(&all[1..], "backend: 'b'", Ok(Some(all[1])));
        check(&all[2..], "backend: 'b'", Ok(Some(all[2])));
        check(&all[2..], "backend: 'c'", Ok(None));
        check(&all, "backend: '../backends/b'", Ok(Some(all[0])));
        check(&all[2..], "backend: '../backends/b'", Ok(None));
    }

    #[test]
    fn a_parameter_names_the_library() {
        let named =
            |path: &str| format!("backend: 'b' parameters {{ key: '{PARAMETER}' value {{ string_value: '{path}' }} }}");
        check(&["m/batchstrategy.so", "named.so"], &named("HERE/named.so"), Ok(Some("named.so")));
        check(&["m/batchstrategy.so"], &named("/no/x.so"), Err("Batching library path not found: /no/x.so"));
        let sequences = named("HERE/named.so") + "sequence_batching { }";
        let text =
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy";
        check(&["named.so"], &sequences, Err(text));
        check(&["m/batchstrategy.so"], "backend: 'b' sequence_batching { }", Ok(None));
    }
}
