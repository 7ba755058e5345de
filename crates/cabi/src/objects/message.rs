//! What is a message of the interface?

use nerite_request::Status;

use super::object;

/// `TRITONSERVER_Message`: JSON.
pub struct Message(Vec<u8>);

object!(Message, 2, "message");

impl Message {
    /// A message that the server wrote.
    pub fn new(json: String) -> Message {
        Message(json.into_bytes())
    }

    /// A message that a backend wrote.
    pub fn parse(json: &[u8]) -> Result<Message, Status> {
        match serde_json::from_slice::<serde_json::Value>(json) {
            Ok(_) => Ok(Message(json.to_vec())),
            Err(cause) => Err(Status::invalid(format!("failed to parse the message's JSON: {cause}"))),
        }
    }

    /// The JSON.
    pub fn json(&self) -> &[u8] {
        &self.0
    }
}
