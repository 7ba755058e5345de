//! How does a request run again when its model asks for that?
//!
//! It is submitted while its instance still runs, on the thread of that run, so its sequence keeps its slot. A full queue does not refuse it: it was
//! admitted before, and its client waits for it.

use std::sync::Arc;

use nerite_backend::{Job, Reschedule};
use nerite_schedule::{Arrival, Repeat};

use super::{Queued, Shared};
use crate::timer::now_us;

impl Reschedule for Shared {
    fn again(self: Arc<Self>, job: Job, sequence: u64) {
        let (size, arrival) = (self.quickness.size(&job), self.arrivals.describe(&job, job.arrived() / 1000));
        // The deadline bounded the wait for a slot of the sequence. The request has the slot now.
        let arrival = Arrival { deadline: None, repeat: Repeat::Of(sequence), ..arrival };
        let cancel = job.cancel().clone();
        let mut state = self.lock();
        let (number, now_us) = (state.arrived, now_us());
        state.arrived += 1;
        let ticket = state.driver.arrive(
            Queued { job, number, size, flow: None },
            |ticket| Arrival { ticket, ..arrival },
            now_us,
        );
        let whom = Arc::downgrade(&self);
        if !cancel.on_cancelled(move || Shared::cancel(&whom, ticket)) {
            state.driver.cancel(ticket, now_us);
        }
        let work = self.settle(&mut state, false);
        drop(state);
        self.carry_out(work);
    }
}
