//! Which runtime does a model's configuration name?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_backend::{CustomMetrics, ModelSuppliedRuntime, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::Staging;
use nerite_request::Status;

/// Backends of the project that are built separately, and the command that builds each.
const BUILT_APART: [(&str, &str); 1] = [("tensorflow", "cargo xtask tensorflow")];

/// The file that a configuration names in `runtime` for a backend that is a Python class.
const CLASS: &str = "model.py";

/// The runtimes of this server by the name that `config.pbtxt` uses, and what the operator set for them.
#[derive(Default)]
pub struct Runtimes {
    all: BTreeMap<String, Arc<dyn Runtime>>,
    /// The runtimes of backends that have several, by the backend's name and the file that a configuration names in `runtime`.
    by_file: BTreeMap<(String, String), Arc<dyn Runtime>>,
    settings: BTreeMap<String, BTreeMap<String, String>>,
    for_all: BTreeMap<String, String>,
    staging: Option<Arc<dyn Staging>>,
    model_supplied: Option<Arc<dyn ModelSuppliedRuntime>>,
    /// The directory of backends, for errors.
    directory: PathBuf,
}

impl Runtimes {
    /// Adds a runtime under its own name.
    pub fn add(&mut self, runtime: Arc<dyn Runtime>) {
        self.all.insert(runtime.name().to_owned(), runtime);
    }

    /// Adds a runtime of its backend for configurations that name this file in `runtime`. If the backend has no runtime under its own name, this one
    /// also becomes that.
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

    /// Sets how a runtime is found in a model's own directory. It is preferred to all others. `directory` is where the others
    /// lie; errors name it.
    pub fn look_in_models(&mut self, find: Arc<dyn ModelSuppliedRuntime>, directory: &Path) {
        self.model_supplied = Some(find);
        directory.clone_into(&mut self.directory);
    }

    /// The runtime in the model's own directory, if there is one.
    pub fn model_supplied(
        &self,
        config: &ModelConfig,
        model_dir: &Path,
        version_dir: &Path,
    ) -> Option<Arc<dyn Runtime>> {
        self.model_supplied.as_ref()?.find(config, model_dir, version_dir)
    }

    /// Sets the registry for the metrics of compiled backends.
    pub(crate) fn count_in(&self, metrics: &Arc<CustomMetrics>) {
        if let Some(found) = &self.model_supplied {
            found.count_in(metrics);
        }
    }

    /// How memory of devices is copied, on hosts that have devices.
    pub fn staging(&self) -> Option<&Arc<dyn Staging>> {
        self.staging.as_ref()
    }

    /// The runtime that a configuration names, by its backend and by the file in `runtime`. `searched` are the model's directories, in which no
    /// library of that name was found. Errors name them.
    pub fn find(&self, config: &ModelConfig, searched: &[&Path]) -> Result<Arc<dyn Runtime>, Status> {
        let (backend, file) = (config.backend_name(), config.runtime.as_str());
        let of_file = |file: &str| self.by_file.get(&(backend.to_owned(), file.to_owned()));
        if let Some(found) = of_file(file) {
            return Ok(Arc::clone(found));
        }
        if file.is_empty() {
            return self.get(backend);
        }
        let usual = self.all.get(backend).filter(|_| file == format!("libtriton_{backend}.so"));
        // A Python class does not replace a library that a configuration names, even if the backend has nothing else.
        let is_class = |found: &Arc<dyn Runtime>| of_file(CLASS).is_some_and(|class| Arc::ptr_eq(class, found));
        match usual.filter(|found| !is_class(found)) {
            Some(found) => Ok(Arc::clone(found)),
            None => Err(self.missing_file(config, searched)),
        }
    }

    /// The error if the file that a configuration names in `runtime` does not exist. It begins as Triton's error does.
    fn missing_file(&self, config: &ModelConfig, searched: &[&Path]) -> Status {
        let (model, file, own) = (&config.name, &config.runtime, self.directory.join(config.backend_name()));
        if file == CLASS {
            return Status::invalid(format!(
                "unable to find Python backend based backend library '{file}' for model '{model}', searched: '{}'; put the class there and start the \
                 server again, or leave 'runtime' out of the configuration",
                own.join(file).display()
            ));
        }
        if file.contains('/') || !file.starts_with("libtriton_") {
            return Status::invalid(format!(
                "unable to find backend library '{file}' for model '{model}': 'runtime' is the name of a file without its directory, which begins \
                 with 'libtriton_', or '{CLASS}'; rename the library, or leave 'runtime' out of the configuration"
            ));
        }
        let places = searched.iter().copied().chain([own.as_path()]).map(|place| format!("'{}'", place.display()));
        Status::invalid(format!(
            "unable to find backend library '{file}' for model '{model}', searched: {}; put it into one of them (the last is read when the server \
             starts), or leave 'runtime' out of the configuration",
            places.collect::<Vec<_>>().join(" ")
        ))
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
    use nerite_backend::{LoadContext, Model};

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
            ("both", "libtriton_both.so", "library"),
            ("both", "libtriton_both_2.so", "second library"),
            ("second_only", "libtriton_only_2.so", "second library"),
            ("class_only", "", "class"),
            ("class_only", "model.py", "class"),
        ];
        for (backend, runtime, expected) in cases {
            let config = ModelConfig { backend: backend.into(), runtime: runtime.into(), ..ModelConfig::default() };
            assert_eq!(runtimes.find(&config, &[]).unwrap().engine(), expected, "{backend}, {runtime}");
        }
        let unnamed = ModelConfig { backend: "second_only".into(), ..ModelConfig::default() };
        assert!(runtimes.find(&unnamed, &[]).is_err(), "it has no library of its name");
    }

    #[track_caller]
    fn check_missing(backend: &str, runtime: &str, expected: &str) {
        let mut runtimes = Runtimes { directory: "/b".into(), ..Runtimes::default() };
        runtimes.add(Arc::new(Named("library", "library")));
        runtimes.add_file("model.py", Arc::new(Named("class", "class")));
        let (name, backend, runtime) = ("m".into(), backend.into(), runtime.into());
        let config = ModelConfig { name, backend, runtime, ..ModelConfig::default() };
        let refused = runtimes.find(&config, &[Path::new("/m/1"), Path::new("/m")]).err().unwrap();
        assert!(refused.message.starts_with(expected), "{refused}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named_and_not_replaced_by_another() {
        let searched = |file: &str, backend: &str| {
            format!(
                "unable to find backend library '{file}' for model 'm', searched: '/m/1' '/m' '/b/{backend}'; put it into"
            )
        };
        for (backend, file) in
            [("library", "libtriton_library_2.so"), ("class", "libtriton_class.so"), ("none", "libtriton_none.so")]
        {
            check_missing(backend, file, &searched(file, backend));
        }
        let class = |backend: &str| {
            format!(
                "unable to find Python backend based backend library 'model.py' for model 'm', searched: '/b/{backend}/model.py'; put"
            )
        };
        check_missing("library", "model.py", &class("library"));
        check_missing("none", "model.py", &class("none"));
        for file in ["other.so", "../1/libtriton_library.so", "libtriton_../library.so"] {
            check_missing(
                "library",
                file,
                &format!("unable to find backend library '{file}' for model 'm': 'runtime' is the name of a file"),
            );
        }
    }
}
