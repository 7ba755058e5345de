//! What can a client change while the server runs?

use std::sync::PoisonError;

use nerite_request::Status;
use nerite_request::setting::{LogChange, LogSettings, TraceChange, TraceSettings};

use crate::Api;

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

    /// Changes what the log shows and gives the settings that now hold.
    pub fn change_log(&self, change: LogChange) -> Result<LogSettings, Status> {
        self.0.log.change(change)
    }

    fn check_known(&self, model: &str) -> Result<(), Status> {
        if model.is_empty() { Ok(()) } else { self.0.engine.find(model, None).map(drop) }
    }
}
