//! Is a large mapping replaced at once, with nothing to unmap on the thread of the access?
#![allow(clippy::unwrap_used)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Barrier, Mutex};
use std::thread;

use nerite_guard::library::{nerite_guard_lost_at, nerite_guard_map, nerite_guard_unmap};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const LARGE: usize = 256 * MIB;
/// With so many mappings moved, small ones are replaced where they are.
const MOVED_IF_SMALL_MAX: usize = 2048;

/// Held by each test: another thread that maps memory may take the address to which pages were to be moved.
static ALONE: Mutex<()> = Mutex::new(());

fn object(name: &str, byte_size: usize) -> File {
    let name = CString::new(name).unwrap();
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: memfd_create has just returned this descriptor.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(byte_size as u64).unwrap();
    file
}

/// Where the object is mapped: start and bytes of each mapping.
fn mappings(name: &str) -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_object = maps.lines().filter(|line| line.contains(&format!("/memfd:{name} ")));
    let range = |line: &str| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        (start, end - start)
    };
    of_object.map(range).collect()
}

fn map(file: &File, len: usize) -> *mut u8 {
    let start = nerite_guard_map(file.as_raw_fd(), 0, len);
    assert!(!start.is_null(), "{}", io::Error::last_os_error());
    start.cast()
}

fn unmap(start: *mut u8, len: usize) {
    // SAFETY: no test touches a range that it has given back.
    assert_eq!(unsafe { nerite_guard_unmap(start.cast(), len) }, 0);
}

fn read(start: *const u8, at: usize) -> u8 {
    // SAFETY: within a mapping of the test's.
    unsafe { start.wrapping_add(at).read_volatile() }
}

fn write(start: *mut u8, at: usize, byte: u8) {
    // SAFETY: as above.
    unsafe { start.wrapping_add(at).write_volatile(byte) };
}

/// A mapping of `len` bytes whose first pages were written to, and whose last page is gone and is read. Where the object is mapped afterwards.
fn lose(name: &str, len: usize) -> (*mut u8, Vec<(usize, usize)>) {
    let file = object(name, len);
    let start = map(&file, len);
    for at in (0..8 * MIB).step_by(PAGE) {
        write(start, at, 7);
    }
    assert_eq!((read(start, 4 * MIB), mappings(name)), (7, vec![(start.addr(), len)]));
    file.set_len((len - PAGE) as u64).unwrap();
    assert_eq!((read(start, len - 1), nerite_guard_lost_at(start.cast())), (0, len as isize - 1));
    // All of it was replaced, and is memory of this process from now on.
    assert_eq!([0, PAGE, 4 * MIB, len / 2].map(|at| read(start, at)), [0; 4]);
    write(start, len / 2, 1);
    assert_eq!(read(start, len / 2), 1);
    (start, mappings(name))
}

#[test]
fn the_pages_of_a_large_mapping_are_moved_and_unmapped_with_it() {
    let _alone = ALONE.lock().unwrap();
    let (start, elsewhere) = lose("nerite-guard-large", LARGE);
    let [(at, len)] = elsewhere[..] else { panic!("moved as a whole: {elsewhere:x?}") };
    assert_eq!((len, at % (1 << 30)), (LARGE, start.addr() % (1 << 30)), "whole page tables could be moved");
    unmap(start, LARGE);
    assert_eq!(mappings("nerite-guard-large"), []);
}

#[test]
fn a_small_mapping_is_moved_as_well_unless_many_are() {
    let _alone = ALONE.lock().unwrap();
    let small = 16 * MIB;
    let (start, elsewhere) = lose("nerite-guard-small", small);
    let [(_, len)] = elsewhere[..] else { panic!("moved as a whole: {elsewhere:x?}") };
    assert_eq!(len, small);
    let name = "nerite-guard-many";
    let file = object(name, PAGE);
    let many: Vec<_> = (0..MOVED_IF_SMALL_MAX).map(|_| map(&file, PAGE)).collect();
    file.set_len(0).unwrap();
    for one in &many {
        assert_eq!(read(*one, 0), 0);
    }
    // One of the places was taken before.
    assert_eq!(mappings(name).iter().map(|(_, len)| len).sum::<usize>(), (MOVED_IF_SMALL_MAX - 1) * PAGE);
    let (large, elsewhere) = lose("nerite-guard-large-too", LARGE);
    assert_eq!(elsewhere.len(), 1);
    for one in many {
        unmap(one, PAGE);
    }
    unmap(start, small);
    unmap(large, LARGE);
    assert_eq!(mappings(name), []);
}

#[test]
fn threads_that_fault_together_move_it_once() {
    const THREADS: usize = 8;
    let _alone = ALONE.lock().unwrap();
    let name = "nerite-guard-threads";
    for _ in 0..20 {
        let file = object(name, LARGE);
        let start = map(&file, LARGE);
        write(start, 0, 7);
        file.set_len(0).unwrap();
        let (go, at) = (Barrier::new(THREADS), start.expose_provenance());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let go = &go;
                scope.spawn(move || {
                    let start = std::ptr::with_exposed_provenance_mut(at);
                    go.wait();
                    let own = thread * (LARGE / THREADS);
                    write(start, own, 1);
                    assert!(read(start, own) <= 1 && read(start, own + PAGE) == 0);
                });
            }
        });
        assert_eq!(mappings(name).len(), 1);
        // What is written after the last fault stays.
        write(start, 0, 9);
        assert_eq!(read(start, 0), 9);
        unmap(start, LARGE);
        assert_eq!(mappings(name), []);
    }
}
