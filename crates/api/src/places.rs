//! Where are outputs placed if the client does not know their size?
//!
//! In leases of a session: the session of the request itself, or one that an output names by its key, over any protocol. A runtime that asks for a
//! place before it computes gets a lease of the right size, and writes its output there. If a runtime leaves an output in its own memory, the output is
//! copied to a lease when the response passes, and the copy is counted.

use std::sync::{Arc, PoisonError};

use nerite_config::TensorSpec;
use nerite_locks::Mutex;
use nerite_memory::{Reason, Slot};
use nerite_request::names::ByName;
use nerite_request::{InferRequestedOutput, InferResponse, LeaseNotice, Output, RegionRef, SessionRef, Status};
use nerite_shm::{Account, BorrowedLease, LeaseError, LeaseErrorKind, Pools};
use nerite_tensor::Name;

use crate::errors::{of_lease, of_shm};

/// An output in a lease that the server chose. It begins at the lease's first byte.
#[derive(Debug)]
pub struct OutputLease {
    /// The name of the output in the model.
    pub output: Name,
    /// The lease.
    pub borrowed: BorrowedLease,
    /// The size of the output in bytes.
    pub byte_size: u64,
    account: Arc<Account>,
}

impl OutputLease {
    /// Returns the lease, for a response that cannot be sent.
    pub fn cancel(self) {
        self.account.cancel(self.borrowed);
    }

    /// The notice in the response. The lease is returned if the notice is not sent.
    fn notice(self) -> LeaseNotice {
        let OutputLease { output, borrowed, byte_size, account } = self;
        let region = RegionRef { name: borrowed.lease.name().to_string().into(), offset: 0, byte_size };
        // Only the name is kept. A lease that is still referenced would not be lent again.
        let name = region.name.clone();
        drop(borrowed);
        LeaseNotice::new(output, region, move || account.recall(&name))
    }
}

/// The places of one request. The model asks for them, and the response reports them.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    /// In ascending order of their indices.
    outputs: Vec<LeasedOutput>,
    /// Leases that the model has, and that no response has reported yet.
    open: Mutex<Vec<BorrowedLease>>,
}

/// One output, and the session that is charged for its lease.
struct LeasedOutput {
    /// Its index in the model's configuration.
    output: usize,
    account: Arc<Account>,
    way: Way,
}

/// How a lease is reported to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Beside the response, with its descriptor.
    Packet,
    /// By name, in the response. `tag` is the client's tag of the request.
    Response { tag: u64 },
}

impl Places {
    /// The places for the outputs in `requested` that name a session, and for those in the list of the request's own session. `outputs` are those of the
    /// model. `None` if no output has a place.
    pub(crate) fn of(
        requested: &[InferRequestedOutput],
        outputs: &[TensorSpec],
        own: Option<(&Arc<Account>, Vec<String>)>,
        pools: &Pools,
    ) -> Result<Option<Places>, Status> {
        let specs = ByName::new(outputs, |spec| &spec.name);
        let mut leased = Vec::new();
        for output in requested {
            if let Some(session) = &output.session {
                let (account, way) = (account(session, pools)?, Way::Response { tag: session.tag });
                leased.extend(specs.index_of(&output.name).map(|output| LeasedOutput { output, account, way }));
            }
        }
        let (own, named) = own.unzip();
        let requested = ByName::new(requested, |output| &output.name);
        for output in named.unwrap_or_default() {
            // Classes are made from the model's output here, so they are sent in the response.
            let requested_output = requested.find(&output);
            let elsewhere = requested_output.is_some_and(|one| one.classes > 0 || one.session.is_some());
            if let (Some(account), Some(output)) = (own.filter(|_| !elsewhere), specs.index_of(&output)) {
                leased.push(LeasedOutput { output, account: Arc::clone(account), way: Way::Packet });
            }
        }
        leased.sort_by_key(|one| one.output);
        leased.dedup_by_key(|one| one.output);
        Ok((!leased.is_empty()).then(|| Places(Arc::new(Shared { outputs: leased, open: Mutex::default() }))))
    }

