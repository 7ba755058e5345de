//! How does a backend say where responses to its own requests go?

use std::sync::Arc;

use super::exports;
use crate::abi::{Opaque, Out};
use crate::objects::Allocator;
use crate::table::Handle;

exports! {
    "TRITONSERVER_ResponseAllocatorNew" =
        allocator_new(allocator: Out<Handle<Allocator>>, _allocate: Opaque, _release: Opaque, _start: Opaque) {
        allocator.put(Handle::to(Arc::new(Allocator))?)?;
    }

    "TRITONSERVER_ResponseAllocatorDelete" = allocator_delete(allocator: Handle<Allocator>) {
        allocator.take()?;
    }

    "TRITONSERVER_ResponseAllocatorSetQueryFunction" = set_query_function(allocator: Handle<Allocator>, _query: Opaque) {
        allocator.get()?;
    }

    "TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction" =
        set_buffer_attributes_function(allocator: Handle<Allocator>, _tell: Opaque) {
        allocator.get()?;
    }
}
