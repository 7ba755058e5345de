//! Is a request answered from the response cache?
//!
//! ```text
//!   submit ─► key over the inputs ─► found: the stored outputs go to the client's places
//!      │ (aside, if that takes long)  └─ not found: the model runs, and its response is kept on its way to the client
//! ```
//! A client can change shared memory after its key was made, and outputs in its memory before they are copied. So a response that was made with such
//! memory is kept under a key that only requests of the same client have: a client can deceive only itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nerite_backend::{Job, Times, now_ns};
use nerite_cache::{Kept, Key, KeyWriter, ResponseCache, Stored};
use nerite_memory::{Access, Reason};
use nerite_request::limits::INLINE_WORK_BYTES_MAX;
use nerite_request::{Code, Deliver, InferResponse, Peer, PeerAccount, PlaceQuery, Reply, Response, Status};
use nerite_schedule::Rejection;

use crate::lookups::{Lookup, Lookups, NotTaken, RunJob};
use crate::stats::Stats;

/// The cache as one model version uses it.
pub(crate) struct Cached {
    cache: Arc<ResponseCache>,
    /// Unique for each version that was ever loaded.
    generation: u64,
    model: Arc<str>,
    stats: Arc<Stats>,
    lookups: Arc<Lookups>,
}

/// The keys of a request.
struct Keys {
    /// The key of responses that were made of private memory only. They are valid for every client.
    of_all: Key,
    /// The key of responses that were made with memory that the client could change. `None` if the client is not identified.
    of_client: Option<Key>,
    /// Whether the client can change the inputs of this request.
    is_shared: bool,
}

impl Cached {
    pub fn new(cache: Arc<ResponseCache>, model: &str, stats: Arc<Stats>, lookups_max: usize) -> Cached {
        static LOADED: AtomicU64 = AtomicU64::new(0);
        let generation = LOADED.fetch_add(1, Ordering::Relaxed);
        Cached { cache, generation, model: model.into(), stats, lookups: Lookups::at_most(lookups_max) }
    }

    /// Requests that wait to be looked up.
    pub fn waiting(&self) -> usize {
        self.lookups.waiting()
    }

    /// Returns when no request is being looked up.
    pub fn wait(&self) {
        self.lookups.wait();
    }

    /// Answers the request from the cache or runs its model. If the inputs are large, another thread does so.
    pub fn submit(self: &Arc<Self>, model: &Arc<dyn RunJob>, job: Job, client: Option<&Peer>) {
        let client = client.filter(|peer| peer.is_identified()).map(Peer::to_string);
        // A request must not overtake those that came before it and are being looked up.
        let is_behind = model.keeps_order() && self.lookups.is_busy();
        if !may_be_kept(&job, client.is_some()) {
            return if is_behind { self.aside(model, job, |model, job| model.run(job)) } else { model.run(job) };
        }
        let bytes: usize = job.inputs().iter().map(|input| input.data.len()).sum();
        if bytes <= INLINE_WORK_BYTES_MAX && !is_behind {
            return self.look_up(model, job, client.as_deref(), true);
        }
        let cached = Arc::clone(self);
        self.aside(model, job, move |model, job| cached.look_up(model, job, client.as_deref(), false));
    }

    /// Does `work` on the thread of large look-ups.
    fn aside(&self, model: &Arc<dyn RunJob>, job: Job, work: impl FnOnce(&Arc<dyn RunJob>, Job) + Send + 'static) {
        let lookup = Lookup { model: Arc::clone(model), job, work: Box::new(work) };
        match self.lookups.push(lookup) {
            Ok(()) => {}
            Err(NotTaken::Full(job)) => model.reject(*job, Rejection::Overloaded),
            Err(NotTaken::NoThread(job)) => model.run(*job),
        }
    }

