//! Can a client make others get wrong responses from the response cache?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nerite_backend::{Compute, Job, Times};
use nerite_cache::ResponseCache;
use nerite_engine::{CheckedTensors, Engine, Prefix, Tensors};
use nerite_memory::{Buffer, Extent, Reason, Slot};
use nerite_request::{AdmittedRequest, Cancel, InferResponse, Peer, Recycled, Reply, Response, Status, Wanted};
use nerite_shm::{OwnedRegion, Registry};
use nerite_tensor::{DataType, Shape};
use tempfile::TempDir;
use test_engine::{Computing, Setup, bytes_model, input, one_reply};

/// More input bytes than are hashed on a front thread.
const LARGE: usize = 1 << 20;

/// Answers each request with the number of requests before it, so a cached answer is recognised by its number. The request called "waits" ends when
/// the test says so.
struct CountingInstance {
    calls: AtomicU8,
    goes_on: Arc<AtomicBool>,
}

impl Compute for CountingInstance {
    fn compute(&mut self, job: &mut Job, _: &mut Times) -> Result<(), Status> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if job.id() == "fails" {
            return Err(Status::internal("as asked"));
        }
        while job.id() == "waits" && !self.goes_on.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut slot = job.output("OUT", DataType::Uint8, &[1])?;
        slot.write(0, &[number], Reason::Model).unwrap();
        job.put("OUT", DataType::Uint8, [1].into_iter().collect::<Shape>(), slot.filled());
        Ok(())
    }
}

struct Server {
    engine: Arc<Engine>,
    cache: Arc<ResponseCache>,
    registry: Registry,
    region: OwnedRegion,
    goes_on: Arc<AtomicBool>,
    _folder: TempDir,
}

/// A server with that model. `name` distinguishes its region from those of other tests.
fn server(name: &str) -> Server {
    server_of(name, "")
}

/// The same, with `more` added to the model's configuration.
fn server_of(name: &str, more: &str) -> Server {
    let goes_on = Arc::<AtomicBool>::default();
    let of_instance = Arc::clone(&goes_on);
    let counting =
        Computing("counting", move || CountingInstance { calls: AtomicU8::new(0), goes_on: Arc::clone(&of_instance) });
    let cache = Arc::new(ResponseCache::new(1 << 20));
    let mut setup = Setup::new([Arc::new(counting) as _])
        .with_model(&bytes_model("counting", &format!("response_cache {{ enable: true }} {more}")));
    setup.services.cache = Some(Arc::clone(&cache));
    let (engine, folder) = setup.start();
    let key = format!("/nerite-test-cache-{name}-{}", std::process::id());
    let region = OwnedRegion::create(&key, LARGE + 64).unwrap();
    let registry = Registry::new(nerite_shm::Options::default());
    registry.register_system("r", &key, 0, LARGE as u64 + 64).unwrap();
    Server { engine, cache, registry, region, goes_on, _folder: folder }
}

impl Server {
    /// The model's answer to a request of that user, or of a client that is not identified.
    fn infer(
        &self,
        user: Option<u32>,
        data: Buffer,
        place: Option<Slot>,
        id: &str,
    ) -> Result<Recycled<InferResponse>, Status> {
        self.begin(user, data, place, id).recv().unwrap()
    }

    /// The same, without waiting for the answer.
    fn begin(
        &self,
        user: Option<u32>,
        data: Buffer,
        place: Option<Slot>,
        id: &str,
    ) -> mpsc::Receiver<Result<Recycled<InferResponse>, Status>> {
        let (reply, from) = one_reply();
        self.begin_with(user, data, place, id, reply);
        from
    }

