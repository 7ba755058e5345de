//! Does every call fail that fails in Triton, in the same order and with the same error texts?
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};

use nerite_shm::{ErrorKind, Options, OwnedRegion, Registry, ShmError};

const PAGE: u64 = 4096;
const OFF: &str = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";

fn unused_key() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/nerite-rows-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn disabled() -> Registry {
    Registry::new(Options { allow_client_shm: false, ..Options::default() })
}

/// The text is Triton's, followed by `more`.
#[track_caller]
fn check(refused: Result<(), ShmError>, kind: ErrorKind, triton: &str, more: &[&str]) {
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), kind, "{refused}");
    let text = refused.to_string();
    let rest = text.strip_prefix(triton).unwrap_or_else(|| panic!("{text:?} does not begin with {triton:?}"));
    assert_eq!(rest.is_empty(), more.is_empty(), "{text}");
    assert!(rest.is_empty() || rest.starts_with(": ") || rest.starts_with(" ("), "{text}");
    for part in more {
        assert!(rest.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Registers region 'a' in a new registry.
#[track_caller]
fn check_register(key: &str, offset: u64, byte_size: u64, kind: ErrorKind, triton: &str, more: &[&str]) {
    let registry = Registry::new(Options::default());
    check(registry.register_system("a", key, offset, byte_size), kind, triton, more);
    let counts = registry.counts();
    assert_eq!((counts.registered, counts.mapped, counts.mapped_bytes, counts.refused), (0, 0, 0, 1));
}

#[test]
fn the_flag_is_checked_first_except_for_status_and_use() {
    let registry = disabled();
    check(registry.register_system("", "", u64::MAX, 0), ErrorKind::Disabled, OFF, &[]);
    check(registry.unregister_system("a"), ErrorKind::Disabled, OFF, &[]);
    check(registry.unregister_all_system(), ErrorKind::Disabled, OFF, &[]);
    check(registry.unregister_cuda("a"), ErrorKind::Disabled, OFF, &[]);
    check(registry.unregister_all_cuda(), ErrorKind::Disabled, OFF, &[]);
    assert_eq!(registry.system_status(None), Ok(vec![]));
    assert_eq!(registry.cuda_status(None), Ok(vec![]));
    let unknown = "Unable to find system shared memory region: 'a'";
    check(registry.system_status(Some("a")).map(drop), ErrorKind::Missing, unknown, &["no region of that name"]);
    assert_eq!(registry.counts().refused, 1);
}

#[test]
fn a_region_needs_a_name_of_reasonable_length() {
    let registry = Registry::new(Options::default());
    let text = "'region name' is necessary to register system shared memory region";
    check(registry.register_system("", "/x", 0, 64), ErrorKind::Invalid, text, &["all regions"]);
    let text = "cannot register shared memory region '' - invalid shm key ''";
    check(registry.register_system("", "", 0, 64), ErrorKind::Invalid, text, &["one name"]);
    let text = "the region's name has 1025 bytes, at most 1024 are allowed";
    check(registry.register_system(&"n".repeat(1025), "/x", 0, 64), ErrorKind::Invalid, text, &[]);
}

#[test]
fn a_key_is_more_than_slashes() {
    for key in ["", "/", "///"] {
        let text = format!("cannot register shared memory region 'a' - invalid shm key '{key}'");
        check_register(key, u64::MAX, 0, ErrorKind::Invalid, &text, &["one name"]);
    }
}

#[test]
fn keys_of_python_backends_are_refused() {
    let reserved = "triton_python_backend_shm_region_";
    for key in [reserved.to_string(), format!("/{reserved}1"), format!("///{reserved}x/y")] {
        let text = format!(
            "cannot register shared memory region 'a' with key '{key}' as the key contains the reserved prefix '{reserved}'"
        );
        check_register(&key, u64::MAX, 0, ErrorKind::Invalid, &text, &[]);
    }
}

#[test]
fn the_key_is_checked_before_the_name_and_the_name_before_the_object() {
    let mine = OwnedRegion::create(&unused_key(), 64).unwrap();
    let registry = Registry::new(Options::default());
    registry.register_system("a", mine.key(), 0, 64).unwrap();
    let text = "cannot register shared memory region 'a' - invalid shm key '/'";
    check(registry.register_system("a", "/", 0, 64), ErrorKind::Invalid, text, &["one name"]);
    let text = "shared memory region 'a' already in manager";
    check(registry.register_system("a", &unused_key(), 1, 0), ErrorKind::Taken, text, &[mine.key(), "unregister"]);
}

#[test]
fn an_object_that_cannot_be_opened_is_refused_with_the_cause() {
    let long = format!("/{}", "k".repeat(256));
    let rows: [(&str, &str); 6] = [
        (&unused_key(), "no object of that name in this IPC namespace (/dev/shm is "),
        ("/a/b", "no '/' may follow"),
        ("x\0y", "NUL"),
        (&long, "the key has 256 bytes, at most 255"),
        ("/.", "a directory"),
        ("..", "a directory"),
    ];
    for (key, cause) in rows {
        let text = format!("Unable to open shared memory region: '{key}'");
        check_register(key, 0, 64, ErrorKind::Internal, &text, &[cause]);
    }
    let key = unused_key();
    let text = format!("Unable to open shared memory region: '{key}'");
    let cure = "if the client runs in another container, share /dev/shm or use a session socket";
    check_register(&key, 0, 64, ErrorKind::Internal, &text, &[cure]);
}

#[test]
fn any_number_of_leading_slashes_names_the_same_object() {
    let mine = OwnedRegion::create(&unused_key(), 64).unwrap();
    let bare = mine.key().trim_start_matches('/');
    let registry = Registry::new(Options::default());
    for (n, key) in [bare.to_string(), format!("/{bare}"), format!("////{bare}")].iter().enumerate() {
        registry.register_system(&n.to_string(), key, 0, 64).unwrap();
        assert_eq!(&*registry.system_status(Some(&n.to_string())).unwrap()[0].key, key);
    }
}

/// A path that is removed when this value is dropped, also if the test fails.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir(&self.0));
    }
}

