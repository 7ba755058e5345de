//! Which callback is called, and which value is dropped, when a request ends?

use nerite_request::{Outputs, Status};
use nerite_tensor::Tensor;

/// A value that is dropped when a request ends.
pub type Kept = Box<dyn std::fmt::Debug + Send + Sync>;

/// The callback for the end of a request.
#[derive(Default)]
pub(super) struct OnEnd(Option<Box<EndCallback>>);

/// The arguments of the callback.
pub struct Ended<'r> {
    /// The outputs of its last response. `None` if it has none.
    pub outputs: Option<&'r mut Outputs>,
    /// The tensors that its model kept for the next request of its sequence ([`super::Responder::keep_state`]).
    pub states: Vec<Tensor>,
    /// Whether the request failed after it was told to end early ([`super::Responder::stop`]).
    pub is_cut_short: bool,
}

/// If the callback returns an error, the request fails with it, unless the request has failed already.
type EndCallback = dyn FnOnce(Ended<'_>) -> Result<(), Status> + Send;

impl OnEnd {
    /// Calls `callback` at the end.
    pub fn calling(callback: impl FnOnce(Ended<'_>) -> Result<(), Status> + Send + 'static) -> OnEnd {
        OnEnd(Some(Box::new(callback)))
    }

    /// Calls the callback, the first time only. An error is the reason why the request fails.
    pub fn call(&mut self, ended: Ended<'_>) -> Result<(), Status> {
        self.0.take().map_or(Ok(()), |callback| callback(ended))
    }
}

impl std::fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "OnEnd(some)" } else { "OnEnd(none)" })
    }
}
