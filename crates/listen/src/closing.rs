//! How are all front ends closed within one time limit?
//!
//! ```text
//!   first ── stop ── their connections end ──┐              deadline
//!   last            stop ────────────────────┴─ theirs end ────┤ what is left is cut
//! ```
//! A client decides how long its connection takes to end, because it may read slowly. So all waits for connections share one deadline. Connections and
//! listeners have no deadlines of their own.

use std::fmt;
use std::pin::pin;

use tokio::time::{Instant, timeout_at};

use crate::Service;
use crate::limits::LAST_CLOSING_MIN;

/// A front end and its name in the log.
#[derive(Clone, Debug)]
pub struct NamedService {
    /// For example `HTTP`.
    pub name: &'static str,
    /// Its listeners and connections.
    pub service: Service,
}

/// A front end that was not closed in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Its name.
    pub name: &'static str,
    /// Connections that were open at the deadline.
    pub connections: usize,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.connections, self.name)
    }
}

/// Stops the `first` front ends. Stops the `last` ones when the first have closed, or shortly before the deadline. Returns at the deadline at the latest,
/// with the front ends that still have open connections. The caller then ends the runtime that serves them.
pub async fn close_all(first: &[NamedService], last: &[NamedService], deadline: Instant) -> Vec<Cut> {
    let now = Instant::now();
    let last_at = deadline.checked_sub(LAST_CLOSING_MIN).unwrap_or(now).max(now);
    let mut first_closed = pin!(stop_all(first));
    let are_closed = timeout_at(last_at, &mut first_closed).await.is_ok();
    let last_closed = stop_all(last);
    let closing = async {
        if !are_closed {
            first_closed.await;
        }
        last_closed.await;
    };
    if timeout_at(deadline, closing).await.is_ok() {
        return Vec::new();
    }
    let cut = |one: &NamedService| Cut { name: one.name, connections: one.service.connections() };
    first.iter().chain(last).map(cut).filter(|cut| cut.connections > 0).collect()
}

/// Stops all services at once, and then waits for each.
fn stop_all(services: &[NamedService]) -> impl Future<Output = ()> + use<> {
    let stops: Vec<_> = services.iter().map(|one| one.service.stop()).collect();
    async {
        for stop in stops {
            stop.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Open;
    use crate::stop_signal::Stage;

    const CLOSING: Duration = Duration::from_secs(2);

    fn named<const N: usize>(names: [&'static str; N]) -> [NamedService; N] {
        names.map(|name| NamedService { name, service: Service::default() })
    }

    /// Closes them, and returns how long that took and what was cut, as it is logged.
    async fn close(first: &[NamedService], last: &[NamedService], within: Duration) -> (Duration, String) {
        let begun = Instant::now();
        let cut = close_all(first, last, begun + within).await;
        (begun.elapsed(), cut.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    /// Opens a connection that ends this long after the stop.
    fn ends_after(service: &Service, after: Duration) {
        let (mut stop, open) = (service.stop_signal(), service.open());
        tokio::spawn(async move {
            stop.wait().await;
            tokio::time::sleep(after).await;
            drop(open);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_end_are_waited_for_and_nothing_is_cut() {
        assert_eq!(close(&named(["HTTP"]), &named(["Metrics"]), CLOSING).await, (Duration::ZERO, String::new()));
        let ([http, grpc], [metrics]) = (named(["HTTP", "GRPC"]), named(["Metrics"]));
        for (service, ms) in [(&http, 200), (&grpc, 300), (&metrics, 400)] {
            ends_after(&service.service, Duration::from_millis(ms));
        }
        let (took, cut) = close(&[http, grpc], &[metrics], CLOSING).await;
        assert_eq!((took.as_millis() / 10, cut), (70, String::new()), "the first at once, and then the last");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_never_end_share_one_deadline() {
        let (first, last) = (named(["sessions", "HTTP", "GRPC"]), named(["Metrics", "Page"]));
        let open: Vec<Open> =
            first.iter().chain(&last).flat_map(|one| [one.service.open(), one.service.open()]).collect();
        let (took, cut) = close(&first, &last, CLOSING).await;
        assert_eq!(took.as_millis() / 10, CLOSING.as_millis() / 10);
        assert_eq!(cut, "2 of sessions, 2 of HTTP, 2 of GRPC, 2 of Metrics, 2 of Page");
        drop(open);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_are_notified_in_time_even_if_the_first_never_end() {
        for within in [CLOSING, Duration::from_mins(1)] {
            let ([http], [metrics]) = (named(["HTTP"]), named(["Metrics"]));
            let held = http.service.open();
            ends_after(&metrics.service, LAST_CLOSING_MIN * 9 / 10);
            let (took, cut) = close(&[http], &[metrics], within).await;
            assert_eq!((took.as_millis() / 10, cut.as_str()), (within.as_millis() / 10, "1 of HTTP"));
            drop(held);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_still_tells_all() {
        let ([http], [metrics]) = (named(["HTTP"]), named(["Metrics"]));
        let (mut signals, held) = ([http.service.stop_signal(), metrics.service.stop_signal()], http.service.open());
        let (took, cut) = close(&[http], &[metrics], Duration::ZERO).await;
        assert_eq!((took.as_millis() / 10, cut.as_str()), (0, "1 of HTTP"));
        assert!(signals.iter_mut().all(|signal| signal.advanced() == Some(Stage::Stopping)));
        drop(held);
    }
}
