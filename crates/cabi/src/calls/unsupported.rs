//! Which functions of the interface are not supported yet?
//!
//! They exist so that libraries that need them can be loaded. Each returns UNSUPPORTED with its own name.

use nerite_request::Status;

use crate::answer::error;
use crate::objects::ErrorObject;
use crate::table::Handle;

/// The arguments are ignored: by C's calling conventions, a function may have fewer parameters than it is called with.
macro_rules! unsupported {
    ($($name:literal),* $(,)?) => {
        /// A function for each name.
        pub(super) const EXPORTS: &[super::Export] = &[$({
            // SAFETY: no other function of a program has this name, but that of Triton's own library.
            #[unsafe(export_name = $name)]
            extern "C" fn answer() -> Handle<ErrorObject> {
                refuse($name)
            }
            super::Export { name: $name, address: answer as *const () }
        }),*];
    };
}

fn refuse(name: &str) -> Handle<ErrorObject> {
    error(&Status::unsupported(format!("{name} is not supported by this version of nerite")))
}

unsupported![
    "TRITONSERVER_InferenceTraceNew",
    "TRITONSERVER_InferenceTraceTensorNew",
    "TRITONSERVER_InferenceRequestAddRawInput",
    "TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy",
    "TRITONSERVER_InferenceResponseOutputClassificationLabel",
];
