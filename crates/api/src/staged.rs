//! How does a model run without touching memory of the client, and how do its outputs get to that memory?
//!
//! Inputs are copied to private memory before the run. Outputs stay where the model made them. A stalling worker copies them to the client's memory and
//! sends the response. So neither a front thread nor an instance of a model waits for the client's memory. Responses keep their order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_budget::Charge;
use nerite_engine::output_too_small;
use nerite_memory::{Access, Buffer, Reason, Slot};
use nerite_request::{
    Deliver, InferResponse, Inputs, PeerAccount, Reply, RequestTrace, Response, ResponseWindow, Status, WantedOutputs,
};
use nerite_watchdog::is_polling;
use tokio::runtime::Handle;

use crate::Api;
use crate::api::Client;
use crate::aside::on_stalling_worker;
use crate::delivery::{Delivery, ModelSide, take_place};
use crate::places::OutputLease;
use crate::queue::Queue;
use crate::stalling::STAGED_REQUESTS;

/// Larger inputs, and larger places of outputs, are not staged: the model's run reads and writes them in the client's memory, on a worker.
const STAGED_BYTES_MAX: usize = 4 << 20;

/// The staged parts of a request.
pub(crate) struct StagedRequest {
    client: Arc<Client>,
    runtime: Handle,
    /// The client's memory for outputs, by the index of the output.
    slots: Vec<(usize, Slot)>,
    /// Whether the model reads or writes memory of the client all the same.
    is_partial: bool,
    /// The bytes of the copies.
    charge: Charge,
}

impl Api {
    /// Replaces the client's memory in a request of a marked peer: inputs by copies, and outputs by memory that the model makes. `places` says whether
    /// outputs go to leases. `None` if the model may use the client's memory.
    pub(crate) fn stage(
        &self,
        inputs: &mut Inputs,
        wanted: &mut WantedOutputs,
        places: bool,
    ) -> Result<Option<StagedRequest>, Status> {
        // If this is a front thread, the request began here before its peer was marked. Such a request continues without staging.
        if !self.is_stalling() || is_polling() {
            return Ok(None);
        }
        let Ok(runtime) = Handle::try_current() else { return Ok(None) };
        let bytes: usize = inputs.iter().filter(|input| is_clients(&input.data)).map(|input| input.data.len()).sum();
        let mut is_partial = bytes > STAGED_BYTES_MAX;
        if !is_partial {
            copy_inputs(inputs)?;
        }
        let mut slots = Vec::new();
        for (index, wanted) in wanted.indexed_mut() {
            slots.extend(wanted.slot.take_if(|slot| may_stage(slot)).map(|slot| (index, slot)));
            is_partial |= wanted.slot.is_some();
        }
        if bytes == 0 && slots.is_empty() && !is_partial && !places {
            return Ok(None);
        }
        STAGED_REQUESTS.fetch_add(1, Ordering::Relaxed);
        let charge = self.account().charge(if bytes > STAGED_BYTES_MAX { 0 } else { bytes });
        Ok(Some(StagedRequest { client: Arc::clone(&self.client), runtime, slots, is_partial, charge }))
    }
}

fn copy_inputs(inputs: &mut Inputs) -> Result<(), Status> {
    for input in inputs.iter_mut().filter(|input| is_clients(&input.data)) {
        let refuse = |refused| Status::no_memory(format_args!("input '{}'", input.name), refused);
        let copy = input.data.try_private(Reason::Staged).map_err(refuse)?;
        // If the client's memory was lost during the copy, the copied bytes are not the client's.
        if let Some(fault) = input.data.fault() {
            return Err(Status::invalid(fault));
        }
        input.data = copy;
    }
    Ok(())
}

/// Whether a client can make this process wait for these bytes. The driver of a device cannot be made to wait in this way.
fn is_clients(data: &Buffer) -> bool {
    data.access() == Access::Shared && data.place().is_host()
}

fn may_stage(slot: &Slot) -> bool {
    slot.place().is_host() && slot.len() <= STAGED_BYTES_MAX
}

impl StagedRequest {
    /// The reply whose responses go through stalling workers.
    pub(crate) fn reply<S>(self, mut delivery: Delivery<S>) -> Reply
    where
        S: FnMut(Response, Vec<OutputLease>) + Send + 'static,
    {
        let StagedRequest { client, runtime, slots, is_partial, charge } = self;
        let window = delivery.take_window();
        let side = ModelSide { places: None, window: window.clone(), ..delivery.side.clone() };
        let on_worker = |flow: &_, work| on_stalling_worker(flow, work);
        let queue = Queue::new(client, runtime, on_worker, LastStep { delivery, slots, _charge: charge });
        Reply::through(StagedReply { queue, side, is_partial })
    }
}

/// Takes the responses from the model.
struct StagedReply<S> {
    queue: Arc<Queue<LastStep<S>>>,
    /// Its window counts responses from when they were made. It offers no places.
    side: ModelSide,
    is_partial: bool,
}

struct LastStep<S> {
    delivery: Delivery<S>,
    slots: Vec<(usize, Slot)>,
    _charge: Charge,
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send + 'static> Deliver for StagedReply<S> {
    fn deliver(&mut self, mut response: Response) {
        if let Some(window) = &self.side.window {
            take_place(window, &mut response);
        }
        self.queue.push(response);
    }

    fn waited(&mut self, queue_ns: u64) {
        self.side.waited(queue_ns);
    }

    /// The run waits for nobody if all its tensors are in private memory.
    fn may_wait(&self) -> bool {
        self.is_partial
    }

    fn account(&self) -> Option<PeerAccount> {
        self.side.account.clone()
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.side.trace.clone()
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.side.window.clone()
    }
}

impl<S: FnMut(Response, Vec<OutputLease>) + Send> Deliver for LastStep<S> {
    fn deliver(&mut self, mut response: Response) {
        let is_last = response.is_last();
        let placed = match &mut response {
            Response::Part(tensors) | Response::Final(tensors) => self.copy_out(tensors),
            Response::End | Response::Failed { .. } => Ok(()),
        };
        if let Err(error) = placed {
            response = if is_last { Response::failed(error) } else { Response::failed_part(error) };
        }
        if is_last {
            // Before the answer is sent, because a client may unregister its regions as soon as it has the answer.
            self.slots = Vec::new();
        }
        self.delivery.deliver(response);
    }
}

impl<S> LastStep<S> {
    /// Copies each output to the memory that the client named.
    fn copy_out(&self, tensors: &mut InferResponse) -> Result<(), Status> {
        for (index, slot) in &self.slots {
            let Some(output) = tensors.outputs.iter_mut().find(|output| output.index == *index) else { continue };
            let need = output.data.len();
            if slot.len() < need {
                return Err(output_too_small(&output.name, slot.len(), need));
            }
            let Some(mut slot) = slot.again() else { continue };
            slot.truncate(need);
            slot.fill_from(0, &output.data, Reason::Staged)
                .map_err(|error| Status::internal(format!("output '{}': {error}", output.name)))?;
            output.data = slot.filled().into_buffer();
            output.placed = true;
            if let Some(fault) = output.data.fault() {
                return Err(Status::invalid(fault));
            }
        }
        Ok(())
    }
}
