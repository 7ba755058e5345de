//! How is ONNX Runtime opened, and how does it load a model?

use std::ffi::CStr;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, PoisonError};

use nerite_backend::onnx::{self, BACKEND, Nodes, Ports};
use nerite_backend::{CostBound, DeviceAccess, Instance, InstanceSpec, Joined, LoadContext, Model, Ragged, Runtime};
use nerite_config::ModelConfig;
use nerite_guard::{Errno, install_traps};
use nerite_locks::Mutex;
use nerite_memory::load_with_memory;
use nerite_request::Status;
use nerite_request::report::MemoryUsage;
use ort::environment::{Environment, GlobalThreadPoolOptions};

use crate::allocator;
use crate::cuda::{self, Failure};
use crate::fragile::{Fragile, Sizes};
use crate::held_bytes::HeldBytes;
use crate::library;
use crate::options::Options;
use crate::provider::has_cuda;
use crate::session::{OrtInstance, Target, Traits};
use crate::session_share::{SessionShare, SharedSession, divides_no_integers, may_share};
use crate::signature::ports;
use crate::status::library_status;
use crate::traps::{PoolThreads, SessionTraps};

/// The library of this process. Once it is open, it cannot be closed or replaced.
static OPENED: Mutex<Option<PathBuf>> = Mutex::new(None);
/// Its environment, made with the settings of the first model and never dropped, because sessions may outlive all
/// owners.
static ENVIRONMENT: OnceLock<Shared> = OnceLock::new();

/// The parts that all sessions share.
struct Shared {
    environment: Environment,
    /// Whether they share the threads they compute on.
    has_pool: bool,
    /// Whether sessions on the host get the server's memory.
    has_allocator: bool,
}

impl Shared {
    /// The options of sessions on `device` or on the host.
    fn options(&self, options: &Options, device: Option<u32>) -> Options {
        let options = options.clone();
        if self.has_allocator && device.is_none() { options.with_memory_of_server() } else { options }
    }
}

/// Models of backend `onnxruntime` on ONNX Runtime.
#[derive(Debug)]
pub struct OnnxRuntime {
    path: PathBuf,
    version: String,
    fenced: bool,
}

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened, is no ONNX Runtime, or is too old.
    #[error(
        "ONNX Runtime cannot be used: {reason}; install a newer one (pip install onnxruntime), name another with \
         --onnxruntime-library, or remove it to use the embedded engine"
    )]
    Unusable {
        /// The error of the linker or of the library.
        reason: String,
    },
    /// Another library is already open in this process.
    #[error("ONNX Runtime is already open from '{}', a process cannot have '{}' as well", .first.display(), .second.display())]
    Second {
        /// The library that is open.
        first: PathBuf,
        /// The other library.
        second: PathBuf,
    },
}

impl OnnxRuntime {
    /// Opens the library at `path`.
    pub fn open(path: &Path) -> Result<OnnxRuntime, OpenError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = opened.as_ref().filter(|first| *first != path) {
            return Err(OpenError::Second { first: first.clone(), second: path.to_path_buf() });
        }
        ort::init_from(path).map(drop).map_err(|e| OpenError::Unusable { reason: reason(&e) })?;
        *opened = Some(path.to_path_buf());
        let version = version_of(path).unwrap_or_else(|| "of unknown version".into());
        Ok(OnnxRuntime { path: path.to_path_buf(), version, fenced: false })
    }

    /// As [`OnnxRuntime::open`], but every instance waits for its device after a run, as instances on GPUs do. For tests on hosts without a GPU.
    #[doc(hidden)]
    #[must_use]
    pub fn waiting_for_device(self) -> OnnxRuntime {
        OnnxRuntime { fenced: true, ..self }
    }
}

