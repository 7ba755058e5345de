//! Where do outputs go whose size the client could not know?
//!
//! Into leases of a session: that of the request itself, or one that an output names by its key, whatever protocol brought it.
//! A runtime that asks for a place before it computes gets a lease of the right size and writes there; what another runtime
//! leaves in memory of its own is copied, and counted, when its response passes.

use std::sync::{Arc, PoisonError};

use nerite_locks::Mutex;
use nerite_memory::{Reason, Slot};
use nerite_request::names::{ByName, NameTable};
use nerite_request::{InferRequestedOutput, InferResponse, LeaseNotice, Output, RegionRef, SessionRef, Status};
use nerite_shm::{Account, BorrowedLease, LeaseError, LeaseErrorKind, Pools};
use nerite_tensor::Name;

use crate::errors::{of_lease, of_shm};

/// An output that was written to a lease chosen by the server, from the lease's first byte on.
#[derive(Debug)]
pub struct OutputLease {
    /// The model's name for it.
    pub output: Name,
    /// The lease.
    pub loan: BorrowedLease,
    /// Bytes of the output.
    pub byte_size: u64,
    account: Arc<Account>,
}

impl OutputLease {
    /// Takes the lease back, for a response that cannot be sent.
    pub fn cancel(self) {
        self.account.cancel(self.loan);
    }

    /// As the response itself tells of it. The lease comes back if nobody is told.
    fn notice(self) -> LeaseNotice {
        let OutputLease { output, loan, byte_size, account } = self;
        let region = RegionRef { name: loan.lease.name().to_string().into(), offset: 0, byte_size };
        // Only the name is kept: a lease that somebody holds would not be lent again.
        let name = region.name.clone();
        drop(loan);
        LeaseNotice::new(output, region, move || account.recall(&name))
    }
}

/// The places of one request, shared by the model that asks for them and the response that tells of them.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    outputs: Vec<LeasedOutput>,
    names: NameTable,
    /// Lent to the model, and in no response yet.
    open: Mutex<Vec<BorrowedLease>>,
}

/// One output, and who pays for its lease.
struct LeasedOutput {
    output: Name,
    account: Arc<Account>,
    way: Way,
}

/// How the client hears of a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// With its descriptor, beside the response.
    Packet,
    /// By name, in the response. The client gave the request this tag.
    Response { tag: u64 },
}

impl Places {
    /// Places for the outputs `asked` for that name a session, and those of the list, which is the request's own session's. `None` if
    /// there are none of either.
    pub(crate) fn of(
        asked: &[InferRequestedOutput],
        own: Option<(&Arc<Account>, Vec<String>)>,
        pools: &Pools,
    ) -> Result<Option<Places>, Status> {
        let (mut outputs, mut names) = (Vec::new(), NameTable::new());
        let mut add = |leased: LeasedOutput| {
            if names.find(&outputs, |known: &LeasedOutput| &known.output, &leased.output).is_none() {
                outputs.push(leased);
                names.added(&outputs, |known| &known.output);
            }
        };
        for output in asked {
            if let Some(session) = &output.session {
                let (output, account) = (output.name.clone(), account(session, pools)?);
                add(LeasedOutput { output, account, way: Way::Response { tag: session.tag } });
            }
        }
        let (own, named) = own.unzip();
        let asked_for = ByName::new(asked, |output| &output.name);
        for output in named.unwrap_or_default() {
            // Classes are made here and not by the model: they travel in the response.
            let asked = asked_for.find(&output);
            let elsewhere = asked.is_some_and(|one| one.classes > 0 || one.session.is_some());
            if let Some(account) = own.filter(|_| !elsewhere) {
                add(LeasedOutput { output: output.into(), account: Arc::clone(account), way: Way::Packet });
            }
        }
        Ok((!outputs.is_empty()).then(|| Places(Arc::new(Shared { outputs, names, open: Mutex::default() }))))
    }

