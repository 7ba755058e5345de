//! How are spans sent to the collector so that no request waits for it?

use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nerite_locks::Mutex;
use nerite_request::{Gathered, TraceSink};
use nerite_watchdog::now_ns;
use nerite_wire::proto::otlp::{
    ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans, Span,
};
use prost::Message;
use tokio::runtime::{Builder, Runtime};

use crate::collector::{Collector, ExportResult};
use crate::counts::Counts;
use crate::queue::{Flush, Queue, Work};
use crate::settings::SpanConfig;
use crate::spans::{spans, text};
use crate::warnings::Warnings;

/// The library that makes the spans, in Triton's words.
const SCOPE: &str = "triton-server";
/// The service that the spans come from, if the operator names none.
const SERVICE: &str = "triton-inference-server";
/// The pause before the first retry of a post. Each further pause is twice as long.
const RETRY_MS: u64 = 1000;
/// How often a post is tried again. New traces fill the queue meanwhile.
const RETRIES_MAX: u32 = 3;

/// The handle of the thread that sends.
#[derive(Debug)]
pub(crate) struct Exporter {
    queue: Arc<Queue>,
    config: SpanConfig,
    is_started: Mutex<bool>,
}

/// Takes traces that have ended.
struct Sink(Arc<Queue>);

impl Exporter {
    pub(crate) fn new(config: SpanConfig) -> Exporter {
        Exporter { queue: Arc::new(Queue::new(&config)), config, is_started: Mutex::new(false) }
    }

    /// A sink for traces. Starts the thread if there is none; the Err says why it cannot be started.
    pub(crate) fn sink(&self) -> io::Result<impl TraceSink + use<>> {
        let mut is_started = self.is_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_started {
            // The settings are read here, so that the start of the server reports errors in them.
            let collector = Collector::open(&self.config).map_err(io::Error::other)?;
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let sender = Sender {
                queue: Arc::clone(&self.queue),
                collector,
                runtime,
                resource: resource(&self.config.resource),
                timeout: Duration::from_millis(self.config.timeout_ms.into()),
                warnings: Warnings::default(),
            };
            let thread = std::thread::Builder::new().name("nerite-trace".to_owned());
            thread.spawn(move || sender.work())?;
            *is_started = true;
        }
        Ok(Sink(Arc::clone(&self.queue)))
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.queue.counts
    }

    /// Waits until the collector has all traces that have ended, at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        if !*self.is_started.lock().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        let (done, is_done) = channel();
        self.queue.flush(Flush { done, until: Instant::now() + patience });
        if is_done.recv_timeout(patience).is_err() {
            log::warn!(
                "the collector at '{}' did not take the last traces within {patience:?}; they are lost",
                self.config.url
            );
        }
    }
}

impl TraceSink for Sink {
    fn finished(&self, trace: Gathered) {
        if !trace.notes.is_empty() {
            self.0.add(trace);
        }
    }
}

/// The state of the thread.
struct Sender {
    queue: Arc<Queue>,
    collector: Collector,
    runtime: Runtime,
    resource: Resource,
    timeout: Duration,
    warnings: Warnings,
}

impl Sender {
    fn work(mut self) {
        loop {
            match self.queue.next() {
                Work::Send(traces) => self.send(traces),
                // The caller may have stopped waiting.
                Work::Flushed(flush) => drop(flush.done.send(())),
            }
        }
    }

    fn send(&mut self, traces: Vec<Gathered>) {
        let to_unix_ns = unix_ns().wrapping_sub(now_ns());
        let (count, mut shortened, mut all) = (traces.len() as u64, 0, Vec::new());
        for trace in traces {
            shortened += u64::from(trace.is_shortened);
            if let Some(ids) = &trace.ids {
                all.extend(spans(&trace, ids, to_unix_ns));
            }
        }
        let mut are_taken = true;
        let mut all = all.into_iter().peekable();
        while all.peek().is_some() {
            let batch = all.by_ref().take(self.queue.batch_max()).collect();
            are_taken &= self.deliver(batch);
        }
        let counts = &self.queue.counts;
        if are_taken {
            Counts::add(&counts.written, count);
            Counts::add(&counts.shortened, shortened);
        } else {
            Counts::add(&counts.dropped, count);
        }
        self.log_warnings();
    }

    fn log_warnings(&mut self) {
        self.warnings.log_news(Instant::now(), &self.queue.counts, self.collector.url());
    }

    /// Posts the spans, with retries where these may help. Returns whether the collector has them.
    fn deliver(&mut self, spans: Vec<Span>) -> bool {
        let body = Bytes::from(self.message(spans).encode_to_vec());
        for retry in 0..=RETRIES_MAX {
            let left = self.queue.flush_until().map(|until| until.saturating_duration_since(Instant::now()));
            let patience = left.map_or(self.timeout, |left| left.min(self.timeout));
            match self.runtime.block_on(self.collector.post(body.clone(), patience)) {
                ExportResult::Taken { remark } => {
                    self.warnings.taken(remark);
                    return true;
                }
                ExportResult::Refused(reason) => {
                    self.warnings.refused(reason);
                    return false;
                }
                ExportResult::Later(reason) => self.warnings.refused(reason),
            }
            if left.is_some() {
                return false;
            }
            self.log_warnings();
            if retry < RETRIES_MAX {
                self.queue.pause(Duration::from_millis(RETRY_MS << retry));
            }
        }
        false
    }

    fn message(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope { name: SCOPE.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }],
        }
    }
}

/// The resource of all spans. Of several values with one name the last is used.
fn resource(given: &[(String, String)]) -> Resource {
    let own = [
        ("service.name", SERVICE),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", "nerite"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: std::collections::BTreeMap<_, _> = own.into_iter().chain(given).collect();
    Resource { attributes: all.into_iter().map(|(name, value)| text(name, value)).collect() }
}

#[expect(clippy::disallowed_methods, reason = "collectors show when a request came as a date")]
fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_later_names_what_spans_come_from() {
        let given =
            [("a", "1"), ("service.name", "mine"), ("a", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let attributes = resource(&given).attributes;
        let of = |name: &str| attributes.iter().filter(|one| one.key == name).cloned().collect::<Vec<_>>();
        assert_eq!(of("service.name"), [text("service.name", "mine")]);
        assert_eq!(of("a"), [text("a", "2")]);
        assert_eq!(resource(&[]).attributes[0], text("service.name", SERVICE));
    }
}
