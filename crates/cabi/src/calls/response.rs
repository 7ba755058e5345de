//! How does a backend answer?

use std::ffi::c_char;
use std::sync::Arc;

use nerite_request::{Parameter, Status};
use nerite_tensor::{DataType, Name, Shape};

use super::exports;
use crate::abi::{List, Out, Text};
use crate::fault::Fault;
use crate::objects::{ErrorObject, Factory, OutputObject, RequestObject, ResponseObject, ResponsePath};
use crate::table::Handle;

type Response = Handle<ResponseObject>;

/// The flag of the last response.
const COMPLETE_FINAL: u32 = 1;

fn new_response(path: Arc<ResponsePath>) -> Result<Response, Fault> {
    Handle::to(Box::new(ResponseObject::new(path)))
}

/// The response path of a request.
fn path_of(request: Handle<RequestObject>) -> Result<Arc<ResponsePath>, Fault> {
    request.with(|request| Ok(Arc::clone(&request.path)))
}

fn add_output(response: Response, name: Name, datatype: u32, shape: Shape) -> Result<Handle<OutputObject>, Fault> {
    let datatype = DataType::ALL.into_iter().find(|known| *known as u32 == datatype);
    let datatype = datatype.ok_or_else(|| Fault::misuse(format!("output '{name}' has no valid datatype")))?;
    response.with(|response| {
        response.path.check_output(&name)?;
        response.add(OutputObject::new(Arc::clone(&response.path), name, datatype, shape))
    })
}

/// Writes the properties of an output of a response that was not sent yet.
fn put_properties(
    output: &OutputObject,
    datatype: &Out<u32>,
    shape: &Out<*const i64>,
    dims: &Out<u64>,
) -> Result<(), Fault> {
    datatype.put(output.datatype as u32)?;
    shape.put(output.shape.as_ptr())?;
    dims.put(output.shape.len() as u64)
}

fn set_parameter(response: Response, name: Text, value: Parameter) -> Result<(), Fault> {
    let name = name.read()?;
    response.with(|response| {
        response.set_parameter(name, value);
        Ok(())
    })
}

exports! {
    "TRITONBACKEND_ResponseNew" = response_new(response: Out<Response>, request: Handle<RequestObject>) {
        response.put(new_response(path_of(request)?)?)?;
    }

    "TRITONBACKEND_ResponseNewFromFactory" = response_new_from_factory(response: Out<Response>, factory: Handle<Factory>) {
        let path = factory.with(|factory| Ok(Arc::clone(&factory.path)))?;
        response.put(new_response(path)?)?;
    }

    "TRITONBACKEND_ResponseDelete" = response_delete(response: Response) {
        response.delete()?;
    }

    "TRITONBACKEND_ResponseOutput" = response_output(
        response: Response,
        output: Out<Handle<OutputObject>>,
        name: Text,
        datatype: u32,
        shape: List<i64>,
        dims: u32,
    ) {
        output.put(add_output(response, name.name()?, datatype, shape.read_as(u64::from(dims))?)?)?;
    }

    "TRITONBACKEND_InferenceResponseOutput" = unsent_output(
        response: Response,
        index: u32,
        name: Out<*const c_char>,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u64>,
    ) {
        let (found, count) = response.with(|response| Ok((response.output_at(index), response.output_count())))?;
        let output = found.ok_or_else(|| Fault::misuse(format!("out of bounds index {index}: response has {count} outputs")))?;
        output.with(|output| {
            // Name and shape live as long as the output, which belongs to the response.
            name.put(output.c_name().as_ptr())?;
            put_properties(output, &datatype, &shape, &dims)
        })?;
    }

    "TRITONBACKEND_InferenceResponseOutputByName" = unsent_output_by_name(
        response: Response,
        name: Text,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u64>,
    ) {
        let name = name.name()?;
        let found = response.with(|response| Ok(response.output_named(&name)))?;
        let output = found.ok_or_else(|| Status::not_found(format!("Output name {name} not found.")))?;
        output.with(|output| put_properties(output, &datatype, &shape, &dims))?;
    }

    "TRITONBACKEND_ResponseSend" = response_send(response: Response, flags: u32, error: Handle<ErrorObject>) {
        // The caller keeps the error.
        let error = if error.is_null() { None } else { Some(error.get()?.status()) };
        let sent = response.take()?;
        let is_last = flags & COMPLETE_FINAL != 0;
        match error {
            Some(error) if is_last => sent.path.answer_error(error)?,
            Some(error) => sent.path.send(is_last, |_| Err(error))?,
            None => sent.path.send(is_last, |responder| sent.fill(responder))?,
        }
    }

    "TRITONBACKEND_ResponseSetStringParameter" = set_string_parameter(response: Response, name: Text, value: Text) {
        set_parameter(response, name, Parameter::String(value.read()?))?;
    }

    "TRITONBACKEND_ResponseSetIntParameter" = set_int_parameter(response: Response, name: Text, value: i64) {
        set_parameter(response, name, Parameter::Int(value))?;
    }

    "TRITONBACKEND_ResponseSetBoolParameter" = set_bool_parameter(response: Response, name: Text, value: u8) {
        set_parameter(response, name, Parameter::Bool(value != 0))?;
    }

    "TRITONBACKEND_ResponseSetDoubleParameter" = set_double_parameter(response: Response, name: Text, value: f64) {
        set_parameter(response, name, Parameter::Double(value))?;
    }

    "TRITONBACKEND_ResponseFactoryNew" = factory_new(factory: Out<Handle<Factory>>, request: Handle<RequestObject>) {
        let made = Factory { path: path_of(request)? };
        factory.put(Handle::to(Arc::new(made))?)?;
    }

    "TRITONBACKEND_ResponseFactoryDelete" = factory_delete(factory: Handle<Factory>) {
        factory.delete()?;
    }

    "TRITONBACKEND_ResponseFactorySendFlags" = factory_send_flags(factory: Handle<Factory>, flags: u32) {
        let factory = factory.get()?;
        if flags & COMPLETE_FINAL != 0 {
            factory.path.end()?;
        }
    }

    "TRITONBACKEND_ResponseFactoryIsCancelled" = factory_is_cancelled(factory: Handle<Factory>, is_cancelled: Out<bool>) {
        is_cancelled.put(factory.get()?.path.is_cancelled())?;
    }

}
