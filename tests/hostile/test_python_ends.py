"""Is a Python model's process that died replaced, and do processes end with the server that started them?"""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
import python_catalogue
from clients import fp32, open_client
from python_catalogue import vector
from python_setup import PATIENT
from pythons import processes_of, state_of
from witness import comes_to


def test_a_process_that_died_with_nothing_to_do_is_buried_and_replaced(launcher):
    if launcher.oracle:
        pytest.skip("a model's process that died stays dead in 2.51")
    repository = launcher.copy_of("python_idle")
    python_catalogue.put(repository, vector("py_idle", "identity"))
    with launcher.running("python_idle", PATIENT, repository=repository) as found:
        (dead,) = processes_of(found.pid)
        os.kill(dead, signal.SIGKILL)
        comes_to(lambda: state_of(dead), "")
        with open_client("http", found) as client:
            assert client.infer("py_idle", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
        (other,) = processes_of(found.pid)
        assert other != dead


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
