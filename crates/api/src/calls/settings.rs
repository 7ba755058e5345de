//! What can a client change while the server runs?

use std::sync::PoisonError;

use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings, TraceChange, TraceSettings};

use crate::{Api, Category, Protocol, Restriction};

impl Api {
    /// Trace settings of the server (empty name) or of one model.
    pub fn trace_settings(&self, model: &str) -> Result<TraceSettings, Status> {
        self.check_running()?;
        self.check_known(model)?;
        Ok(self.0.trace.lock().unwrap_or_else(PoisonError::into_inner).settings(model))
    }

    /// Changes trace settings and gives those that now hold.
    pub fn change_trace(&self, model: &str, change: TraceChange) -> Result<TraceSettings, Status> {
        self.check_running()?;
        self.check_known(model)?;
        let mut trace = self.0.trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.change(model, change)?;
        Ok(trace.settings(model))
    }

    /// What the log shows.
    pub fn log_settings(&self) -> LogSettings {
        self.0.log.settings()
    }

    /// Whether the client may change what the log shows. Where the operator put the logging calls behind a header, that header
    /// has decided already; else only root and the user who runs the server may.
    pub fn allow_log_change(&self, protocol: Protocol) -> Result<(), Status> {
        let is_restricted = |rule: &Restriction| rule.protocol == protocol && rule.category == Category::Logging;
        if self.peer().is_operator() || self.0.options.restrictions.iter().any(is_restricted) {
            return Ok(());
        }
        let flag = match protocol {
            Protocol::Http => "--http-restricted-api",
            Protocol::Grpc => "--grpc-restricted-protocol",
        };
        Err(Status::unavailable(format!(
            "This API is restricted: root and the user who runs the server may change log settings, {} may not; \
             {flag}=logging:<key>=<value> lets in whoever sends that header",
            self.peer()
        )))
    }

    /// Changes what the log shows and gives the settings that now hold. [`Api::allow_log_change`] comes first.
    pub fn change_log(&self, change: LogChange) -> Result<LogSettings, Status> {
        self.0.log.change(change)
    }

    fn check_known(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() { Ok(()) } else { self.0.engine.find(model, None).map(drop) }
    }
}
