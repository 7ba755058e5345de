//! How does a backend keep state of a sequence for its next request?

use std::ffi::c_void;

use nerite_request::Status;
use nerite_tensor::{DataType, Shape};

use super::exports;
use crate::abi::{List, Out, Text};
use crate::fault::Fault;
use crate::objects::{BufferAttributes, RequestObject, StateObject};
use crate::table::Handle;

type State = Handle<StateObject>;

exports! {
    "TRITONBACKEND_StateNew" = state_new(
        state: Out<State>,
        request: Handle<RequestObject>,
        name: Text,
        datatype: u32,
        shape: List<i64>,
        dims: u32,
    ) {
        let name = name.read()?;
        let datatype = DataType::ALL.into_iter().find(|known| *known as u32 == datatype);
        let datatype = datatype.ok_or_else(|| Fault::misuse(format!("state '{name}' has no valid datatype")))?;
        let shape = Shape::from_vec(shape.read(u64::from(dims))?);
        state.put(request.with(|request| request.state(name, datatype, shape))?)?;
    }

    "TRITONBACKEND_StateBuffer" =
        state_buffer(state: State, buffer: Out<*mut c_void>, bytes: u64, memory_type: Out<u32>, memory_id: Out<i64>) {
        // States are kept in the host's memory.
        let bytes = usize::try_from(bytes).map_err(|_| Status::invalid(format!("a state of {bytes} bytes")))?;
        buffer.put(state.get()?.place(bytes)?.cast())?;
        memory_type.put(0)?;
        memory_id.put(0)?;
    }

    "TRITONBACKEND_StateBufferAttributes" = state_buffer_attributes(state: State, attributes: Out<Handle<BufferAttributes>>) {
        attributes.put(state.get()?.attributes()?)?;
    }

    "TRITONBACKEND_StateUpdate" = state_update(state: State) {
        state.get()?.update()?;
    }
}
