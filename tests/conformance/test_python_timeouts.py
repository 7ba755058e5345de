"""Does a Python model learn that a request's time is over, and its client too, where the model's author asks for it?"""

import pytest
from clients import fp32, open_client, refuses
from python_setup import PATIENT

# Longer than any test waits.
LONG_S = 600
MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        deadline = time.monotonic() + data[0]
        while time.monotonic() < deadline:
            if request.is_cancelled():
                return pb_utils.InferenceResponse([], error=pb_utils.TritonError("nobody waits", pb_utils.TritonError.CANCELLED))
            time.sleep(0.01)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)])
"""
CONFIG = """\
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""
TIMED = 'parameters { key: "nerite.timeout_ends_runs" value { string_value: "true" } }\n'


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 tells a model of clients that go, and of no timeouts")
    repository = launcher.copy_of("python_timeouts")
    for name, config in {"timed": CONFIG + TIMED, "untimed": CONFIG}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(MODEL)
    with launcher.running("python_timeouts", PATIENT, repository=repository) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_that_looks_ends_in_time_and_its_client_hears_why(server, protocol):
    with open_client(protocol, server) as client:
        with refuses("UNAVAILABLE", "Request timeout expired"):
            client.infer("timed", [fp32("IN", [LONG_S])], parameters={"timeout": 300_000})
        # The only instance is free.
        assert client.infer("timed", [fp32("IN", [0])], parameters={"timeout": 60_000_000}).outputs["OUT"].raw == fp32("", [0]).raw


def test_by_default_a_timeout_bounds_only_the_wait_in_the_queue(server):
    with open_client("http", server) as client:
        assert client.infer("untimed", [fp32("IN", [0.5])], parameters={"timeout": 1}).outputs["OUT"].raw == fp32("", [0.5]).raw