    /// A place for `bytes` bytes of `output`; `None` for an output that travels in the response.
    pub(crate) fn place(&self, output: &str, bytes: usize) -> Result<Option<Slot>, Status> {
        let Some(leased) = self.0.leased_output(output).filter(|_| bytes > 0) else { return Ok(None) };
        let Some((loan, slot)) = leased.lend(bytes)? else { return Ok(None) };
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).push(loan);
        Ok(Some(slot))
    }

    /// The response, which tells of leases that outputs named a session for, and those that go with their descriptors.
    pub(crate) fn settle(&self, mut response: InferResponse) -> Result<(InferResponse, Vec<OutputLease>), Status> {
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
        Ok((response, leases))
    }
}

impl Shared {
    fn leased_output(&self, output: &str) -> Option<&LeasedOutput> {
        self.names.find(&self.outputs, |leased| &leased.output, output).map(|at| &self.outputs[at])
    }

    fn settle(&self, output: &mut Output) -> Result<Option<(Way, OutputLease)>, Status> {
        let Some(leased) = self.leased_output(&output.name).filter(|_| !output.data.is_empty()) else {
            return Ok(None);
        };
        if output.placed {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let at = open.iter().position(|loan| loan.lease.starts(&output.data));
            return Ok(at.map(|at| leased.placed(output, open.swap_remove(at))));
        }
        let Some((loan, mut slot)) = leased.lend(output.data.len())? else { return Ok(None) };
        if let Err(fault) = slot.fill_from(0, &output.data, Reason::OutputPlacement) {
            leased.account.cancel(loan);
            return Err(Status::internal(fault.to_string()));
        }
        output.data = slot.filled().into_buffer();
        output.placed = true;
        Ok(Some(leased.placed(output, loan)))
    }
}

impl LeasedOutput {
    /// A lease of at least so many bytes; `None` if there is no room for one and the output may travel in the response.
    fn lend(&self, bytes: usize) -> Result<Option<(BorrowedLease, Slot)>, Status> {
        let borrowed = match self.way {
            Way::Packet => self.account.borrow(bytes as u64),
            Way::Response { tag } => {
                self.account.place(bytes as u64, tag).map(|lease| BorrowedLease { lease, descriptor: None })
            }
        };
        let loan = match borrowed {
            Ok(loan) => loan,
            Err(error) if self.travels_instead(&error) => return Ok(None),
            Err(error) => return Err(of_lease(error)),
        };
        let extent = loan.lease.locate(0, bytes as u64).map_err(of_shm)?;
        let slot = loan.lease.slot(extent);
        Ok(Some((loan, slot)))
    }

    /// A message of HTTP or gRPC has room for any output; a session's packet has not.
    fn travels_instead(&self, error: &LeaseError) -> bool {
        let lacks_room = match error.kind() {
            LeaseErrorKind::Full | LeaseErrorKind::Invalid | LeaseErrorKind::Internal => *error != LeaseError::Closed,
            LeaseErrorKind::Missing | LeaseErrorKind::Cancelled => false,
        };
        lacks_room && self.way != Way::Packet
    }

    fn placed(&self, output: &Output, loan: BorrowedLease) -> (Way, OutputLease) {
        let (output, byte_size) = (output.name.clone(), output.data.len() as u64);
        (self.way, OutputLease { output, loan, byte_size, account: Arc::clone(&self.account) })
    }
}

impl Drop for Shared {
    /// What the model asked for and no response told of. A session that did not pay for a lease does not know its name.
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        for loan in open {
            let name = loan.lease.name().to_string();
            if let Some(leased) = self.outputs.iter().find(|leased| leased.account.find(&name).is_some()) {
                leased.account.cancel(loan);
            }
        }
    }
}

fn account(session: &SessionRef, pools: &Pools) -> Result<Arc<Account>, Status> {
    pools.account(session.key).ok_or_else(|| {
        Status::not_found(format!("Unable to find shared memory region: '{session}': no session of that key is open"))
    })
}
