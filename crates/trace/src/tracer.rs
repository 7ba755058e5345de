//! Is this request traced?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_request::setting::{TraceChange, TraceSettings};
use nerite_request::{RequestTrace, Status, TraceBudget};

use crate::settings::{OwnSettings, TraceConfig};
use crate::writer::{Stream, TraceCounts, Writer};

/// Bytes that all traces together may hold: of requests in flight, and of those whose traces wait to be written.
pub const TRACES_BYTES_MAX: usize = 64 << 20;

/// Chooses the requests that are traced.
#[derive(Debug)]
pub struct Tracer {
    /// Whether any request might be. Nothing else is looked at while it is false.
    is_on: AtomicBool,
    start: TraceConfig,
    state: Mutex<State>,
    budget: Arc<TraceBudget>,
    writer: Writer,
    next_stream: AtomicU64,
}

#[derive(Debug)]
struct State {
    own: OwnSettings,
    server: Active,
    /// Models with settings of their own.
    models: BTreeMap<String, (OwnSettings, Active)>,
}

/// Settings that hold, and how far they got.
#[derive(Debug)]
struct Active {
    config: TraceConfig,
    /// Traces that are still to come; -1 for no limit.
    left: i32,
    /// Requests that might have been traced.
    seen: u64,
    /// `None` where nothing is traced.
    stream: Option<Arc<Stream>>,
}

impl Active {
    fn is_on(&self) -> bool {
        self.stream.is_some() && self.left != 0
    }

    /// Whether the next request is the one to trace.
    fn takes(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        let is_next = self.left != 0 && self.seen.is_multiple_of(u64::from(self.config.rate.max(1)));
        if is_next && self.left > 0 {
            self.left -= 1;
        }
        is_next
    }
}

impl Tracer {
    /// A tracer with these settings. Where they ask for traces that cannot be written, it says so in the log and traces nothing.
    pub fn new(start: TraceConfig) -> Tracer {
        let off = Active { config: TraceConfig::default(), left: 0, seen: 0, stream: None };
        let tracer = Tracer {
            is_on: AtomicBool::new(false),
            writer: Writer::new(PathBuf::from(&start.file)),
            state: Mutex::new(State { own: OwnSettings::default(), server: off, models: BTreeMap::new() }),
            budget: TraceBudget::new(TRACES_BYTES_MAX),
            next_stream: AtomicU64::new(0),
            start,
        };
        if let Err(status) = tracer.start.check() {
            log::warn!("nothing is traced: {}", status.message);
        }
        let mut state = tracer.lock();
        state.server = tracer.activate(tracer.start.clone()).unwrap_or_else(|status| {
            log::error!("nothing is traced: {}", status.message);
            Active { config: tracer.start.clone(), left: tracer.start.count, seen: 0, stream: None }
        });
        tracer.note_switch(&state);
        drop(state);
        tracer
    }

