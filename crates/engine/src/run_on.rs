//! How long does a request of a sequence run on when its client has gone?
//!
//! A model that keeps a state must see each request of a sequence. If a run ended early because its client has gone, the next request would be
//! computed on a state that lacks a step. So the run goes on, as in Triton. It is still ended early after the time for which the sequence may be idle
//! ([`RUN_ON_US_MAX`] at most). Otherwise a client could leave behind runs that never end. Then the sequence is over as well ([`crate::cut_short`]).
//! If the model's author lets timeouts end runs, the request's own timeout ends the run at its time, unless the client has gone before.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_backend::{EarlyEnd, Job, Models};
use nerite_config::ModelConfig;
use nerite_locks::Mutex;
use nerite_request::Cancel;

use crate::limits::RUN_ON_US_MAX;
use crate::timer::{Key, Wake, now_us, timer};

/// How long a request of a sequence runs on in an ensemble: as long as the sequence may be idle in any of its models. `None` if none of them has
/// sequences. Steps that have not begun when the time is over do not begin. By then the sequences that they would have continued are over.
pub(crate) fn ensemble_us(config: &ModelConfig, models: &Models) -> Option<u64> {
    // The steps of each model are followed once, although many ensembles may have it.
    let (mut known, mut left, mut idle_us) = (HashSet::new(), members(config), None);
    while let Some((model, version)) = left.pop() {
        let Ok(member) = models.config(&model, version) else { continue };
        let own = member.sequence_batching().map(|batching| batching.max_sequence_idle_microseconds);
        idle_us = idle_us.max(own);
        if known.insert((model, version)) {
            left.append(&mut members(&member));
        }
    }
    idle_us
}

/// The models of the steps of an ensemble, with their versions.
fn members(config: &ModelConfig) -> Vec<(String, Option<i64>)> {
    let steps = config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    steps
        .iter()
        .map(|step| (step.model_name.clone(), Some(step.model_version).filter(|version| *version != -1)))
        .collect()
}

/// The requests of one run that belong to sequences.
#[derive(Debug)]
pub(crate) struct RunsTogether {
    /// The number of those that were not stopped.
    left: AtomicUsize,
    /// The flags of the requests for empty positions. They have no client, and are stopped with the last of the others.
    empty: Vec<Cancel>,
}

impl RunsTogether {
    /// A run of this many requests and those for `empty` positions.
    pub fn new<'j>(requests: usize, empty: impl Iterator<Item = &'j Job>) -> Arc<RunsTogether> {
        let empty = empty.map(|job| job.cancel().clone()).collect();
        Arc::new(RunsTogether { left: AtomicUsize::new(requests), empty })
    }

    fn one_is_stopped(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.empty.iter().for_each(Cancel::cancel);
        }
    }
}

/// Lets a request run on for `time_us` after its client has gone. `run` is `None` if it runs with no request for an empty position.
pub(crate) fn run_on(job: &mut Job, time_us: u64, run: Option<&Arc<RunsTogether>>) {
    let until = Arc::new(Until {
        client: job.cancel().clone(),
        stop: Cancel::new(),
        time_us: time_us.min(RUN_ON_US_MAX),
        run: run.cloned(),
        key: Mutex::default(),
    });
    let whom = Arc::downgrade(&until);
    let gone = move || whom.upgrade().iter().for_each(Until::client_has_gone);
    if !job.cancel().on_cancelled(gone) {
        Until::client_has_gone(&until);
    }
    job.end_by(until);
}

/// Stops one request. Its entry in the timer is removed when the request ends.
#[derive(Debug)]
struct Until {
    client: Cancel,
    stop: Cancel,
    time_us: u64,
    run: Option<Arc<RunsTogether>>,
    key: Mutex<Option<Key>>,
}

impl Until {
    fn client_has_gone(self: &Arc<Until>) {
        if self.client.has_timed_out() {
            return self.end();
        }
        let whom: Weak<dyn Wake> = Arc::<Until>::downgrade(self);
        match timer().wake_at(now_us().saturating_add(self.time_us), whom) {
            Ok(key) => *self.key() = Some(key),
            Err(error) => {
                log::error!("no thread for the clock of a sequence: {error}; raise the limit on threads");
                self.end();
            }
        }
    }

    /// Called once.
    fn end(&self) {
        self.stop.cancel();
        self.run.iter().for_each(|run| run.one_is_stopped());
    }

    fn key(&self) -> MutexGuard<'_, Option<Key>> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EarlyEnd for Until {
    fn stop(&self) -> &Cancel {
        &self.stop
    }
}

impl Wake for Until {
    fn wake(self: Arc<Self>) {
        self.end();
    }
}

impl Drop for Until {
    fn drop(&mut self) {
        let key = self.key.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(key) = key {
            timer().forget(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nerite_backend::{ModelVersion, Times, now_ns};
    use nerite_request::{AdmittedRequest, Reply};

    use super::*;

    fn job() -> Job {
        Job::new(AdmittedRequest::new(Reply::closed()), ModelVersion::unmetered("m").begin(), now_ns())
    }

    #[expect(clippy::disallowed_methods, reason = "the timer is the process's own")]
    fn wait_until(mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_request_whose_client_has_gone_is_stopped_when_its_time_is_over() {
        let mut job = job();
        run_on(&mut job, 20_000, None);
        let begun = Instant::now();
        job.cancel().cancel();
        assert!(job.is_cancelled() && (!job.is_stopped() || begun.elapsed() >= Duration::from_millis(20)));
        wait_until(|| job.is_stopped());
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_request_that_has_timed_out_is_stopped_at_once() {
        let mut timed_out = job();
        run_on(&mut timed_out, u64::MAX, None);
        timed_out.cancel().time_out();
        assert!(timed_out.is_stopped());
        // This one times out before it is given to an instance.
        let mut timed_out = job();
        timed_out.cancel().time_out();
        run_on(&mut timed_out, u64::MAX, None);
        assert!(timed_out.is_stopped());
    }

    #[test]
    fn a_request_that_ends_leaves_nothing_in_the_timer() {
        // No other test has timer entries in this range.
        let far = now_us() + RUN_ON_US_MAX - 5_000_000;
        let mut jobs: Vec<Job> = (0..100).map(|_| job()).collect();
        for job in &mut jobs {
            run_on(job, u64::MAX, None);
            job.cancel().cancel();
            assert!(!job.is_stopped());
        }
        assert_eq!(timer().entries_in(far..=now_us() + RUN_ON_US_MAX), 100);
        for job in jobs {
            job.finish(Ok(()), Times::begin());
        }
        assert_eq!(timer().entries_in(far..=now_us() + RUN_ON_US_MAX), 0);
    }

    #[test]
    fn requests_for_empty_positions_are_stopped_with_the_last_of_the_others() {
        let (mut jobs, empty) = ([job(), job()], job());
        let run = RunsTogether::new(jobs.len(), std::iter::once(&empty));
        for job in &mut jobs {
            run_on(job, 0, Some(&run));
        }
        jobs[0].cancel().cancel();
        wait_until(|| jobs[0].is_stopped());
        assert!(!jobs[1].is_stopped() && !empty.is_stopped());
        jobs[1].cancel().cancel();
        wait_until(|| jobs[1].is_stopped() && empty.is_stopped());
    }
}
