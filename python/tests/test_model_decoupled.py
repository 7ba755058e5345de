"""Does a decoupled model's process tell each response at once, wait for the places of the next, and say what it lets go of?"""

import numpy as np
import pytest
from model_server import given, serialised, start  # noqa: F401

MODEL = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

def text(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], dtype=object))])

class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        import json
        known = {"pb_utils": pb_utils, "np": np, "text": text, "self": self, "threading": threading}
        code = json.loads(requests[0].parameters())["code"]
        known.update(request=requests[0], send=requests[0].get_response_sender().send)
        requests = None
        try:
            exec(code, known)
        finally:
            known.clear()
"""
PLACE = 4096


class ModelProcess:
    """The server's side of a decoupled model."""

    def __init__(self, start):
        self.server = start(MODEL, ready=False)
        assert "ready" in self.server.initialize(decoupled=True)
        self.out = self.server.memory(2 * PLACE)

    def execute(self, code, inputs=(), place=None):
        """Sends a request; its first response may be written to the first place, or to this one."""
        outputs = [place or ["OUT", self.out.segment, 0, PLACE, False]]
        request = self.server.request(inputs, outputs, parameters={"code": code})
        mapping, descriptors = self.server.mapping()
        self.server.send({"do": "execute", "requests": [request], "map": mapping, "forget": []}, descriptors)
        return request["number"]

    def hear(self):
        return self.server.receive(self.server.calls)

    def grant(self, call, at=PLACE, place=None):
        import json

        outputs = [place or ["OUT", self.out.segment, at, PLACE, False]]
        self.server.calls.send(json.dumps({"call": call, "outputs": outputs, "map": []}).encode())


@pytest.fixture
def talk(start):  # noqa: F811
    return ModelProcess(start)


def output(at, words):
    return [["OUT", "BYTES", [1], 1, at, len(words) + 4]]


def test_each_response_is_sent_at_once_and_the_next_waits_for_its_memory(talk):
    number = talk.execute("send(text('first')); send(text('second')); send(flags=1)")
    first = talk.hear()
    assert first == {"call": 1, "respond": number, "final": False, "response": {"outputs": output(0, "first"), "parameters": {}}}
    assert talk.out.get(0, 9) == serialised(b"first")
    with pytest.raises(TimeoutError):
        talk.server.calls.settimeout(0.2)
        talk.hear()
    talk.server.calls.settimeout(60)
    talk.grant(1)
    second = talk.hear()
    assert (second["call"], second["response"]["outputs"]) == (2, output(PLACE, "second"))
    # The end says nothing of places, so it waits for none.
    assert talk.hear() == {"respond": number, "final": True}
    assert talk.server.receive() == {"responses": []}
    assert talk.hear() == {"release": number}


def test_a_last_response_is_not_answered(talk):
    number = talk.execute("send(text('only'), 1)")
    message = talk.hear()
    assert message == {"respond": number, "final": True, "response": {"outputs": output(0, "only"), "parameters": {}}}


def test_responses_after_the_end_of_a_request_are_not_sent(talk):
    number = talk.execute("send(text('a')); send(text('b')); send(text('c')); send(flags=1)")
    assert talk.hear()["call"] == 1
    talk.server.calls.send(b'{"call":1,"over":true}')
    assert talk.hear() == {"respond": number, "final": True}


def test_what_the_model_keeps_of_its_inputs_is_held_until_it_lets_go(talk):
    memory = talk.server.memory(4096)
    request = given(memory, "IN", np.arange(4, dtype=np.float32))
    number = talk.execute("self.kept.append(request.inputs()[0].as_numpy()); send(flags=1)", [request])
    assert talk.hear() == {"respond": number, "final": True}
    assert talk.server.receive() == {"responses": []}
    assert talk.hear() == {"release": number, "held": [memory.segment]}
    # An idle model looks once a second what it has let go of.
    other = talk.execute("self.kept.clear(); send(flags=1)")
    assert talk.hear() == {"respond": other, "final": True}
    assert talk.server.receive() == {"responses": []}
    assert talk.hear() == {"release": other, "let_go": [memory.segment]}


def test_a_request_that_the_model_drops_is_released(talk):
    number = talk.execute("pass")
    assert talk.server.receive() == {"responses": []}
    assert talk.hear() == {"release": number}


