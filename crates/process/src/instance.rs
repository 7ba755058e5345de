//! How is a batch run in a model's process?

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nerite_backend::{Awaited, Batch, Instance, Job, LoadStop, Meter, Readiness, Times};
use nerite_request::{Client, Code, InputMemory, Prefix, Status};

use crate::answer::{self, Ended};
use crate::blocks::Blocks;
use crate::calls::lock;
use crate::child::{Silence, last_lines_of_run};
use crate::health::Health;
use crate::limits::{NAMED_ID_CHARACTERS_MAX, NAMED_REQUESTS_MAX};
use crate::live::{Live, ProcessLauncher};
use crate::overtime::Overtime;
use crate::packets::BatchPacket;
use crate::plan::{Planned, Planner, Sizes};
use crate::process_output::RunOutput;
use crate::shares::Maps;
use crate::spent;
use crate::under_way::{Answer, Left, NoAnswer, UnderWay, answer_of, keep};

/// Numbers of requests, unique over all processes, so that no process can ask about a request of another one.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// One instance of a model: its process, and after the death of the process the next one.
pub struct ProcessInstance {
    launcher: Arc<dyn ProcessLauncher>,
    blocks: Arc<Blocks>,
    live: Option<Live>,
    health: Arc<Health>,
    /// The size of each output in the last response.
    sizes: Sizes,
    begun: Begun,
    /// Ends a process that takes too long, if there is a limit.
    overtime: Option<Arc<Overtime>>,
}

/// A batch that was begun and is not done.
enum Begun {
    Nothing,
    /// No process has it yet: it must be started first.
    NotReceived(Vec<Job>, Arc<dyn Meter>),
    /// The batch could not be sent, because the process has not read enough of the earlier packets.
    Unsent(Unsent),
    /// The process has it.
    Sent(UnderWay),
    /// The process has it, and a thread that may wait must do the rest.
    Left(UnderWay, Left),
    /// The process has not answered, for this reason.
    Silent(UnderWay, Silence),
}

/// A batch that is ready to be sent.
struct Unsent {
    packet: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    under_way: UnderWay,
}

impl ProcessInstance {
    /// Starts the process and initializes the model in it, unless `stop` ends the load.
    pub fn start(
        launcher: Box<dyn ProcessLauncher>,
        blocks: Blocks,
        stop: &LoadStop,
    ) -> Result<ProcessInstance, Status> {
        let (launcher, blocks) = (Arc::from(launcher), Arc::new(blocks));
        let health = Health::new(Arc::clone(&launcher), Arc::clone(&blocks));
        let starting = Arc::downgrade(&health);
        let watch = stop.watch(move |why| starting.upgrade().into_iter().for_each(|health| health.end_start(why)));
        let live = Some(health.start()?);
        drop(watch);
        let sizes = Arc::clone(&health.sizes);
        let overtime = launcher.execute_limit().map(Overtime::start).transpose().map_err(|error| {
            let why = format!("no thread that ends a process that hangs: {error}; raise the limit on threads");
            Status::unavailable(launcher.unhealthy(&why))
        })?;
        Ok(ProcessInstance { launcher, blocks, live, health, sizes, begun: Begun::Nothing, overtime })
    }

    /// Makes sure that the process lives. Starts a new one if it has died.
    fn live(&mut self) -> Result<(), Status> {
        if self.live.is_none() {
            self.live = Some(self.health.start()?);
        }
        Ok(())
    }

    /// Sends the batch to the process, if there is one. Does not wait.
    fn send_batch(&mut self, jobs: Vec<Job>, meter: Arc<dyn Meter>) -> Begun {
        let mut times = jobs.first().map_or_else(Times::begin, Job::begin);
        let Some(live) = &mut self.live else { return Begun::NotReceived(jobs, meter) };
        if self.launcher.reports_responses() {
            live.child.side.report_to(&meter);
        }
        let is_decoupled = self.launcher.is_decoupled();
        let (planned, requests, maps) = plan(live, &self.blocks, is_decoupled, &lock(&self.sizes), jobs, times);
        if planned.is_empty() {
            // The packet was not sent, so its segments must be introduced again.
            live.shares.disown(maps.segments.into_iter());
            return Begun::Nothing;
        }
        let forget = live.shares.take_ended();
        let packet = requests.finish(&maps.text, &forget);
        times.mark_input_end();
        let rows = planned.iter().map(|planned| u64::from(planned.job.rows().max(1))).sum();
        let under_way =
            UnderWay { planned, open: Vec::new(), is_read: false, mark: None, needs: 0, rows, times, meter };
        self.send(Unsent { packet, descriptors: maps.descriptors, under_way })
    }

