"""Which thread unmaps memory that takes long?

The kernel takes about 20 ms to unmap 1 GiB that was used. It takes 280 ms if that frees a client's object, even if only one page of the object is mapped
here. The thread that drops the last array over the memory would wait, and so would the next request. So a separate thread unmaps large memory, and all
memory of clients. The thread ends when no mapping waits.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import mmap
import time
from typing import Callable

# A mapping of the server's memory with at most this many bytes is unmapped by the thread that drops its last array.
UNMAPPED_HERE_BYTES_MAX = 64 << 10
# The interpreter's lock is held while the pages of one piece are released, which takes about 0.5 ms.
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
        """Calls ``unmap`` on the separate thread, or on the calling thread if no thread can be started."""
        self._waiting.append(unmap)
        if not self._running.acquire(False):
            return
        try:
            _thread.start_new_thread(self._work, ())
        except (RuntimeError, MemoryError):
            self._work()

    def finish(self) -> None:
        """Unmaps the mappings that wait. If another thread is doing that, waits for that thread, for :data:`_FINISH_S` seconds at most."""
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
            # A mapping may have been added before the lock was released. Then no other thread was started for it.
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
