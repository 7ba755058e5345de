//! Do CUDA regions follow the same rules as other regions?
//!
//! The tests use the stand-in driver, which is not CUDA. The client that shares device memory is this test's own binary, started again.
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

#[path = "../../memory/tests/eventually/assert.rs"]
mod eventually;
#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eventually::assert_eventually;
use nerite_cuda::{DeviceMemory, Driver};
use nerite_memory::{Extent, Place, Reason, Slot};
use nerite_shm::{ErrorKind, Gpu, LeaseLimits, Options, OwnedRegion, Pools, Registry, ShmError};
use stand_in::Counts;

const CASE: &str = "NERITE_CUDA_CASE";

/// A client in a process of its own, which allocates and frees on command.
struct Client {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn new() -> Client {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_child", "--nocapture"]).env(CASE, "client");
        command.env_remove("STAND_IN_COUNTS").env_remove("STAND_IN_FAIL");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Client { child, answers }
    }

    fn exchange(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        while !answer.contains("> ") {
            answer.clear();
            assert_ne!(self.answers.read_line(&mut answer).unwrap(), 0, "the client ended at '{line}'");
        }
        answer.split_once("> ").unwrap().1.trim().to_owned()
    }

    /// Allocates on a device, fills every byte with `fill`, and returns the handle.
    fn lend(&mut self, device: u32, bytes: usize, fill: u8) -> Vec<u8> {
        let hex = self.exchange(&format!("lend {device} {bytes} {fill}"));
        (0..64).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the client. Commands: `lend device bytes fill`, `first` for the first byte of the last allocation, `free` for all.
fn client() {
    let driver = driver();
    let mut lent: Vec<Arc<DeviceMemory>> = Vec::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "lend" => {
                let memory = DeviceMemory::allocate(&driver.device(number(1) as u32).unwrap(), number(2)).unwrap();
                let filled = vec![number(3) as u8; number(2)];
                memory.slot(Extent::whole(filled.len())).write(0, &filled, Reason::CrossDevice).unwrap();
                let handle = memory.ipc_handle().unwrap().0;
                println!("> {}", handle.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")));
                lent.push(memory);
            }
            "first" => {
                let mut home = Slot::heap(1);
                let last = lent.last().unwrap().buffer(Extent::whole(1));
                home.fill_from(0, &last, Reason::CrossDevice).unwrap();
                println!("> {}", home.filled().into_buffer().private_bytes().unwrap()[0]);
            }
            _ => {
                lent.clear();
                println!("> freed");
            }
        }
    }
}

fn driver() -> Arc<Driver> {
    Driver::open(Some(stand_in::library())).unwrap()
}

fn registry(options: Options) -> Registry {
    Registry::new(options).with_gpu(Some(Gpu::new(driver(), true)))
}

/// Runs one case in a process of its own, and checks that it freed everything.
#[track_caller]
fn run(case: &str, fail: Option<&str>) {
    let file = std::env::temp_dir().join(format!("nerite-cuda-{}-{}", std::process::id(), case.replace(' ', "-")));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_child", "--nocapture"]).env(CASE, case).env("STAND_IN_COUNTS", &file);
    if let Some(call) = fail {
        command.env("STAND_IN_FAIL", call);
    }
    assert!(command.status().unwrap().success(), "{case}");
    let counted = stand_in::counts(&file);
    let _ = std::fs::remove_file(&file);
    assert_eq!(counted.held(), [0; 6], "{case}");
}

fn counts() -> Counts {
    stand_in::counts(&PathBuf::from(std::env::var_os("STAND_IN_COUNTS").unwrap()))
}

#[track_caller]
fn check(refused: Result<(), ShmError>, kind: ErrorKind, begins: &str, part: &str) {
    let error = refused.unwrap_err();
    let text = error.to_string();
    assert!(error.kind() == kind && text.starts_with(begins) && text.contains(part), "{kind:?}: {text}");
    assert_eq!(counts().imports, 0, "{text}");
}

#[test]
fn bytes_are_copied_to_a_region_and_back() {
    run("bytes", None);
}

#[test]
fn invalid_regions_are_refused_in_order_and_nothing_remains_open() {
    run("refused", None);
    run("range fails", Some("cuMemGetAddressRange_v2"));
}

#[test]
fn an_unregistered_region_is_kept_until_its_last_user_is_dropped() {
    run("in flight", None);
}

#[test]
#[ignore = "alone: counts descriptors of its child"]
fn a_thousand_registrations_leave_nothing_open() {
    run("many", None);
}

#[test]
fn registrations_and_requests_of_many_threads_leave_nothing_open() {
    run("storm", None);
}

#[test]
fn system_regions_and_leases_are_page_locked_while_they_are_mapped() {
    run("locked", None);
    run("lock fails", Some("cuMemHostRegister_v2"));
}

#[test]
fn the_child() {
    match std::env::var(CASE).as_deref() {
        Err(_) => {}
        Ok("client") => client(),
        Ok("bytes") => bytes(),
        Ok("refused") => refused(),
        Ok("range fails") => {
            let begins = "failed to register shared memory region 'a': invalid args";
            let mut client = Client::new();
            let handle = client.lend(0, 64, 0);
            let registered = registry(Options::default()).register_cuda("a", &handle, 0, 64);
            check(registered, ErrorKind::Invalid, begins, "cuMemGetAddressRange_v2: out of memory");
        }
        Ok("in flight") => in_flight(),
        Ok("many") => many(),
        Ok("storm") => storm(),
        Ok("locked") => locked(1),
        Ok("lock fails") => locked(0),
        Ok(case) => panic!("no case '{case}'"),
    }
    // Another thread may close what the case has dropped.
    let patience = Instant::now() + Duration::from_mins(1);
    while std::env::var_os("STAND_IN_COUNTS").is_some() && counts().held() != [0; 6] && Instant::now() < patience {
        std::thread::yield_now();
    }
}

fn bytes() {
    let (mut client, registry) = (Client::new(), registry(Options::default()));
    let handle = client.lend(1, 1000, 7);
    registry.register_cuda("a", &handle, 1, 1000).unwrap();
    let located = registry.locate("a", 10, 100).unwrap();
    assert_eq!((located.region().place(), located.region().byte_size()), (Place::Device(1), 1000));
    // A runtime in another process would open it with the same handle.
    let window = located.clone().into_buffer().ipc().unwrap();
    assert_eq!((&window.handle[..], window.offset), (&handle[..], 10));
    assert_eq!(located.clone().into_slot().ipc(), Some(window));
    let buffer = located.clone().into_buffer();
    let shared = buffer.share().unwrap();
    let device = shared.share.device().unwrap();
    assert_eq!((shared.offset, device.ordinal, &device.handle[..]), (10, 1, &handle[..]));
    assert!(shared.share.open().is_err(), "there is nothing to map");
    drop(buffer);
    let mut home = Slot::heap(100);
    home.fill_from(0, &located.into_buffer(), Reason::CrossDevice).unwrap();
    assert_eq!(home.filled().into_buffer().private_bytes(), Some(&[7; 100][..]));
    registry.locate("a", 0, 1).unwrap().into_slot().write(0, &[9], Reason::CrossDevice).unwrap();
    assert_eq!(client.exchange("first"), "9");
    let status = &registry.cuda_status(Some("a")).unwrap()[0];
    assert_eq!((status.device_id, status.byte_size), (1, 1000));
    assert_eq!(registry.system_status(None), Ok(vec![]));
    let text = registry.system_status(Some("a")).unwrap_err().to_string();
    assert_eq!(text, "The region named 'a' is registered as CUDA shared memory, not system shared memory");
    assert_eq!((registry.counts().cuda_mapped, registry.counts().cuda_mapped_bytes), (1, 1000));
    assert!(matches!(registry.locate("a", 1000, 0), Err(ShmError::OffsetBeyond { .. })));
    assert!(matches!(registry.locate("a", 999, 2), Err(ShmError::EndBeyond { .. })));
    // The client may free its memory, or die, at any moment. Memory that is open here remains valid, and the server does not end.
    client.exchange("free");
    drop(client);
    let mut home = Slot::heap(1000);
    let read = home.fill_from(0, &registry.locate("a", 0, 1000).unwrap().into_buffer(), Reason::CrossDevice);
    assert_eq!(read, Ok(()));
    registry.unregister_system("a").unwrap();
    assert_eq!(counts().imports, 1);
    registry.unregister_all_cuda().unwrap();
}

fn refused() {
    let mut client = Client::new();
    let (zero, one) = (client.lend(0, 512, 0), client.lend(1, 512, 0));
    let own = DeviceMemory::allocate(&driver().device(0).unwrap(), 64).unwrap();
    let mine = own.ipc_handle().unwrap().0;
    let closed = registry(Options { allow_client_shm: false, ..Options::default() });
    check(closed.register_cuda("a", &zero, 0, 64), ErrorKind::Disabled, "Client shared memory is disabled.", "");
    let registry = registry(Options { regions_max: 1, ..Options::default() });
    let refuse = |name: &str, raw: &[u8], device, size, begins: &str, part: &str| {
        check(registry.register_cuda(name, raw, device, size), ErrorKind::Invalid, begins, part);
    };
    refuse("", &zero, 0, 64, "'region name' is necessary to register cuda shared memory region", "");
    let length = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
    refuse("a", &zero[..63], 0, 64, length, "it has 63 bytes, a handle has 64");
    refuse("a", &[], 0, 64, length, "it has 0 bytes");
    let opens = "failed to register shared memory region: invalid args";
    refuse("a", &zero, 2, 64, opens, "there is no device 2; the server sees 0 (Stand-in device 0");
    refuse("a", &zero, -1, 64, opens, "there is no device -1");
    refuse("a", &zero, i64::MAX, 64, opens, "there is no device 9223372036854775807");
    refuse("a", &one, 0, 64, opens, "the handle is for memory of device 1, not of device 0");
    refuse("a", &[7; 64], 0, 64, opens, "cuIpcOpenMemHandle_v2: invalid argument (CUDA_ERROR_INVALID_VALUE, 1)");
    refuse("a", &mine, 0, 64, opens, "CUDA_ERROR_INVALID_CONTEXT");
    let size = "failed to register shared memory region 'a': invalid args";
    refuse("a", &zero, 0, 513, size, "the allocation has 512 bytes, asked for 513");
    refuse("a", &zero, 0, u64::MAX, size, "asked for 18446744073709551615");
    let freed = zero.clone();
    client.exchange("free");
    refuse("a", &freed, 0, 64, opens, "memory that is still allocated");
    let again = client.lend(0, 512, 0);
    registry.register_cuda("a", &again, 0, 512).unwrap();
    let taken = registry.register_cuda("a", &again, 0, 512).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Taken);
    assert_eq!(
        taken.to_string(),
        "shared memory region 'a' already in manager: 512 bytes on device 0; unregister it first"
    );
    let full = registry.register_cuda("b", &again, 0, 512).unwrap_err().to_string();
    assert!(full.contains("1 CUDA regions are the most there may be"), "{full}");
    assert_eq!((counts().imports, registry.counts().refused), (1, 14));
}

