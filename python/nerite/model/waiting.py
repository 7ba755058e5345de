"""Which of a model's calls keep ``execute`` from returning?

The calls of the thread that runs ``execute``, and of tasks that it started. The server refuses such a call at once if its answer needs this instance.
Calls of other threads may wait for this instance, because ``execute`` usually returns without them. If ``execute`` waits for such a thread, it does not
return. Then the server is notified after :data:`HELD_S` seconds.
"""

from __future__ import annotations

import contextvars
import threading
import time
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .answer import ModelChannel

# If a batch has run for this many seconds, it is assumed to wait for the calls of other threads that have no answer.
HELD_S = 30.0
# The pause, in seconds, between two checks of the calls of other threads.
_LOOK_AGAIN_S = 1.0


class Execution:
    """One batch, while ``execute`` runs it."""

    __slots__ = ("thread", "began")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.began = time.monotonic()


# Tasks inherit the value from the thread that runs `execute`.
_started_by: "contextvars.ContextVar[Optional[Execution]]" = contextvars.ContextVar("nerite_execution", default=None)


def begin() -> Execution:
    """Called before ``execute``, on its thread."""
    execution = Execution()
    _started_by.set(execution)
    return execution


def is_held_by_caller(model_channel: "ModelChannel") -> bool:
    """Whether ``execute`` runs, and the caller is its thread or a task of it."""
    execution = model_channel.execution
    return execution is not None and (execution.thread == threading.get_ident() or _started_by.get() is execution)


class Watch:
    """The calls of other threads that have no answer yet. A thread checks them from time to time, as long as there are any."""

    def __init__(self, model_channel: "ModelChannel") -> None:
        self._model_channel = model_channel
        self._lock = threading.Lock()
        self._calls: set[int] = set()
        self._has_thread = False

    def add(self, number: int) -> None:
        """Notes a call."""
        with self._lock:
            self._calls.add(number)
            if self._has_thread:
                return
            self._has_thread = True
        threading.Thread(target=self._look_again, name="nerite-waits", daemon=True).start()

    def _look_again(self) -> None:
        while True:
            time.sleep(_LOOK_AGAIN_S)
            calls = self._model_channel.calls
            with self._lock:
                self._calls = {number for number in self._calls if calls.is_pending(number)}
                if not self._calls:
                    self._has_thread = False
                    return
                execution = self._model_channel.execution
                if execution is None or time.monotonic() - execution.began < HELD_S:
                    continue
                held, self._calls = self._calls, set()
            for number in held:
                calls.notify({"waits": number})
