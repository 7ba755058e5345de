"""Are Python models whose processes are killed under load answered again, and is nothing left of the dead?

    pytest tests/hostile/test_python_kills.py                            200 kills
    NERITE_PYTHON_KILLS=2000 pytest -s tests/hostile/test_python_kills.py    as many as that
"""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
import python_catalogue
from clients import Given
from killing import RequestThread, kill_under_load
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


class PythonThread(RequestThread):
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
        # A process that died is started anew.
        comes_to(lambda: len(living(victim)), 4)

    with everybody(victim) as witnesses:
        threads = [PythonThread(protocol, victim, seed) for seed, protocol in enumerate(["http", "grpc", "session", "http"])]
        failed = kill_under_load(threads, witnesses, KILLS, alive, LONGEST_LIFE_S, restored)
        each_is_answered_again(witnesses)
    assert failed > 0
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


SPINS = """
import ctypes, os, subprocess, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        programs = [subprocess.Popen(["sleep", "1000"]), subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); time.sleep(1000)"])]
        with open({pids!r}, "w") as file:
            file.write(" ".join(str(one) for one in [os.getpid(), *(program.pid for program in programs)]))

    def execute(self, requests):
        # A function of the C library that runs as long as the process, while the interpreter can do nothing else.
        with open({busy!r}, "w") as file:
            file.write("busy")
        ctypes.PyDLL(None).sleep(1000)
"""


@pytest.mark.parametrize("doing", ["nothing", "compiled code"])
def test_a_server_that_is_killed_takes_along_what_its_models_started(launcher, tmp_path, doing):
    if launcher.oracle:
        pytest.skip("2.51 leaves behind what a model started")
    pids, busy = tmp_path / "pids", tmp_path / "busy"
    repository = launcher.copy_of(f"python_left_{doing[:4]}")
    python_catalogue.put(repository, vector("py_spins", "identity"))
    (repository / "py_spins" / "1" / "model.py").write_text(SPINS.format(pids=str(pids), busy=str(busy)))
    with launcher.running(repository.name, repository=repository) as found:
        model, *programs = map(int, pids.read_text().split())
        children = pathlib.Path(f"/proc/{programs[1]}/task/{programs[1]}/children")
        comes_to(lambda: len(children.read_text().split()), 1)
        started = [model, *programs, int(children.read_text())]
        if doing != "nothing":
            document = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'
            script = "import sys, urllib.request as u; u.urlopen(sys.argv[1], sys.argv[2].encode())"
            url = f"http://{found.http}/v2/models/py_spins/infer"
            client = subprocess.Popen([sys.executable, "-c", script, url, document], stderr=subprocess.DEVNULL)
            comes_to(busy.exists, True)
        found.process.kill()
        found.process.wait()
        # Nobody may be there who reaps them.
        comes_to(lambda: [pid for pid in started if state_of(pid) not in ("", "Z", "X")], [])
        if doing != "nothing":
            client.wait(60)