/// Why a library is refused. If it does not open, this is the linker's error text, which the error itself does not
/// show.
fn reason(error: &ort::LoadDynamicError) -> String {
    match error {
        ort::LoadDynamicError::Dlopen { error: linker, .. } => {
            std::error::Error::source(linker).map_or_else(|| error.to_string(), ToString::to_string)
        }
        other => other.to_string(),
    }
}

impl Runtime for OnnxRuntime {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn engine(&self) -> String {
        format!("ONNX Runtime {} ({})", self.version, self.path.display())
    }

    fn leaves_files_unchanged(&self) -> bool {
        true
    }

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        onnx::complete(context, |context| {
            let source = Source::of(context)?;
            let session = open_session(&source, context, &Options::to_look(), None, &HeldBytes::default())?;
            Ok(ports(session.session()))
        })
    }

    fn offers_gpus(&self) -> Result<(), String> {
        match has_cuda() {
            Ok(true) => Ok(()),
            Ok(false) => Err(cuda::missing(&self.path)),
            Err(error) => Err(format!("ONNX Runtime does not tell its providers: {}", error.message())),
        }
    }

    fn danger(&self, context: &LoadContext) -> Result<Option<String>, Status> {
        // Weights are skipped, because the model may run in another process.
        let path = onnx::model_file(context)?;
        let nodes = context.files.open(&path).and_then(Nodes::read).map_err(|e| unreadable(context, &path, &e))?;
        if let Some(operator) = fragile(context, &nodes).inside() {
            return Ok(Some(format!(
                "a request may bring its operator {operator} a tensor without elements, by sizes or values, and ONNX Runtime ends the \
                 process then"
            )));
        }
        Ok(allocator::allocates_in_parallel(&nodes.graph).map(|operator| {
            format!(
                "its operator {operator} allocates on several threads, and ONNX Runtime may end the process if a request needs more memory \
                 than a run may have"
            )
        }))
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let source = Source::of(context)?;
        let specs = InstanceSpec::all(&context.config);
        let on_host = specs.iter().filter(|spec| spec.device.is_none()).count();
        let options = Options::of(context, on_host < specs.len())?;
        let nodes = source.nodes(context);
        let divides_none = nodes.as_ref().is_ok_and(divides_no_integers);
        if shared(context)?.has_allocator && options.arena_shrinkage.is_some() {
            log::info!(
                "model '{}': 'memory.enable_memory_arena_shrinkage' has no effect on the host, where the server gives ONNX Runtime its memory",
                context.model
            );
        }
        let options = match shared(context)?.has_pool {
            true if divides_none => options.on_common_pool(),
            true => {
                log::info!(
                    "model '{}': its graph may divide integers, so it has threads of its own and not those that models share \
                     (enable-global-threadpool)",
                    context.model
                );
                options
            }
            false => options,
        };
        let is_shared = nodes.is_ok() && may_share(&options, divides_none);
        let options = if is_shared { options.shared_by(on_host) } else { options };
        let device = specs.first().and_then(|spec| spec.device);
        let held = HeldBytes::default();
        let opened = Arc::new(open_session(&source, context, &options, device, &held)?);
        let mut ports = ports(opened.session());
        // The code below counts the inputs of `ports`, including those that were initializers, as values of a request.
        onnx::check(context, &mut ports)?;
        // For a file that is no graph, the library's error is better.
        let nodes = nodes?;
        let traits = Traits::new(&ports, &nodes, fragile(context, &nodes))?;
        // A run on a device waits for the device's other work, so nothing bounds its time.
        Ok(Arc::new(OrtModel {
            traits,
            cost_bound: if on_host == specs.len() { onnx::cost_bound(&nodes, &ports) } else { CostBound::Unknown },
            ports: Arc::new(ports),
            source,
            options,
            context: context.clone(),
            fenced: self.fenced,
            is_shared,
            held,
            opened: Mutex::new(Some((device, opened))),
        }))
    }
}

/// The bytes or the file that sessions of a model are made of.
struct Source {
    path: PathBuf,
    /// Whether constants are in files beside it. The library finds these only if it opens the model's path: older versions have no other way to set
    /// their folder.
    has_external_files: bool,
}

