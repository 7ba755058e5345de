//! How often does a request allocate and take locks, and how many bytes does it copy?
//!
//! The server runs in this process, as `nerite serve` starts it. The client's thread is not counted. With `NERITE_STACKS=1` and `--nocapture` the test prints
//! which lines take locks, and which calls led to each allocation.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread::JoinHandle;

use nerite_memory::{Reason, allocations, copied_bytes, exempt_this_thread, trace_allocations, traced_allocations};
use rustix::process::{Signal, getpid, kill_process};

use crate::clients::Client;
use crate::kinds::{Engine, KINDS};
use crate::page::{Column, Page};
use crate::threads::until_asleep;
use crate::{Place, WARM_UP, servers, usual};

const COLUMNS: [Column; 3] = [
    Column { name: "allocations", tolerance: 0.0 },
    Column { name: "locks", tolerance: 0.0 },
    Column { name: "copied bytes", tolerance: 0.0 },
];
/// Requests of a round, so that what is done for each second request counts as well, then rounds, and how often these are repeated.
const MEASURED: (usize, usize, usize) = (4, 25, 20);
/// Calls of a stack that are printed.
const STACK_CALLS: usize = 14;

/// A server in this process.
struct Server {
    thread: JoinHandle<ExitCode>,
    client: Client,
    _place: Place,
}

impl Server {
    fn start(engines: &[Engine], library: Option<&Path>) -> Server {
        let place = Place::new(engines, library);
        let words = place.words.clone();
        let thread = std::thread::Builder::new().spawn(move || nerite_server::run("serve", &words)).unwrap();
        let client = Client::connect(&place.addresses, || thread.is_finished());
        Server { thread, client, _place: place }
    }

    fn stop(self) {
        drop(self.client);
        kill_process(getpid(), Signal::TERM).unwrap();
        assert_eq!(self.thread.join().unwrap(), ExitCode::SUCCESS);
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

/// The counts until now, in the order of [`COLUMNS`].
fn counts() -> [u64; COLUMNS.len()] {
    let copied = Reason::ALL.iter().map(|reason| copied_bytes(*reason)).sum();
    [allocations() as u64, locks().values().sum(), copied]
}

fn round(request: &mut dyn FnMut()) -> [u64; COLUMNS.len()] {
    let before = counts();
    (0..MEASURED.0).for_each(|_| request());
    let after = counts();
    std::array::from_fn(|at| after[at] - before[at])
}

/// Prints which lines take locks for a request, and which calls allocate.
fn explain(request: &mut dyn FnMut()) {
    let before = locks();
    trace_allocations();
    request();
    for (line, count) in locks() {
        let times = count - before.get(&line).copied().unwrap_or(0);
        if times > 0 {
            println!("    {times} {line}");
        }
    }
    for (at, stack) in traced_allocations().iter().enumerate() {
        println!("{at:4}: {}", calls(&stack.to_string()));
    }
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

#[test]
fn a_request_allocates_locks_and_copies_what_the_page_says() {
    exempt_this_thread();
    nerite_locks::exempt_this_thread();
    let (mut page, own) = (Page::read(), std::process::id());
    for (engines, library) in servers() {
        let server = Server::start(&engines, library.as_deref());
        for kind in KINDS.iter().filter(|kind| engines.contains(&kind.model.engine)) {
            let (name, mut call) = (kind.name(), server.client.caller(kind));
            let mut request = || {
                call();
                until_asleep(own);
            };
            (0..WARM_UP).for_each(|_| request());
            let found = usual(MEASURED, || round(&mut request), |found| page.has(&name, &COLUMNS, found));
            page.compare(&name, &COLUMNS, &found);
            if std::env::var_os("NERITE_STACKS").is_some() {
                explain(&mut request);
            }
        }
        server.stop();
    }
    page.end();
}
