//! How does a backend read another model's response?

use std::ffi::{c_char, c_void};

use super::{exports, plain_exports};
use crate::abi::Out;
use crate::fault::Fault;
use crate::objects::{ErrorObject, InferenceResponse, ReturnedOutput};
use crate::table::Handle;

type Response = Handle<InferenceResponse>;

fn output_at(response: &InferenceResponse, index: u32) -> Result<&ReturnedOutput, Fault> {
    let found = response.outputs.get(index as usize);
    found.ok_or_else(|| {
        Fault::misuse(format!("out of bounds index {index}: response has {} outputs", response.outputs.len()))
    })
}

exports! {
    "TRITONSERVER_InferenceResponseDelete" = response_delete(response: Response) {
        response.delete()?;
    }

    "TRITONSERVER_InferenceResponseModel" = model(response: Response, name: Out<*const c_char>, version: Out<i64>) {
        let response = response.get()?;
        name.put(response.model.as_ptr())?;
        version.put(response.version)?;
    }

    "TRITONSERVER_InferenceResponseId" = id(response: Response, id: Out<*const c_char>) {
        id.put(response.get()?.id.as_ptr())?;
    }

    "TRITONSERVER_InferenceResponseParameterCount" = parameter_count(response: Response, count: Out<u32>) {
        count.put(response.get()?.parameters.len() as u32)?;
    }

    "TRITONSERVER_InferenceResponseParameter" =
        parameter(response: Response, index: u32, name: Out<*const c_char>, kind: Out<u32>, value: Out<*const c_void>) {
        let response = response.get()?;
        let (key, parameter) = response.parameters.get(index as usize).ok_or_else(|| {
            Fault::misuse(format!("out of bounds index {index}: response has {} parameters", response.parameters.len()))
        })?;
        name.put(key.as_ptr())?;
        kind.put(parameter.kind())?;
        value.put(parameter.address())?;
    }

    "TRITONSERVER_InferenceResponseOutputCount" = output_count(response: Response, count: Out<u32>) {
        count.put(response.get()?.outputs.len() as u32)?;
    }

    "TRITONSERVER_InferenceResponseOutput" = output(
        response: Response,
        index: u32,
        name: Out<*const c_char>,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u64>,
        base: Out<*const c_void>,
        bytes: Out<usize>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
        userp: Out<*mut c_void>,
    ) {
        // Name, shape and memory live as long as the response's handle.
        let response = response.get()?;
        let found = output_at(&response, index)?;
        let memory = &found.allocated.memory;
        name.put(found.name.as_ptr())?;
        datatype.put(found.datatype as u32)?;
        shape.put(found.shape.as_ptr())?;
        dims.put(found.shape.len() as u64)?;
        base.put(memory.base.0)?;
        bytes.put(found.bytes)?;
        memory_type.put(memory.kind)?;
        memory_id.put(memory.id)?;
        userp.put(memory.userp.0)?;
    }

    "TRITONSERVER_InferenceResponseOutputClassificationLabel" =
        classification_label(response: Response, index: u32, class: usize, label: Out<*const c_char>) {
        label.check()?;
        let response = response.get()?;
        label.put(response.label(index, output_at(&response, index)?, class)?)?;
    }
}

plain_exports! {
    "TRITONSERVER_InferenceResponseError" = error(response: Response) -> Handle<ErrorObject> {
        // The response keeps its error.
        match response.get() {
            Ok(response) => response.error,
            Err(fault) => crate::answer::error(&fault.into_status("TRITONSERVER_InferenceResponseError")),
        }
    }
}