    /// The same, for an answer that comes by this reply. Returns what cancels the request.
    fn begin_with(&self, user: Option<u32>, data: Buffer, place: Option<Slot>, id: &str, reply: Reply) -> Cancel {
        let cancel = Cancel::new();
        let wanted = vec![Wanted { name: "OUT".into(), slot: place }];
        let admission = self.engine.admit("m", None).unwrap();
        let tensors = Tensors { inputs: vec![input(data)].into(), wanted: wanted.into(), is_raw: false };
        let CheckedTensors { inputs, wanted, rows, .. } = admission.contract().check_all(Prefix(id), tensors).unwrap();
        let admission = match user {
            Some(uid) => admission.of_client(&Peer::User { uid }),
            None => admission.of_client(&Peer::Unidentified),
        };
        admission.submit(AdmittedRequest {
            id: id.into(),
            rows,
            inputs,
            wanted,
            ..AdmittedRequest::cancelled_by(cancel.clone(), reply)
        });
        cancel
    }

    #[track_caller]
    fn check(&self, user: Option<u32>, data: Buffer, number: u8) {
        let answer = self.infer(user, data, None, "").unwrap();
        assert_eq!(answer.outputs[0].data.private_bytes(), Some(&[number][..]));
    }

    fn shared(&self, len: usize) -> Buffer {
        self.registry.locate("r", 0, len as u64).unwrap().into_buffer()
    }
}

fn inline(len: usize) -> Buffer {
    Buffer::from(vec![0; len])
}

#[test]
fn a_response_made_of_a_clients_memory_is_cached_for_that_client_only() {
    for len in [4, LARGE] {
        let server = server(&format!("inputs-{len}"));
        server.check(Some(1), server.shared(len), 0);
        server.check(Some(1), server.shared(len), 0);
        // The client may have changed the bytes after they were hashed, so other clients do not get the answer.
        server.check(Some(2), server.shared(len), 1);
        server.check(Some(2), inline(len), 2);
        server.check(Some(3), inline(len), 2);
        // An answer that was made of private memory is valid for all clients.
        server.check(Some(3), server.shared(len), 2);
        // For clients that are not identified no such answer is kept: they are one peer, and may be several clients.
        server.check(None, server.shared(len), 3);
        server.check(None, server.shared(len), 4);
        server.check(None, inline(len), 2);
    }
}

#[test]
fn a_response_in_a_clients_memory_is_cached_for_that_client_only() {
    let server = server("outputs");
    let place = || Some(server.registry.locate("r", 8, 1).unwrap().into_slot());
    // A client may write to its memory before the answer is copied. That harms only itself.
    for (user, number) in [(1, 0), (1, 0), (2, 1), (2, 1)] {
        server.region.slot(Extent::new(8, 1, LARGE).unwrap()).write(0, &[77], Reason::Model).unwrap();
        let placed = server.infer(Some(user), inline(4), place(), "").unwrap();
        assert!(placed.outputs[0].placed);
        assert_eq!(placed.outputs[0].data.cells::<u8>().unwrap().to_vec(), [number], "{user}");
    }
    server.check(Some(1), inline(4), 2);
    server.check(Some(2), inline(4), 2);
}

#[test]
fn an_error_is_not_kept() {
    let server = server("errors");
    assert!(server.infer(Some(1), inline(4), None, "fails").is_err());
    server.check(Some(1), inline(4), 1);
    server.check(Some(1), inline(4), 1);
    let small = server.registry.locate("r", 8, 0).unwrap().into_slot();
    assert!(server.infer(Some(1), inline(4), Some(small), "").is_err(), "its place is too small");
}

#[test]
fn a_client_that_fills_the_cache_costs_others_no_more_than_their_hits() {
    let server = server("full");
    let bytes_max = server.cache.counts().bytes_max;
    for number in 0..4000_u32 {
        let data = Buffer::from([number.to_le_bytes().to_vec(), vec![0; 60]].concat());
        server.infer(Some(1), data, None, "").unwrap();
        assert!(server.cache.counts().bytes <= bytes_max);
    }
    let counts = server.cache.counts();
    assert!(counts.evictions > 0 && counts.entries + counts.evictions == 4000);
    let answer = server.infer(Some(2), inline(4), None, "").unwrap();
    assert_eq!(answer.outputs[0].data.private_bytes(), Some(&[(4000 % 256) as u8][..]));
}