    fn look_up(self: &Arc<Self>, model: &Arc<dyn RunJob>, job: Job, client: Option<&str>, may_be_front: bool) {
        let begun = now_ns();
        let keys = self.keys(&job, client);
        if job.is_stopped() {
            return job.refuse(Status::new(Code::Cancelled, ""));
        }
        // A response that was kept for one client was made with memory that its programs can change. It does not answer a request whose tensors are
        // all in the message.
        let found = match keys.of_client.filter(|_| keys.is_shared || has_places(&job)) {
            Some(of_client) => self.cache.find(&[keys.of_all, of_client]),
            None => self.cache.find(&[keys.of_all]),
        };
        let lookup_ns = now_ns().saturating_sub(begun);
        self.cache.note_lookup(lookup_ns);
        log::debug!("model '{}': response cache {}", self.model, if found.is_some() { "hit" } else { "miss" });
        let Some(stored) = found else { return self.run(model, job, keys, lookup_ns) };
        let is_long = stored.output_bytes() > INLINE_WORK_BYTES_MAX;
        if model.keeps_order() {
            let (cached, whom) = (Arc::clone(self), Arc::clone(model));
            // The thread that ends the request before this one calls this. It may be a front thread.
            let answer = move |job| {
                if is_long {
                    cached.answer_aside(&whom, job, &stored, lookup_ns);
                } else {
                    answer(job, &stored, lookup_ns);
                }
            };
            if let Some(job) = model.answer_in_turn(job, Box::new(answer)) {
                self.run(model, job, keys, lookup_ns);
            }
        } else if may_be_front && is_long {
            self.aside(model, job, move |_, job| answer(job, &stored, lookup_ns));
        } else {
            answer(job, &stored, lookup_ns);
        }
    }

    /// Answers a request on the thread of large look-ups, or on this one if the queue of the other is full.
    fn answer_aside(&self, model: &Arc<dyn RunJob>, job: Job, stored: &Arc<Stored>, lookup_ns: u64) {
        let copied = Arc::clone(stored);
        let work = move |_: &Arc<dyn RunJob>, job| answer(job, &copied, lookup_ns);
        match self.lookups.push(Lookup { model: Arc::clone(model), job, work: Box::new(work) }) {
            Ok(()) => {}
            Err(NotTaken::Full(job) | NotTaken::NoThread(job)) => answer(*job, stored, lookup_ns),
        }
    }

    /// Runs the model, whose response is kept in the cache.
    fn run(&self, model: &Arc<dyn RunJob>, mut job: Job, keys: Keys, lookup_ns: u64) {
        let insertion = Insertion {
            cache: Arc::clone(&self.cache),
            stats: Arc::clone(&self.stats),
            model: Arc::clone(&self.model),
            keys,
            lookup_ns,
            is_kept: false,
            reply: Reply::closed(),
        };
        job.answer_by(|reply| Reply::through(Insertion { reply, ..insertion }));
        model.run(job);
    }

    fn keys(&self, job: &Job, client: Option<&str>) -> Keys {
        let mut key = KeyWriter::new(self.generation);
        let mut inputs: Vec<_> = job.inputs().iter().collect();
        inputs.sort_unstable_by(|one, next| one.name.cmp(&next.name));
        key.number(inputs.len() as u64);
        for input in &inputs {
            key.input(input, &|| !job.is_stopped());
        }
        let mut wanted: Vec<usize> = job.responder().wanted_outputs().indexed().map(|(index, _)| index).collect();
        wanted.sort_unstable();
        key.number(wanted.len() as u64);
        for index in wanted {
            key.number(index as u64);
        }
        key.parameters(job.parameters());
        key.sequence(job.sequence(), job.client().owner);
        let of_all = key.finish();
        let is_shared = inputs.iter().any(|input| input.data.access() == Access::Shared);
        Keys { of_all, of_client: client.map(|client| of_all.of_client(client)), is_shared }
    }
}

/// Whether a key can be made of the request, and its response be kept for this client or for all. Memory of devices is not read for keys.
fn may_be_kept(job: &Job, has_client: bool) -> bool {
    job.inputs()
        .iter()
        .all(|input| input.data.place().is_host() && (has_client || input.data.access() == Access::Private))
}