    /// Sends a batch, if that can be done at once.
    fn send(&self, mut unsent: Unsent) -> Begun {
        let Some(Live { child, calls, .. }) = &self.live else {
            return Begun::Silent(unsent.under_way, Silence::NotReceived);
        };
        if child.is_ending() {
            return Begun::Silent(unsent.under_way, Silence::NotReceived);
        }
        if let Some(output) = &child.output {
            let calls = calls.as_ref().filter(|_| self.launcher.is_decoupled());
            // A line may be about any request that the process has. So errors have it only if all these requests are of one client.
            let has_others = !are_of_one_client(&unsent.under_way.planned)
                || !matches!(self.begun, Begun::Nothing)
                || calls.is_some_and(|calls| calls.has_open());
            let number = unsent.under_way.planned.first().map_or(0, |one| one.number);
            output.begin_run(RunOutput { number, is_told: !has_others });
        }
        let Unsent { packet, descriptors, under_way } = &mut unsent;
        under_way.mark = child.channel.mark();
        let send = || child.try_send(packet, descriptors);
        // This is noted before the batch is sent, because the process may die at once.
        child.os_process.note_request();
        let is_sent = match calls {
            Some(calls) if self.launcher.is_decoupled() => {
                match calls.begin(std::mem::take(&mut under_way.planned), under_way.times, send) {
                    Ok(open) => {
                        // The process may answer before the server knows that it has read the batch.
                        (under_way.is_read, under_way.open) = (!open.is_empty(), open);
                        Ok(true)
                    }
                    Err((planned, silence)) => {
                        under_way.planned = planned;
                        silence.map_or(Ok(false), Err)
                    }
                }
            }
            Some(calls) => {
                calls.batch_inputs.add(&under_way.planned);
                send()
            }
            None => send(),
        };
        match is_sent {
            Ok(true) => {
                self.overtime.iter().for_each(|overtime| overtime.begins(&child.os_process, &child.channel));
                Begun::Sent(unsent.under_way)
            }
            Ok(false) => Begun::Unsent(unsent),
            Err(silence) => Begun::Silent(unsent.under_way, silence),
        }
    }

    /// Sends a batch once the process has read enough.
    fn send_waiting(&self, unsent: Unsent) -> Begun {
        let space = self.live.as_ref().map_or(Ok(()), |live| live.child.channel.wait_for_space());
        match space {
            Ok(()) => self.send(unsent),
            Err(error) => Begun::Silent(unsent.under_way, Silence::Ended(format!("it cannot be sent to: {error}"))),
        }
    }

    /// Waits for the process's answer, at most for `timeout`, and passes it on. Without an answer the batch stays
    /// begun. `left` is the work that an earlier thread left.
    fn receive(&mut self, mut under_way: UnderWay, timeout: Option<Duration>, left: Option<Left>) -> Begun {
        let Some(live) = &mut self.live else { return Begun::Silent(under_way, Silence::NotReceived) };
        let said = match under_way.converse(live, &self.blocks, timeout, left) {
            Ok(said) => Ok(said),
            Err(NoAnswer::Left(left)) => return Begun::Left(under_way, left),
            Err(NoAnswer::Silence(silence)) => Err(silence),
        };
        let said = said.inspect(|said| {
            live.shares.disown(said.unmapped());
            keep(&live.child.side, &under_way.planned, said);
        });
        let (answer, said) = match said.and_then(answer_of) {
            Ok(answer) => answer,
            Err(Silence::TimedOut) => return Begun::Sent(under_way),
            Err(silence) => return Begun::Silent(under_way, silence),
        };
        self.overtime.iter().for_each(|overtime| overtime.ends());
        let UnderWay { planned, open, rows, mut times, meter, .. } = under_way;
        if let Some(calls) = &live.calls {
            calls.run_ends(&open);
        }
        if open.is_empty() {
            live.child.os_process.note_answer();
            live.child.side.unwatch_all();
            if let Some(calls) = &live.calls {
                calls.batch_inputs.clear();
            }
        } else if let (Answer::Failed(text), Some(calls)) = (&answer, &live.calls) {
            calls.fail(&open, &Status::internal(self.launcher.failed(text)));
        }
        times.mark_infer_end();
        let spent = said.executions().map(|executions| spent::spent_of(executions, &times));
        let (done, apart) = match answer {
            Answer::Responses(responses) if !open.is_empty() => (Vec::new(), Some(responses)),
            answer => (self.settle(planned, answer), None),
        };
        times.mark_end();
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
        if let (Some(responses), Some(live)) = (apart, &self.live)
            && let Some(calls) = &live.calls
        {
            calls.settle(&open, responses, &said, times);
        }
        Begun::Nothing
    }

