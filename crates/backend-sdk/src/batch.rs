//! Which requests run together, and how is each of them answered?

use std::rc::Rc;

use crate::clock::Clock;
use crate::error::Error;
use crate::interface as raw;
use crate::log::log_failure;
use crate::request::Request;
use crate::response::Response;

/// The requests that the server runs together.
pub struct Batch {
    calls: Vec<Call>,
    rows: u64,
    run: Rc<Run>,
}

/// The part that the calls of a batch share.
struct Run {
    instance: *mut raw::Instance,
    clock: Clock,
}

/// One request that needs an answer. If it is dropped without one, its client gets an error.
pub struct Call {
    /// `None` once it is released.
    request: Option<Request>,
    run: Rc<Run>,
}

impl Batch {
    /// # Safety
    /// `instance` and `requests` are what the server passed to `TRITONBACKEND_ModelInstanceExecute`, whose call lasts longer than
    /// this. The requests belong to this backend from now on.
    pub(crate) unsafe fn new(instance: *mut raw::Instance, requests: impl Iterator<Item = *mut raw::Request>) -> Batch {
        let run = Rc::new(Run { instance, clock: Clock::start() });
        let call = |request| {
            // SAFETY: the request was given to this backend by the caller's promise, and `Call` releases it with its last use.
            let request = Some(unsafe { Request::new(request) });
            Call { request, run: Rc::clone(&run) }
        };
        let calls: Vec<Call> = requests.map(call).collect();
        Batch { rows: calls.len() as u64, calls, run }
    }

    /// Takes the requests. A second call returns none.
    pub fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Sets the rows of all requests together, for the statistics. Without this, each request counts as one row.
    pub fn set_rows(&mut self, rows: u64) {
        self.rows = rows;
    }

    /// Notes that the inputs are read, for the statistics.
    pub fn mark_input_end(&self) {
        self.run.clock.mark_input_end();
    }

    /// Notes that the model has run, for the statistics.
    pub fn mark_infer_end(&self) {
        self.run.clock.mark_infer_end();
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Calls that were not taken are dropped, and so answered, first.
        self.calls.clear();
        let [start, input_end, infer_end, end] = self.run.clock.times();
        // SAFETY: the instance is good as long as `Batch` lives, by the promise of `new`.
        let reported = unsafe {
            raw::TRITONBACKEND_ModelInstanceReportBatchStatistics(
                self.run.instance,
                self.rows,
                start,
                input_end,
                infer_end,
                end,
            )
        };
        log_failure("the statistics of a batch", reported.check());
    }
}

impl Call {
    /// The request.
    pub fn request(&self) -> &Request {
        self.request.as_ref().expect("a request is there until its call is answered, which takes the call")
    }

    /// Answers with the outputs that `fill` writes, or with its error.
    pub fn answer(mut self, fill: impl FnOnce(&Request, &mut Response) -> Result<(), Error>) {
        match Response::new(self.request()) {
            Ok(mut response) => {
                let filled = fill(self.request(), &mut response);
                let is_success = response.send(filled);
                self.release(is_success);
            }
            // Without a response the client cannot be told of the error.
            Err(error) => {
                log_failure("a response cannot be made", Err(error));
                self.release(false);
            }
        }
    }

    /// Answers with an error.
    pub fn fail(self, error: Error) {
        self.answer(|_, _| Err(error));
    }

    /// Gives the request back.
    fn release(&mut self, is_success: bool) {
        let Some(request) = self.request.take() else { return };
        let [start, input_end, infer_end, end] = self.run.clock.times();
        let instance = self.run.instance;
        // SAFETY: the instance is good by the promise of `Batch::new`, and the request was not released.
        let reported = unsafe {
            raw::TRITONBACKEND_ModelInstanceReportStatistics(
                instance,
                request.raw(),
                is_success,
                start,
                input_end,
                infer_end,
                end,
            )
        };
        log_failure("the statistics of a request", reported.check());
        // SAFETY: the request was not released, and is not used afterwards: its `Request` ends here.
        let released = unsafe { raw::TRITONBACKEND_RequestRelease(request.raw(), raw::FINAL) };
        log_failure("a request cannot be released", released.check());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.request.is_none() {
            return;
        }
        let text = if std::thread::panicking() { "the backend panicked" } else { "the backend gave no answer" };
        if let Ok(response) = Response::new(self.request()) {
            response.send(Err(Error::internal(text)));
        }
        self.release(false);
    }
}
