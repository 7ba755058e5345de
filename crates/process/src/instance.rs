//! How does a batch go through a model's process and back?

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nerite_backend::{Batch, Instance, Job, Meter, Readiness, Times};
use nerite_request::{Code, Status};

use crate::answer::{self, Ended};
use crate::blocks::Blocks;
use crate::calls::lock;
use crate::child::Silence;
use crate::health::Health;
use crate::live::{Live, ProcessLauncher};
use crate::packets::{BatchPacket, Responses, Said};
use crate::plan::{Planned, Planner, Sizes};
use crate::shares::Maps;
use crate::spent;
use crate::supervisor::Side;

/// Numbers of requests, over all processes: no process can ask about a request of another.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// One instance: a process while it lives, and the next one after it died.
pub struct ProcessInstance {
    launcher: Arc<dyn ProcessLauncher>,
    blocks: Arc<Blocks>,
    live: Option<Live>,
    health: Arc<Health>,
    /// Bytes that each output had last time.
    sizes: Sizes,
    begun: Begun,
}

/// What was begun and is not done.
enum Begun {
    Nothing,
    /// Nobody has it yet: the process must be started first.
    Unasked(Vec<Job>, Arc<dyn Meter>),
    /// The process has it.
    Asked(UnderWay),
    /// The process will not answer it.
    Silent(UnderWay, Silence),
}

/// A batch that the process has.
struct UnderWay {
    planned: Vec<Planned>,
    /// Of a decoupled model: the numbers of the requests, which may go on after the batch.
    open: Vec<u64>,
    /// Whether the process has asked for room in it, so must have read it.
    is_read: bool,
    rows: u64,
    times: Times,
    meter: Arc<dyn Meter>,
}

impl UnderWay {
    /// The process may end with a packet unread after it asked for room. It had the batch all the same.
    fn silence(&self, silence: Silence) -> Silence {
        match silence {
            Silence::Unasked if self.is_read => Silence::Closed,
            other => other,
        }
    }
}

/// What came of a batch.
enum Answer {
    Responses(Responses),
    /// Nobody was answered, for the reason that the process gives.
    Failed(String),
}

impl ProcessInstance {
    /// Starts the process and initializes the model in it.
    pub fn start(launcher: Box<dyn ProcessLauncher>, blocks: Blocks) -> Result<ProcessInstance, Status> {
        let (launcher, blocks) = (Arc::from(launcher), Arc::new(blocks));
        let health = Health::new(Arc::clone(&launcher), Arc::clone(&blocks));
        let live = Some(health.start()?);
        let sizes = Arc::clone(&health.sizes);
        Ok(ProcessInstance { launcher, blocks, live, health, sizes, begun: Begun::Nothing })
    }

    /// The process, started anew if it has died.
    fn live(&mut self) -> Result<(), Status> {
        if self.live.is_none() {
            self.live = Some(self.health.start()?);
        }
        Ok(())
    }

    /// Gives the batch to the process, if there is one that takes it.
    fn ask(&mut self, jobs: Vec<Job>, meter: Arc<dyn Meter>) -> Begun {
        let mut times = jobs.first().map_or_else(Times::begin, Job::begin);
        let Some(live) = &mut self.live else { return Begun::Unasked(jobs, meter) };
        let (planned, requests, maps) = plan(live, &self.blocks, &lock(&self.sizes), jobs, times);
        if planned.is_empty() {
            // Nothing is sent, so what was to be introduced must be introduced another time.
            live.shares.disown(maps.segments.into_iter());
            return Begun::Nothing;
        }
        let forget = live.shares.take_untold();
        let packet = requests.finish(&maps.text, &forget);
        times.input_ends();
        let rows = planned.iter().map(|planned| u64::from(planned.job.rows().max(1))).sum();
        let under_way = |planned, open: Vec<u64>| {
            // It may be answered before it is known that it was read.
            UnderWay { planned, is_read: !open.is_empty(), open, rows, times, meter }
        };
        let Live { child, calls, .. } = live;
        let tell = || child.tell(&packet, &maps.descriptors);
        if let Some(calls) = calls
            && self.launcher.is_decoupled()
        {
            return match calls.begin(planned, times, tell) {
                Ok(open) => Begun::Asked(under_way(Vec::new(), open)),
                Err((planned, silence)) => Begun::Silent(under_way(planned, Vec::new()), silence),
            };
        }
        if let Some(calls) = calls {
            calls.batch_inputs.add(&planned);
        }
        match tell() {
            Ok(()) => Begun::Asked(under_way(planned, Vec::new())),
            Err(silence) => Begun::Silent(under_way(planned, Vec::new()), silence),
        }
    }

