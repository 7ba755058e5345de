//! Which inferences has a session prepared?

use std::sync::Arc;

use nerite_api::PreparedRequest;
use nerite_budget::Charge;
use nerite_request::Status;
use nerite_wire::proto::ExpectedResponse;

use crate::limits::PREPARED_MAX;
use crate::responses::{Answers, Expected};

/// The prepared inferences of one session, by handle.
#[derive(Default)]
pub(crate) struct PreparedTable {
    last: u64,
    /// At most [`PREPARED_MAX`], by handle. Handles ascend.
    entries: Vec<(u64, Arc<Prepared>)>,
}

/// A prepared inference.
pub(crate) struct Prepared {
    pub(crate) request: PreparedRequest,
    /// Sends the answers to calls that are alone in their packet.
    pub(crate) answers: Arc<Answers>,
    _charge: Charge,
}

impl Prepared {
    /// The response that the client expects, if it expects one.
    pub(crate) fn expected(&self) -> Option<&Arc<ExpectedResponse>> {
        match &self.answers.expected {
            Expected::Each(expected) => expected.as_ref(),
            Expected::Of { .. } => None,
        }
    }
}

impl PreparedTable {
    /// Releases all of these handles that exist. Err: some of them do not exist.
    pub(crate) fn release(&mut self, handles: &[u64]) -> Result<(), Status> {
        let unknown = handles.iter().filter(|handle| !self.forget(**handle)).count();
        if unknown == 0 {
            return Ok(());
        }
        Err(Status::not_found(format!(
            "{unknown} of {} handles are no prepared inferences of this session",
            handles.len()
        )))
    }

    /// Checks whether one more inference may be prepared.
    pub(crate) fn check_capacity(&self) -> Result<(), Status> {
        if self.entries.len() < PREPARED_MAX {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "{PREPARED_MAX} inferences of this session are prepared, which is all it may have; release some"
        )))
    }

    /// The prepared inference with that handle.
    pub(crate) fn find(&self, handle: u64) -> Option<Arc<Prepared>> {
        self.position(handle).and_then(|at| self.entries.get(at)).map(|(_, prepared)| Arc::clone(prepared))
    }

    /// Removes the prepared inference with that handle. False if there is none.
    pub(crate) fn forget(&mut self, handle: u64) -> bool {
        self.position(handle).map(|at| self.entries.remove(at)).is_some()
    }

    /// Adds a prepared inference. Returns its handle, which is never reused.
    pub(crate) fn add(&mut self, request: PreparedRequest, answers: Arc<Answers>, charge: Charge) -> u64 {
        self.last += 1;
        self.entries.push((self.last, Arc::new(Prepared { request, answers, _charge: charge })));
        self.last
    }

    fn position(&self, handle: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&handle, |(known, _)| *known).ok()
    }
}
