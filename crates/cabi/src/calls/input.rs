//! How does a backend read an input?

use std::ffi::{c_char, c_void};

use super::exports;
use crate::abi::{Out, Text};
use crate::fault::Fault;
use crate::objects::{BufferAttributes, InputObject, memory_of};
use crate::table::Handle;

type Input = Handle<InputObject>;

/// Where the properties of an input are written. Any of the pointers may be NULL.
struct Properties {
    name: Out<*const c_char>,
    datatype: Out<u32>,
    shape: Out<*const i64>,
    dims: Out<u32>,
    bytes: Out<u64>,
    buffers: Out<u32>,
}

fn properties(input: Input, places: &Properties) -> Result<(), Fault> {
    input.with(|input| {
        // Name and shape live as long as the input's handle.
        places.name.put_if_asked(input.name.as_ptr());
        places.datatype.put_if_asked(input.tensor.datatype as u32);
        places.shape.put_if_asked(input.tensor.shape.as_ptr());
        places.dims.put_if_asked(input.tensor.shape.len() as u32);
        places.bytes.put_if_asked(input.tensor.data.len() as u64);
        places.buffers.put_if_asked(buffer_count(input));
        Ok(())
    })
}

/// An input has one buffer. An input without bytes has none, as in Triton.
fn buffer_count(input: &InputObject) -> u32 {
    u32::from(!input.tensor.data.is_empty())
}

fn check_index(input: &InputObject, index: u32) -> Result<(), Fault> {
    let count = buffer_count(input);
    // Backends ask for the first buffer of an empty input too, as NVIDIA's Python backend does. In Triton that is NULL and no bytes.
    if index < count.max(1) {
        return Ok(());
    }
    Err(Fault::misuse(format!("out of bounds index {index}: input '{}' has {count} buffers", input.tensor.name)))
}

/// Where an input begins. NULL for an empty one.
fn first_byte(input: &InputObject) -> *const c_void {
    if input.tensor.data.is_empty() { std::ptr::null() } else { input.tensor.data.as_ptr().cast() }
}

fn buffer(
    input: Input,
    index: u32,
    base: &Out<*const c_void>,
    bytes: &Out<u64>,
    memory_type: &Out<u32>,
    memory_id: &Out<i64>,
) -> Result<(), Fault> {
    input.with(|input| {
        check_index(input, index)?;
        let (kind, id) = memory_of(input.tensor.data.place());
        // The client's own memory, without a copy.
        base.put(first_byte(input))?;
        bytes.put(input.tensor.data.len() as u64)?;
        memory_type.put(kind)?;
        memory_id.put(id)
    })
}

exports! {
    "TRITONBACKEND_InputProperties" = input_properties(
        input: Input,
        name: Out<*const c_char>,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u32>,
        bytes: Out<u64>,
        buffers: Out<u32>,
    ) {
        properties(input, &Properties { name, datatype, shape, dims, bytes, buffers })?;
    }

    "TRITONBACKEND_InputPropertiesForHostPolicy" = input_properties_for_host_policy(
        input: Input,
        _policy: Text,
        name: Out<*const c_char>,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u32>,
        bytes: Out<u64>,
        buffers: Out<u32>,
    ) {
        // The host policy has no effect, because the input stays in the client's memory.
        properties(input, &Properties { name, datatype, shape, dims, bytes, buffers })?;
    }

    "TRITONBACKEND_InputBuffer" = input_buffer(
        input: Input,
        index: u32,
        base: Out<*const c_void>,
        bytes: Out<u64>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        buffer(input, index, &base, &bytes, &memory_type, &memory_id)?;
    }

    "TRITONBACKEND_InputBufferForHostPolicy" = input_buffer_for_host_policy(
        input: Input,
        _policy: Text,
        index: u32,
        base: Out<*const c_void>,
        bytes: Out<u64>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        buffer(input, index, &base, &bytes, &memory_type, &memory_id)?;
    }

    "TRITONBACKEND_InputBufferAttributes" = input_buffer_attributes(
        input: Input,
        index: u32,
        base: Out<*const c_void>,
        attributes: Out<Handle<BufferAttributes>>,
    ) {
        let input = input.get()?;
        check_index(&input, index)?;
        base.put(first_byte(&input))?;
        attributes.put(input.attributes()?)?;
    }
}