    /// Ends a process that does not answer. The requests that it was working on fail. Requests that it did not read are
    /// run by the next process. The instance continues. This may wait for the process's end, so it must not be called
    /// on a front thread.
    fn end_process(&mut self, under_way: UnderWay, silence: Silence) -> Begun {
        let UnderWay { planned, times, meter, .. } = under_way;
        self.overtime.iter().for_each(|overtime| overtime.ends());
        let (calls, printed, why) = match self.live.take() {
            Some(Live { child, calls, .. }) => (calls, Some(child.printed()), Some(child.shut_down())),
            None => (None, None, None),
        };
        if matches!(silence, Silence::NotReceived) {
            return Begun::NotReceived(planned.into_iter().map(|planned| planned.job).collect(), meter);
        }
        let silence = match (silence, why) {
            (Silence::Closed, Some(why)) => Silence::Ended(why),
            (silence, _) => silence,
        };
        let mut status = self.unhealthy(&silence);
        // The log has the process's last lines already.
        log::error!("{}{status}", named_alone(&planned));
        status.message += &printed.map(|(output, side)| last_lines_of_run(output.as_ref(), &side)).unwrap_or_default();
        for one in planned {
            one.job.finish(Err(status.clone()), times);
        }
        if let Some(calls) = calls {
            calls.end_all(status);
        }
        Begun::Nothing
    }

    /// Moves each response to its job.
    fn settle(&mut self, planned: Vec<Planned>, answer: Answer) -> Vec<(Job, Ended)> {
        let mut responses = match answer {
            Answer::Responses(responses) => responses,
            Answer::Failed(text) => {
                let status = Status::internal(self.launcher.failed(&text));
                self.log_failed(&planned, &text, &status);
                return planned.into_iter().map(|one| (one.job, Ended::Failed(status.clone()))).collect();
            }
        };
        let each = |mut one: Planned| {
            let response = responses.next();
            let ended =
                answer::settle(one.job.responder_mut(), &mut one.targets, response.as_ref(), &mut lock(&self.sizes));
            (one.job, ended)
        };
        planned.into_iter().map(each).collect()
    }

    /// Logs why a batch failed, and which requests it had. As in Triton, all of them get the same text.
    fn log_failed(&self, planned: &[Planned], text: &str, status: &Status) {
        if planned.len() == 1 {
            log::error!("{}{status}", named_alone(planned));
        } else {
            let ids = named(planned.iter().map(|one| one.job.id()));
            log::error!(
                "model instance '{}': a batch failed with the requests {ids}: {text}",
                self.launcher.instance()
            );
        }
    }

    fn unhealthy(&self, silence: &Silence) -> Status {
        let why = format!("{silence} while it had this request; it is started anew");
        Status::internal(self.launcher.unhealthy(&why))
    }
}

