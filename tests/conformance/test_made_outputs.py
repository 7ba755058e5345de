"""What does a client get where a model leaves an output out, or makes another one than its configuration says?"""

import concurrent.futures
import dataclasses
import queue
import time

import numpy as np
import pytest
import python_catalogue
import tritonclient.grpc as triton
from clients import RequestedOutput, differs, fp32, open_client, refuses
from footprint import wait_until
from python_catalogue import DECOUPLED, tensors
from regions import registered

# Makes A, and B as well where the input is positive.
PARTIAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            names = ["A", "B"] if array.ravel()[0] > 0 else ["A"]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, array.copy()) for name in names]))
        return responses
"""
# Sends A, and where the input is positive B, each in a response of its own.
SENDS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for name in ["A", "B"] if array[0] > 0 else ["A"]:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(name, array.copy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Makes FP64 where the input is positive, and else another shape.
CONTRADICTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            array = array.astype(np.float64) if array[0] > 0 else np.zeros((2, 2), np.float32)
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("A", array)]))
        return made
"""
# A batch waits for two requests.
PAIRS = "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }\n"
ENSEMBLE = """
platform: "ensemble"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "B" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }]
ensemble_scheduling { step [{ model_name: "partial" model_version: -1 input_map { key: "IN" value: "IN" }
  output_map { key: "A" value: "A" } output_map { key: "B" value: "B" } }] }
"""
OLD = b"old!" * 2
NOT_MADE = "did not make output 'B', which the request placed in memory"
THAT_IS_AN_ERROR = "Triton answers without the output, and the memory keeps its earlier bytes"


@pytest.fixture(scope="module")
def making(launcher):
    """A server with models that make not what their configurations say."""
    repository = launcher.copy_of(f"made_outputs_{time.monotonic_ns()}")

    def put(name: str, source: str, **more) -> None:
        model = python_catalogue.python(name, "identity", tensors(IN="FP32"), tensors(A="FP32", B="FP32"), **more)
        python_catalogue.put(repository, dataclasses.replace(model, source=source))

    put("partial", PARTIAL)
    put("pairs", PARTIAL, max_batch=2, extra=PAIRS)
    put("sends", SENDS, extra=DECOUPLED)
    put("types", CONTRADICTS)
    put("shapes", CONTRADICTS)
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    with launcher.running(repository.name, repository=repository) as server:
        yield server


def both_in(made) -> list[RequestedOutput]:
    return [RequestedOutput("A"), RequestedOutput("B", (made.name, len(OLD), 0))]


@differs(THAT_IS_AN_ERROR)
@pytest.mark.parametrize("model", ["partial", "whole"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_in_memory_that_was_not_made_is_an_error_that_names_it(making, protocol, model):
    with open_client(protocol, making) as client, registered(client, 4096, OLD) as made:
        with refuses("INTERNAL", f"model '{model}' {NOT_MADE}"):
            client.infer(model, [fp32("IN", [-1, 2])], both_in(made))
        assert made.read(len(OLD)) == OLD
        client.infer(model, [fp32("IN", [1, 2])], both_in(made))
        assert made.read(8) == np.array([1, 2], np.float32).tobytes()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_in_the_message_that_was_not_made_is_left_out(making, protocol):
    with open_client(protocol, making) as client:
        reply = client.infer("partial", [fp32("IN", [-1, 2])], [RequestedOutput("A"), RequestedOutput("B")])
    assert list(reply.outputs) == ["A"]


@differs(THAT_IS_AN_ERROR)
def test_the_other_requests_of_a_batch_have_their_results(making):
    with open_client("http", making) as client, registered(client, 4096, OLD) as made, concurrent.futures.ThreadPoolExecutor(2) as pool:

        def call(outputs):
            with open_client("http", making) as own:
                return own.infer("pairs", [fp32("IN", [-1, 2], [1, 2])], outputs)

        placed, inline = pool.submit(call, both_in(made)), pool.submit(call, [RequestedOutput("A")])
        with refuses("INTERNAL", f"model 'pairs' {NOT_MADE}"):
            placed.result(60)
        assert inline.result(60).outputs["A"].raw == np.array([-1, 2], np.float32).tobytes()


@differs(THAT_IS_AN_ERROR)
def test_a_decoupled_model_may_make_it_in_any_response_and_the_error_comes_with_the_end(making):
    def call(value: float, region: str) -> list:
        answers: queue.Queue = queue.Queue()
        given, placed = triton.InferInput("IN", [2], "FP32"), triton.InferRequestedOutput("B")
        given.set_data_from_numpy(np.full(2, value, np.float32))
        placed.set_shared_memory(region, len(OLD))
        with triton.InferenceServerClient(making.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("sends", [given], outputs=[triton.InferRequestedOutput("A"), placed], enable_empty_final_response=True)
            found = []
            while True:
                result, error = answers.get(timeout=60)
                found.append(str(error) if error else [output.name for output in result.get_response().outputs])
                if error or result.get_response().parameters["triton_final_response"].bool_param:
                    return found

    with open_client("http", making) as client, registered(client, 4096, OLD) as made:
        assert call(1, made.name) == [["A"], ["B"], []]
        first, end = call(-1, made.name)
        assert first == ["A"] and f"model 'sends' {NOT_MADE}" in end


@differs("2.51 says nothing")
@pytest.mark.parametrize(("model", "value", "text"), [
    ("types", 1, "output 'A' has datatype FP64, where its configuration says FP32"),
    ("shapes", -1, "output 'A' has shape [2,2], where its configuration says [-1]"),
])  # fmt: skip
def test_a_contradiction_to_the_configuration_is_logged_once_and_in_the_index(making, model, value, text):
    with open_client("http", making) as client:
        [entry] = [entry for entry in client.index() if entry["name"] == model]
        assert entry["state"] == "READY" and not entry["reason"]
        for _ in range(3):
            assert client.infer(model, [fp32("IN", [value])]).outputs["A"].datatype == ("FP64" if value > 0 else "FP32")
        [entry] = [entry for entry in client.index() if entry["name"] == model]
    assert (entry["state"], entry["reason"]) == ("READY", text)
    if making.log:
        wait_until(lambda: text in making.log_text())
        assert making.log_text().count(f"model '{model}': {text}; clients get it as it is") == 1
