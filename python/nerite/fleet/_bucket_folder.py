"""How does a folder change from one set of files to another, so that a server which reads it sees no mixture?

The staging folder lies in the folder itself, so that both are on one file system, and has a name that the server skips:

    ..nerite-fetch/partial/<identity>    an object of which a part is there
    ..nerite-fetch/objects/<identity>    a whole one, checked
    ..nerite-fetch/trees/<unit>          a unit made of hard links to objects: the next one, or the one before
    ..nerite-fetch/owned                 the units that a copy put there, or was about to
    ..nerite-fetch/lock                  locked during a round

A unit is replaced by one exchange of two names (renameat2(2)). After a crash at any point each unit is the old one or the new one, and the next round
removes ``trees`` and finds the rest by the inode numbers of ``objects``. Files of a version that did not change keep their inode and times, so that
the server does not load that version again.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nerite.fleet._bucket_plan import PYTHON_CACHE, BucketError, Step

STAGING = "..nerite-fetch"
# Nobody is to change a file in place: it is the object in the staging folder as well.
FILE_MODE = 0o444
AT_FDCWD = -100
RENAME_EXCHANGE = 2


class Folder:
    """A folder that holds copies of units."""

    def __init__(self, path: Path):
        self.path = Path(os.path.realpath(path))
        self.staging = self.path / STAGING
        self.partial, self.objects, self.trees = (self.staging / name for name in ("partial", "objects", "trees"))
        self._owned = self.staging / "owned"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder, and keeps other processes from it."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.staging, self.partial, self.objects, self.trees):
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                raise BucketError(f"{folder} is no folder: remove it")
            folder.mkdir(exist_ok=True)
        with open(self.staging / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BucketError(f"another process copies into {self.path}: wait for it, or name another folder") from None
            self._empty_trees()
            yield

    def owned(self) -> set[str]:
        """The units that a copy put there, or was about to."""
        try:
            return set(json.loads(self._owned.read_text()))
        except FileNotFoundError:
            return set()

    def found(self) -> dict[str, dict[str, str]]:
        """Each name in the folder, with the paths and identities of the files that were copied."""
        by_inode = {entry.inode(): entry.name for entry in os.scandir(self.objects)}
        units = {entry.name: entry for entry in os.scandir(self.path) if entry.name != STAGING}
        return {name: dict(_copied(entry, name, by_inode)) for name, entry in units.items()}

    def refuse_links(self, units: Iterable[str]) -> None:
        """Refuses a unit in whose place a link is."""
        for unit in units:
            if (self.path / unit).is_symlink():
                raise BucketError(f"{self.path / unit} is a link, and no copy replaces one: remove it")

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def has(self, identity: str, size: int) -> bool:
        """Whether the whole object is there."""
        try:
            return (self.objects / identity).stat().st_size == size
        except FileNotFoundError:
            return False

    def begun_bytes(self, identity: str) -> int:
        """How much of an object is there."""
        try:
            return (self.partial / identity).stat().st_size
        except FileNotFoundError:
            return 0

    def complete(self, identity: str) -> None:
        """Makes a whole object of a checked partial one, whose bytes are on the disk."""
        partial = self.partial / identity
        partial.chmod(FILE_MODE)
        partial.replace(self.objects / identity)

    def clean(self, sizes: Mapping[str, int]) -> None:
        """Removes what is neither wanted nor placed, and what does not have its size. ``sizes`` has those of all wanted objects."""
        for entry in list(os.scandir(self.partial)):
            if entry.name not in sizes:
                os.unlink(entry)
        for entry in list(os.scandir(self.objects)):
            found = entry.stat(follow_symlinks=False)
            # One that is placed has a second name.
            if found.st_size != sizes[entry.name] if entry.name in sizes else found.st_nlink == 1:
                os.unlink(entry)

    def apply(self, steps: Iterable[Step], wanted: Mapping[str, Mapping[str, str]]) -> None:
        """Takes the steps. All objects are there."""
        steps, owned = list(steps), self.owned()
        # Before the renames, so that the next round knows what a crash left.
        self._write_owned(owned | wanted.keys())
        _sync(self.objects)
        for step in steps:
            if step.kind != "remove":
                self._build(step.unit, wanted[step.unit])
        for kind, unit in steps:
            made, placed = self.trees / unit, self.path / unit
            try:
                if kind == "exchange":
                    exchange(made, placed)
                else:
                    os.rename(*((made, placed) if kind == "add" else (placed, made)))
            finally:
                _sync(self.path)
        self._empty_trees()
        self._write_owned(set(wanted))

    def _build(self, unit: str, paths: Mapping[str, str]) -> None:
        folders = {self.trees}
        for path, identity in paths.items():
            place = self.trees / path
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.objects / identity, place)
            folders.update(parent for parent in place.parents if self.trees in parent.parents)
        for folder in folders:
            _sync(folder)

    def _empty_trees(self) -> None:
        for entry in list(os.scandir(self.trees)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry)
            else:
                os.unlink(entry)

    def _write_owned(self, units: Iterable[str]) -> None:
        text, fresh = json.dumps(sorted(units)), self._owned.with_name("owned.next")
        with open(fresh, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._owned)
        _sync(self.staging)


def exchange(one: Path, other: Path) -> None:
    """Swaps two names of one file system, in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    cure = "use a folder on ext4, xfs, btrfs or tmpfs, and Linux with glibc 2.28"
    try:
        status = library.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    except AttributeError:
        raise BucketError(f"this C library cannot exchange {other}: {cure}") from None
    if status != 0:
        reason = os.strerror(ctypes.get_errno())
        raise BucketError(f"the file system cannot exchange {other} with its new state: {reason}: {cure}")


def _copied(entry: os.DirEntry, path: str, by_inode: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The copied files of an entry. Links are not followed, because no copy makes one."""
    if entry.is_dir(follow_symlinks=False):
        if entry.name != PYTHON_CACHE:
            for inner in os.scandir(entry):
                yield from _copied(inner, f"{path}/{inner.name}", by_inode)
    elif entry.inode() in by_inode:
        yield path, by_inode[entry.inode()]


def _sync(folder: Path) -> None:
    """Makes the names in a folder last through a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
