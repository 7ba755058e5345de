//! Is this request traced?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_request::setting::{TraceChange, TraceSettings};
use nerite_request::{Peer, RequestTrace, SpanIds, Status, TraceBudget, TraceContext, TraceLevels, TraceSink};

use crate::counts::{Counts, TraceCounts};
use crate::destination::Destination;
use crate::recent::{Recent, RecentRequest};
use crate::settings::{OwnSettings, TraceConfig};

/// Bytes that all traces together may have: those of requests in flight, and those that wait to be written.
pub const TRACES_BYTES_MAX: usize = 64 << 20;

/// Models that may have trace settings of their own. Their settings stay when a model is unloaded, and a change of the
/// server's settings visits all of them.
const MODELS_MAX: usize = 4096;

/// Chooses the requests that are traced.
pub struct Tracer {
    /// Whether any request may be traced. While it is false, nothing else is read.
    is_on: AtomicBool,
    start: TraceConfig,
    state: Mutex<State>,
    budget: Arc<TraceBudget>,
    destination: Destination,
    recent: Arc<Recent>,
}

struct State {
    own: OwnSettings,
    server: Active,
    /// Models with settings of their own.
    models: BTreeMap<String, (OwnSettings, Active)>,
}

/// The settings in force, and their counters.
struct Active {
    config: TraceConfig,
    /// Traces that are still to come; -1 for no limit.
    left: i32,
    /// Requests that could have been traced.
    seen: u64,
    /// `None` if nothing is traced.
    sink: Option<Arc<dyn TraceSink>>,
}

/// How a request is traced.
struct Chosen {
    levels: TraceLevels,
    sink: Arc<dyn TraceSink>,
    has_spans: bool,
}

impl Active {
    /// Whether a request may be traced. If traces become spans, a request with a client's span is traced independently of rate and count.
    fn is_on(&self) -> bool {
        self.sink.is_some() && (self.left != 0 || self.config.spans.is_some())
    }

    /// Whether rate and count select the next request.
    fn takes(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        let rate = u64::from(self.config.rate);
        let is_next = self.left != 0 && rate != 0 && self.seen.is_multiple_of(rate);
        if is_next && self.left > 0 {
            self.left -= 1;
        }
        is_next
    }
}

impl Tracer {
    /// A tracer with these settings. If they ask for traces that cannot be written, it logs that and traces nothing.
    pub fn new(start: TraceConfig) -> Tracer {
        let off = Active { config: TraceConfig::default(), left: 0, seen: 0, sink: None };
        let tracer = Tracer {
            is_on: AtomicBool::new(false),
            destination: Destination::of(&start),
            state: Mutex::new(State { own: OwnSettings::default(), server: off, models: BTreeMap::new() }),
            budget: TraceBudget::new(TRACES_BYTES_MAX),
            recent: Recent::new(),
            start,
        };
        if let Err(status) = tracer.start.check() {
            log::warn!("nothing is traced: {}", status.message);
        }
        let mut state = tracer.lock();
        state.server = tracer.activate(tracer.start.clone()).unwrap_or_else(|status| {
            log::error!("nothing is traced: {}", status.message);
            Active { config: tracer.start.clone(), left: tracer.start.count, seen: 0, sink: None }
        });
        tracer.note_switch(&state);
        drop(state);
        tracer
    }

    /// Whether a request may be traced.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether traces become spans, below those of clients.
    pub fn has_spans(&self) -> bool {
        self.start.spans.is_some()
    }

