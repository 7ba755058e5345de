//! How does a thread say cheaply what it runs?
//!
//! Names are kept in one table. A thread stores only the number of a name. The report of a late poll looks the name up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError};

use nerite_locks::Mutex;

/// The name of a call or a model. It is in the table as long as this value lives.
#[derive(Debug)]
pub struct Name(u32);

static NAMES: LazyLock<Mutex<HashMap<u32, Arc<str>>>> = LazyLock::new(Mutex::default);

impl Name {
    /// Puts a name into the table.
    pub fn new(text: &str) -> Name {
        // 0 means "none". Numbers repeat after four billion names. A report could then show a wrong name.
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        names().insert(number, text.into());
        Name(number)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        names().remove(&self.0);
    }
}

/// What a thread runs, written by that thread and read by others.
#[derive(Debug, Default)]
pub(crate) struct ActivityCell {
    call: AtomicU32,
    model: AtomicU32,
}

/// What a thread runs, as the log tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// The group of the call, as access rules name it; `None` before that is known.
    pub call: Option<Arc<str>>,
    /// The model that runs on this thread itself.
    pub model: Option<Arc<str>>,
}

impl ActivityCell {
    /// A call begins; no model runs yet.
    pub fn call(&self, Name(number): &Name) {
        self.call.store(*number, Ordering::Relaxed);
        self.model.store(0, Ordering::Relaxed);
    }

    /// A model runs.
    pub fn model(&self, Name(number): &Name) {
        self.model.store(*number, Ordering::Relaxed);
    }

    /// Whether this model runs.
    pub fn is_model(&self, Name(number): &Name) -> bool {
        self.model.load(Ordering::Relaxed) == *number
    }

    /// Nothing runs.
    pub fn clear(&self) {
        self.call.store(0, Ordering::Relaxed);
        self.model.store(0, Ordering::Relaxed);
    }

    /// What it runs. Another thread may see a call and a model of two different moments.
    pub fn get(&self) -> Activity {
        let (call, model) = (self.call.load(Ordering::Relaxed), self.model.load(Ordering::Relaxed));
        let names = names();
        Activity { call: names.get(&call).cloned(), model: names.get(&model).cloned() }
    }
}

fn names() -> MutexGuard<'static, HashMap<u32, Arc<str>>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activity_is_found_as_long_as_its_name_lives() {
        let cell = ActivityCell::default();
        assert_eq!(cell.get(), Activity::default());
        let (call, model) = (Name::new("inference"), Name::new("a_1"));
        cell.call(&call);
        cell.model(&model);
        assert_eq!(cell.get(), Activity { call: Some("inference".into()), model: Some("a_1".into()) });
        drop(model);
        assert_eq!(cell.get(), Activity { call: Some("inference".into()), model: None });
        cell.clear();
        assert_eq!(cell.get(), Activity::default());
    }
}
