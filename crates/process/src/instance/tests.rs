//! If a thread that must not wait would have to wait for a process, does it leave the batch, and is the batch answered nevertheless?
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::process::Command;
use std::sync::mpsc;

use nerite_request::{Reply, Response};
use nerite_shm::{LeaseLimits, Pools};

use super::*;
use crate::channel::{Channel, Packet};
use crate::child::{Child, ProcessTimeouts};
use crate::limits::{NEEDS_AT_ONCE_MAX, PACKET_BYTES_MAX};
use crate::live::Hearing;
use crate::os_process::OsProcess;
use crate::plan::tests::{job_of, wanted};
use crate::process_output::{ProcessOutput, Stream};
use crate::restarts::Restarts;

const NEED: &str = r#"{"need":[0,"x",10]}"#;
const ANSWER: &str = r#"{"responses":[{"outputs":[["x","INT8",[0],null,0,0]]}]}"#;

/// Launches processes that do nothing: the test has the other ends of their channels.
struct Idle(std::sync::Mutex<Vec<Channel>>, Restarts);

impl ProcessLauncher for Idle {
    fn instance(&self) -> &'static str {
        "test_0"
    }

    fn launch(&self, _: &Hearing<'_>) -> Result<Live, Status> {
        let ours = self.0.lock().unwrap().pop().unwrap();
        let os_process = Arc::new(OsProcess::new(Command::new("sleep").arg("1000").spawn().unwrap()));
        let child =
            Child::of_test(os_process, ours, ProcessTimeouts { first: None, last: Some(Duration::from_millis(1)) });
        Ok(Live::new(child, false))
    }

    fn restarts(&self) -> &Restarts {
        &self.1
    }

    fn unhealthy(&self, why: &str) -> String {
        why.to_owned()
    }

    fn failed(&self, text: &str) -> String {
        text.to_owned()
    }
}

/// An instance, and the other end of its process's channel.
fn instance() -> (ProcessInstance, Channel) {
    let (instance, [theirs]) = instance_of();
    (instance, theirs)
}

/// An instance that starts up to `N` processes, one after another, and the other ends of their channels.
fn instance_of<const N: usize>() -> (ProcessInstance, [Channel; N]) {
    let pairs = [(); N].map(|()| Channel::pair().unwrap());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (one, other) in pairs {
        ours.insert(0, one);
        theirs.push(Channel::from(other));
    }
    let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
    let launcher = Idle(std::sync::Mutex::new(ours), Restarts::default());
    (ProcessInstance::start(Box::new(launcher), blocks, &LoadStop::default()).unwrap(), theirs.try_into().unwrap())
}

/// A batch of one request for the output `x`, and its response.
fn batch() -> (Batch, mpsc::Receiver<Response>) {
    batch_of(1)
}

fn batch_of(requests: usize) -> (Batch, mpsc::Receiver<Response>) {
    batch_of_clients(&vec![Client::default().peer; requests])
}

/// One request of each of these clients.
fn batch_of_clients(clients: &[u64]) -> (Batch, mpsc::Receiver<Response>) {
    let (to, responses) = mpsc::channel();
    let request = |peer: &u64| {
        let to = to.clone();
        let reply = Reply::new(move |response| drop(to.send(response)));
        job_of(Client { peer: *peer, ..Client::default() }, Vec::new(), vec![wanted("x", None)], reply)
    };
    let jobs = clients.iter().map(request).collect();
    let version = nerite_backend::ModelVersion::unmetered("m");
    (Batch { jobs, meter: Arc::clone(version.meter()) }, responses)
}

#[track_caller]
fn check_answered(responses: &mpsc::Receiver<Response>) {
    let content = responses.try_recv().unwrap().into_content().unwrap();
    assert_eq!(content.unwrap().outputs[0].name.as_str(), "x");
}

#[track_caller]
fn check_begun(instance: &mut ProcessInstance, batch: Batch) {
    assert!(!instance.begin(batch, Duration::ZERO) && instance.awaited().is_some() && !instance.go_on());
}

#[track_caller]
fn check_left(instance: &mut ProcessInstance) {
    assert!(!instance.go_on() && instance.awaited().is_none(), "it is for a thread that may wait");
}

/// Reads until the channel is empty. Returns the texts.
fn read_all(theirs: &Channel) -> Vec<String> {
    let mut packet = Packet::default();
    let mut all = Vec::new();
    while theirs.wait(Duration::from_millis(20)).unwrap() {
        all.push(String::from_utf8_lossy(theirs.receive(&mut packet).unwrap().unwrap()).into_owned());
    }
    all
}

