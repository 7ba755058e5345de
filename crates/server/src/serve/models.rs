//! Which runtimes does this server have, and do its models load?

use std::path::Path;
use std::sync::Arc;

use nerite_backend::identity::Identity;
use nerite_budget::Budgets;
use nerite_cabi::{CompiledBackend, LateReports};
use nerite_cache::ResponseCache;
use nerite_config::listed;
use nerite_engine::{ClientInstances, Engine, FileChanges, Loader, RateLimits, Runtimes, Services};
use nerite_ensemble::Ensemble;
use nerite_isolated::Isolated;
use nerite_ort::{INSTALL, NOT_FOUND};
use nerite_python::{BACKEND_CLASS, Python, PythonBackend, python_backends_in};
use nerite_repository::{ControlMode, Store, StoreOptions};
use nerite_request::Status;

use super::StartError;
use super::gpu::{self, GpuHost, NoGpu};
use crate::settings::Settings;
use crate::settings::backends::{BACKEND_DIRECTORY, absent, beside};
use crate::worker::{isolating, isolating_compiled, isolating_libraries};

/// The most models that the error of a failed start names.
const FAILED_NAMED_MAX: usize = 8;

/// The engine with the models of the start loaded, and whether the server may start with it.
pub fn start(
    settings: &Settings,
    gpu: Result<&GpuHost, &NoGpu>,
    python: &Arc<Python>,
    reports: &LateReports,
) -> Result<(Arc<Engine>, Result<(), StartError>), StartError> {
    let models = &settings.models;
    let store = Store::open(StoreOptions {
        repositories: models.repositories.clone(),
        config_name: models.config_name.clone(),
        auto_complete: models.auto_complete,
        allow_upload: models.allow_upload,
        namespacing: models.namespacing,
    })
    .map_err(|error| creating(&error.status()))?;
    for warning in store.warnings() {
        log::warn!("{warning}");
    }
    let is_polled = models.control == ControlMode::Poll && !models.poll.is_zero();
    let changes = is_polled.then(|| FileChanges::of(&store));
    let loader = Loader {
        runtimes: runtimes(settings, gpu.ok(), python, reports)?,
        host: gpu::host_facts(gpu, &settings.gpu),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        auto_complete: models.auto_complete,
        queues: models.queues,
        services: services(settings, gpu.ok()),
        threads: models.instance_threads,
        client_instances: ClientInstances::at_most(models.client_instances_max),
    };
    let options = nerite_engine::Options {
        control: models.control,
        load_models: models.load.clone(),
        load_threads: models.load_threads,
        load_retries: models.load_retries,
        models_bytes_max: models.bytes_max,
        budgets: Budgets::new(settings.budgets),
    };
    let engine = Engine::new(store, loader, options);
    match engine.start() {
        Ok(failed) if failed.is_empty() => {}
        // As in Triton, the table shows which models failed before the server ends.
        Ok(failed) if settings.exit_on_error => {
            log::error!(
                "not loaded: {}; the reasons are above, and with --exit-on-error=false the server starts without them",
                listed(&failed, FAILED_NAMED_MAX)
            );
            return Ok((engine, Err(creating(&Status::internal("failed to load all models")))));
        }
        Ok(_) => {}
        Err(status) if settings.exit_on_error => return Err(creating(&status)),
        Err(status) => {
            log::error!("{}; the server goes on without models (--exit-on-error=false)", creating(&status));
            engine.mark_failed();
        }
    }
    if let Some(changes) = changes {
        engine
            .poll_every(models.poll, changes)
            .map_err(|error| StartError(format!("no thread to poll repositories: {error}")))?;
    }
    Ok((engine, Ok(())))
}

fn services(settings: &Settings, gpu: Option<&GpuHost>) -> Services {
    let cache = settings.response_cache.map(|bytes| Arc::new(ResponseCache::new(bytes)));
    let memory = nerite_memory::allocatable_bytes();
    if let Some(bytes) = settings.response_cache.filter(|bytes| *bytes > memory) {
        log::warn!(
            "--cache-config lets the response cache have {bytes} bytes, and the memory has {memory}; lower its size"
        );
    }
    let latencies = settings.metrics.as_ref().map(|metrics| metrics.latencies.clone()).unwrap_or_default();
    let rates = settings.rates.clone().map(|resources| Arc::new(RateLimits::new(resources)));
    let devices = gpu.map_or(&[][..], |gpu| &gpu.devices);
    let gpu_uuids = Arc::new(devices.iter().map(|device| (device.ordinal(), device.uuid())).collect());
    Services { cache, rates, policies: settings.policies.clone(), latencies, gpu_uuids }
}

fn creating(status: &Status) -> StartError {
    StartError(format!("creating server: {} - {}", status.code.name(), status.message))
}

