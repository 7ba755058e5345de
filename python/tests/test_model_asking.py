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
        self.output = server.memory(16)

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

    def respond(self, call: int, final: bool = False, memory=None) -> None:
        """Sends a response whose output the server keeps until the model has let it go."""
        memory = memory or self.output
        place = ["OUT", "FP32", [memory.byte_size // 4], memory.segment, 0, memory.byte_size]
        mapping, descriptors = self.server.mapping()
        answer = {"call": call, "final": final, "response": {"outputs": [place], "parameters": {}}, "own": [], "map": mapping}
        socket.send_fds(self.server.calls, [json.dumps(answer).encode()], descriptors)

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


AGAIN = """
first = [next(responses), *responses]
ended = next(responses, None)
again = list(responses)
for one in responses: break
out = (len(first), ended, [a is b for a, b in zip(first, again)], len(list(responses)), len(list(responses)))
"""


def test_an_iterator_that_was_read_to_its_end_starts_again(talk):
    call = talk.run(AGAIN)
    for _ in range(2):
        talk.respond(call)
        assert talk.hear()["taken"] == call
    talk.respond(call, final=True)
    assert talk.said() == "(3, None, [True, True, True], 2, 3)"


REFUSED = """
count = sum(1 for one in responses)
try: out = list(responses)
except RuntimeError as error: out = (count, str(error), list(responses._model_channel.keeping))
"""
NOT_KEPT = (
    "the responses of this request ({0}) were not kept for a second loop: an iterator keeps at most 64 tensors and 16777216 bytes, "
    "and an instance keeps those of at most 8 iterators; keep the responses in a list"
)


def test_a_long_stream_is_not_kept_for_a_second_loop(talk):
    call = talk.run(REFUSED)
    later = talk.server.memory(16)
    for memory in [talk.output] * 64 + [later]:
        talk.respond(call, memory=memory)
        assert talk.hear() == {"taken": call}
    # What was kept was dropped, and the loop's variable has changed.
    talk.respond(call, memory=later)
    assert talk.hear() == {"taken": call, "let_go": [talk.output.segment]}
    talk.respond(call, final=True, memory=later)
    assert talk.said() == str((67, NOT_KEPT.format(67), []))


def test_what_is_kept_for_a_second_loop_is_bounded_in_bytes(talk):
    call = talk.run(REFUSED)
    talk.respond(call, final=True, memory=talk.server.memory((16 << 20) + 4))
    assert talk.said() == str((1, NOT_KEPT.format(1), []))


MANY = """
from nerite_model.nested import ResponseIterator
others = [ResponseIterator._of(responses._model_channel, None, -number) for number in range(1, 9)]
out = [one._kept is not None for one in (responses, *others)]
responses.close()
others.append(ResponseIterator._of(responses._model_channel, None, -9))
out.append(others[-1]._kept is not None)
"""


def test_a_few_iterators_of_a_process_keep_their_responses(talk):
    call = talk.run(MANY)
    assert talk.hear() == {"cancel": call}
    assert talk.said() == str([True] * 8 + [False, True])


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
