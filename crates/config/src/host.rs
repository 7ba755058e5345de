//! Which facts about the host does a configuration need?

/// A GPU of this host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// CUDA's device number.
    pub id: i32,
    /// Major and minor version as one number, such as 8.6.
    pub compute_capability: f64,
}

/// Facts about the host for the placement of instances.
#[derive(Debug, Clone, PartialEq)]
pub struct HostFacts {
    /// Whether a CUDA driver was found, so that GPUs can be used if there are any.
    pub gpu_support: bool,
    /// If none was found: the reason and the cure, which follow Triton's error text. Empty if no driver was searched for.
    pub no_support: String,
    /// All GPUs that CUDA reports, usable or not.
    pub gpus: Vec<Gpu>,
    /// GPUs below this compute capability are not used: `--min-supported-compute-capability`.
    pub min_compute_capability: f64,
    /// Whether groups of `KIND_AUTO` run on GPUs, as in Triton, and not on the CPU.
    pub auto_on_gpus: bool,
}

/// The compute capability of the oldest GPU that Triton supports.
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

    /// The numbers of all usable GPUs, in ascending order.
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
