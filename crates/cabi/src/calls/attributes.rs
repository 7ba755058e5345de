//! How does a backend read and set the attributes of a buffer?

use std::ffi::c_void;
use std::sync::Arc;

use super::exports;
use crate::abi::{List, Out};
use crate::fault::Fault;
use crate::objects::{BufferAttributes, SaidMemory};
use crate::table::Handle;

type Attributes = Handle<BufferAttributes>;

/// Stores the memory that a backend reports: attributes for each kind.
pub(super) fn say_memory(said: &SaidMemory, usage: List<Attributes>, count: u32) -> Result<(), Fault> {
    let all = usage.read(u64::from(count))?.into_iter().map(Handle::get).collect::<Result<Vec<_>, _>>()?;
    said.say(all.iter().map(|attributes| attributes.values()));
    Ok(())
}

exports! {
    "TRITONSERVER_BufferAttributesNew" = attributes_new(attributes: Out<Attributes>) {
        attributes.put(Handle::to(Arc::new(BufferAttributes::default()))?)?;
    }

    "TRITONSERVER_BufferAttributesDelete" = attributes_delete(attributes: Attributes) {
        attributes.delete()?;
    }

    "TRITONSERVER_BufferAttributesSetMemoryType" = set_memory_type(attributes: Attributes, memory_type: u32) {
        attributes.get()?.values().memory_type = memory_type;
    }

    "TRITONSERVER_BufferAttributesSetMemoryTypeId" = set_memory_type_id(attributes: Attributes, memory_id: i64) {
        attributes.get()?.values().memory_id = memory_id;
    }

    "TRITONSERVER_BufferAttributesSetByteSize" = set_byte_size(attributes: Attributes, byte_size: usize) {
        attributes.get()?.values().byte_size = byte_size;
    }

    "TRITONSERVER_BufferAttributesSetCudaIpcHandle" = set_cuda_ipc_handle(attributes: Attributes, handle: List<u8>) {
        let handle: [u8; 64] = handle.read(64)?.try_into().map_err(|_| Fault::misuse("the handle has not 64 bytes"))?;
        attributes.get()?.values().ipc = Some(Box::new(handle));
    }

    "TRITONSERVER_BufferAttributesMemoryType" = memory_type(attributes: Attributes, memory_type: Out<u32>) {
        memory_type.put(attributes.get()?.values().memory_type)?;
    }

    "TRITONSERVER_BufferAttributesMemoryTypeId" = memory_type_id(attributes: Attributes, memory_id: Out<i64>) {
        memory_id.put(attributes.get()?.values().memory_id)?;
    }

    "TRITONSERVER_BufferAttributesByteSize" = byte_size(attributes: Attributes, byte_size: Out<usize>) {
        byte_size.put(attributes.get()?.values().byte_size)?;
    }

    "TRITONSERVER_BufferAttributesCudaIpcHandle" = cuda_ipc_handle(attributes: Attributes, handle: Out<*const c_void>) {
        // The handle is in a box, which lives until the attributes are deleted or another handle is set.
        let attributes = attributes.get()?;
        let values = attributes.values();
        handle.put(values.ipc.as_ref().map_or(std::ptr::null(), |handle| handle.as_ptr().cast()))?;
    }
}
