"""Does NVIDIA's own Python backend, libtriton_python.so out of a wheel, serve our Python models in this server?

The library is loaded as it is, in the place of the built-in backend of its name, with its own process for each instance.
"""

import numpy as np
import pytest
import python_catalogue
import triton
from clients import Given, RequestedOutput, fp32, grpc_channel, http_call, int32, open_client, refuses, text
from compiled_setup import environment
from python_setup import do, said
from regions import registered
from test_decoupled import Stream

MODELS = ("py_identity", "py_strings", "py_types", "py_add_sub", "py_batching", "py_actions", "py_decoupled")
WRONG = "Failed to process the request(s) for model 'py_actions_0', message: "


@pytest.fixture(scope="module")
def compiled_python(launcher):
    if not triton.is_installed():
        pytest.skip("Triton is not installed: cargo xtask oracle")
    backends = triton.backend_directory(launcher.scratch / "backends")
    repository = launcher.scratch / "compiled_python"
    repository.mkdir()
    for one in MODELS:
        python_catalogue.put(repository, python_catalogue.named(one))
    # What the library itself needs, and the Python that its processes take.
    found = triton.environment()
    with environment(LD_LIBRARY_PATH=found["LD_LIBRARY_PATH"], PATH=found["PATH"]):
        with launcher.running("compiled_python", f"--backend-directory={backends}", repository=repository) as server:
            yield server


@pytest.fixture(params=["http", "grpc"])
def python(request: pytest.FixtureRequest, compiled_python):
    with open_client(request.param, compiled_python) as found:
        yield found


def test_it_is_the_compiled_backend(compiled_python):
    if compiled_python.oracle:
        pytest.skip("Triton has no other")
    assert "libtriton_python.so, in the place of the built-in one" in compiled_python.log_text()


def test_models_answer(python):
    numbers = fp32("INPUT0", np.arange(1000) / 7)
    assert python.infer("py_identity", [numbers], id="42").outputs["OUTPUT0"].raw == numbers.raw
    words = text("INPUT0", [b"a", b"", "grün".encode(), b"x" * 10_000])
    assert python.infer("py_strings", [words]).outputs["OUTPUT0"].raw == words.raw
    a, b = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)
    reply = python.infer("py_add_sub", [int32("INPUT0", [a]), int32("INPUT1", [b])])
    assert (reply.outputs["OUTPUT0"].raw, reply.outputs["OUTPUT1"].raw) == ((a + b).tobytes(), (a - b).tobytes())
    reply = python.infer("py_add_sub", [int32("INPUT0", [a]), int32("INPUT1", [b])], [RequestedOutput("OUTPUT1")])
    assert list(reply.outputs) == ["OUTPUT1"]


def test_errors_of_a_model_are_reported(python):
    with refuses("INTERNAL", WRONG + "RuntimeError: this model does not want to"):
        do(python, "py_actions", "raise_")
    assert said(do(python, "py_actions", "ok", "as before")) == "as before"


def test_tensors_lie_in_regions(python):
    values = np.random.default_rng(3).random(1 << 16, np.float32)
    size = values.nbytes
    with registered(python, 2 * size, values.tobytes()) as made:
        given = [Given("INPUT0", "FP32", [len(values)], region=(made.name, size, 0))]
        python.infer("py_identity", given, [RequestedOutput("OUTPUT0", (made.name, size, size))])
        assert made.read(size, size) == values.tobytes()


def test_a_decoupled_model_answers_many_times(compiled_python):
    with grpc_channel(compiled_python.grpc) as channel:
        stream = Stream(channel)
        code = "send(text('a')); send(text('b')); send(flags=FINAL)"
        assert stream.send(code).rest() == ["a", "b", "|"]
        stream.sent.put(None)


def test_statistics_count_its_executions(compiled_python):
    with open_client("http", compiled_python) as client:
        client.infer("py_identity", [fp32("INPUT0", [1])])
    page = http_call(compiled_python.http, "GET", "/v2/models/py_identity/stats").json["model_stats"]
    assert page[0]["inference_count"] > 0 and page[0]["execution_count"] > 0
