//! How do requests and answers look as JSON?
//!
//! Reading is pull style over bytes, iterative, and in one pass: a tensor's `data` goes from digits to little-endian
//! elements without a tree in between. What is refused, and in which words, is what Triton's reader (RapidJSON with NaN
//! and Inf allowed) refuses: the first syntax error of the whole text wins over everything else, then the checks follow
//! in Triton's order whatever the order of the keys. Of a repeated key the first counts; unknown keys are ignored.
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
pub use infer::{InferText, Rendering, check_json_size, check_raw_size, read_infer, read_raw_infer};
pub use report::{
    write_cuda_status, write_error, write_index, write_log_settings, write_model, write_server, write_statistics,
    write_system_status, write_trace_settings,
};
pub use write::Writer;