/// Whether outputs may lie in memory that the client shares.
fn has_places(job: &Job) -> bool {
    job.offers_places() || job.responder().wanted_outputs().iter().any(|output| output.slot.is_some())
}

/// Answers with the stored response. If memory of the inputs was lost, the answer is an error, as after a run. The time of the hit is that of the
/// look-up and of the copy of the outputs. A wait between the two, for the request's turn or for a thread, counts as time in the queue.
fn answer(mut job: Job, stored: &Stored, lookup_ns: u64) {
    let mut times = Times::begin();
    times.start = times.start.saturating_sub(lookup_ns);
    let placed = place(&mut job, stored);
    job.finish_from_cache(placed, times);
}

/// Copies the outputs to the places that the client named or that were chosen for it. Other outputs are sent from the cache's memory.
fn place(job: &mut Job, stored: &Stored) -> Result<(), Status> {
    job.set_parameters(stored.parameters.clone());
    for output in &stored.outputs {
        let (index, size) = (output.index, output.data.len());
        let slot = match job.output_slot(index) {
            Some(_) => Some(job.output_bytes(index, size)?),
            None => job.offered(index, size)?,
        };
        match slot {
            Some(mut slot) => {
                let filled = slot.fill_from(0, &output.data, Reason::ResponseCache);
                filled.map_err(|fault| Status::internal(fault.to_string()))?;
                job.put(index, output.datatype, output.shape.clone(), slot.filled());
            }
            None => job.put_buffer(index, output.datatype, output.shape.clone(), output.data.clone()),
        }
    }
    Ok(())
}

/// Keeps the response of a model on its way to the client.
struct Insertion {
    cache: Arc<ResponseCache>,
    stats: Arc<Stats>,
    model: Arc<str>,
    keys: Keys,
    lookup_ns: u64,
    /// Whether the response was kept.
    is_kept: bool,
    reply: Reply,
}

impl Insertion {
    fn keep(&self, response: &InferResponse) {
        let begun = now_ns();
        let is_placed = response.outputs.iter().any(|output| output.placed);
        let key = if self.keys.is_shared || is_placed { self.keys.of_client } else { Some(self.keys.of_all) };
        // Outputs on a device are not kept, because they would have to be copied to the host.
        let is_here = response.outputs.iter().all(|output| output.data.place().is_host());
        if let Some(key) = key.filter(|_| is_here)
            && let Kept::TooLarge(bytes) = self.cache.keep(key, response)
        {
            // A client chooses how large a response is, and the log sums up equal lines only. The size is rounded, so few lines differ.
            let most = bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
            log::warn!(
                "Failed to insert key: a response of model '{}' needs up to {most} bytes, more than the response cache has; raise the size of \
                 --cache-config",
                self.model
            );
        }
        self.stats.cache_missed(self.lookup_ns + now_ns().saturating_sub(begun));
    }
}

impl Deliver for Insertion {
    fn made(&mut self, response: &Response) {
        if let Response::Final(tensors) = response
            && !std::mem::replace(&mut self.is_kept, true)
        {
            self.keep(tensors);
        }
    }

    fn deliver(&mut self, response: Response) {
        self.made(&response);
        self.reply.send(response);
    }

    fn refuse(&mut self, why: Status) {
        self.reply.refuse(why);
    }

    fn may_wait(&self) -> bool {
        self.reply.may_wait()
    }

    fn offers_places(&self) -> bool {
        self.reply.offers_places()
    }

