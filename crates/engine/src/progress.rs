//! How far has a long load got?
//!
//! The log reports it every ten seconds. The repository index has it beside the state `LOADING`.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_backend::now_ns;
use nerite_locks::Mutex;
use nerite_request::Cancel;

use crate::ending::{Ending, Reason};
use crate::limits::PROGRESS_INTERVAL_US;
use crate::timer::{Wake, now_us, timer};

/// The loads in progress.
#[derive(Default)]
pub(crate) struct Loads(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    loads: HashMap<(String, i64), Arc<LoadInProgress>>,
    /// Models that are being unloaded, and the number of such calls for each. Their loads end, also those that begin meanwhile.
    unloads: HashMap<String, usize>,
    has_stopped: bool,
}

/// An unload of a model, until it is dropped.
pub(crate) struct Unload {
    model: String,
    loads: Arc<Mutex<Table>>,
}

/// One load of [`Loads`], until this is dropped.
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
    /// Whether a client sent the configuration.
    is_sent: bool,
    ending: Ending,
}

impl Loads {
    /// A load begins. If a client sent the configuration, `client` is set when it has gone, and then the load ends.
    pub fn begin(&self, model: &str, version: i64, client: Option<&Cancel>) -> Progress {
        let load = Arc::new(LoadInProgress {
            model: model.to_owned(),
            version,
            began_ns: now_ns(),
            instances: Mutex::new(None),
            is_sent: client.is_some(),
            ending: Ending::default(),
        });
        load.wake_later();
        let mut table = lock(&self.0);
        table.loads.insert((model.to_owned(), version), Arc::clone(&load));
        let is_unloaded = table.unloads.contains_key(model).then_some(Reason::Unload);
        let of_table = table.has_stopped.then_some(Reason::Stop).or(is_unloaded);
        drop(table);
        let weak = Arc::downgrade(&load);
        let client_goes = move || weak.upgrade().into_iter().for_each(|load| load.ending.end(Reason::ClientGone));
        let has_gone = client.is_some_and(|client| !client.on_cancelled(client_goes));
        let reason = of_table.or(has_gone.then_some(Reason::ClientGone));
        if let Some(reason) = reason {
            load.ending.end(reason);
        }
        Progress { load, loads: Arc::clone(&self.0) }
    }

    /// Ends the loads of this model, also those that begin before the returned value is dropped.
    pub fn unload(&self, model: &str) -> Unload {
        let mut table = lock(&self.0);
        *table.unloads.entry(model.to_owned()).or_default() += 1;
        let loads: Vec<_> = table.loads.values().filter(|load| load.model == model).cloned().collect();
        drop(table);
        for load in loads {
            load.ending.end(Reason::Unload);
        }
        Unload { model: model.to_owned(), loads: Arc::clone(&self.0) }
    }

    /// Ends all loads, also those that begin later.
    pub fn stop(&self) {
        let mut table = lock(&self.0);
        table.has_stopped = true;
        let loads: Vec<_> = table.loads.values().cloned().collect();
        drop(table);
        for load in loads {
            load.ending.end(Reason::Stop);
        }
    }

    /// The progress of the load of a version as text, if it is in progress.
    pub fn of(&self, model: &str, version: i64) -> Option<String> {
        lock(&self.0).loads.get(&(model.to_owned(), version)).map(|load| load.words())
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

    /// Whether the load has to end.
    pub fn ending(&self) -> &Ending {
        &self.load.ending
    }
}

impl Drop for Unload {
    fn drop(&mut self) {
        let mut table = lock(&self.loads);
        let Some(count) = table.unloads.get_mut(&self.model) else { return };
        *count -= 1;
        if *count == 0 {
            table.unloads.remove(&self.model);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        lock(&self.loads).loads.remove(&(self.load.model.clone(), self.load.version));
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
        let now_ns = now_ns();
        log::info!("{}", self.line(now_ns));
        if self.is_sent {
            self.ending.end_if_late(now_ns);
        }
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
        let progress = loads.begin("m", 1, None);
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
        let progress = Loads::default().begin("m", 3, None);
        let load = &progress.load;
        let line_after = |ns: u64| load.line(load.began_ns + ns);
        assert_eq!(line_after(10_000_000_000), "loading: m:3 for 10 s so far: the model is being read");
        progress.instances(2, 8);
        assert_eq!(line_after(20_999_999_999), "loading: m:3 for 20 s so far: 2 of 8 instances");
    }

    #[test]
    fn a_load_has_to_end_when_its_client_or_its_model_goes_or_the_server_stops() {
        let (loads, client) = (Loads::default(), Cancel::new());
        #[track_caller]
        fn check(progress: &Progress, expect: Option<&str>) {
            let found = progress.ending().check("m").err().map(|status| status.message);
            let expect = expect.map(|why| format!("the load of model 'm' was ended: {why}"));
            assert_eq!(found, expect);
        }
        let own = loads.begin("m", 1, None);
        check(&own, None);
        let unload = loads.unload("m");
        let (begun_meanwhile, other) = (loads.begin("m", 2, None), loads.begin("n", 1, Some(&client)));
        drop(unload);
        for ended in [&own, &begun_meanwhile] {
            check(ended, Some("the model is unloaded"));
        }
        check(&loads.begin("m", 3, None), None);
        check(&other, None);
        client.cancel();
        for gone in [&other, &loads.begin("n", 2, Some(&client))] {
            check(gone, Some("the client that sent the configuration has gone"));
        }
        let last = loads.begin("m", 4, None);
        loads.stop();
        for stopped in [&last, &loads.begin("m", 5, None)] {
            check(stopped, Some("the server stops"));
        }
    }
}
