//! What does each handle of the interface stand for?

mod allocator;
mod attributes;
mod backend;
mod error;
mod instance;
mod message;
mod metric;
mod model;
mod outstanding;
mod parameter;
mod request;
mod response;
mod response_path;
mod tensors;

pub use allocator::Allocator;
pub use attributes::{BufferAttributes, memory_of};
pub use backend::{BackendAttribute, BackendObject, BackendParts};
pub use error::{ErrorObject, code_number, code_of};
pub use instance::InstanceObject;
pub use message::Message;
pub use metric::{
    FamilyObject, MetricArgs, MetricObject, count_in, kind_of as metric_kind_of, number_of as metric_kind_number,
};
pub use model::{ModelObject, ModelParts, ServerObject};
pub use outstanding::{Counted, Outstanding};
pub use parameter::{ParameterObject, Value};
pub use request::RequestObject;
pub use response::{Factory, ResponseObject};
pub use response_path::ResponsePath;
pub use tensors::{InputObject, OutputObject};

/// Gives a kind of object its table.
macro_rules! object {
    ($kind:ty, $number:literal, $name:literal) => {
        impl crate::table::Object for $kind {
            const NAME: &'static str = $name;
            const KIND: usize = $number;
            fn table() -> &'static crate::table::Table<$kind> {
                static ALL: crate::table::Table<$kind> = crate::table::Table::new();
                &ALL
            }
        }
    };
}
pub(crate) use object;

/// A text as C reads it. What lies behind a zero inside is not seen.
pub fn c_text(text: &str) -> std::ffi::CString {
    let end = text.find('\0').unwrap_or(text.len());
    std::ffi::CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}
