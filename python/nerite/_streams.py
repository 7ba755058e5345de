"""Which streams may be open at once, and which wait?

Each open stream has a connection of its own. A program that holds one stream and waits for another could wait for itself. So a reader of a
stream never waits for a place: if there is none, its next stream is refused at once. Others wait in order: threads in their thread, tasks without one.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import threading
from typing import Any, AsyncIterator, Iterator, Optional

from tritonclient.utils import InferenceServerException

from nerite._deadline import Deadline

# The most open streams of one client.
STREAMS_MAX = 32


class _Waiter(concurrent.futures.Future):  # type: ignore[type-arg]
    """A thread or task that waits for a place. It is done when it has a place."""

    def __init__(self, holders: set[Any]):
        super().__init__()
        self.holders = holders


class StreamPlaces:
    """The places of the streams of one client. They may be given back by the garbage collector, on any thread."""

    def __init__(self, places_max: int = STREAMS_MAX):
        # It must be reentrant, because the garbage collector may give back a place while this thread has the lock.
        self._lock = threading.RLock()
        self._places_max = places_max
        self._taken = 0
        self._waiting: collections.deque[_Waiter] = collections.deque()
        # The number of open streams of each thread, task and event loop.
        self._holders: collections.Counter[Any] = collections.Counter()

    @contextlib.contextmanager
    def place(self, deadline: Deadline) -> Iterator[bool]:
        """Holds a place for a stream that this thread reads, for a ``with`` block. Its value says whether the thread reads no other stream."""
        holders, is_first = _current(), not self.is_held_here()
        waiter = self._asked(holders, is_first, "thread")
        with self._given(waiter, holders):
            if waiter is not None:
                try:
                    waiter.result(deadline.left())
                except concurrent.futures.TimeoutError:
                    raise deadline.late() from None
            yield is_first

    @contextlib.asynccontextmanager
    async def place_async(self, deadline: Deadline) -> AsyncIterator[bool]:
        """As :meth:`place`, for a stream that this task reads."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine is run by a task"
        holders, is_first = {task, asyncio.get_running_loop()}, not self.is_held_by(task)
        waiter = self._asked(holders, is_first, "task")
        with self._given(waiter, holders):
            if waiter is not None:
                try:
                    await asyncio.wait_for(asyncio.wrap_future(waiter), deadline.left())
                except asyncio.TimeoutError:
                    raise deadline.late() from None
            yield is_first

    def is_held_here(self, also_by_loop: bool = True) -> bool:
        """Whether this thread or task reads a stream. ``also_by_loop``: also whether another task of its event loop does, because that
        task could not run while the thread waits."""
        return self.is_held_by(*(_current() - (set() if also_by_loop else {asyncio._get_running_loop()})))

    def is_held_by(self, *holders: Any) -> bool:
        """Whether one of these reads a stream."""
        with self._lock:
            return any(self._holders[one] > 0 for one in holders)

    def _asked(self, holders: set[Any], may_wait: bool, who: str) -> Optional[_Waiter]:
        """Takes a place, or returns what to wait for."""
        with self._lock:
            if self._taken < self._places_max and not self._waiting:
                self._take(holders)
                return None
            if not may_wait:
                raise InferenceServerException(
                    f"{self._taken} streams of this client are open, {self._places_max} may be, and this {who} reads one of them, so it could wait for "
                    f"itself: end one first, or read each stream in a {who} of its own"
                )
            waiter = _Waiter(holders)
            self._waiting.append(waiter)
            return waiter

    @contextlib.contextmanager
    def _given(self, waiter: Optional[_Waiter], holders: set[Any]) -> Iterator[None]:
        """Gives the place back at the end, or gives up the wait for it."""
        try:
            yield
        finally:
            if waiter is None or not waiter.cancel():
                self._give_back(holders)
            else:
                with self._lock, contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)

    def _take(self, holders: set[Any]) -> None:
        self._taken += 1
        self._holders.update(holders)

    def _give_back(self, holders: set[Any]) -> None:
        with self._lock:
            self._taken -= 1
            self._holders.subtract(holders)
            for one in holders:
                if self._holders[one] <= 0:
                    del self._holders[one]
            while self._waiting and self._taken < self._places_max:
                waiter = self._waiting.popleft()
                # The result is False for a waiter that has just given up.
                if waiter.set_running_or_notify_cancel():
                    self._take(waiter.holders)
                    waiter.set_result(None)


class Reader:
    """The reader of a stream. It may end the stream while a thread waits for the next response."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = None
        self._has_ended = False

    @contextlib.contextmanager
    def uses(self, connection: Any) -> Iterator[None]:
        """Notes the connection that the stream uses meanwhile."""
        with self._lock:
            if self._has_ended:
                raise InferenceServerException("the stream was given up before it began")
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None

    def end(self) -> None:
        """Ends the stream, if it is open. A thread that waits for a response gets an error."""
        with self._lock:
            self._has_ended = True
            # Once the stream has ended, another call may use the connection.
            if self._connection is not None:
                self._connection.abort()


def _current() -> set[Any]:
    """This thread, and the task and loop that run on it."""
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task()
    return {threading.get_ident(), *(one for one in (loop, task) if one is not None)}