impl Source {
    /// The source of a model; its file is read here.
    fn of(context: &LoadContext) -> Result<Source, Status> {
        let path = onnx::model_file(context)?;
        let source = Source { path, has_external_files: false };
        // For a file that is no graph, the library's error is better.
        let Ok(nodes) = source.nodes(context) else { return Ok(source) };
        onnx::watch_external(context, &source.path, &nodes);
        Ok(Source { has_external_files: !nodes.external_files.is_empty(), ..source })
    }

    fn nodes(&self, context: &LoadContext) -> Result<Nodes, Status> {
        let bytes = context.files.bytes(&self.path);
        let nodes = bytes.and_then(|bytes| Nodes::read(Cursor::new(&bytes[..])));
        nodes.map_err(|e| unreadable(context, &self.path, &e))
    }

    fn bytes(&self, context: &LoadContext) -> Result<Option<Arc<Vec<u8>>>, Status> {
        if self.has_external_files {
            return Ok(None);
        }
        context.files.bytes(&self.path).map(Some).map_err(|e| unreadable(context, &self.path, &e))
    }
}

fn unreadable(context: &LoadContext, path: &Path, why: &io::Error) -> Status {
    Status::internal(format!("unable to load model '{}': '{}': {why}", context.model, path.display()))
}

fn fragile(context: &LoadContext, nodes: &Nodes) -> Fragile {
    let inputs = context.config.input.iter().map(|input| input.name.as_str());
    Fragile::of(inputs, Sizes::of(&context.config), &nodes.graph, &nodes.functions)
}

struct OrtModel {
    source: Source,
    options: Options,
    context: LoadContext,
    ports: Arc<Ports>,
    traits: Arc<Traits>,
    cost_bound: CostBound,
    fenced: bool,
    /// Whether all instances on the host run one session.
    is_shared: bool,
    /// The memory that all its sessions keep.
    held: HeldBytes,
    /// The session with which the load read the graph, and its device. An instance that shares no session takes it.
    opened: Mutex<Option<(Option<u32>, Arc<SharedSession>)>>,
}

impl OrtModel {
    /// A session for one more instance on that device.
    fn session(&self, device: Option<u32>) -> Result<Arc<SharedSession>, Status> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shared = device.is_none() && self.is_shared;
        match opened.as_ref().filter(|(of, _)| *of == device) {
            Some((_, session)) if is_shared => return Ok(Arc::clone(session)),
            _ => {}
        }
        if let Some((_, session)) = opened.take_if(|(of, _)| *of == device) {
            return Ok(session);
        }
        let session = Arc::new(open_session(&self.source, &self.context, &self.options, device, &self.held)?);
        if is_shared {
            *opened = Some((device, Arc::clone(&session)));
        }
        Ok(session)
    }
}

impl Model for OrtModel {
    fn cost_bound(&self) -> CostBound {
        self.cost_bound
    }

    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let share = SessionShare::of(&self.session(spec.device)?);
        let batching = self.context.config.batches();
        let target = Target { device: spec.device, fenced: self.fenced };
        let options = shared(&self.context)?.options(&self.options, spec.device);
        let instance = OrtInstance::new(share, &options, &self.ports, &self.traits, batching, target)?;
        Ok(Box::new(Joined::new(instance, batching).with_ragged(Ragged::of(&self.context.config))))
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.held.report()
    }

    fn takes_device_memory(&self, spec: &InstanceSpec) -> DeviceAccess {
        cuda::device_access(spec.device, &self.ports, &self.traits.untrusted_inputs)
    }
}

