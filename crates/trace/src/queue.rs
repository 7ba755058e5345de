//! Which traces wait for the collector, and when are they sent?

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_request::Gathered;

use crate::counts::Counts;
use crate::settings::SpanConfig;
use crate::spans::count;

/// The queue between the requests, which never wait, and the thread that sends.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    limits: Limits,
    pub(crate) counts: Counts,
}

/// As in [`SpanConfig`].
#[derive(Clone, Copy, Debug)]
struct Limits {
    spans_max: usize,
    batch_max: usize,
    delay: Duration,
}

#[derive(Debug, Default)]
struct Waiting {
    traces: VecDeque<Gathered>,
    spans: usize,
    /// When the first of the waiting traces was added.
    since: Option<Instant>,
    flush: Option<Flush>,
}

/// The request to send everything that waits.
#[derive(Debug)]
pub(crate) struct Flush {
    /// Gets a message, or is dropped, when everything was sent.
    pub(crate) done: Sender<()>,
    /// The time until which the caller waits.
    pub(crate) until: Instant,
}

/// The next work of the thread.
#[derive(Debug)]
pub(crate) enum Work {
    Send(Vec<Gathered>),
    /// Nothing waits any more, and this flush must be answered.
    Flushed(Flush),
}

/// The decision about spans that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendDecision {
    Send,
    WaitFor(Duration),
    Rest,
}

impl Queue {
    pub(crate) fn new(config: &SpanConfig) -> Queue {
        let spans_max = (config.queue_max as usize).max(1);
        let limits = Limits {
            spans_max,
            // A larger batch would never fit into the queue, and would always wait for the whole delay.
            batch_max: (config.batch_max as usize).clamp(1, spans_max),
            delay: Duration::from_millis(config.delay_ms.into()),
        };
        Queue { waiting: Mutex::default(), changed: Condvar::new(), limits, counts: Counts::default() }
    }

    /// Spans of one post.
    pub(crate) fn batch_max(&self) -> usize {
        self.limits.batch_max
    }