    /// Whether a request might be traced.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The trace of a request for this model, if it is one that is traced. Asked only while [`Tracer::is_on`].
    pub fn sample(&self, model: &str) -> Option<Arc<RequestTrace>> {
        let mut state = self.lock();
        let State { server, models, .. } = &mut *state;
        let active = models.get_mut(model).map_or(server, |(_, active)| active);
        let stream = active.stream.clone()?;
        if !active.takes() {
            return None;
        }
        let (levels, is_last) = (active.config.levels, active.left == 0);
        if is_last {
            self.note_switch(&state);
        }
        drop(state);
        let trace = RequestTrace::begin(levels, &self.budget, stream);
        if trace.is_none() {
            self.writer.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        trace
    }

    /// Settings of the server (empty name) or of a model.
    pub fn settings(&self, model: &str) -> TraceSettings {
        let state = self.lock();
        let active = state.models.get(model).map_or(&state.server, |(_, active)| active);
        active.config.told(active.left)
    }

    /// Takes a change over, whole or not at all.
    pub fn change(&self, model: &str, change: TraceChange) -> Result<(), Status> {
        let mut state = self.lock();
        if model.is_empty() {
            self.change_server(&mut state, change)?;
        } else {
            self.change_model(&mut state, model, change)?;
        }
        self.note_switch(&state);
        Ok(())
    }

    fn change_server(&self, state: &mut State, change: TraceChange) -> Result<(), Status> {
        let own = state.own.changed(change)?;
        let config = self.start.with(&own);
        config.check()?;
        // Models follow where they have no setting of their own.
        let followers = state.models.iter().filter(|(_, (own, _))| !own.is_whole());
        let followers: Vec<_> = followers.map(|(name, (own, _))| (name.clone(), config.with(own))).collect();
        followers.iter().try_for_each(|(_, config)| config.check())?;
        state.server = self.activate(config)?;
        state.own = own;
        for (name, config) in followers {
            if let Some((_, active)) = state.models.get_mut(&name) {
                *active = self.activate(config)?;
            }
        }
        Ok(())
    }

    fn change_model(&self, state: &mut State, model: &str, change: TraceChange) -> Result<(), Status> {
        let own = state.models.get(model).map(|(own, _)| own.clone()).unwrap_or_default().changed(change)?;
        if own.is_empty() {
            state.models.remove(model);
            return Ok(());
        }
        let config = state.server.config.with(&own);
        config.check()?;
        let active = self.activate(config)?;
        state.models.insert(model.to_owned(), (own, active));
        Ok(())
    }

    /// What became of traces.
    pub fn counts(&self) -> TraceCounts {
        let [written, shortened, dropped] =
            [&self.writer.counts.written, &self.writer.counts.shortened, &self.writer.counts.dropped]
                .map(|count| count.load(Ordering::Relaxed));
        TraceCounts { written, shortened, dropped, held_bytes: self.budget.used() as u64 }
    }

    /// Waits until the traces of all requests that have ended are in their files, at most for `patience`.
    pub fn flush(&self, patience: Duration) {
        self.writer.flush(patience);
    }

    fn activate(&self, config: TraceConfig) -> Result<Active, Status> {
        let no_thread = |error| Status::unavailable(format!("no thread to write traces: {error}"));
        let stream = if config.obstacle().is_none() {
            Some(Arc::new(Stream {
                to: self.writer.way().map_err(no_thread)?,
                counts: Arc::clone(&self.writer.counts),
                number: self.next_stream.fetch_add(1, Ordering::Relaxed),
                log_frequency: config.log_frequency,
                is_numbered: config.log_frequency != 0 || config.count > 0,
            }))
        } else {
            None
        };
        Ok(Active { left: config.count, seen: 0, stream, config })
    }

    fn note_switch(&self, state: &State) {
        let is_on = state.server.is_on() || state.models.values().any(|(_, active)| active.is_on());
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nerite_request::TraceLevels;

    fn tracer(folder: &std::path::Path) -> Tracer {
        let file = folder.join("t.json").to_string_lossy().into_owned();
        Tracer::new(TraceConfig { rate: 1, file, ..TraceConfig::default() })
    }

    fn set(tracer: &Tracer, model: &str, key: &str, value: Option<&str>) {
        tracer.change(model, vec![(key.into(), value.map(|value| vec![value.into()]))]).expect("a setting");
    }

    fn trace(tracer: &Tracer, model: &str, times: usize) -> usize {
        let noted = |trace: Arc<RequestTrace>| trace.note("REQUEST_START", 1);
        (0..times).filter_map(|_| tracer.sample(model).map(noted)).count()
    }

    fn read(folder: &std::path::Path) -> BTreeMap<String, usize> {
        let files = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
        files
            .map(|path| {
                let text = std::fs::read_to_string(&path).expect("the file");
                let notes: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
                (path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(), notes.len())
            })
            .collect()
    }

    #[track_caller]
    fn check_files(folder: &std::path::Path, expected: &[(&str, usize)]) {
        let expected = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(read(folder), expected);
    }

    #[test]
    fn rate_count_and_frequency_decide_what_is_traced_and_where_it_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let tracer = tracer(folder.path());
        assert!(!tracer.is_on());
        set(&tracer, "", "trace_level", Some("TIMESTAMPS"));
        assert!(tracer.is_on());
        assert_eq!(trace(&tracer, "m", 3), 3);
        set(&tracer, "", "trace_rate", Some("2"));
        assert_eq!(trace(&tracer, "m", 5), 2);
        set(&tracer, "", "trace_count", Some("2"));
        assert_eq!((trace(&tracer, "m", 9), tracer.is_on()), (2, false));
        assert_eq!(tracer.settings("")[2].1, ["0"], "the traces that are left");
        set(&tracer, "", "trace_count", None);
        set(&tracer, "", "log_frequency", Some("2"));
        assert_eq!(trace(&tracer, "m", 6), 3);
        tracer.flush(Duration::from_secs(20));
        check_files(folder.path(), &[("t.json", 5), ("t.json.0", 2), ("t.json.1", 2), ("t.json.2", 1)]);
        assert_eq!(tracer.counts(), TraceCounts { written: 10, ..TraceCounts::default() });
    }

    #[test]
    fn a_model_follows_the_server_until_it_has_its_own_and_again_when_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let tracer = tracer(folder.path());
        let rate = |model| tracer.settings(model)[1].1.clone();
        set(&tracer, "m", "trace_level", Some("TENSORS"));
        assert_eq!((tracer.is_on(), trace(&tracer, "m", 1), trace(&tracer, "other", 1)), (true, 1, 0));
        set(&tracer, "", "trace_rate", Some("7"));
        assert_eq!(rate("m"), ["7"]);
        set(&tracer, "m", "trace_rate", Some("9"));
        assert_eq!((rate("m"), rate("")), (vec!["9".to_owned()], vec!["7".to_owned()]));
        let refused = tracer.change("", vec![("trace_rate".into(), Some(vec!["x".into()]))]);
        assert!(refused.is_err() && rate("") == ["7"]);
        set(&tracer, "m", "trace_rate", None);
        set(&tracer, "m", "trace_level", None);
        assert_eq!((rate("m"), tracer.is_on()), (vec!["7".to_owned()], false));
    }

    #[test]
    fn a_change_of_the_server_that_a_model_could_not_follow_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let tracer = tracer(folder.path());
        set(&tracer, "m", "trace_level", Some("TENSORS"));
        assert!(tracer.change("", vec![("trace_rate".into(), Some(vec!["0".into()]))]).is_err());
        assert_eq!(tracer.settings("")[1].1, ["1"]);
    }

    #[test]
    fn traces_that_cannot_be_written_are_dropped_and_counted() {
        let levels = TraceLevels { timestamps: true, tensors: false };
        let file = "/nowhere/at/all/t.json".to_owned();
        let tracer = Tracer::new(TraceConfig { levels, rate: 1, file, ..TraceConfig::default() });
        assert_eq!(trace(&tracer, "m", 3), 3);
        tracer.flush(Duration::from_secs(20));
        assert_eq!(tracer.counts(), TraceCounts { dropped: 3, ..TraceCounts::default() });
    }
}
