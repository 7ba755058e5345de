"""Does a Python model learn that a request's time is over, and its client too, where the model's author asks for it? And is a model ended that
hangs?"""

import pytest
from clients import Refused, fp32, http_call, open_client, refuses
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
# It looks at nothing while it hangs.
HANGING = MODEL.replace("while time.monotonic() < deadline:", "time.sleep(float(data[0]))\n        while False:")
LIMITED = 'parameters { key: "EXECUTE_TIMEOUT_SECONDS" value { string_value: "LIMIT" } }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
MODELS = {
    "timed": (CONFIG + TIMED + LIMITED.replace("LIMIT", "60"), MODEL),
    "untimed": (CONFIG + LIMITED.replace("LIMIT", "0"), MODEL),
    "hangs": (CONFIG, HANGING),
    "hangs_decoupled": (CONFIG + DECOUPLED + LIMITED.replace("LIMIT", "1.5"), HANGING),
}
LIMIT = "execute did not return within {} s, the limit of execute-timeout-seconds or EXECUTE_TIMEOUT_SECONDS"


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 tells a model of clients that go, and of no timeouts")
    repository = launcher.copy_of("python_timeouts")
    for name, (config, source) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        (repository / name / "1" / "model.py").write_text(source)
    limit = "--backend-config=python,execute-timeout-seconds=2"
    with launcher.running("python_timeouts", PATIENT, limit, repository=repository) as found:
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


def test_a_model_that_hangs_is_ended_at_its_limit_and_started_anew(server):
    with open_client("grpc", server) as client:
        with refuses("INTERNAL", f"Stub process 'hangs_0' is not healthy. (its process was killed, because {LIMIT.format(2)}"):
            client.infer("hangs", [fp32("IN", [LONG_S])])
        assert client.infer("hangs", [fp32("IN", [0])]).outputs["OUT"].raw == fp32("", [0]).raw


def test_a_decoupled_model_that_hangs_is_ended_as_well(server):
    for _ in range(2):
        found = http_call(server.http, "POST", "/v2/models/hangs_decoupled/generate", {"IN": LONG_S})
        assert found.status != 200 and LIMIT.format(1.5) in found.body.decode(), found


def test_a_limit_that_is_none_is_refused(launcher, server):
    repository = launcher.copy_of("python_limit")
    (repository / "odd" / "1").mkdir(parents=True)
    (repository / "odd" / "config.pbtxt").write_text(CONFIG + LIMITED.replace("LIMIT", "soon"))
    (repository / "odd" / "1" / "model.py").write_text(MODEL)
    with launcher.running("python_limit", "--model-control-mode=explicit", repository=repository) as found:
        with open_client("http", found) as client:
            with pytest.raises(Refused) as caught:
                client.load("odd")
            assert "EXECUTE_TIMEOUT_SECONDS=soon: expected seconds from 0 (no limit) to 86400" in caught.value.text
