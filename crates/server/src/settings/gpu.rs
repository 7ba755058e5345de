//! Is a GPU to be used, by which models, and how much memory is locked for it?

use std::path::PathBuf;

use nerite_config::MIN_COMPUTE_CAPABILITY;
use nerite_cuda::limits::PINNED_POOL_BYTES;

use crate::flags::{BadValue, Values};

/// The operator's settings for GPUs.
#[derive(Debug, PartialEq)]
pub struct GpuSettings {
    /// The driver.
    pub library: CudaLibrary,
    /// Bytes of the pool that transfers go through.
    pub pinned_pool_bytes: u64,
    /// Whether clients' regions and leases are page-locked.
    pub lock_client_memory: bool,
    /// Models run on no GPU below it.
    pub min_compute_capability: f64,
}

/// The CUDA driver that is opened.
#[derive(Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The system's, if it has one.
    Default,
    /// The library at this path. If it cannot be opened, the server does not start.
    At(PathBuf),
    /// No driver.
    Off,
}

pub(super) fn gpu(values: &Values<'_>) -> Result<GpuSettings, BadValue> {
    let library = match values.text("cuda-library") {
        None | Some("") => CudaLibrary::Default,
        Some("none") => CudaLibrary::Off,
        Some(path) => CudaLibrary::At(PathBuf::from(path)),
    };
    Ok(GpuSettings {
        library,
        pinned_pool_bytes: values.int("pinned-memory-pool-byte-size", PINNED_POOL_BYTES)?,
        lock_client_memory: values.bool("page-lock-client-memory", true)?,
        min_compute_capability: values.float("min-supported-compute-capability", MIN_COMPUTE_CAPABILITY)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;

    #[track_caller]
    fn check(line: &[&str], library: CudaLibrary, pinned_pool_bytes: u64, lock_client_memory: bool) {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        let given = flags::parse(&words).expect("known flags");
        let min_compute_capability = MIN_COMPUTE_CAPABILITY;
        let expected = GpuSettings { library, pinned_pool_bytes, lock_client_memory, min_compute_capability };
        assert_eq!(gpu(&Values(&given)), Ok(expected));
    }

    #[test]
    fn models_run_on_gpus_of_the_age_that_is_said() {
        let oldest = |value: &str| {
            let given = flags::parse(&[format!("--min-supported-compute-capability={value}")]).expect("a known flag");
            gpu(&Values(&given)).map(|settings| settings.min_compute_capability).ok()
        };
        assert_eq!([oldest("7.5"), oldest("8"), oldest("new"), oldest("nan")], [Some(7.5), Some(8.0), None, None]);
    }

    #[test]
    fn the_systems_driver_is_used_with_tritons_pool_unless_it_is_said() {
        check(&[], CudaLibrary::Default, 268_435_456, true);
        check(&["--cuda-library=none", "--pinned-memory-pool-byte-size=0"], CudaLibrary::Off, 0, true);
        let library = CudaLibrary::At("/opt/libcuda.so".into());
        check(&["--cuda-library", "/opt/libcuda.so", "--page-lock-client-memory=0"], library, 268_435_456, false);
    }
}
