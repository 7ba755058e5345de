//! How is a request checked once and run many times?
//!
//! Each call notices if the model or the memory has changed since the check. The model version is compared. A window in a lease of the session is used
//! again if the session still has the lease. Other windows of shared memory are looked up by name again, so a region that was removed is noticed. The
//! contents of BYTES inputs can change, so they are checked at each call.
//!
//! A prepared request keeps neither its model loaded nor its memory mapped, so clients may keep it for any time.

use std::sync::{Arc, Weak};

use nerite_engine::{CheckedTensors, VersionKey};
use nerite_memory::{Buffer, Extent, Slot};
use nerite_request::names::ByName;
use nerite_request::{
    Cancel, InferRequest, Inputs, Numbered, Recycled, RegionRef, Response, Source, Status, TraceContext, Wanted,
};
use nerite_shm::{Account, Lease};
use nerite_tensor::{DataType, Name, Shape, Tensor};

use crate::Api;
use crate::admission::{Admission, Target};
use crate::admit::{Regions, admit};
use crate::calls::Head;
use crate::places::OutputLease;

/// A request that was checked against its model.
#[derive(Debug)]
pub struct PreparedRequest {
    version: VersionKey,
    request: Recycled<InferRequest>,
    leased: Vec<String>,
    /// The result of the checks. `None` if they must be repeated at each call.
    checked: Option<Checked>,
}

/// The parts of the check that a call needs.
#[derive(Debug)]
struct Checked {
    /// The shape of each input that the model sees, and its window.
    inputs: Vec<(Shape, Window)>,
    /// The indices of the inputs that the request leaves out.
    left_out: Vec<usize>,
    /// The index and the name of each output, and its window.
    wanted: Vec<(usize, Name, Window)>,
    rows: u32,
}

/// Where a tensor's window of shared memory was found.
#[derive(Debug)]
enum Window {
    /// In a lease of the session. This does not keep the lease mapped.
    OwnLease(Weak<Lease>, Extent),
    /// In other memory, or the tensor has no window.
    Other,
}

/// Why a prepared request was not run.
#[derive(Debug)]
pub enum CallError {
    /// The checked model or memory has changed. The text says how.
    Stale(String),
    /// The request itself is refused.
    Refused(Status),
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        CallError::Refused(status)
    }
}

impl PreparedRequest {
    pub(crate) fn of(
        mut request: Recycled<InferRequest>,
        leased: Vec<String>,
        admission: &Admission,
        regions: &dyn Regions,
    ) -> Result<PreparedRequest, Status> {
        let contract = admission.model.contract();
        let CheckedTensors { inputs, wanted, rows, .. } = admit(&mut request.clone(), &contract, regions)?;
        // Inputs are submitted in the order and with the names of the configuration. That is settled here for all calls.
        let order = ByName::new(&inputs, |input: &Tensor| &input.name);
        request.inputs.sort_by_cached_key(|input| order.index_of(&input.name));
        for (requested, input) in request.inputs.iter_mut().zip(&inputs) {
            requested.name = input.name.clone();
        }
        let changes = inputs.iter().any(|input| input.datatype == DataType::Bytes);
        let window = |region: Option<&RegionRef>| region.map_or(Window::Other, |region| Window::of(region, regions));
        let checked = (!changes).then(|| Checked {
            left_out: inputs.left_out().to_vec(),
            inputs: inputs
                .into_iter()
                .zip(&request.inputs)
                .map(|(input, requested)| (input.shape, window(requested.source.region())))
                .collect(),
            wanted: wanted
                .indexed()
                .enumerate()
                .map(|(at, (index, one))| (index, one.name.clone(), window(region_of(&request, at))))
                .collect(),
            rows,
        });
        let version = admission.model.served().key();
        Ok(PreparedRequest { version, request, leased, checked })
    }

    /// The request, and its outputs that are written to leases that the server chooses.
    pub(crate) fn request(&self) -> (&InferRequest, &[String]) {
        (&self.request, &self.leased)
    }

    /// As [`Api::note_request`], for a call of this request that is refused.
    pub fn note(&self, api: &Api) {
        api.note_request(&self.request);
    }

