//! How does a backend read an input?

use std::ffi::{c_char, c_void};

use nerite_memory::{Buffer, Place};

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

fn properties(input: Input, policy: Option<Text>, places: &Properties) -> Result<(), Fault> {
    input.with(|input| {
        let data = data_for(input, policy);
        // Name and shape live as long as the input's handle.
        places.name.put_unless_null(input.name.as_ptr());
        places.datatype.put_unless_null(input.tensor.datatype as u32);
        places.shape.put_unless_null(input.tensor.shape.as_ptr());
        places.dims.put_unless_null(input.tensor.shape.len() as u32);
        places.bytes.put_unless_null(data.len() as u64);
        places.buffers.put_unless_null(buffer_count(data));
        Ok(())
    })
}

/// The data of an input for instances of this host policy, if the caller names one.
fn data_for(input: &InputObject, policy: Option<Text>) -> &Buffer {
    input.data_for(|| policy.and_then(Text::read_if_given))
}

/// An input has one buffer. An input without bytes has none, as in Triton.
fn buffer_count(data: &Buffer) -> u32 {
    u32::from(!data.is_empty())
}

fn check_index(input: &InputObject, data: &Buffer, index: u32) -> Result<(), Fault> {
    let count = buffer_count(data);
    // The first buffer of an empty input is NULL.
    if index < count.max(1) {
        return Ok(());
    }
    Err(Fault::misuse(format!("out of bounds index {index}: input '{}' has {count} buffers", input.tensor.name)))
}

/// Where data begins. NULL if there is none.
fn first_byte(data: &Buffer) -> *const c_void {
    if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() }
}

/// Where the buffer of an input is written.
struct BufferPlaces {
    base: Out<*const c_void>,
    bytes: Out<u64>,
    memory_type: Out<u32>,
    memory_id: Out<i64>,
}

fn buffer(input: Input, policy: Option<Text>, index: u32, places: &BufferPlaces) -> Result<(), Fault> {
    input.with(|input| {
        let data = data_for(input, policy);
        if index >= buffer_count(data) {
            // Some backends read the first buffer of an empty input, such as NVIDIA's Python backend. As in Triton, a buffer that does not exist is
            // empty.
            places.base.put(std::ptr::null())?;
            places.bytes.put(0)?;
            let (kind, id) = memory_of(Place::Host);
            places.memory_type.put(kind)?;
            return places.memory_id.put(id);
        }
        let (kind, id) = memory_of(data.place());
        // The client's own memory, without a copy.
        places.base.put(data.as_ptr().cast())?;
        places.bytes.put(data.len() as u64)?;
        places.memory_type.put(kind)?;
        places.memory_id.put(id)
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
        properties(input, None, &Properties { name, datatype, shape, dims, bytes, buffers })?;
    }

    "TRITONBACKEND_InputPropertiesForHostPolicy" = input_properties_for_host_policy(
        input: Input,
        policy: Text,
        name: Out<*const c_char>,
        datatype: Out<u32>,
        shape: Out<*const i64>,
        dims: Out<u32>,
        bytes: Out<u64>,
        buffers: Out<u32>,
    ) {
        properties(input, Some(policy), &Properties { name, datatype, shape, dims, bytes, buffers })?;
    }

    "TRITONBACKEND_InputBuffer" = input_buffer(
        input: Input,
        index: u32,
        base: Out<*const c_void>,
        bytes: Out<u64>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        buffer(input, None, index, &BufferPlaces { base, bytes, memory_type, memory_id })?;
    }

    "TRITONBACKEND_InputBufferForHostPolicy" = input_buffer_for_host_policy(
        input: Input,
        policy: Text,
        index: u32,
        base: Out<*const c_void>,
        bytes: Out<u64>,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        buffer(input, Some(policy), index, &BufferPlaces { base, bytes, memory_type, memory_id })?;
    }

    "TRITONBACKEND_InputBufferAttributes" = input_buffer_attributes(
        input: Input,
        index: u32,
        base: Out<*const c_void>,
        attributes: Out<Handle<BufferAttributes>>,
    ) {
        input.with(|input| {
            check_index(input, &input.tensor.data, index)?;
            base.put(first_byte(&input.tensor.data))?;
            attributes.put(input.attributes()?)
        })?;
    }
}
