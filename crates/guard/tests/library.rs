//! Do the functions of the library keep what they promise to a C caller?
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use nerite_guard::library::{
    nerite_guard_faults, nerite_guard_install, nerite_guard_lost_at, nerite_guard_map, nerite_guard_unmap,
};

const PAGE: usize = 4096;

fn object(byte_size: usize) -> File {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"nerite-guard".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: memfd_create has just returned this descriptor.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(byte_size as u64).unwrap();
    file
}

#[track_caller]
fn map(file: &File, len: usize) -> *mut u8 {
    let start = nerite_guard_map(file.as_raw_fd(), 0, len);
    assert!(!start.is_null(), "{}", io::Error::last_os_error());
    start.cast()
}

#[track_caller]
fn unmap(start: *mut u8, len: usize, expect: i32) {
    // SAFETY: no test touches a range that it has given back.
    assert_eq!(unsafe { nerite_guard_unmap(start.cast(), len) }, expect);
}

fn read(start: *const u8, at: usize) -> u8 {
    // SAFETY: within a mapping of the test's.
    unsafe { start.wrapping_add(at).read_volatile() }
}

fn write(start: *mut u8, at: usize, byte: u8) {
    // SAFETY: as above.
    unsafe { start.wrapping_add(at).write_volatile(byte) };
}

#[test]
fn what_is_mapped_is_the_object_until_it_shrinks() {
    let file = object(4 * PAGE);
    let start = map(&file, 4 * PAGE);
    write(start, 3 * PAGE, 7);
    let other = map(&file, PAGE);
    write(start, 5, 9);
    assert_eq!((read(other, 5), nerite_guard_lost_at(start.cast())), (9, -1));

    file.set_len(PAGE as u64).unwrap();
    assert_eq!((read(start, 3 * PAGE), nerite_guard_lost_at(start.cast())), (0, 3 * PAGE as isize));
    // Memory of this process from now on; the first loss stays.
    write(start, 2 * PAGE, 1);
    write(start, 5, 1);
    assert_eq!((read(start, 2 * PAGE), nerite_guard_lost_at(start.cast())), (1, 3 * PAGE as isize));
    assert_eq!((read(other, 5), nerite_guard_lost_at(other.cast())), (9, -1));
    unmap(start, 4 * PAGE, 0);
    unmap(other, PAGE, 0);
}

#[test]
fn a_loss_ends_with_its_mapping() {
    let file = object(0);
    let lost = map(&file, PAGE);
    write(lost, 10, 1);
    assert_eq!(nerite_guard_lost_at(lost.cast()), 10);
    // SAFETY: the address of a counter that stays.
    assert!(unsafe { nerite_guard_faults().read_volatile() } > 0);
    unmap(lost, PAGE, 0);
    assert_eq!(nerite_guard_lost_at(lost.cast()), -1);
}

#[test]
fn what_does_not_begin_at_the_objects_first_byte_counts_from_its_own() {
    let file = object(3 * PAGE);
    let start = nerite_guard_map(file.as_raw_fd(), PAGE, PAGE + 100).cast::<u8>();
    file.set_len(PAGE as u64).unwrap();
    assert_eq!((read(start, PAGE + 99), nerite_guard_lost_at(start.cast())), (0, PAGE as isize + 99));
    // A start alone has an answer.
    assert_eq!(nerite_guard_lost_at(start.wrapping_add(1).cast()), -1);
    unmap(start, PAGE + 100, 0);
}

#[track_caller]
fn check_refused(fd: i32, offset: usize, len: usize, expect: i32) {
    assert!(nerite_guard_map(fd, offset, len).is_null());
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(expect));
}

#[test]
fn what_cannot_be_mapped_is_refused_with_a_reason() {
    let file = object(PAGE);
    let fd = file.as_raw_fd();
    check_refused(-1, 0, PAGE, libc::EBADF);
    check_refused(fd, 0, 0, libc::EINVAL);
    check_refused(fd, 1, PAGE, libc::EINVAL);
    check_refused(fd, usize::MAX, PAGE, libc::EOVERFLOW);
    check_refused(fd, 0, usize::MAX, libc::EINVAL);
    check_refused(fd, 0, 1 << 62, libc::ENOMEM);
    let readable = File::open("/dev/null").unwrap();
    check_refused(readable.as_raw_fd(), 0, PAGE, libc::EACCES);
}

#[test]
fn only_what_was_given_is_taken_back_and_only_once() {
    let file = object(2 * PAGE);
    let start = map(&file, PAGE + 1);
    unmap(ptr::null_mut(), PAGE, libc::EINVAL);
    unmap(start, 0, libc::EINVAL);
    unmap(start, PAGE, libc::EINVAL);
    unmap(start, usize::MAX, libc::EINVAL);
    unmap(start.wrapping_add(PAGE), PAGE, libc::EINVAL);
    unmap(start.wrapping_add(1), PAGE + 1, libc::EINVAL);
    write(start, PAGE, 1);
    unmap(start, PAGE + 1, 0);
    unmap(start, PAGE + 1, libc::EINVAL);
    assert_eq!(nerite_guard_lost_at(ptr::null::<c_void>()), -1);
}

/// As many as Linux lets a process map leave room for; the table is not what ends it.
#[test]
fn ten_thousand_mappings_fit() {
    let file = object(PAGE);
    let all: Vec<*mut u8> = (0..10_000).map(|_| map(&file, PAGE)).collect();
    for start in &all {
        unmap(*start, PAGE, 0);
    }
    assert_eq!(nerite_guard_install(), 0);
}
