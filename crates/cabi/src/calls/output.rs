//! How does a backend get the memory of an output?

use std::ffi::c_void;

use nerite_memory::Place;

use super::exports;
use crate::abi::Out;
use crate::objects::{BufferAttributes, OutputObject, memory_of};
use crate::table::Handle;

type Output = Handle<OutputObject>;

exports! {
    "TRITONBACKEND_OutputBuffer" = output_buffer(
        output: Output,
        buffer: Out<*mut c_void>,
        bytes: u64,
        memory_type: Out<u32>,
        memory_id: Out<i64>,
    ) {
        let preferred = match (memory_type.wished(), memory_id.wished()) {
            (Some(1), _) => Place::Pinned,
            (Some(2), Some(id)) => u32::try_from(id).map_or(Place::Host, Place::Device),
            _ => Place::Host,
        };
        let (address, place) = output.place(usize::try_from(bytes).unwrap_or(usize::MAX), preferred)?;
        let (kind, id) = memory_of(place);
        buffer.put(address.cast())?;
        memory_type.put(kind)?;
        memory_id.put(id)?;
    }

    "TRITONBACKEND_OutputBufferAttributes" = output_buffer_attributes(output: Output, attributes: Out<Handle<BufferAttributes>>) {
        attributes.put(output.with(OutputObject::attributes)?)?;
    }
}
