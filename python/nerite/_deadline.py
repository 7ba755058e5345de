"""When must a call have ended?"""

from __future__ import annotations

import contextlib
import contextvars
import time
from typing import Any, Iterator, Optional

import numpy as np


# A timeout of more seconds than this, or an infinite one, counts as no timeout.
LONGEST_S = 1e8


class Deadline:
    """The moment at which a request is given up. It holds for the whole call: waiting for a connection, connecting, and all answers. Without a
    timeout, or with an infinite one, there is no deadline."""

    __slots__ = ("_seconds", "_at")

    def __init__(self, timeout: Optional[float] = None):
        self._seconds = timeout
        self._at = None if timeout is None or timeout > LONGEST_S else time.monotonic() + float(timeout)

    def __bool__(self) -> bool:
        """Whether there is a deadline."""
        return self._at is not None

    def left(self) -> Optional[float]:
        """The seconds that are left, None for no limit. Raises TimeoutError if none are left."""
        if self._at is None:
            return None
        left = self._at - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def left_of(self, longest: Optional[float]) -> Optional[float]:
        """As :meth:`left`, but ``longest`` at most, None for no other limit."""
        left = self.left()
        return longest if left is None else left if longest is None else min(left, longest)

    def left_or_zero(self) -> Optional[float]:
        """As :meth:`left`, but 0 if none are left."""
        return None if self._at is None else max(self._at - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self._at is not None and time.monotonic() >= self._at

    def late(self) -> TimeoutError:
        """The error of a call that has not ended in time."""
        return TimeoutError(f"no answer within {self._seconds} s; the request was given up")


NEVER = Deadline()
_current: contextvars.ContextVar[Deadline] = contextvars.ContextVar("nerite_deadline", default=NEVER)


@contextlib.contextmanager
def within(deadline: Deadline) -> Iterator[None]:
    """Sets the deadline of requests that the ``with`` block sends in order to serve another request."""
    before = _current.set(deadline)
    try:
        yield
    finally:
        _current.reset(before)


def current() -> Deadline:
    """The deadline of :func:`within`, by default none."""
    return _current.get()


def deadline_of(timeout: Any) -> Deadline:
    """The deadline of a call that begins now. Raises TypeError or ValueError if ``timeout`` is not a number of seconds above 0,
    None or a :class:`Deadline`, which is returned as it is."""
    if isinstance(timeout, Deadline):
        return timeout
    if timeout is None:
        return NEVER
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.number)):
        raise TypeError(f"a timeout is a number of seconds, or None for no limit; got {timeout!r}")
    if not timeout > 0:
        raise ValueError(f"a timeout is more than 0 seconds, or None for no limit; got {timeout!r}")
    return Deadline(timeout)
