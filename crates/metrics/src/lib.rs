//! How do metrics reach Prometheus?
//!
//! A separate port serves one page of text, and what a [`Beside`] adds to it. It reads counters that the server keeps anyway, so a scrape does not delay the models.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::os::unix::net::UnixStream;
//!
//! use nerite_api::Api;
//! use nerite_listen::{ConnectionLimits, ConnectionRules, Endpoint, Peers, TimeLimits, bind};
//! use nerite_metrics::{Options, serve};
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # let _within = runtime.enter();
//! let folder = tempfile::tempdir()?; // a model repository without models
//! let api = Api::for_tests(folder.path())?;
//! let rules = ConnectionRules { peers: Peers::new(ConnectionLimits::for_descriptors(64)), times: TimeLimits::default() };
//! let socket = folder.path().join("metrics.sock");
//! let handle = serve(api, Options::default(), rules, bind(&Endpoint::unix(&socket))?, None)?;
//!
//! let mut client = UnixStream::connect(&socket)?;
//! client.write_all(b"GET /metrics HTTP/1.1\r\nhost: nerite\r\nconnection: close\r\n\r\n")?;
//! let mut page = String::new();
//! client.read_to_string(&mut page)?;
//! assert!(page.contains("# TYPE nerite_copied_bytes_total counter"), "{page}");
//! runtime.block_on(handle.stop());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod beside;
mod serve;

pub use beside::{Answer, Beside, Body};
pub use serve::{Handle, Options, serve};
