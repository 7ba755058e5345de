//! Is a failed load repeated as often as the operator says?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_backend::identity::Identity;
use nerite_backend::{LoadContext, Model, Runtime};
use nerite_request::Status;
use test_engine::Setup;

/// Its first loads fail, and those after them succeed.
struct Failing {
    failures: usize,
    loads: AtomicUsize,
}

impl Runtime for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn engine(&self) -> String {
        "none".to_owned()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        if self.loads.fetch_add(1, Ordering::Relaxed) < self.failures {
            return Err(Status::internal("not yet"));
        }
        Identity.load(context)
    }
}

/// Checks how often a load is tried if the first ones fail, and whether the model is loaded then.
#[track_caller]
fn check(load_retries: usize, failures: usize, expect: (usize, bool)) {
    let runtime = Arc::new(Failing { failures, loads: AtomicUsize::new(0) });
    let mut setup = Setup::new([Arc::<Failing>::clone(&runtime) as _]).with_model("backend: 'failing'");
    setup.options.load_retries = load_retries;
    let (engine, failed, _folder) = setup.try_start();
    // However often it was tried, it is one load.
    let counts: Vec<_> = engine.load_counts().iter().map(|count| (count.successes, count.failures)).collect();
    assert_eq!(counts, [if expect.1 { (1, 0) } else { (0, 1) }], "{load_retries} retries, {failures} failures");
    let found = (runtime.loads.load(Ordering::Relaxed), failed.is_empty());
    assert_eq!(found, expect, "{load_retries} retries, {failures} failures: {failed:?}");
}

#[test]
fn a_load_that_fails_is_tried_again_as_often_as_the_operator_says() {
    check(0, 0, (1, true));
    check(0, 1, (1, false));
    check(2, 1, (2, true));
    check(2, 2, (3, true));
    check(2, 3, (3, false));
}

#[test]
fn a_load_that_succeeds_is_not_repeated() {
    check(5, 0, (1, true));
}
