//! Which memory does a backend get for its own use?

use std::ffi::c_void;

use nerite_request::Status;

use super::exports;
use crate::abi::{Opaque, Out, allocate, free};
use crate::fault::Fault;
use crate::objects::BackendObject;
use crate::table::Handle;

fn check(memory_type: u32) -> Result<(), Fault> {
    match memory_type {
        0 => Ok(()),
        1 => Err(Status::unsupported("Pinned memory allocation not supported").into()),
        2 => Err(Status::unsupported("GPU memory allocation not supported").into()),
        other => Err(Fault::misuse(format!("there is no memory type {other}"))),
    }
}

exports! {
    "TRITONBACKEND_MemoryManagerAllocate" =
        allocate_memory(manager: Handle<BackendObject>, memory: Out<*mut c_void>, memory_type: u32, _id: i64, bytes: u64) {
        manager.get()?;
        check(memory_type)?;
        memory.put(allocate(bytes)?)?;
    }

    "TRITONBACKEND_MemoryManagerFree" =
        free_memory(manager: Handle<BackendObject>, memory: Opaque, memory_type: u32, _id: i64) {
        manager.get()?;
        check(memory_type)?;
        free(memory);
    }
}
