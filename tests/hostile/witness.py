"""Who watches that nobody else is harmed, and how is it seen that nothing was left behind?"""

import contextlib
import itertools
import os
import pathlib
import random
import signal
import struct
import threading
import time

import grpc
import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, fp32, int32, open_client
from packets import open_session
from regions import Region, fresh_name

# How long a thing may take to come true. No test asks for speed, so this only bounds how long a failure takes to show.
SETTLE_S = 60
# How long a number must be the same to have settled.
STILL_S = 0.5
ROOM = 1 << 20

# Set while a test has borrowed all that the server lends: then nobody can be lent more, not even a witness.
ALL_IS_LENT = threading.Event()


class Witness(threading.Thread):
    """A client that asks all the time, inline and through shared memory of its own, and compares every byte."""

    def __init__(self, protocol: str, server):
        super().__init__(name=protocol)
        self.protocol, self.server = protocol, server
        self.ended, self.answers, self.failure = threading.Event(), 0, None

    def run(self) -> None:
        try:
            with contextlib.ExitStack() as held:
                client = held.enter_context(any_client(self.protocol, self.server))
                session = self.protocol == "session"
                mine = client.borrow(2 * ROOM) if session else held.enter_context(lent(client, 2 * ROOM))
                chance = random.Random(self.protocol)
                while not self.ended.is_set():
                    self.through_memory(client, mine, chance)
                    self.inline(client, chance)
                    if session:
                        self.to_a_lease(client, chance)
                    self.answers += 2
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def through_memory(self, client, mine, chance) -> None:
        size = 4 * chance.randrange(1, 4096)
        sent = chance.randbytes(size)
        mine.write(sent)
        given = Given("INPUT0", "FP32", [size // 4], region=(mine.name, size, 0))
        client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", (mine.name, size, ROOM))])
        assert mine.read(size, ROOM) == sent

    def inline(self, client, chance) -> None:
        left, right = (np.array(chance.sample(range(1 << 20), 16), np.int32).reshape(1, 16) for _ in range(2))
        reply = client.infer("simple", [int32("INPUT0", left), int32("INPUT1", right)])
        assert reply.outputs["OUTPUT0"].raw == (left + right).tobytes()
        assert reply.outputs["OUTPUT1"].raw == (left - right).tobytes()

    def to_a_lease(self, client, chance) -> None:
        sent = fp32("INPUT0", np.frombuffer(chance.randbytes(4 * chance.randrange(1, 4096)), np.float32))
        may_fail = ALL_IS_LENT.is_set()
        try:
            assert client.infer("identity_fp32", [sent], leased=["OUTPUT0"]).outputs["OUTPUT0"].raw == sent.raw
        except Refused as refusal:
            if not (may_fail or ALL_IS_LENT.is_set()) or refusal.status is not grpc.StatusCode.UNAVAILABLE:
                raise


PROTOCOLS = ["http", "grpc", "session"]
# What lies below the protocols is tested over one of them. One test of each file shows that the others do the same.
with_each_protocol = pytest.mark.parametrize("client", PROTOCOLS, indirect=True)


def any_client(protocol: str, server):
    """One of the three ways to ask: over HTTP, over gRPC, in a session."""
    return open_session(server.session) if protocol == "session" else open_client(protocol, server)


@contextlib.contextmanager
def witnesses(server):
    """One of each protocol; the third where the server has a session socket."""
    found = [Witness(protocol, server) for protocol in PROTOCOLS]
    for one in found if hasattr(server, "session") else found[:2]:
        one.start()
    found = [one for one in found if one.ident]
    try:
        # Not before they have what they need: memory, and a place for a session.
        are_answered(found)
        yield found
    finally:
        for one in found:
            one.ended.set()
        for one in found:
            one.join()
    for one in found:
        assert one.failure is None, f"the {one.protocol} witness: {one.failure!r}"


def are_answered(witnesses, times: int = 1) -> None:
    """Waits until each has that many more answers."""
    seen = [one.answers for one in witnesses]
    deadline = time.monotonic() + SETTLE_S
    while any(one.is_alive() and one.answers < before + times for one, before in zip(witnesses, seen)):
        assert time.monotonic() < deadline, "a witness gets no answer"
        time.sleep(0.01)


def warm_up(witnesses) -> None:
    """Makes the server have what it keeps for itself once it has been asked a while."""
    are_answered(witnesses, 200)
    time.sleep(2)


# Paths that were made since a test began.
MADE: set[pathlib.Path] = set()


@contextlib.contextmanager
def lent(client, byte_size: int, content: bytes = b""):
    """A registered region of which this module knows that it must be gone in the end."""
    made = Region(byte_size, content)
    MADE.add(made.path)
    made.name = fresh_name()
    try:
        client.register_system(made.name, made.key, byte_size)
        try:
            yield made
        finally:
            client.unregister("system", made.name)
    finally:
        made.close()


# ---------------------------------------------------------------------------------------------- what a server holds


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def mapped_objects(pid: int) -> int:
    """Mappings of clients' objects."""
    return maps_with(pid, " /dev/shm/")


def mapped_leases(pid: int) -> int:
    return maps_with(pid, "/memfd:nerite-lease")


def maps_with(pid: int, words: str) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(words in line for line in maps)


def connections(server) -> int:
    """Clients that the server has not taken leave of yet, by its sockets."""
    accepted = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{server.pid}/net/{table}", encoding="utf-8") as lines:
            rows = [line.split() for line in lines][1:]
            listening = "0A"
            accepted |= {row[9] for row in rows if row[3] != listening}
    with open(f"/proc/{server.pid}/net/unix", encoding="utf-8") as lines:
        rows = [line.split() for line in lines][1:]
        # The second flag says that it listens.
        path = str(getattr(server, "session", None))
        accepted |= {row[6] for row in rows if row[7:] == [path] and not int(row[3], 16) & 0x10000}
    return len(accepted & sockets(server.pid))


def sockets(pid: int) -> set[str]:
    """Their numbers."""
    found = set()
    for one in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{one}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def left_alone(server) -> None:
    """Waits until nothing of a client is left, so that what the server has is its own."""
    comes_to(lambda: connections(server), 0)
    comes_to(lambda: mapped_objects(server.pid), 0)
    comes_to(lambda: mapped_leases(server.pid), 0)


def resident(pid: int) -> int:
    """Bytes of memory that the server has of its own or shares with clients; the program's own pages do not count."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        found = dict(line.split(":") for line in status if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(one.split()[0]) for one in found.values()) * 1024


def mappings(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(1 for _ in maps)


def settled(look):
    """What `look` sees once it has seen it for a while."""
    last, since = look(), time.monotonic()
    deadline = since + SETTLE_S
    while time.monotonic() < min(deadline, since + STILL_S):
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
    assert found == expected, f"{found} instead of {expected} after {SETTLE_S} s"


@contextlib.contextmanager
def stopped(server):
    """The server does nothing meanwhile."""
    try:
        os.kill(server.pid, signal.SIGSTOP)
        # A thread that runs on another processor stops a moment later.
        comes_to(lambda: states_of_threads(server.pid), {"T"})
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def states_of_threads(pid: int) -> set[str]:
    states = set()
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end before its file is opened or read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states.add(file.read_text().rpartition(")")[2].split()[0])
    return states


def times(count: int, happened):
    """So many times, and then again until it has happened, which takes luck where there are few processors."""
    deadline = time.monotonic() + SETTLE_S
    while count > 0 or (not happened() and time.monotonic() < deadline):
        yield
        count -= 1


def torn(*values: float) -> set[float]:
    """What a float32 may read as while these values are written over one another.

    The copies of reader and writer may be interrupted within a number, so each byte is that of any of the values.
    """
    texts = [struct.pack("<f", value) for value in values]
    return {struct.unpack("<f", bytes(of))[0] for of in itertools.product(*zip(*texts, strict=True))}


def falls_to(look, bound: int) -> int:
    """Waits until `look` sees no more than `bound`, and fails if it never does."""
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) > bound and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found <= bound, f"{found:,} instead of at most {bound:,} after {SETTLE_S} s"
    return found