    /// Waits for the process's answer, at most for `patience`, and passes it on. What is not there by then stays begun.
    fn hear(&mut self, mut under_way: UnderWay, patience: Option<Duration>) -> Begun {
        let Some(live) = &mut self.live else { return Begun::Silent(under_way, Silence::Unasked) };
        let said = converse(live, &self.blocks, &mut under_way, patience).inspect(|said| {
            live.shares.disown(said.unmapped());
            keep(&live.child.side, &under_way.planned, said);
        });
        let (answer, said) = match said.and_then(answer_of) {
            Ok(answer) => answer,
            Err(Silence::TimedOut) => return Begun::Asked(under_way),
            Err(silence) => return Begun::Silent(under_way, silence),
        };
        let UnderWay { planned, open, rows, mut times, meter, .. } = under_way;
        if open.is_empty() {
            live.child.side.unwatch_all();
            if let Some(calls) = &live.calls {
                calls.batch_inputs.clear();
            }
        } else if let (Answer::Failed(text), Some(calls)) = (&answer, &live.calls) {
            calls.fail(&open, &Status::internal(self.launcher.failed(text)));
        }
        times.infer_ends();
        let spent = said.executions().map(|executions| spent::told(executions, &times));
        let done = self.settle(planned, answer);
        times.ends();
        match spent {
            None => meter.batch(rows, &times),
            Some(spent) => {
                for (rows, times) in &spent {
                    meter.batch(*rows, times);
                }
                times = spent::whole(&spent, times);
            }
        }
        finish(done, times);
        Begun::Nothing
    }

    /// The process gave no answer, and is one no more. What it was working on is lost, the instance is not; what it never got
    /// is for the next process. May wait for the process's end, so not on a front end's thread.
    fn bury(&mut self, under_way: UnderWay, silence: Silence) -> Begun {
        let UnderWay { planned, times, meter, .. } = under_way;
        let (calls, why) = match self.live.take() {
            Some(Live { child, calls, .. }) => (calls, Some(child.bury())),
            None => (None, None),
        };
        if matches!(silence, Silence::Unasked) {
            return Begun::Unasked(planned.into_iter().map(|planned| planned.job).collect(), meter);
        }
        let silence = match (silence, why) {
            (Silence::Closed, Some(why)) => Silence::Ended(why),
            (silence, _) => silence,
        };
        let status = self.unhealthy(&silence);
        log::error!("{status}");
        for one in planned {
            one.job.finish(Err(status.clone()), times);
        }
        if let Some(calls) = calls {
            calls.fail_all(&status);
        }
        Begun::Nothing
    }

    /// Puts each response into its job.
    fn settle(&mut self, planned: Vec<Planned>, answer: Answer) -> Vec<(Job, Ended)> {
        let mut responses = match answer {
            Answer::Responses(responses) => responses,
            Answer::Failed(text) => {
                let status = Status::internal(self.launcher.failed(&text));
                return planned.into_iter().map(|one| (one.job, Ended::Failed(status.clone()))).collect();
            }
        };
        let each = |mut one: Planned| {
            let response = responses.next();
            let ended =
                answer::settle(one.job.responder_mut(), &mut one.homes, response.as_ref(), &mut lock(&self.sizes));
            (one.job, ended)
        };
        planned.into_iter().map(each).collect()
    }

    fn unhealthy(&self, silence: &Silence) -> Status {
        let why = format!("{silence} while it had this request; the next request starts it anew");
        Status::internal(self.launcher.unhealthy(&why))
    }
}

