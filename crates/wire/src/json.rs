//! How do requests and answers look as JSON?
//!
//! The reader is a pull parser over bytes. It is iterative and makes one pass: the numbers in a tensor's `data` become little-endian elements without
//! a tree in between. It accepts and rejects the same texts as Triton's reader (RapidJSON with NaN and Inf allowed), with the same error texts. The
//! first syntax error of the whole text takes precedence over all other errors. All other checks are made in Triton's order, independent of the order
//! of the keys. If a key is repeated, its first value counts. Unknown keys are ignored.
//!
//! ```text
//!   lex ─ skip ─ value      any JSON text
//!     └► infer ─ tensor     → InferRequest, Rendering        answer   Response → head + buffers
//!     ├► generate           → InferRequest, from flat JSON   flat     Response → flat JSON
//!     └► control            → bodies of other calls  report   metadata, statistics, status, settings
//! ```

mod answer;
mod base64;
mod control;
mod fault;
mod flat;
mod generate;
mod infer;
mod lex;
mod limits;
mod number;
mod report;
mod skip;
mod spooled;
mod tensor;
mod value;
mod write;

pub use answer::{Answer, write_answer};
pub use control::{
    CudaRegister, SystemRegister, read_cuda_register, read_index, read_load, read_log_change, read_spooled_load,
    read_system_register, read_trace_change, read_unload,
};
pub use fault::Malformed;
pub use flat::write_flat;
pub use generate::{GenerateText, read_generate};
pub use infer::{InferText, Rendering, check_json_size, check_raw_size, read_infer, read_raw_infer, read_timeout};
pub use report::{
    write_cuda_status, write_error, write_index, write_log_settings, write_model, write_server, write_statistics,
    write_system_status, write_trace_settings,
};
pub use write::Writer;
