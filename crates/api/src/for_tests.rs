//! How do tests and examples of the front ends get the calls of a server?

use std::path::Path;
use std::sync::Arc;

use nerite_engine::{Engine, Runtimes};
use nerite_request::Status;
use nerite_request::setting::LogSettings;
use nerite_shm::Registries;

use crate::{Api, LogSwitches, Options};

impl Api {
    /// The calls of a server over this repository that has no runtime, so the repository must be empty. It logs nothing.
    pub fn for_tests(repository: &Path) -> Result<Api, Status> {
        let engine = Engine::for_tests(repository, Runtimes::default())?;
        Ok(Api::new(engine, Registries::new(true, None), LogSwitches::silent(), Options::default()))
    }
}

impl LogSwitches {
    /// The switches of a log that is off.
    pub fn silent() -> Arc<LogSwitches> {
        let (file, format) = (String::new(), "default".to_owned());
        let (info, warning, error, verbose_level) = (false, false, false, 0);
        Arc::new(LogSwitches::new(LogSettings { file, format, info, warning, error, verbose_level }))
    }
}
