"""Is an isolated ONNX model confined as a Python model is, and does it compute as before?"""

import pathlib
import re

import numpy as np
import pytest
from clients import int32, open_client
from pythons import processes_of
from python_setup import kernel_refuses
from servers import onnxruntime_flag

MODEL = "simple"
FLAGS = ("--backend-config=onnxruntime,sandbox=on", f"--backend-config=onnxruntime,sandbox-memory={2 << 30}")


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def server(request: pytest.FixtureRequest, launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no sandbox")
    if why := kernel_refuses():
        pytest.skip(why)
    library = onnxruntime_flag() if request.param == "onnxruntime" else "--onnxruntime-library=none"
    name = f"isolated_sandbox_{request.param}"
    with launcher.running(name, *FLAGS, library, repository=launcher.copy_of(name, MODEL)) as found:
        yield found


def test_it_answers_as_ever(server):
    left, right = np.arange(16).reshape(1, 16), np.full((1, 16), 3)
    with open_client("http", server) as client:
        reply = client.infer(MODEL, [int32("INPUT0", left), int32("INPUT1", right)])
    assert reply.outputs["OUTPUT0"].raw == (left + right).astype(np.int32).tobytes()


def test_the_kernel_says_that_its_process_is_confined(server):
    assert f"model '{MODEL}' is confined: files and tracing (Landlock" in server.log_text()
    children = processes_of(server.pid)
    assert children
    for child in children:
        check_confined(child)


def check_confined(child: int) -> None:
    facts = pathlib.Path(f"/proc/{child}/status").read_text()
    assert re.search(r"^Seccomp:\t2$", facts, re.MULTILINE) and re.search(r"^NoNewPrivs:\t1$", facts, re.MULTILINE)
    assert re.search(r"^CapBnd:\t0+$", facts, re.MULTILINE) and re.search(r"^CapEff:\t0+$", facts, re.MULTILINE)
    limits = pathlib.Path(f"/proc/{child}/limits").read_text()
    assert re.search(rf"Max data size +{2 << 30} +{2 << 30} ", limits)
