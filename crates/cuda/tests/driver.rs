//! Does the crate keep to the driver's rules?
//!
//! Against the stand-in driver, which is no CUDA. What needs a second process runs this test's own binary again, with the
//! handles in its environment.
#![allow(clippy::unwrap_used)]

#[path = "stand_in/compile.rs"]
mod stand_in;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nerite_cuda::{Absent, DeviceMemory, Driver, IpcHandle, IpcMemory, OpenError, PageLock, PinnedPool};
use nerite_memory::{Buffer, Extent, MemoryOwner, Place, Reason, Slot, Staging};
use stand_in::{Counts, counts};

const CASE: &str = "NERITE_DRIVER_CASE";
const HANDLES: &str = "NERITE_DRIVER_HANDLES";

/// Runs one case in a process of its own and gives what the stand-in counted in it, there at its end.
#[track_caller]
fn run(case: &str, handles: &[IpcHandle], fail: Option<&str>) -> Counts {
    let file = counts_file(case);
    let hex = |handle: &IpcHandle| handle.0.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let hex: Vec<String> = handles.iter().map(hex).collect();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "the_child", "--nocapture"]).env(CASE, case).env(HANDLES, hex.join(","));
    child.env("STAND_IN_COUNTS", &file);
    if let Some(call) = fail {
        child.env("STAND_IN_FAIL", call);
    }
    assert!(child.status().unwrap().success(), "{case}");
    let counted = counts(&file);
    let _ = std::fs::remove_file(&file);
    counted
}

fn counts_file(case: &str) -> PathBuf {
    std::env::temp_dir().join(format!("nerite-stand-in-{}-{}", std::process::id(), case.replace(' ', "-")))
}

fn driver() -> Arc<Driver> {
    Driver::open(Some(stand_in::library())).unwrap()
}

fn filled(device: u32, bytes: &[u8]) -> Arc<DeviceMemory> {
    let memory = DeviceMemory::allocate(&driver().device(device).unwrap(), bytes.len()).unwrap();
    memory.slot(Extent::whole(bytes.len())).write(0, bytes, Reason::CrossDevice).unwrap();
    memory
}

fn read(buffer: &Buffer) -> Vec<u8> {
    let mut slot = Slot::heap(buffer.len());
    slot.fill_from(0, buffer, Reason::CrossDevice).unwrap();
    slot.filled().into_buffer().private_bytes().unwrap().to_vec()
}

#[track_caller]
fn check_absent(path: &Path, expect: &str) {
    let text = Driver::open(Some(path)).map(drop).unwrap_err().to_string();
    assert!(text.contains(expect), "{text}");
}

#[test]
fn a_host_without_a_driver_is_reported_plainly() {
    check_absent(Path::new("libcuda-of-nowhere.so.1"), "no CUDA driver: libcuda-of-nowhere.so.1: cannot open shared");
    check_absent(Path::new("libc.so.6"), "libc.so.6 is no CUDA driver that can be used: it has no cuInit");
}

