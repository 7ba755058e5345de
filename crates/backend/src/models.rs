//! How does a model send requests to another model of the same server?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nerite_config::ModelConfig;
use nerite_request::setting::LoadOptions;
use nerite_request::{Cancel, ExactlyOne, InferResponse, InputMemory, Recycled, Reply, Request, Response, Status};

use crate::{CustomMetrics, ReadinessDone};

/// Runs requests on the models of this server.
pub trait Infer: Send + Sync {
    /// Sends a request to that version of a model, or to the highest version if `version` is `None`. Every result goes to the request's reply,
    /// including a refusal. It may arrive on this thread or on another one, before or after this returns.
    fn infer(&self, model: &str, version: Option<i64>, request: Request);

    /// The configuration in force of that version, or of the highest one if `version` is `None`.
    fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status>;

    /// The labels of the classes of that version's outputs. `None` in a model's own process, which does not know them.
    fn labels(&self, _model: &str, _version: Option<i64>) -> Option<Arc<ClassLabels>> {
        None
    }

    /// The input memory of an instance of that version. A request with an input in this memory runs on this instance, if the instance is idle when
    /// the request arrives.
    fn input_memory(&self, _model: &str, _version: Option<i64>) -> Option<Arc<dyn InputMemory>> {
        None
    }

    /// Finds out whether that version can take requests, and calls `done` once: before this returns, or on another thread later. Does not wait.
    fn ready(&self, model: &str, version: Option<i64>, done: ReadinessDone) {
        done(self.config(model, version).map(drop));
    }

    /// Loads or reloads a model for the model `requester`, then calls `done`.
    fn load(&self, _model: &str, _options: LoadOptions, _asker: &RequestingModel<'_>, done: ModelsDone) {
        done(Err(Status::unsupported("models cannot be loaded from here")));
    }

    /// Unloads a model for the model `requester`, then calls `done`.
    fn unload(&self, _model: &str, _dependents: bool, _asker: &RequestingModel<'_>, done: ModelsDone) {
        done(Err(Status::unsupported("models cannot be unloaded from here")));
    }
}

/// A model that requests a load or an unload.
#[derive(Clone, Copy, Debug)]
pub struct RequestingModel<'a> {
    /// Its identifier.
    pub model: &'a str,
    /// Whether its own load waits for the call.
    pub is_within_load: bool,
    /// If it runs in a sandbox, the names of the models that it may load and unload.
    pub confined_to: Option<&'a [String]>,
}

impl RequestingModel<'_> {
    /// The model whose load waits for the call.
    pub fn waiter(&self) -> Option<&str> {
        Some(self.model).filter(|model| self.is_within_load && !model.is_empty())
    }
}

/// The labels of each output by class. Outputs without labels are absent.
pub type ClassLabels = BTreeMap<String, Arc<[String]>>;

/// Called after a model was loaded or unloaded, or with the error if that failed.
pub type ModelsDone = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// The models of this server, for a model that makes nested requests. A runtime gets them when it loads a model, and may keep and clone them. The run time of a
/// model that makes nested requests has no bound ([`CostBound`](crate::CostBound)), so it never runs on a thread that serves connections. The server does not
/// prevent deadlocks between models: two models may wait for each other.
#[derive(Clone)]
pub struct Models {
    infer: Option<Weak<dyn Infer>>,
    metrics: Arc<CustomMetrics>,
    /// Pairs of a name and the identifier that the name stands for when this model uses it. Any other name is an identifier itself.
    meanings: Arc<[(String, String)]>,
    /// The versions that a model will have after a change, for a check before they take requests.
    pending: Option<PendingVersions>,
    /// The identifier of the model that uses this value. Empty if there is none.
    model: Arc<str>,
    /// Whether the load of that model waits for the calls that are made with this value.
    is_within_load: bool,
    /// If that model runs in a sandbox, the names of the models that it may load and unload.
    confined_to: Option<Arc<[String]>>,
}

/// The versions that a model will have after a change that is planned.
#[derive(Clone)]
pub struct PendingVersions {
    /// The model's identifier.
    pub model: String,
    /// The configurations of the versions. A request without a version will get the highest one.
    pub versions: BTreeMap<i64, Arc<ModelConfig>>,
}

impl PendingVersions {
    /// The configuration of that version, or of the highest one if `version` is `None`.
    fn config(&self, version: Option<i64>) -> Option<&Arc<ModelConfig>> {
        match version {
            Some(version) => self.versions.get(&version),
            None => self.versions.values().next_back(),
        }
    }
}

impl Models {
    /// The models of `infer`. They are available until `infer` is dropped.
    pub fn of(infer: Weak<dyn Infer>) -> Models {
        Models { infer: Some(infer), ..Models::none() }
    }

    /// No models, for a model's own process and for tests.
    pub fn none() -> Models {
        Models {
            infer: None,
            metrics: Arc::default(),
            meanings: Arc::default(),
            pending: None,
            model: Arc::default(),
            is_within_load: false,
            confined_to: None,
        }
    }

    /// Whether this is [`Models::none`].
    pub fn is_none(&self) -> bool {
        self.infer.is_none()
    }

    /// The same models, with aliases: each pair in `meanings` is a name and the identifier of the model that the name stands for. Models of several
    /// repositories may have the same name.
    pub fn with_aliases(&self, meanings: &[(String, String)]) -> Models {
        Models { meanings: meanings.into(), ..self.clone() }
    }

