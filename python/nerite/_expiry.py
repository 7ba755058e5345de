"""How does a call that waits for a thread end at its deadline?

A call that a thread runs checks its deadline itself. A call that no thread has taken yet cannot do that, so one thread watches all such calls.
"""

from __future__ import annotations

import concurrent.futures
import heapq
import itertools
import os
import threading
import time
import weakref
from typing import Any, Callable

from nerite._deadline import Deadline

# The thread ends if no call has waited for this time.
IDLE_S = 10.0


class Queued:
    """A call that waits for a thread. Its future is done when the call is, or at the deadline if no thread has taken it by then."""

    def __init__(self, call: Callable[[], Any], deadline: Deadline):
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._call = call
        self._deadline = deadline
        self._lock = threading.Lock()
        self._is_taken = False

    def submit(self, executor: concurrent.futures.Executor) -> concurrent.futures.Future[Any]:
        """Submits the call to the executor's threads. Returns the future of its result."""
        executor.submit(self._run)
        left = self._deadline.left()
        if left is not None:
            _watch.add(time.monotonic() + left, self)
        return self.future

    def expire(self) -> None:
        """Ends the call with TimeoutError, if no thread has taken it."""
        with self._lock:
            if self._is_taken or not self.future.set_running_or_notify_cancel():
                return
            self._is_taken = True
        self.future.set_exception(self._deadline.late())

    def _run(self) -> None:
        with self._lock:
            if self._is_taken or not self.future.set_running_or_notify_cancel():
                return
            self._is_taken = True
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001 - the future has it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _Watch:
    """The thread that ends calls at their deadlines."""

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forgets all calls. For a forked child too, which has no thread and no calls."""
        self._changed = threading.Condition()
        # The references are weak. So a call that a thread has taken, and its result, are not kept alive.
        self._waiting: list[tuple[float, int, weakref.ref[Queued]]] = []
        self._numbers = itertools.count()
        self._has_thread = False

    def add(self, at: float, queued: Queued) -> None:
        """Ends the call at the time ``at``, in seconds of ``time.monotonic``."""
        with self._changed:
            heapq.heappush(self._waiting, (at, next(self._numbers), weakref.ref(queued)))
            if not self._has_thread:
                threading.Thread(target=self._run, name="nerite-deadlines", daemon=True).start()
                self._has_thread = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait_for(lambda: self._waiting, IDLE_S):
                    self._has_thread = False
                    return
                at, _, watched = self._waiting[0]
                left = at - time.monotonic()
                if left > 0 and watched() is not None:
                    self._changed.wait(left)
                    continue
                heapq.heappop(self._waiting)
            queued = watched()
            if queued is not None:
                queued.expire()
            # Otherwise this thread would keep the call alive until the next one.
            del queued


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.start_afresh)