#[test]
fn a_question_and_the_answer_are_taken_over_without_waiting() {
    let (mut instance, theirs) = instance();
    let (batch, responses) = batch();
    check_begun(&mut instance, batch);
    theirs.send(NEED, &[]).unwrap();
    assert!(!instance.go_on() && instance.awaited().is_some());
    theirs.send(ANSWER, &[]).unwrap();
    assert!(instance.go_on());
    check_answered(&responses);
    let packets = read_all(&theirs);
    assert!(packets.len() == 2 && packets[1].starts_with(r#"{"at":["#), "{packets:?}");
}

#[test]
fn a_process_that_asks_often_is_left_to_a_worker() {
    let (mut instance, theirs) = instance();
    let (batch, responses) = batch();
    check_begun(&mut instance, batch);
    (0..2 * NEEDS_AT_ONCE_MAX).for_each(|_| theirs.send(NEED, &[]).unwrap());
    theirs.send(ANSWER, &[]).unwrap();
    check_left(&mut instance);
    assert_eq!(
        read_all(&theirs).len(),
        1 + NEEDS_AT_ONCE_MAX,
        "the batch, and the answers of a thread that must not wait"
    );
    instance.finish();
    check_answered(&responses);
    assert_eq!(read_all(&theirs).len(), NEEDS_AT_ONCE_MAX, "each question is answered once");
}

#[test]
fn a_process_that_does_not_read_is_left_to_a_worker() {
    let (mut instance, theirs) = instance();
    let (batch, responses) = batch();
    check_begun(&mut instance, batch);
    let fill = || {
        let channel = &instance.live.as_ref().unwrap().child.channel;
        std::iter::from_fn(|| channel.try_send("{}").ok()).count()
    };
    let filled = fill();
    theirs.send(NEED, &[]).unwrap();
    theirs.send(ANSWER, &[]).unwrap();
    check_left(&mut instance);
    let packets = std::thread::scope(|scope| {
        let reads = scope.spawn(|| read_all(&theirs));
        instance.finish();
        reads.join().unwrap()
    });
    check_answered(&responses);
    assert_eq!(packets.len(), filled + 2, "the batch, what filled the socket, and the answer");
}

#[test]
fn a_batch_for_a_process_that_does_not_read_is_sent_by_a_worker() {
    let (mut instance, theirs) = instance();
    let channel = Arc::clone(&instance.live.as_ref().unwrap().child.channel);
    let filled = std::iter::from_fn(|| channel.try_send("{}").ok()).count();
    let (batch, responses) = batch();
    assert!(!instance.begin(batch, Duration::ZERO));
    check_left(&mut instance);
    theirs.send(ANSWER, &[]).unwrap();
    let packets = std::thread::scope(|scope| {
        let reads = scope.spawn(|| read_all(&theirs));
        instance.finish();
        reads.join().unwrap()
    });
    check_answered(&responses);
    assert_eq!(packets.len(), filled + 1);
}

#[test]
fn a_long_answer_is_read_by_a_worker() {
    let (mut instance, theirs) = instance();
    let (batch, responses) = batch();
    check_begun(&mut instance, batch);
    theirs.send(format!("{ANSWER}{}", " ".repeat(PACKET_BYTES_MAX)), &[]).unwrap();
    check_left(&mut instance);
    assert!(responses.try_recv().is_err());
    instance.finish();
    check_answered(&responses);
}

/// The kernel closes the channels of a killed process one after another. So the server may notice the end while a channel still accepts packets.
#[test]
fn a_request_after_the_process_was_seen_to_end_is_for_the_next_process() {
    let supervisor = crate::supervisor::Supervisor::start("nerite-test").unwrap();
    let seen: [fn(&Child, &crate::supervisor::Supervisor); 2] = [
        |child, supervisor| {
            // The test's process has no side channel: its other end is closed.
            supervisor.watch(Arc::clone(&child.side), None).unwrap();
            while !child.side.is_ending() {
                std::thread::yield_now();
            }
        },
        |child, _| {
            child.os_process.kill_and_reap();
        },
    ];
    for see in seen {
        let (mut instance, [first, second]) = instance_of();
        see(&instance.live.as_ref().unwrap().child, &supervisor);
        let (batch, responses) = batch();
        assert!(!instance.begin(batch, Duration::ZERO) && instance.awaited().is_none());
        for theirs in [&first, &second] {
            theirs.send(ANSWER, &[]).unwrap();
        }
        instance.finish();
        check_answered(&responses);
        assert_eq!((read_all(&second).len(), first.wait(Duration::ZERO).unwrap()), (1, true));
        assert_eq!(first.receive(&mut Packet::default()).unwrap(), None, "the first process got no request");
    }
}

/// Sends a batch to a process that ends after `ends` was called. Returns whether the next process got the batch.
fn is_sent_again(ends: fn(&ProcessInstance, &Channel)) -> bool {
    let (mut instance, [first, second]) = instance_of();
    let (batch, responses) = batch();
    check_begun(&mut instance, batch);
    ends(&instance, &first);
    instance.live.as_ref().unwrap().child.os_process.kill_and_reap();
    drop(first);
    second.send(ANSWER, &[]).unwrap();
    instance.finish();
    let is_sent = read_all(&second).len() == 1;
    let content = responses.try_recv().unwrap().into_content().unwrap();
    assert_eq!(content.is_ok(), is_sent, "{:?}", content.err());
    is_sent
}

#[test]
fn a_request_that_a_dead_process_had_not_read_is_for_the_next_process() {
    assert!(is_sent_again(|_, _| ()), "it read nothing");
    assert!(
        !is_sent_again(|_, theirs| assert!(theirs.receive(&mut Packet::default()).unwrap().is_some())),
        "it read the batch"
    );
    assert!(
        !is_sent_again(|instance, theirs| {
            theirs.receive(&mut Packet::default()).unwrap();
            instance.live.as_ref().unwrap().child.channel.try_notice("{}").unwrap();
        }),
        "it read the batch, and not what came after it"
    );
    assert!(
        !is_sent_again(|_, theirs| theirs.send(NEED, &[]).unwrap()),
        "it asked for memory, so it may have read the batch"
    );
}

/// The end of the error of the first request in a batch of these clients, whose process died after it wrote a line.
fn error_after_a_line(clients: &[u64]) -> String {
    let (mut instance, [first, _second]) = instance_of();
    let (pipe, mut writer) = io::pipe().unwrap();
    let output = ProcessOutput::waiting(vec![(Stream::Error, pipe)], Duration::from_mins(1));
    instance.live.as_mut().unwrap().child.output = Some(output.clone());
    let mut run = |line: &[u8], (batch, responses): (Batch, mpsc::Receiver<Response>)| {
        check_begun(&mut instance, batch);
        writer.write_all(line).unwrap();
        assert!(first.receive(&mut Packet::default()).unwrap().is_some());
        if line.starts_with(b"of another") {
            first.send(ANSWER, &[]).unwrap();
            assert!(instance.go_on());
            check_answered(&responses);
        }
        responses
    };
    run(b"of another client\n", batch());
    let responses = run(b"of this one\n", batch_of_clients(clients));
    instance.live.as_ref().unwrap().child.os_process.kill_and_reap();
    drop((first, writer));
    std::thread::scope(|scope| {
        scope.spawn(|| output.read_to_end(|_, _| ()));
        instance.finish();
    });
    let message = || responses.try_recv().unwrap().into_content().unwrap().unwrap_err().message;
    let first = message();
    assert!(clients.iter().skip(1).all(|_| message() == first), "all requests get the same text");
    first.split_once("is started anew").unwrap().1.to_owned()
}

#[test]
fn the_error_of_a_request_tells_what_its_process_wrote_meanwhile() {
    assert_eq!(error_after_a_line(&[7]), "\n\nIt printed last:\n  of this one");
    assert_eq!(error_after_a_line(&[0]), "\n\nIt printed last:\n  of this one");
    assert_eq!(error_after_a_line(&[7, 7, 7]), "\n\nIt printed last:\n  of this one");
}

#[test]
fn clients_whose_requests_are_one_batch_are_told_nothing_of_each_other() {
    // Requests of the server itself (client 0) may be about any client.
    for clients in [[7, 8], [0, 0], [7, 0], [0, 7]] {
        let error = error_after_a_line(&clients);
        assert!(error.contains("in the server's log only") && !error.contains("of this one"), "{error}");
    }
}

#[test]
fn the_log_names_the_requests_of_a_failed_batch() {
    let check = |ids: &[&str], expect: &str| assert_eq!(named(ids.iter().copied()), expect);
    check(&["a", "", "c"], "[request ids: a, <id_unknown>, c]");
    check(&["x".repeat(1000).as_str()], &format!("[request ids: {}]", "x".repeat(NAMED_ID_CHARACTERS_MAX)));
    let many = vec!["i"; NAMED_REQUESTS_MAX + 2];
    check(&many, &format!("[request ids: {} and 2 more]", ["i"; NAMED_REQUESTS_MAX].join(", ")));
}