fn in_flight() {
    let (mut client, registry) = (Client::new(), registry(Options::default()));
    let handle = client.lend(0, 64, 3);
    registry.register_cuda("a", &handle, 0, 64).unwrap();
    let input = registry.locate("a", 0, 64).unwrap().into_buffer();
    registry.unregister_cuda("a").unwrap();
    assert_eq!((registry.cuda_status(None).unwrap().len(), counts().imports), (1, 1));
    let joined = registry.locate("a", 0, 8).unwrap().into_slot();
    // A new registration takes effect at once. The driver counts a handle that was opened twice.
    registry.register_cuda("a", &handle, 0, 32).unwrap();
    assert_eq!((registry.locate("a", 0, 32).unwrap().region().byte_size(), counts().imports), (32, 2));
    drop(input);
    assert_eq!(counts().imports, 2);
    drop(joined);
    // What a request used last is freed on another thread.
    assert_eventually(|| counts().imports, 1);
    registry.unregister_cuda("a").unwrap();
    assert_eq!((registry.cuda_status(None).unwrap().len(), counts().imports), (0, 0));
}

fn many() {
    let (mut client, registry) = (Client::new(), registry(Options::default()));
    let handles: Vec<_> = (0..4).map(|_| client.lend(0, 4096, 1)).collect();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for turn in 0..1000 {
        registry.register_cuda("a", &handles[turn % 4], 0, 4096).unwrap();
        registry.register_cuda("b", &handles[turn % 4], 0, 4097).unwrap_err();
        registry.unregister_cuda("a").unwrap();
    }
    assert_eq!((counts().imports, registry.counts().cuda_mapped, descriptors()), (0, 0, before));
}