#[test]
fn devices_have_a_number_a_name_and_an_identity() {
    let driver = driver();
    let devices = driver.devices();
    assert_eq!(devices.iter().map(nerite_cuda::Device::ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(devices[1].name(), "Stand-in device 1 (host memory, not CUDA)");
    assert_eq!(devices[1].uuid(), "GPU-00000000-0000-0000-0000-000000000002");
    assert_eq!((devices[0].total_bytes(), devices[0].free_bytes().unwrap() > 0), (8 << 30, true));
    assert_eq!(devices[1].compute_capability(), (9, 0));
    assert!(driver.device(2).is_none());
    assert!(
        DeviceMemory::allocate(&devices[0], 1 << 40).unwrap_err().to_string().contains("cuMemAlloc_v2: out of memory")
    );
}

#[test]
fn bytes_cross_the_bus_both_ways_and_within() {
    let (a, b, other) = (filled(0, b"left here"), filled(0, &[0; 9]), filled(1, &[0; 9]));
    let whole = Extent::whole(9);
    assert_eq!(a.buffer(whole).place(), Place::Device(0));
    b.slot(whole).fill_from(0, &a.buffer(whole), Reason::CrossDevice).unwrap();
    other.slot(whole).fill_from(0, &b.buffer(whole), Reason::CrossDevice).unwrap();
    assert_eq!(read(&other.buffer(Extent::new(5, 4, 9).unwrap())), b"here");
}

#[test]
fn a_handle_opens_in_another_process_alone() {
    let memory = filled(0, b"from another process");
    let handle = memory.ipc_handle().unwrap();
    let here = IpcMemory::open(&driver().device(0).unwrap(), &handle).map(drop);
    assert!(matches!(&here, Err(OpenError::Handle(e)) if e.name == "CUDA_ERROR_INVALID_CONTEXT"), "{here:?}");
    let counted = run("reads and writes", &[handle], None);
    assert_eq!(counted.held(), [0; 6]);
    assert_eq!(read(&memory.buffer(Extent::whole(4))), b"back");
}

#[test]
fn every_failing_way_closes_what_it_opened() {
    let (zero, one) = (filled(0, &[0; 8]), filled(1, &[0; 8]));
    let gone = {
        let freed = filled(0, &[0; 8]);
        freed.ipc_handle().unwrap()
    };
    let nonsense = IpcHandle([7; 64]);
    let handles = [zero.ipc_handle().unwrap(), one.ipc_handle().unwrap(), gone, nonsense];
    assert_eq!(run("refused", &handles, None).imports, 0);
    assert_eq!(run("range fails", &handles, Some("cuMemGetAddressRange_v2")).imports, 0);
    // Where the driver cannot say which device it is, it is taken as the client says.
    assert_eq!(run("attribute fails", &handles, Some("cuPointerGetAttribute")).imports, 0);
}

#[test]
fn blocks_of_the_pool_are_reused_and_what_does_not_fit_comes_from_the_heap() {
    assert_eq!(run("pool", &[], None).held(), [0; 6]);
    assert_eq!(run("pool fails", &[], Some("cuMemHostAlloc")).held(), [0; 6]);
}

#[test]
fn pages_are_locked_until_the_lock_is_dropped() {
    assert_eq!(run("lock", &[], None).held(), [0; 6]);
    assert_eq!(run("lock fails", &[], Some("cuMemHostRegister_v2")).held(), [0; 6]);
}

#[test]
fn a_driver_that_does_not_start_is_absent() {
    run("init fails", &[], Some("cuInit"));
}

#[test]
fn the_child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let handles: Vec<IpcHandle> =
        std::env::var(HANDLES).unwrap().split(',').filter(|t| !t.is_empty()).map(parse).collect();
    if case == "init fails" {
        let refused = Driver::open(Some(stand_in::library())).unwrap_err();
        assert!(matches!(&refused, Absent::Refused(e) if e.code == 100), "{refused}");
        return;
    }
    let driver = driver();
    match &*case {
        "reads and writes" => reads_and_writes(&driver, handles[0]),
        "refused" => refused(&driver, &handles),
        "range fails" => {
            let error = IpcMemory::open(&driver.device(0).unwrap(), &handles[0]).unwrap_err();
            assert!(matches!(&error, OpenError::Range(e) if e.call == "cuMemGetAddressRange_v2"), "{error}");
        }
        "attribute fails" => assert_eq!(IpcMemory::open(&driver.device(0).unwrap(), &handles[1]).unwrap().len(), 512),
        "pool" => pool(&driver),
        "pool fails" => {
            let pool = PinnedPool::new(&driver, 1 << 20);
            assert_eq!((pool.slot(10).unwrap().place(), pool.pinned().used), (Place::Host, 0));
        }
        "lock" => lock(&driver),
        "lock fails" => {
            let block = nerite_memory::Block::new(4096);
            // SAFETY: the block is alive until the end of this function.
            let error = unsafe { PageLock::new(&driver, block.as_ptr(), 4096) }.unwrap_err();
            assert!(error.to_string().contains("cuMemHostRegister_v2: out of memory"), "{error}");
        }
        _ => panic!("no case '{case}'"),
    }
}

fn parse(hex: &str) -> IpcHandle {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    IpcHandle(std::array::from_fn(byte))
}

fn reads_and_writes(driver: &Arc<Driver>, handle: IpcHandle) {
    let device = driver.device(0).unwrap();
    let first = Arc::new(IpcMemory::open(&device, &handle).unwrap());
    let again = IpcMemory::open(&device, &handle).unwrap();
    assert_eq!((first.at(), first.len()), (again.at(), 512));
    drop(again);
    let (at, keep) = (first.at(), || Arc::clone(&first) as Arc<dyn MemoryOwner>);
    // SAFETY: 20 bytes of 512, on device 0, kept by the memory itself.
    let buffer = unsafe { Buffer::from_raw(at, 20, Place::Device(0), nerite_memory::Access::Shared, keep()) };
    assert_eq!(read(&buffer), b"from another process");
    // SAFETY: as above.
    let mut slot = unsafe { Slot::from_raw(at, 20, Place::Device(0), nerite_memory::Access::Shared, keep()) };
    slot.write(0, b"back", Reason::CrossDevice).unwrap();
}

fn refused(driver: &Arc<Driver>, handles: &[IpcHandle]) {
    let device = driver.device(0).unwrap();
    let open = |at: usize| IpcMemory::open(&device, &handles[at]).map(drop);
    assert_eq!(open(0), Ok(()));
    assert_eq!(open(1), Err(OpenError::Elsewhere { requested: 0, actual: 1 }));
    for at in [2, 3] {
        assert!(matches!(open(at), Err(OpenError::Handle(e)) if e.name == "CUDA_ERROR_INVALID_VALUE"));
    }
}

fn pool(driver: &Arc<Driver>) {
    let counted = || counts(Path::new(&std::env::var_os("STAND_IN_COUNTS").unwrap()));
    let pool = PinnedPool::new(driver, 64 << 10);
    assert_eq!((pool.pinned().total, counted().pinned), (64 << 10, 0));
    let mut first = pool.slot(5000).unwrap();
    assert_eq!((first.place(), first.len(), pool.pinned().used, counted().pinned), (Place::Pinned, 5000, 8192, 1));
    let at = first.as_mut_ptr();
    drop(first);
    assert_eq!((pool.pinned().used, counted().pinned), (0, 1));
    assert_eq!(pool.slot(8000).unwrap().as_mut_ptr(), at);
    // An idle block of another size makes room; one in use does not.
    let large = pool.slot(64 << 10).unwrap();
    assert_eq!((large.place(), counted().pinned), (Place::Pinned, 1));
    assert_eq!(pool.slot(1).unwrap().place(), Place::Host);
    drop(large);
    assert_eq!(pool.slot(65 << 10).unwrap().place(), Place::Host);
    // A device may have more than the host.
    let huge = pool.slot(usize::MAX).unwrap_err();
    assert!(huge.to_string().contains("no memory to carry 18446744073709551615 bytes"), "{huge}");
    assert!(pool.slot(huge.max as usize + 1).is_err());
    assert_eq!(pool.slot(0).unwrap().len(), 0);
    let memory = filled(0, &[0; 16]);
    let mut through = pool.slot(16).unwrap();
    through.fill_from(0, &memory.buffer(Extent::whole(16)), Reason::CrossDevice).unwrap();
    memory.slot(Extent::whole(16)).fill_from(0, &through.filled().into_buffer(), Reason::CrossDevice).unwrap();
    assert_eq!((counted().pinned_to_host, counted().pinned_to_device), (16, 16));
}

fn lock(driver: &Arc<Driver>) {
    let counted = || counts(Path::new(&std::env::var_os("STAND_IN_COUNTS").unwrap()));
    let block = nerite_memory::Block::new(1 << 20);
    // SAFETY: the block outlives the lock.
    let locked = unsafe { PageLock::new(driver, block.as_ptr(), 1 << 20) }.unwrap();
    // SAFETY: as above; it must fail.
    let twice = unsafe { PageLock::new(driver, block.as_ptr(), 4096) };
    assert!(twice.unwrap_err().to_string().contains("already mapped"));
    // SAFETY: nothing is locked of a range that is larger than the host.
    let huge = unsafe { PageLock::new(driver, block.as_ptr(), usize::MAX >> 1) };
    assert!(huge.unwrap_err().to_string().contains("a quarter of the host's memory"));
    assert_eq!(counted().locked, 1);
    drop(locked);
    assert_eq!(counted().locked, 0);
    // SAFETY: the block outlives the lock.
    drop(unsafe { PageLock::new(driver, block.as_ptr(), 4096) }.unwrap());
}
