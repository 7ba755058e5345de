//! How are changes of the repositories followed, in control mode `poll`?
//!
//! At an interval the directories are compared with their last state. New and changed models are loaded, removed ones are unloaded. A load that
//! failed is tried again once the model's files change.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_repository::Fingerprint;
use nerite_request::setting::LoadOptions;

use super::parts::Reason;
use super::{Engine, spawn};

/// Ends the thread that polls.
#[derive(Debug, Default)]
pub(crate) struct PollStop {
    is_stopped: Mutex<bool>,
    stopped: Condvar,
    /// What was seen when somebody had the repositories looked at by hand.
    seen: Mutex<Seen>,
}

impl PollStop {
    pub(crate) fn stop(&self) {
        *self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.notify_all();
    }

    /// Waits for the interval. Returns whether the thread is to end.
    fn wait(&self, interval: Duration) -> bool {
        let held = self.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.stopped.wait_timeout_while(held, interval, |is_stopped| !*is_stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The state of each model's files when its load was last tried; `None` if they could not be read.
type Seen = HashMap<String, Option<Fingerprint>>;

impl Engine {
    /// Polls the repositories at this interval, on a new thread, until the engine stops.
    pub fn poll_every(self: &Arc<Self>, interval: Duration) -> io::Result<()> {
        let (engine, stop) = (Arc::downgrade(self), Arc::clone(&self.poll_stop));
        spawn("nerite-poll", move || {
            let mut seen = Seen::new();
            while !stop.wait(interval) {
                let Some(engine) = engine.upgrade() else { return };
                engine.poll_once(&mut seen);
            }
        })
    }

    /// Looks at the repositories once, and follows what changed since the last such look.
    pub fn poll_now(self: &Arc<Self>) {
        let mut seen = self.poll_stop.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.poll_once(&mut seen);
    }

    fn poll_once(self: &Arc<Self>, seen: &mut Seen) {
        let listing = match self.store().list() {
            Ok(listing) => listing,
            Err(error) => return log::error!("the repositories cannot be polled: {error}"),
        };
        let gone = self.lifecycle().vanished(&listing);
        for model in &gone {
            if let Err(error) = self.unload_now(model, false) {
                log::error!("{}", error.message);
            }
        }
        seen.retain(|model, _| listing.places(model).len() == 1);
        let (mut changed, mut ensembles) = (Vec::new(), Vec::new());
        for (model, _) in listing.models().filter(|(_, places)| places.len() == 1) {
            let source = self.store().read(model, &LoadOptions::default());
            let fingerprint = source.as_ref().ok().map(|source| source.fingerprint.clone());
            if source.as_ref().is_ok_and(|source| !source.needs().is_empty()) {
                ensembles.push(model.to_owned());
            }
            if seen.get(model) != Some(&fingerprint) {
                seen.insert(model.to_owned(), fingerprint);
                changed.push(model.to_owned());
            }
        }
        if changed.is_empty() && gone.is_empty() {
            return;
        }
        // The missing part of an ensemble may be among the changed models.
        changed.extend(ensembles.into_iter().filter(|model| self.served(model).is_empty()));
        changed.sort_unstable();
        changed.dedup();
        let tried = Arc::new(changed.iter().cloned().collect());
        for wave in self.waves(&changed) {
            self.load_wave(&wave, &Reason::asked_for(Arc::clone(&tried)));
        }
    }
}
