"""Where are the log and the socket of a started server, and who removes them?

Each server has a folder of its own. Its process and the process that started it hold a lock on a file in it. If both were killed, no process
holds the lock any more. The next server that this user starts with the same parent folder removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from typing import Optional

PREFIX = "nerite-serve-"
LOCK = "lock"
# The most bytes of the parent folder's path: the kernel's limit for the path of a Unix socket, less the names of the folder and of the socket.
PLACE_MAX = 72
# Mode bits with which other users may access the folder.
OTHERS = 0o077


class Folder:
    """A folder that only this user can enter, until it is removed."""

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        # With a longer path, the path of a socket in it would be too long.
        place = place if len(os.fsencode(place)) <= PLACE_MAX else "/tmp"
        remove_abandoned(place)
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=place)
        self._lock = _make_lock(self.path)

    def inherited(self) -> tuple[int, ...]:
        """The descriptors that keep the folder as long as a process has one of them."""
        return () if self._lock is None else (self._lock,)

    def remove(self) -> None:
        """Removes the folder with all its files, and releases the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_abandoned(place: str) -> None:
    """Removes the folders in `place` whose processes have ended. Keeps everything that is not certainly such a folder of this user."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                # Another process may be removing the same folder.
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(entry.path)


def _make_lock(folder: str) -> Optional[int]:
    """The descriptor of the locked file of a folder. None if the file system has no locks. Then no other process removes the folder."""
    path = os.path.join(folder, LOCK)
    lock = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file gets its name after it is locked, so no process finds it unlocked.
        os.rename(path + ".new", path)
    except OSError:
        os.close(lock)
        return None
    return lock


def _remove_if_abandoned(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & OTHERS:
            return
        lock = os.open(LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(lock).st_mode):
                # `flock` fails if a process holds the lock.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
