//! How many system calls does a request cause, how often does it wake threads, and how many instructions does it take?
//!
//! The server is the program, in a process of its own, built for the tools that count: `cargo xtask test all` builds it. Processes of models are not counted.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::clients::Client;
use crate::kinds::{Engine, KINDS};
use crate::page::{Column, Page};
use crate::threads::{sleeps, threads, until_asleep, until_traced};
use crate::{Place, WARM_UP, servers, usual};

/// Optimised, and with system calls by way of the C library: valgrind does not have the part of the kernel that the others use.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/counted/release/nerite");
const WAKE_UPS: [Column; 1] = [Column { name: "wake-ups", tolerance: 0.4 }];
const SYSTEM_CALLS: [Column; 1] = [Column { name: "system calls", tolerance: 0.2 }];
const INSTRUCTIONS: [Column; 1] = [Column { name: "instructions", tolerance: 0.03 }];
/// The file that callgrind writes.
const DUMP: &str = "callgrind";
/// Requests of a round, rounds, and how often these are repeated. The rounds of the tools are long, because the server's clocks run on meanwhile.
const MEASURED: (usize, usize, usize) = (4, 25, 20);
const MEASURED_BY_TOOLS: (usize, usize, usize) = (100, 1, 5);

/// A server in a process of its own.
struct Server {
    child: Child,
    client: Client,
    place: Place,
}

impl Server {
    fn start(engines: &[Engine], library: Option<&Path>) -> Server {
        Server::run(Command::new(PROGRAM), Place::new(engines, library))
    }

    fn start_in_valgrind(engines: &[Engine], library: Option<&Path>) -> Server {
        let place = Place::new(engines, library);
        let mut command = Command::new("valgrind");
        command
            .arg("--tool=callgrind")
            .arg(format!("--callgrind-out-file={}", place.folder.path().join(DUMP).display()));
        command.arg(PROGRAM);
        Server::run(command, place)
    }

    fn run(mut command: Command, place: Place) -> Server {
        let mut child = command.arg("serve").args(&place.words).stderr(Stdio::null()).spawn().unwrap();
        let client = Client::connect(&place.addresses, || child.try_wait().unwrap().is_some());
        Server { child, client, place }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.folder.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The system calls of this server's threads during `work`.
fn system_calls(server: &Server, work: &mut dyn FnMut()) -> u64 {
    let (table, mut tracer) = (server.file("strace"), Command::new("strace"));
    let threads = threads(server.pid()).into_iter().flat_map(|thread| ["-p".to_owned(), thread]);
    let tracer = tracer.arg("-c").args(threads).arg("-o").arg(&table).stderr(Stdio::null());
    let mut tracer = tracer.spawn().unwrap();
    until_traced(server.pid());
    work();
    signal(&tracer, Signal::INT);
    tracer.wait().unwrap();
    let table = std::fs::read_to_string(table).unwrap();
    // The table is empty if there were none.
    let total = table.lines().find(|line| line.ends_with(" total"));
    total.map_or(0, |line| line.split_whitespace().nth(3).unwrap().parse().unwrap())
}

/// The instructions of this server's threads during `work`.
fn instructions(server: &Server, work: &mut dyn FnMut()) -> u64 {
    let control = |command: &str| {
        let pid = server.pid().to_string();
        let done = Command::new("callgrind_control").args([command, &pid]).stdout(Stdio::null()).status().unwrap();
        assert!(done.success(), "{command}");
    };
    control("--zero");
    work();
    control("--dump");
    let files = std::fs::read_dir(server.place.folder.path()).unwrap().map(|file| file.unwrap().path());
    let mut dumps =
        files.filter(|file| file.file_stem().is_some_and(|stem| stem == DUMP) && file.extension().is_some());
    let dump = dumps.next().unwrap();
    let text = std::fs::read_to_string(&dump).unwrap();
    std::fs::remove_file(dump).unwrap();
    text.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap().parse().unwrap()
}

/// Measures each kind of request on this server, in these columns.
fn compare(
    page: &mut Page,
    engines: &[Engine],
    server: &Server,
    columns: &[Column; 1],
    measured: (usize, usize, usize),
    count: impl Fn(&Server, &mut dyn FnMut()) -> u64,
) {
    for kind in KINDS.iter().filter(|kind| engines.contains(&kind.model.engine)) {
        let (name, mut call) = (kind.name(), server.client.caller(kind));
        let mut request = || {
            call();
            until_asleep(server.pid());
        };
        (0..WARM_UP).for_each(|_| request());
        let round = || [count(server, &mut || (0..measured.0).for_each(|_| request()))];
        let found = usual(measured, round, |found| page.has(&name, columns, found));
        page.compare(&name, columns, &found);
    }
}

/// Whether this tool can be run here.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: no {tool} on this host");
    }
    found
}

#[test]
#[ignore = "alone: counts what threads do"]
fn a_request_wakes_threads_and_calls_the_kernel_as_often_as_the_page_says() {
    if !Path::new(PROGRAM).exists() {
        println!("skipped: `cargo xtask test all` builds {PROGRAM}");
        return;
    }
    let mut page = Page::read();
    for (engines, library) in servers() {
        let server = Server::start(&engines, library.as_deref());
        compare(&mut page, &engines, &server, &WAKE_UPS, MEASURED, |server, work| {
            let before = sleeps(server.pid());
            work();
            sleeps(server.pid()) - before
        });
        if has("strace") {
            // A call that a thread waits in is made anew when strace comes.
            compare(&mut page, &engines, &server, &SYSTEM_CALLS, MEASURED_BY_TOOLS, |server, work| {
                system_calls(server, work).saturating_sub(system_calls(server, &mut || {}))
            });
        }
        drop(server);
        if has("valgrind") {
            let server = Server::start_in_valgrind(&engines, library.as_deref());
            compare(&mut page, &engines, &server, &INSTRUCTIONS, MEASURED_BY_TOOLS, instructions);
        }
    }
    page.end();
}
