//! Would a load or an unload that a model requests in its own load ever end?
//!
//! A load waits while the same model is being loaded or unloaded. So a model that loads itself within its `ModelInitialize`, and waits for that,
//! would wait for itself. The same holds for models that load each other in a circle. The parts of ensembles are not followed.

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::Status;

use crate::fault::Fault;

/// The waits of models that are being loaded or unloaded, each for a load or an unload of another model.
static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());

thread_local! {
    /// The model that this thread loads or unloads.
    static CHANGING: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

struct Wait {
    model: Arc<str>,
    target: String,
}

/// A wait, until it is dropped.
pub struct Waiting(Option<Arc<str>>);

/// Calls a function of a backend that loads or unloads this model.
pub fn changing<T>(model: &str, call: impl FnOnce() -> T) -> T {
    let _outer = Outer(CHANGING.replace(Some(model.into())));
    call()
}

/// Begins to wait for the end of `what` ("load" or "unload") of model `target`. Err: it would never end.
pub fn begin(what: &str, target: &str) -> Result<Waiting, Fault> {
    let Some(model) = CHANGING.with_borrow(Clone::clone) else { return Ok(Waiting(None)) };
    let mut waits = lock();
    if *model == *target || waits_for(&waits, target, &model) {
        return Err(Status::invalid(format!(
            "the {what} of model '{target}' waits for model '{model}', which asks for it while it is loaded or unloaded itself: it would never end; ask for it \
             in a request, or on a thread that the load does not wait for"
        ))
        .into());
    }
    waits.push(Wait { model: Arc::clone(&model), target: target.to_owned() });
    Ok(Waiting(Some(model)))
}

/// Whether `from` waits for `to`, perhaps through others. No wait closes a cycle, so this ends.
fn waits_for(waits: &[Wait], from: &str, to: &str) -> bool {
    waits.iter().filter(|wait| *wait.model == *from).any(|wait| wait.target == to || waits_for(waits, &wait.target, to))
}

fn lock() -> MutexGuard<'static, Vec<Wait>> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(model) = &self.0 else { return };
        let mut waits = lock();
        // A thread has one wait at a time. If several threads of one model wait, the address of the name identifies the wait of this thread.
        if let Some(at) = waits.iter().position(|wait| Arc::ptr_eq(&wait.model, model)) {
            waits.swap_remove(at);
        }
    }
}

/// The model around this one, which is set again on drop.
struct Outer(Option<Arc<str>>);

impl Drop for Outer {
    fn drop(&mut self) {
        CHANGING.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_load_that_waits_for_its_model_is_refused() {
        assert!(begin("load", "a").is_ok(), "nothing is loaded on this thread");
        changing("a", || {
            let text = begin("unload", "a").err().unwrap().to_string();
            assert!(text.contains("the unload of model 'a' waits for model 'a'"), "{text}");
            let waiting = begin("load", "b").unwrap();
            changing("b", || {
                assert!(begin("load", "b").is_err());
                let _c = begin("load", "c").unwrap();
                changing("c", || {
                    assert!(begin("load", "a").is_err() && begin("load", "b").is_err());
                    assert!(begin("load", "d").is_ok());
                });
            });
            drop(waiting);
        });
        changing("b", || assert!(begin("load", "a").is_ok(), "a is loaded, and waits for nobody"));
    }
}