/// The two names are regions filled with 1 and with 2. A reader that finds a region reads only one of these values, even while other threads register
/// and unregister under the name.
fn storm() {
    let (mut client, registry) = (Client::new(), registry(Options::default()));
    let handles = [client.lend(0, 4096, 1), client.lend(1, 4096, 2)];
    let (registry, handles) = (&registry, &handles);
    let read = |name: &str| {
        let Ok(located) = registry.locate(name, 0, 4096) else { return };
        let mut home = Slot::heap(4096);
        home.fill_from(0, &located.into_buffer(), Reason::CrossDevice).unwrap();
        let home = home.filled().into_buffer();
        let bytes = home.private_bytes().unwrap();
        assert!((1..=2).contains(&bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0]), "{:?}", &bytes[..8]);
    };
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                for turn in 0..500 {
                    let (name, device) = (["a", "b"][turn % 2], (thread + turn) % 2);
                    // Another thread may have registered the name.
                    let _ = registry.register_cuda(name, &handles[device], device as i64, 4096);
                    read(["a", "b"][thread % 2]);
                    registry.unregister_cuda(name).unwrap();
                }
            });
        }
    });
    registry.unregister_all_cuda().unwrap();
    assert_eventually(|| counts().imports, 0);
    // The count is decreased a moment after the driver has closed the last handle.
    assert_eventually(|| registry.counts().cuda_mapped, 0);
}

