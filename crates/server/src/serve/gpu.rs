//! Does this host have a GPU, and what is set up for it?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_config::HostFacts;
use nerite_cuda::{Absent, Device, Driver, PinnedPool};
use nerite_shm::Gpu;

use super::StartError;
use crate::settings::{CudaLibrary, GpuSettings};

/// Names the driver's library if the command line does not: for hosts whose loader does not find it, and for tests.
const LIBRARY_VARIABLE: &str = "NERITE_CUDA_LIBRARY";

/// The driver for regions, and the memory that transfers go through.
pub struct GpuHost {
    /// For the registry and the leases.
    pub gpu: Gpu,
    /// For the runtimes.
    pub pool: Arc<PinnedPool>,
    /// For the models that ask for GPUs, and for the metrics.
    pub devices: Vec<Device>,
}

/// Why no GPU is used.
pub struct NoGpu(String);

/// Opens the driver. Without a driver the server starts all the same, unless the operator named one.
pub fn open(settings: &GpuSettings) -> Result<Result<GpuHost, NoGpu>, StartError> {
    let named = match &settings.library {
        CudaLibrary::Off => return Ok(Err(NoGpu("GPUs are switched off by --cuda-library".into()))),
        CudaLibrary::At(path) => Some(path.clone()),
        CudaLibrary::Default => None,
    };
    let from_variable = || std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = named.clone().or_else(from_variable);
    match Driver::open(path.as_deref()) {
        Ok(driver) => Ok(Ok(set_up(driver, settings))),
        Err(absent) if named.is_some() => Err(StartError(format!("creating server: Invalid argument - {absent}"))),
        Err(absent) => {
            log_absence(&absent, path.as_deref());
            Ok(Err(NoGpu(absent.to_string())))
        }
    }
}

fn set_up(driver: Arc<Driver>, settings: &GpuSettings) -> GpuHost {
    let devices = driver.devices();
    for device in &devices {
        let mib = device.total_bytes() >> 20;
        log::info!("device {}: {}, {mib} MiB, {}", device.ordinal(), device.name(), device.uuid());
    }
    let pool = Arc::new(PinnedPool::new(&driver, settings.pinned_pool_bytes));
    GpuHost { gpu: Gpu::new(driver, settings.lock_client_memory), pool, devices }
}

/// The devices that models may be placed on. A model runs on a GPU only if its configuration says so. Otherwise a new version of nerite could move
/// models of such a host to the GPU, where their results differ.
pub fn host_facts(gpu: Result<&GpuHost, &NoGpu>, settings: &GpuSettings) -> HostFacts {
    let min_compute_capability = settings.min_compute_capability;
    let facts = HostFacts { auto_on_gpus: false, min_compute_capability, ..HostFacts::cpu_only() };
    match gpu {
        Err(NoGpu(why)) => HostFacts { no_support: format!("{why}; use KIND_CPU"), ..facts },
        Ok(host) => {
            HostFacts { gpu_support: true, gpus: host.devices.iter().filter_map(as_configured).collect(), ..facts }
        }
    }
}

/// A device as configurations name it; `None` if its number is too large for them.
fn as_configured(device: &Device) -> Option<nerite_config::Gpu> {
    let (major, minor) = device.compute_capability();
    let id = i32::try_from(device.ordinal()).ok()?;
    Some(nerite_config::Gpu { id, compute_capability: f64::from(major) + f64::from(minor) / 10.0 })
}

/// Most hosts have no driver, so that is no warning. A driver that does not work is.
fn log_absence(absent: &Absent, requested: Option<&Path>) {
    match (absent, requested) {
        (Absent::NoLibrary { .. }, None) => log::debug!("{absent}; serving without GPUs"),
        _ => log::warn!("{absent}; serving without GPUs"),
    }
}
