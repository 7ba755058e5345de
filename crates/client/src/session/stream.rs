//! How are the responses of a model that gives several received?

use v1::server_message::Answer as Told;

use nerite_wire::proto::session::v1;

use super::calls::{Answer, Waiter};
use super::{read_response, refusal};
use crate::{Error, Response};

/// The responses to one inference, in order. Dropped before the last, it cancels the inference.
///
/// ```no_run
/// # async fn call(session: nerite_client::Session, request: nerite_client::Request) -> Result<(), nerite_client::Error> {
/// let mut responses = session.infer_stream(&request).await?;
/// while let Some(response) = responses.next().await? {
///     println!("{} outputs", response.outputs.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SessionStream(Waiter);

impl SessionStream {
    pub(super) fn new(waiter: Waiter) -> SessionStream {
        SessionStream(waiter)
    }

    /// The next response; `None` after the last. An error may be that of one response: others may follow it.
    pub async fn next(&mut self) -> Result<Option<Response>, Error> {
        match self.0.next_answer().await? {
            None => Ok(None),
            // The news that nothing follows.
            Some(Answer::Inference { response, placed }) if response.is_empty() && placed.is_empty() => Ok(None),
            Some(Answer::Inference { response, placed }) => read_response(response, placed).map(Some),
            Some(Answer::Told(Told::Error(error))) => Err(refusal(error)),
            Some(other) => Err(other.unexpected()),
        }
    }
}
