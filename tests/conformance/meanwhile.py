"""How does a test do its part while a model has the request, however busy the machine is?

A model with a delay looks at its inputs when the delay is over, so what a test did before that is what it finds. Whether the
test was quick enough is known by the clock, and a test that was not has shown nothing: it is done again.
"""

import functools
import pathlib
import time

import pytest

TRIES = 25
COMM_BYTES_MAX = 15


class TooLate(Exception):
    """The model may have gone on before the test had done its part."""


def again_if_too_late(test):
    """Does the test again when its part came too late, on what it makes itself; its fixtures stay."""

    @functools.wraps(test)
    def again(*args, **kwargs):
        for _ in range(TRIES):
            try:
                return test(*args, **kwargs)
            except TooLate:
                continue
        return pytest.fail(f"{TRIES} times the model had gone on before the test did its part")

    return again


class Delay:
    """The time from before a model is asked until it can have gone on at the earliest."""

    def __init__(self, delay_ms: float):
        self.delay_s = delay_ms / 1000
        self.began = time.monotonic()

    def must_last(self) -> None:
        """Said right after the test's part: the model went on after it."""
        if time.monotonic() >= self.began + self.delay_s:
            raise TooLate

    def wait_for_requests(self, server, model: str, count: int = 1) -> None:
        """Waits until that many requests are at the model."""
        self.until(lambda: waiting_at(server.pid, model) >= count, server.pid is not None and has_wait_channels(server.pid))

    def until(self, look, can_be_seen: bool = True) -> None:
        """Waits until it is so, or for a part of the time where that cannot be seen."""
        if not can_be_seen:
            time.sleep(self.delay_s / 4)
            return
        while not look():
            self.must_last()
            time.sleep(0.002)


def waiting_at(pid: int, model: str) -> int:
    """How many threads of the server are asleep in this model: they have its name."""
    found = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, where = ((task / one).read_text().strip() for one in ("comm", "wchan"))
        except OSError:
            continue
        found += name.startswith(f"{model}_"[:COMM_BYTES_MAX]) and "nanosleep" in where
    return found


def has_wait_channels(pid: int) -> bool:
    """Whether the system says where a thread waits: of the first one, which has nothing to do once the server runs."""
    try:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/wchan").read_text().strip() not in ("", "0")
    except OSError:
        return False
