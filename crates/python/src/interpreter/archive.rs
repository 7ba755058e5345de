//! How is a packed environment unpacked safely, whatever it contains?
//!
//! Only this server uses the directory, and no file is ever written through a link. These entries are refused: absolute names, names with `..`, links
//! that lead out of the directory, and entries that are no file, directory or link. Only `bin/python*` may lead out, because it links to the Python
//! that a virtual environment was made of. The number of entries, the bytes and the names are bounded.

mod names;

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use crate::limits::{
    ARCHIVE_BYTES_MAX, ARCHIVE_DEPTH_MAX, ARCHIVE_ENTRIES_MAX, ARCHIVE_NAME_BYTES_MAX, ARCHIVE_NAMES_BYTES_MAX,
};

/// The limits of an archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) entries_max: u64,
    pub(super) bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { entries_max: ARCHIVE_ENTRIES_MAX, bytes_max: ARCHIVE_BYTES_MAX }
    }
}

/// Why an archive is not unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it is packed with {0}, and only tar files are read, gzipped or not")]
    Packing(&'static str),
    #[error("its first entry cannot be read, as if it were no tar file, gzipped or not ({0})")]
    NoTar(String),
    #[error("its entry '{0}' is named so that it would lie outside")]
    Outside(String),
    #[error(
        "its entry '{0}' has a name of {1} bytes and {2} parts, at most {ARCHIVE_NAME_BYTES_MAX} and {ARCHIVE_DEPTH_MAX} may be"
    )]
    Long(String, usize, usize),
    #[error("its link '{0}' leads out, to '{1}'")]
    LeadsOut(String, String),
    #[error("an entry of it lies behind '{0}', which is no directory")]
    Behind(String),
    #[error("its entry '{0}' is of kind '{1}'; only files, directories and links are unpacked")]
    Kind(String, char),
    #[error("its link '{0}' leads to '{1}', which is no file that came before it")]
    NoFile(String, String),
    #[error("its entry '{0}' takes the place of a directory")]
    Replaces(String),
    #[error("it has more than {0} entries")]
    Entries(u64),
    #[error("it holds more than {0} bytes")]
    Bytes(u64),
    #[error("its entry '{name}' ends after {found} bytes of {wanted}")]
    Short { name: String, found: u64, wanted: u64 },
    #[error("'{0}' cannot be written: {1}")]
    Write(String, io::Error),
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Unpacks a tar file, gzipped or not, into an empty directory that no other process writes to.
pub(super) fn unpack(packed: impl Read, into: &Path, bounds: Bounds) -> Result<(), Refusal> {
    let mut packed = BufReader::with_capacity(1 << 16, packed);
    match packed.fill_buf()? {
        [0x1f, 0x8b, ..] => unpack_tar(MultiGzDecoder::new(packed), into, bounds),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Err(Refusal::Packing("zstd")),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Err(Refusal::Packing("xz")),
        [b'B', b'Z', b'h', ..] => Err(Refusal::Packing("bzip2")),
        [b'P', b'K', 3, 4, ..] => Err(Refusal::Packing("zip")),
        _ => unpack_tar(packed, into, bounds),
    }
}

fn unpack_tar(tar: impl Read, into: &Path, bounds: Bounds) -> Result<(), Refusal> {
    let left = Rc::new(Cell::new(0));
    let mut archive = Archive::new(Metered { inner: tar, left: Rc::clone(&left) });
    let mut unpacking = Unpacking { root: into, bounds, bytes: 0, folders: HashSet::new(), links: Vec::new() };
    let mut entries = archive.entries()?;
    let mut count = 0;
    loop {
        // Before each entry the library reads its name, and keeps it in memory, however long it is. So these bytes are limited.
        left.set(ARCHIVE_NAMES_BYTES_MAX);
        let Some(entry) = entries.next() else { break };
        left.set(u64::MAX);
        if count == 0
            && let Err(error) = &entry
        {
            return Err(Refusal::NoTar(names::shown(error.to_string().as_bytes())));
        }
        count += 1;
        if count > bounds.entries_max {
            return Err(Refusal::Entries(bounds.entries_max));
        }
        unpacking.put(entry?)?;
    }
    unpacking.check_links()
}

/// Limits the bytes that are read.
struct Metered<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        let left = self.left.get().checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(format!("more than {ARCHIVE_NAMES_BYTES_MAX} bytes are between two entries"))
        })?;
        self.left.set(left);
        Ok(count)
    }
}

/// The state of unpacking one archive.
struct Unpacking<'a> {
    root: &'a Path,
    bounds: Bounds,
    /// The bytes of all files so far.
    bytes: u64,
    /// Paths that are known to be directories. A directory is never replaced.
    folders: HashSet<PathBuf>,
    /// Symbolic links so far, except those that may lead out.
    links: Vec<PathBuf>,
}

