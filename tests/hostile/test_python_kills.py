"""Are Python models whose processes are killed under load answered again, and is nothing left of the dead?

    pytest tests/hostile/test_python_kills.py                            200 kills
    NERITE_PYTHON_KILLS=2000 pytest -s tests/hostile/test_python_kills.py    as many as that
"""

import os
import signal

import pytest
from clients import Given
from killing import Asker, kill_under_load
from python_catalogue import instances, parameters, vector
from pythons import (
    baseline_of,
    check_left,
    each_is_answered_again,
    everybody,
    living,
    processes_of,
    serving,
    state_of,
)
from witness import MADE, any_client, comes_to, lent, maps_with

KILLS = int(os.environ.get("NERITE_PYTHON_KILLS", "200"))
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


class PythonAsker(Asker):
    models = ("py_killed", "py_killed_slowly")
    size = SIZE
    inline_bytes_max = 64 << 10
    # Who is killed may also be the process that looks whether the interpreter will do.
    ends = ("is not healthy", "was ended by signal 9")


def test_processes_that_are_killed_under_load(victim):
    MADE.clear()
    baseline = baseline_of(victim)
    spared = process_of(victim, "py_witness")

    def alive():
        return [pid for pid in living(victim) if pid != spared]

    def restored():
        # A process that died is started anew by the next request that is for it.
        comes_to(lambda: len(living(victim)), 4)

    with everybody(victim) as witnesses:
        askers = [PythonAsker(protocol, victim, seed) for seed, protocol in enumerate(["http", "grpc", "session", "http"])]
        told = kill_under_load(askers, witnesses, KILLS, alive, LONGEST_LIFE_S, restored)
        each_is_answered_again(witnesses)
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


def process_of(victim, model: str) -> int:
    """The process that has a region mapped which only this model was given."""
    with any_client("http", victim) as client, lent(client, 4096) as made:
        given = Given("INPUT0", "FP32", [1], region=(made.name, 4, 0))
        client.infer(model, [given])
        found = [pid for pid in processes_of(victim.pid) if maps_with(pid, made.path.name)]
    assert len(found) == 1, found
    return found[0]
