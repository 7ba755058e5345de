//! Is a batch of several jobs kept from front threads, however quick each of its jobs is alone?

use std::sync::atomic::{AtomicUsize, Ordering};

use nerite_schedule::Slot;

use super::*;

/// Runs `size` jobs together.
struct Together {
    size: Arc<AtomicUsize>,
    waiting: VecDeque<Ticket>,
    granted: Vec<InstanceId>,
}

impl Scheduler for Together {
    fn handle(&mut self, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Arrived(arrival) => self.waiting.push_back(arrival.ticket),
            Event::Granted(instance) => self.granted.push(instance),
            _ => {}
        }
        let size = self.size.load(Ordering::Relaxed);
        while self.waiting.len() >= size
            && let Some(instance) = self.granted.pop()
        {
            let slots = self.waiting.drain(..size).map(|ticket| Slot::Request { ticket, controls: None }).collect();
            context.run(Planned { instance, slots });
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[test]
fn a_batch_of_several_quick_jobs_runs_on_a_worker() {
    let (here, size, threads) = (std::thread::current().id(), Arc::new(AtomicUsize::new(1)), Arc::default());
    let scheduler = Together { size: Arc::clone(&size), waiting: VecDeque::new(), granted: Vec::new() };
    let instance = Box::new(InOrder(Noting(Arc::clone(&threads)))) as Box<dyn Instance>;
    let pool = pool_of(vec![instance], CostBound::InputSizes, Box::new(scheduler));
    let (to, answers) = mpsc::channel();
    // The threads on which a batch of this many jobs ran.
    let ran = |jobs: usize| {
        size.store(jobs, Ordering::Relaxed);
        (0..jobs).for_each(|id| pool.submit(job(id, &to).0, None));
        (0..jobs).for_each(|_| drop(answers.recv().unwrap()));
        std::mem::take(&mut *threads.lock().unwrap())
    };
    for _ in 0..10 {
        // On a busy machine some runs are not quick. Each job alone is quick once one of them has run here.
        assert!((0..300).any(|_| ran(1) == [here]), "a worker did all runs");
        assert!(!ran(2).contains(&here), "the batch was judged by the size of the job that arrived");
    }
    pool.close();
}