    pub(crate) fn submit(
        &self,
        api: &Api,
        (regions, account): (&dyn Regions, &Arc<Account>),
        parent: Option<Box<TraceContext>>,
        cancel: Cancel,
        numbered: Option<Numbered>,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), CallError> {
        api.note_request(&self.request);
        let (model, version) = (&self.request.model, &self.request.version);
        let under_way = api.accept_inference()?;
        let admission = api.admit(under_way, Target::of_any(model, version), None);
        let admission = admission.map_err(|status| CallError::Stale(status.message))?;
        if !self.version.is_of(admission.model.served()) {
            return Err(CallError::Stale(format!("model '{model}' was loaded anew")));
        }
        let own = Some((account, self.leased.clone()));
        let Some(checked) = &self.checked else {
            let mut request = self.request.clone();
            request.trace = api.trace_packet(model, parent);
            return Ok(api.submit_noted(admission, request, regions, own, cancel, sink)?);
        };
        let tensors = self.tensors(checked, regions).map_err(|status| CallError::Stale(status.message))?;
        let (tensors, sink) = ((tensors, &self.request.outputs[..]), (numbered, sink));
        Ok(api.submit_checked(admission, self.head(api, parent), tensors, own, cancel, sink)?)
    }

    /// The tensors in their present memory. A window that is found has the size that was checked.
    fn tensors(&self, checked: &Checked, regions: &dyn Regions) -> Result<CheckedTensors, Status> {
        let inputs = self.request.inputs.iter().zip(&checked.inputs).map(|(input, (shape, window))| {
            let data = match &input.source {
                Source::Inline(data) => data.clone(),
                Source::Region(region) => window.buffer(region, regions)?,
            };
            Ok(Tensor { name: input.name.clone(), datatype: input.datatype, shape: shape.clone(), data })
        });
        let inputs = inputs.collect::<Result<Inputs, Status>>()?.lacking(&checked.left_out);
        // The outputs in the client's order. If the client named none, all outputs are meant.
        let wanted = checked.wanted.iter().enumerate().map(|(at, (index, name, window))| {
            let slot = region_of(&self.request, at).map(|region| window.slot(region, regions)).transpose()?;
            Ok((*index, Wanted { name: name.clone(), slot }))
        });
        let wanted = wanted.collect::<Result<_, Status>>()?;
        // No input of a checked request is of BYTES, so there are no strings.
        Ok(CheckedTensors { inputs, wanted, rows: checked.rows, string_bytes: 0 })
    }

    fn head(&self, api: &Api, parent: Option<Box<TraceContext>>) -> Head {
        let InferRequest { model, id, priority, timeout_us, sequence, parameters, .. } = &*self.request;
        Head {
            id: id.clone(),
            priority: *priority,
            timeout_us: *timeout_us,
            sequence: sequence.clone(),
            parameters: parameters.clone(),
            trace: api.trace_packet(model, parent),
        }
    }
}

impl Window {
    fn of(region: &RegionRef, regions: &dyn Regions) -> Window {
        let found = regions.own_lease(&region.name).and_then(|lease| {
            let extent = lease.locate(region.offset, region.byte_size).ok()?;
            Some(Window::OwnLease(Arc::downgrade(&lease), extent))
        });
        found.unwrap_or(Window::Other)
    }

    /// The lease and the part of it, if the session still has the lease.
    fn lease(&self) -> Option<(Arc<Lease>, Extent)> {
        let Window::OwnLease(lease, extent) = self else { return None };
        let lease = lease.upgrade().filter(|lease| lease.is_lent())?;
        Some((lease, *extent))
    }

    fn buffer(&self, region: &RegionRef, regions: &dyn Regions) -> Result<Buffer, Status> {
        self.lease().map_or_else(|| regions.buffer(region), |(lease, extent)| Ok(lease.buffer(extent)))
    }

    fn slot(&self, region: &RegionRef, regions: &dyn Regions) -> Result<Slot, Status> {
        self.lease().map_or_else(|| regions.slot(region), |(lease, extent)| Ok(lease.slot(extent)))
    }
}

/// The window that the client named for the output at this position. If the client named no outputs, all are meant, and none has a window.
fn region_of(request: &InferRequest, at: usize) -> Option<&RegionRef> {
    request.outputs.get(at)?.region.as_ref()
}
