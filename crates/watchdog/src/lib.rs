//! How long do the front ends' threads stay away, what do they run meanwhile, and whose task is next?
//!
//! ```text
//!   tokio's worker ── poll ──► fair(front_end, flow, connection) ──► api: doing("inference") ──► pool: running("resnet")
//!                                    │ begin, end                       └──────────── what ────────────┘
//!                                    ▼
//!                      the thread's Slot: since when, what, two histograms ◄── the watchdog's thread looks; /metrics reads
//! ```
//! A thread that serves connections must come back to its scheduler soon: all connections that wait for it are delayed until then. So
//! every task of a front end is [`watched`], and those of connections are [`fair`] as well: each poll is timed. A poll that takes more than
//! [`LATE_NS`] is told to the log with what ran, at its end, and while it lasts by a thread of the watchdog's own ([`start`]).
//!
//! A poll costs two looks at the clock and some stores to memory that nobody else writes. The watchdog's thread sleeps while no front
//! thread works.
//!
//! ```
//! use std::time::Duration;
//!
//! use nerite_watchdog::{FrontEnd, busy_for, watched};
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let busy = runtime.block_on(watched(FrontEnd::Http, async { busy_for() }));
//! assert!(busy < Duration::from_secs(60));
//! assert_eq!(busy_for(), Duration::ZERO); // outside of a watched task
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod fair;
mod histogram;
mod line;
mod name;
mod patrol;
mod rows;
mod slot;
mod turn;
mod usage;

use std::future::{Future, poll_fn};

pub use fair::{FairQueue, Flow};
pub use histogram::{BOUNDS_NS, Counts};
pub use line::LATE_NS;
pub use name::Name;
pub use patrol::start;
pub use slot::{Busy, busy, busy_for, doing, now_ns, running};
pub use turn::fair;

use turn::Turn;

/// What a task belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FrontEnd {
    Http,
    Grpc,
    Session,
    Metrics,
    /// The server's own tasks.
    #[default]
    Server,
}

impl FrontEnd {
    const ALL: [FrontEnd; 5] = [FrontEnd::Http, FrontEnd::Grpc, FrontEnd::Session, FrontEnd::Metrics, FrontEnd::Server];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            FrontEnd::Http => "http",
            FrontEnd::Grpc => "grpc",
            FrontEnd::Session => "session",
            FrontEnd::Metrics => "metrics",
            FrontEnd::Server => "server",
        }
    }
}

/// The same future, each poll of which is timed. To be used on whatever a front end spawns.
pub fn watched<F: Future>(front_end: FrontEnd, future: F) -> impl Future<Output = F::Output> + use<F> {
    // Boxed once per task, so that no unsafe code is needed to reach it through its pin.
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        let _turn = Turn::begin(front_end, now_ns(), None);
        future.as_mut().poll(cx)
    })
}