    /// The same models, for the model with this identifier.
    pub fn for_model(self, identifier: &str) -> Models {
        Models { model: identifier.into(), ..self }
    }

    /// The same models, for calls that the load of this model waits for. A load or unload that would have to wait for that same load is refused.
    #[must_use]
    pub fn within_load(&self) -> Models {
        Models { is_within_load: true, ..self.clone() }
    }

    /// The same models, for a model in a sandbox, which may load and unload the models of these names only.
    #[must_use]
    pub fn confined_to(&self, names: &[String]) -> Models {
        Models { confined_to: Some(names.into()), ..self.clone() }
    }

    fn requester(&self) -> RequestingModel<'_> {
        let Models { model, is_within_load, confined_to, .. } = self;
        RequestingModel { model, is_within_load: *is_within_load, confined_to: confined_to.as_deref() }
    }

    /// The same models, but with the versions of one model that will be loaded.
    pub fn with_pending_versions(self, pending: PendingVersions) -> Models {
        Models { pending: Some(pending), ..self }
    }

    /// The identifier that a name stands for when this model uses it.
    fn meaning<'a>(&'a self, model: &'a str) -> &'a str {
        self.meanings.iter().find(|(name, _)| name == model).map_or(model, |(_, identifier)| identifier)
    }

    /// The custom metrics that these models made.
    pub fn metrics(&self) -> &Arc<CustomMetrics> {
        &self.metrics
    }

    /// As [`Infer::config`].
    pub fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status> {
        if let Some(pending) = self.pending.as_ref().filter(|pending| pending.model == self.meaning(model)) {
            let gone = || Status::unavailable(format!("model '{model}' will not have the requested version"));
            return pending.config(version).cloned().ok_or_else(gone);
        }
        match self.infer.as_ref().map(Weak::upgrade) {
            Some(Some(infer)) => infer.config(self.meaning(model), version),
            _ => Err(Status::unavailable(format!("model '{model}' cannot be called from here"))),
        }
    }

    /// As [`Infer::labels`].
    pub fn labels(&self, model: &str, version: Option<i64>) -> Option<Arc<ClassLabels>> {
        self.infer.as_ref().and_then(Weak::upgrade)?.labels(self.meaning(model), version)
    }

    /// As [`Infer::input_memory`].
    pub fn input_memory(&self, model: &str, version: Option<i64>) -> Option<Arc<dyn InputMemory>> {
        self.infer.as_ref().and_then(Weak::upgrade)?.input_memory(self.meaning(model), version)
    }

    /// As [`Infer::ready`].
    pub fn ready(&self, model: &str, version: Option<i64>, done: ReadinessDone) {
        match self.infer.as_ref().and_then(Weak::upgrade) {
            Some(infer) => infer.ready(self.meaning(model), version, done),
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be called from here")))),
        }
    }

    /// As [`Infer::infer`].
    pub fn infer(&self, model: &str, version: Option<i64>, mut request: Request) {
        let refusal = match self.infer.as_ref().map(Weak::upgrade) {
            Some(Some(infer)) => return infer.infer(self.meaning(model), version, request),
            Some(None) => Status::unavailable(format!("model '{model}' cannot be called: the server stops")),
            None => Status::unsupported(format!("model '{model}' cannot be called from this process")),
        };
        request.reply.refuse(refusal);
    }

    /// As [`Infer::load`].
    pub fn load(&self, model: &str, options: LoadOptions, done: ModelsDone) {
        match self.infer.as_ref().and_then(Weak::upgrade) {
            Some(infer) => infer.load(model, options, &self.requester(), done),
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be loaded from here")))),
        }
    }

    /// As [`Infer::unload`].
    pub fn unload(&self, model: &str, dependents: bool, done: ModelsDone) {
        match self.infer.as_ref().and_then(Weak::upgrade) {
            Some(infer) => infer.unload(model, dependents, &self.requester(), done),
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be unloaded from here")))),
        }
    }

    /// Sends a request, and waits at most `timeout` for its one response. After the timeout the request is cancelled. It may already run then, or
    /// still wait for an instance, even for that of the caller. `request` makes the request from its reply.
    pub fn infer_one(
        &self,
        model: &str,
        version: Option<i64>,
        timeout: Duration,
        request: impl FnOnce(Reply) -> Request,
    ) -> Result<Recycled<InferResponse>, Status> {
        let (to, from) = sync_channel(1);
        let mut one = ExactlyOne::default();
        let reply = Reply::new(move |response: Response| {
            if let Some(outcome) = one.take(response) {
                // A response after the timeout has no receiver any more.
                let _ = to.try_send(outcome.unwrap_or_else(|not_one| Err(not_one.into())));
            }
        });
        let request = request(reply);
        let cancel: Cancel = request.cancel.clone();
        self.infer(model, version, request);
        match from.recv_timeout(timeout) {
            Ok(only) => only,
            Err(RecvTimeoutError::Disconnected) => {
                Err(Status::internal(format!("model '{model}' dropped the request")))
            }
            Err(RecvTimeoutError::Timeout) => {
                cancel.cancel();
                Err(Status::unavailable(format!(
                    "model '{model}' did not answer within {} ms; give it more instances, or wait longer",
                    timeout.as_millis()
                )))
            }
        }
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.infer.is_some() { "Models" } else { "Models(none)" })
    }
}
