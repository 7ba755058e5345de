//! How often does the server allocate for one request, and how many locks does it take?
//!
//! The server runs in this process, on threads of its own; the client's thread is not counted. `cargo test -p nerite-server --test
//! request_cost -- --nocapture` prints the numbers. With `NERITE_STACKS=1` in the environment it prints also which calls led to each allocation.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "session/test_server.rs"]
mod test_server;

use std::collections::BTreeMap;
use std::time::Duration;

use nerite_client::{DataType, Error, RegionRef, Request, Response, Session, grpc, http};
use nerite_memory::{allocations, exempt_this_thread, trace_allocations, traced_allocations};
use nerite_shm::OwnedRegion;
use test_server::TestServer;

#[global_allocator]
static HEAP: nerite_memory::CountingHeap = nerite_memory::CountingHeap;

/// Requests before the measurement. After them, memory that is reused has its final size.
const WARM_UP: usize = 30;
/// Requests of a round.
const COUNTED: usize = 10;
const ROUNDS: usize = 20;
/// Between requests. In a build without optimisation a client that asks as fast as it can is a heavy user, whose tasks wait for their turn. That
/// costs locks and allocations that have nothing to do with the request.
const PAUSE: Duration = Duration::from_millis(4);
/// After this time the use that a client made of the server is forgotten.
const FORGOTTEN: Duration = Duration::from_millis(1100);
/// Where tasks of heavy users wait for their turn.
const WAITS: &str = "crates/watchdog/src/fair.rs";
/// Where requests come to a model.
const POOL: &str = "crates/engine/src/pool.rs";
const REGION: &str = "region";
/// Calls of a stack that are printed.
const STACK_CALLS: usize = 14;

/// What a request asks of: its name, inputs and outputs, each of 16 numbers of INT32.
type Case<'m> = (&'m str, &'m [&'m str], &'m [&'m str]);
const IDENTITY: Case<'_> = ("echo", &["IN"], &["OUT"]);
/// As `IDENTITY`, with names that do not lie in place: a request reads three of them, and nothing below copies one.
const LONG: Case<'_> = (
    "a_model_whose_name_is_long_for_a_name",
    &["an_input_whose_name_is_long_for_a_name"],
    &["an_output_whose_name_is_long_for_a_name"],
);
const ONNX: Case<'_> = ("onnx", &["INPUT0", "INPUT1"], &["OUTPUT0", "OUTPUT1"]);

/// Whose locks no request takes: the clock does, or a machine that is slow. They are the turns of heavy users, and the monitor of front threads with
/// the names and the lines of its log.
const NOT_OF_REQUESTS: [&str; 4] =
    [WAITS, "crates/watchdog/src/slot.rs", "crates/watchdog/src/name.rs", "crates/watchdog/src/late_log.rs"];
/// All of those together are fewer for one request. So none of them is taken for each request.
const NOT_OF_REQUESTS_BELOW: f64 = 1.0;

/// What one request costs.
struct Cost {
    allocations: f64,
    /// By the line that takes them.
    locks: BTreeMap<String, f64>,
}

impl Cost {
    fn sum(&self) -> f64 {
        self.allocations + self.locks.values().sum::<f64>()
    }

    /// Locks that requests take, and those of [`NOT_OF_REQUESTS`] meanwhile. The latter are more for each request on a busy machine.
    fn locks_of_requests_and_others(&self) -> (f64, f64) {
        let others = |line: &str| NOT_OF_REQUESTS.iter().any(|file| line.starts_with(file));
        let sum = |is_other: bool| {
            self.locks.iter().filter(|(line, _)| others(line) == is_other).map(|(_, times)| times).sum()
        };
        (sum(false), sum(true))
    }

    /// The share of requests that ran on a worker: the pool's lock is taken a third time for them.
    fn on_workers(&self) -> f64 {
        let taken: f64 = self.locks.iter().filter(|(line, _)| line.starts_with(POOL)).map(|(_, times)| times).sum();
        (taken - 2.0).clamp(0.0, 1.0)
    }

    fn has_waited(&self) -> bool {
        self.locks.keys().any(|line| line.starts_with(WAITS))
    }
}

