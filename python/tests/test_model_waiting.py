"""Does the server hear which calls of a model keep ``execute`` from returning?"""

import json

import numpy as np
import pytest
from model_server import ModelServer, given

SOURCE = """
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils
from nerite_model import waiting

waiting.HELD_S, waiting._LOOK_AGAIN_S = 0.3, 0.05

def ask():
    return pb_utils.InferenceRequest(model_name="other", inputs=[], requested_output_names=["OUT"])

class TritonPythonModel:
    def initialize(self, args):
        self.names = {"ask": ask, "asyncio": asyncio, "threading": threading, "pb_utils": pb_utils, "kept": []}

    def execute(self, requests):
        exec(requests[0].request_id(), self.names)
        if "coroutine" in self.names:
            return self.with_coroutine(self.names.pop("coroutine"))
        return [self.answer()]

    async def with_coroutine(self, coroutine):
        await coroutine()
        return [self.answer()]

    def answer(self):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(self.names.get("out"))))
"""


class ModelProcess:
    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.input = server.memory(4096)

    def run(self, code: str) -> None:
        mapping, descriptors = self.server.mapping()
        request = self.server.request([given(self.input, "IN", np.ones(4, np.float32))], [["SAID", None, 0, 0, False]], id=code)
        self.server.send({"do": "execute", "requests": [request], "map": mapping, "forget": []}, descriptors)

    def hear(self):
        return self.server.receive(self.server.calls)

    def answer(self, call: int, error: str = "no") -> None:
        self.server.calls.send(json.dumps({"call": call, "final": True, "response": {"error": ["INTERNAL", error]}}).encode())

    def said(self) -> str:
        (response,) = self.server.receive()["responses"]
        return response["error"][1]

    def waits(self) -> bool:
        """What the next request of the model says. It is answered."""
        call = self.hear()
        self.answer(call["call"])
        return call["infer"]["waits"]


@pytest.fixture
def talk(tmp_path):
    with ModelServer(tmp_path, SOURCE) as server:
        server.initialize()
        yield ModelProcess(server)


GATHERED = """
async def coroutine():
    async def one(): return await ask().async_exec()
    await asyncio.gather(one(), one())
"""
LATER = """
async def later():
    await gate.wait()
    await ask().async_exec()

async def coroutine():
    global gate, task, loop
    gate, loop = asyncio.Event(), asyncio.get_running_loop()
    task = asyncio.ensure_future(later())
"""
OPEN_GATE = "loop.call_soon_threadsafe(gate.set); asyncio.run_coroutine_threadsafe(asyncio.wait_for(task, 60), loop).result()"


@pytest.mark.parametrize(
    ("code", "expect"),
    [
        ("ask().exec()", [True]),
        ("one = threading.Thread(target=lambda: ask().exec()); one.start(); one.join()", [False]),
        ("async def coroutine(): await ask().async_exec()", [True]),
        (GATHERED, [True, True]),
    ],
)
def test_a_call_says_whether_execute_waits_for_it(talk, code, expect):
    talk.run(code)
    assert [talk.waits() for _ in expect] == expect
    assert talk.said() == "None"


def test_a_task_of_an_earlier_batch_keeps_no_later_one(talk):
    talk.run(LATER)
    assert talk.said() == "None"
    talk.run(OPEN_GATE)
    assert talk.waits() is False
    assert talk.said() == "None"


def test_the_server_hears_of_a_thread_that_a_long_batch_may_wait_for(talk):
    # Execute joins the thread, and its answer could only come from this instance.
    talk.run("one = threading.Thread(target=lambda: kept.append(ask().exec().error().message())); one.start(); one.join(); out = kept")
    call = talk.hear()
    assert call["infer"]["waits"] is False
    assert talk.hear() == {"waits": call["call"]}
    talk.answer(call["call"], "waits for itself")
    assert talk.said() == "['waits for itself']"


def test_the_server_hears_nothing_of_a_thread_while_no_batch_runs(talk):
    talk.run("one = threading.Thread(target=lambda: kept.append(ask().exec())); one.start()")
    call = talk.hear()
    assert talk.said() == "None"
    talk.server.calls.settimeout(1)
    with pytest.raises(TimeoutError):
        talk.hear()
    talk.server.calls.settimeout(60)
    talk.answer(call["call"])
    talk.run("one.join(); out = len(kept)")
    assert talk.said() == "1"
