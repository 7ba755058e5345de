//! What does a configuration need to know about the host?

/// A GPU of this host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// CUDA's device number.
    pub id: i32,
    /// Major and minor in one number, such as 8.6.
    pub compute_capability: f64,
}

/// What instances can be placed on.
#[derive(Debug, Clone, PartialEq)]
pub struct HostFacts {
    /// A CUDA driver was found, so that GPUs could be used if there are any.
    pub gpu_support: bool,
    /// Why there is no such support, and the cure: told after Triton's words. Empty where nobody asked.
    pub no_support: String,
    /// The GPUs CUDA shows, usable or not.
    pub gpus: Vec<Gpu>,
    /// GPUs below it are left alone; `--min-supported-compute-capability`.
    pub min_compute_capability: f64,
    /// Whether groups of `KIND_AUTO` go to GPUs, as Triton's do, and not to the CPU.
    pub auto_on_gpus: bool,
}

/// Triton's oldest GPU.
pub const MIN_COMPUTE_CAPABILITY: f64 = 6.0;

impl HostFacts {
    /// A host without GPUs.
    pub fn cpu_only() -> Self {
        Self {
            gpu_support: false,
            no_support: String::new(),
            gpus: Vec::new(),
            min_compute_capability: MIN_COMPUTE_CAPABILITY,
            auto_on_gpus: true,
        }
    }

    /// The numbers of the GPUs that may be used, ascending.
    pub(crate) fn usable_gpus(&self) -> Vec<i32> {
        let mut ids: Vec<i32> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.compute_capability >= self.min_compute_capability)
            .map(|gpu| gpu.id)
            .collect();
        ids.sort_unstable();
        ids
    }
}
