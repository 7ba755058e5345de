"""Does an idle instance of a Python model serve the next clients while another instance's process, which one client ended, starts anew?"""

import pytest
from clients import Refused, fp32, open_client
from python_setup import PATIENT
from witness import comes_to

MODEL = """
import os, pathlib, time
import numpy as np
import triton_python_backend_utils as pb_utils

MARKS = pathlib.Path({marks!r})

class TritonPythonModel:
    def initialize(self, args):
        mark = MARKS / args["model_instance_name"]
        # The first start is quick. A later one waits for the test.
        while mark.exists() and not (MARKS / "go").exists():
            time.sleep(0.01)
        mark.touch()

    def execute(self, requests):
        if any(pb_utils.get_input_tensor_by_name(one, "IN").as_numpy()[0] == 1 for one in requests):
            os._exit(1)
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
    (repository / "siblings" / "1" / "model.py").write_text(MODEL.format(marks=str(tmp_path)))
    with launcher.running("python_siblings", PATIENT, repository=repository) as found, open_client("http", found) as client:
        def pid_of(value: float) -> bytes:
            return client.infer("siblings", [fp32("IN", [value])]).outputs["PID"].raw

        with pytest.raises(Refused) as died:
            pid_of(1)
        assert "ended with code 1" in died.value.text
        # The other process cannot start before the test lets it, so nobody has waited for it.
        alone = {pid_of(0) for _ in range(20)}
        assert len(alone) == 1
        (tmp_path / "go").touch()
        # The instance that became idle last has the next request.
        comes_to(lambda: pid_of(0) in alone, False)
