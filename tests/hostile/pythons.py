"""Which server with Python models may the hostile tests hurt, and what do its children hold?"""

import contextlib
import os
import pathlib
import re
import signal
import time
from dataclasses import dataclass

import passages
import pytest
import python_catalogue
from clients import Given, RequestedOutput, fp32
from footprint import children
from server_setup import LEASE_BYTES_MAX, RESIDENT_SLACK, SESSION_BYTES_MAX, put_delayed
from python_catalogue import parameters, python, tensors, vector
from python_setup import PATIENT
from regions import SHM
from witness import (
    MADE,
    ROOM,
    SETTLE_S,
    Witness,
    any_client,
    are_answered,
    connections,
    descriptors,
    falls_to,
    mapped_leases,
    mapped_objects,
    maps_with,
    resident,
    settled,
    warm_up,
    witnesses,
)

WAIT_MS = 400
STEPS = 8
# A Python process keeps more for itself than the server: arenas, and what numpy caches.
CHILD_SLACK = RESIDENT_SLACK + (8 << 20)

MODELS = [
    vector("py_identity", "identity"),
    vector("py_strings", "identity", "BYTES"),
    vector("py_copies", "identity", extra=parameters(steps="1")),
    vector("py_slow", "identity", extra=parameters(steps=str(STEPS), wait_ms=str(WAIT_MS // STEPS))),
    vector("py_slow_strings", "identity", "BYTES", extra=parameters(steps=str(STEPS), wait_ms=str(WAIT_MS // STEPS))),
    vector("py_waits", "identity", extra=parameters(wait_ms=str(WAIT_MS))),
    vector("py_in_place", "in_place"),
    vector("py_keeps", "keeps"),
    python("py_large", "large", tensors(SIZE="INT64"), tensors(MADE="UINT8")),
    vector("py_witness", "identity"),
]


@contextlib.contextmanager
def serving(launcher, name: str, socket: pathlib.Path, models=MODELS, more=()):
    """A server with those models, and some that are not Python's."""
    repository = launcher.copy_of(name, "identity_fp32", "identity_bytes", "simple")
    put_delayed(repository, "delayed", WAIT_MS)
    for model in models:
        python_catalogue.put(repository, model)
    flags = [
        PATIENT, f"--session-socket={socket}", f"--lease-max-bytes={LEASE_BYTES_MAX}",
        f"--session-max-bytes={SESSION_BYTES_MAX}", *more,
    ]  # fmt: skip
    with launcher.running(name, *flags, repository=repository) as found:
        found.session = socket
        with everybody(found) as watching:
            warm_up(watching)
        yield found


# ---------------------------------------------------------------------------------------------- children


def processes_of(pid: int) -> list[int]:
    """The server's children, dead ones included as long as it has not taken leave of them."""
    return sorted(children(pid))


def state_of(pid: int) -> str:
    """R, S, Z and so on; nothing of a process that is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def living(server) -> list[int]:
    """The server's children that have not ended."""
    return [pid for pid in processes_of(server.pid) if state_of(pid) not in ("", "Z", "X")]


def in_all(look, pids) -> int:
    """What `look` sees in all of these processes together; those that end meanwhile have nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += look(pid)
    return total


def check_children_end(server, children: list[int]) -> None:
    """The processes of models end with a server that is killed."""
    os.kill(server.pid, signal.SIGKILL)
    for pid in children:
        comes_to(lambda: state_of(pid) in ("", "Z"), True)
    server.process.wait()


def mapped_in_children(pid: int) -> int:
    """Mappings of clients' objects and of leases, in the children."""
    return in_all(lambda child: mapped_objects(child) + mapped_leases(child), processes_of(pid))


def mapped_by_children(server, words: str) -> int:
    """Mappings in the children in whose names these words are."""
    return in_all(lambda child: maps_with(child, words), processes_of(server.pid))


def open_in(pids) -> list[str]:
    """What the descriptors of these processes lead to."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            for one in os.listdir(f"/proc/{pid}/fd"):
                found.append(os.readlink(f"/proc/{pid}/fd/{one}").split("[")[0])
    return sorted(found)


# ---------------------------------------------------------------------------------------------- witnesses


class PythonWitness(Witness):
    """Asks a model of its own, which runs in a process of its own."""

    model = "py_witness"
    names = ("INPUT0", "OUTPUT0")

    def through_memory(self, client, mine, chance) -> None:
        size = 4 * chance.randrange(1, 4096)
        sent = chance.randbytes(size)
        mine.write(sent)
        given = Given(self.names[0], "FP32", [size // 4], region=(mine.name, size, 0))
        client.infer(self.model, [given], [RequestedOutput(self.names[1], (mine.name, size, ROOM))])
        assert mine.read(size, ROOM) == sent

    def inline(self, client, chance) -> None:
        sent = fp32(self.names[0], [chance.random() for _ in range(chance.randrange(1, 100))])
        assert client.infer(self.model, [sent]).outputs[self.names[1]].raw == sent.raw

    def to_a_lease(self, client, chance) -> None:
        """The others do."""


@contextlib.contextmanager
def everybody(server, kind=PythonWitness):
    """The witnesses of all servers, and two who ask a model in a process of its own."""
    mine = [kind(protocol, server) for protocol in ("grpc", "session")]
    with witnesses(server) as found:
        for one in mine:
            one.start()
        try:
            are_answered(mine)
            yield [*found, *mine]
        finally:
            for one in mine:
                one.ended.set()
            for one in mine:
                one.join()
    for one in mine:
        assert one.failure is None, f"the {one.protocol} witness of {one.model}: {one.failure!r}"


def each_is_answered_again(found) -> None:
    """At least one request each that began after all that was done."""
    are_answered(found, 3)


# ---------------------------------------------------------------------------------------------- what must be left


@dataclass
class Baseline:
    """What the server and its children have when nobody talks to them."""

    descriptors: int
    resident: int
    child_descriptors: list[str]
    child_resident: int
    objects: set[str]


def comes_to(look, expected, details=list) -> None:
    """As the witnesses' own, but it says what it saw."""
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    if found != expected:
        pytest.fail(f"{found}, not {expected}: {details()}")


def check_no_memory_of_clients(server) -> None:
    """Neither the server nor a child has a client's region mapped. Said of leases, it would be true a few seconds later: the
    memory by which server and child exchange what lies elsewhere is of the same make."""
    assert server.process.poll() is None, f"the server died:\n{server.log_text()[-3000:]}"
    comes_to(lambda: mapped_objects(server.pid), 0)
    comes_to(lambda: in_all(mapped_objects, processes_of(server.pid)), 0)
    assert [path for path in MADE if path.exists()] == []


def comes_to_rest(server) -> None:
    check_no_memory_of_clients(server)
    comes_to(lambda: mapped_leases(server.pid), 0)
    comes_to(lambda: mapped_in_children(server.pid), 0)


def baseline_of(server) -> Baseline:
    comes_to(lambda: connections(server), 0)
    comes_to_rest(server)
    open_ = settled(lambda: descriptors(server.pid))
    children = processes_of(server.pid)
    return Baseline(
        open_, settled(lambda: resident(server.pid)), settled(lambda: open_in(children)),
        settled(lambda: in_all(resident, children)), set(os.listdir(SHM)),
    )  # fmt: skip


def check_left(server, before: Baseline) -> None:
    """Nothing of what was done is left, neither in the server nor in its children."""
    comes_to_rest(server)
    children = processes_of(server.pid)
    comes_to(lambda: descriptors(server.pid), before.descriptors)
    comes_to(lambda: len(open_in(children)), len(before.child_descriptors), lambda: open_in(children))
    left = falls_to(lambda: resident(server.pid), before.resident + RESIDENT_SLACK)
    slack = CHILD_SLACK * len(children)
    left_in = falls_to(lambda: in_all(resident, children), before.child_resident + slack)
    print(f"resident: {left - before.resident:+,} bytes, children {left_in - before.child_resident:+,}")
    comes_to(lambda: objects_of_nobody(server) - before.objects, set())


def objects_of_nobody(server) -> set[str]:
    """What lies in /dev/shm with our name, but for clients' objects, which are told by MADE, and those of whatever else this
    machine runs: they have the number of a process that lives."""
    ours = {server.pid, *processes_of(server.pid)}
    found = {one for one in os.listdir(SHM) if "nerite" in one and "test" not in one}
    return {one for one in found if not is_anothers(one, ours)}


def is_anothers(name: str, ours: set[int]) -> bool:
    pid = next((int(part) for part in re.split(r"\W|_", name) if part.isdigit()), None)
    return pid is not None and pid not in ours and os.path.exists(f"/proc/{pid}")


# ---------------------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="module")
def victim(launcher, request: pytest.FixtureRequest, tmp_path_factory):
    """A server that only these tests may hurt. It and its children must be the same processes from first to last."""
    if launcher.oracle:
        pytest.skip("a client that truncates its region kills 2.51 (SIGBUS)")
    with serving(launcher, request.module.__name__, tmp_path_factory.mktemp("session") / "socket") as found:
        yield found


@pytest.fixture(scope="module")
def baseline(victim):
    """Taken before the first test, and checked after the last."""
    found = baseline_of(victim)
    yield found
    check_left(victim, found)


@pytest.fixture
def nobody_else_is_harmed(victim, baseline):
    """Not even the child that met the client's fault: it is the same process before and after."""
    MADE.clear()
    before = processes_of(victim.pid)
    with everybody(victim) as found:
        yield found
        each_is_answered_again(found)
    assert processes_of(victim.pid) == before, f"a model's process died:\n{victim.log_text()[-3000:]}"
    check_no_memory_of_clients(victim)


# ---------------------------------------------------------------------------------------------- asking


def through(client, source, target, byte_size: int = passages.SIZE, model: str = "py_identity") -> None:
    passages.through(client, source, target, byte_size, model)
