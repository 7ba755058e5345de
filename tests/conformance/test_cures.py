"""Does an error that a new user meets say what to change?"""

import dataclasses
import queue
import time

import numpy as np
import pytest
import python_catalogue
import tritonclient.grpc as grpc
import tritonclient.http as triton
from python_catalogue import tensors
from tritonclient.utils import InferenceServerException

DIVIDES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            x /= 255
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
        return responses
"""
CURE = "let it compute another array, as in `x = x / 255` in place of `x /= 255`, or set its parameter PRIVATE_INPUTS to 'yes'"


@pytest.fixture(scope="module")
def novice(launcher):
    """A server with the first models of a new user."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 names no cures")
    repository = launcher.copy_of(f"cures_{time.monotonic_ns()}")

    def put(name: str, inputs=tensors(IN="FP32"), **more) -> None:
        model = python_catalogue.python(name, "identity", inputs, tensors(OUT="FP32"), **more)
        python_catalogue.put(repository, dataclasses.replace(model, source=DIVIDES))

    put("divides", max_batch=4)
    put("copies", extra=python_catalogue.parameters(PRIVATE_INPUTS="yes"))
    put("decoupled", extra=python_catalogue.DECOUPLED)
    # Without a configuration.
    put("bare", inputs=())
    with launcher.running(repository.name, repository=repository) as server:
        yield server


def error_of(server, model: str, *inputs: str, shape=(1, 2), outputs=()) -> str:
    given = [triton.InferInput(name, list(shape), "FP32") for name in inputs]
    for one in given:
        one.set_data_from_numpy(np.ones(shape, np.float32))
    with triton.InferenceServerClient(server.http) as client, pytest.raises(InferenceServerException) as refused:
        client.infer(model, given, outputs=[triton.InferRequestedOutput(name) for name in outputs] or None)
    return refused.value.message()


@pytest.mark.parametrize("model", ["divides", "decoupled"])
def test_a_model_that_writes_to_its_input_is_told_the_cure(novice, model):
    answers: queue.Queue = queue.Queue()
    with grpc.InferenceServerClient(novice.grpc) as client:
        given = grpc.InferInput("IN", [1, 2] if model == "divides" else [2], "FP32")
        given.set_data_from_numpy(np.ones(given.shape(), np.float32))
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer(model, [given])
        error = str(answers.get(timeout=60))
    assert "ValueError: output array is read-only; " in error and CURE in error


def test_the_cure_works(novice):
    given = triton.InferInput("IN", [1], "FP32")
    given.set_data_from_numpy(np.full(1, 255, np.float32))
    with triton.InferenceServerClient(novice.http) as client:
        assert client.infer("copies", [given]).as_numpy("OUT").tolist() == [1]


def test_a_request_that_does_not_fit_is_told_what_the_model_takes(novice):
    error = error_of(novice, "divides", "IN", shape=(5, 2))
    assert "batch-size must be <= 4 for 'divides', got 5; to raise it, set max_batch_size in the model's configuration" in error
    assert error_of(novice, "divides", "X") == "unexpected inference input 'X' for model 'divides', allowed inputs are: ['IN']"
    unknown = error_of(novice, "divides", "IN", outputs=["Y"])
    assert unknown == "unexpected inference output 'Y' for model 'divides', allowed outputs are: ['OUT']"
    surplus = error_of(novice, "divides", "IN", "X")
    assert surplus.endswith("Got input(s) ['IN','X'], but the model has only input(s) ['IN'].")


def test_a_model_without_a_configuration_is_said_to_have_no_inputs_when_it_loads(novice):
    assert "model 'bare' has no inputs: neither its config.pbtxt nor auto_complete_config of its class names any" in novice.log_text()
