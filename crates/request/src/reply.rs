//! How does an answer find its way back, exactly once?

use nerite_memory::Slot;

use crate::{Response, Status};

/// Finds a place for so many bytes of the output of that name; `None` if the client leaves that to the model.
type PlaceOutput = dyn FnMut(&str, usize) -> Result<Option<Slot>, Status> + Send;

/// The one edge back to the client. It takes any number of responses up to the last; dropped before that, it tells the
/// client so: a lost reply is an error, never a hang.
pub struct Reply {
    id: String,
    sink: Option<Box<dyn FnMut(Response) + Send>>,
    place_output: Option<Box<PlaceOutput>>,
}

impl Reply {
    /// A reply to the request called `id` that hands responses to `sink`. The sink must not block: it runs on the thread
    /// that computed the response.
    pub fn new(id: impl Into<String>, sink: impl FnMut(Response) + Send + 'static) -> Reply {
        Reply { id: id.into(), sink: Some(Box::new(sink)), place_output: None }
    }

    /// A reply that has sent its last response.
    pub fn closed() -> Reply {
        Reply { id: String::new(), sink: None, place_output: None }
    }

    /// Has the reply offer places for outputs whose size the client could not know. Called on the thread that computes.
    pub fn offering(
        mut self,
        place_output: impl FnMut(&str, usize) -> Result<Option<Slot>, Status> + Send + 'static,
    ) -> Reply {
        self.place_output = Some(Box::new(place_output));
        self
    }

    /// Whether it may offer a place for an output that the client named no memory for.
    pub fn offers(&self) -> bool {
        self.place_output.is_some()
    }

    /// A place for `bytes` bytes of an output that the client named no memory for; `None` if it may lie anywhere.
    pub fn place(&mut self, output: &str, bytes: usize) -> Result<Option<Slot>, Status> {
        match &mut self.place_output {
            Some(place_output) => place_output(output, bytes),
            None => Ok(None),
        }
    }

    /// Sends one response. Nothing is sent after the last.
    pub fn send(&mut self, response: Response) {
        let last = response.last;
        if let Some(sink) = &mut self.sink {
            sink(response);
        }
        if last {
            self.sink = None;
            self.place_output = None;
        }
    }

    /// Ends the request with an error.
    pub fn fail(&mut self, error: Status) {
        let id = self.id.clone();
        self.send(Response::failed(id, error));
    }

    /// Whether the last response has been sent.
    pub fn is_closed(&self) -> bool {
        self.sink.is_none()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.sink.is_some() {
            self.fail(Status::internal("the model ended its work on this request without a final response"));
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({:?}, {})", self.id, if self.is_closed() { "closed" } else { "open" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    fn collecting() -> (Reply, Arc<Mutex<Vec<Response>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let reply = Reply::new("r1", move |r| into.lock().unwrap_or_else(PoisonError::into_inner).push(r));
        (reply, seen)
    }

    #[track_caller]
    fn check(act: impl FnOnce(Reply), lasts_and_errors: &[(bool, bool)]) {
        let (reply, seen) = collecting();
        act(reply);
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let got: Vec<_> = seen.iter().map(|r| (r.last, r.error.is_some())).collect();
        assert_eq!(got, lasts_and_errors);
    }

    #[test]
    fn a_dropped_reply_is_an_error_and_an_answered_one_is_silent() {
        let more = || Response::default();
        let last = || Response { last: true, ..Response::default() };
        check(drop, &[(true, true)]);
        check(|mut r| r.send(last()), &[(true, false)]);
        check(|mut r| r.send(more()), &[(false, false), (true, true)]);
        check(
            |mut r| {
                r.send(more());
                r.send(last());
                r.send(more());
            },
            &[(false, false), (true, false)],
        );
    }
}
