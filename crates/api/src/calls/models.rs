//! What can a client learn about the server and its models, and which models may it load?

use std::collections::HashSet;
use std::sync::Arc;

use nerite_config::ModelConfig;
use nerite_engine::{Missing, ReadinessAnswer, Served, phrase};
use nerite_request::report::{IndexEntry, ModelReport, ServerReport, StatisticsReport};
use nerite_request::setting::LoadOptions;
use nerite_request::{Code, Status};
use tokio::sync::oneshot;

use crate::audit::quoted;
use crate::calls::infer::CancelOnDrop;
use crate::refusals::RefusalReason;
use crate::tensor_reports::{input_reports, output_reports};
use crate::{Api, version};

/// The protocol extensions that are supported here, in Triton's order.
fn extensions(shared_memory: bool, gpu: bool) -> impl Iterator<Item = &'static str> {
    let order = [
        "classification",
        "sequence",
        "model_repository",
        "model_repository(unload_dependents)",
        "schedule_policy",
        "model_configuration",
        "system_shared_memory",
        "cuda_shared_memory",
        "binary_tensor_data",
        "parameters",
        "statistics",
        "trace",
        "logging",
    ];
    order.into_iter().filter(move |extension| match *extension {
        "system_shared_memory" => shared_memory,
        "cuda_shared_memory" => shared_memory && gpu,
        _ => true,
    })
}

impl Api {
    /// Whether the server is live.
    pub fn live(&self) -> bool {
        self.check_running().is_ok()
    }

    /// Whether the server is ready: it neither drains nor stops and, by default, all models that should be up are ready. Err: which model is not, and why, if the
    /// client may read that.
    pub async fn ready(&self) -> Result<(), Status> {
        self.check_models_up()?;
        if !self.inner.options.strict_readiness {
            return Ok(());
        }
        // This holds in control mode `demand` too: loaded models must be ready.
        for answer in check_all(&self.inner.engine.all()) {
            let model = answer.model().to_owned();
            answer.await.map_err(|fault| self.not_ready(&model, &format!(" is not ready: {}", fault.message)))?;
        }
        Ok(())
    }

    /// As [`Api::ready`], by the last answers of models that report their own readiness. No model is asked, so this waits for none.
    pub fn was_ready(&self) -> bool {
        let is_strict = self.inner.options.strict_readiness;
        self.check_models_up().is_ok()
            && (!is_strict || self.inner.engine.all().iter().all(|served| served.was_ready()))
    }

    /// Whether the server neither drains nor stops and, by default, all models that should be up are. Models are not asked whether they are ready.
    fn check_models_up(&self) -> Result<(), Status> {
        self.check_staying()?;
        if !self.inner.options.strict_readiness {
            return Ok(());
        }
        let missing = self.inner.engine.missing();
        if let Some(Missing { model, version, reason }) = missing.first() {
            let version = version.map_or_else(String::new, |version| format!(" version {version}"));
            let others = missing.len() - 1;
            let others =
                if others == 0 { String::new() } else { format!(" (and {others} more versions of models are not)") };
            return Err(self.not_ready(model, &format!("{version} is not up{others}: {reason}")));
        }
        Ok(())
    }

    /// The error that the server is not ready for the reason `why`, which follows the model's name. A client that may not read the states of models is told
    /// neither. A call that needs no token shows none, so with a file of tokens nobody is told.
    fn not_ready(&self, model: &str, why: &str) -> Status {
        let model = self.inner.engine.name_of(model);
        let is_told = self.may_read_states(model);
        Status::unavailable(if is_told {
            format!("model '{model}'{why}")
        } else {
            "a model is not ready; the index of the models tells which".to_owned()
        })
    }

    /// Whether a model version can take requests. Unknown models are not ready. Err for a version that is no number, and while the server drains or
    /// stops, or after its start failed.
    pub async fn model_ready(&self, model: &str, version: &str) -> Result<bool, Status> {
        self.check_staying()?;
        version::parse(version)?;
        match self.find_served(model, version) {
            Ok(served) => {
                // The answer does not keep the version loaded.
                let answer = served.check_readiness();
                drop(served);
                match answer {
                    Some(answer) => Ok(answer.await.is_ok()),
                    None => Ok(true),
                }
            }
            // A model that a request would load counts as ready. Otherwise a client that waits for readiness before its first request would wait for
            // ever.
            Err(_) => Ok(self.must_wait_for(model)),
        }
    }

