"""How does a model read the responses of another model, and what does the server hear of it?"""

import json
import socket

import numpy as np
import pytest
from model_server import ModelServer, given

SOURCE = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.failed = None

    def execute(self, requests):
        request = pb_utils.InferenceRequest(
            model_name="other", inputs=[pb_utils.get_input_tensor_by_name(requests[0], "IN")], requested_output_names=["OUT"])
        names = {"responses": request.exec(decoupled=True), "threading": threading, "time": time, "np": np, "pb_utils": pb_utils}
        exec(requests[0].request_id(), names)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(names.get("out"))))]
"""


class ModelProcess:
    """A child that asks another model, and the server's end of its calls."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.input = server.memory(4096)
        self.output = server.memory(4096)

    def run(self, code: str) -> int:
        """Has the model ask, and run the code. Returns the number of the call."""
        mapping, descriptors = self.server.mapping()
        request = self.server.request([given(self.input, "IN", np.ones(4, np.float32))], [["SAID", None, 0, 0, False]], id=code)
        self.server.send({"do": "execute", "requests": [request], "map": mapping, "forget": []}, descriptors)
        call = self.hear()
        assert call["infer"]["decoupled"]
        return call["call"]

    def hear(self):
        return self.server.receive(self.server.calls)

    def answer(self, message) -> None:
        self.server.calls.send(json.dumps(message).encode())

    def respond(self, call: int, final: bool = False) -> None:
        """Sends a response whose output the server keeps until the model has let it go."""
        place = ["OUT", "FP32", [4], self.output.segment, 0, 16]
        self.answer({"call": call, "final": final, "response": {"outputs": [place], "parameters": {}}, "own": [], "map": []})

    def said(self) -> str:
        """What the model answered with."""
        (response,) = self.server.receive()["responses"]
        return response["error"][1]


@pytest.fixture
def talk(tmp_path):
    with ModelServer(tmp_path, SOURCE) as server:
        server.initialize()
        yield ModelProcess(server)


def test_the_iterator_is_there_before_the_first_response(talk):
    call = talk.run("out = type(responses).__name__; print('there', flush=True)\nfor one in responses: out += '+'")
    while "there" not in talk.server.printed():
        assert talk.server.process.poll() is None
    talk.respond(call)
    assert talk.hear()["taken"] == call
    talk.respond(call, final=True)
    assert talk.said() == "ResponseIterator++"


def test_an_iterator_that_is_closed_cancels_the_request(talk):
    call = talk.run("next(responses); responses.close(); responses.close(); out = list(responses)")
    talk.respond(call)
    assert talk.hear()["taken"] == call
    assert talk.hear() == {"cancel": call}
    assert talk.said() == "[]"


def test_an_iterator_that_is_closed_before_the_first_response_cancels_the_request(talk):
    call = talk.run("responses.close(); out = list(responses)")
    assert talk.hear() == {"cancel": call}
    assert talk.said() == "[]"


CLOSED_ELSEWHERE = """
found = []
one = threading.Thread(target=lambda: found.append(list(responses)))
one.start()
while not responses._waiting.locked(): time.sleep(0.001)
responses.close()
one.join(60)
out = (one.is_alive(), found)
"""


def test_a_thread_that_waits_for_a_response_ends_when_another_closes_the_iterator(talk):
    call = talk.run(CLOSED_ELSEWHERE)
    assert talk.hear() == {"cancel": call}
    talk.answer({"call": call, "final": True, "response": {"error": ["CANCELLED", "cancelled"]}})
    assert talk.said() == "(False, [[]])"


def test_the_memory_of_responses_that_nobody_reads_is_let_go(talk):
    # The response has come before the iterator is closed, and nobody has read it.
    call = talk.run("responses._model_channel.calls._channel.wait(60); responses.close()")
    talk.respond(call)
    assert talk.hear() == {"cancel": call}
    assert talk.server.receive()["let_go"] == [talk.output.segment]


def test_inputs_that_the_server_does_not_find_are_sent_again(talk):
    call = talk.run("out = [one.output_tensors()[0].as_numpy().tolist() for one in responses]")
    space = talk.server.memory(4096)
    talk.answer({"call": call, "unknown": True})
    space_call = talk.hear()
    assert space_call["space"] >= 16
    mapping, descriptors = talk.server.mapping()
    answer = {"call": space_call["call"], "at": [space.segment, 0, 4096], "map": mapping}
    socket.send_fds(talk.server.calls, [json.dumps(answer).encode()], descriptors)
    again = talk.hear()
    assert again["infer"]["inputs"][0][3] == space.segment
    talk.output.put(np.full(4, 7, np.float32).tobytes(), 0)
    talk.respond(again["call"], final=True)
    assert talk.said() == "[[7.0, 7.0, 7.0, 7.0]]"
