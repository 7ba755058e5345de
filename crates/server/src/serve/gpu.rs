//! Does this host have a GPU, and what is set up for it?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_cuda::{Absent, Driver, PinnedPool};
use nerite_shm::Gpu;

use super::StartError;
use crate::settings::{CudaLibrary, GpuSettings};

/// Names the driver's library where the command line does not: for hosts whose loader does not find it, and for tests.
const LIBRARY_VARIABLE: &str = "NERITE_CUDA_LIBRARY";

/// The driver for regions, and the memory that transfers go through.
pub struct GpuHost {
    /// For the registry and the leases.
    pub gpu: Gpu,
    /// For the runtimes.
    pub pool: Arc<PinnedPool>,
}

/// Opens the driver. A host without one is served all the same, unless the operator named it.
pub fn open(settings: &GpuSettings) -> Result<Option<GpuHost>, StartError> {
    let named = match &settings.library {
        CudaLibrary::Off => return Ok(None),
        CudaLibrary::At(path) => Some(path.clone()),
        CudaLibrary::Default => None,
    };
    let from_variable = || std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let path = named.clone().or_else(from_variable);
    match Driver::open(path.as_deref()) {
        Ok(driver) => Ok(Some(set_up(driver, settings))),
        Err(absent) if named.is_some() => Err(StartError(format!("creating server: Invalid argument - {absent}"))),
        Err(absent) => {
            tell(&absent, path.as_deref());
            Ok(None)
        }
    }
}

fn set_up(driver: Arc<Driver>, settings: &GpuSettings) -> GpuHost {
    for device in driver.devices() {
        let mib = device.total_bytes() >> 20;
        log::info!("device {}: {}, {mib} MiB, {}", device.ordinal(), device.name(), device.uuid());
    }
    let pool = Arc::new(PinnedPool::new(&driver, settings.pinned_pool_bytes));
    GpuHost { gpu: Gpu::new(driver, settings.lock_client_memory), pool }
}

/// Most hosts simply have no driver; one that is there and does not work is worth a line.
fn tell(absent: &Absent, asked: Option<&Path>) {
    match (absent, asked) {
        (Absent::NoLibrary { .. }, None) => log::debug!("{absent}; serving without GPUs"),
        _ => log::warn!("{absent}; serving without GPUs"),
    }
}
