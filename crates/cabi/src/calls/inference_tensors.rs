//! How does a backend set the inputs of a request to another model, and the outputs that it wants?

use nerite_tensor::{DataType, Shape};

use super::exports;
use crate::abi::{List, Opaque, Text};
use crate::fault::Fault;
use crate::limits::{INPUTS_MAX, OUTPUTS_MAX};
use crate::objects::Kept;
use crate::objects::{BufferAttributes, InferenceRequest, InputContent, ServerObject, TraceObject, start_inference};
use crate::table::Handle;

type Request = Handle<InferenceRequest>;

/// Adds bytes to an input, for instances of this host policy if one is given.
fn append(
    request: Request,
    name: Text,
    (base, bytes): (Opaque, usize),
    memory: (u32, i64),
    policy: Option<Text>,
) -> Result<(), Fault> {
    let request = request.get()?;
    let policy = policy.map(Text::read).transpose()?;
    request.content().input(&name.read()?)?.append(Kept(base.address()), bytes, memory, policy)
}

exports! {
    "TRITONSERVER_InferenceRequestAddInput" =
        add_input(request: Request, name: Text, datatype: u32, shape: List<i64>, dims: u64) {
        let (request, name) = (request.get()?, name.read()?);
        let found = DataType::ALL.into_iter().find(|known| *known as u32 == datatype);
        let datatype = found.ok_or_else(|| Fault::misuse(format!("input '{name}' has no valid datatype")))?;
        let mut content = request.content();
        if content.inputs.len() >= INPUTS_MAX {
            return Err(Fault::misuse(format!("a request has at most {INPUTS_MAX} inputs")));
        }
        content.add_input(InputContent::new(name, datatype, Shape::from_vec(shape.read(dims)?)))?;
    }

    "TRITONSERVER_InferenceRequestAddRawInput" = add_raw_input(request: Request, name: Text) {
        request.get()?.content().add_raw_input(name.read()?)?;
    }

    "TRITONSERVER_InferenceRequestRemoveInput" = remove_input(request: Request, name: Text) {
        let (request, name) = (request.get()?, name.read()?);
        let mut content = request.content();
        content.input(&name)?;
        content.inputs.retain(|input| input.name != name);
    }

    "TRITONSERVER_InferenceRequestRemoveAllInputs" = remove_all_inputs(request: Request) {
        request.get()?.content().inputs.clear();
    }

    "TRITONSERVER_InferenceRequestAppendInputData" = append_input_data(
        request: Request,
        name: Text,
        base: Opaque,
        bytes: usize,
        memory_type: u32,
        memory_id: i64,
    ) {
        append(request, name, (base, bytes), (memory_type, memory_id), None)?;
    }

    "TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy" = append_input_data_with_host_policy(
        request: Request,
        name: Text,
        base: Opaque,
        bytes: usize,
        memory_type: u32,
        memory_id: i64,
        policy: Text,
    ) {
        append(request, name, (base, bytes), (memory_type, memory_id), Some(policy))?;
    }

    "TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes" = append_input_data_with_attributes(
        request: Request,
        name: Text,
        base: Opaque,
        attributes: Handle<BufferAttributes>,
    ) {
        let attributes = attributes.get()?;
        let (bytes, memory) = {
            let values = attributes.values();
            (values.byte_size, (values.memory_type, values.memory_id))
        };
        append(request, name, (base, bytes), memory, None)?;
    }

    "TRITONSERVER_InferenceRequestRemoveAllInputData" = remove_all_input_data(request: Request, name: Text) {
        request.get()?.content().input(&name.read()?)?.clear();
    }

    "TRITONSERVER_InferenceRequestAddRequestedOutput" = add_requested_output(request: Request, name: Text) {
        let (request, name) = (request.get()?, name.read()?);
        let mut content = request.content();
        if content.wanted.len() >= OUTPUTS_MAX {
            return Err(Fault::misuse(format!("a request wants at most {OUTPUTS_MAX} outputs")));
        }
        if !content.wanted.contains(&name) {
            content.wanted.push(name);
        }
    }

    "TRITONSERVER_InferenceRequestRemoveRequestedOutput" = remove_requested_output(request: Request, name: Text) {
        let (request, name) = (request.get()?, name.read()?);
        request.content().wanted.retain(|wanted| *wanted != name);
    }

    "TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs" = remove_all_requested_outputs(request: Request) {
        request.get()?.content().wanted.clear();
    }

    "TRITONSERVER_ServerInferAsync" = infer_async(server: Handle<ServerObject>, request: Request, trace: Handle<TraceObject>) {
        let server = server.get()?;
        let mut traced = if trace.is_null() { None } else { Some(trace.take_trace(&server)?) };
        let started = start_inference(request, &mut traced);
        // As in Triton, the trace of a refused request stays with the caller that made it.
        if let (Some(kept), Ok(trace)) = (traced, trace.get()) {
            trace.put_back(kept);
        }
        started?;
    }
}
