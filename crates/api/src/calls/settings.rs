//! Which settings can a client change while the server runs?

use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings, TraceChange, TraceSettings};

use crate::audit::quoted;
use crate::{Api, Category, Protocol, Restriction};

/// Settings that clients may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changeable {
    /// The trace settings.
    Trace,
    /// The log settings.
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
        Ok(self.inner.tracer.settings(model))
    }

    /// Changes trace settings and returns the new ones. Call [`Api::allow_change`] before.
    pub fn change_trace(&self, model: &str, change: TraceChange) -> Result<TraceSettings, Status> {
        let known = self.check_running().and_then(|()| self.check_known(model));
        let outcome = known.and_then(|()| self.inner.tracer.change(model, change));
        self.audit(&outcome, || format!("change the trace settings of model {}", quoted(model)));
        outcome?;
        Ok(self.inner.tracer.settings(model))
    }

    /// The log settings.
    pub fn log_settings(&self) -> LogSettings {
        self.inner.log.settings()
    }

    /// Whether the client may change these settings. If the server has tokens, the client's token decides. If the operator requires a header for the
    /// calls, the header was checked already. Otherwise only root and the user who runs the server may.
    pub fn allow_change(&self, protocol: Protocol, settings: Changeable) -> Result<(), Status> {
        let category = settings.category();
        if let Some(by_token) = self.may_control(category) {
            return by_token;
        }
        let is_restricted = |rule: &Restriction| rule.protocol == protocol && rule.category == category;
        if self.peer().is_operator() || self.inner.options.restrictions.iter().any(is_restricted) {
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

    /// Changes the log settings and returns the new ones. Call [`Api::allow_change`] before.
    pub fn change_log(&self, change: LogChange) -> Result<LogSettings, Status> {
        let what = format!("change the log settings: {change:?}");
        let outcome = self.inner.log.change(change);
        self.audit(&outcome, || what);
        outcome
    }

    fn check_known(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() {
            return Ok(());
        }
        self.check_model(model)?;
        self.inner.engine.find(model, None).map(drop)
    }
}
