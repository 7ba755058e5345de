//! How does a server end without losing a request?
//!
//! ```text
//!   signal ─► readiness falls, new inferences are refused ─► what is under way ends ─► listeners close ─► models go ─► exit
//!             └──────── everybody can still ask, and see it ────────┘
//!
//!   signal ─► readiness falls, everything is served ─► listeners close ─► connections end ─► the same
//!             └─────── --drain-seconds ────────────┘
//! ```
//!
//! An inference is under way once its request has arrived completely. The server waits neither for incomplete requests nor for clients that do not
//! read their answers. Otherwise a client could decide how long the server lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_api::Api;
use nerite_cuda::Device;
use nerite_engine::{Engine, Unended};
use nerite_listen::Cut;
use nerite_watchdog::background;
use tokio::signal::unix::Signal;
use tokio::time::{sleep, sleep_until};

use super::listen::Fronts;
use super::parent::Parent;
use super::phase::{Phase, Signalled};
use super::signals::EndSignals;
use super::{StartError, gpu_metrics, host, trim};
use crate::settings::Settings;

/// How long clients that connected before the listeners closed have for a request, once the server has drained.
const LAST_REQUESTS_MAX: Duration = Duration::from_secs(1);
/// How often the server asks whether the last inference has ended. Only a server that stops asks.
const UNDER_WAY_POLL_MS: u64 = 5;
/// How often the log says what the server waits for, and how many model versions it names.
const LOG_EVERY: Duration = Duration::from_secs(1);
const LOGGED_MAX: usize = 20;
/// If nothing is under way, closing takes only a moment. It gets this time even with an exit timeout of 0. All connections of all front ends share
/// it. Then the models get the same time.
const CLOSING_MS_MIN: u64 = 2000;
/// How long the last traces may take to be written.
const TRACES_PATIENCE: Duration = Duration::from_secs(2);

/// The signals that tell a server to end.
pub struct Signals {
    end: EndSignals,
    parent: Parent,
}

impl Signals {
    /// Takes the signals over: from now on they do not end the process by themselves. Call it before the first answer, so that a server that has
    /// answered a client unloads its models before it ends.
    ///
    /// If `parent` is given, the end of that process has the effect of a signal. If it has ended already, the start fails. SIGHUP is one of the signals only if
    /// `hangup_ends`. `drain` is the signal to drain, which may have come already.
    pub fn listen(parent: Option<u32>, hangup_ends: bool, drain: Signal) -> Result<Signals, StartError> {
        Ok(Signals { end: EndSignals::listen(hangup_ends, drain)?, parent: Parent::watch(parent)? })
    }
}

/// Serves until a signal of [`Signals`] or the end of the watched parent, drains if that is wanted, and lets requests in flight end. Returns whether all
/// ended in time. A further signal ends the draining, and one more ends the process at once.
pub async fn serve_until_signal(
    signals: Signals,
    fronts: Fronts,
    api: &Api,
    engine: &Arc<Engine>,
    gpus: Vec<Device>,
    settings: &Settings,
) -> Result<bool, StartError> {
    let Signals { end: mut signals, parent } = signals;
    let keeping = tokio::spawn(background(trim::keep(api.clone(), Arc::clone(engine))));
    if let Some(metrics) = &settings.metrics {
        let every = Duration::from_millis(metrics.interval_ms);
        if metrics.cpu {
            api.measure_host_by(host::meter(every));
        }
        if !gpus.is_empty() {
            tokio::spawn(background(gpu_metrics::watch(api.clone(), gpus, every)));
        }
    }
    let drain = Duration::from_secs(settings.drain_seconds);
    let mut phase = Phase::Serving;
    while !phase.is_stopping() {
        let next = next_phase(phase, &mut signals, &parent, drain).await;
        if let (Phase::Serving, Phase::Draining { .. }) = (phase, next) {
            begin_draining(&fronts, api, next.drained_at(drain).map(|_| drain));
        }
        phase = next;
    }
    keeping.abort();
    let patience = Duration::from_secs(settings.exit_timeout_secs);
    let again = async {
        loop {
            let (signal, number) = signals.next().await;
            phase = phase.after(signal, Instant::now(), drain);
            if phase == Phase::Exiting {
                return number;
            }
        }
    };
    tokio::select! {
        clean = end(fronts, api, engine, patience) => {
            if !clean {
                if let Some(text) = held_text(&engine.unended()) {
                    log::warn!("{text}");
                }
                log::error!("Exit timeout expired. Exiting immediately.");
            }
            Ok(clean)
        }
        number = again => {
            log::warn!("Signal ({number}) received again. Exiting immediately.");
            Ok(false)
        }
    }
}

