//! How is a request checked once and run many times?
//!
//! A change of what was checked is noticed. The model version is compared at each call. The windows of shared memory are looked up by name again, so
//! a region that was removed, or a lease that was returned, is noticed. The contents of BYTES inputs can change, so they are checked at each call.
//!
//! A prepared request keeps neither its model loaded nor its memory mapped, so clients may keep it for any time.

use std::sync::Arc;

use nerite_engine::{CheckedTensors, VersionKey};
use nerite_request::{Cancel, InferRequest, Numbered, RequestedOutputs, Response, Source, Status, Wanted};
use nerite_shm::Account;
use nerite_tensor::{DataType, Name, Shape, Tensor};

use crate::Api;
use crate::admission::{Admission, Target};
use crate::admit::{Regions, admit};
use crate::places::OutputLease;

/// A request that was checked against its model.
#[derive(Debug)]
pub struct PreparedRequest {
    version: VersionKey,
    request: InferRequest,
    leased: Vec<String>,
    /// The result of the checks. `None` if they must be repeated at each call.
    checked: Option<Checked>,
}

/// The parts of the check that a call needs.
#[derive(Debug)]
struct Checked {
    /// The shape of each input that the model sees.
    shapes: Vec<Shape>,
    wanted: Vec<Name>,
    rows: u32,
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
        request: InferRequest,
        leased: Vec<String>,
        admission: &Admission,
        regions: &dyn Regions,
    ) -> Result<PreparedRequest, Status> {
        let contract = admission.model.contract();
        let CheckedTensors { inputs, wanted, rows, .. } = admit(&mut request.clone(), &contract, regions)?;
        let changes = inputs.iter().any(|input| input.datatype == DataType::Bytes);
        let checked = (!changes).then(|| Checked {
            shapes: inputs.into_iter().map(|input| input.shape).collect(),
            wanted: wanted.iter().map(|one| one.name.clone()).collect(),
            rows,
        });
        let version = admission.model.served().key();
        Ok(PreparedRequest { version, request, leased, checked })
    }

    /// As [`InferRequest::is_light`], for a call of this request.
    pub fn is_light(&self) -> bool {
        self.request.is_light()
    }

    /// As [`Api::note_request`], for a call of this request that is refused.
    pub fn note(&self, api: &Api) {
        api.note_request(&self.request);
    }

    pub(crate) fn submit(
        &self,
        api: &Api,
        regions: &dyn Regions,
        account: &Arc<Account>,
        cancel: Cancel,
        numbered: Option<Numbered>,
        sink: impl FnMut(Response, Vec<OutputLease>) + Send + 'static,
    ) -> Result<(), CallError> {
        api.note_request(&self.request);
        let (model, version) = (&self.request.model, &self.request.version);
        let under_way = api.take_on()?;
        let admission = api.admit(&under_way, Target::of_any(model, version), None);
        let admission = admission.map_err(|status| CallError::Stale(status.message))?;
        if !self.version.is_of(admission.model.served()) {
            return Err(CallError::Stale(format!("model '{model}' was loaded anew")));
        }
        let own = Some((account, self.leased.clone()));
        let Some(checked) = &self.checked else {
            let mut request = self.request.clone();
            api.trace_packet(&mut request);
            return Ok(api.submit_noted(admission, request, regions, own, cancel, sink)?);
        };
        let tensors = self.tensors(checked, regions).map_err(|status| CallError::Stale(status.message))?;
        let mut request = self.without_tensors();
        api.trace_packet(&mut request);
        let (tensors, sink) = ((tensors, &self.request.outputs[..]), (numbered, sink));
        Ok(api.submit_checked(admission, request, tensors, own, cancel, sink)?)
    }

    /// The tensors in their present memory. A window that is found has the size that was checked.
    fn tensors(&self, checked: &Checked, regions: &dyn Regions) -> Result<CheckedTensors, Status> {
        let inputs = self.request.inputs.iter().zip(&checked.shapes).map(|(input, shape)| {
            let data = match &input.source {
                Source::Inline(data) => data.clone(),
                Source::Region(region) => regions.buffer(region)?,
            };
            Ok(Tensor { name: input.name.clone(), datatype: input.datatype, shape: shape.clone(), data })
        });
        let inputs = inputs.collect::<Result<_, Status>>()?;
        // The outputs in the client's order. If the client named none, all outputs are meant.
        let wanted = checked.wanted.iter().enumerate().map(|(at, name)| {
            let region = self.request.outputs.get(at).and_then(|output| output.region.as_ref());
            let slot = region.map(|region| regions.slot(region)).transpose()?;
            Ok(Wanted { name: name.clone(), slot })
        });
        let wanted = wanted.collect::<Result<_, Status>>()?;
        // None of them is of strings.
        Ok(CheckedTensors { inputs, wanted, rows: checked.rows, string_bytes: 0 })
    }

    fn without_tensors(&self) -> InferRequest {
        let InferRequest { model, version, id, priority, timeout_us, sequence, parameters, .. } = &self.request;
        InferRequest {
            model: model.clone(),
            version: version.clone(),
            id: id.clone(),
            priority: *priority,
            timeout_us: *timeout_us,
            sequence: sequence.clone(),
            parameters: parameters.clone(),
            outputs: RequestedOutputs::new(),
            inputs: Vec::new(),
            raw_input: None,
            empty_final: self.request.empty_final,
            trace: None,
        }
    }
}
