//! What becomes of the sequences of an instance that is removed?

use nerite_request::SequenceId;
use nerite_schedule::{BatchPolicy, Direct, DirectPolicy, Oldest, OldestPolicy};

use super::limited::scheduled;
use super::*;
use crate::rates::{Claimed, RateLimits};

const PATIENCE: Duration = Duration::from_mins(1);
/// Each instance needs one R, and there are two.
const GROUP: &str =
    "instance_group { count: 3 kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 global: true } } }";

/// Reports its number when it runs, and when it is dropped.
struct Numbered {
    number: usize,
    ran: mpsc::Sender<usize>,
    gone: mpsc::Sender<usize>,
}

impl Compute for Numbered {
    fn compute(&mut self, _: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.ran.send(self.number).unwrap();
        Ok(())
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        // The test may be over.
        let _ = self.gone.send(self.number);
    }
}

struct Rig {
    pool: Pool,
    limits: Option<Arc<RateLimits>>,
    to: [mpsc::Sender<usize>; 2],
    ran: mpsc::Receiver<usize>,
    gone: mpsc::Receiver<usize>,
}

impl Rig {
    /// A pool of three instances with one sequence each.
    fn new(is_direct: bool, is_limited: bool) -> Rig {
        let (instances, idle_us) = (3, 600_000_000);
        let scheduler: Box<dyn Scheduler + Send> = if is_direct {
            Box::new(Direct::new(DirectPolicy { instances, rows_max: 1, idle_us, ..DirectPolicy::default() }))
        } else {
            let batch = BatchPolicy::default();
            let requests_max = None;
            Box::new(Oldest::new(OldestPolicy { instances, candidates_max: 1, idle_us, requests_max, batch }))
        };
        let ((ran_to, ran), (gone_to, gone)) = (mpsc::channel(), mpsc::channel());
        let to = [ran_to, gone_to];
        let all = (0..3).map(|number| instance(number, &to)).collect();
        let limits = is_limited.then(|| Arc::new(RateLimits::new([("R".to_owned(), None, 2)])));
        let pool = match &limits {
            Some(limits) => scheduled(limits, GROUP, all, scheduler, Arrivals::default().of_sequences(false)),
            None => pool_of(all, CostBound::Unknown, scheduler),
        };
        Rig { pool, limits, to, ran, gone }
    }

    /// Adds an instance. Returns its number in the pool.
    fn add(&self, number: usize) -> usize {
        let config = nerite_config::parse_text("", GROUP.as_bytes()).unwrap();
        let claimed = self.limits.as_ref().map(|limits| Claimed::of(limits, &config, &[0]).unwrap());
        self.pool.add(vec![instance(number, &self.to)], vec![None], claimed.unwrap_or_default())[0]
    }

    fn send(&self, sequence: u64, start: bool, end: bool) -> mpsc::Receiver<Option<Status>> {
        let (to, answers) = mpsc::channel();
        let reply = Reply::new(move |response: Response| {
            drop(to.send(response.into_content().and_then(Result::err)));
        });
        let sequence = Sequence { id: SequenceId::Number(sequence), start, end };
        let request = AdmittedRequest { sequence, ..AdmittedRequest::cancelled_by(Cancel::new(), reply) };
        self.pool.submit(Job::new(request, ModelVersion::unmetered("m").begin(), now_ns()), None);
        answers
    }

    /// The instance that runs a request of a sequence.
    #[track_caller]
    fn step(&self, sequence: u64, start: bool, end: bool) -> usize {
        assert_eq!(self.send(sequence, start, end).recv_timeout(PATIENCE).unwrap(), None);
        self.ran.recv().unwrap()
    }
}

fn instance(number: usize, [ran, gone]: &[mpsc::Sender<usize>; 2]) -> Box<dyn Instance> {
    Box::new(InOrder(Numbered { number, ran: ran.clone(), gone: gone.clone() }))
}

/// Each strategy, with and without resources that are shared.
fn rigs() -> impl Iterator<Item = Rig> {
    [(true, false), (false, false), (true, true), (false, true)].into_iter().map(|(one, other)| Rig::new(one, other))
}

#[test]
fn it_lives_until_they_are_over_and_takes_no_others() {
    for rig in rigs() {
        assert_eq!([rig.step(1, true, false), rig.step(2, true, false)], [0, 1]);
        assert_eq!(rig.add(3), 3);
        rig.pool.remove(&[0, 1, 2]);
        rig.pool.wait_for_removed();
        assert_eq!((rig.gone.try_recv(), rig.gone.try_recv().is_err()), (Ok(2), true), "the others have sequences");
        assert_eq!((rig.pool.leaving(), rig.step(1, false, false)), (2, 0));
        assert_eq!([rig.step(3, true, false), rig.step(2, false, false)], [3, 1]);
        // No instance is free for it.
        let waiting = rig.send(4, true, false);
        assert_eq!(rig.step(1, false, true), 0);
        assert_eq!(rig.gone.recv_timeout(PATIENCE), Ok(0));
        assert!(waiting.try_recv().is_err());
        // An added instance takes it at once. It has the number of one that is gone.
        assert!([0, 2].contains(&rig.add(4)));
        assert_eq!(waiting.recv_timeout(PATIENCE).unwrap(), None);
        assert_eq!((rig.ran.recv(), rig.step(4, false, false)), (Ok(4), 4));
        assert_eq!(rig.step(2, false, true), 1);
        assert_eq!(rig.gone.recv_timeout(PATIENCE), Ok(1));
        rig.pool.wait_for_removed();
        assert_eq!(rig.pool.leaving(), 0);
        rig.pool.close();
    }
}

#[test]
fn it_ends_when_the_pool_closes() {
    for rig in rigs() {
        rig.step(1, true, false);
        rig.pool.remove(&[0, 1]);
        rig.pool.close();
        let mut gone: Vec<usize> = rig.gone.try_iter().collect();
        gone.sort_unstable();
        assert_eq!((gone, rig.pool.leaving()), (vec![0, 1, 2], 0));
    }
}
