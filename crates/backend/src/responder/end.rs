//! Who is told of the end of a request, and what ends with it?

use nerite_request::Outputs;
use nerite_tensor::Tensor;

/// Something that is dropped when a request ends.
pub type Kept = Box<dyn std::fmt::Debug + Send + Sync>;

/// Who is told of the end of a request.
#[derive(Default)]
pub(super) struct OnEnd(Option<Box<EndCallback>>);

/// What is told of the end of a request.
pub struct Ended<'r> {
    /// The outputs of its last response; `None` if it has none.
    pub outputs: Option<&'r mut Outputs>,
    /// What its model set apart for the next request of its sequence ([`Responder::keep_state`]).
    pub states: Vec<Tensor>,
}

type EndCallback = dyn FnOnce(Ended<'_>) + Send;

impl OnEnd {
    /// Has `told` called.
    pub fn telling(told: impl FnOnce(Ended<'_>) + Send + 'static) -> OnEnd {
        OnEnd(Some(Box::new(told)))
    }

    /// Tells it, once.
    pub fn tell(&mut self, ended: Ended<'_>) {
        if let Some(told) = self.0.take() {
            told(ended);
        }
    }
}

impl std::fmt::Debug for OnEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "OnEnd(some)" } else { "OnEnd(none)" })
    }
}