impl Instance for ProcessInstance {
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Arc::clone(&self.health) as _)
    }

    fn run(&mut self, batch: Batch) {
        self.begin(batch, Duration::ZERO);
        self.finish();
    }

    fn begin(&mut self, batch: Batch, patience: Duration) -> bool {
        let Batch { jobs, meter } = batch;
        let (gone, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_cancelled);
        for job in gone {
            job.refuse(Status::new(Code::Cancelled, ""));
        }
        if jobs.is_empty() {
            return true;
        }
        self.begun = match self.ask(jobs, meter) {
            Begun::Asked(under_way) if !patience.is_zero() => self.hear(under_way, Some(patience)),
            begun => begun,
        };
        matches!(self.begun, Begun::Nothing)
    }

    fn finish(&mut self) {
        // A process that is gone before it took the batch is followed by another, and that one is not.
        let mut starts = 0;
        loop {
            self.begun = match std::mem::replace(&mut self.begun, Begun::Nothing) {
                Begun::Nothing => return,
                Begun::Asked(under_way) => self.hear(under_way, None),
                Begun::Silent(under_way, silence) => self.bury(under_way, silence),
                Begun::Unasked(jobs, _) if starts > 1 => {
                    return refuse(jobs, &self.unhealthy(&Silence::Unasked));
                }
                Begun::Unasked(jobs, meter) => match self.live() {
                    Ok(()) => {
                        starts += 1;
                        self.ask(jobs, meter)
                    }
                    Err(status) => return refuse(jobs, &status),
                },
            };
        }
    }
}

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        self.health.end();
    }
}

fn refuse(jobs: Vec<Job>, status: &Status) {
    let times = Times::begin();
    for job in jobs {
        job.finish(Err(status.clone()), times);
    }
}

/// What the process is to be told of the batch. Jobs whose tensors cannot be brought to the process end here.
fn plan(
    live: &Live,
    blocks: &Blocks,
    sizes: &HashMap<String, usize>,
    jobs: Vec<Job>,
    times: Times,
) -> (Vec<Planned>, BatchPacket, Maps) {
    let told = BatchPacket::new(live.is_packed);
    let mut planner = Planner { shares: &live.shares, blocks, sizes, maps: Maps::default(), told };
    let mut planned = Vec::with_capacity(jobs.len());
    for job in jobs {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let cancel = job.cancel().clone();
        match planner.add(number, job) {
            Ok(one) => {
                live.child.side.watch(std::iter::once((number, cancel)));
                planned.push(one);
            }
            Err((job, status)) => job.finish(Err(status), times),
        }
    }
    let Planner { maps, told, .. } = planner;
    (planned, told, maps)
}

/// Answers what the process asks until it answers what it was asked.
fn converse(
    live: &mut Live,
    blocks: &Blocks,
    under_way: &mut UnderWay,
    patience: Option<Duration>,
) -> Result<Said, Silence> {
    loop {
        if let Some(patience) = patience {
            live.child.wait(patience)?;
        }
        let said = live.child.answer().map_err(|silence| under_way.silence(silence))?;
        if let Some(need) = said.need() {
            under_way.is_read = true;
            let (text, maps) = answer::find_room(&mut under_way.planned, need, &live.shares, blocks);
            live.child.tell(&text, &maps.descriptors).map_err(|silence| under_way.silence(silence))?;
            continue;
        }
        answer::note_lost(&under_way.planned, said.lost());
        answer::note_copied(said.copied());
        return Ok(said);
    }
}

fn answer_of(mut said: Said) -> Result<(Answer, Said), Silence> {
    if let Some(error) = said.error() {
        return Ok((Answer::Failed(error.unwrap_or("it does not say why").to_owned()), said));
    }
    match said.take_responses() {
        Some(responses) => Ok((Answer::Responses(responses), said)),
        None => Err(Silence::Ended("its answer has neither responses nor an error".to_owned())),
    }
}

/// Takes the memory out of use on which the model kept arrays, and lets that go on which it keeps none any more.
fn keep(side: &Side, planned: &[Planned], said: &Said) {
    side.let_go(said.let_go());
    for segment in said.held() {
        if let Some(block) = planned.iter().flat_map(Planned::blocks).find(|block| block.segment() == segment) {
            side.keep(block);
        }
    }
}

fn finish(done: Vec<(Job, Ended)>, times: Times) {
    for (job, ended) in done {
        match ended {
            Ended::Done => job.finish(Ok(()), times),
            Ended::Said(status) => job.answer_error(status, times),
            Ended::Failed(status) => job.finish(Err(status), times),
            Ended::Again => job.reschedule(times),
        }
    }
}
