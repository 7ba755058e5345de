//! How many entries does a pool have in the timer, if clients choose the times?

use super::*;
use crate::timer::timer;

/// Times that are never reached, and that no other test uses.
const FAR_US: u64 = 1 << 58;
const JOBS: u64 = 1000;

/// Wants to be woken earlier with each job, and runs none.
struct Sooner {
    waiting: Vec<Ticket>,
    at_us: u64,
}

impl Scheduler for Sooner {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) => {
                self.waiting.push(arrival.ticket);
                self.at_us -= 1;
            }
            Event::Stop => self.waiting.drain(..).for_each(|ticket| context.reject(ticket, Rejection::Stopping)),
            _ => {}
        }
        context.wake_at(self.at_us);
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn a_pool_has_one_entry_however_often_its_time_changes_and_none_when_it_is_gone() {
    let pool = pool_of(Vec::new(), CostBound::Unknown, Box::new(Sooner { waiting: Vec::new(), at_us: FAR_US + JOBS }));
    let (to, answers) = mpsc::channel();
    for id in 0..JOBS as usize {
        pool.submit(job(id, &to).0, None);
        assert_eq!(timer().entries_in(FAR_US..=FAR_US + JOBS), 1);
    }
    assert_eq!(pool.waiting(), JOBS as usize);
    drop((pool, to));
    assert_eq!(answers.iter().count(), JOBS as usize);
    assert_eq!(timer().entries_in(FAR_US..=FAR_US + JOBS), 0);
}