def test_an_error_of_execute_ends_the_request(talk):
    number = talk.execute("send(text('a')); raise ValueError('no')")
    assert talk.hear()["call"] == 1
    message = talk.hear()
    assert (message["respond"], message["final"]) == (number, True)
    code, failed = message["response"]["failed"]
    assert code == "INTERNAL" and failed.startswith("Failed to process the request(s) for model 'm_0', message: ValueError: no\n\nAt:\n")
    assert talk.server.receive() == {"responses": []}


def test_memory_that_is_too_small_is_replaced(talk):
    number = talk.execute("send(text('x' * 5000), 1)")
    assert talk.hear() == {"call": 1, "place": [number, "OUT", 5004]}
    larger = talk.server.memory(8192)
    mapping, descriptors = talk.server.mapping()
    answer = {"call": 1, "at": [larger.segment, 64, 8000], "map": mapping}
    before, talk.server.channel = talk.server.channel, talk.server.calls
    talk.server.send(answer, descriptors)
    talk.server.channel = before
    (made,) = talk.hear()["response"]["outputs"]
    assert made == ["OUT", "BYTES", [1], larger.segment, 64, 5004]


def test_a_request_that_runs_again_is_returned_before_the_batch_is_answered(talk):
    number = talk.execute("request.set_release_flags(2); send(text('first')); self.kept.append(send)")
    assert (talk.hear()["call"], talk.hear()) == (1, {"call": 2, "again": [number]})
    talk.server.channel.settimeout(0.2)
    with pytest.raises(TimeoutError):
        talk.server.receive()
    talk.server.channel.settimeout(60)
    talk.server.calls.send(b'{"call":2,"done":true}')
    assert talk.server.receive() == {"responses": []}
    # The sender of that run is closed.
    talk.execute("import pytest\nwith pytest.raises(pb_utils.TritonModelException, match='closed'): self.kept.pop()(text('late'))\nsend(flags=1)")
    message = [talk.hear() for _ in range(2)]
    assert {"release": number} in message


def test_a_later_run_asks_for_the_memory_of_its_outputs(talk):
    request = talk.server.request((), [], parameters={"code": "send(text('second'), 1)"}, **{"asks": True})
    talk.server.send({"do": "execute", "requests": [request], "map": [], "forget": []})
    assert talk.hear() == {"call": 1, "respond": request["number"], "final": False}
    mapping, descriptors = talk.server.mapping()
    import json
    import socket

    places = {"call": 1, "outputs": [["OUT", talk.out.segment, 0, PLACE, False]], "map": mapping}
    socket.send_fds(talk.server.calls, [json.dumps(places).encode()], descriptors)
    assert talk.hear()["response"]["outputs"] == output(0, "second")


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_responses_of_equal_requests_lie_where_their_own_place_is(talk, is_first):
    """The client's own place is that of the first response, or of the second one."""
    region = talk.server.memory(PLACE)
    own, other = ["OUT", region.segment, 64, 64, True], ["OUT", talk.out.segment, 128, 64, False]
    first, second = (own, other) if is_first else (other, own)
    code = (
        "self.n = getattr(self, 'n', 0) + 2\n"
        "for n in (self.n, self.n + 1): send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.full(4, n, 'f4'))]), n % 2)"
    )

    def mapped() -> int:
        with open(f"/proc/{talk.server.process.pid}/maps") as file:
            return sum("memfd:test" in line for line in file)

    for at in range(1, 6):
        number = talk.execute(code, place=first)
        for n, place in ((2 * at, first), (2 * at + 1, second)):
            message = talk.hear()
            assert message["response"]["outputs"] == [["OUT", "FP32", [4], *place[1:3], 16]]
            memory = talk.server.segments[place[1]]
            assert memory.get(place[2], 16) == np.full(4, n, np.float32).tobytes()
            if not message["final"]:
                talk.grant(message["call"], place=second)
        assert talk.server.receive() == {"responses": []}
        assert talk.hear() == {"release": number}
    assert mapped() == 2
    talk.server.send({"forget": [region.segment]})
    talk.server.exchange({"do": "ready"})
    assert mapped() == 1