#[test]
fn files_that_are_not_shared_memory_objects_are_not_mapped() {
    let open = |key: &str| format!("Unable to open shared memory region: '{key}'");
    let invalid = |key: &str| format!("Invalid shared memory region: '{key}'");
    let place = |key: &str| Removed(format!("/dev/shm{key}"));

    let key = unused_key();
    let path = place(&key);
    std::fs::create_dir(&path.0).unwrap();
    check_register(&key, 0, 64, ErrorKind::Internal, &open(&key), &["it is a directory"]);

    let (target, key) = (OwnedRegion::create(&unused_key(), 64).unwrap(), unused_key());
    let path = place(&key);
    std::os::unix::fs::symlink(format!("/dev/shm{}", target.key()), &path.0).unwrap();
    check_register(&key, 0, 64, ErrorKind::Internal, &open(&key), &["it is a symbolic link"]);

    let key = unused_key();
    let path = place(&key);
    let _socket = std::os::unix::net::UnixListener::bind(&path.0).unwrap();
    check_register(&key, 0, 64, ErrorKind::Internal, &open(&key), &["it is a socket"]);

    let key = unused_key();
    let path = place(&key);
    let c_path = std::ffi::CString::new(path.0.clone()).unwrap();
    // SAFETY: a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
    check_register(&key, 0, 64, ErrorKind::Internal, &invalid(&key), &["it is a FIFO"]);
}

