"""Who watches that nobody else is harmed, and how is it seen that nothing was left behind?"""

import contextlib
import os
import pathlib
import random
import threading
import time

import numpy as np
from doors import Asked, Given, int32, open_door
from regions import Region, fresh_name

SETTLE_S = 20
ROOM = 1 << 20


class Witness(threading.Thread):
    """A client that asks all the time, inline and through a region of its own, and compares every byte."""

    def __init__(self, protocol: str, server):
        super().__init__(name=protocol)
        self.protocol, self.server = protocol, server
        self.ended, self.answers, self.failure = threading.Event(), 0, None

    def run(self) -> None:
        try:
            with open_door(self.protocol, self.server) as door, lent(door, 2 * ROOM) as mine:
                chance = random.Random(self.protocol)
                while not self.ended.is_set():
                    self.through_the_region(door, mine, chance)
                    self.inline(door, chance)
                    self.answers += 2
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def through_the_region(self, door, mine, chance) -> None:
        size = 4 * chance.randrange(1, 4096)
        sent = chance.randbytes(size)
        mine.write(sent)
        given = Given("INPUT0", "FP32", [size // 4], region=(mine.name, size, 0))
        door.infer("identity_fp32", [given], [Asked("OUTPUT0", (mine.name, size, ROOM))])
        assert mine.read(size, ROOM) == sent

    def inline(self, door, chance) -> None:
        left, right = (np.array(chance.sample(range(1 << 20), 16), np.int32).reshape(1, 16) for _ in range(2))
        reply = door.infer("simple", [int32("INPUT0", left), int32("INPUT1", right)])
        assert reply.outputs["OUTPUT0"].raw == (left + right).tobytes()
        assert reply.outputs["OUTPUT1"].raw == (left - right).tobytes()


@contextlib.contextmanager
def witnesses(server):
    found = [Witness(protocol, server) for protocol in ("http", "grpc")]
    for one in found:
        one.start()
    try:
        yield found
    finally:
        for one in found:
            one.ended.set()
        for one in found:
            one.join()
    for one in found:
        assert one.failure is None, f"the {one.protocol} witness: {one.failure!r}"


# Paths that were made since a test began.
MADE: set[pathlib.Path] = set()


@contextlib.contextmanager
def lent(door, byte_size: int, content: bytes = b""):
    """A registered region of which this module knows that it must be gone in the end."""
    made = Region(byte_size, content)
    MADE.add(made.path)
    made.name = fresh_name()
    try:
        door.register_system(made.name, made.key, byte_size)
        try:
            yield made
        finally:
            door.unregister("system", made.name)
    finally:
        made.close()


# ---------------------------------------------------------------------------------------------- what a server holds


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def mapped_objects(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(" /dev/shm/" in line for line in maps)


def mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(1 for _ in maps)


def settled(look):
    """What `look` sees once it has seen it for half a second: connections take a moment to end."""
    last, since = look(), time.monotonic()
    deadline = since + SETTLE_S
    while time.monotonic() < min(deadline, since + 0.5):
        time.sleep(0.05)
        now = look()
        if now != last:
            last, since = now, time.monotonic()
    return last


def comes_to(look, expected) -> None:
    """Waits until `look` sees `expected`, and fails if it never does."""
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == expected
