//! Where do outputs go whose size the client could not know?
//!
//! A runtime that asks for a place before it computes gets a lease of the right size and writes there; what another runtime
//! leaves in memory of its own is copied, and counted, when its response passes.

use std::sync::{Arc, Mutex, PoisonError};

use nerite_memory::{Reason, Slot};
use nerite_request::{Ask, Output, Response, Status};
use nerite_shm::{Account, Loan};

use crate::errors::{of_lease, of_shm};

/// An output that was written to a lease chosen by the server, from the lease's first byte on.
#[derive(Debug)]
pub struct Placed {
    /// The model's name for it.
    pub output: String,
    /// The lease.
    pub loan: Loan,
    /// Bytes of the output.
    pub byte_size: u64,
    account: Arc<Account>,
}

impl Placed {
    /// Takes the lease back, for a response that cannot be sent.
    pub fn cancel(self) {
        self.account.cancel(self.loan);
    }
}

/// The places of one request, shared by the model that asks for them and the response that tells of them.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    account: Arc<Account>,
    leased: Vec<String>,
    /// Lent to the model, and in no response yet.
    open: Mutex<Vec<Loan>>,
}

impl Places {
    /// Places for these outputs of `ask`. Classes are made here and not by the model: they travel in the response.
    pub(super) fn new(account: Arc<Account>, mut leased: Vec<String>, ask: &Ask) -> Places {
        leased.retain(|name| !ask.outputs.iter().any(|output| output.name == *name && output.classes > 0));
        Places(Arc::new(Shared { account, leased, open: Mutex::default() }))
    }

    /// A place for `bytes` bytes of `output`; `None` for an output that travels in the response.
    pub(super) fn place(&self, output: &str, bytes: usize) -> Result<Option<Slot>, Status> {
        if bytes == 0 || !self.0.wants(output) {
            return Ok(None);
        }
        let (loan, slot) = self.0.lend(bytes)?;
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner).push(loan);
        Ok(Some(slot))
    }

    /// The response, and which of its outputs are in leases.
    pub(super) fn settle(&self, mut response: Response) -> (Response, Vec<Placed>) {
        let mut placed = Vec::new();
        for output in &mut response.outputs {
            match self.0.settle_one(output) {
                Ok(None) => {}
                Ok(Some(one)) => placed.push(one),
                Err(status) => {
                    response.error = Some(status);
                    break;
                }
            }
        }
        if response.error.is_some() {
            response.outputs = Vec::new();
            placed.drain(..).for_each(Placed::cancel);
        }
        (response, placed)
    }
}

impl Shared {
    fn wants(&self, output: &str) -> bool {
        self.leased.iter().any(|name| name == output)
    }

    fn lend(&self, bytes: usize) -> Result<(Loan, Slot), Status> {
        let loan = self.account.borrow(bytes as u64).map_err(of_lease)?;
        let extent = loan.lease.locate(0, bytes as u64).map_err(of_shm)?;
        let slot = loan.lease.slot(extent);
        Ok((loan, slot))
    }

    fn settle_one(&self, output: &mut Output) -> Result<Option<Placed>, Status> {
        if output.data.is_empty() || !self.wants(&output.name) {
            return Ok(None);
        }
        if output.placed {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let at = open.iter().position(|loan| loan.lease.starts(&output.data));
            return Ok(at.map(|at| self.placed(output, open.swap_remove(at))));
        }
        let (loan, mut slot) = self.lend(output.data.len())?;
        slot.fill_from(0, &output.data, Reason::OutputPlacement).map_err(|e| Status::internal(e.to_string()))?;
        output.data = slot.filled().into_buffer();
        output.placed = true;
        Ok(Some(self.placed(output, loan)))
    }

    fn placed(&self, output: &Output, loan: Loan) -> Placed {
        let (output, byte_size) = (output.name.clone(), output.data.len() as u64);
        Placed { output, loan, byte_size, account: Arc::clone(&self.account) }
    }
}

impl Drop for Shared {
    /// What the model asked for and no response told of.
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        for loan in open {
            self.account.cancel(loan);
        }
    }
}
