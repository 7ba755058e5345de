//! How does a backend read the properties of other models, and load and unload them?

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use nerite_config::to_json;
use nerite_request::Status;
use nerite_request::setting::LoadOptions;

use super::exports;
use super::inference_request::version_of;
use crate::abi::{List, Out, Text, bytes_at};
use crate::fault::Fault;
use crate::load_waits;
use crate::objects::{Message, ParameterObject, ServerObject};
use crate::table::Handle;

type Server = Handle<ServerObject>;

/// How a model batches: not along the first dimension, or along it.
const BATCH_UNKNOWN: u32 = 1;
const BATCH_FIRST_DIM: u32 = 2;
/// How many responses a request has: one, or any number.
const ONE_TO_ONE: u32 = 1;
const DECOUPLED: u32 = 2;
/// The only version of configurations that Triton has.
const CONFIG_VERSION: u32 = 1;
/// The prefix of a parameter that is a file.
const FILE: &str = "file:";

/// The options of a load, from parameters in Triton's form.
fn options(parameters: &[Handle<ParameterObject>]) -> Result<LoadOptions, Fault> {
    let mut options = LoadOptions::default();
    for parameter in parameters {
        let parameter = parameter.get()?;
        match (parameter.name(), parameter.name().strip_prefix(FILE)) {
            ("config", _) => {
                let text = parameter.text();
                options.config =
                    Some(text.ok_or_else(|| {
                        Status::invalid("Config parameter 'config' must have string type for its value")
                    })?);
            }
            (name, Some(path)) => {
                let found = parameter.bytes();
                let (base, bytes) = found.ok_or_else(|| {
                    Status::invalid(format!("File parameter '{name}' must have bytes type for its value"))
                })?;
                options.files.push((path.to_owned(), Arc::new(bytes_at(base, bytes)?)));
            }
            (name, None) => {
                return Err(Status::invalid(format!(
                    "Unrecognized load parameter '{name}'; there are 'config' and 'file:<path>'"
                ))
                .into());
            }
        }
    }
    Ok(options)
}

/// Calls `begin`, and waits for its end.
fn wait(begin: impl FnOnce(nerite_backend::ModelsDone)) -> Result<(), Fault> {
    let (sender, outcome) = sync_channel(1);
    // The receiver is gone only if this thread has panicked.
    begin(Box::new(move |done| drop(sender.send(done))));
    let lost = |_| Err(Status::unavailable("the server stops"));
    outcome.recv().unwrap_or_else(lost).map_err(Fault::from)
}

fn load(server: &ServerObject, function: &str, model: &str, options: LoadOptions) -> Result<(), Fault> {
    if let Some(calls) = server.program() {
        return Ok(calls.load(model, options)?);
    }
    let models = server.models(function)?;
    let _waiting = load_waits::begin("load", model)?;
    wait(|done| models.load(model, options, done))
}

fn unload(server: &ServerObject, function: &str, model: &str, dependents: bool) -> Result<(), Fault> {
    if let Some(calls) = server.program() {
        return Ok(calls.unload(model, dependents)?);
    }
    let models = server.models(function)?;
    let _waiting = load_waits::begin("unload", model)?;
    wait(|done| models.unload(model, dependents, done))
}

exports! {
    "TRITONSERVER_ServerIsLive" = is_live(server: Server, is_live: Out<bool>) {
        is_live.put(false)?;
        let server = server.get()?;
        // A backend runs in the server, so the server is live.
        is_live.put(server.program().map_or(Ok(true), |calls| calls.is_live())?)?;
    }

    "TRITONSERVER_ServerModelIsReady" = model_is_ready(server: Server, model: Text, version: i64, is_ready: Out<bool>) {
        is_ready.put(false)?;
        let (server, model) = (server.get()?, model.read()?);
        is_ready.put(match server.program() {
            Some(calls) => calls.is_model_ready(&model, version)?,
            None => server.models("TRITONSERVER_ServerModelIsReady")?.config(&model, version_of(version)).is_ok(),
        })?;
    }

    "TRITONSERVER_ServerModelBatchProperties" =
        model_batch_properties(server: Server, model: Text, version: i64, flags: Out<u32>, also: Out<*const c_void>) {
        let server = server.get()?;
        let models = server.models("TRITONSERVER_ServerModelBatchProperties")?;
        let config = models.config(&model.read()?, version_of(version))?;
        flags.put(if config.batches() { BATCH_FIRST_DIM } else { BATCH_UNKNOWN })?;
        also.put_unless_null(std::ptr::null());
    }

    "TRITONSERVER_ServerModelTransactionProperties" =
        model_transaction_properties(server: Server, model: Text, version: i64, flags: Out<u32>, also: Out<*const c_void>) {
        let server = server.get()?;
        let models = server.models("TRITONSERVER_ServerModelTransactionProperties")?;
        let config = models.config(&model.read()?, version_of(version))?;
        flags.put(if config.decoupled() { DECOUPLED } else { ONE_TO_ONE })?;
        also.put_unless_null(std::ptr::null());
    }

    "TRITONSERVER_ServerModelConfig" =
        model_config(server: Server, model: Text, version: i64, config_version: u32, config: Out<Handle<Message>>) {
        if config_version != CONFIG_VERSION {
            let text = format!("model configuration version {config_version} not supported, supported versions are: {CONFIG_VERSION}");
            return Err(Status::invalid(text).into());
        }
        let server = server.get()?;
        let found = server.models("TRITONSERVER_ServerModelConfig")?.config(&model.read()?, version_of(version))?;
        config.put(Handle::to(Arc::new(Message::new(to_json(&found))))?)?;
    }

    "TRITONSERVER_ServerLoadModel" = load_model(server: Server, model: Text) {
        let (server, model) = (server.get()?, model.read()?);
        load(&server, "TRITONSERVER_ServerLoadModel", &model, LoadOptions::default())?;
    }

    "TRITONSERVER_ServerLoadModelWithParameters" =
        load_model_with_parameters(server: Server, model: Text, parameters: List<Handle<ParameterObject>>, count: u64) {
        let (server, model) = (server.get()?, model.read()?);
        let options = options(&parameters.read(count)?)?;
        load(&server, "TRITONSERVER_ServerLoadModelWithParameters", &model, options)?;
    }

    "TRITONSERVER_ServerUnloadModel" = unload_model(server: Server, model: Text) {
        let (server, model) = (server.get()?, model.read()?);
        unload(&server, "TRITONSERVER_ServerUnloadModel", &model, false)?;
    }

    "TRITONSERVER_ServerUnloadModelAndDependents" = unload_model_and_dependents(server: Server, model: Text) {
        let (server, model) = (server.get()?, model.read()?);
        unload(&server, "TRITONSERVER_ServerUnloadModelAndDependents", &model, true)?;
    }
}
