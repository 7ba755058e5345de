//! How is a backend written in Rust that both nerite and Triton load?
//!
//! ```text
//!   libtriton_x.so
//!     export_backend! ──► entry ──► Backend::load ──► Model::instance ──► Instance::run ──► Call::answer
//!     TRITONBACKEND_…        └ a panic or an Err becomes an error of the server     Request, Input ┘ └ Response, Output
//! ```
//! A backend is a crate of the type `cdylib` that implements three traits and calls [`export_backend!`]. The library is built as
//! `libtriton_<name>.so` and lies in `<backend directory>/<name>/`. It needs no unsafe code.
//!
//! Tensors may lie in memory that a client shares and writes at any time. So an input is copied out, and an output is written;
//! neither is ever a slice.
//!
//! What a backend does with datatypes and errors needs no server:
//!
//! ```
//! use nerite_backend_sdk::{Code, DataType, Error};
//!
//! /// The bytes of a tensor with so many elements.
//! fn bytes(datatype: DataType, elements: usize) -> Result<usize, Error> {
//!     let size = datatype.size().ok_or_else(|| Error::unsupported("a tensor of strings has no fixed size"))?;
//!     elements.checked_mul(size).ok_or_else(|| Error::invalid(format!("{elements} elements are too many")))
//! }
//!
//! assert_eq!(bytes(DataType::Fp32, 16), Ok(64));
//! assert_eq!(bytes(DataType::Bytes, 16).map_err(|error| error.code()), Err(Code::Unsupported));
//! assert_eq!(bytes(DataType::Int64, usize::MAX).map_err(|error| error.code()), Err(Code::InvalidArg));
//! ```
//!
//! The example of a whole backend is only compiled. The functions of Triton's interface that it calls are those of the server that loads it.
//! `tests/conformance/test_rust_backend.py` loads such backends.
//!
//! ```no_run
//! use nerite_backend_sdk::{
//!     Backend, BackendContext, Error, Instance, InstanceContext, Model, ModelContext, Request, Response,
//! };
//!
//! struct Identity;
//!
//! impl Backend for Identity {
//!     type Model = Identity;
//!     fn initialize(_: &BackendContext<'_>) -> Result<Identity, Error> {
//!         Ok(Identity)
//!     }
//!     fn load(&self, _: &ModelContext<'_>) -> Result<Identity, Error> {
//!         Ok(Identity)
//!     }
//! }
//!
//! impl Model for Identity {
//!     type Instance = Identity;
//!     fn instance(&self, _: &InstanceContext<'_>) -> Result<Identity, Error> {
//!         Ok(Identity)
//!     }
//! }
//!
//! impl Instance for Identity {
//!     fn infer(&mut self, request: &Request, response: &mut Response) -> Result<(), Error> {
//!         let input = request.input("IN")?;
//!         response.output("OUT", input.datatype(), input.shape(), input.len())?.copy_from(&input)
//!     }
//! }
//!
//! nerite_backend_sdk::export_backend!(Identity);
//! # fn main() {}
//! ```

mod backend;
mod batch;
mod clock;
mod context;
mod datatype;
#[doc(hidden)]
pub mod entry;
mod error;
mod interface;
mod log;
mod request;
mod response;
mod text;

pub use backend::{Backend, Instance, Model};
pub use batch::{Batch, Call};
pub use context::{BackendContext, InstanceContext, ModelContext};
pub use datatype::DataType;
pub use error::{Code, Error};
pub use log::{Level, log};
pub use request::{Input, Request};
pub use response::{Output, Response};
