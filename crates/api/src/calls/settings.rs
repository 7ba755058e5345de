//! What can a client change while the server runs?

use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings, TraceChange, TraceSettings};

use crate::{Api, Category, Protocol, Restriction};

/// Settings that clients may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changeable {
    /// What is traced.
    Trace,
    /// What is logged.
    Log,
}

impl Changeable {
    /// The calls that change them.
    fn category(self) -> Category {
        match self {
            Changeable::Trace => Category::Trace,
            Changeable::Log => Category::Logging,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Changeable::Trace => "trace",
            Changeable::Log => "log",
        }
    }
}

impl Api {
    /// Trace settings of the server (empty name) or of one model.
    pub fn trace_settings(&self, model: &str) -> Result<TraceSettings, Status> {
        self.check_running()?;
        self.check_known(model)?;
        Ok(self.0.tracer.settings(model))
    }

    /// Changes trace settings and gives those that now hold. [`Api::allow_change`] comes first.
    pub fn change_trace(&self, model: &str, change: TraceChange) -> Result<TraceSettings, Status> {
        self.check_running()?;
        self.check_known(model)?;
        self.0.tracer.change(model, change)?;
        Ok(self.0.tracer.settings(model))
    }

    /// What the log shows.
    pub fn log_settings(&self) -> LogSettings {
        self.0.log.settings()
    }

    /// Whether the client may change these settings. Where the operator put the calls behind a header, that header has decided
    /// already; else only root and the user who runs the server may.
    pub fn allow_change(&self, protocol: Protocol, settings: Changeable) -> Result<(), Status> {
        let category = settings.category();
        let is_restricted = |rule: &Restriction| rule.protocol == protocol && rule.category == category;
        if self.peer().is_operator() || self.0.options.restrictions.iter().any(is_restricted) {
            return Ok(());
        }
        let flag = match protocol {
            Protocol::Http => "--http-restricted-api",
            Protocol::Grpc => "--grpc-restricted-protocol",
        };
        Err(Status::unavailable(format!(
            "This API is restricted: root and the user who runs the server may change {} settings, {} may not; \
             {flag}={}:<key>=<value> lets in whoever sends that header",
            settings.word(),
            self.peer(),
            category.name()
        )))
    }

    /// Changes what the log shows and gives the settings that now hold. [`Api::allow_change`] comes first.
    pub fn change_log(&self, change: LogChange) -> Result<LogSettings, Status> {
        self.0.log.change(change)
    }

    fn check_known(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() { Ok(()) } else { self.0.engine.find(model, None).map(drop) }
    }
}
