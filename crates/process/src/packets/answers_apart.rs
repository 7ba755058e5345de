//! Which packets does a child process of this program send on the channel for calls?

use std::fmt::{Display, Formatter, Result};

use nerite_memory::Reason;

use super::answer::{Copied, WrittenResponse};
use super::tensors::{List, Text};

/// A response to an open request, or the end of its responses. [`super::Call::Respond`]
#[derive(Clone, Copy, Debug)]
pub struct SendResponse<'a> {
    /// The call. Its answer has the memory for the next response. 0 for the last response, which has no answer.
    pub call: u64,
    /// The request's number.
    pub number: u64,
    /// The response, if there is one.
    pub response: Option<&'a WrittenResponse<'a>>,
    /// Whether it is the last one.
    pub is_last: bool,
    /// [`super::Said::lost`]
    pub lost: &'a [[u64; 2]],
    /// [`super::Said::copied`]
    pub copied: &'a [(Reason, u64)],
    /// [`super::Said::unmapped`]
    pub unmapped: &'a [u64],
}

impl Display for SendResponse<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let SendResponse { call, number, response, is_last, lost, copied, unmapped } = self;
        write!(f, r#"{{"call":{call},"respond":{number},"final":{is_last}"#)?;
        if let Some(response) = response {
            write!(f, r#","response":{response}"#)?;
        }
        if !lost.is_empty() {
            let pair = |[segment, at]: &[u64; 2]| format!("[{segment},{at}]");
            write!(f, r#","lost":{}"#, List(lost.iter().map(pair)))?;
        }
        if !copied.is_empty() {
            write!(f, r#","copied":{}"#, Copied(copied))?;
        }
        if !unmapped.is_empty() {
            write!(f, r#","unmapped":{}"#, List(unmapped.iter()))?;
        }
        f.write_str("}")
    }
}

/// Asks for memory for an output of an open request. [`super::Call::OutputMemory`]
#[derive(Clone, Copy, Debug)]
pub struct MemoryCall<'a> {
    /// The call, which the answer repeats.
    pub call: u64,
    /// The request's number.
    pub number: u64,
    /// The output's name.
    pub name: &'a str,
    /// Its size in bytes.
    pub bytes: usize,
}

impl Display for MemoryCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let MemoryCall { call, number, name, bytes } = self;
        write!(f, r#"{{"call":{call},"place":[{number},{},{bytes}]}}"#, Text(name))
    }
}

/// The request with this number is to run again, and has no response. The answer is [`super::Done`].
#[derive(Clone, Copy, Debug)]
pub struct RescheduleCall {
    /// The call, which the answer repeats.
    pub call: u64,
    /// The request's number.
    pub number: u64,
}

impl Display for RescheduleCall {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"call":{},"again":[{}]}}"#, self.call, self.number)
    }
}

/// The process has dropped the request with this number and its inputs. [`super::Release`]
#[derive(Clone, Copy, Debug)]
pub struct Released(pub u64);

impl Display for Released {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"release":{}}}"#, self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_request::{Parameters, Status};

    use super::*;
    use crate::packets::{Call, CallSaid, Respond};

    fn read(packet: &impl Display) -> CallSaid {
        CallSaid::read(packet.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_server_reads_what_a_process_of_this_program_says() {
        let parameters = Parameters::new();
        let outputs = WrittenResponse::Outputs(Vec::new(), &parameters);
        let lost = [[7, 4096]];
        let copied = [(Reason::ModelProcess, 12)];
        let packet = SendResponse {
            call: 3,
            number: 9,
            response: Some(&outputs),
            is_last: false,
            lost: &lost,
            copied: &copied,
            unmapped: &[5],
        };
        let said = read(&packet);
        let Some(Call::Respond(Respond { number, response, is_last })) = said.call() else { panic!("{said:?}") };
        assert_eq!((said.number(), number, is_last), (3, 9, false));
        assert!(response.is_some_and(|response| response.failed().is_none() && !response.is_later()));
        assert_eq!(said.lost().collect::<Vec<_>>(), [(7, 4096)]);
        assert_eq!(said.copied().collect::<Vec<_>>(), copied);
        assert_eq!(said.unmapped().collect::<Vec<_>>(), [5]);
        let failed = WrittenResponse::Failed(Status::invalid("why"));
        let said = read(&SendResponse {
            call: 0,
            number: 9,
            response: Some(&failed),
            is_last: true,
            lost: &[],
            copied: &[],
            unmapped: &[],
        });
        let Some(Call::Respond(Respond { response, is_last: true, .. })) = said.call() else { panic!("{said:?}") };
        assert_eq!(response.and_then(|response| response.failed()), Some(Status::invalid("why")));
        let said = read(&RescheduleCall { call: 3, number: 9 });
        assert!(matches!(said.call(), Some(Call::Again)) && said.number() == 3 && said.again().eq([9]));
        let said = read(&MemoryCall { call: 4, number: 9, name: "a", bytes: 5 });
        assert!(matches!(said.call(), Some(Call::OutputMemory { number: 9, name: "a", bytes: 5 })), "{said:?}");
        assert_eq!(read(&Released(6)).release().map(|release| release.number), Some(6));
    }
}
