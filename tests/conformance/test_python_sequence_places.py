"""Where do the requests of sequences run while the process of one of several instances does not come back?"""

import time

import pytest
from clients import Refused, differs, fp32, open_client
from python_setup import strings

PATIENCE_S = 60
MODEL = """
import os, signal
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"]
        if os.path.exists({flag!r}):
            raise RuntimeError("it may not start")

    def execute(self, requests):
        for one in requests:
            if pb_utils.get_input_tensor_by_name(one, "INPUT0").as_numpy()[0, 0] == 2:
                open({flag!r}, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        name = np.array([[self.instance]], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", name)]) for _ in requests]
"""
CONFIG = """
name: "py_places"
backend: "python"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
sequence_batching { STRATEGY }
"""


@differs("2.51 starts a process that died no more", run=False)
@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
def test_new_sequences_start_where_a_process_lives_and_others_get_a_reason(launcher, tmp_path, strategy):
    repository, flag = launcher.copy_of(f"python_places_{time.monotonic_ns()}"), tmp_path / "flag"
    folder = repository / "py_places" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL.format(flag=str(flag)))
    (folder.parent / "config.pbtxt").write_text(CONFIG.replace("STRATEGY", strategy))
    with launcher.running(repository.name, repository=repository) as server, open_client("http", server) as client:

        def step(sequence: int, start: bool = False, value: float = 1) -> str:
            parameters = {"sequence_id": sequence, "sequence_start": start}
            (name,) = strings(client.infer("py_places", [fp32("INPUT0", [value], [1, 1])], parameters=parameters).outputs["OUTPUT0"].raw)
            return name

        died = step(1, start=True)
        with pytest.raises(Refused, match="was ended by signal 9"):
            step(1, value=2)
        (other,) = {step(sequence, start=True) for sequence in (2, 3, 4)}
        assert other != died
        until = time.monotonic() + PATIENCE_S
        with pytest.raises(Refused, match="it may not start"):
            while time.monotonic() < until:
                step(1)
        assert step(2) == other
        flag.unlink()
        while time.monotonic() < until:
            try:
                assert step(1) == died
                break
            except Refused as refused:
                assert "it may not start" in refused.text
                time.sleep(0.1)
        else:
            pytest.fail("no other process was started")
