//! How small can a backend be that both nerite and Triton load?
//!
//! Each input INPUT… comes back as output OUTPUT…, straight from the client's place to the client's place. A model with the parameter
//! `fail`, `panic`, `refuse` or `short` shows what becomes of such a thing.
#![forbid(unsafe_code)]

use std::sync::Arc;

use nerite_backend_sdk::{
    Backend, BackendContext, Error, Instance, InstanceContext, Level, Model, ModelContext, Request, Response, log,
};

/// The backend: it has no settings.
struct Identity;

/// What the model's author chose.
struct Settings {
    config: String,
}

/// A model, and each of its instances.
struct Echo(Arc<Settings>);

impl Backend for Identity {
    type Model = Echo;

    fn initialize(context: &BackendContext<'_>) -> Result<Identity, Error> {
        log(Level::Info, &format!("backend {} lies in {}", context.name()?, context.directory()?));
        Ok(Identity)
    }

    fn load(&self, context: &ModelContext<'_>) -> Result<Echo, Error> {
        let config = context.config()?;
        if config.contains(r#""refuse""#) {
            return Err(Error::invalid(format!("model {} is refused on purpose", context.name()?)));
        }
        Ok(Echo(Arc::new(Settings { config })))
    }
}

impl Model for Echo {
    type Instance = Echo;

    fn instance(&self, _: &InstanceContext<'_>) -> Result<Echo, Error> {
        Ok(Echo(Arc::clone(&self.0)))
    }
}

impl Instance for Echo {
    fn infer(&mut self, request: &Request, response: &mut Response) -> Result<(), Error> {
        if self.0.config.contains(r#""fail""#) {
            return Err(Error::invalid(format!("request '{}' fails on purpose", request.id()?)));
        }
        assert!(!self.0.config.contains(r#""panic""#), "on purpose");
        for input in request.inputs()? {
            let name = input.name().replace("INPUT", "OUTPUT");
            if request.wants(&name)? {
                let mut output = response.output(&name, input.datatype(), input.shape(), input.len())?;
                if !self.0.config.contains(r#""short""#) {
                    output.copy_from(&input)?;
                }
            }
        }
        Ok(())
    }
}

nerite_backend_sdk::export_backend!(Identity);