#[test]
fn an_unload_waits_for_requests_that_are_looked_up() {
    let server = server("unload");
    let answers: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..8).map(|_| scope.spawn(|| server.infer(Some(1), inline(LARGE), None, "").is_ok())).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answered| *answered));
    assert!(server.engine.stop(Instant::now() + Duration::from_mins(1)));
}

/// If the copy waited for the response's turn, the thread that ends the first request would make it. That may be a front thread.
#[test]
fn a_response_is_kept_when_it_is_made_and_not_when_its_turn_comes() {
    let more = "dynamic_batching { preserve_ordering: true } instance_group { count: 2 kind: KIND_CPU }";
    let server = server_of("turns", more);
    let first = server.begin(Some(1), inline(1), None, "waits");
    let second = server.begin(Some(1), inline(2), None, "");
    let begun = Instant::now();
    while server.cache.counts().entries == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the second response is not kept before its turn");
        std::thread::yield_now();
    }
    assert!(second.try_recv().is_err(), "it is not its turn");
    server.goes_on.store(true, Ordering::Release);
    assert!(first.recv().unwrap().is_ok() && second.recv().unwrap().is_ok());
    assert_eq!(server.cache.counts().entries, 2);
}

/// The server keeps the response to one byte. Then each word asks: `waits` for a run that ends when the test says so, `hit` with that byte again, a
/// number with as many bytes, and `gone` for a client that leaves. Checks that answers come in the order of the words, and none before the first run ends.
#[track_caller]
fn check_order(instances: usize, words: &str) {
    let more = format!(
        "dynamic_batching {{ preserve_ordering: true }} instance_group {{ count: {instances} kind: KIND_CPU }}"
    );
    let server = server_of(&format!("order-{instances}-{}", words.replace(' ', "-")), &more);
    server.check(Some(1), inline(1), 0);
    let (to, answers) = mpsc::channel();
    for (number, word) in words.split_whitespace().enumerate() {
        let to = to.clone();
        let reply = Reply::new(move |response: Response| {
            if response.is_last() {
                // The test may have failed.
                let _ = to.send(number);
            }
        });
        let data = match word {
            "waits" => inline(2),
            "hit" => inline(1),
            "gone" => inline(3),
            len => inline(len.parse().unwrap()),
        };
        let cancel = server.begin_with(Some(1), data, None, if word == "waits" { "waits" } else { "" }, reply);
        if word == "gone" {
            cancel.cancel();
            assert_eq!(answers.recv_timeout(Duration::from_secs(20)), Ok(number), "it is not waited for");
        }
    }
    assert_eq!(answers.try_recv(), Err(mpsc::TryRecvError::Empty), "somebody has overtaken the first one: {words}");
    server.goes_on.store(true, Ordering::Release);
    let expect: Vec<usize> =
        (0..).zip(words.split_whitespace()).filter(|(_, word)| *word != "gone").map(|(n, _)| n).collect();
    let found: Vec<usize> =
        expect.iter().map(|_| answers.recv_timeout(Duration::from_secs(20)).expect("all are answered")).collect();
    assert_eq!(found, expect, "{instances} instances: {words}");
    let hits = words.matches("hit").count() as u64;
    assert!(server.cache.counts().hits >= hits, "{:?}", server.cache.counts());
    assert!(server.engine.stop(Instant::now() + Duration::from_mins(1)));
}

#[test]
fn a_response_from_the_cache_takes_its_turn() {
    // Behind a run.
    check_order(2, "waits hit");
    check_order(2, "waits hit hit 5 hit");
    // Behind requests that wait for an instance, and before those that come later.
    check_order(1, "waits 5 hit 6 hit hit 7");
    check_order(1, "waits gone hit");
    check_order(1, "waits 5 gone hit gone 6 hit");
    // Behind large requests, which another thread looks up.
    check_order(1, "waits 1048576 hit 5");
    check_order(2, "waits 1048576 hit 1048577 hit hit");
}