/// What a request costs that `infer` makes: the cheapest round. On a busy machine a run may take so long that the requests after it go to
/// another thread, or that the client is a heavy user, which both cost more.
async fn count<F: Future<Output = Result<Response, Error>>>(infer: impl Fn() -> F) -> Cost {
    for _ in 0..WARM_UP {
        infer().await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    let mut cheapest = round(&infer).await;
    for _ in 1..ROUNDS {
        if cheapest.has_waited() {
            tokio::time::sleep(FORGOTTEN).await;
        }
        let found = round(&infer).await;
        if found.sum() < cheapest.sum() {
            cheapest = found;
        }
    }
    if std::env::var_os("NERITE_STACKS").is_some() {
        trace_allocations();
        infer().await.unwrap();
        tokio::time::sleep(PAUSE).await;
        traced_allocations()
            .iter()
            .enumerate()
            .for_each(|(at, stack)| println!("{at:4}: {}", calls(&stack.to_string())));
    }
    cheapest
}

/// The innermost calls of a stack that are none of the allocator's.
fn calls(stack: &str) -> String {
    let names =
        stack.lines().filter_map(|line| line.trim_start().split_once(": ").filter(|(at, _)| at.parse::<u32>().is_ok()));
    let names = names
        .map(|(_, name)| name)
        .skip_while(|name| name.contains("backtrace") || name.contains("counting") || name.contains("alloc"));
    names.take(STACK_CALLS).collect::<Vec<_>>().join("\n        ")
}

async fn round<F: Future<Output = Result<Response, Error>>>(infer: &impl Fn() -> F) -> Cost {
    let (before, locks_before) = (allocations(), locks());
    for _ in 0..COUNTED {
        infer().await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
    let each = |count: u64| count as f64 / COUNTED as f64;
    let locks = locks().into_iter().map(|(line, count)| (count - locks_before.get(&line).copied().unwrap_or(0), line));
    Cost {
        allocations: each((allocations() - before) as u64),
        locks: locks.filter(|(count, _)| *count > 0).map(|(count, line)| (line, each(count))).collect(),
    }
}

/// How often each line of the server took a lock until now.
fn locks() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for taken in nerite_locks::counts() {
        *found.entry(taken.place.to_string()).or_default() += taken.times;
    }
    found
}

#[track_caller]
fn check(protocol: &str, case: Case<'_>, found: Cost, allocations_max: f64, locks_max: f64) {
    let (allocations, (locks, others), on_workers) =
        (found.allocations, found.locks_of_requests_and_others(), found.on_workers());
    println!(
        "{protocol:8} {:.8} {allocations:5.1} allocations, at most {allocations_max}; {locks:5.1} locks, at most {locks_max}",
        case.0
    );
    for (line, times) in &found.locks {
        println!("    {times:5.2} {line}");
    }
    // Where the machine is slow or busy, runs of this build are not quick, and a worker's run is up to three allocations more. Two of them are for
    // the boxes of the request's parts and of its response: the thread that drops them keeps them for requests that begin there.
    assert!(
        allocations - 3.0 * on_workers <= allocations_max,
        "{protocol}, {}: {allocations} allocations per request, {on_workers} of the requests ran on workers",
        case.0
    );
    assert!(locks <= locks_max, "{protocol}, {}: {locks} locks per request", case.0);
    assert!(
        others < NOT_OF_REQUESTS_BELOW,
        "{protocol}, {}: {others} locks per request where requests should take none",
        case.0
    );
}

/// A request whose tensors all lie in shared memory.
fn request((model, inputs, outputs): Case<'_>) -> Request {
    const BYTES: usize = 64;
    let shape: &[i64] = if inputs.len() == 1 { &[16] } else { &[1, 16] };
    let window = |at| RegionRef { name: REGION.into(), offset: (at * BYTES) as u64, byte_size: BYTES as u64 };
    let mut request = Request::new(model);
    for (at, input) in inputs.iter().enumerate() {
        request = request.input_in_window(input, DataType::Int32, shape, window(at));
    }
    for (at, output) in outputs.iter().enumerate() {
        request = request.output_in_window(output, window(inputs.len() + at));
    }
    request
}

#[test]
fn a_request_through_shared_memory_costs_few_allocations_and_locks() {
    exempt_this_thread();
    nerite_locks::exempt_this_thread();
    let theirs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = theirs.block_on(async { TestServer::new() });
    drop(theirs.block_on(async { server.clients() }));
    let mine = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    mine.block_on(async {
        // Made here, so that what they spawn runs on this thread.
        let at = |name: &str| format!("unix:{}", server.socket.with_file_name(name).display());
        let (http, grpc) = (http::Client::new(&at("http.sock")).unwrap(), grpc::Client::new(&at("grpc.sock")).unwrap());
        let session = Session::connect(&server.socket).await.unwrap();
        let key = format!("/nerite-request-cost-{}", std::process::id());
        let _region = OwnedRegion::create(&key, 4096).unwrap();
        http.register_system_region(REGION, &key, 0, 4096).await.unwrap();
        session.register_system_region(REGION, &key, 0, 4096).await.unwrap();
        // The scheduler's lock is taken when a request comes and when its run ends, and once more on a worker, where runs go that were slow lately.
        // A session adds its table of requests in flight, twice, and its outbox.
        let locks = [3.1, 3.1, 6.1, 6.1];
        // A call over gRPC whose message comes behind its head gets a task of its own, which is two allocations more. A net costs seven on the
        // embedded engine, which are the engine's own. A prepared call of one input and one output allocates nothing.
        let most = [(IDENTITY, [7.5, 12.5, 5.5, 0.5]), (LONG, [10.5, 15.5, 8.5, 0.5]), (ONNX, [14.5, 18.5, 12.5, 8.5])];
        for (case, allocations) in most {
            let request = request(case);
            check("http", case, count(|| http.infer(&request)).await, allocations[0], locks[0]);
            check("grpc", case, count(|| grpc.infer(&request)).await, allocations[1], locks[1]);
            check("session", case, count(|| session.infer(&request)).await, allocations[2], locks[2]);
            let prepared = session.prepare(&request).await.unwrap();
            check("prepared", case, count(|| prepared.call()).await, allocations[3], locks[3]);
        }
    });
}
