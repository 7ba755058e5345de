//! How do backends that models bring along run in processes of their own?

use std::path::Path;
use std::sync::Arc;

use nerite_backend::{CustomMetrics, ModelSuppliedRuntime, Runtime};
use nerite_config::ModelConfig;
use nerite_process::ProcessHost;

use crate::Isolated;
use crate::runtime::host;

/// Wraps a runtime, so that its models may run in processes of their own.
pub type Wrap = Box<dyn Fn(Arc<dyn Runtime>) -> Isolated + Send + Sync>;

/// Finds the runtimes that `inner` finds, and wraps them. Their processes share one supervisor and its memory.
pub struct IsolatedLibraries {
    inner: Arc<dyn ModelSuppliedRuntime>,
    wrap: Wrap,
    host: Arc<ProcessHost>,
}

impl IsolatedLibraries {
    /// `wrap` makes an isolated runtime of one that `inner` has found.
    pub fn over(inner: Arc<dyn ModelSuppliedRuntime>, wrap: Wrap) -> IsolatedLibraries {
        IsolatedLibraries { inner, wrap, host: Arc::new(host()) }
    }
}

impl ModelSuppliedRuntime for IsolatedLibraries {
    fn find(&self, config: &ModelConfig, model_dir: &Path, version_dir: &Path) -> Option<Arc<dyn Runtime>> {
        let found = self.inner.find(config, model_dir, version_dir)?;
        Some(Arc::new((self.wrap)(found).on(&self.host)))
    }

    fn count_in(&self, metrics: &Arc<CustomMetrics>) {
        self.inner.count_in(metrics);
    }
}
