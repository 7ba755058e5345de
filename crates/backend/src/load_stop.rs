//! How is a load ended before it is done?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

type Notice = Box<dyn FnOnce(&str) + Send>;

/// Ends whatever a load waits for. Clones share their state.
#[derive(Clone, Default)]
pub struct LoadStop(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Why the load was ended.
    why: Option<Arc<str>>,
    watches: BTreeMap<u64, Notice>,
    last: u64,
}

/// A notice of [`LoadStop::watch`]. It is not called after this was dropped.
pub struct LoadWatch {
    stop: LoadStop,
    number: u64,
}

impl LoadStop {
    /// Ends the load for this reason. Only the first reason counts.
    pub fn stop(&self, why: &str) {
        let mut state = self.lock();
        if state.why.is_some() {
            return;
        }
        state.why = Some(why.into());
        let watches = std::mem::take(&mut state.watches);
        drop(state);
        for notice in watches.into_values() {
            notice(why);
        }
    }

    /// Why the load was ended, if it was.
    pub fn why(&self) -> Option<Arc<str>> {
        self.lock().why.clone()
    }

    /// Calls `notice` with the reason when the load is ended; at once if it was ended before.
    #[must_use]
    pub fn watch(&self, notice: impl FnOnce(&str) + Send + 'static) -> LoadWatch {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        match state.why.clone() {
            None => drop(state.watches.insert(number, Box::new(notice))),
            Some(why) => {
                drop(state);
                notice(&why);
            }
        }
        LoadWatch { stop: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LoadStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadStop").field(&self.why()).finish()
    }
}

impl Drop for LoadWatch {
    fn drop(&mut self) {
        let notice = self.stop.lock().watches.remove(&self.number);
        drop(notice);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_watches_a_load_is_notified_once_why_it_ends() {
        let (stop, (to, notices)) = (LoadStop::default(), mpsc::channel());
        let notice = |who: &'static str| {
            let to = to.clone();
            move |why: &str| to.send(format!("{who}: {why}")).expect("the test listens")
        };
        let (_first, gone) = (stop.watch(notice("first")), stop.watch(notice("gone")));
        drop(gone);
        assert_eq!(stop.why(), None);
        stop.clone().stop("unloaded");
        stop.stop("stopped");
        let _late = stop.watch(notice("late"));
        assert_eq!(stop.why().as_deref(), Some("unloaded"));
        assert_eq!(notices.try_iter().collect::<Vec<_>>(), ["first: unloaded", "late: unloaded"]);
    }
}
