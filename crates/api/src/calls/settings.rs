//! Which settings can a client change while the server runs?

use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings, TraceChange, TraceSettings, log_names};

use crate::audit::quoted;
use crate::logging::LogSwitches;
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
        let allowed = known.and_then(|()| match model {
            "" => self.check_no_model_list("the trace settings of the server hold for all models"),
            _ => Ok(()),
        });
        let outcome = allowed.and_then(|()| self.inner.tracer.change(model, change));
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
        let allowed = self.check_no_model_list("the log settings hold for all models");
        let allowed = allowed.and_then(|()| LogSwitches::check(&change));
        // The line is written before the change, so that it goes to the log with the old settings.
        self.audit(&allowed, || format!("change the log settings: {}", in_words(&change)));
        allowed?;
        self.inner.log.change(change)
    }

    fn check_known(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() {
            return Ok(());
        }
        self.check_model(model)?;
        self.inner.engine.find(model, None).map(drop)
    }
}

/// The settings that change, by their names over HTTP. A client chooses the text of the format.
fn in_words(change: &LogChange) -> String {
    let LogChange { file, info, warning, error, verbose_level, format } = change;
    let switch = |on: &Option<bool>| on.map(|on| on.to_string());
    let named = [
        (log_names::FILE, file.as_deref().map(quoted)),
        (log_names::INFO, switch(info)),
        (log_names::WARNING, switch(warning)),
        (log_names::ERROR, switch(error)),
        (log_names::VERBOSE_LEVEL, verbose_level.map(|level| level.to_string())),
        (log_names::FORMAT, format.as_deref().map(quoted)),
    ];
    let named: Vec<_> = named.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
    named.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_log_names_what_changes() {
        assert_eq!(in_words(&LogChange::default()), "");
        let change = LogChange { info: Some(false), verbose_level: Some(2), ..LogChange::default() };
        assert_eq!(in_words(&change), "log_info=false log_verbose_level=2");
        let change = LogChange { format: Some("x\ny".into()), ..LogChange::default() };
        assert_eq!(in_words(&change), format!("log_format={}", quoted("x\ny")));
    }
}
