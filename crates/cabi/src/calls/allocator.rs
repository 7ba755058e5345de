//! How does a backend allocate memory for responses to its own requests?

use std::sync::Arc;

use super::exports;
use crate::abi::Out;
use crate::fault::Fault;
use crate::objects::Allocator;
use crate::objects::{AllocateFn, DescribeFn, QueryFn, ReleaseFn, StartFn};
use crate::table::Handle;

exports! {
    "TRITONSERVER_ResponseAllocatorNew" = allocator_new(
        allocator: Out<Handle<Allocator>>,
        allocate: Option<AllocateFn<Allocator>>,
        release: Option<ReleaseFn<Allocator>>,
        start: Option<StartFn<Allocator>>,
    ) {
        let (Some(allocate), Some(release)) = (allocate, release) else {
            return Err(Fault::misuse("a response allocator needs a function that allocates and one that releases"));
        };
        allocator.put(Handle::to(Arc::new(Allocator::new(allocate, release, start)))?)?;
    }

    "TRITONSERVER_ResponseAllocatorDelete" = allocator_delete(allocator: Handle<Allocator>) {
        allocator.delete()?;
    }

    "TRITONSERVER_ResponseAllocatorSetQueryFunction" = set_query_function(allocator: Handle<Allocator>, query: Option<QueryFn<Allocator>>) {
        allocator.get()?.set_query(query);
    }

    "TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction" =
        set_buffer_attributes_function(allocator: Handle<Allocator>, describe: Option<DescribeFn<Allocator>>) {
        allocator.get()?.set_describe(describe);
    }
}
