//! Does a client that removes memory from its region harm only itself?
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nerite_memory::{Buffer, Extent, Reason, Slot};
use nerite_shm::{ErrorKind, Options, OwnedRegion, Registry};

const PAGE: usize = 4096;

fn unused_key() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/nerite-guard-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn resize(key: &str, byte_size: usize) {
    let file = File::options().write(true).open(format!("/dev/shm{key}")).unwrap();
    file.set_len(byte_size as u64).unwrap();
}

fn read(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0xee; buffer.len()];
    buffer.copy_to(&mut bytes, Reason::Model);
    bytes
}

/// An object filled with `fill`, registered as `name`.
fn register(registry: &Registry, name: &str, byte_size: usize, fill: u8) -> OwnedRegion {
    let mine = OwnedRegion::create(&unused_key(), byte_size).unwrap();
    let all = Extent::whole(byte_size);
    mine.slot(all).write(0, &vec![fill; byte_size], Reason::Model).unwrap();
    registry.register_system(name, mine.key(), 0, byte_size as u64).unwrap();
    mine
}

fn buffer(registry: &Registry, name: &str, byte_size: usize) -> Buffer {
    registry.locate(name, 0, byte_size as u64).unwrap().into_buffer()
}

#[test]
fn bytes_are_the_clients_or_the_loss_is_reported() {
    const THREADS: usize = 4;
    const BYTES: usize = 64 * PAGE;
    let registry = Registry::new(Options::default());
    let (mut whole, mut lost) = (0, 0);
    for round in 0..200 {
        let mine = register(&registry, "a", BYTES, 0x5a);
        let input = buffer(&registry, "a", BYTES);
        let start = Barrier::new(THREADS + 1);
        let answers: Vec<_> = thread::scope(|scope| {
            let readers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        let bytes = read(&input);
                        (bytes, input.fault())
                    })
                })
                .collect();
            start.wait();
            (0..round * 40).for_each(|_| std::hint::spin_loop());
            resize(mine.key(), 0);
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        for (bytes, fault) in answers {
            if fault.is_none() {
                assert!(bytes.iter().all(|&byte| byte == 0x5a), "a result from lost memory without an error");
                whole += 1;
            } else {
                assert!(bytes.iter().all(|&byte| byte == 0x5a || byte == 0), "bytes of a third party");
                lost += 1;
            }
        }
        drop(input);
        registry.unregister_system("a").unwrap();
    }
    assert!(lost > 0, "{whole} answers were whole and none was lost");
    assert_eq!(registry.counts().mapped, 0);
}

#[test]
fn many_threads_may_write_into_lost_memory() {
    const BYTES: usize = 64 * PAGE;
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", BYTES, 1);
    let slots: Vec<Slot> =
        (0..64).map(|n| registry.locate("a", n * PAGE as u64, PAGE as u64).unwrap().into_slot()).collect();
    resize(mine.key(), 0);
    let start = Barrier::new(slots.len());
    thread::scope(|scope| {
        for mut slot in slots {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                slot.write(0, &[7; PAGE], Reason::Model).unwrap();
                assert!(slot.fault().is_some_and(|fault| fault.contains("has 0 now (touched at offset ")));
            });
        }
    });
    resize(mine.key(), BYTES);
    let seen = OwnedRegion::open(mine.key()).unwrap();
    assert!(read(&seen.buffer(Extent::whole(BYTES))).iter().all(|&byte| byte == 0), "the object was not written");
}

#[test]
fn the_message_names_both_sizes_and_the_cure() {
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", 3 * PAGE, 1);
    let input = buffer(&registry, "a", 3 * PAGE);
    resize(mine.key(), PAGE + 24);
    read(&input);
    let text = format!(
        "shared memory region 'a' can no longer be used: its object '{}' was 12288 bytes when registered and has 4120 now \
         (touched at offset 8192); register it again once the object has its size back",
        mine.key()
    );
    assert_eq!(input.fault().as_deref(), Some(&*text));
    let refused = registry.locate("a", 0, 4).unwrap_err();
    assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::Invalid, text));
    // The loss is reported even if the tensor would not fit, because it is the more useful error.
    assert!(registry.locate("a", u64::MAX, 4).unwrap_err().to_string().contains("can no longer be used"));
}

#[test]
fn the_message_names_the_current_state_of_the_key() {
    let registry = Registry::new(Options::default());
    let mut mine = register(&registry, "a", 2 * PAGE, 1);
    let key = mine.key().to_string();
    let input = buffer(&registry, "a", 2 * PAGE);
    resize(&key, 0);
    read(&input);
    let check = |expect: &str| {
        let text = input.fault().unwrap();
        assert!(text.contains(expect), "{text}");
        assert!(text.contains(&format!("'{key}' was 8192 bytes when registered")), "{text}");
    };
    check("has 0 now (touched at offset 0); register it again once the object has its size back");
    resize(&key, 3 * PAGE);
    check("has 12288 now, but no memory when it was touched at offset 0");
    mine.unlink().unwrap();
    check("its key is gone now; make the object anew and register it again");
    let _other = OwnedRegion::create(&key, PAGE).unwrap();
    check("its key leads to another object now; register it again to use that one");
}

