//! How does a Rust program call a server?
//!
//! ```text
//!   Request ─► http::Client ─┐                       inline tensors are sent in the message
//!   Request ─► grpc::Client ─┴─► server ─► Response
//!                                  │
//!   Region ◄───── mapped by both ──┘                 tensors in a region are not sent at all
//! ```
//!
//! Both clients work with nerite and with every other server that speaks Triton's protocols, over TCP, TLS and Unix sockets. [`ClientOptions`] sets how long
//! they wait. A [`Region`] is shared memory of this process. Once it is registered, the model reads inputs and writes results there, and they are neither
//! copied nor sent. With a nerite server, a [`Session`] borrows memory of the server instead, which also works for outputs of any size. With other servers, a
//! [`TensorBuffer`] falls back to bytes in the message. Programs without an async runtime use [`blocking`].
//!
//! Two features, both off by default, support types of other crates: `ndarray` for arrays (`Tensor::from_array`, `Output::to_array`), and `half` for elements
//! of FP16 and BF16.
//!
//! Regions, tensors and requests can be made without a server:
//!
//! ```
//! use nerite_client::{Region, Request, Tensor};
//!
//! let region = Region::create(&format!("/ones-{}", std::process::id()), 64)?;
//! region.write(0, &[1i32; 16])?;
//! assert_eq!(region.view::<i32>(0, 16)?.to_vec(), [1; 16]);
//! assert!(region.write(64, &[1i32]).is_err(), "it has 64 bytes");
//!
//! let twos = Tensor::from_slice("INPUT1", &[1, 16], &[2i32; 16])?;
//! let request = Request::new("simple").input(twos).output("OUTPUT0");
//! assert!(Tensor::from_slice("INPUT0", &[1, 16], &[1i32; 15]).is_err(), "one element is missing");
//! # Ok::<(), nerite_client::Error>(())
//! ```
//! A call needs a server, which is another process, so examples of calls are only compiled. This example needs the model `simple` of `examples/models`:
//!
//! ```no_run
//! use nerite_client::{DataType, Region, Request, http};
//!
//! # async fn call() -> Result<(), nerite_client::Error> {
//! let client = http::Client::new("http://localhost:8000")?;
//! let region = Region::create("/sums", 256)?;
//! region.write(0, &[1i32; 16])?;
//! region.write(64, &[2i32; 16])?;
//! let region = region.register(&client, "sums").await?;
//!
//! let request = Request::new("simple")
//!     .input_in_region("INPUT0", DataType::Int32, &[1, 16], &region, 0)?
//!     .input_in_region("INPUT1", DataType::Int32, &[1, 16], &region, 64)?
//!     .output_in_region("OUTPUT0", &region, 128, 64);
//! client.infer(&request).await?;
//! assert_eq!(region.view::<i32>(128, 16)?.to_vec(), [3; 16]);
//! region.unregister().await
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "ndarray")]
mod arrays;
mod beside;
pub mod blocking;
mod connect;
pub mod encoded;
mod endpoint;
mod error;
pub mod grpc;
mod handshake;
pub mod http;
mod inference;
mod message;
#[cfg(doctest)]
mod no_slices;
mod options;
mod pending_placement;
mod prepared;
mod region;
pub mod report;
mod request;
mod response;
mod runtime;
mod session;
mod shared_memory;
mod tensor;
mod tensor_buffer;
mod tls;
mod token;
mod trace;

pub use error::{Code, Error};
pub use handshake::HandshakeFault;
pub use inference::{PreparedRequest, SessionStream};
pub use nerite_memory::{Cells, CellsMut, NoMemory};
pub use nerite_request::{Parameter, Parameters, RegionRef, inspect};
pub use nerite_tensor::{DataType, Shape};
pub use options::ClientOptions;
pub use prepared::Prepared;
pub use region::{Region, RegisteredRegion, Registrar};
pub use request::Request;
pub use response::{Output, Response};
pub use session::{
    Lease, Session, SessionOptions, SessionServer, SessionTerms, SessionUse, default_path, session_server,
};
pub use shared_memory::{SharedMemory, View};
pub use tensor::{Element, Tensor};
pub use tensor_buffer::TensorBuffer;
pub use tls::Tls;