    /// The trace of a request of `owner` for this model, if it is traced. `parent` is the client's span above it. If
    /// traces become spans, all requests with a `parent` are traced. Call this only while [`Tracer::is_on`].
    pub fn sample(&self, model: &str, parent: Option<TraceContext>, owner: &Peer) -> Option<Arc<RequestTrace>> {
        let Some(Chosen { levels, sink, has_spans }) = self.choose(model, parent.is_some()) else {
            let levels = TraceLevels { timestamps: true, tensors: false };
            let sink = self.recent.sink(owner, None)?;
            return RequestTrace::begin(levels, self.recent.budget(), sink, None);
        };
        let noted = levels.timestamps.then(|| self.recent.sink(owner, Some(Arc::clone(&sink)))).flatten();
        let ids = has_spans.then(|| SpanIds::below(parent));
        let trace = RequestTrace::begin(levels, &self.budget, noted.unwrap_or(sink), ids);
        if trace.is_none() {
            Counts::add(&self.destination.counts().dropped, 1);
        }
        trace
    }

    /// How the next request for this model is traced, if it is selected. `is_child` says that its client named a span
    /// above it.
    fn choose(&self, model: &str, is_child: bool) -> Option<Chosen> {
        let mut state = self.lock();
        if self.recent.has_just_ended() {
            self.note_switch(&state);
        }
        let State { server, models, .. } = &mut *state;
        let active = models.get_mut(model).map_or(server, |(_, active)| active);
        let sink = active.sink.clone()?;
        let has_spans = active.config.spans.is_some();
        let is_continued = has_spans && is_child;
        if !active.takes() && !is_continued {
            return None;
        }
        let (levels, is_last) = (active.config.levels_noted(), active.left == 0);
        if is_last {
            self.note_switch(&state);
        }
        Some(Chosen { levels, sink, has_spans })
    }

    /// The requests after this number that `visitor` may see: the operator sees those of all clients, others their own.
    /// Requests are recorded for a few more seconds. If there are too many viewers already, the error is their number.
    pub fn recent_after(&self, visitor: &Peer, after: u64) -> Result<Vec<Arc<RecentRequest>>, usize> {
        let seen = self.recent.requests_after(visitor, after)?;
        self.note_switch(&self.lock());
        Ok(seen)
    }

    /// Settings of the server (empty name) or of a model.
    pub fn settings(&self, model: &str) -> TraceSettings {
        let state = self.lock();
        let active = state.models.get(model).map_or(&state.server, |(_, active)| active);
        active.config.report(active.left)
    }

