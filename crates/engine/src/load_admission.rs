//! May this load or unload begin?
//!
//! Each load and each unload passes this check, whoever requests it: a client over any protocol, the page, a program that uses the server as a
//! library, or a model.

use std::sync::Arc;

use nerite_backend::RequestingModel;
use nerite_budget::Budgets;
use nerite_request::limits::CONFIG_BYTES_MAX;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, Status};

use crate::control_calls::{ControlCall, ControlCalls};

/// Charged for a model that a load request describes, beside the configuration and the files.
const SENT_MODEL_BYTES: usize = 64 << 10;
/// Bytes that the server keeps for each byte of a configuration: the parsed messages, once as they were sent and once completed.
const CONFIG_GROWTH: usize = 8;
/// Charged for a file beside its path: its entries in the model's directory and in the server's tables.
const FILE_BYTES: usize = 512;

/// What a user can do if the upload of files is refused.
pub(crate) const UPLOAD_CURE: &str =
    "put the model into the repository, or start the server with --allow-model-upload=true";

/// The setting of a backend that lists the models which its confined models may load and unload.
const LOADABLE: &str = "sandbox-models";

/// Who requests a load or an unload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Requester<'a> {
    Client(&'a Peer),
    Model(&'a RequestingModel<'a>),
}

impl<'a> Requester<'a> {
    /// The peer that pays. All models are one peer.
    pub fn peer(&self) -> &'a Peer {
        match self {
            Requester::Client(peer) => peer,
            Requester::Model(_) => &Peer::Unknown,
        }
    }

    /// The model whose load waits for the call.
    pub fn waiter(&self) -> Option<&'a str> {
        match self {
            Requester::Client(_) => None,
            Requester::Model(model) => model.waiter(),
        }
    }

    /// Refuses what a sandbox does not let the requester do: any `call` of a model that the operator does not list, and what `more` says the call does.
    fn check_sandbox(&self, call: &str, model: &str, more: Option<&str>) -> Result<(), Status> {
        let Requester::Model(RequestingModel { model: requester, confined_to: Some(names), .. }) = self else {
            return Ok(());
        };
        if let Some(more) = more {
            return Err(Status::unsupported(format!(
                "model '{requester}' runs in a sandbox, so its {call} of model '{model}' must not {more}"
            )));
        }
        if names.iter().any(|name| name == model) {
            return Ok(());
        }
        Err(Status::unsupported(format!(
            "model '{requester}' runs in a sandbox, which does not let it {call} model '{model}'; list that name in the setting {LOADABLE} of its backend"
        )))
    }
}

/// Admits loads and unloads.
#[derive(Debug)]
pub(crate) struct LoadAdmission {
    /// Whether a load may bring files.
    allow_upload: bool,
    budgets: Budgets,
    calls: ControlCalls,
}

impl LoadAdmission {
    pub fn new(allow_upload: bool, budgets: Budgets) -> LoadAdmission {
        LoadAdmission { allow_upload, budgets, calls: ControlCalls::default() }
    }

    /// Admits a load. Counts it until the returned call is dropped, and charges the requester for what the load brings. The contents of files are on disk,
    /// and are not charged.
    pub fn load(
        &self,
        requester: Requester<'_>,
        model: &str,
        options: LoadOptions,
    ) -> Result<(LoadOptions, ControlCall), Status> {
        let (config_bytes, count) = (options.config.as_ref().map_or(0, String::len), options.files.len());
        let brings = match (count, &options.config) {
            (1.., _) => Some("bring files"),
            (0, Some(_)) => Some("bring a configuration"),
            (0, None) => None,
        };
        requester.check_sandbox("load", model, brings)?;
        if count > 0 && !self.allow_upload {
            return Err(Status::unsupported(format!(
                "the load of model '{model}' brings {count} files, and this server takes none from clients; {UPLOAD_CURE}"
            )));
        }
        if config_bytes > CONFIG_BYTES_MAX {
            return Err(Status::invalid(format!(
                "the configuration sent with the load of model '{model}' has {config_bytes} bytes, at most {CONFIG_BYTES_MAX} are \
                 taken; put a longer one into the repository"
            )));
        }
        let call = self.calls.begin(requester.peer())?;
        if brings.is_none() {
            return Ok((options, call));
        }
        let files = options.files.iter().map(|(path, _)| FILE_BYTES + path.len()).sum::<usize>();
        let bytes = SENT_MODEL_BYTES + config_bytes * CONFIG_GROWTH + files;
        let charge = self.budgets.of_peer(&requester.peer().to_string()).charge(bytes);
        let charge = Some(Arc::new(charge.map_err(|over| Status::unavailable(over.to_string()))?));
        Ok((LoadOptions { charge, ..options }, call))
    }

    /// Admits an unload, and counts it until the returned call is dropped.
    pub fn unload(&self, requester: Requester<'_>, model: &str, dependents: bool) -> Result<ControlCall, Status> {
        requester.check_sandbox("unload", model, dependents.then_some("unload what that model is made of"))?;
        self.calls.begin(requester.peer())
    }
}