impl Unpacking<'_> {
    fn put(&mut self, mut entry: Entry<'_, impl Read>) -> Result<(), Refusal> {
        let kind = entry.header().entry_type();
        let entry_name = names::shown(&entry.path_bytes());
        if kind.is_pax_global_extensions() {
            return pass_over(&mut entry, entry_name);
        }
        let name = names::inside(&entry.path_bytes()).ok_or_else(|| Refusal::Outside(entry_name.clone()))?;
        let (bytes, parts) = (name.as_os_str().len(), name.components().count());
        if bytes > ARCHIVE_NAME_BYTES_MAX || parts > ARCHIVE_DEPTH_MAX {
            return Err(Refusal::Long(entry_name, bytes, parts));
        }
        let mode = entry.header().mode()? & 0o777;
        if kind.is_dir() {
            return self.folder(&name, mode);
        }
        if name.as_os_str().is_empty() {
            return Err(Refusal::Replaces(entry_name));
        }
        let target = entry.link_name_bytes().map(|bytes| names::path(&bytes)).unwrap_or_default();
        if let Some(parent) = name.parent() {
            self.folder(parent, 0o755)?;
        }
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.file(&mut entry, &name, mode),
            EntryType::Symlink => self.symbolic_link(&name, &target),
            EntryType::Link => self.hard_link(&name, &target),
            other => Err(Refusal::Kind(entry_name, char::from(other.as_byte()))),
        }
    }

    /// Makes a directory and its parents, unless they exist.
    fn folder(&mut self, name: &Path, mode: u32) -> Result<(), Refusal> {
        if name.as_os_str().is_empty() || self.folders.contains(name) {
            return Ok(());
        }
        if let Some(parent) = name.parent() {
            self.folder(parent, 0o755)?;
        }
        let path = self.root.join(name);
        // The owner always gets all rights, because this server writes to it and removes it in the end.
        match DirBuilder::new().mode(mode | 0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
                if !is_folder {
                    return Err(Refusal::Behind(shown(name)));
                }
            }
            made => made.map_err(|error| unwritten(name, error))?,
        }
        self.folders.insert(name.to_owned());
        Ok(())
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path, mode: u32) -> Result<(), Refusal> {
        let wanted = entry.size();
        self.bytes = self.bytes.saturating_add(wanted);
        if self.bytes > self.bounds.bytes_max {
            return Err(Refusal::Bytes(self.bounds.bytes_max));
        }
        let modified = entry.header().mtime().unwrap_or_default();
        self.make_room(name)?;
        let failed = |error| unwritten(name, error);
        // The file is created exclusively, so no link is followed, and no file that has another name as well is changed. It never gets the set-uid
        // bit.
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(mode | 0o600).open(self.root.join(name)).map_err(failed)?;
        let found = io::copy(&mut entry.take(wanted), &mut file).map_err(failed)?;
        if found != wanted {
            return Err(Refusal::Short { name: shown(name), found, wanted });
        }
        // The modification time is kept, because compiled modules record that of their source.
        let modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(modified));
        modified.map_or(Ok(()), |modified| file.set_modified(modified)).map_err(failed)
    }

    fn symbolic_link(&mut self, name: &Path, target: &Path) -> Result<(), Refusal> {
        if !names::is_interpreter(name) {
            if names::leads_out(name, target) {
                return Err(leads_out(name, target));
            }
            self.links.push(name.to_owned());
        }
        self.make_room(name)?;
        symlink(target, self.root.join(name)).map_err(|error| unwritten(name, error))
    }

    fn hard_link(&mut self, name: &Path, target: &Path) -> Result<(), Refusal> {
        let no_file = || Refusal::NoFile(shown(name), shown(target));
        let target = names::inside(target.as_os_str().as_encoded_bytes()).ok_or_else(|| leads_out(name, target))?;
        // The target must have been unpacked before, so its parent directories must be known. They are then no links.
        let is_ours =
            target.parent().is_none_or(|parent| parent.as_os_str().is_empty() || self.folders.contains(parent));
        let path = self.root.join(&target);
        if !is_ours || !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            return Err(no_file());
        }
        if target == name {
            return Ok(());
        }
        self.make_room(name)?;
        fs::hard_link(path, self.root.join(name)).map_err(|error| unwritten(name, error))
    }

    /// Removes an earlier entry of the same name: the last one counts, as with tar.
    fn make_room(&self, name: &Path) -> Result<(), Refusal> {
        if self.folders.contains(name) {
            return Err(Refusal::Replaces(shown(name)));
        }
        match fs::remove_file(self.root.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritten(name, error)),
            _ => Ok(()),
        }
    }

    /// Checks that no link leads out through another link.
    fn check_links(&self) -> Result<(), Refusal> {
        let root = self.root.canonicalize()?;
        for link in &self.links {
            if let Ok(end) = root.join(link).canonicalize()
                && !end.starts_with(&root)
            {
                return Err(leads_out(link, &end));
            }
        }
        Ok(())
    }
}

/// Skips an entry about the whole archive, such as the commit it was made of.
fn pass_over(entry: &mut impl Read, entry_name: String) -> Result<(), Refusal> {
    let bytes = io::copy(&mut entry.take(ARCHIVE_NAMES_BYTES_MAX), &mut io::sink())?;
    if bytes == ARCHIVE_NAMES_BYTES_MAX { Err(Refusal::Kind(entry_name, 'g')) } else { Ok(()) }
}

fn shown(name: &Path) -> String {
    names::shown(name.as_os_str().as_encoded_bytes())
}

fn leads_out(name: &Path, target: &Path) -> Refusal {
    Refusal::LeadsOut(shown(name), shown(target))
}

fn unwritten(name: &Path, error: io::Error) -> Refusal {
    Refusal::Write(shown(name), error)
}

#[cfg(test)]
mod tests;