    /// Applies a change, completely or not at all.
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
        // The change also holds for each model, in the settings that the model does not have itself.
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
        if state.models.len() >= MODELS_MAX && !state.models.contains_key(model) {
            return Err(Status::unavailable(format!(
                "{MODELS_MAX} models have trace settings of their own, which is the most there may be; give some of them the server's \
                 settings again (null)"
            )));
        }
        let config = state.server.config.with(&own);
        config.check()?;
        let active = self.activate(config)?;
        state.models.insert(model.to_owned(), (own, active));
        Ok(())
    }

    /// The numbers of written and lost traces.
    pub fn counts(&self) -> TraceCounts {
        let counts = self.destination.counts();
        let [written, shortened, dropped] =
            [&counts.written, &counts.shortened, &counts.dropped].map(|count| count.load(Ordering::Relaxed));
        TraceCounts { written, shortened, dropped, held_bytes: self.budget.used() as u64 }
    }

    /// Waits until the traces of all requests that have ended are in their files or at the collector, at most for `patience`.
    pub fn flush(&self, patience: Duration) {
        self.destination.flush(patience);
    }

    fn activate(&self, config: TraceConfig) -> Result<Active, Status> {
        let no_thread = |error| Status::unavailable(format!("no thread for traces: {error}"));
        let is_traced = config.obstacle().is_none() && config.levels_noted() != TraceLevels::default();
        let sink = is_traced.then(|| self.destination.sink(&config)).transpose().map_err(no_thread)?;
        Ok(Active { left: config.count, seen: 0, sink, config })
    }

    fn note_switch(&self, state: &State) {
        let is_traced = state.server.is_on() || state.models.values().any(|(_, active)| active.is_on());
        let is_on = is_traced || self.recent.is_watched();
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({:?})", self.destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SpanConfig;

    fn tracer(folder: &std::path::Path) -> Tracer {
        let file = folder.join("t.json").to_string_lossy().into_owned();
        Tracer::new(TraceConfig { rate: 1, file, ..TraceConfig::default() })
    }

    fn set(tracer: &Tracer, model: &str, key: &str, value: Option<&str>) {
        tracer.change(model, vec![(key.into(), value.map(|value| vec![value.into()]))]).expect("a setting");
    }

    fn trace(tracer: &Tracer, model: &str, times: usize) -> usize {
        let noted = |trace: Arc<RequestTrace>| trace.note("REQUEST_START", 1);
        (0..times).filter_map(|_| tracer.sample(model, None, &Peer::own()).map(noted)).count()
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
    fn so_many_models_have_settings_of_their_own_and_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let tracer = tracer(folder.path());
        for number in 0..MODELS_MAX {
            set(&tracer, &number.to_string(), "trace_rate", Some("9"));
        }
        let change = || vec![("trace_rate".into(), Some(vec!["8".into()]))];
        let refused = tracer.change("one more", change()).expect_err("there are enough");
        assert!(refused.message.contains("4096 models have trace settings of their own"), "{refused}");
        assert!(tracer.change("0", change()).is_ok() && tracer.change("", change()).is_ok());
        set(&tracer, "1", "trace_rate", None);
        assert!(tracer.change("one more", change()).is_ok());
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

    #[test]
    fn whoever_looks_switches_notes_on_and_files_get_what_they_did_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let (tracer, own) = (tracer(folder.path()), Peer::own());
        let look = |after| {
            tracer.recent_after(&own, after).expect("may look").iter().map(|one| one.number).collect::<Vec<_>>()
        };
        assert_eq!(look(0), [0; 0]);
        assert!(tracer.is_on());
        let run = |model: &str| {
            let trace = tracer.sample(model, None, &own).expect("a trace");
            trace.note_begin(&model.into(), &"1".into(), &"".into());
        };
        run("m");
        assert_eq!((look(0), look(1)), (vec![1], vec![]));
        set(&tracer, "", "trace_level", Some("TIMESTAMPS"));
        run("m");
        assert_eq!(look(1), [2]);
        // Timestamps are not recorded, because the settings do not request them.
        set(&tracer, "", "trace_level", Some("TENSORS"));
        run("m");
        tracer.flush(Duration::from_secs(20));
        assert_eq!((look(2), tracer.counts().written), (vec![], 1));
        check_files(folder.path(), &[("t.json", 1)]);
    }

    #[test]
    fn requests_of_traced_clients_are_traced_whatever_rate_and_count_say_where_traces_are_spans() {
        let spans = Some(SpanConfig { url: "127.0.0.1:1".to_owned(), ..SpanConfig::default() });
        let levels = TraceLevels { timestamps: true, tensors: true };
        let tracer = Tracer::new(TraceConfig { levels, rate: 0, spans, ..TraceConfig::default() });
        let parent = || Some(TraceContext { trace_id: [1; 16], span_id: [2; 8], state: "".into() });
        assert!(tracer.is_on() && tracer.sample("m", None, &Peer::own()).is_none());
        let trace = tracer.sample("m", parent(), &Peer::own()).expect("a trace");
        assert!(!trace.has_tensors() && trace.context().is_some_and(|context| context.trace_id == [1; 16]));
        set(&tracer, "", "trace_rate", Some("1"));
        set(&tracer, "", "trace_count", Some("1"));
        let samples = [parent(), None, parent()].map(|parent| tracer.sample("m", parent, &Peer::own()).is_some());
        assert_eq!((samples, tracer.is_on()), ([true, false, true], true));
        set(&tracer, "", "trace_level", Some("TENSORS"));
        assert!(!tracer.is_on());
        let folder = tempfile::tempdir().expect("a folder");
        let file = self::tracer(folder.path());
        set(&file, "", "trace_level", Some("TIMESTAMPS"));
        set(&file, "", "trace_rate", Some("9"));
        assert!(file.sample("m", parent(), &Peer::own()).is_none(), "a file has no spans");
    }
}