    fn account(&self) -> Option<PeerAccount> {
        self.reply.account()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<nerite_memory::Slot>, Status> {
        self.reply.place(query)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nerite_backend::ModelVersion;
    use nerite_locks::Mutex;
    use nerite_request::AdmittedRequest;

    use super::*;
    use crate::latencies::{Latencies, LatencyMetrics};
    use crate::pool::Answer;

    /// A model whose queue is full.
    struct Full;

    impl RunJob for Full {
        fn reject(&self, job: Job, _: Rejection) {
            job.reject_unqueued(Status::unavailable("full"));
        }

        fn run(&self, job: Job) {
            self.reject(job, Rejection::Full);
        }
    }

    /// Sends the test a text about how a request ended.
    struct Ends(mpsc::Sender<String>);

    impl Deliver for Ends {
        fn deliver(&mut self, response: Response) {
            self.0.send(format!("{response:?}")).expect("it is heard");
        }

        fn refuse(&mut self, why: Status) {
            self.0.send(format!("refused: {why}")).expect("it is heard");
        }
    }

    fn stats() -> Arc<Stats> {
        Arc::new(Stats::new("m", 1, 0, 1, Latencies::new(&LatencyMetrics::default(), true, &[])))
    }

    /// A request without inputs that arrives now.
    fn job(version: &Arc<ModelVersion>, reply: Reply) -> Job {
        let request = AdmittedRequest { id: "1".into(), ..AdmittedRequest::new(reply) };
        Job::new(request, version.begin(), now_ns())
    }

    #[test]
    fn a_refusal_of_the_model_stays_one() {
        let cached = Arc::new(Cached::new(Arc::new(ResponseCache::new(1 << 20)), "m", stats(), 8));
        let (to, ends) = mpsc::channel();
        let model: Arc<dyn RunJob> = Arc::new(Full);
        cached.submit(&model, job(&ModelVersion::unmetered("m"), Reply::through(Ends(to))), None);
        assert_eq!(ends.try_iter().collect::<Vec<_>>(), ["refused: full"]);
    }

    /// A model that keeps the order of its responses. The test says when it is the turn of a response that was found.
    struct Ordered(Mutex<Vec<(Job, Answer)>>);

    impl RunJob for Ordered {
        fn reject(&self, _: Job, _: Rejection) {
            panic!("there is room for all");
        }

        fn run(&self, job: Job) {
            job.finish(Ok(()), Times::begin());
        }

        fn keeps_order(&self) -> bool {
            true
        }

        fn answer_in_turn(&self, job: Job, answer: Answer) -> Option<Job> {
            self.0.lock().expect("no test panics with it").push((job, answer));
            None
        }
    }

    #[test]
    fn the_wait_for_the_turn_is_time_in_the_queue_and_not_of_the_hit() {
        let stats = stats();
        let version = ModelVersion::new("m", "1", Arc::<Stats>::clone(&stats));
        let cached = Arc::new(Cached::new(Arc::new(ResponseCache::new(1 << 20)), "m", Arc::clone(&stats), 8));
        let ordered = Arc::new(Ordered(Mutex::default()));
        let model: Arc<dyn RunJob> = Arc::<Ordered>::clone(&ordered);
        let (to, ends) = mpsc::channel();
        cached.submit(&model, job(&version, Reply::through(Ends(to.clone()))), None);
        assert_eq!(ends.try_iter().count(), 1, "it is not in the cache yet");
        let queued_before = stats.report(0).queue.ns;

        let submitted = now_ns();
        cached.submit(&model, job(&version, Reply::through(Ends(to))), None);
        let (found, answer) = ordered.0.lock().expect("no test panics with it").pop().expect("it is in the cache");
        let waits = now_ns();
        while now_ns() - waits < 20_000_000 {
            std::thread::yield_now();
        }
        let turn = now_ns();
        answer(found);
        let answered = now_ns();
        assert_eq!(ends.try_iter().count(), 1);
        let report = stats.report(0);
        let queued = report.queue.ns - queued_before;
        assert_eq!(report.cache_hit.count, 1);
        // However slow this machine is, the hit takes no longer than the time before the wait and the time after it.
        assert!(report.cache_hit.ns <= (waits - submitted) + (answered - turn), "{report:?}");
        assert!(queued >= turn - waits, "{queued} ns, {report:?}");
    }
}
