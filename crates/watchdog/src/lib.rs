//! How long are the front ends' threads busy, what do they run, and which task runs next?
//!
//! ```text
//!   tokio's worker ── poll ──► fair(front_end, flow, connection) ──► api: doing("inference") ──► pool: running("resnet")
//!                                    │ begin, end                       └──────────── what ────────────┘
//!                                    ▼
//!                      the thread's Slot: since when, what, two histograms ◄── read by the watchdog's thread and /metrics
//! ```
//! A thread that serves connections must return to its scheduler soon, because all its other connections wait until then. So every task
//! of a front end is [`watched`]: each of its polls is timed. Tasks of connections are [`fair`] as well. A poll that takes more than
//! [`LATE_NS`] is logged with what ran: when it ends, and by the watchdog's own thread ([`start`]) while it still runs.
//!
//! Work that does not run on these threads, because it takes long, shares a [`FairSemaphore`]. A peer whose requests made a thread wait is marked
//! ([`Flow::is_stalling`]), so that what makes threads wait is done elsewhere too.
//!
//! Timing a poll reads the clock twice and stores a few numbers that no other thread writes. The watchdog's thread sleeps while no front
//! thread works. The server's own periodic tasks are [`background`] tasks: their polls are timed too, but do not count as work. They can wait until
//! there is work again ([`until_awake`]).
//!
//! ```
//! use std::time::Duration;
//!
//! use nerite_watchdog::{FrontEnd, busy_for, is_polling, watched};
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let (busy, is_within) = runtime.block_on(watched(FrontEnd::Http, async { (busy_for(), is_polling()) }));
//! assert!(busy < Duration::from_secs(60) && is_within);
//! assert!(busy_for() == Duration::ZERO && !is_polling()); // outside of a watched task
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod fair;
mod fair_semaphore;
mod histogram;
mod late_log;
mod monitor;
mod name;
mod poll_timer;
mod slot;
mod stall;
mod thread_time;
mod usage;
mod wait_queue;

use std::future::{Future, poll_fn};

pub use fair::{FairQueue, Flow};
pub use fair_semaphore::{Acquire, FairPermit, FairSemaphore};
pub use histogram::{BOUNDS_NS, Counts};
pub use late_log::LATE_NS;
pub use monitor::{is_asleep, start, until_awake};
pub use name::Name;
pub use poll_timer::{FairPolls, Started, charging, current_flow, fair, is_polling, noting_waits};
pub use slot::{Busy, busy, busy_for, doing, now_ns, running};
pub use stall::{MARKING_NS, STALL_NS};

use poll_timer::PollTimer;

/// The front end that a task belongs to.
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

    /// Its name in the log.
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

/// Returns the same future with each poll timed. A front end wraps every task that it spawns in this.
pub fn watched<F: Future>(front_end: FrontEnd, future: F) -> impl Future<Output = F::Output> + use<F> {
    // Boxed once per task: polling the inner future through the pin needs no unsafe code then.
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        let _timer = PollTimer::begin(front_end, now_ns(), None);
        future.as_mut().poll(cx)
    })
}

/// As [`watched`], for a periodic task of the server. Its polls do not keep the watchdog's thread awake. While that thread sleeps, a poll of the task
/// that takes long is logged only when it ends.
pub fn background<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        let _timer = PollTimer::begin_background(now_ns());
        future.as_mut().poll(cx)
    })
}
