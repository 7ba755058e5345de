//! Does `nerite shm` show an operator what there is, end what is named, and nothing to anybody else?

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nerite_client::{DataType, Request, Session, Tensor};
use nerite_session::limits::{OPERATOR_SESSIONS_MAX, SESSIONS_MAX};
use nerite_session::{Listener, Options, serve};
use nerite_shm::OwnedRegion;
use serde_json::Value;

use crate::run::{NOBODY, Server, copy_program, json, key, nerite, program_for_all, refusal, row, runtime, shm, text};
use crate::test_server::TestServer;

/// A name that would clear the screen, turn the line around and end it, if it were shown as it is.
const ODD: &str = "odd \u{1b}[2J\u{202e}\n'name'";

#[test]
fn regions_are_shown_with_their_owner_and_what_became_of_them() {
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let socket = &server.socket;
    assert_eq!(text(shm(socket, &["list"])), "no regions\n");

    let keys = ["good", "shrunk", "lost", "own"].map(key);
    let mut objects = keys.each_ref().map(|key| OwnedRegion::create(key, 8192).unwrap());
    for (name, key) in [("good", &keys[0]), (ODD, &keys[0]), ("shrunk", &keys[1]), ("lost", &keys[2])] {
        server.api.register_system(name, key, 4096, 4096).unwrap();
    }
    let session = runtime.block_on(Session::connect(socket)).unwrap();
    runtime.block_on(session.register_system_region("own", &keys[3], 0, 64)).unwrap();
    let open = |key: &str| OpenOptions::new().write(true).open(format!("/dev/shm{key}")).unwrap();
    open(&keys[1]).set_len(1000).unwrap();
    open(&keys[2]).set_len(0).unwrap();
    let window = nerite_client::RegionRef { name: "lost".into(), offset: 0, byte_size: 8 };
    let request = Request::new("echo").input_in_window("IN", DataType::Int32, &[2], window);
    runtime.block_on(session.infer(&request)).unwrap_err();
    objects[0].unlink().unwrap();

    let table = text(shm(socket, &["list"]));
    assert_eq!(row(&table, "good")[..7], ["good", "system", &keys[0], "4096", "4096", "common", "0"]);
    assert_eq!(row(&table, "good")[7], "good, key unlinked");
    assert_eq!(row(&table, "shrunk")[7], "shrunk to 1000 bytes: requests that reach the rest will fail");
    assert_eq!(row(&table, "lost")[7], "poisoned: no memory at byte 0; takes no requests until registered again");
    let owner = format!("session 2 (pid {}, uid {})", std::process::id(), rustix::process::geteuid().as_raw());
    assert_eq!(row(&table, "own")[5..], [&owner, "0", "good", ""]);
    assert!(table.contains("odd \\u{1b}[2J\\u{202e}\\n'name'"), "{table}");

    let shown = text(shm(socket, &["show", "lost"]));
    assert!(shown.contains("object then  8192 bytes\nobject now   0 bytes\n"), "{shown}");
    assert!(shown.contains("memory was missing at byte 0; the server's own zeros"), "{shown}");
    assert!(text(shm(socket, &["show", ODD])).contains("key is gone; the object registered lives on here"));
    let all = json(socket, &["list"]);
    let names: Vec<&str> = all["regions"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["good", "lost", ODD, "shrunk", "own"]);
    assert_eq!(all["regions"][1]["poisoned_at"], 0);
    assert_eq!(all["regions"][4]["session"], 2);
    let refused = refusal(shm(socket, &["show", "nothing\u{1b}"]), 1);
    assert_eq!(refused, "nerite shm: no region is called 'nothing\\u{1b}'; `nerite shm list` shows all\n");
}

