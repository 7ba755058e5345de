//! What may a program ask of the server that runs in its own process?

use std::sync::{Arc, OnceLock};

use nerite_backend::Models;
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

/// A server in the process of the program that asks it. What it answers as JSON is what its clients are answered over HTTP.
pub trait ServerCalls: Send + Sync {
    /// Its models, which requests are sent to.
    fn models(&self) -> Models;

    /// Ends what is under way, for as long as the exit timeout says, and unloads all models. Nothing new is taken from now on.
    fn stop(&self) -> Result<(), Status>;

    /// Seconds that what is under way gets at the end.
    fn set_exit_timeout(&self, seconds: u32);

    /// Whether it lives.
    fn is_live(&self) -> Result<bool, Status>;

    /// Whether it is ready, and with strict readiness all its models.
    fn is_ready(&self) -> Result<bool, Status>;

    /// Whether that version of a model takes requests; below 0 the highest.
    fn is_model_ready(&self, model: &str, version: i64) -> Result<bool, Status>;

    /// Its name, version and extensions, as JSON.
    fn metadata(&self) -> Result<Vec<u8>, Status>;

    /// A model's versions, inputs and outputs, as JSON.
    fn model_metadata(&self, model: &str, version: i64) -> Result<Vec<u8>, Status>;

    /// Statistics of a model, or of all for an empty name, as JSON.
    fn statistics(&self, model: &str, version: i64) -> Result<Vec<u8>, Status>;

    /// What the repositories hold, as JSON.
    fn index(&self, ready_only: bool) -> Result<Vec<u8>, Status>;

    /// Loads or reloads a model, and waits for it.
    fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status>;

    /// Takes a model away from new requests.
    fn unload(&self, model: &str, dependents: bool) -> Result<(), Status>;

    /// Adds a repository, in control mode `explicit`. `names` has pairs of a directory in it and the name of the model there.
    fn register(&self, repository: &str, names: &[(String, String)]) -> Result<(), Status>;

    /// Takes a repository away. What was loaded from it stays.
    fn unregister(&self, repository: &str) -> Result<(), Status>;

    /// Looks at the repositories once, in control mode `poll`.
    fn poll(&self) -> Result<(), Status>;

    /// The page of metrics.
    fn metrics(&self) -> Result<String, Status>;
}

/// Makes a server of these flags, as an operator would type them.
pub type Start = fn(&[String]) -> Result<Arc<dyn ServerCalls>, Status>;

static START: OnceLock<Start> = OnceLock::new();

/// From now on programs in this process can make servers. Without it, as in the server itself, `TRITONSERVER_ServerNew` refuses.
pub fn serve_in_process(start: Start) {
    START.get_or_init(|| start);
}

/// What makes a server in this process, if that is possible.
pub(crate) fn start() -> Option<Start> {
    START.get().copied()
}
