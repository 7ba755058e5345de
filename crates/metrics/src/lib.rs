//! How do metrics reach Prometheus?
//!
//! A separate port serves one page of text, and what a [`Beside`] adds to it. It reads counters that the server keeps anyway, so a scrape does not delay the models.
//!
//! The example needs a server, so it is compiled and not run:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use nerite_api::Api;
//! use nerite_metrics::{Handle, Options, serve};
//! use nerite_listen::{Endpoint, Rules, bind};
//!
//! async fn start(api: Api, rules: Rules) -> Result<Handle, Box<dyn std::error::Error>> {
//!     let listener = bind(&Endpoint::unix(Path::new("/run/nerite/metrics.sock")))?;
//!     Ok(serve(api, Options::default(), rules, listener, None)?)
//! }
//! ```
#![forbid(unsafe_code)]

mod answer;
mod beside;
mod serve;

pub use beside::{Answer, Beside, Body};
pub use serve::{Handle, Options, serve};