fn open_session(
    source: &Source,
    context: &LoadContext,
    options: &Options,
    device: Option<u32>,
    held: &HeldBytes,
) -> Result<SharedSession, Status> {
    let shared = shared(context)?;
    let traps = SessionTraps::new(options.is_on_common_pool());
    // Repeated for each session, because a library of operators may have installed its own handler.
    install_traps().map_err(|Errno(number)| {
        let fault = std::io::Error::from_raw_os_error(number);
        Status::unavailable(format!("integer divisions of models cannot be guarded: {fault}"))
    })?;
    let status_of = |error: &ort::Error, failure: fn(String) -> Failure| match device {
        None => library_status(error),
        Some(device) => failure(library_status(error).message).status(&context.model, device),
    };
    let options = shared.options(options, device);
    let builder = options.builder(&shared.environment, device, traps.pool_threads());
    let mut builder = builder.map_err(|error| status_of(&error, Failure::Provider))?;
    let (before, bytes) = (traps.count(), source.bytes(context)?);
    // Operators whose inputs are all constants are computed here.
    let commit = || match &bytes {
        Some(bytes) => builder.commit_from_memory(bytes),
        None => builder.commit_from_file(&source.path),
    };
    let (session, bytes) = traps.counting(|| load_with_memory(commit))?;
    let session = session.map_err(|error| status_of(&error, Failure::Session))?;
    if traps.count() == before {
        return Ok(SharedSession::new(session, traps, held.add(bytes)));
    }
    Err(Status::internal(format!(
        "unable to load model '{}': its graph divides a constant integer by zero, or the smallest integer by -1",
        context.model
    )))
}

fn shared(context: &LoadContext) -> Result<&'static Shared, Status> {
    // Two threads must not make the environment at the same time, which is an error in the library. So this takes the lock that `open` takes.
    let making = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = ENVIRONMENT.get() {
        return Ok(shared);
    }
    let path = making.as_deref().ok_or_else(|| Status::internal("ONNX Runtime is not open"))?;
    let made = make_environment(context, path).map_err(|e| library_status(&e))?;
    Ok(ENVIRONMENT.get_or_init(|| made))
}

fn make_environment(context: &LoadContext, path: &Path) -> Result<Shared, ort::Error> {
    let setting = |key: &str| context.settings.get(key).and_then(|text| text.trim().parse::<usize>().ok());
    let has_pool = setting("enable-global-threadpool") == Some(1);
    let mut builder = ort::init().with_name("nerite").with_telemetry(false);
    if has_pool {
        let intra = setting("intra_op_thread_count").filter(|n| *n > 0).unwrap_or(context.cores.max(1));
        let pool = GlobalThreadPoolOptions::default().with_intra_threads(intra)?.with_spin_control(false)?;
        let mut pool = pool.with_thread_manager(PoolThreads::shared())?;
        if let Some(inter) = setting("inter_op_thread_count") {
            pool = pool.with_inter_threads(inter)?;
        }
        builder = builder.with_global_thread_pool(pool);
    }
    let environment = builder.build()?;
    // The callers report errors to the client or the log. The library's own log would repeat them.
    environment.set_log_level(ort::logging::LogLevel::Fatal);
    let has_allocator = allocator::register(&environment, path)?;
    if !has_allocator {
        log::warn!("ONNX Runtime's memory has no bound: '{}' has no C++ library of its own", path.display());
    }
    Ok(Shared { environment, has_pool, has_allocator })
}

/// The version that the open library at `path` reports.
fn version_of(path: &Path) -> Option<String> {
    let symbol = library::symbol(path, c"OrtGetApiBase")?;
    // SAFETY: the library's one documented entry point has this type.
    let get = unsafe {
        std::mem::transmute::<NonNull<libc::c_void>, extern "system" fn() -> *const ort::sys::OrtApiBase>(symbol)
    };
    // SAFETY: the entry point returns a table that lives as long as the library.
    let base = unsafe { get().as_ref() }?;
    // SAFETY: a function of that table, without preconditions.
    let text = unsafe { (base.GetVersionString)() };
    // SAFETY: it returns a constant C string of the library's.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}
