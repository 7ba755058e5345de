//! Which of the values that were added still live?

use std::sync::{Arc, PoisonError, Weak};

use nerite_locks::Mutex;

/// Weak references to values that belong to processes. A value is dropped when its last owner drops it.
pub(crate) struct Living<T>(Mutex<Vec<Weak<T>>>);

impl<T> Default for Living<T> {
    fn default() -> Living<T> {
        Living(Mutex::default())
    }
}

impl<T> Living<T> {
    pub(crate) fn add(&self, value: &Arc<T>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(value));
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }
}
