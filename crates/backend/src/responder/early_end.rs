//! Must a request end before its model has computed the result?

use std::sync::Arc;

use nerite_request::Cancel;

use super::{Ended, Responder};
use crate::stop::EarlyEnd;

impl Responder {
    /// Whether the client has gone, for a model that wants to know. A runtime that ends the request by itself checks [`Responder::is_stopped`]
    /// instead.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The client's cancellation flag, for a runtime whose model checks it during a run. If the request runs on without its client, the flag's
    /// callback starts the time until [`Responder::stop`] is set. Only a runtime that never ends a run by itself may replace this callback.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Whether the request must end early. A runtime should check this between long steps.
    pub fn is_stopped(&self) -> bool {
        self.stop().is_cancelled()
    }

    /// The flag that is set when the request is to end early. That is when its client goes away, or some time later if the request runs on.
    pub fn stop(&self) -> &Cancel {
        self.early_end.as_ref().map_or(&self.cancel, |end| end.stop())
    }

    /// As [`crate::Job::end_by`].
    pub(crate) fn end_by(&mut self, end: Arc<dyn EarlyEnd>) {
        self.early_end = Some(end);
    }

    /// As [`crate::Job::outlasts_client`].
    pub(crate) fn outlasts_client(&self) -> bool {
        self.early_end.is_some()
    }

    /// The arguments of the end's callback for a request whose last response has no outputs.
    pub(super) fn ended(&mut self, is_cut_short: bool) -> Ended<'static> {
        Ended { outputs: None, states: std::mem::take(&mut self.states), is_cut_short }
    }
}