#[test]
fn what_a_request_uses_may_be_dropped_and_goes_with_the_request() {
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let socket = &server.socket;
    let key = key("used");
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    server.api.register_system("used", &key, 0, 4096).unwrap();
    let session = runtime.block_on(Session::connect(socket)).unwrap();
    let window = nerite_client::RegionRef { name: "used".into(), offset: 0, byte_size: 8 };
    let request = Request::new("held").input_in_window("IN", DataType::Int32, &[2], window);
    let waiting = runtime.spawn(async move { session.infer(&request).await.map(drop) });
    TestServer::until("the request", || server.held.count() == 1);

    assert_eq!(row(&text(shm(socket, &["list"])), "used")[6..8], ["1", "good"]);
    let expect = "dropped region 'used'; requests still use it, and its memory goes with the last of them\n";
    assert_eq!(text(shm(socket, &["drop", "used"])), expect);
    assert_eq!(row(&text(shm(socket, &["list"])), "used")[6..8], ["1", "awaiting unregister, good"]);
    let refused = refusal(shm(socket, &["drop", "used"]), 1);
    assert_eq!(refused, "nerite shm: no region 'used' is registered\n");
    assert_eq!(json(socket, &["sessions"])["sessions"][0]["in_flight"], 1);

    server.held.answer();
    runtime.block_on(waiting).unwrap().unwrap();
    TestServer::until("the region's end", || text(shm(socket, &["list"])) == "no regions\n");
    server.api.register_system("used", &key, 0, 4096).unwrap();
    server.api.register_system("also", &key, 0, 4096).unwrap();
    assert_eq!(json(socket, &["drop", "--all"])["dropped"], 2);
    assert_eq!(text(shm(socket, &["list"])), "no regions\n");
}

#[test]
fn a_session_is_shown_with_all_it_has_and_ends_when_the_operator_says_so() {
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let socket = &server.socket;
    assert_eq!(text(shm(socket, &["sessions"])), "no sessions but this one\n");
    let session = runtime.block_on(Session::connect(socket)).unwrap();
    let lease = runtime.block_on(session.borrow(5000)).unwrap();
    let idle = runtime.block_on(session.borrow(5000)).unwrap();
    drop(idle);
    let key = key("session");
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    runtime.block_on(session.register_system_region(ODD, &key, 0, 4096)).unwrap();

    let found = &json(socket, &["sessions"])["sessions"][0];
    let number = found["session"].as_u64().unwrap().to_string();
    assert_eq!(found["pid"], std::process::id());
    assert_eq!((&found["regions"], &found["leases"], &found["lease_bytes"]), (&1.into(), &2.into(), &16384.into()));
    assert_eq!(found["client"], concat!("nerite-client ", env!("CARGO_PKG_VERSION")));
    assert!(!found["command"].as_str().unwrap().is_empty());
    let table = text(shm(socket, &["sessions"]));
    assert_eq!(row(&table, &number)[1], std::process::id().to_string());

    let pools = json(socket, &["pools"]);
    let class = &pools["classes"][0];
    assert_eq!((&class["byte_size"], &class["lent"], &class["free"]), (&8192.into(), &1.into(), &1.into()));
    assert_eq!((&pools["bytes"], &pools["bytes_peak"]), (&16384.into(), &16384.into()));
    let shown = text(shm(socket, &["show", "--session", &number]));
    let secret = lease.window(0, 1).name;
    assert!(shown.contains(&(secret[..12].to_owned() + "…")) && !shown.contains(secret.as_str()), "{shown}");
    for words in [&["list"][..], &["pools"], &["sessions"], &["show", "--session", &number]] {
        let output = format!("{}{}", text(shm(socket, words)), json(socket, words));
        assert!(!output.contains(secret.as_str()) && !output.contains('\u{1b}'), "{output}");
    }

    let dropped = text(shm(socket, &["drop", "--session", &number, "--", ODD]));
    assert!(dropped.starts_with("dropped region 'odd \\u{1b}"), "{dropped}");
    assert_eq!(text(shm(socket, &["drop", "--session", &number])), format!("dropped session {number}\n"));
    let end = runtime.block_on(session.in_use()).unwrap_err().to_string();
    assert!(end.ends_with("the operator has ended this session"), "{end}");
    TestServer::until("the end", || json(socket, &["sessions"])["sessions"].as_array().unwrap().is_empty());
    TestServer::until("the leases' end", || json(socket, &["pools"])["leases"] == 0);
    assert_eq!(json(socket, &["pools"])["bytes_peak"], 16384);
    let refused = refusal(shm(socket, &["drop", "--session", &number]), 1);
    assert_eq!(refused, format!("nerite shm: there is no session {number}\n"));
}

