//! How does a thread say cheaply what it runs?
//!
//! Names are kept in one table. Threads store their numbers, and whoever reports a late thread looks them up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The name of a call or of a model, as long as this lives.
#[derive(Debug)]
pub struct Name(u32);

static NAMES: LazyLock<Mutex<HashMap<u32, Arc<str>>>> = LazyLock::new(Mutex::default);

impl Name {
    /// A name for the log.
    pub fn new(text: &str) -> Name {
        // 0 means "none". Numbers come round after four billion names; a late thread could then be told under a wrong one.
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

/// What a thread says that it runs.
#[derive(Debug, Default)]
pub(crate) struct Said {
    call: AtomicU32,
    model: AtomicU32,
}

/// What a thread runs, as the log tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct What {
    /// The group of the call, as access rules name it; `None` before that is known.
    pub call: Option<Arc<str>>,
    /// The model that runs on this very thread.
    pub model: Option<Arc<str>>,
}

impl Said {
    /// A call begins; no model runs yet.
    pub fn call(&self, Name(number): &Name) {
        self.call.store(*number, Ordering::Relaxed);
        self.model.store(0, Ordering::Relaxed);
    }

    /// A model runs.
    pub fn model(&self, Name(number): &Name) {
        self.model.store(*number, Ordering::Relaxed);
    }

    /// Nothing runs.
    pub fn clear(&self) {
        self.call.store(0, Ordering::Relaxed);
        self.model.store(0, Ordering::Relaxed);
    }

    /// What was said, perhaps of two moments where it is asked by another thread.
    pub fn what(&self) -> What {
        let (call, model) = (self.call.load(Ordering::Relaxed), self.model.load(Ordering::Relaxed));
        let names = names();
        What { call: names.get(&call).cloned(), model: names.get(&model).cloned() }
    }
}

fn names() -> MutexGuard<'static, HashMap<u32, Arc<str>>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_found_as_long_as_its_name_lives() {
        let said = Said::default();
        assert_eq!(said.what(), What::default());
        let (call, model) = (Name::new("inference"), Name::new("a_1"));
        said.call(&call);
        said.model(&model);
        assert_eq!(said.what(), What { call: Some("inference".into()), model: Some("a_1".into()) });
        drop(model);
        assert_eq!(said.what(), What { call: Some("inference".into()), model: None });
        said.clear();
        assert_eq!(said.what(), What::default());
    }
}
