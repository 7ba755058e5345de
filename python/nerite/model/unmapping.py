"""Which thread unmaps memory that takes long?

The kernel takes about 20 ms to unmap 1 GiB that was used. Whoever drops the last array over it would wait, and so would the next request. So a thread
of its own unmaps large memory. It ends when nothing waits.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import mmap
import time
from typing import Callable

# The most bytes of a mapping that the thread which drops its last user unmaps.
UNMAPPED_HERE_BYTES_MAX = 64 << 10
# This module holds the interpreter's lock while it releases the pages of one piece: about 0.5 ms.
_PIECE_BYTES = 16 << 20
# The longest wait for another thread to unmap what waits.
_FINISH_S = 5


class Unmapper:
    """The mappings that wait. The methods may be called by finalizers, at any time and on any thread."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[], object]] = collections.deque()
        # Held while a thread unmaps.
        self._running = _thread.allocate_lock()

    def pass_on(self, unmap: Callable[[], object]) -> None:
        """Calls ``unmap`` on the thread. If no thread can be started, on this one."""
        self._waiting.append(unmap)
        if not self._running.acquire(False):
            return
        try:
            _thread.start_new_thread(self._work, ())
        except (RuntimeError, MemoryError):
            self._work()

    def finish(self) -> None:
        """Returns when what waits is unmapped."""
        # A process that the model forked may have the lock, and not the thread.
        if self._running.acquire(True, _FINISH_S):
            self._work()

    def _work(self) -> None:
        while True:
            while self._waiting:
                # The mappings after one that cannot be closed are unmapped all the same.
                with contextlib.suppress(Exception):
                    self._waiting.popleft()()
            self._running.release()
            # Something may have been added before the lock was released. Then nobody else has started a thread.
            if not self._waiting or not self._running.acquire(False):
                return


class Mapping(mmap.mmap):
    """Memory of the server. A large mapping is unmapped by ``unmapper``, which must be set."""

    unmapper: Unmapper

    def __del__(self) -> None:
        if not self.closed and len(self) > UNMAPPED_HERE_BYTES_MAX:
            # The queue refers to this object, so it lives on. Python calls this method once only.
            self.unmapper.pass_on(self.release)

    def release(self) -> None:
        """Unmaps it. Its pages are released in pieces before, because other threads cannot map memory while the kernel unmaps some."""
        # The kernel refuses if the model has locked all memory of its process.
        with contextlib.suppress(OSError):
            for start in range(0, len(self), _PIECE_BYTES):
                self.madvise(mmap.MADV_DONTNEED, start, min(_PIECE_BYTES, len(self) - start))
                # Lets other threads have the interpreter's lock.
                time.sleep(0)
        self.close()
