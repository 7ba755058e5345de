//! Which runtime does a model's configuration name?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_backend::{BatchStrategy, BroughtAlong, CustomMetrics, LoadContext, Model, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::Staging;
use nerite_request::Status;

/// Backends of the project that are built separately, and the command that builds each.
const BUILT_APART: [(&str, &str); 1] = [("tensorflow", "cargo xtask tensorflow")];

/// The runtimes of this server by the name that `config.pbtxt` uses, and what the operator set for them.
#[derive(Default)]
pub struct Runtimes {
    all: BTreeMap<String, Arc<dyn Runtime>>,
    /// Those of backends that have several, by the backend's name and the file that a configuration names in `runtime`.
    by_file: BTreeMap<(String, String), Arc<dyn Runtime>>,
    settings: BTreeMap<String, BTreeMap<String, String>>,
    for_all: BTreeMap<String, String>,
    staging: Option<Arc<dyn Staging>>,
    brought_along: Option<Arc<dyn BroughtAlong>>,
}

impl Runtimes {
    /// Adds a runtime under its own name.
    pub fn add(&mut self, runtime: Arc<dyn Runtime>) {
        self.all.insert(runtime.name().to_owned(), runtime);
    }

    /// Adds a runtime of its backend for configurations that name this file in `runtime`. Without one under its own name, it is that as well.
    pub fn add_file(&mut self, file: &str, runtime: Arc<dyn Runtime>) {
        let name = runtime.name().to_owned();
        self.all.entry(name.clone()).or_insert_with(|| Arc::clone(&runtime));
        self.by_file.insert((name, file.to_owned()), runtime);
    }

    /// Adds a runtime of its backend for configurations that name this file in `runtime`, and for no others.
    pub fn add_named(&mut self, file: &str, runtime: Arc<dyn Runtime>) {
        self.by_file.insert((runtime.name().to_owned(), file.to_owned()), runtime);
    }

    /// Adds one setting of `--backend-config`. An empty backend means all backends.
    pub fn set(&mut self, backend: &str, key: &str, value: &str) {
        let settings = match backend {
            "" => &mut self.for_all,
            backend => self.settings.entry(backend.to_owned()).or_default(),
        };
        settings.insert(key.to_owned(), value.to_owned());
    }

    /// Sets how memory of devices is copied for runtimes that compute on the host. Without it, requests with such memory are refused.
    pub fn stage_through(&mut self, staging: Arc<dyn Staging>) {
        self.staging = Some(staging);
    }

    /// Sets how a runtime is found in a model's own directory. Such a runtime is preferred to all others.
    pub fn look_in_models(&mut self, find: Arc<dyn BroughtAlong>) {
        self.brought_along = Some(find);
    }

    /// The runtime in the model's own directory, if there is one.
    pub fn brought_along(
        &self,
        config: &ModelConfig,
        model_dir: &Path,
        version_dir: &Path,
    ) -> Option<Arc<dyn Runtime>> {
        self.brought_along.as_ref()?.find(config, model_dir, version_dir)
    }

    /// As [`BroughtAlong::strategy_library`].
    pub(crate) fn strategy_library(&self, context: &LoadContext) -> Result<Option<PathBuf>, Status> {
        self.brought_along.as_ref().map_or(Ok(None), |found| found.strategy_library(context))
    }

    /// As [`BroughtAlong::strategy`].
    pub(crate) fn strategy(
        &self,
        library: &Path,
        model: &Arc<dyn Model>,
        context: &LoadContext,
    ) -> Result<Option<Box<dyn BatchStrategy>>, Status> {
        self.brought_along.as_ref().map_or(Ok(None), |found| found.strategy(library, model, context))
    }

    /// Sets the registry for the metrics of compiled backends.
    pub(crate) fn count_in(&self, metrics: &Arc<CustomMetrics>) {
        if let Some(found) = &self.brought_along {
            found.count_in(metrics);
        }
    }

    /// How memory of devices is copied, on hosts that have devices.
    pub fn staging(&self) -> Option<&Arc<dyn Staging>> {
        self.staging.as_ref()
    }

    /// The runtime that a configuration names, by its backend and by the file in `runtime`, where the backend has that file.
    pub fn find(&self, config: &ModelConfig) -> Result<Arc<dyn Runtime>, Status> {
        let key = (config.backend_name().to_owned(), config.runtime.clone());
        self.by_file.get(&key).map_or_else(|| self.get(config.backend_name()), |found| Ok(Arc::clone(found)))
    }

    /// The runtime of this name.
    pub fn get(&self, backend: &str) -> Result<Arc<dyn Runtime>, Status> {
        self.all.get(backend).cloned().ok_or_else(|| {
            let known: Vec<_> = self.all.keys().map(String::as_str).collect();
            let apart = BUILT_APART.iter().find(|(name, _)| *name == backend);
            let cure = apart.map(|(_, command)| {
                format!("; `{command}` builds that backend, which lies in the directory backends beside the program, or in --backend-directory")
            });
            Status::invalid(format!(
                "unable to find backend library for backend '{backend}', try specifying runtime on the model \
                 configuration. (this server has: {}{})",
                known.join(", "),
                cure.unwrap_or_default()
            ))
        })
    }

    /// The operator's settings for this backend. Its own settings override those for all backends.
    pub fn settings(&self, backend: &str) -> BTreeMap<String, String> {
        let mut settings = self.for_all.clone();
        settings.extend(self.settings.get(backend).cloned().unwrap_or_default());
        settings
    }

    /// All runtimes, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Runtime>> {
        self.all.values()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    struct Named(&'static str, &'static str);

    impl Runtime for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn engine(&self) -> String {
            self.1.to_owned()
        }

        fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
            Err(Status::internal("it loads nothing"))
        }
    }

    #[test]
    fn a_configuration_chooses_among_the_files_of_its_backend() {
        let mut runtimes = Runtimes::default();
        runtimes.add(Arc::new(Named("both", "library")));
        runtimes.add_file("model.py", Arc::new(Named("both", "class")));
        runtimes.add_file("model.py", Arc::new(Named("class_only", "class")));
        runtimes.add_named("libtriton_both_2.so", Arc::new(Named("both", "second library")));
        runtimes.add_named("libtriton_only_2.so", Arc::new(Named("second_only", "second library")));
        let cases = [
            ("both", "", "library"),
            ("both", "model.py", "class"),
            // A file that the backend does not have is not looked for elsewhere.
            ("both", "libtriton_both.so", "library"),
            ("both", "libtriton_both_2.so", "second library"),
            ("second_only", "libtriton_only_2.so", "second library"),
            ("class_only", "", "class"),
            ("class_only", "model.py", "class"),
        ];
        for (backend, runtime, expected) in cases {
            let config = ModelConfig { backend: backend.into(), runtime: runtime.into(), ..ModelConfig::default() };
            assert_eq!(runtimes.find(&config).unwrap().engine(), expected, "{backend}, {runtime}");
        }
        let unnamed = ModelConfig { backend: "second_only".into(), ..ModelConfig::default() };
        assert!(runtimes.find(&unnamed).is_err(), "it has no library of its name");
        let unknown = ModelConfig { backend: "none".into(), runtime: "model.py".into(), ..ModelConfig::default() };
        assert!(runtimes.find(&unknown).is_err());
    }
}