#[test]
fn lists_longer_than_a_packet_are_sent_whole() {
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let key = key("many");
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    let mut names: Vec<String> = (0..3000).map(|number| format!("region {number:04} {}", "x".repeat(60))).collect();
    names.extend((0..80).map(|number| format!("{number:02}{}", "é".repeat(500))));
    for name in &names {
        server.api.register_system(name, &key, 0, 4096).unwrap();
    }
    names.sort();
    let all = json(&server.socket, &["list"]);
    let output: Vec<&str> = all["regions"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(output, names);
}

#[test]
fn an_operator_finds_a_place_when_all_are_taken() {
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let connect = || runtime.block_on(Session::connect(&server.socket));
    let sessions: Vec<Session> = (0..SESSIONS_MAX).map(|_| connect().unwrap()).collect();
    let operate = || runtime.block_on(Session::connect_as_operator(&server.socket));
    // Whoever runs the server is not its operator for that: a program of the same user does not take the last places.
    assert_eq!(connect().unwrap_err().to_string(), "256 sessions are open; try again later");
    let mine = operate().unwrap();
    let refused = runtime.block_on(mine.borrow(4096)).unwrap_err().to_string();
    assert_eq!(
        refused,
        "all 256 places are taken; this session has one of the operator's, for the operator's calls alone"
    );
    let all = json(&server.socket, &["sessions"]);
    assert_eq!(all["sessions"].as_array().unwrap().len(), SESSIONS_MAX + 1);
    let others: Vec<Session> = (1..OPERATOR_SESSIONS_MAX).map(|_| operate().unwrap()).collect();
    assert_eq!(operate().unwrap_err().to_string(), "256 sessions are open; try again later");
    drop((sessions, mine, others));
    TestServer::until("a place", || connect().is_ok_and(|session| runtime.block_on(session.borrow(4096)).is_ok()));
}

const CROWD: &str = "NERITE_TEST_CROWD";

/// A user who opens sessions until it is refused. Without the variable, this is a test that tests nothing.
#[test]
fn crowd() {
    let Some(socket) = std::env::var_os(CROWD) else { return };
    let runtime = runtime();
    let mut sessions = Vec::new();
    let refused = loop {
        match runtime.block_on(Session::connect(&socket)) {
            Ok(session) => sessions.push(session),
            Err(refused) => break refused,
        }
    };
    println!("after {}: {refused}", sessions.len());
}

#[test]
fn one_user_takes_no_more_than_its_share_of_the_places() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let (socket, program) = (directory.path().join("s"), directory.path().join("crowd"));
    copy_program(&std::env::current_exe().unwrap(), &program);
    let options = Options { allow_uids: vec![NOBODY], ..Options::default() };
    let _served = serve(server.api.clone(), options, Listener::bind(&socket, true).unwrap());
    let mut command = Command::new(&program);
    command.args(["--exact", "shm::crowd", "--nocapture"]).env(CROWD, &socket).uid(NOBODY).gid(NOBODY);
    let output = text(command.output().unwrap());
    let expect = "after 64: user 65534 has 64 sessions open, which is all that one user may have; close some";
    assert!(output.contains(expect), "{output}");
}

