//! Is a hostile archive refused, and is a valid one unpacked completely?
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::*;

/// One entry: its kind as tar's letter, its name, and its bytes or its target.
type Part<'a> = (char, &'a str, &'a str);

/// Packs entries with any names, also those that `tar` itself would never write.
fn packed(parts: &[Part<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, text) in parts {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(EntryType::new(*kind as u8));
        header.set_mode(0o4755);
        header.set_mtime(1_000_000_000);
        let is_link = matches!(kind, '1' | '2');
        if is_link {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        let bytes = if is_link { &[] } else { text.as_bytes() };
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        builder.append(&header, bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A directory to unpack into, beside a file that must not be touched.
fn outer_and_root() -> (tempfile::TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    fs::write(outer.path().join("secret"), "mine").unwrap();
    let root = outer.path().join("root");
    fs::create_dir(&root).unwrap();
    (outer, root)
}

#[track_caller]
fn check(parts: &[Part<'_>], expect: Result<&[(&str, &str)], &str>) {
    let (outer, root) = outer_and_root();
    let done = unpack(&packed(parts)[..], &root, Bounds::default()).map_err(|refusal| refusal.to_string());
    let done = done.map_err(|text| text.replace(&outer.path().canonicalize().unwrap().display().to_string(), "~"));
    assert_eq!(done, expect.map(|_| ()).map_err(str::to_owned));
    for (name, text) in expect.unwrap_or_default() {
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), *text, "{name}");
    }
    assert_eq!(fs::read_to_string(outer.path().join("secret")).unwrap(), "mine");
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 2, "nothing came beside it");
}

#[test]
fn files_directories_and_links_within_arrive() {
    check(
        &[('5', "./", ""), ('5', "./bin/", ""), ('0', "./bin/x", "x"), ('2', "lib64", "lib"), ('0', "lib/a/b", "deep")],
        Ok(&[("bin/x", "x"), ("lib64/a/b", "deep")]),
    );
    check(&[('0', "a", "one"), ('1', "b", "a"), ('1', "c/d", "./b")], Ok(&[("b", "one"), ("c/d", "one")]));
    check(
        &[('2', "bin/python3", "/usr/bin/python3"), ('2', "bin/python", "python3"), ('0', "x", "x")],
        Ok(&[("x", "x")]),
    );
    check(&[('g', "pax_global_header", "20 comment=whatever\n"), ('0', "x", "x")], Ok(&[("x", "x")]));
    check(&[], Ok(&[]));
}

#[test]
fn the_last_entry_of_a_name_counts_and_links_are_not_followed() {
    check(&[('0', "a", "one"), ('0', "a", "two")], Ok(&[("a", "two")]));
    check(&[('0', "a", "one"), ('1', "b", "a"), ('0', "b", "two")], Ok(&[("a", "one"), ("b", "two")]));
    check(&[('0', "t", "one"), ('2', "a", "t"), ('0', "a", "two")], Ok(&[("t", "one"), ("a", "two")]));
    check(&[('2', "bin/python3", "../../secret"), ('0', "bin/python3", "two")], Ok(&[("bin/python3", "two")]));
    check(&[('0', "a", "one"), ('1', "a", "a")], Ok(&[("a", "one")]));
    check(&[('5', "a", ""), ('0', "a", "x")], Err("its entry 'a' takes the place of a directory"));
    check(&[('0', "a", "x"), ('5', "a", "")], Err("an entry of it lies behind 'a', which is no directory"));
    check(&[('0', "./", "x")], Err("its entry './' takes the place of a directory"));
}

#[test]
fn names_that_would_lie_outside_are_refused() {
    let outside = |name: &str| format!("its entry '{name}' is named so that it would lie outside");
    for name in ["../secret", "/tmp/nerite-outside", "a/../../secret", "a/.."] {
        check(&[('0', name, "x")], Err(&outside(name)));
        check(&[('5', name, "")], Err(&outside(name)));
    }
    check(&[('0', "../\x1b[2J", "x")], Err(&outside("../\\u{1b}[2J")));
}

#[test]
fn links_that_lead_out_are_refused_and_no_file_is_written_through_links() {
    check(&[('2', "a", "../secret")], Err("its link 'a' leads out, to '../secret'"));
    check(&[('2', "a", "/etc/passwd")], Err("its link 'a' leads out, to '/etc/passwd'"));
    check(&[('2', "bin/a", "/etc/passwd")], Err("its link 'bin/a' leads out, to '/etc/passwd'"));
    check(&[('2', "a", ".."), ('0', "a/secret", "x")], Err("its link 'a' leads out, to '..'"));
    check(
        &[('5', "d", ""), ('2', "a", "d"), ('0', "a/x", "x")],
        Err("an entry of it lies behind 'a', which is no directory"),
    );
    check(
        &[('2', "bin/python", "../.."), ('0', "bin/python/secret", "x")],
        Err("an entry of it lies behind 'bin/python', which is no directory"),
    );
    // Each one stays inside by its text, but both together lead out.
    check(&[('2', "d/up", "."), ('2', "out", "d/up/../../secret")], Err("its link 'out' leads out, to '~/secret'"));
    check(
        &[('2', "bin/python", "../../secret"), ('2', "a", "bin/python")],
        Err("its link 'a' leads out, to '~/secret'"),
    );
}

#[test]
fn a_second_name_is_only_given_to_files_that_came_before() {
    check(&[('1', "a", "../secret")], Err("its link 'a' leads out, to '../secret'"));
    check(&[('1', "a", "/etc/passwd")], Err("its link 'a' leads out, to '/etc/passwd'"));
    check(&[('1', "a", "b")], Err("its link 'a' leads to 'b', which is no file that came before it"));
    check(&[('5', "b", ""), ('1', "a", "b")], Err("its link 'a' leads to 'b', which is no file that came before it"));
    check(
        &[('2', "bin/python", "../../secret"), ('1', "a", "bin/python")],
        Err("its link 'a' leads to 'bin/python', which is no file that came before it"),
    );
    check(
        &[('2', "bin/python", "../.."), ('1', "a", "bin/python/secret")],
        Err("its link 'a' leads to 'bin/python/secret', which is no file that came before it"),
    );
}

#[test]
fn devices_and_their_like_are_refused() {
    for kind in ['3', '4', '6', 'V', 'Z'] {
        let text = format!("its entry 'x' is of kind '{kind}'; only files, directories and links are unpacked");
        check(&[(kind, "x", "")], Err(&text));
    }
}

#[track_caller]
fn check_bounds(parts: &[Part<'_>], bounds: Bounds, expect: Result<(), &str>) {
    let (_outer, root) = outer_and_root();
    let done = unpack(&packed(parts)[..], &root, bounds).map_err(|refusal| refusal.to_string());
    assert_eq!(done, expect.map_err(str::to_owned));
}

#[test]
fn no_more_is_unpacked_than_may_be() {
    let files = [('0', "a", "12345"), ('0', "b", "67890")];
    let bounds = |entries_max, bytes_max| Bounds { entries_max, bytes_max };
    check_bounds(&files, bounds(2, 10), Ok(()));
    check_bounds(&files, bounds(1, 10), Err("it has more than 1 entries"));
    check_bounds(&files, bounds(2, 9), Err("it holds more than 9 bytes"));
}

#[test]
fn a_file_said_to_be_huge_is_refused_before_it_is_written() {
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    header.set_mode(0o644);
    header.set_size(u64::MAX >> 1);
    header.set_cksum();
    let (_outer, root) = outer_and_root();
    let refusal = unpack(&header.as_bytes()[..], &root, Bounds::default()).unwrap_err();
    assert!(matches!(refusal, Refusal::Bytes(ARCHIVE_BYTES_MAX)), "{refusal}");
    assert!(!root.join("huge").exists());
}

#[test]
fn a_name_without_end_is_not_kept_in_memory() {
    let mut header = Header::new_gnu();
    header.set_path("././@LongLink").unwrap();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let archive = Read::chain(&header.as_bytes()[..], io::repeat(b'x'));
    let (_outer, root) = outer_and_root();
    let refusal = unpack_tar(archive, &root, Bounds::default()).unwrap_err().to_string();
    assert!(refusal.ends_with("(more than 1048576 bytes are between two entries)"), "{refusal}");
}

#[track_caller]
fn check_long(name: &str, expect: &str) {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(0);
    builder.append_data(&mut header, name, io::empty()).unwrap();
    let (_outer, root) = outer_and_root();
    let refusal = unpack(&builder.into_inner().unwrap()[..], &root, Bounds::default()).unwrap_err().to_string();
    assert!(refusal.ends_with(expect), "{refusal}");
}

#[test]
fn a_name_is_as_long_and_as_deep_as_may_be() {
    let long = "x/".repeat(4096);
    check_long(&long, "…' has a name of 8191 bytes and 4096 parts, at most 4096 and 128 may be");
    check_long(&long[..2 * 129], "' has a name of 257 bytes and 129 parts, at most 4096 and 128 may be");
}

#[track_caller]
fn check_bytes(bytes: &[u8], expect: Result<(), &str>) {
    let (_outer, root) = outer_and_root();
    let done = unpack(bytes, &root, Bounds::default()).map_err(|refusal| refusal.to_string());
    assert_eq!(done, expect.map_err(str::to_owned));
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn gzip_is_detected_by_the_first_bytes() {
    let tar = packed(&[('0', "a", &"x".repeat(1000))]);
    check_bytes(&tar, Ok(()));
    check_bytes(&gzipped(&tar), Ok(()));
    // The format of programs that compress on several cores.
    check_bytes(&[gzipped(&tar[..600]), gzipped(&tar[600..])].concat(), Ok(()));
    check_bytes(b"", Ok(()));
    check_bytes(&[0x28, 0xb5, 0x2f, 0xfd], Err("it is packed with zstd, and only tar files are read, gzipped or not"));
    check_bytes(b"BZh91AY", Err("it is packed with bzip2, and only tar files are read, gzipped or not"));
    check_bytes(b"PK\x03\x04", Err("it is packed with zip, and only tar files are read, gzipped or not"));
    let (_outer, root) = outer_and_root();
    let refusal = unpack(&[b'x'; 2048][..], &root, Bounds::default()).unwrap_err().to_string();
    let begins =
        "its first entry cannot be read, as if it were no tar file, gzipped or not (numeric field was not a number";
    assert!(refusal.starts_with(begins) && refusal.len() < 400, "{refusal}");
}

#[test]
fn an_archive_cut_short_is_no_archive() {
    let tar = packed(&[('0', "a", &"x".repeat(1000))]);
    check_bytes(&tar[..1000], Err("its entry 'a' ends after 488 bytes of 1000"));
    let gzipped = gzipped(&tar);
    let (_outer, root) = outer_and_root();
    assert!(unpack(&gzipped[..gzipped.len() / 2], &root, Bounds::default()).is_err());
}

#[test]
fn files_keep_their_time_and_their_mode_without_set_uid() {
    let (_outer, root) = outer_and_root();
    unpack(&packed(&[('0', "a", "x"), ('5', "d", "")])[..], &root, Bounds::default()).unwrap();
    let found = root.join("a").metadata().unwrap();
    assert_eq!(found.permissions().mode() & 0o7700, 0o700, "no set-uid bit");
    assert_eq!(found.modified().unwrap(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
}

/// Pseudo-random numbers, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn path(&mut self) -> String {
        let parts: Vec<&str> = (0..=self.below(4)).map(|_| self.one(&["a", "b", "bin", "python", "..", "."])).collect();
        let begins = if self.below(8) == 0 { "/" } else { "" };
        format!("{begins}{}", parts.join("/"))
    }
}

/// Files and directories below a folder, without following links.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(below(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

#[test]
fn no_archive_gets_out_of_its_directory() {
    let (mut chance, mut arrived) = (Chance(1), 0);
    for _ in 0..500 {
        let parts: Vec<(char, String, String)> = (0..=chance.below(6))
            .map(|_| (chance.one(&['0', '1', '2', '2', '5']), chance.path(), chance.path()))
            .collect();
        let borrowed: Vec<Part<'_>> = parts.iter().map(|(kind, name, text)| (*kind, &name[..], &text[..])).collect();
        let (outer, root) = outer_and_root();
        let done = unpack(&packed(&borrowed)[..], &root, Bounds::default());
        assert_eq!(fs::read_to_string(outer.path().join("secret")).unwrap(), "mine", "{parts:?}");
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 2, "{parts:?}");
        if done.is_err() {
            continue;
        }
        arrived += 1;
        let top = root.canonicalize().unwrap();
        for path in below(&root) {
            let name = path.strip_prefix(&root).unwrap();
            let leads_out = path.canonicalize().is_ok_and(|end| !end.starts_with(&top));
            assert!(!leads_out || names::is_interpreter(name), "{name:?} of {parts:?}");
        }
    }
    assert!(arrived > 20, "only {arrived} of them were ever unpacked, so nothing is shown");
}
