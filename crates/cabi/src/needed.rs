//! Which names does a shared library use for Triton's own library?
//!
//! Most need `libtritonserver.so`. A library from a Python wheel needs `libtritonserver-717102f0.so`, or another hash. So may a library beside it, which the
//! loader finds by the run path `$ORIGIN`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The prefix of all these names.
const STEM: &str = "libtritonserver";
/// The longest file name.
const NAME_BYTES_MAX: usize = 255;
/// The most libraries that a backend and those beside it need together. Further ones are left to the loader.
const NEEDED_MAX: usize = 1024;
/// The most program headers and dynamic entries that are read. A library has some dozens.
const ENTRIES_MAX: usize = 4096;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;

/// The names of Triton's library among those that this library needs, or the libraries beside it that it needs. Empty for a file that is no library:
/// the loader reports the error.
pub fn triton_names(library: &Path) -> io::Result<Vec<String>> {
    let mut names = needed(&File::open(library)?).unwrap_or_default();
    let mut at = 0;
    // Names are added while the list is read. Each is added once, so this ends even if libraries need each other.
    while let Some(name) = names.get(at) {
        let beside = library.with_file_name(name);
        let further = File::open(&beside).ok().and_then(|file| needed(&file)).unwrap_or_default();
        for name in further {
            if names.len() < NEEDED_MAX && !names.contains(&name) {
                names.push(name);
            }
        }
        at += 1;
    }
    names.retain(|name| name.starts_with(STEM));
    Ok(names)
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

fn needed(file: &File) -> Option<Vec<String>> {
    let header: [u8; 64] = read(file, 0)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (at, count) = (word(&header, 32)?, usize::from(u16::from_le_bytes(header.get(56..58)?.try_into().ok()?)));
    let segments: Vec<Segment> =
        (0..count.min(ENTRIES_MAX)).map_while(|index| segment(file, at.checked_add(56 * index as u64)?)).collect();
    let dynamic = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
    let entries = (0..ENTRIES_MAX.min(dynamic.len as usize / 16)).map_while(|index| {
        let entry: [u8; 16] = read(file, dynamic.offset.checked_add(16 * index as u64)?)?;
        Some((word(&entry, 0)?, word(&entry, 8)?))
    });
    let entries: Vec<(u64, u64)> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == STRINGS)?.1;
    let holds = |segment: &&Segment| {
        segment.kind == LOAD && strings.checked_sub(segment.address).is_some_and(|inside| inside < segment.len)
    };
    let strings = segments.iter().find(holds).and_then(|held| (strings - held.address).checked_add(held.offset))?;
    let names = entries.iter().filter(|(tag, _)| *tag == NEEDED);
    Some(names.filter_map(|(_, at)| text(file, strings.checked_add(*at)?)).collect())
}

fn segment(file: &File, at: u64) -> Option<Segment> {
    let header: [u8; 56] = read(file, at)?;
    Some(Segment {
        kind: u32::from_le_bytes(header.get(..4)?.try_into().ok()?),
        offset: word(&header, 8)?,
        address: word(&header, 16)?,
        len: word(&header, 32)?,
    })
}

fn read<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn text(file: &File, at: u64) -> Option<String> {
    let mut bytes = [0; NAME_BYTES_MAX + 1];
    let read = file.read_at(&mut bytes, at).ok()?;
    let end = bytes.get(..read)?.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_that_is_no_library_needs_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libx.so");
        for content in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0xff; 4096]] {
            std::fs::write(&path, content).unwrap();
            assert!(triton_names(&path).unwrap().is_empty());
        }
        assert!(triton_names(&folder.path().join("none")).is_err());
    }

    /// Makes a library in this folder that needs these, which are there already.
    fn library(folder: &Path, name: &str, needs: &[&str]) -> std::path::PathBuf {
        let (path, origin) = (folder.join(name), "-Wl,-rpath,$ORIGIN");
        let made = std::process::Command::new("cc")
            .args(["-shared", "-x", "c", "/dev/null", "-x", "none", "-Wl,--no-as-needed", origin, "-o"])
            .arg(&path)
            .arg(format!("-Wl,-soname,{name}"))
            .args(needs.iter().map(|need| folder.join(need)))
            .status()
            .unwrap();
        assert!(made.success());
        path
    }

    #[test]
    fn the_names_that_a_library_beside_it_uses_are_found() {
        let folder = tempfile::tempdir().unwrap();
        library(folder.path(), "libtritonserver-717102f0.so", &[]);
        library(folder.path(), "libhelper.so", &["libtritonserver-717102f0.so"]);
        library(folder.path(), "libmiddle.so", &["libhelper.so"]);
        let backend = library(folder.path(), "libtriton_x.so", &["libmiddle.so"]);
        assert_eq!(triton_names(&backend).unwrap(), ["libtritonserver-717102f0.so"]);
        // They may need each other.
        library(folder.path(), "libhelper.so", &["libmiddle.so", "libtritonserver-717102f0.so"]);
        assert_eq!(triton_names(&backend).unwrap(), ["libtritonserver-717102f0.so"]);
    }

    #[test]
    fn the_libraries_that_a_program_needs_are_found() {
        let own = File::open("/proc/self/exe").unwrap();
        let found = needed(&own).unwrap();
        assert!(found.iter().any(|name| name.starts_with("libc.")), "{found:?}");
    }
}
