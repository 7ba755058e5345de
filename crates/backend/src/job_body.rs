//! Where are the parts of a request while it is passed on?
//!
//! They stay in one place on the heap. A request is moved dozens of times: into the queue, out of it, into a run, into closures. Its parts have about
//! 900 bytes. Copying them each time took a third of the processor time of a small request.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use nerite_memory::Buffer;
use nerite_request::{Inputs, Sequence};

use crate::Responder;
use crate::job_parameters::JobParameters;
use crate::reschedule::Own;

/// The most places that a thread keeps for later requests, which then need no allocation.
const SPARE_MAX: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<Vec<JobParts>>> = const { RefCell::new(Vec::new()) };
}

/// The parts of a [`Job`](crate::Job).
#[derive(Debug)]
pub(crate) struct JobParts {
    // Dropped first, because a client may unregister its regions as soon as it has the answer.
    pub(crate) inputs: Inputs,
    /// Data of inputs that is replaced while the request runs, by the index of the input.
    pub(crate) replaced: Vec<(usize, Buffer)>,
    pub(crate) parameters: JobParameters,
    pub(crate) sequence: Sequence,
    pub(crate) priority: u64,
    pub(crate) timeout_us: u64,
    pub(crate) own: Own,
    pub(crate) responder: Responder,
}

/// The place of the parts of one request. The vector has one element until [`JobBody::take`], and capacity for one.
#[derive(Debug)]
pub(crate) struct JobBody(Vec<JobParts>);

impl JobBody {
    pub(crate) fn new(parts: JobParts) -> JobBody {
        let spare_count = SPARE.try_with(|spare_count| spare_count.borrow_mut().pop()).ok().flatten();
        let mut place = spare_count.unwrap_or_else(|| Vec::with_capacity(1));
        place.push(parts);
        JobBody(place)
    }

    /// Takes the parts. Another request may use the place afterwards.
    pub(crate) fn take(mut self) -> JobParts {
        self.0.pop().expect("only `take` removes the parts, and it consumes the body")
    }
}

impl Deref for JobBody {
    type Target = JobParts;

    fn deref(&self) -> &JobParts {
        self.0.first().expect("only `take` removes the parts, and it consumes the body")
    }
}

impl DerefMut for JobBody {
    fn deref_mut(&mut self) -> &mut JobParts {
        self.0.first_mut().expect("only `take` removes the parts, and it consumes the body")
    }
}

impl Drop for JobBody {
    fn drop(&mut self) {
        let mut place = std::mem::take(&mut self.0);
        // Before the list is borrowed: a dropped request is answered, and the answer may make another request on this thread.
        place.clear();
        // An error means that the thread ends.
        let _ = SPARE.try_with(|spare_count| {
            let mut spare_count = spare_count.borrow_mut();
            if spare_count.len() < SPARE_MAX {
                spare_count.push(place);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use nerite_request::{AdmittedRequest, Cancel, Parameters, Reply, Sequence, WantedOutputs};

    use super::SPARE;
    use crate::{Job, ModelVersion, Times};

    fn job(reply: Reply) -> Job {
        let request = AdmittedRequest {
            id: "".into(),
            rows: 1,
            inputs: [].into_iter().collect(),
            wanted: WantedOutputs::new(),
            priority: 0,
            timeout_us: 0,
            sequence: Sequence::default(),
            parameters: Parameters::new(),
            cancel: Cancel::new(),
            reply,
        };
        Job::new(request, ModelVersion::unmetered("m").begin(), 0)
    }

    fn spare_count() -> usize {
        SPARE.with_borrow(Vec::len)
    }

    #[test]
    fn a_job_is_small_and_its_place_is_used_again() {
        assert!(size_of::<Job>() <= 3 * size_of::<usize>());
        drop(job(Reply::new(drop)));
        assert_eq!(spare_count(), 1);
        let one = job(Reply::new(drop));
        assert_eq!(spare_count(), 0);
        one.finish(Ok(()), Times::begin());
        assert_eq!(spare_count(), 1);
    }

    #[test]
    fn the_answer_to_a_job_may_make_another_one() {
        // By its drop, and by its end: the list must not be borrowed then.
        drop(job(Reply::new(|_| drop(job(Reply::new(drop))))));
        job(Reply::new(|_| drop(job(Reply::new(drop))))).finish(Ok(()), Times::begin());
        assert!(spare_count() >= 1);
    }

    #[test]
    fn a_thread_keeps_a_bounded_number_of_places() {
        let many: Vec<Job> = (0..2 * super::SPARE_MAX).map(|_| job(Reply::new(drop))).collect();
        drop(many);
        assert_eq!(spare_count(), super::SPARE_MAX);
    }
}
