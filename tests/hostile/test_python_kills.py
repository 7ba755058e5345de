"""Are Python models whose processes are killed under load answered again, and is nothing left of the dead?

    pytest tests/hostile/test_python_kills.py                            200 kills
    NERITE_PYTHON_KILLS=2000 pytest -s tests/hostile/test_python_kills.py    as many as that
"""

import contextlib
import os
import random
import signal
import threading
import time

import pytest
from clients import Asked, Given, Refused
from python_catalogue import instances, parameters, vector
from pythons import (
    baseline_of,
    check_left,
    each_is_answered_again,
    everybody,
    processes_of,
    serving,
    state_of,
)
from witness import MADE, SETTLE_S, any_client, comes_to, lent

KILLS = int(os.environ.get("NERITE_PYTHON_KILLS", "200"))
SEED = int(os.environ.get("NERITE_SEED", "1"))
SIZE = 256 << 10
LONGEST_LIFE_S = 0.6
MODELS = [
    vector("py_killed", "identity", extra=instances(2)),
    vector("py_killed_slowly", "identity", extra=parameters(steps="4", wait_ms="5")),
    vector("py_witness", "identity"),
]

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("a model's process that died stays dead in 2.51")
    with serving(launcher, "python_kills", tmp_path_factory.mktemp("kills") / "socket", MODELS) as found:
        yield found


class Asker(threading.Thread):
    """Asks the models whose processes are killed, inline and through memory; errors must be those of a dead process."""

    def __init__(self, protocol: str, server, seed: int):
        super().__init__()
        self.protocol, self.server, self.chance = protocol, server, random.Random(seed)
        self.ended, self.failure, self.answers, self.errors = threading.Event(), None, 0, 0

    def run(self) -> None:
        try:
            with any_client(self.protocol, self.server) as client, lent(client, 2 * SIZE) as made:
                while not self.ended.is_set():
                    self.one(client, made)
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    def one(self, client, made) -> None:
        size = 4 * self.chance.randrange(1, SIZE // 4)
        sent = self.chance.randbytes(size)
        model = self.chance.choice(["py_killed", "py_killed_slowly"])
        try:
            if size < 64 << 10:  # which a session's packet holds
                assert client.infer(model, [Given("INPUT0", "FP32", [size // 4], sent)]).outputs["OUTPUT0"].raw == sent
            else:
                made.write(sent)
                given = Given("INPUT0", "FP32", [size // 4], region=(made.name, size, 0))
                client.infer(model, [given], [Asked("OUTPUT0", (made.name, size, SIZE))])
                assert made.read(size, SIZE) == sent
            self.answers += 1
        except Refused as refusal:
            # Who is killed may also be the process that looks whether the interpreter will do.
            assert "is not healthy" in refusal.text or "was ended by signal 9" in refusal.text, refusal
            self.errors += 1


def test_processes_that_are_killed_under_load(victim):
    MADE.clear()
    chance = random.Random(SEED)
    baseline = baseline_of(victim)
    spared = process_of(victim, "py_witness")
    with everybody(victim) as witnesses:
        askers = [Asker(protocol, victim, seed) for seed, protocol in enumerate(["http", "grpc", "session", "http"])]
        for one in askers:
            one.start()
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0, LONGEST_LIFE_S))
                alive = [pid for pid in living(victim) if pid != spared]
                if alive:
                    # One that looks whether the interpreter will do may have ended by itself since.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(alive), signal.SIGKILL)
                harmed = [one.failure for one in [*askers, *witnesses] if not one.is_alive()]
                assert harmed == []
            for one in askers:
                seen, deadline = one.answers, time.monotonic() + SETTLE_S
                while one.is_alive() and one.answers < seen + 5:
                    assert time.monotonic() < deadline, f"nobody answers {one.protocol} any more"
                    time.sleep(0.01)
            # A process that died is started anew by the next request that is for it.
            comes_to(lambda: len(living(victim)), 4)
        finally:
            for one in askers:
                one.ended.set()
            for one in askers:
                one.join()
        assert [one.failure for one in askers if one.failure] == []
        each_is_answered_again(witnesses)
        told = sum(one.errors for one in askers)
        print(f"{KILLS} kills: {sum(one.answers for one in askers)} right answers, {told} requests were told")
    assert told > 0
    comes_to(lambda: len(processes_of(victim.pid)), 4)
    assert processes_of(victim.pid) == living(victim)
    assert spared in processes_of(victim.pid), "the process of another model was replaced"
    check_left(victim, baseline)


def test_a_process_that_died_with_nothing_to_do_is_buried_and_replaced(victim):
    dead = process_of(victim, "py_killed_slowly")
    os.kill(dead, signal.SIGKILL)
    comes_to(lambda: state_of(dead), "")
    assert process_of(victim, "py_killed_slowly") != dead


def living(victim) -> list[int]:
    return [pid for pid in processes_of(victim.pid) if state_of(pid) not in ("", "Z", "X")]


def process_of(victim, model: str) -> int:
    """The process that has a region mapped which only this model was given."""
    with any_client("http", victim) as client, lent(client, 4096) as made:
        given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
        client.infer(model, [given])
        found = [pid for pid in processes_of(victim.pid) if maps_name(pid, made.path.name)]
    assert len(found) == 1, found
    return found[0]


def maps_name(pid: int, name: str) -> bool:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return any(name in line for line in maps)
