//! What may a client learn of the server and its models, and which may it load?

use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_engine::{ReadinessAnswer, Served};
use nerite_request::Status;
use nerite_request::limits::{CONFIG_BYTES_MAX, LOAD_BYTES_MAX, LOAD_CONFIG_BYTES_MAX};
use nerite_request::report::{IndexEntry, ModelReport, ServerReport, StatisticsReport};
use nerite_request::setting::LoadOptions;
use tokio::sync::oneshot;

use crate::tensor_reports::{input_reports, output_reports};
use crate::{Api, version};

/// The protocol extensions that do something here, in Triton's order. Triton lists "sequence", "schedule_policy" and "trace" as
/// well.
fn extensions(shared_memory: bool, gpu: bool) -> impl Iterator<Item = &'static str> {
    let order = [
        "classification",
        "model_repository",
        "model_repository(unload_dependents)",
        "model_configuration",
        "system_shared_memory",
        "cuda_shared_memory",
        "binary_tensor_data",
        "parameters",
        "statistics",
        "logging",
    ];
    order.into_iter().filter(move |extension| match *extension {
        "system_shared_memory" => shared_memory,
        "cuda_shared_memory" => shared_memory && gpu,
        _ => true,
    })
}

/// What to do where files are refused.
const UPLOAD_CURE: &str = "put the model into the repository, or start the server with --allow-model-upload=true";

impl Api {
    /// The process serves, or could.
    pub fn live(&self) -> bool {
        self.check_running().is_ok()
    }

    /// All models are ready (strictly so, by default), and the server is not stopping.
    pub async fn ready(&self) -> bool {
        if !self.live() || !self.0.options.strict_readiness {
            return self.live();
        }
        // In control mode `demand` too: what is loaded is to work.
        if !self.0.engine.is_ready() {
            return false;
        }
        let answers = ask_all(&self.0.engine.all());
        all_ready(answers).await
    }

    /// Whether a model version can take requests; unknown models are simply not ready. Err only for a version that is no
    /// number.
    pub async fn model_ready(&self, model: &str, version: &str) -> Result<bool, Status> {
        self.check_started()?;
        version::parse(version)?;
        match self.served(model, version) {
            Ok(served) => {
                let answers = ask_all(&[served]);
                Ok(all_ready(answers).await)
            }
            // Whoever waits for readiness before the first request would wait for ever.
            Err(_) => Ok(self.must_wait_for(model)),
        }
    }

    /// The server's metadata.
    pub fn server_report(&self) -> Result<ServerReport, Status> {
        self.check_running()?;
        let options = &self.0.options;
        // Clients look for words they know and pass over others. Ours look whether a session socket is this server's.
        let own = Some(self.server_id()).filter(|id| !id.is_empty()).map(ServerReport::id_extension);
        let (shared_memory, gpu) = (self.check_client_shm().is_ok(), self.0.regions.gpu().is_some());
        Ok(ServerReport {
            name: options.id.clone(),
            version: options.version.clone(),
            extensions: extensions(shared_memory, gpu).map(str::to_owned).chain(own).collect(),
        })
    }

    /// A model's metadata.
    pub fn model_report(&self, model: &str, version: &str) -> Result<ModelReport, Status> {
        self.check_running()?;
        let served = self.served(model, version)?;
        let versions = match version {
            "" => self.0.engine.served(model).iter().map(|served| served.version()).collect(),
            _ => vec![served.version()],
        };
        Ok(ModelReport {
            name: model.to_owned(),
            versions,
            platform: served.config().platform().to_owned(),
            inputs: input_reports(&served),
            outputs: output_reports(&served),
        })
    }

    /// The configuration in force.
    pub fn model_config(&self, model: &str, version: &str) -> Result<Arc<ModelConfig>, Status> {
        self.check_running()?;
        Ok(Arc::clone(self.served(model, version)?.config()))
    }

