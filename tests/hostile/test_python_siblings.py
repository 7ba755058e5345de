"""Does an idle instance of a Python model serve the next clients while another instance's process, which one client ended, starts anew?"""

import concurrent.futures

import pytest
from clients import Refused, fp32, open_client
from python_setup import PATIENT, Gates

MODEL = """
import os, pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

MARKS = pathlib.Path({marks!r})

class TritonPythonModel:
    def initialize(self, args):
        mark = MARKS / args["model_instance_name"]
        if mark.exists():
            pass_gate("second start")
        mark.touch()

    def execute(self, requests):
        for one in requests:
            value = pb_utils.get_input_tensor_by_name(one, "IN").as_numpy()[0]
            if value == 1:
                os._exit(1)
            if value == 2:
                pass_gate("busy")
        pid = np.array([os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "PID" data_type: TYPE_INT32 dims: 1 }
instance_group [{ kind: KIND_CPU count: 2 }]
"""


def test_requests_go_to_the_idle_instance_while_the_other_one_starts_anew(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("a model's process that died stays dead in 2.51")
    repository = launcher.copy_of("python_siblings")
    (repository / "siblings" / "1").mkdir(parents=True)
    (repository / "siblings" / "config.pbtxt").write_text(CONFIG)
    gates = Gates(tmp_path / "gates")
    (repository / "siblings" / "1" / "model.py").write_text(gates.code + MODEL.format(marks=str(tmp_path)))
    with launcher.running("python_siblings", PATIENT, repository=repository) as found:
        def pid_of(value: float) -> bytes:
            with open_client("http", found) as client:
                return client.infer("siblings", [fp32("IN", [value])]).outputs["PID"].raw

        with pytest.raises(Refused) as died:
            pid_of(1)
        assert "ended with code 1" in died.value.text
        # The other process cannot start before the test lets it, so nobody has waited for it.
        alone = {pid_of(0) for _ in range(20)}
        assert len(alone) == 1
        gates.open("second start")
        with concurrent.futures.ThreadPoolExecutor() as threads:
            busy = threads.submit(pid_of, 2)
            gates.wait_for("busy")
            # One of the two instances is busy, so the other one serves this.
            other = pid_of(0)
            gates.open("busy")
            assert alone < {busy.result(), other}
