//! Which calls can a program make to the server in its own process, and a backend to the server that it runs in?

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use nerite_backend::Models;
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

/// What a server reports of itself and of its models. The JSON is the same as over HTTP.
pub trait ServerReports: Send + Sync {
    /// Whether it is ready; with strict readiness, whether all its models are ready too.
    fn is_ready(&self) -> Result<bool, Status>;

    /// Its name, version and extensions, as JSON.
    fn metadata(&self) -> Result<Vec<u8>, Status>;

    /// A model's versions, inputs and outputs, as JSON.
    fn model_metadata(&self, model: &str, version: i64) -> Result<Vec<u8>, Status>;

    /// Statistics of a model, or of all for an empty name, as JSON.
    fn statistics(&self, model: &str, version: i64) -> Result<Vec<u8>, Status>;

    /// The models in the repositories, as JSON.
    fn index(&self, ready_only: bool) -> Result<Vec<u8>, Status>;

    /// The page of metrics.
    fn metrics(&self) -> Result<String, Status>;
}

/// The reports of a server that is still being made. Its backends are made before it.
#[derive(Clone, Default)]
pub struct LateReports(Arc<OnceLock<Weak<dyn ServerReports>>>);

impl LateReports {
    /// Sets the reports, once. They can be read as long as `reports` exists.
    pub fn set(&self, reports: &Arc<dyn ServerReports>) {
        self.0.get_or_init(|| Arc::downgrade(reports));
    }

    /// The reports, for this function.
    pub(crate) fn get(&self, function: &str) -> Result<Arc<dyn ServerReports>, Status> {
        let starts = || {
            Status::unavailable(format!(
                "{function}: the server starts; it has reports once its models of the start are loaded"
            ))
        };
        self.0
            .get()
            .ok_or_else(starts)?
            .upgrade()
            .ok_or_else(|| Status::unavailable(format!("{function}: the server stops")))
    }
}

impl fmt::Debug for LateReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "LateReports(set)" } else { "LateReports" })
    }
}

/// A server in the process of the program that calls it.
pub trait ServerCalls: ServerReports {
    /// Its models, which requests are sent to.
    fn models(&self) -> Models;

    /// Ends requests in flight, for as long as the exit timeout says, and unloads all models. New requests are refused
    /// from now on.
    fn stop(&self) -> Result<(), Status>;

    /// Sets the exit timeout: the seconds that requests in flight get at the end.
    fn set_exit_timeout(&self, seconds: u32);

    /// Whether it is live.
    fn is_live(&self) -> Result<bool, Status>;

    /// Whether that version of a model takes requests; the highest one if the number is below 0.
    fn is_model_ready(&self, model: &str, version: i64) -> Result<bool, Status>;

    /// Loads or reloads a model, and waits for it.
    fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status>;

    /// Unloads a model. New requests are refused.
    fn unload(&self, model: &str, dependents: bool) -> Result<(), Status>;

    /// Adds a repository, in control mode `explicit`. `names` has pairs of a directory in it and the name of the model there.
    fn register(&self, repository: &str, names: &[(String, String)]) -> Result<(), Status>;

    /// Removes a repository. Models that were loaded from it stay.
    fn unregister(&self, repository: &str) -> Result<(), Status>;

    /// Compares the repositories once with their last state, in control mode `poll`.
    fn poll(&self) -> Result<(), Status>;
}

/// Makes a server with these command-line flags.
pub type Start = fn(&[String]) -> Result<Arc<dyn ServerCalls>, Status>;

static START: OnceLock<Start> = OnceLock::new();

/// Allows programs in this process to make servers. Without it, as in the server itself, `TRITONSERVER_ServerNew`
/// returns an error.
pub fn serve_in_process(start: Start) {
    START.get_or_init(|| start);
}

/// The function that makes a server in this process, if there is one.
pub(crate) fn start() -> Option<Start> {
    START.get().copied()
}
