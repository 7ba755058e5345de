//! How do models of this server make requests of others?

use std::sync::Arc;

use nerite_backend::{ClassLabels, Infer, ModelsDone, ReadinessDone, RequestingModel};
use nerite_config::ModelConfig;
use nerite_request::setting::LoadOptions;
use nerite_request::{InputMemory, Request, Status};

use super::Engine;
use crate::admission::Admission;
use crate::limits::ADMISSIONS_MAX;
use crate::load_admission::Requester;
use crate::served::Served;

impl Infer for Engine {
    fn infer(&self, model: &str, version: Option<i64>, mut request: Request) {
        // A model that is being unloaded still serves the ensembles that are unloaded with it.
        let leaving = || self.leaving(&self.identifier(model).ok()?, version);
        let find = || self.find(model, version).or_else(|refused| leaving().ok_or(refused));
        match admit(find) {
            Ok(admission) => {
                self.note_nested_use(model);
                admission.check_and_submit(request);
            }
            Err(status) => request.reply.refuse(status),
        }
    }

    fn config(&self, model: &str, version: Option<i64>) -> Result<Arc<ModelConfig>, Status> {
        self.find(model, version).map(|served| Arc::clone(served.config()))
    }

    fn labels(&self, model: &str, version: Option<i64>) -> Option<Arc<ClassLabels>> {
        self.find(model, version).ok().map(|served| Arc::clone(served.all_labels()))
    }

    fn input_memory(&self, model: &str, version: Option<i64>) -> Option<Arc<dyn InputMemory>> {
        self.find(model, version).ok()?.input_memory()
    }

    fn ready(&self, model: &str, version: Option<i64>, done: ReadinessDone) {
        match self.find(model, version).map(|served| served.check_readiness()) {
            Ok(Some(answer)) => answer.then(done),
            Ok(None) => done(Ok(())),
            Err(status) => done(Err(status)),
        }
    }

    fn load(&self, model: &str, options: LoadOptions, requester: &RequestingModel<'_>, done: ModelsDone) {
        match self.this.upgrade() {
            Some(engine) => engine.load_for_requester(model, options, Requester::Model(requester), done),
            None => done(Err(Status::unavailable("the server stops"))),
        }
    }

    fn unload(&self, model: &str, dependents: bool, requester: &RequestingModel<'_>, done: ModelsDone) {
        match self.this.upgrade() {
            Some(engine) => engine.unload_for_requester(model, dependents, Requester::Model(requester), done),
            None => done(Err(Status::unavailable("the server stops"))),
        }
    }
}

/// Admits a request to the version that `find` returns. If that version ends at this moment, `find` is called again.
pub(super) fn admit(find: impl Fn() -> Result<Arc<Served>, Status>) -> Result<Admission, Status> {
    for _ in 0..ADMISSIONS_MAX {
        if let Some(admission) = Admission::to(&find()?) {
            return Ok(admission);
        }
    }
    Err(Status::unavailable("the model is replaced again and again; ask once more"))
}