    /// A place for `bytes` bytes of the output with this index. `None` for an output that is sent in the response.
    pub(crate) fn place(&self, output: usize, bytes: usize) -> Result<Option<Slot>, Status> {
        let Some(leased) = self.0.leased_output(output).filter(|_| bytes > 0) else { return Ok(None) };
        let Some((borrowed, slot)) = leased.lend(bytes)? else { return Ok(None) };
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).push(borrowed);
        Ok(Some(slot))
    }

    /// The bytes that [`Places::settle`] copies to leases.
    pub(crate) fn copied_bytes(&self, response: &InferResponse) -> usize {
        let outputs = response.outputs.iter().filter(|output| !output.placed);
        let copied = outputs.filter(|output| self.0.leased_output(output.index).is_some());
        copied.map(|output| output.data.len()).sum()
    }

    /// Moves outputs to their leases. The response then reports leases of named sessions. Returns the leases that are reported beside it.
    pub(crate) fn settle(&self, response: &mut InferResponse) -> Result<Vec<OutputLease>, Status> {
        let mut leases = Vec::new();
        for output in &mut response.outputs {
            match self.0.settle(output) {
                Ok(None) => {}
                Ok(Some((Way::Packet, one))) => leases.push(one),
                Ok(Some((Way::Response { .. }, one))) => response.lease_notices.push(one.notice()),
                Err(status) => {
                    leases.into_iter().for_each(OutputLease::cancel);
                    return Err(status);
                }
            }
        }
        Ok(leases)
    }
}

impl Shared {
    fn leased_output(&self, output: usize) -> Option<&LeasedOutput> {
        let at = self.outputs.binary_search_by_key(&output, |leased| leased.output).ok()?;
        self.outputs.get(at)
    }

    fn settle(&self, output: &mut Output) -> Result<Option<(Way, OutputLease)>, Status> {
        let Some(leased) = self.leased_output(output.index).filter(|_| !output.data.is_empty()) else {
            return Ok(None);
        };
        if output.placed {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let at = open.iter().position(|borrowed| borrowed.lease.starts(&output.data));
            return Ok(at.map(|at| leased.placed(output, open.swap_remove(at))));
        }
        let Some((borrowed, mut slot)) = leased.lend(output.data.len())? else { return Ok(None) };
        if let Err(fault) = slot.fill_from(0, &output.data, Reason::OutputPlacement) {
            leased.account.cancel(borrowed);
            return Err(Status::internal(fault.to_string()));
        }
        output.data = slot.filled().into_buffer();
        output.placed = true;
        Ok(Some(leased.placed(output, borrowed)))
    }
}

impl LeasedOutput {
    /// A lease of at least this many bytes. `None` if none is available and the output may be sent in the response.
    fn lend(&self, bytes: usize) -> Result<Option<(BorrowedLease, Slot)>, Status> {
        let outcome = match self.way {
            Way::Packet => self.account.borrow(bytes as u64),
            Way::Response { tag } => {
                self.account.place(bytes as u64, tag).map(|lease| BorrowedLease { lease, descriptor: None })
            }
        };
        let borrowed = match outcome {
            Ok(borrowed) => borrowed,
            Err(error) if self.travels_instead(&error) => return Ok(None),
            Err(error) => return Err(of_lease(error)),
        };
        let extent = borrowed.lease.locate(0, bytes as u64).map_err(of_shm)?;
        let slot = borrowed.lease.slot(extent);
        Ok(Some((borrowed, slot)))
    }

    /// Whether an output without a lease is sent in the response. Messages of HTTP and gRPC can have any size, and a session's packet cannot.
    fn travels_instead(&self, error: &LeaseError) -> bool {
        let lacks_room = match error.kind() {
            LeaseErrorKind::Full | LeaseErrorKind::Invalid | LeaseErrorKind::Internal => *error != LeaseError::Closed,
            LeaseErrorKind::Missing | LeaseErrorKind::Cancelled => false,
        };
        lacks_room && self.way != Way::Packet
    }

    fn placed(&self, output: &Output, borrowed: BorrowedLease) -> (Way, OutputLease) {
        let (output, byte_size) = (output.name.clone(), output.data.len() as u64);
        (self.way, OutputLease { output, borrowed, byte_size, account: Arc::clone(&self.account) })
    }
}

impl Drop for Shared {
    /// Returns leases that no response reported. A session that was not charged for a lease does not know its name.
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        for borrowed in open {
            let name = borrowed.lease.name().to_string();
            if let Some(leased) = self.outputs.iter().find(|leased| leased.account.find(&name).is_some()) {
                leased.account.cancel(borrowed);
            }
        }
    }
}

fn account(session: &SessionRef, pools: &Pools) -> Result<Arc<Account>, Status> {
    pools.account(session.key).ok_or_else(|| {
        Status::not_found(format!("Unable to find shared memory region: '{session}': no session of that key is open"))
    })
}
