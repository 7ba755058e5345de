//! How far has a long load got?
//!
//! The log reports it every ten seconds. The repository index has it beside the state `LOADING`.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_backend::now_ns;
use nerite_locks::Mutex;

use crate::limits::PROGRESS_INTERVAL_US;
use crate::timer::{Wake, now_us, timer};

/// The loads that are under way.
#[derive(Default)]
pub(crate) struct Loads(Arc<Mutex<Table>>);

type Table = HashMap<(String, i64), Arc<LoadInProgress>>;

/// One of them, until it is dropped.
pub(crate) struct Progress {
    load: Arc<LoadInProgress>,
    loads: Arc<Mutex<Table>>,
}

struct LoadInProgress {
    model: String,
    version: i64,
    began_ns: u64,
    /// The number of instances made, and of all. `None` while the model is read.
    instances: Mutex<Option<(usize, usize)>>,
}

impl Loads {
    /// A load begins.
    pub fn begin(&self, model: &str, version: i64) -> Progress {
        let load = Arc::new(LoadInProgress {
            model: model.to_owned(),
            version,
            began_ns: now_ns(),
            instances: Mutex::new(None),
        });
        load.wake_later();
        lock(&self.0).insert((model.to_owned(), version), Arc::clone(&load));
        Progress { load, loads: Arc::clone(&self.0) }
    }

    /// The progress of the load of a version as text, if it is under way.
    pub fn of(&self, model: &str, version: i64) -> Option<String> {
        lock(&self.0).get(&(model.to_owned(), version)).map(|load| load.words())
    }
}

impl Progress {
    /// Notes that `made` of `all` instances were made.
    pub fn instances(&self, made: usize, all: usize) {
        let mut known = self.load.instances.lock().unwrap_or_else(PoisonError::into_inner);
        // Threads may report their counts in another order than they counted.
        let before = known.map_or(0, |(before, _)| before);
        *known = Some((made.max(before), all));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        lock(&self.loads).remove(&(self.load.model.clone(), self.load.version));
    }
}

impl LoadInProgress {
    fn words(&self) -> String {
        match *self.instances.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "the model is being read".to_owned(),
            Some((made, all)) => format!("{made} of {all} instances"),
        }
    }

    /// The line for the log at that time.
    fn line(&self, now_ns: u64) -> String {
        let seconds = now_ns.saturating_sub(self.began_ns) / 1_000_000_000;
        format!("loading: {}:{} for {seconds} s so far: {}", self.model, self.version, self.words())
    }

    fn wake_later(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let whom: Weak<dyn Wake> = weak;
        // Without a timer thread the log reports no progress.
        drop(timer().wake_at(now_us() + PROGRESS_INTERVAL_US, whom));
    }
}

impl Wake for LoadInProgress {
    fn wake(self: Arc<Self>) {
        log::info!("{}", self.line(now_ns()));
        self.wake_later();
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_known_while_it_lasts() {
        let loads = Loads::default();
        assert_eq!(loads.of("m", 1), None);
        let progress = loads.begin("m", 1);
        assert_eq!(loads.of("m", 1).as_deref(), Some("the model is being read"));
        progress.instances(2, 8);
        // A late report of the thread that made the first instance.
        progress.instances(1, 8);
        assert_eq!(loads.of("m", 1).as_deref(), Some("2 of 8 instances"));
        assert_eq!(loads.of("m", 2), None);
        drop(progress);
        assert_eq!(loads.of("m", 1), None);
    }

    #[test]
    fn the_log_says_how_long_a_load_has_taken_and_how_far_it_has_got() {
        let progress = Loads::default().begin("m", 3);
        let load = &progress.load;
        let line_after = |ns: u64| load.line(load.began_ns + ns);
        assert_eq!(line_after(10_000_000_000), "loading: m:3 for 10 s so far: the model is being read");
        progress.instances(2, 8);
        assert_eq!(line_after(20_999_999_999), "loading: m:3 for 20 s so far: 2 of 8 instances");
    }
}
