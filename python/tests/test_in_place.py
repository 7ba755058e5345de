"""Do programs that were written for tritonclient work with only the import changed?"""

import os
import pathlib
import subprocess
import sys

import pytest
import servers
from peers import ROOT

HERE = pathlib.Path(__file__).resolve().parent


def run(*arguments: str) -> subprocess.CompletedProcess:
    """pytest in a process of its own, whose tritonclient is nerite."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{ROOT / 'python'}"}
    command = [sys.executable, "-m", "pytest", "-p", "in_place", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


@pytest.mark.timeout(900)
def test_every_call_of_the_four_clients_does_what_tritonclients_does():
    # Calls, signatures, shared memory: the conformance tests of NVIDIA's clients, all of which use every public method.
    ended = run(str(ROOT / "tests" / "conformance" / "test_clients.py"))
    assert ended.returncode == 0, ended.stdout


def test_the_clients_in_place_are_ours(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import tritonclient.http as a, tritonclient.grpc.aio as b\n"
        "from tritonclient.grpc import InferInput\n"
        "def test():\n"
        "    kinds = a.InferenceServerClient, b.InferenceServerClient, InferInput\n"
        "    assert {one.__module__.split('.')[0] for one in kinds} == {'nerite'}\n"
    )
    ended = run(str(tmp_path))
    assert ended.returncode == 0, ended.stdout
