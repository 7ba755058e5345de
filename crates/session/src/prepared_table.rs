//! Which inferences has a session prepared?

use std::collections::HashMap;
use std::sync::Arc;

use nerite_api::PreparedRequest;
use nerite_budget::Charge;
use nerite_request::Status;
use nerite_wire::proto::ExpectedResponse;

use crate::limits::PREPARED_MAX;

/// The inferences that one session has prepared, by handle.
#[derive(Default)]
pub(crate) struct PreparedTable {
    last: u64,
    entries: HashMap<u64, Arc<Prepared>>,
}

/// One of them.
pub(crate) struct Prepared {
    pub(crate) request: PreparedRequest,
    pub(crate) expected: Option<Arc<ExpectedResponse>>,
    _charge: Charge,
}

impl PreparedTable {
    /// Gives handles up; all that there are, even if others are unknown.
    pub(crate) fn release(&mut self, handles: &[u64]) -> Result<(), Status> {
        let unknown = handles.iter().filter(|handle| self.entries.remove(handle).is_none()).count();
        if unknown == 0 {
            return Ok(());
        }
        Err(Status::not_found(format!(
            "{unknown} of {} handles are no prepared inferences of this session",
            handles.len()
        )))
    }

    /// Whether there may be one more.
    pub(crate) fn check_room(&self) -> Result<(), Status> {
        if self.entries.len() < PREPARED_MAX {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "{PREPARED_MAX} inferences of this session are prepared, which is all it may have; release some"
        )))
    }

    /// That of the handle.
    pub(crate) fn find(&self, handle: u64) -> Option<Arc<Prepared>> {
        self.entries.get(&handle).cloned()
    }

    /// Forgets one that is stale.
    pub(crate) fn forget(&mut self, handle: u64) {
        self.entries.remove(&handle);
    }

    /// Its handle, which no other one will have.
    pub(crate) fn add(
        &mut self,
        request: PreparedRequest,
        expected: Option<Arc<ExpectedResponse>>,
        charge: Charge,
    ) -> u64 {
        self.last += 1;
        self.entries.insert(self.last, Arc::new(Prepared { request, expected, _charge: charge }));
        self.last
    }
}
