"""Does a client or a model's process that is killed at any point, under load, cost anybody else anything, or leave anything behind?

    pytest tests/hostile/test_kills.py                                      as many kills as the table says
    NERITE_KILLS=10000 pytest -s tests/hostile/test_kills.py -k clients     as many as that, and how long it took to clean up
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import test_python_endurance
from clients import Given, Refused, RequestedOutput, open_client
from compiled_setup import put
from compiled_setup import serving as serving_compiled
from isolation import IsolatedWitness, serving_isolated
from killed import KINDS, SIZE, object_path, region_name
from passages import SIZE as ROOM_BYTES
from python_catalogue import instances, parameters, vector
from pythons import PythonWitness, baseline_of, check_left, each_is_answered_again, everybody, living, processes_of, serving
from server_setup import put_delayed
from witness import MADE, PROTOCOLS, SETTLE_S, any_client, comes_to, descriptors, lent, maps_with, warm_up, witnesses

pytestmark = pytest.mark.timeout(3600)

KILLS = os.environ.get("NERITE_KILLS")
SEED = int(os.environ.get("NERITE_SEED", "1"))

# ---------------------------------------------------------------------------------------------- clients

CLIENT_KILLS = int(KILLS or 1000)
AT_A_TIME = 5
LONGEST_LIFE_S = 0.1


class Nursery:
    """Makes clients and kills them."""

    def __init__(self, server):
        command = [sys.executable, killed_py(), server.http, server.grpc, str(server.session)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def command(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def start(self, kind: str, seed: int) -> int:
        return int(self.command(f"start {kind} {seed}"))

    def kill(self, pid: int) -> str:
        return self.command(f"kill {pid}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(SETTLE_S)
        self.process.stdout.close()


def killed_py() -> str:
    return os.path.join(os.path.dirname(__file__), "killed.py")


def held(pid: int) -> tuple[int, int]:
    """Mappings of killed clients' objects, and of leases that are larger than the witness's outputs but not its own."""
    objects = leases = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            objects += "nerite_test_killed_" in line
            if "memfd:nerite-lease" in line:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                leases += SIZE // 4 < end - start < 1 << 20
    return objects, leases


def most_descriptors(pid: int) -> int:
    """As many as there are with the witnesses alone, whose connections come and go."""
    end, most = time.monotonic() + 1, 0
    while time.monotonic() < end:
        most = max(most, descriptors(pid))
    return most


def test_clients_that_are_killed_leave_nothing_behind(victim, nobody_else_is_harmed):
    chance = random.Random(SEED)
    most, cleaned, ended = most_descriptors(victim.pid), [], 0
    kinds = list(KINDS)
    with contextlib.closing(Nursery(victim)) as nursery, open_client("http", victim) as client:
        for round in range(0, CLIENT_KILLS, AT_A_TIME):
            pids = [nursery.start(kinds[(round + n) % len(kinds)], chance.randrange(1 << 30)) for n in range(AT_A_TIME)]
            for pid in chance.sample(pids, len(pids)):
                time.sleep(chance.uniform(0, 2 * LONGEST_LIFE_S / AT_A_TIME))
                ended += nursery.kill(pid) != "killed"
            since = time.monotonic()
            for pid in pids:
                client.unregister("system", region_name(pid))
                object_path(pid).unlink(missing_ok=True)
            while held(victim.pid) != (0, 0) or descriptors(victim.pid) > most:
                assert time.monotonic() < since + SETTLE_S, (held(victim.pid), descriptors(victim.pid), most)
                time.sleep(0.001)
            cleaned.append(time.monotonic() - since)
            assert all(one.is_alive() for one in nobody_else_is_harmed), "a witness was harmed"
    cleaned.sort()
    p50, p99, longest = (cleaned[int(part * (len(cleaned) - 1))] * 1000 for part in (0.5, 0.99, 1))
    answers = sum(one.answers for one in nobody_else_is_harmed)
    print(
        f"{CLIENT_KILLS} clients killed, {AT_A_TIME} at a time; everything back after {p50:.0f} ms (half), {p99:.0f} ms (99 of 100), "
        f"{longest:.0f} ms (all); {answers} answers of the witnesses compared"
    )
    # Who ends by itself was refused something: that would be a fault of the server's.
    assert ended == 0


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    """A server whose slow model is not so slow that its requests outlive their clients for long."""
    if launcher.oracle:
        pytest.skip("regions of killed clients stay for ever in 2.51")
    repository = launcher.copy_of("kills", "identity_fp32", "simple")
    put_delayed(repository, "brief", 5)
    socket = tmp_path_factory.mktemp("kills") / "socket"
    with launcher.running("kills", f"--session-socket={socket}", repository=repository) as found:
        found.session = socket
        with witnesses(found) as watching:
            warm_up(watching)
        yield found


# ---------------------------------------------------------------------------------------------- processes of models


class RequestThread(threading.Thread):
    """Asks models whose processes are killed, inline and through memory; errors must be those of a dead process."""

    models: tuple[str, ...]
    names = ("INPUT0", "OUTPUT0")
    size = ROOM_BYTES
    inline_bytes_max = 32 << 10  # which a session's packet holds
    ends: tuple[str, ...] = ("was ended by signal 9 (SIGKILL)",)

    def __init__(self, protocol: str, server, seed: int):
        super().__init__()
        self.protocol, self.server, self.chance = protocol, server, random.Random(seed)
        self.ended, self.failure, self.answers, self.errors = threading.Event(), None, 0, 0

    def run(self) -> None:
        try:
            with any_client(self.protocol, self.server) as client, lent(client, 2 * self.size) as made:
                while not self.ended.is_set():
                    self.one(client, made)
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def one(self, client, made) -> None:
        size = 4 * self.chance.randrange(1, self.size // 4)
        sent, model, (input_name, output_name) = self.chance.randbytes(size), self.chance.choice(self.models), self.names
        try:
            if size < self.inline_bytes_max:
                assert client.infer(model, [Given(input_name, "FP32", [size // 4], sent)]).outputs[output_name].raw == sent
            else:
                made.write(sent)
                source = Given(input_name, "FP32", [size // 4], region=(made.name, size, 0))
                client.infer(model, [source], [RequestedOutput(output_name, (made.name, size, self.size))])
                assert made.read(size, self.size) == sent
            self.answers += 1
        except Refused as refusal:
            assert any(end in refusal.text for end in self.ends), refusal
            self.errors += 1


def kill_under_load(threads, witnesses, kills: int, alive, longest_life_s: float, then) -> int:
    """Kills one of the processes that `alive` names, so many times, while all send requests. Nobody gets a wrong answer, and each thread is answered again.
    `then` is called while they still ask. Gives how many requests were told of a dead process."""
    chance = random.Random(SEED)
    for one in threads:
        one.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0, longest_life_s))
            # None may be alive, or one may have ended by itself since.
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(chance.choice(alive()), signal.SIGKILL)
            assert [one.failure for one in [*threads, *witnesses] if not one.is_alive()] == []
        for one in threads:
            seen, deadline = one.answers, time.monotonic() + SETTLE_S
            while one.is_alive() and one.answers < seen + 5:
                assert time.monotonic() < deadline, f"nobody answers {one.protocol} any more"
                time.sleep(0.01)
        then()
    finally:
        for one in threads:
            one.ended.set()
        for one in threads:
            one.join()
    assert [one.failure for one in threads if one.failure] == []
    failed = sum(one.errors for one in threads)
    print(f"{kills} kills: {sum(one.answers for one in threads)} right answers, {failed} requests failed")
    return failed


class PythonThread(RequestThread):
    models = ("py_killed", "py_killed_slowly")
    size = 256 << 10
    inline_bytes_max = 64 << 10
    # Who is killed may also be the process that looks whether the interpreter will do.
    ends = ("is not healthy", "was ended by signal 9")


class IsolatedThread(RequestThread):
    models = ("iso_identity",)


class BackendThread(RequestThread):
    models = ("i_identity",)
    names = ("IN", "OUT")


class BackendWitness(PythonWitness):
    """Asks an isolated backend's model of its own."""

    model = "i_witness"
    names = ("IN", "OUT")