#[test]
fn a_client_with_a_file_lease_does_not_block_the_server() {
    use std::os::fd::AsRawFd;
    /// Linux's number, the same on all its architectures.
    const F_SETSIG: i32 = 10;
    // Not an OwnedRegion: a writable mapping would prevent the file lease.
    let key = unused_key();
    let path = Removed(format!("/dev/shm{key}"));
    std::fs::write(&path.0, [0; 64]).unwrap();
    let file = std::fs::File::open(&path.0).unwrap();
    // SIGURG is ignored by default. The default signal SIGIO would end the process when the lease is broken.
    // SAFETY: fcntl on a descriptor that is open while `file` lives.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    // SAFETY: as above.
    let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if leased != 0 {
        return; // This system has no leases.
    }
    let text = format!("Unable to open shared memory region: '{key}'");
    check_register(&key, 0, 64, ErrorKind::Internal, &text, &["lease"]);
}

#[test]
fn a_region_is_within_its_object() {
    let mine = OwnedRegion::create(&unused_key(), 3 * PAGE as usize).unwrap();
    let text = "failed to register shared memory region 'a': invalid args";
    let size = 3 * PAGE;
    for (offset, byte_size) in [
        (0, size + 1),
        (PAGE, size - PAGE + 1),
        (size, 1),
        // 0 bytes one past the end: the bounds are checked before the mapping.
        (size + 1, 0),
        // Both sums overflow to a small number.
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (1, u64::MAX),
        (u64::MAX - PAGE + 1, PAGE),
        (u64::MAX - PAGE + 1, 2 * PAGE),
        (1 << 63, 64),
    ] {
        let more = [format!("has {size} bytes"), format!("asked for {byte_size} at offset {offset}")];
        check_register(mine.key(), offset, byte_size, ErrorKind::Invalid, text, &[&more[0], &more[1]]);
    }
}

#[test]
fn a_region_has_bytes_and_starts_at_a_page() {
    let mine = OwnedRegion::create(&unused_key(), 3 * PAGE as usize).unwrap();
    let text = "failed to register shared memory region 'a': unable to process address spaceInvalid argument";
    check_register(mine.key(), 0, 0, ErrorKind::Invalid, text, &["byte_size is 0"]);
    check_register(mine.key(), 3 * PAGE, 0, ErrorKind::Invalid, text, &["byte_size is 0"]);
    check_register(mine.key(), 100, 64, ErrorKind::Invalid, text, &["offset 100", "the page size, 4096"]);
    let registry = Registry::new(Options::default());
    registry.register_system("a", mine.key(), 2 * PAGE, PAGE).unwrap();
    registry.register_system("b", mine.key(), PAGE, 1).unwrap();
}

#[test]
fn without_a_gpu_cuda_is_refused_before_its_handle_is_checked() {
    let registry = Registry::new(Options::default());
    let text = "failed to register CUDA shared memory region: 'a', GPUs not supported";
    check(registry.register_cuda("a", &[0; 64], 0, 64), ErrorKind::Invalid, text, &["no GPU"]);
    check(registry.register_cuda("a", &[], 0, 64), ErrorKind::Invalid, text, &["no GPU"]);
    let closed = Registry::new(Options { allow_client_shm: false, ..Options::default() });
    check(closed.register_cuda("a", &[0; 64], 0, 64), ErrorKind::Invalid, text, &["no GPU"]);
    assert_eq!(registry.cuda_status(None), Ok(vec![]));
    let text = "Unable to find cuda shared memory region: 'a'";
    check(registry.cuda_status(Some("a")).map(drop), ErrorKind::Missing, text, &["no region of that name"]);
    assert_eq!(registry.unregister_cuda("a"), Ok(()));
    assert_eq!(registry.unregister_all_cuda(), Ok(()));
    let text = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
    check(nerite_shm::CudaHandle::new(&[0; 63]).map(drop), ErrorKind::Invalid, text, &["63 bytes"]);
}

#[test]
fn an_unknown_region_is_not_found_and_unregistering_it_succeeds() {
    let registry = Registry::new(Options::default());
    let text = "Unable to find shared memory region: 'a'";
    check(registry.locate("a", 0, 64).map(drop), ErrorKind::Missing, text, &["register it"]);
    assert_eq!(registry.unregister_system("a"), Ok(()));
    assert_eq!(registry.unregister_all_system(), Ok(()));
}