#[test]
fn other_users_are_refused_even_if_they_may_open_sessions() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let runtime = runtime();
    let _context = runtime.enter();
    let server = TestServer::new();
    let (directory, program) = program_for_all();
    let open = |name: &str, allow_uids: Vec<u32>| {
        let socket = directory.path().join(name);
        let handle = serve(
            server.api.clone(),
            Options { allow_uids, ..Options::default() },
            Listener::bind(&socket, true).unwrap(),
        );
        (socket, handle)
    };
    let as_nobody = |socket: &Path, words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["shm", "--session-socket", socket.to_str().unwrap()]).args(words).uid(NOBODY).gid(NOBODY);
        refusal(command.output().unwrap(), 1)
    };
    let (allowed, _served) = open("allowed", vec![NOBODY]);
    let key = key("others");
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    server.api.register_system("theirs", &key, 0, 4096).unwrap();
    for words in [
        &["list"][..],
        &["show", "theirs"],
        &["show", "--session", "1"],
        &["drop", "theirs"],
        &["drop", "--all"],
        &["drop", "--session", "1"],
        &["pools"],
        &["sessions"],
    ] {
        let expect = "nerite shm: this call is the operator's: user 0, who runs the server, and root may make it; this \
                      session's user is 65534\n";
        assert_eq!(as_nobody(&allowed, words), expect, "{words:?}");
    }
    assert_eq!(server.api.system_status("").unwrap().len(), 1);
    let (closed, _served) = open("closed", Vec::new());
    let refused = as_nobody(&closed, &["list"]);
    assert!(refused.contains("user 65534 may not open sessions with a server of user 0"), "{refused}");
    let mode = as_nobody(&server.socket, &["list"]);
    assert!(mode.contains("the socket belongs to user 0, mode 0600, and this is user 65534"), "{mode}");
}

#[test]
fn a_server_is_asked_over_its_socket_or_over_http_and_missed_when_it_is_gone() {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut server = Server::start();
    let socket = server.directory.path().join("s");
    let url = format!("http://127.0.0.1:{}", server.port);
    let http = |words: &[&str]| nerite(&[&["shm", "--http", &url], words].concat());
    let key = key("process");
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    runtime.block_on(async {
        let client = nerite_client::http::Client::new(&url).unwrap();
        client.register_system_region("a b", &key, 0, 4096).await.unwrap();
        client.register_system_region("c", &key, 0, 64).await.unwrap();
        let session = Session::connect(&socket).await.unwrap();
        let tensor = Tensor::from_slice("IN", &[2], &[1i32, 2]).unwrap();
        session.infer_leased(&Request::new("echo").input(tensor), &["OUT"]).await.unwrap();
    });
    let names = |all: &Value| {
        let regions = all["regions"].as_array().unwrap();
        regions.iter().map(|region| region["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&json(&socket, &["list"])), ["a b", "c"]);
    assert_eq!(names(&serde_json::from_str(&text(http(&["list", "--json"]))).unwrap()), ["a b", "c"]);
    assert_eq!(row(&text(http(&["show", "c"])), "c")[..5], ["c", "system", &key, "0", "64"]);
    assert_eq!(text(http(&["drop", "a b"])), "dropped region 'a b'\n");
    assert!(refusal(http(&["sessions"]), 1).contains("ask over the session socket"));
    assert_eq!(names(&json(&socket, &["list"])), ["c"]);
    let dropped = shm(&socket, &["drop", "c"]);
    let notice = format!("nerite shm: asking the server of process {} at {}\n", server.child.id(), socket.display());
    assert_eq!(String::from_utf8_lossy(&dropped.stderr), notice);
    assert_eq!(text(dropped), "dropped region 'c'\n");
    let server_shown = &json(&socket, &["list"])["server"];
    assert_eq!(
        (&server_shown["pid"], &server_shown["session_socket"]),
        (&server.child.id().into(), &socket.to_str().unwrap().into())
    );

    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let path = socket.display().to_string();
    let refused = refusal(shm(&socket, &["list"]), 1);
    assert!(refused.contains(&path) && refused.contains("nobody listens there any more"), "{refused}");
    fs::remove_file(&socket).unwrap();
    let refused = refusal(shm(&socket, &["list"]), 1);
    assert!(refused.contains(&path) && refused.contains("is a server running, by this user"), "{refused}");
    assert!(refusal(http(&["list"]), 1).contains("cannot connect to"));
    let expect = "nerite shm: there is no command 'lst'\n`nerite shm --help` lists what there is\n";
    assert_eq!(refusal(nerite(&["shm", "lst"]), 2), expect);
}
