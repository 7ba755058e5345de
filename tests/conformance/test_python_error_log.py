"""Does the server's log say why a Python model failed, and for which request?"""

import dataclasses
import json
import queue
import time

import numpy as np
import pytest
import python_catalogue
import tritonclient.grpc as triton
from python_catalogue import DECOUPLED, tensors

MODEL = """
import os

class TritonPythonModel:
    def execute(self, requests):
        if requests[0].request_id() == "dies":
            os._exit(3)
        raise RuntimeError("not today")
"""


@pytest.fixture(scope="module", params=["", DECOUPLED], ids=["default", "decoupled"])
def failing(launcher, request):
    """A server with a model that fails."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("reads the log of nerite")
    model = python_catalogue.python("fails", "identity", tensors(IN="FP32"), tensors(OUT="FP32"), extra=request.param)
    repository = launcher.copy_of(f"python_error_log_{time.monotonic_ns()}")
    python_catalogue.put(repository, dataclasses.replace(model, source=MODEL))
    with launcher.running(repository.name, "--log-format=json", repository=repository) as server:
        server.is_decoupled = bool(request.param)
        yield server


def fail(server, request_id: str) -> str:
    """The error of a request with that id."""
    answers = queue.Queue()
    tensor = triton.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("fails", [tensor], request_id=request_id)
        return str(answers.get(timeout=60))


def error_line(server, text: str) -> dict:
    """The only line of an error with that text."""
    deadline = time.monotonic() + 30
    while True:
        lines = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
        found = [line for line in lines if line["level"] == "error" and text in line["message"]]
        if found:
            (line,) = found
            return line
        assert time.monotonic() < deadline, server.log_text()[-3000:]
        time.sleep(0.1)


def test_an_exception_is_logged_as_the_client_gets_it(failing):
    error = fail(failing, "raises")
    line = error_line(failing, "not today")
    assert error.startswith("Failed to process the request(s) for model 'fails_0', message: RuntimeError: not today") and "model.py" in error
    assert line["message"].endswith(error), line
    if not failing.is_decoupled:
        assert line["request_id"] == "raises"


def test_a_process_that_died_is_logged_with_its_request(failing):
    assert "is not healthy" in fail(failing, "dies")
    line = error_line(failing, "is not healthy")
    assert "ended with code 3" in line["message"]
    if not failing.is_decoupled:
        assert line["request_id"] == "dies"
