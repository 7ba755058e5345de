//! How is ONNX Runtime opened, and how does it load a model?

use std::ffi::{CStr, CString};
use std::io::{self, Cursor};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nerite_backend::onnx::{self, BACKEND, Nodes, Ports};
use nerite_backend::{CostBound, DeviceAccess, Instance, InstanceSpec, Joined, LoadContext, Model, Ragged, Runtime};
use nerite_config::ModelConfig;
use nerite_guard::{Errno, install_traps};
use nerite_request::Status;
use ort::environment::{Environment, GlobalThreadPoolOptions};

use crate::cuda::{self, Failure};
use crate::fragile::{Fragile, Sizes};
use crate::options::Options;
use crate::provider::has_cuda;
use crate::seat::{Seat, SharedSession, divides_no_integers, may_share};
use crate::session::{OrtInstance, Target, Traits};
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
    /// This process has another one.
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

    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        onnx::complete(context, |context| {
            let source = Source::of(context)?;
            Ok(ports(open_session(&source, context, &Options::to_look(), None)?.session()))
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
        let operator = fragile(context, &nodes).inside().map(str::to_owned);
        Ok(operator.map(|operator| {
            format!(
                "a request may bring its operator {operator} a tensor without elements, by sizes or values, and ONNX Runtime ends the \
                 process then"
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
        let opened = Arc::new(open_session(&source, context, &options, device)?);
        let mut ports = ports(opened.session());
        // The code below counts the inputs of `ports`, including those that were initializers, as values of a request.
        onnx::check(context, &mut ports)?;
        // For a file that is no graph, the library's error is better.
        let nodes = nodes?;
        let traits = Traits::new(&ports, &nodes, fragile(context, &nodes))?;
        // A run on a device waits for the device's other work.
        Ok(Arc::new(OrtModel {
            traits,
            cost_bound: if on_host == specs.len() { onnx::cost_bound(&nodes, &ports) } else { CostBound::Unknown },
            ports: Arc::new(ports),
            source,
            options,
            context: context.clone(),
            fenced: self.fenced,
            is_shared,
            opened: Mutex::new(Some((device, opened))),
        }))
    }
}

/// The bytes or the file that sessions of a model are made of.
struct Source {
    path: PathBuf,
    /// Whether constants are in files beside it. The library finds these only if it opens the model's path: older
    /// versions cannot be told their folder.
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
        let session = Arc::new(open_session(&self.source, &self.context, &self.options, device)?);
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
        let seat = Seat::of(&self.session(spec.device)?);
        let batching = self.context.config.batches();
        let target = Target { device: spec.device, fenced: self.fenced };
        let instance = OrtInstance::new(seat, &self.options, &self.ports, &self.traits, batching, target)?;
        Ok(Box::new(Joined::new(instance, batching).with_ragged(Ragged::of(&self.context.config))))
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
    let builder = options.builder(&shared.environment, device, traps.pool_threads());
    let mut builder = builder.map_err(|error| status_of(&error, Failure::Provider))?;
    let (before, bytes) = (traps.count(), source.bytes(context)?);
    // Operators whose inputs are all constants are computed here.
    let session = traps.counting(|| match &bytes {
        Some(bytes) => builder.commit_from_memory(bytes),
        None => builder.commit_from_file(&source.path),
    })?;
    let session = session.map_err(|error| status_of(&error, Failure::Session))?;
    if traps.count() == before {
        return Ok(SharedSession::new(session, traps));
    }
    Err(Status::internal(format!(
        "unable to load model '{}': its graph divides a constant integer by zero, or the smallest integer by -1",
        context.model
    )))
}

fn shared(context: &LoadContext) -> Result<&'static Shared, Status> {
    // Two threads must not make it at the same time, which is an error in the library. So the lock of opening is taken.
    let _making = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = ENVIRONMENT.get() {
        return Ok(shared);
    }
    let made = make_environment(context).map_err(|e| library_status(&e))?;
    Ok(ENVIRONMENT.get_or_init(|| made))
}

fn make_environment(context: &LoadContext) -> Result<Shared, ort::Error> {
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
    Ok(Shared { environment, has_pool })
}

/// The version that the open library at `path` reports.
fn version_of(path: &Path) -> Option<String> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a C string; NOLOAD only finds what is already open and runs no initialiser.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: a handle from dlopen, kept open forever by `ort`, and a C string.
    let symbol = unsafe { libc::dlsym(handle, c"OrtGetApiBase".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the library's one documented entry point has this type.
    let get = unsafe {
        std::mem::transmute::<*mut libc::c_void, extern "system" fn() -> *const ort::sys::OrtApiBase>(symbol)
    };
    // SAFETY: the entry point answers a table that lives as long as the library.
    let base = unsafe { get().as_ref() }?;
    // SAFETY: a function of that table, without preconditions.
    let text = unsafe { (base.GetVersionString)() };
    // SAFETY: it answers a constant C string of the library's.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().ok().map(str::to_owned)
}
