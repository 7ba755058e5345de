//! How does a request's timeout end the request in every part of the server?
//!
//! This is done only for models whose author requests it. A request of another model waits in its queue as the queue's policy says, and its run is
//! not stopped. When its timeout is over, the request is cancelled as if its client had gone, so every queue, step and runtime that checks for that
//! ends it. The client still waits, and gets an error which says that the time was over.

use std::sync::{Arc, Weak};

use nerite_backend::Job;
use nerite_request::Cancel;

use crate::timer::{Key, Wake, timer};

/// Ends the request when its own timeout is over, if it has one.
pub(crate) fn end_in_time(job: &mut Job) {
    if job.timeout_us() == 0 {
        return;
    }
    let at_us = (job.arrived() / 1000).saturating_add(job.timeout_us());
    let deadline = Arc::new(Deadline(job.cancel().clone()));
    let whom: Weak<dyn Wake> = Arc::<Deadline>::downgrade(&deadline);
    match timer().wake_at(at_us, whom) {
        Ok(key) => job.keep(Box::new(Armed { _deadline: deadline, key })),
        Err(error) => log::error!("no thread for the clock of a request: {error}; raise the limit on threads"),
    }
}

#[derive(Debug)]
struct Deadline(Cancel);

impl Wake for Deadline {
    fn wake(self: Arc<Self>) {
        self.0.time_out();
    }
}

/// The timer's entry for a deadline. It is removed when the request ends, so a timeout of years does not keep it.
#[derive(Debug)]
struct Armed {
    _deadline: Arc<Deadline>,
    key: Key,
}

impl Drop for Armed {
    fn drop(&mut self) {
        timer().forget(self.key);
    }
}

#[cfg(test)]
mod tests {
    use nerite_backend::{ModelVersion, Times, now_ns};
    use nerite_request::{AdmittedRequest, Reply};

    use super::*;

    /// Later than any entry of other tests.
    const FAR_US: u64 = 1 << 60;

    fn job(timeout_us: u64) -> Job {
        let request = AdmittedRequest { timeout_us, ..AdmittedRequest::new(Reply::new(drop)) };
        Job::new(request, ModelVersion::unmetered("m").begin(), now_ns())
    }

    #[test]
    fn the_timer_knows_a_deadline_as_long_as_its_request_lasts() {
        let mut jobs: Vec<Job> = (0..100).map(|number| job(u64::MAX - number)).collect();
        jobs.iter_mut().for_each(end_in_time);
        assert_eq!(timer().entries_in(FAR_US..), 100);
        for (number, job) in jobs.into_iter().enumerate() {
            match number % 3 {
                0 => drop(job),
                1 => job.refuse(nerite_request::Status::timed_out()),
                _ => job.divide().1.finish(Ok(()), Times::begin()),
            }
        }
        assert_eq!(timer().entries_in(FAR_US..), 0);
    }
}