class WayThread(RequestThread):
    """Asks Python models in one way until it is told to end."""

    def __init__(self, way, server):
        super().__init__(way.__name__, server, 0)
        self.way = way

    def run(self) -> None:
        try:
            with contextlib.closing(self.way(self.server)) as client:
                while not self.ended.is_set():
                    try:
                        client.send()
                        self.answers += 1
                    except test_python_endurance.DeadProcess:
                        self.errors += 1
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure


def threads_of(kind, protocols=tuple(PROTOCOLS)):
    return lambda server: [kind(protocol, server, seed) for seed, protocol in enumerate(protocols)]


PYTHON_MODELS = [
    vector("py_killed", "identity", extra=instances(2)),
    vector("py_killed_slowly", "identity", extra=parameters(steps="4", wait_ms="5")),
    vector("py_witness", "identity"),
]


@contextlib.contextmanager
def serving_backends(launcher, socket):
    repository = launcher.copy_of("kills_backends", "identity_fp32", "identity_bytes", "simple")
    for model in ("i_identity", "i_witness"):
        put(repository, model, more="instance_group { kind: KIND_CPU count: 1 }")
    flags = ["--backend-config=sample,isolated=true", f"--session-socket={socket}"]
    with serving_compiled(launcher, "kills_backends", repository, *flags) as found:
        found.session = socket
        yield found