/// Waits for what comes next: a signal, the end of the parent, or the end of the time to drain. Returns the phase after it.
async fn next_phase(phase: Phase, signals: &mut EndSignals, parent: &Parent, drain: Duration) -> Phase {
    let drained = async {
        match phase.drained_at(drain) {
            Some(at) => sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    };
    let signal = tokio::select! {
        (signal, number) = signals.next() => {
            log::info!("Signal ({number}) received.");
            signal
        }
        pid = parent.end(), if phase.drained_at(drain).is_none() => {
            log::info!("Process {pid}, which started this server, has ended.");
            Signalled::End
        }
        () = drained => return phase.at(Instant::now(), drain),
    };
    phase.after(signal, Instant::now(), drain)
}

/// `within` is how long the server drains. `None` if a signal ends that.
fn begin_draining(fronts: &Fronts, api: &Api, within: Option<Duration>) {
    let until =
        within.map_or_else(|| "until a signal ends that".to_owned(), |time| format!("for {} s", time.as_secs()));
    log::info!("Draining {until}: the server is not ready, and serves requests as before.");
    api.begin_draining();
    fronts.drain();
}

#[expect(clippy::disallowed_methods, reason = "once, at the end")]
async fn end(fronts: Fronts, api: &Api, engine: &Arc<Engine>, patience: Duration) -> bool {
    if api.draining() {
        fronts.close_listeners(LAST_REQUESTS_MAX).await;
    }
    let deadline = Instant::now() + patience;
    api.begin_stopping();
    // While this waits, the ports stay open, so a load balancer can see that the server is not ready.
    if !wait_until_idle(api, engine, deadline).await {
        return false;
    }
    let deadline = deadline.max(Instant::now() + Duration::from_millis(CLOSING_MS_MIN));
    let cut = fronts.stop(deadline).await;
    if !cut.is_empty() {
        log::warn!("{}", cut_text(&cut));
    }
    // The models get their full time even if clients did not read their answers.
    let deadline = deadline.max(Instant::now() + Duration::from_millis(CLOSING_MS_MIN));
    let engine = Arc::clone(engine);
    let api = api.clone();
    let last = move || {
        log::info!("All models are stopped, unloading models");
        let is_clean = engine.stop(deadline);
        api.flush_traces(TRACES_PATIENCE);
        is_clean
    };
    tokio::task::spawn_blocking(last).await.unwrap_or(false)
}

/// The closed connections, for the log.
fn cut_text(cut: &[Cut]) -> String {
    let each: Vec<_> = cut.iter().map(ToString::to_string).collect();
    format!(
        "Exit timeout expired before all clients had taken their answers; open connections are closed: {}. A longer \
         --exit-timeout-secs gives them more time.",
        each.join(", ")
    )
}

/// The models that did not end in time, for the log.
fn held_text(unended: &[Unended]) -> Option<String> {
    let more = unended.len().saturating_sub(LOGGED_MAX);
    let each: Vec<_> = unended.iter().take(LOGGED_MAX).map(ToString::to_string).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!each.is_empty()).then(|| {
        format!(
            "The exit timeout is over, and the server still waited for model {}{more}. A longer --exit-timeout-secs gives \
             them more time.",
            each.join(", ")
        )
    })
}

/// Waits for the end of the last inference, at most until `deadline`. Returns whether all have ended. Logs every second what it waits for.
async fn wait_until_idle(api: &Api, engine: &Engine, deadline: Instant) -> bool {
    log::info!("Waiting for in-flight requests to complete.");
    let mut log_at = Instant::now();
    loop {
        let (now, is_idle) = (Instant::now(), api.under_way() == 0);
        if is_idle || now >= log_at {
            log_in_flight(engine, deadline.saturating_duration_since(now));
            log_at = now + LOG_EVERY;
        }
        if is_idle || now >= deadline {
            return is_idle;
        }
        sleep(Duration::from_millis(UNDER_WAY_POLL_MS)).await;
    }
}

/// Which model versions still have inferences, in Triton's words. `left` is the rest of the exit timeout.
fn log_in_flight(engine: &Engine, left: Duration) {
    let in_flight = engine.in_flight();
    log::info!(
        "Timeout {}: Found {} model versions that have in-flight inferences",
        left.as_secs_f64().ceil(),
        in_flight.len()
    );
    for (served, count) in in_flight.iter().take(LOGGED_MAX) {
        log::info!("Model '{}' (version {}) has {count} in-flight inferences", served.name(), served.version());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_hold_the_exit_are_named() {
        assert_eq!(held_text(&[]), None);
        let one = |in_flight| Unended { model: "m".to_owned(), version: 3, in_flight };
        let text = held_text(&[one(2), one(0)]).expect("there are some");
        let names =
            "model 'm' (version 3) with 2 in-flight inferences, 'm' (version 3) whose instances have not ended.";
        assert!(text.contains(names), "{text}");
        let text = held_text(&vec![one(1); LOGGED_MAX + 4]).expect("there are some");
        assert!(text.contains("in-flight inferences and 4 more. "), "{text}");
    }

    #[test]
    fn what_was_cut_is_reported_by_front_end() {
        let cut = [Cut { name: "HTTP", connections: 3 }, Cut { name: "Page", connections: 1 }];
        let text = cut_text(&cut);
        assert!(text.contains("open connections are closed: 3 of HTTP, 1 of Page. "), "{text}");
    }
}
