//! Where are the parts of a request stored while the request is passed on?
//!
//! They stay in one box. A request is moved dozens of times: into the queue, out of it, into a run, into closures. Its parts take several hundred
//! bytes. When each move copied them, a small request spent a third of its processor time on that.

use std::cell::RefCell;
use std::thread::LocalKey;

use nerite_memory::Buffer;
use nerite_request::{Client, FreeList, Inputs, Parameters, Recycle, Sequence};

use crate::Responder;
use crate::reschedule::Own;

thread_local! {
    static FREE: FreeList<JobParts> = const { RefCell::new(Vec::new()) };
}

/// The parts of a [`Job`](crate::Job).
#[derive(Debug, Default)]
pub(crate) struct JobParts {
    // The inputs are dropped first, because a client may unregister its regions as soon as it has the answer.
    pub(crate) inputs: Inputs,
    /// The data of inputs that were given other data while the request runs, each with the position of its input.
    pub(crate) replaced: Vec<(usize, Buffer)>,
    pub(crate) parameters: Parameters,
    pub(crate) sequence: Sequence,
    pub(crate) priority: u64,
    pub(crate) timeout_us: u64,
    pub(crate) client: Client,
    pub(crate) own: Own,
    pub(crate) responder: Responder,
}

impl Recycle for JobParts {
    fn clear(&mut self) {
        let JobParts { inputs, replaced, parameters, sequence, priority, timeout_us, client, own, responder } = self;
        inputs.clear();
        *replaced = Vec::new();
        *parameters = Parameters::new();
        *sequence = Sequence::default();
        (*priority, *timeout_us, *client, *own) = (0, 0, Client::default(), Own::default());
        responder.clear();
    }

    fn free_list() -> &'static LocalKey<FreeList<JobParts>> {
        &FREE
    }
}

#[cfg(test)]
mod tests {
    use nerite_request::{AdmittedRequest, Recycled, Reply};
    use nerite_tensor::Tensor;

    use super::*;
    use crate::{Job, ModelVersion, Times};

    fn job(reply: Reply) -> Job {
        let request = AdmittedRequest { id: "i".into(), priority: 1, timeout_us: 2, ..AdmittedRequest::new(reply) };
        Job::new(request, ModelVersion::unmetered("m").begin(), 3)
    }

    fn free_count() -> usize {
        FREE.with_borrow(Vec::len)
    }

    #[test]
    fn a_job_is_small_and_its_box_is_used_again() {
        assert!(size_of::<Job>() <= size_of::<usize>());
        drop(job(Reply::new(drop)));
        assert_eq!(free_count(), 1);
        let one = job(Reply::new(drop));
        assert_eq!(free_count(), 0);
        one.finish(Ok(()), Times::begin());
        assert_eq!(free_count(), 1);
    }

    #[test]
    fn nothing_of_a_job_is_left_in_its_box() {
        let tensor = |name: &str| Tensor {
            name: name.into(),
            datatype: nerite_tensor::DataType::Int8,
            shape: nerite_tensor::Shape::new(),
            data: Buffer::empty(),
        };
        let mut full = job(Reply::new(drop));
        full.begin_own_sequence(7);
        full.runs_on(3);
        (0..9).for_each(|_| full.add_input(tensor("a")));
        (0..9).for_each(|_| full.want(1, &"b".into()));
        full.keep(Box::new(()));
        full.on_end(|_| Ok(()));
        full.responder_mut().keep_state(tensor("s"));
        full.responder_mut().count_responses(5);
        assert!(full.responder_mut().note_apart().is_some());
        let inputs = full.take_inputs();
        full.return_inputs(inputs);
        drop(full);
        assert_eq!(free_count(), 1);
        let next = Recycled::<JobParts>::new();
        assert_eq!(format!("{next:?}"), format!("{:?}", JobParts::default()));
    }

    #[test]
    fn the_answer_to_a_job_may_make_another_one() {
        // The reply is called when a job is dropped, and when it ends. The free list must not be borrowed at that time.
        drop(job(Reply::new(|_| drop(job(Reply::new(drop))))));
        job(Reply::new(|_| drop(job(Reply::new(drop))))).finish(Ok(()), Times::begin());
        assert!(free_count() >= 1);
    }
}