impl Instance for ProcessInstance {
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Arc::clone(&self.health) as _)
    }

    /// Without a live process, the next request would wait for one.
    fn is_down(&self) -> bool {
        self.live.is_none() && self.health.is_down()
    }

    /// A decoupled model gets copies: it may use its inputs after it has answered.
    fn input_memory(&self) -> Option<Arc<dyn InputMemory>> {
        (!self.launcher.is_decoupled()).then(|| Arc::clone(&self.blocks) as _)
    }

    fn run(&mut self, batch: Batch) {
        self.begin(batch, Duration::ZERO);
        self.finish();
    }

    fn begin(&mut self, batch: Batch, timeout: Duration) -> bool {
        let Batch { jobs, meter } = batch;
        let (gone, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_stopped);
        for job in gone {
            job.refuse(Status::new(Code::Cancelled, ""));
        }
        if jobs.is_empty() {
            return true;
        }
        self.begun = match self.send_batch(jobs, meter) {
            Begun::Sent(under_way) if !timeout.is_zero() => self.receive(under_way, Some(timeout), None),
            begun => begun,
        };
        matches!(self.begun, Begun::Nothing)
    }

    fn awaited(&self) -> Option<Awaited> {
        match (&self.begun, &self.live) {
            (Begun::Sent(_), Some(live)) => Some(Arc::clone(&live.child.channel) as Awaited),
            _ => None,
        }
    }

    fn go_on(&mut self) -> bool {
        self.begun = match std::mem::replace(&mut self.begun, Begun::Nothing) {
            Begun::Sent(under_way) => self.receive(under_way, Some(Duration::ZERO), None),
            // A thread must wait for the process.
            begun => begun,
        };
        matches!(self.begun, Begun::Nothing)
    }

    fn finish(&mut self) {
        // If the process ended before it read the batch, another one is started, twice at the most.
        let mut starts = 0;
        loop {
            self.begun = match std::mem::replace(&mut self.begun, Begun::Nothing) {
                Begun::Nothing => return,
                Begun::Unsent(unsent) => self.send_waiting(unsent),
                Begun::Sent(under_way) => self.receive(under_way, None, None),
                Begun::Left(under_way, left) => self.receive(under_way, None, Some(left)),
                Begun::Silent(under_way, silence) => self.end_process(under_way, silence),
                Begun::NotReceived(jobs, _) if starts > 1 => {
                    return refuse(jobs, &self.unhealthy(&Silence::NotReceived));
                }
                Begun::NotReceived(jobs, meter) => match self.live() {
                    Ok(()) => {
                        starts += 1;
                        self.send_batch(jobs, meter)
                    }
                    Err(status) => return refuse(jobs, &status),
                },
            };
        }
    }
}

impl Drop for ProcessInstance {
    fn drop(&mut self) {
        self.overtime.iter().for_each(|overtime| overtime.close());
        self.health.end();
    }
}

/// Whether all these requests are of one client. Several requests of the server itself do not count as such: each may have tensors of any client.
fn are_of_one_client(planned: &[Planned]) -> bool {
    let mut peers = planned.iter().map(|one| one.job.client().peer);
    let first = peers.next();
    planned.len() == 1 || (first != Some(Client::default().peer) && peers.all(|peer| Some(peer) == first))
}

/// The ids of requests, as the log names them. Clients choose them, so long ones are cut.
fn named<'j>(ids: impl ExactSizeIterator<Item = &'j str>) -> String {
    let more = ids.len().saturating_sub(NAMED_REQUESTS_MAX);
    let one = |id: &str| match id {
        "" => "<id_unknown>".to_owned(),
        id => shortened(id),
    };
    let ids: Vec<String> = ids.take(NAMED_REQUESTS_MAX).map(one).collect();
    let ids = ids.join(", ");
    if more > 0 { format!("[request ids: {ids} and {more} more]") } else { format!("[request ids: {ids}]") }
}

/// The id of the only request of a batch, as the beginning of a log line about it. Empty for other batches.
fn named_alone(planned: &[Planned]) -> String {
    if let [one] = planned { Prefix(&shortened(one.job.id())).to_string() } else { String::new() }
}

fn shortened(id: &str) -> String {
    id.chars().take(NAMED_ID_CHARACTERS_MAX).collect()
}

fn refuse(jobs: Vec<Job>, status: &Status) {
    let times = Times::begin();
    for job in jobs {
        job.finish(Err(status.clone()), times);
    }
}

/// Builds the packet of the batch. Jobs whose tensors cannot be shared with the process end here with an error.
fn plan(
    live: &Live,
    blocks: &Blocks,
    is_decoupled: bool,
    sizes: &HashMap<String, usize>,
    jobs: Vec<Job>,
    times: Times,
) -> (Vec<Planned>, BatchPacket, Maps) {
    let packet = BatchPacket::new(live.is_packed);
    let mut planner = Planner {
        shares: &live.shares,
        blocks,
        sizes,
        maps: Maps::default(),
        is_decoupled,
        packet,
        private_inputs: Vec::new(),
    };
    let mut planned = Vec::with_capacity(jobs.len());
    for job in jobs {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let cancel = live.flag_of(&job);
        match planner.add(number, job) {
            Ok(one) => {
                live.child.side.watch(std::iter::once((number, cancel)));
                planned.push(one);
            }
            Err((job, status)) => job.finish(Err(status), times),
        }
    }
    let Planner { maps, packet, .. } = planner;
    (planned, packet, maps)
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

#[cfg(test)]
mod tests;
