//! How do clients and models load and unload models?

use std::sync::{Arc, PoisonError};

use nerite_budget::Budgets;
use nerite_locks::Mutex;
use nerite_request::limits::{LOAD_BYTES_MAX, LOAD_CONFIG_BYTES_MAX};
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use super::namespaces::each;
use super::parts::Reason;
use super::{Engine, spawn};
use crate::load_admission::{Requester, UPLOAD_CURE};

impl Engine {
    /// Whether clients may load and unload models at all.
    pub fn check_client_control(&self) -> Result<(), Status> {
        self.options.control.check_client_control()
    }

    /// The memory that clients may make the server hold.
    pub fn budgets(&self) -> &Budgets {
        &self.options.budgets
    }

    /// The largest body of a load request. Err: clients may load no models here.
    pub fn load_bytes_max(&self) -> Result<u64, Status> {
        self.check_client_control()?;
        Ok(if self.allows_upload() { LOAD_BYTES_MAX } else { LOAD_CONFIG_BYTES_MAX })
    }

    /// The refusal of a load of `bytes` bytes, which is more than [`Engine::load_bytes_max`].
    pub fn load_too_large(&self, bytes: u64) -> Status {
        if self.allows_upload() {
            return Status::invalid(format!(
                "a load request has at most {LOAD_BYTES_MAX} bytes, got {bytes}; put the model into the repository"
            ));
        }
        Status::unsupported(format!(
            "a load request without files has at most {LOAD_CONFIG_BYTES_MAX} bytes, got {bytes}; {UPLOAD_CURE}"
        ))
    }

    fn allows_upload(&self) -> bool {
        self.store.options().allow_upload
    }

    /// Loads or reloads a model for that client on a new thread, then calls `done`.
    pub fn load(
        self: &Arc<Self>,
        model: &str,
        options: LoadOptions,
        peer: &Peer,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        self.load_for_requester(model, options, Requester::Client(peer), done);
    }

    /// As [`Engine::load`], for a client or a model.
    pub(crate) fn load_for_requester(
        self: &Arc<Self>,
        model: &str,
        options: LoadOptions,
        requester: Requester<'_>,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        let admit = || self.check_client_control().and_then(|()| self.admission.load(requester, model, options));
        let (options, call) = match admit() {
            Ok(admitted) => admitted,
            Err(refused) => return done(Err(refused)),
        };
        let (engine, name, peer, gone) =
            (Arc::clone(self), model.to_owned(), requester.peer().clone(), options.gone.clone());
        let reason = Reason::of_client(&peer, gone).waited_for_by(requester.waiter());
        // The load of a model is requested within its run, so it must not wait for runs.
        let waits = matches!(requester, Requester::Client(_));
        let load = move || {
            let _counted = call;
            each(&engine.to_load(&name, &options), |model| {
                engine.load_unless_kept(model, &options, &peer, &reason)?;
                if waits {
                    engine.wait_for_removed(model);
                }
                Ok(())
            })
        };
        answer_aside("nerite-load", model, load, done);
    }

    /// Unloads a model for that client and calls `done`. New requests are refused. Requests in flight are completed.
    pub fn unload(
        self: &Arc<Self>,
        model: &str,
        dependents: bool,
        peer: &Peer,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        self.unload_for_requester(model, dependents, Requester::Client(peer), done);
    }

    /// As [`Engine::unload`], for a client or a model.
    pub(crate) fn unload_for_requester(
        self: &Arc<Self>,
        model: &str,
        dependents: bool,
        requester: Requester<'_>,
        done: impl FnOnce(Result<(), Status>) + Send + 'static,
    ) {
        let admit = || self.check_client_control().and_then(|()| self.admission.unload(requester, model, dependents));
        let call = match admit() {
            Ok(call) => call,
            Err(refused) => return done(Err(refused)),
        };
        let (engine, name, waiter) = (Arc::clone(self), model.to_owned(), requester.waiter().map(str::to_owned));
        let unload = move || {
            let _counted = call;
            each(&engine.to_unload(&name), |model| engine.unload_now(model, dependents, waiter.as_deref()))
        };
        answer_aside("nerite-unload", model, unload, done);
    }
}

/// Does `work` on a new thread and passes the result to `done`; an error if there is no thread.
fn answer_aside(
    name: &str,
    model: &str,
    work: impl FnOnce() -> Result<(), Status> + Send + 'static,
    done: impl FnOnce(Result<(), Status>) + Send + 'static,
) {
    // If `spawn` fails, it drops the closure. `done` is shared, so that it can still be called with the error.
    let done = Arc::new(Mutex::new(Some(done)));
    let take = |done: &Mutex<Option<_>>| done.lock().unwrap_or_else(PoisonError::into_inner).take();
    let waiting = Arc::clone(&done);
    let started = spawn(name, move || {
        let outcome = work();
        if let Some(done) = take(&waiting) {
            done(outcome);
        }
    });
    if let Err(error) = started
        && let Some(done) = take(&done)
    {
        let text = format!("no thread ({name}) for model '{model}': {error}; raise the limit on threads");
        log::error!("{text}");
        done(Err(Status::unavailable(text)));
    }
}