fn locked(each: i64) {
    let key = format!("/nerite-cuda-{}", std::process::id());
    let _mine = OwnedRegion::create(&key, 8192).unwrap();
    let registry = registry(Options::default());
    registry.register_system("a", &key, 0, 8192).unwrap();
    let place = if each == 1 { Place::Pinned } else { Place::Host };
    assert_eq!((registry.locate("a", 0, 1).unwrap().into_buffer().place(), counts().locked), (place, each));
    let pools = Pools::with_gpu(LeaseLimits::default(), registry.gpu().cloned());
    let account = pools.open();
    let borrowed = account.borrow(100).unwrap();
    assert_eq!((borrowed.lease.place(), counts().locked), (place, 2 * each));
    registry.unregister_system("a").unwrap();
    assert_eventually(|| counts().locked, each);
    drop(borrowed);
    account.close();
    assert_eventually(|| counts().locked, 0);
    // An object without allocated pages is not page-locked if it is large.
    let sparse = format!("/nerite-cuda-sparse-{}", std::process::id());
    let path = format!("/dev/shm{sparse}");
    std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    for (bytes, locked) in [(1 << 30, 0), (32 << 20, each)] {
        registry.register_system("sparse", &sparse, 0, bytes).unwrap();
        assert_eq!(counts().locked, locked, "{bytes} bytes");
        registry.unregister_system("sparse").unwrap();
        assert_eventually(|| counts().locked, 0);
    }
    std::fs::remove_file(&path).unwrap();
    let large = pools.open().borrow(1 << 30).unwrap();
    assert_eq!((large.lease.place(), counts().locked), (Place::Host, 0));
    drop(large);
    // The operator may disable it.
    let unlocked = Registry::new(Options::default()).with_gpu(Some(Gpu::new(driver(), false)));
    unlocked.register_system("a", &key, 0, 8192).unwrap();
    assert_eq!((unlocked.locate("a", 0, 1).unwrap().into_buffer().place(), counts().locked), (Place::Host, 0));
}