    /// The server's metadata. As in Triton, also while the server is stopping and after its start failed.
    pub fn server_report(&self) -> ServerReport {
        let options = &self.inner.options;
        // Clients look for extensions they know and ignore others. One extension is the server's id. nerite's own clients compare it with the id that a
        // session socket reports, to see whether the socket belongs to this server.
        let own = Some(self.server_id()).filter(|id| !id.is_empty()).map(ServerReport::id_extension);
        let (shared_memory, gpu) = (self.check_client_shm().is_ok(), self.inner.regions.gpu().is_some());
        ServerReport {
            name: options.id.clone(),
            version: options.version.clone(),
            extensions: extensions(shared_memory, gpu).map(str::to_owned).chain(own).collect(),
        }
    }

    /// A model's metadata.
    pub fn model_report(&self, model: &str, version: &str) -> Result<ModelReport, Status> {
        self.check_running()?;
        let served = self.served(model, version)?;
        let versions = match version {
            "" => self.inner.engine.served(model).iter().map(|served| served.version()).collect(),
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

    /// Whether this text consists of a repository and a model of it, as with `--model-namespacing`.
    pub fn is_identifier(&self, text: &str) -> bool {
        self.inner.engine.is_identifier(text)
    }

    /// Whether a model of this name takes requests.
    pub fn serves(&self, model: &str) -> bool {
        !self.inner.engine.served(model).is_empty()
    }

    /// Whether a repository has a directory for a model of this name. Reads the file system.
    pub fn has_directory(&self, model: &str) -> bool {
        self.inner.engine.has_directory(model)
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
            let (all, token) = (self.inner.engine.all(), self.token());
            let is_reached = |name: &str| token.as_ref().is_none_or(|token| token.allows_model(name));
            let reached = all.iter().filter(|served| is_reached(served.name()));
            return Ok(reached.map(|served| statistics(served)).collect());
        }
        self.check_model(model)?;
        let wanted = version::parse(version)?;
        let all = self.inner.engine.served(model);
        if all.is_empty() {
            return Err(Status::invalid(format!("requested model '{model}' is not available")));
        }
        let listed: Vec<_> =
            all.iter().filter(|s| wanted.is_none_or(|v| v == s.version())).map(|s| statistics(s)).collect();
        if listed.is_empty() {
            return Err(Status::invalid(format!("requested model version is not available for model '{model}'")));
        }
        Ok(listed)
    }

    /// The models of the repositories, and their states.
    pub fn index(&self, ready_only: bool) -> Result<Vec<IndexEntry>, Status> {
        self.check_running()?;
        let mut entries = self.inner.engine.index(ready_only)?;
        if let Some(token) = self.token() {
            entries.retain(|entry| token.allows_model(&entry.name));
        }
        Ok(entries)
    }

    /// The versions that are served although the index does not list them, as in Triton: a client sent their model's files. They are in no repository.
    pub fn served_beyond(&self, listed: &[IndexEntry]) -> Vec<IndexEntry> {
        let listed: HashSet<&str> = listed.iter().map(|entry| entry.identifier.as_str()).collect();
        let token = self.token();
        let is_allowed = |model: &str| token.as_ref().is_none_or(|token| token.allows_model(model));
        let beyond = self.inner.engine.all().into_iter().filter(|served| !listed.contains(served.identifier()));
        let entry = |served: Arc<Served>| {
            let fault = served.fault().map(|fault| fault.message);
            IndexEntry {
                name: served.name().to_owned(),
                identifier: served.identifier().to_owned(),
                version: Some(served.version()),
                state: if fault.is_some() { "UNAVAILABLE" } else { "READY" },
                reason: fault.unwrap_or_default(),
            }
        };
        beyond.filter(|served| is_allowed(served.name())).map(entry).collect()
    }

    /// The largest body of a load request. Err: clients may load no models here.
    pub fn load_bytes_max(&self) -> Result<u64, Status> {
        self.check_running()?;
        self.check_control()?;
        self.inner.engine.load_bytes_max()
    }

    /// The refusal of a load of `bytes` bytes, which is more than [`Api::load_bytes_max`].
    pub fn load_too_large(&self, bytes: u64) -> Status {
        self.inner.engine.load_too_large(bytes)
    }

    /// Loads or reloads a model. Resolves when it is ready or has failed.
    pub async fn load(&self, model: &str, options: LoadOptions) -> Result<(), Status> {
        let what = format!("load model {}", quoted(model));
        if let Err(refused) = self.check_load(model, &options) {
            let outcome = Err(refused);
            self.audit(&outcome, || what);
            return outcome;
        }
        let _waits = CancelOnDrop(options.gone.clone());
        let ((done, outcome), auditor) = (oneshot::channel(), self.auditor());
        self.inner.engine.load(model, options, self.peer(), move |result| {
            // The client may have gone meanwhile.
            if let Some(auditor) = auditor {
                auditor.note(&result, || what);
            }
            drop(done.send(result));
        });
        outcome.await.unwrap_or_else(|_| Err(Status::internal(format!("the load of '{model}' was abandoned"))))
    }

    /// Whether the client's token allows this load. The engine checks what holds for all who load models.
    fn check_load(&self, model: &str, options: &LoadOptions) -> Result<(), Status> {
        self.load_bytes_max()?;
        self.check_model(model)?;
        if options.config.is_some() || !options.files.is_empty() {
            // Such a model can send requests to any other: an ensemble by its configuration, a Python model by its code.
            self.check_no_model_list(&format!("the load of model '{model}' brings files or a configuration"))?;
        }
        Ok(())
    }

    /// Unloads a model. New requests are refused. With `dependents`, also unloads the models that only this model needed.
    pub async fn unload(&self, model: &str, dependents: bool) -> Result<(), Status> {
        let what = format!("unload model {}{}", quoted(model), if dependents { " and its dependents" } else { "" });
        if let Err(refused) = self.check_unload(model, dependents) {
            let outcome = Err(refused);
            self.audit(&outcome, || what);
            return outcome;
        }
        let ((done, outcome), auditor) = (oneshot::channel(), self.auditor());
        self.inner.engine.unload(model, dependents, self.peer(), move |result| {
            if let Some(auditor) = auditor {
                auditor.note(&result, || what);
            }
            drop(done.send(result));
        });
        outcome.await.unwrap_or_else(|_| Err(Status::internal(format!("the unload of '{model}' was abandoned"))))
    }

    fn check_unload(&self, model: &str, dependents: bool) -> Result<(), Status> {
        self.check_running()?;
        self.check_control()?;
        self.check_model(model)?;
        if dependents {
            self.check_no_model_list(&format!("the unload of model '{model}' unloads what it is made of"))?;
        }
        Ok(())
    }

    /// The version that a request names. A request for an unknown one is counted as refused, unless it will load the model.
    pub(crate) fn served(&self, model: &str, version: &str) -> Result<Arc<Served>, Status> {
        self.find_served(model, version).inspect_err(|error| {
            if error.code == Code::NotFound && !self.must_wait_for(model) {
                self.count_refusal(RefusalReason::UnknownModel);
            }
        })
    }

    /// As [`Api::served`], without a count. The error says why the model is not there, if the client may read that.
    fn find_served(&self, model: &str, version: &str) -> Result<Arc<Served>, Status> {
        self.check_started()?;
        self.check_model(model)?;
        self.inner.engine.find(model, version::parse(version)?).map_err(|error| {
            let why = if self.may_read_states(model) { self.inner.engine.failure(model) } else { None };
            match why {
                Some(why) => Status::new(error.code, format!("{}; {}", error.message, phrase::last_load_failed(&why))),
                None => error,
            }
        })
    }
}

fn statistics(served: &Served) -> StatisticsReport {
    StatisticsReport { memory: served.memory_usage(), ..served.statistics() }
}

/// Asks the instances of all these versions whether they are ready. The answers do not keep the versions loaded: otherwise a version could end on a
/// front thread.
fn check_all(all: &[Arc<Served>]) -> Vec<ReadinessAnswer> {
    all.iter().filter_map(|served| served.check_readiness()).collect()
}
