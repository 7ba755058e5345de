//! How are the batches of an instance changed before it runs them?

use std::sync::Arc;
use std::time::Duration;

use nerite_request::InputMemory;

use crate::{Awaited, Batch, Instance, Readiness};

/// Changes the batches of an instance before it runs them.
pub trait BatchAdapter: Send {
    /// The batch that the instance is to run. `None` if no job is left to run.
    fn adapt(&self, batch: Batch) -> Option<Batch>;
}

/// An instance behind an adapter. The adapter changes its batches and nothing else.
pub struct Adapted<A> {
    instance: Box<dyn Instance>,
    adapter: A,
}

impl<A: BatchAdapter> Adapted<A> {
    /// `instance` runs the batches that `adapter` returns.
    pub fn new(instance: Box<dyn Instance>, adapter: A) -> Adapted<A> {
        Adapted { instance, adapter }
    }
}

// Every method of the trait must be forwarded. A method that is missing here would run the trait's default and not the instance's own code.
#[deny(clippy::missing_trait_methods)]
impl<A: BatchAdapter> Instance for Adapted<A> {
    fn run(&mut self, batch: Batch) {
        if let Some(batch) = self.adapter.adapt(batch) {
            self.instance.run(batch);
        }
    }

    fn begin(&mut self, batch: Batch, timeout: Duration) -> bool {
        self.adapter.adapt(batch).is_none_or(|batch| self.instance.begin(batch, timeout))
    }

    fn finish(&mut self) {
        self.instance.finish();
    }

    fn awaited(&self) -> Option<Awaited> {
        self.instance.awaited()
    }

    fn go_on(&mut self) -> bool {
        self.instance.go_on()
    }

    fn kept_requests(&self) -> Vec<String> {
        self.instance.kept_requests()
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        self.instance.readiness()
    }

    fn is_down(&self) -> bool {
        self.instance.is_down()
    }

    fn input_memory(&self) -> Option<Arc<dyn InputMemory>> {
        self.instance.input_memory()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::{Jobs, NoMeter, ReadinessDone};

    type Calls = Arc<Mutex<Vec<&'static str>>>;

    /// Records its calls. Its methods return other values than the defaults of the trait.
    struct Noting(Calls);

    impl Noting {
        fn note(&self, call: &'static str) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        }
    }

    impl Instance for Noting {
        fn run(&mut self, _: Batch) {
            self.note("run");
        }

        fn begin(&mut self, _: Batch, _: Duration) -> bool {
            self.note("begin");
            false
        }

        fn finish(&mut self) {
            self.note("finish");
        }

        fn awaited(&self) -> Option<Awaited> {
            Some(Arc::new(std::io::stdin()))
        }

        fn go_on(&mut self) -> bool {
            self.note("go_on");
            true
        }

        fn readiness(&self) -> Option<Arc<dyn Readiness>> {
            Some(Arc::new(Ready))
        }

        fn is_down(&self) -> bool {
            true
        }

        fn input_memory(&self) -> Option<Arc<dyn InputMemory>> {
            Some(Arc::new(Ready))
        }
    }

    struct Ready;

    impl InputMemory for Ready {
        fn slot(&self, _: usize) -> Option<nerite_memory::Slot> {
            None
        }

        fn can_read(&self, _: &nerite_memory::Buffer) -> bool {
            false
        }
    }

    impl Readiness for Ready {
        fn check(self: Arc<Self>, done: ReadinessDone) {
            done(Ok(()));
        }

        fn fault(&self) -> Option<nerite_request::Status> {
            None
        }
    }

    struct Passes(bool);

    impl BatchAdapter for Passes {
        fn adapt(&self, batch: Batch) -> Option<Batch> {
            self.0.then_some(batch)
        }
    }

    #[track_caller]
    fn check(passes: bool, has_begun_all: bool, calls: &[&str]) {
        let noted = Calls::default();
        let mut adapted = Adapted::new(Box::new(Noting(Arc::clone(&noted))), Passes(passes));
        let batch = || Batch { jobs: Jobs::new(), meter: Arc::new(NoMeter) };
        adapted.run(batch());
        assert_eq!(adapted.begin(batch(), Duration::ZERO), has_begun_all);
        adapted.finish();
        assert!(adapted.go_on() && adapted.awaited().is_some() && adapted.readiness().is_some());
        assert!(adapted.input_memory().is_some() && adapted.is_down());
        assert_eq!(*noted.lock().unwrap_or_else(PoisonError::into_inner), calls);
    }

    #[test]
    fn an_adapted_instance_gets_each_call_and_no_batch_without_jobs_to_run() {
        check(true, false, &["run", "begin", "finish", "go_on"]);
        check(false, true, &["finish", "go_on"]);
    }
}