    /// Statistics of one version, of all ready versions of one model, or (empty name) of all models.
    pub fn statistics(&self, model: &str, version: &str) -> Result<Vec<StatisticsReport>, Status> {
        self.check_running()?;
        if model.is_empty() {
            return Ok(self.0.engine.all().iter().map(|served| served.statistics()).collect());
        }
        let wanted = version::parse(version)?;
        let all = self.0.engine.served(model);
        if all.is_empty() {
            return Err(Status::invalid(format!("requested model '{model}' is not available")));
        }
        let listed: Vec<_> =
            all.iter().filter(|s| wanted.is_none_or(|v| v == s.version())).map(|s| s.statistics()).collect();
        if listed.is_empty() {
            return Err(Status::invalid(format!("requested model version is not available for model '{model}'")));
        }
        Ok(listed)
    }

    /// What the repositories hold and in which state it is.
    pub fn index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Status> {
        self.check_running()?;
        self.0.engine.index(ready_only)
    }

    /// What can be said of a load before its body is read: how many bytes it may have. Err: clients load nothing here.
    pub fn load_bytes_max(&self) -> Result<u64, Status> {
        self.check_running()?;
        self.check_control()?;
        Ok(if self.0.options.allow_model_upload { LOAD_BYTES_MAX } else { LOAD_CONFIG_BYTES_MAX })
    }

    /// Refuses a load of `bytes` bytes, more than [`Api::load_bytes_max`].
    pub fn load_too_large(&self, bytes: u64) -> Status {
        if self.0.options.allow_model_upload {
            return Status::invalid(format!(
                "a load request has at most {LOAD_BYTES_MAX} bytes, got {bytes}; put the model into the repository"
            ));
        }
        Status::unsupported(format!(
            "a load request without files has at most {LOAD_CONFIG_BYTES_MAX} bytes, got {bytes}; {UPLOAD_CURE}"
        ))
    }

    /// Loads or reloads a model. Resolves when it is ready or has failed.
    pub async fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status> {
        self.load_bytes_max()?;
        if !options.files.is_empty() && !self.0.options.allow_model_upload {
            let count = options.files.len();
            return Err(Status::unsupported(format!(
                "the load of model '{model}' brings {count} files, and this server takes none from clients; {UPLOAD_CURE}"
            )));
        }
        let config_bytes = options.config.as_ref().map_or(0, String::len);
        if config_bytes > CONFIG_BYTES_MAX {
            return Err(Status::invalid(format!(
                "the configuration sent with the load of model '{model}' has {config_bytes} bytes, at most {CONFIG_BYTES_MAX} are \
                 taken; put a longer one into the repository"
            )));
        }
        let (done, outcome) = oneshot::channel();
        self.0.engine.load(model, options, self.peer(), move |result| drop(done.send(result)));
        outcome.await.unwrap_or_else(|_| Err(Status::internal(format!("the load of '{model}' was abandoned"))))
    }

    /// Takes a model away from new requests; with `dependents` also what only it needed.
    pub async fn unload(&self, model: &str, dependents: bool) -> Result<(), Status> {
        self.check_running()?;
        self.check_control()?;
        let (done, outcome) = oneshot::channel();
        self.0.engine.unload(model, dependents, move |result| drop(done.send(result)));
        outcome.await.unwrap_or_else(|_| Err(Status::internal(format!("the unload of '{model}' was abandoned"))))
    }

    /// The version that a request means.
    pub(crate) fn served(&self, model: &str, version: &str) -> Result<Arc<Served>, Status> {
        self.check_started()?;
        self.0.engine.find(model, version::parse(version)?)
    }
}

/// Asks the instances of all these whether they are ready. Nobody who waits for the answers keeps a model loaded: it would end on a thread
/// that serves connections.
fn ask_all(all: &[Arc<Served>]) -> Vec<ReadinessAnswer> {
    all.iter().filter_map(|served| served.ask_readiness()).collect()
}

async fn all_ready(answers: Vec<ReadinessAnswer>) -> bool {
    let mut is_ready = true;
    for answer in answers {
        is_ready &= answer.await.is_ok();
    }
    is_ready
}