fn runtimes(
    settings: &Settings,
    gpu: Option<&GpuHost>,
    python: &Arc<Python>,
    reports: &LateReports,
) -> Result<Runtimes, StartError> {
    let mut runtimes = Runtimes::default();
    if let Some(gpu) = gpu {
        runtimes.stage_through(Arc::<nerite_cuda::PinnedPool>::clone(&gpu.pool));
    }
    runtimes.set("", "default-max-batch-size", "4");
    let least = format!("{:.6}", settings.gpu.min_compute_capability);
    runtimes.set("", nerite_cabi::MIN_COMPUTE_CAPABILITY, &least);
    for (backend, key, value) in &settings.backend_config {
        runtimes.set(backend, key, value);
    }
    for note in absent(settings) {
        log::warn!("{note}");
    }
    runtimes.add(Arc::new(Ensemble));
    runtimes.add(Arc::new(Identity));
    runtimes.add(Arc::<Python>::clone(python));
    add_onnx(&mut runtimes, settings.onnxruntime_library.as_deref())?;
    add_compiled(&mut runtimes, settings, reports);
    add_python_backends(&mut runtimes, settings, python);
    Ok(runtimes)
}

/// Adds compiled backends. Those of a directory that the operator named replace built-in ones. Those in Triton's default directory do not.
fn add_compiled(runtimes: &mut Runtimes, settings: &Settings, reports: &LateReports) {
    let named = settings.backend_directory.as_deref();
    let directory = named.unwrap_or(Path::new(BACKEND_DIRECTORY));
    if named.is_some() && !directory.is_dir() {
        log::warn!("--backend-directory={} is no directory: no compiled backend is found there", directory.display());
    }
    let options = nerite_cabi::Options {
        directory: directory.to_owned(),
        auto_complete: settings.models.auto_complete,
        reports: Some(reports.clone()),
    };
    for (name, library) in nerite_cabi::backends_in(directory) {
        let is_built_in = runtimes.get(&name).is_ok();
        match named {
            None if is_built_in => continue,
            Some(_) if is_built_in => {
                log::info!("backend '{name}' is {}, in the place of the built-in one", library.display());
            }
            _ => {}
        }
        runtimes.add(Arc::new(compiled(&name, &library, &options)));
    }
    for (name, file, library) in nerite_cabi::named_libraries_in(directory) {
        log::info!("backend '{name}' has {} for configurations whose 'runtime' is '{file}'", library.display());
        runtimes.add_named(&file, Arc::new(compiled(&name, &library, &options)));
    }
    // Built-in backends and those that the operator named take precedence over those that were installed with the program.
    let beside = beside();
    let installed = nerite_cabi::Options { directory: beside.clone(), ..options.clone() };
    for (name, library) in nerite_cabi::backends_in(&beside) {
        if runtimes.get(&name).is_err() {
            runtimes.add(Arc::new(compiled(&name, &library, &installed)));
        }
    }
    runtimes.look_in_models(Arc::new(isolating_libraries(options)), directory);
}

/// Adds backends that are Python classes. If a backend also has a library or is built in, its class is used only for configurations that name it in
/// `runtime`.
fn add_python_backends(runtimes: &mut Runtimes, settings: &Settings, python: &Arc<Python>) {
    let directory = settings.backend_directory.as_deref().unwrap_or(Path::new(BACKEND_DIRECTORY));
    for (name, path) in python_backends_in(directory) {
        // The backend `python` runs such a backend, so its settings apply. The backend's own settings override them.
        let own =
            |key: &str| settings.backend_config.iter().any(|(backend, other, _)| *backend == name && other == key);
        for (_, key, value) in settings.backend_config.iter().filter(|(backend, ..)| backend == "python") {
            if !own(key) {
                runtimes.set(&name, key, value);
            }
        }
        runtimes.add_file(BACKEND_CLASS, Arc::new(PythonBackend::new(&name, &path, python)));
    }
}

/// A backend in the server's process, or in processes of its own if the model or the operator asks for that.
fn compiled(name: &str, library: &Path, options: &nerite_cabi::Options) -> Isolated {
    isolating_compiled(Arc::new(CompiledBackend::new(name, library, options.clone())), options)
}

/// ONNX Runtime if its library is found, else the embedded engine. Both have the same name.
fn add_onnx(runtimes: &mut Runtimes, requested: Option<&Path>) -> Result<(), StartError> {
    let is_embedded = requested == Some(Path::new("none"));
    let library = if is_embedded { None } else { nerite_ort::find_library(requested) };
    let embedded = || isolating(Arc::new(nerite_onnx::Embedded), None);
    match library.as_deref().map(|path| (path, nerite_ort::OnnxRuntime::open(path))) {
        Some((path, Ok(runtime))) => runtimes.add(Arc::new(isolating(Arc::new(runtime), Some(path)))),
        Some((_, Err(error))) if requested.is_some() => return Err(creating(&Status::invalid(error.to_string()))),
        Some((_, Err(error))) => {
            log::warn!("{error}; using the embedded engine");
            runtimes.add(Arc::new(embedded()));
        }
        None => {
            if !is_embedded {
                log::warn!("{NOT_FOUND}: {INSTALL}; --onnxruntime-library=none says that this is meant");
            }
            runtimes.add(Arc::new(embedded()));
        }
    }
    Ok(())
}