    /// Adds a trace, or drops it if too many spans wait. A trace that has too many spans by itself is added if no other trace waits.
    pub(crate) fn add(&self, trace: Gathered) {
        let spans = count(&trace);
        let mut waiting = self.lock();
        if waiting.spans > 0 && waiting.spans + spans > self.limits.spans_max {
            drop(waiting);
            Counts::add(&self.counts.dropped, 1);
            return;
        }
        let was_due = waiting.spans >= self.limits.batch_max;
        let is_first = waiting.traces.is_empty();
        waiting.spans += spans;
        waiting.since.get_or_insert_with(Instant::now);
        waiting.traces.push_back(trace);
        // The thread sleeps until there is a batch, and is not woken for each trace.
        let wakes = is_first || (!was_due && waiting.spans >= self.limits.batch_max);
        drop(waiting);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Lets the thread send all waiting traces without delay.
    pub(crate) fn flush(&self, flush: Flush) {
        self.lock().flush = Some(flush);
        self.changed.notify_one();
    }

    /// The time until which a flush waits, if there is one.
    pub(crate) fn flush_until(&self) -> Option<Instant> {
        self.lock().flush.as_ref().map(|flush| flush.until)
    }

    /// Waits for the next work.
    pub(crate) fn next(&self) -> Work {
        let mut waiting = self.lock();
        loop {
            let since = waiting.since.map_or(Duration::ZERO, |since| since.elapsed());
            match decide(&self.limits, waiting.spans, since, waiting.flush.is_some()) {
                SendDecision::Send => return Work::Send(waiting.take(self.limits.batch_max)),
                SendDecision::WaitFor(time) => waiting = self.wait(waiting, time),
                SendDecision::Rest => match waiting.flush.take() {
                    Some(flush) => return Work::Flushed(flush),
                    None => waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                },
            }
        }
    }

    /// Waits for this time, or until there is a flush.
    pub(crate) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut waiting = self.lock();
        while waiting.flush.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            waiting = self.wait(waiting, left);
        }
    }

    fn wait<'w>(&'w self, waiting: MutexGuard<'w, Waiting>, time: Duration) -> MutexGuard<'w, Waiting> {
        self.changed.wait_timeout(waiting, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// The first traces, up to the one that fills a batch.
    fn take(&mut self, batch_max: usize) -> Vec<Gathered> {
        let (mut taken, mut spans) = (Vec::new(), 0);
        while spans < batch_max
            && let Some(trace) = self.traces.pop_front()
        {
            spans += count(&trace);
            taken.push(trace);
        }
        self.spans = self.spans.saturating_sub(spans);
        self.since = (!self.traces.is_empty()).then(Instant::now);
        taken
    }
}

/// The action for this many spans, if the first of them has waited this long.
fn decide(limits: &Limits, spans: usize, since: Duration, is_flushed: bool) -> SendDecision {
    if spans == 0 {
        SendDecision::Rest
    } else if spans >= limits.batch_max || is_flushed || since >= limits.delay {
        SendDecision::Send
    } else {
        SendDecision::WaitFor(limits.delay.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use nerite_request::{RequestTrace, SpanIds, TraceBudget, TraceLevels, TraceSink};

    impl TraceSink for Queue {
        fn finished(&self, trace: Gathered) {
            self.add(trace);
        }
    }

    #[track_caller]
    fn check(spans: usize, since_ms: u64, is_flushed: bool, expected: SendDecision) {
        let limits = Limits { spans_max: 100, batch_max: 10, delay: Duration::from_millis(50) };
        assert_eq!(decide(&limits, spans, Duration::from_millis(since_ms), is_flushed), expected);
    }

    #[test]
    fn spans_are_sent_when_they_fill_a_batch_or_have_waited() {
        check(0, 0, false, SendDecision::Rest);
        check(0, 90, true, SendDecision::Rest);
        check(1, 0, false, SendDecision::WaitFor(Duration::from_millis(50)));
        check(9, 20, false, SendDecision::WaitFor(Duration::from_millis(30)));
        check(9, 50, false, SendDecision::Send);
        check(10, 0, false, SendDecision::Send);
        check(1, 0, true, SendDecision::Send);
    }

    fn queue(queue_max: u32, batch_max: u32) -> Arc<Queue> {
        Arc::new(Queue::new(&SpanConfig { queue_max, batch_max, delay_ms: 0, ..SpanConfig::default() }))
    }

    /// Traces of two spans each.
    fn add(queue: &Arc<Queue>, traces: usize) {
        let levels = TraceLevels { timestamps: true, tensors: false };
        for _ in 0..traces {
            let ids = Some(SpanIds::below(None));
            let trace = RequestTrace::begin(levels, &TraceBudget::new(1 << 20), Arc::clone(queue) as _, ids);
            trace.expect("room").note("COMPUTE_START", 1);
        }
    }

    fn sent(queue: &Queue) -> usize {
        let Work::Send(traces) = queue.next() else { panic!("nothing waits") };
        traces.len()
    }

    #[test]
    fn what_is_beyond_the_queue_is_dropped_and_counted() {
        let queue = queue(10, 4);
        add(&queue, 9);
        assert_eq!(queue.counts.dropped.load(Ordering::Relaxed), 4);
        assert_eq!([sent(&queue), sent(&queue), sent(&queue)], [2, 2, 1]);
        add(&queue, 1);
        assert_eq!((sent(&queue), queue.counts.dropped.load(Ordering::Relaxed)), (1, 4));
    }

    #[test]
    fn a_trace_that_is_larger_than_the_queue_waits_alone() {
        let queue = queue(1, 512);
        add(&queue, 2);
        assert_eq!((sent(&queue), queue.counts.dropped.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_flush_comes_after_all_that_waits() {
        let queue = queue(100, 4);
        add(&queue, 3);
        let (done, is_done) = std::sync::mpsc::channel();
        queue.flush(Flush { done, until: Instant::now() });
        queue.pause(Duration::from_hours(1));
        assert_eq!([sent(&queue), sent(&queue)], [2, 1]);
        assert!(is_done.try_recv().is_err());
        let Work::Flushed(flush) = queue.next() else { panic!("a flush") };
        drop(flush);
        assert!(queue.flush_until().is_none());
    }
}