@dataclass
class Kind:
    """Models whose processes are killed. All but those of the witnesses are asked: the server keeps two sockets of a process that died idle until the
    next request for its instance."""

    kills: int
    longest_life_s: float
    # A server with these models, made by a launcher and the path of a session's socket.
    serving: Callable
    # Makes the threads that ask, which may be told of dead processes.
    threads: Callable
    # Asks a model of its own, whose process is spared.
    witness: type[PythonWitness]


PROCESSES = {
    "python": Kind(
        200, 0.6, lambda launcher, socket: serving(launcher, "kills_python", socket, PYTHON_MODELS),
        threads_of(PythonThread, (*PROTOCOLS, "http")), PythonWitness,
    ),
    "python calls": Kind(
        60, 0.6, lambda launcher, socket: serving(launcher, "kills_calls", socket, test_python_endurance.MODELS),
        lambda server: [WayThread(way, server) for way in test_python_endurance.WAYS], PythonWitness,
    ),
    "isolated": Kind(
        30, 1, lambda launcher, socket: serving_isolated(launcher, "kills_isolated", socket, ("iso_identity", "iso_witness")),
        threads_of(IsolatedThread), IsolatedWitness,
    ),
    "isolated backend": Kind(
        30, 1, serving_backends, threads_of(BackendThread), BackendWitness,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PROCESSES)
def test_processes_that_are_killed_under_load(launcher, tmp_path, kind):
    if launcher.oracle:
        pytest.skip("a model's process that died stays dead in 2.51")
    kind = PROCESSES[kind]
    with kind.serving(launcher, tmp_path / "socket") as server:
        MADE.clear()
        baseline, count, spared = baseline_of(server), len(processes_of(server.pid)), spared_process(server, kind.witness)

        def alive():
            # A process that is just being started has no model yet; its end is told as well.
            return [pid for pid in living(server) if pid != spared]

        def restored():
            # A process that died is started anew.
            comes_to(lambda: len(living(server)), count)

        with everybody(server, kind.witness) as found:
            failed = kill_under_load(kind.threads(server), found, int(KILLS or kind.kills), alive, kind.longest_life_s, restored)
            each_is_answered_again(found)
        assert failed > 0
        # A dead process is waited for.
        comes_to(lambda: len(processes_of(server.pid)), count)
        assert processes_of(server.pid) == living(server)
        assert spared_process(server, kind.witness) == spared, "the process of another model was replaced"
        check_left(server, baseline)


def spared_process(server, witness: type[PythonWitness]) -> int:
    """The process of the witnesses' model: it has a region mapped which only this model was given."""
    with any_client("http", server) as client, lent(client, 4096) as made:
        client.infer(witness.model, [Given(witness.names[0], "FP32", [1], region=(made.name, 4, 0))])
        (found,) = [pid for pid in processes_of(server.pid) if maps_with(pid, made.path.name)]
    return found