#[test]
fn only_the_region_that_shrank_is_lost() {
    let registry = Registry::new(Options::default());
    let objects: Vec<_> = (0..8u8).map(|n| register(&registry, &n.to_string(), 4 * PAGE, n + 1)).collect();
    let inputs: Vec<_> = (0..8).map(|n| buffer(&registry, &n.to_string(), 4 * PAGE)).collect();
    resize(objects[3].key(), PAGE);
    resize(objects[4].key(), PAGE);
    for (n, input) in inputs.iter().enumerate() {
        let bytes = read(input);
        assert_eq!(input.fault().is_some(), n == 3 || n == 4, "{n}");
        let mine = |byte: &u8| *byte == n as u8 + 1 || (*byte == 0 && (n == 3 || n == 4));
        assert!(bytes.iter().all(mine), "{n}");
    }
}

#[test]
fn an_object_that_shrank_and_grew_before_an_access_reads_zeros() {
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", 2 * PAGE, 1);
    let input = buffer(&registry, "a", 2 * PAGE);
    resize(mine.key(), 0);
    resize(mine.key(), 2 * PAGE);
    assert_eq!((read(&input), input.fault()), (vec![0; 2 * PAGE], None));
    mine.slot(Extent::whole(4)).write(0, b"anew", Reason::Model).unwrap();
    assert_eq!(read(&input)[..4], *b"anew");
    resize(mine.key(), 8 * PAGE);
    assert_eq!((&read(&input)[..4], input.fault()), (&b"anew"[..], None));
}

#[test]
fn a_hole_reads_as_zeros_and_can_be_written() {
    use std::os::fd::AsRawFd;
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", 2 * PAGE, 1);
    let input = buffer(&registry, "a", 2 * PAGE);
    let file = File::options().write(true).open(format!("/dev/shm{}", mine.key())).unwrap();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open while `file` lives.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, PAGE as i64, PAGE as i64) }, 0);
    assert_eq!((&read(&input)[PAGE - 1..=PAGE], input.fault()), (&[1, 0][..], None));
    let mut output = registry.locate("a", PAGE as u64, 4).unwrap().into_slot();
    output.write(0, b"made", Reason::Model).unwrap();
    assert_eq!((read(&mine.buffer(Extent::new(PAGE, 4, 2 * PAGE).unwrap())), output.fault()), (b"made".to_vec(), None));
}

/// For a bad address in an argument the kernel sends no signal: the system call fails. So no region's memory is passed to a system call directly. A
/// socket gets a copy, and the guard sees the access of the copy.
#[test]
fn a_socket_gets_a_copy_and_the_loss_is_reported_afterwards() {
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", PAGE, 1);
    let input = buffer(&registry, "a", PAGE);
    resize(mine.key(), 0);
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the region is mapped while `input` lives.
    let sent = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), input.as_ptr().cast(), PAGE) };
    assert_eq!((sent, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
    assert_eq!(input.fault(), None, "no access, no fault");
    assert_eq!(input.clone().into_bytes()[..], [0; PAGE]);
    assert!(input.fault().is_some());
}

#[test]
fn bytes_written_into_a_lost_region_are_freed() {
    const BYTES: usize = 4096 * PAGE;
    let registry = Registry::new(Options::default());
    let mine = register(&registry, "a", BYTES, 1);
    let mut output = registry.locate("a", 0, BYTES as u64).unwrap().into_slot();
    let at = output.as_mut_ptr();
    resize(mine.key(), 0);
    output.write(0, &vec![7; BYTES], Reason::Model).unwrap();
    assert!(output.fault().is_some());
    let mut resident = vec![0u8; BYTES / PAGE];
    // SAFETY: the range is mapped while `output` lives, and `resident` has one byte for each of its pages.
    assert_eq!(unsafe { libc::mincore(at.cast(), BYTES, resident.as_mut_ptr()) }, 0);
    assert_eq!(resident.iter().filter(|&&page| page & 1 == 1).count(), 0);
}

/// Bytes of pages that this process has mapped, in the mapping that contains the buffer.
fn resident(buffer: &Buffer) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let contains = |line: &str| {
        let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let ends = ends.map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
        matches!(ends, Some([Ok(start), Ok(end)]) if (start..end).contains(&buffer.as_ptr().addr()))
    };
    let mut of_mapping = smaps.lines().skip_while(|line| !contains(line));
    let resident = of_mapping.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// To unmap its pages would take 25 ms for each GiB of them, on a thread that may serve connections.
#[test]
#[ignore = "alone: reads Rss of one mapping in /proc/self/smaps"]
fn a_loss_in_another_process_leaves_the_pages_of_this_one_mapped() {
    let registry = Registry::new(Options::default());
    let _mine = register(&registry, "a", 64 * PAGE, 1);
    let input = buffer(&registry, "a", 64 * PAGE);
    read(&input);
    assert_eq!(resident(&input), 64 * PAGE);
    input.share().unwrap().share.lose(0);
    assert!(input.fault().is_some());
    assert_eq!(resident(&input), 64 * PAGE);
}
