//! How does a model ask another one of the same server?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nerite_config::ModelConfig;
use nerite_request::setting::LoadOptions;
use nerite_request::{Cancel, ExactlyOne, InferResponse, InputMemory, Recycled, Reply, Request, Response, Status};

use crate::{CustomMetrics, ReadinessDone};

/// Infers on the models of this server.
pub trait Infer: Send + Sync {
    /// Asks that version of a model; the highest one without a number. Every result, a refusal too, comes through the
    /// request's reply: on this thread or on another, before this returns or later.
    fn infer(&self, model: &str, version: Option<i64>, request: Request);

    /// The configuration in force of that version; of the highest one without a number.
    fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status>;

    /// The labels of the classes of its outputs; `None` where they are not known, in a process of its own.
    fn labels(&self, _model: &str, _version: Option<i64>) -> Option<Arc<ClassLabels>> {
        None
    }

    /// The input memory of that version's only instance. `None` if it has several: which of them gets a request is decided later.
    fn input_memory(&self, _model: &str, _version: Option<i64>) -> Option<Arc<dyn InputMemory>> {
        None
    }

    /// Finds out whether that version can take requests, and calls `done` once: before this returns, or on another thread later. Does not wait.
    fn ready(&self, model: &str, version: Option<i64>, done: ReadinessDone) {
        done(self.config(model, version).map(drop));
    }

    /// Loads or reloads a model, then calls `done`.
    fn load(&self, _model: &str, _options: LoadOptions, done: ModelsDone) {
        done(Err(Status::unsupported("models cannot be loaded from here")));
    }

    /// Unloads a model, then calls `done`.
    fn unload(&self, _model: &str, _dependents: bool, done: ModelsDone) {
        done(Err(Status::unsupported("models cannot be unloaded from here")));
    }
}

/// The labels of each output by class. Outputs without labels are absent.
pub type ClassLabels = BTreeMap<String, Arc<[String]>>;

/// Called once a model was loaded or unloaded, or with the error.
pub type ModelsDone = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// The models of this server, for a model that asks others. A runtime gets them when it loads a model, and may keep and clone them.
///
/// A model that asks others has no [`CostBound`](crate::CostBound), so it never runs on a thread that serves
/// connections. It waits for others at its own risk: a model that it waits for may be waiting for it.
#[derive(Clone)]
pub struct Models {
    infer: Option<Weak<dyn Infer>>,
    metrics: Arc<CustomMetrics>,
    /// Names that stand for another identifier if this model uses them. Other names are identifiers themselves.
    meanings: Arc<[(String, String)]>,
    /// The versions that a model will have, for a check before they take requests.
    coming: Option<Coming>,
}

/// The versions that a model will have when a change is made.
#[derive(Clone)]
pub struct Coming {
    /// The model's identifier.
    pub model: String,
    /// The configurations of the versions. A request without a version will get the highest one.
    pub versions: BTreeMap<i64, Arc<ModelConfig>>,
}

impl Coming {
    /// The configuration of that version; of the highest one without a number.
    fn config(&self, version: Option<i64>) -> Option<&Arc<ModelConfig>> {
        match version {
            Some(version) => self.versions.get(&version),
            None => self.versions.values().next_back(),
        }
    }
}

impl Models {
    /// The models that `infer` reaches while it exists.
    pub fn of(infer: Weak<dyn Infer>) -> Models {
        Models { infer: Some(infer), metrics: Arc::default(), meanings: Arc::default(), coming: None }
    }

    /// No models, for a model's own process and for tests.
    pub fn none() -> Models {
        Models { infer: None, metrics: Arc::default(), meanings: Arc::default(), coming: None }
    }

    /// Whether it is [`Models::none`].
    pub fn is_none(&self) -> bool {
        self.infer.is_none()
    }

    /// The same models, but each name in `meanings` means the model with the identifier behind it. Models of several
    /// repositories may have the same name.
    pub fn with_meanings(&self, meanings: &[(String, String)]) -> Models {
        Models { meanings: meanings.into(), ..self.clone() }
    }

    /// The same models, as they will be when these versions have come.
    pub fn with_coming(self, coming: Coming) -> Models {
        Models { coming: Some(coming), ..self }
    }

    /// The identifier that a name means for the asking model.
    fn meaning<'a>(&'a self, model: &'a str) -> &'a str {
        self.meanings.iter().find(|(name, _)| name == model).map_or(model, |(_, identifier)| identifier)
    }

    /// The metrics that these models made of their own.
    pub fn metrics(&self) -> &Arc<CustomMetrics> {
        &self.metrics
    }

    /// As [`Infer::config`].
    pub fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status> {
        if let Some(coming) = self.coming.as_ref().filter(|coming| coming.model == self.meaning(model)) {
            let gone = || Status::unavailable(format!("model '{model}' will not have the version that is asked for"));
            return coming.config(version).cloned().ok_or_else(gone);
        }
        match self.infer.as_ref().map(Weak::upgrade) {
            Some(Some(infer)) => infer.config(self.meaning(model), version),
            _ => Err(Status::unavailable(format!("model '{model}' cannot be asked from here"))),
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
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be asked from here")))),
        }
    }

    /// As [`Infer::infer`].
    pub fn infer(&self, model: &str, version: Option<i64>, mut request: Request) {
        let refusal = match self.infer.as_ref().map(Weak::upgrade) {
            Some(Some(infer)) => return infer.infer(self.meaning(model), version, request),
            Some(None) => Status::unavailable(format!("model '{model}' cannot be asked: the server stops")),
            None => Status::unsupported(format!("model '{model}' cannot be asked from this process")),
        };
        request.reply.refuse(refusal);
    }

    /// As [`Infer::load`].
    pub fn load(&self, model: &str, options: LoadOptions, done: ModelsDone) {
        match self.infer.as_ref().and_then(Weak::upgrade) {
            Some(infer) => infer.load(model, options, done),
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be loaded from here")))),
        }
    }

    /// As [`Infer::unload`].
    pub fn unload(&self, model: &str, dependents: bool, done: ModelsDone) {
        match self.infer.as_ref().and_then(Weak::upgrade) {
            Some(infer) => infer.unload(model, dependents, done),
            None => done(Err(Status::unavailable(format!("model '{model}' cannot be unloaded from here")))),
        }
    }

    /// Asks, and waits at most `patience` for the one response. Then the request is cancelled, whether it still waits
    /// for an instance (perhaps the one that asks) or runs already. `request` makes the request from its reply.
    pub fn infer_one(
        &self,
        model: &str,
        version: Option<i64>,
        patience: Duration,
        request: impl FnOnce(Reply) -> Request,
    ) -> Result<Recycled<InferResponse>, Status> {
        let (to, from) = sync_channel(1);
        let mut one = ExactlyOne::default();
        let reply = Reply::new(move |response: Response| {
            if let Some(outcome) = one.take(response) {
                // A response that comes too late has no receiver any more.
                let _ = to.try_send(outcome.unwrap_or_else(|not_one| Err(not_one.into())));
            }
        });
        let request = request(reply);
        let cancel: Cancel = request.cancel.clone();
        self.infer(model, version, request);
        match from.recv_timeout(patience) {
            Ok(only) => only,
            Err(RecvTimeoutError::Disconnected) => {
                Err(Status::internal(format!("model '{model}' dropped the request")))
            }
            Err(RecvTimeoutError::Timeout) => {
                cancel.cancel();
                Err(Status::unavailable(format!(
                    "model '{model}' did not answer within {} ms; give it more instances, or wait longer",
                    patience.as_millis()
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
