//! Which objects do the handles of the interface stand for?

mod allocator;
mod attributes;
mod backend;
mod callbacks;
mod error;
mod inference;
mod inference_request;
mod inference_response;
mod input_content;
mod instance;
mod memory_usage;
mod message;
mod metric;
mod metrics_page;
mod model;
mod observer;
mod options;
mod outstanding;
mod parameter;
mod request;
mod response;
mod response_path;
mod response_statistics;
mod state;
mod tensors;
mod trace;

pub use allocator::{Allocated, Allocating, Allocator};
pub use attributes::{AttributeValues, BufferAttributes, memory_of};
pub use backend::{BackendAttribute, BackendObject, BackendParts, DEVICE_BLOCKING};
pub use callbacks::{
    ActivityFn, AllocateFn, DescribeFn, Kept, QueryFn, ReleaseFn, RequestReleaseFn, RespondFn, StartFn,
    TensorActivityFn, TraceReleaseFn,
};
pub use error::{ErrorObject, code_number, code_of};
pub use inference::start_inference;
pub use inference_request::{InferenceRequest, Respond};
pub use inference_response::{InferenceResponse, OutputAllocations, ReturnedOutput};
pub use input_content::InputContent;
pub use instance::InstanceObject;
pub use memory_usage::{MemoryOfModel, SaidMemory};
pub use message::Message;
pub use metric::{
    FamilyObject, MetricArgs, MetricObject, count_in, kind_of as metric_kind_of, make_metrics_by,
    number_of as metric_kind_number,
};
pub use metrics_page::MetricsPage;
pub use model::{ModelObject, ModelParts, ServerObject};
pub use observer::{Observer, TraceFunctions, observed_handle, observed_trace, spawn_child};
pub use options::{Control, ServerOptions};
pub use outstanding::{Counted, Outstanding};
pub use parameter::{Content, ParameterObject, Value};
pub use request::{RequestObject, kept_of};
pub use response::{Factory, ResponseObject};
pub use response_path::ResponsePath;
pub use response_statistics::ResponseStatistics;
pub use state::StateObject;
pub use tensors::{InputObject, OutputObject};
pub use trace::{TraceObject, TraceOf};

/// Defines the table of a kind of object, and each thread's cache of its vacant entries.
macro_rules! object {
    ($kind:ty, $number:literal, $name:literal) => {
        crate::objects::object!($kind, $number, $name, std::sync::Arc<$kind>);
    };
    ($kind:ty, $number:literal, $name:literal, $held:ty) => {
        impl crate::table::Object for $kind {
            type Held = $held;
            const NAME: &'static str = $name;
            const KIND: usize = $number;
            fn table() -> &'static crate::table::Table<$kind> {
                static ALL: crate::table::Table<$kind> = crate::table::Table::new();
                &ALL
            }
            fn cache() -> &'static std::thread::LocalKey<std::cell::RefCell<crate::table::ThreadCache<$kind>>> {
                thread_local! {
                    static CACHE: std::cell::RefCell<crate::table::ThreadCache<$kind>> =
                        const { std::cell::RefCell::new(crate::table::ThreadCache::new()) };
                }
                &CACHE
            }
        }
    };
}
pub(crate) use object;

/// As [`c_text`]. An empty text needs no allocation: most requests have no id and no sequence.
pub fn c_cow(text: &str) -> std::borrow::Cow<'static, std::ffi::CStr> {
    if text.is_empty() { c"".into() } else { c_text(text).into() }
}

/// `[request id: x] `, with which Triton begins its errors about a request.
pub fn request_prefix(id: &std::ffi::CStr) -> String {
    let id = id.to_string_lossy();
    format!("[request id: {}] ", if id.is_empty() { "<id_unknown>" } else { &id })
}

/// A text that ends with a zero, as C needs it. Text after an inner zero is cut.
pub fn c_text(text: &str) -> std::ffi::CString {
    let end = text.find('\0').unwrap_or(text.len());
    std::ffi::CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}
