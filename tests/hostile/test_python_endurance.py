"""Does nothing grow over many requests to Python models, decoupled ones and those that ask others included?

    NERITE_PYTHON_REQUESTS=100000 pytest -s tests/hostile/test_python_endurance.py     as many as that, instead of 5,000
"""

import contextlib
import os
import queue
import random
import threading
import time

import numpy as np
import pytest
import python_catalogue
from clients import Given, GrpcClient, Refused, RequestedOutput, grpc_channel, service_stub, text
from python_setup import strings
from pythons import CHILD_SLACK, RESIDENT_SLACK, in_all, processes_of, serving
from witness import MADE, any_client, descriptors, falls_to, lent, mappings, resident, settled

REQUESTS = int(os.environ.get("NERITE_PYTHON_REQUESTS", "5000"))
# Those that are not counted: what each process keeps for itself is there afterwards.
WARM_UP = max(500, REQUESTS // 20)
RESPONSES = 5
SIZE = 4096
MODELS = [*map(python_catalogue.named, ("py_decoupled", "py_asking", "py_identity")), python_catalogue.vector("py_witness", "identity")]
SENDS = f"for n in range({RESPONSES}): send(numbers(n, n + 0.5))\nsend(flags=FINAL)"
# The same, as an argument within a text.
SENT = SENDS.replace("\n", "\\n")
CALLS = {
    "nested": "out = said(request_of('py_identity', fp32(*{values})).exec())",
    "nested decoupled": f"out = [said(one) for one in request_of('py_decoupled', texts('{SENT}'), outputs=['MORE']).exec(decoupled=True)]",
}

pytestmark = pytest.mark.timeout(7200)


@pytest.fixture
def victim(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("a model's process that died stays dead in 2.51")
    with serving(launcher, "python_endurance", tmp_path / "socket", MODELS) as found:
        yield found


class DeadProcess(Exception):
    """A request was told of a process that died."""


class Way:
    """One way to ask, and to check the answer."""

    # What an error must say if a process was killed: one's own, or that of a model that was asked.
    ends = ("is not healthy", "was ended by signal 9", "cancelled", "canceled")

    def __init__(self, server):
        self.server, self.open, self.chance = server, contextlib.ExitStack(), random.Random(7)
        self.client = self.open.enter_context(any_client("grpc", server))

    def close(self) -> None:
        self.open.close()

    def check_error(self, said: str) -> None:
        assert any(end in said.lower() for end in self.ends), said
        raise DeadProcess(said)

    def said(self, code: str) -> str:
        try:
            reply = self.client.infer("py_asking", [text("CODE", [code.encode()])])
        except Refused as refusal:
            self.check_error(refusal.text)
        found = strings(reply.outputs["SAID"].raw)[0]
        if "error: " in found:
            self.check_error(found)
        return found


class Nested(Way):
    def send(self) -> None:
        values = [float(n) for n in self.chance.sample(range(1000), 3)]
        assert self.said(CALLS["nested"].format(values=values)) == str({"OUTPUT0": values})


class NestedDecoupled(Way):
    def send(self) -> None:
        found = self.said(CALLS["nested decoupled"])
        expected = [str({"MORE": [float(n), n + 0.5]}) for n in range(RESPONSES)]
        # The end of the responses may be one that has no outputs.
        assert found in (str(expected), str([*expected, "{}"])), found


class Decoupled(Way):
    """Over one gRPC stream."""

    def __init__(self, server):
        super().__init__(server)
        channel = self.open.enter_context(grpc_channel(server.grpc))
        self.requests, self.sent = GrpcClient(channel), queue.Queue()
        self.call = service_stub(channel).ModelStreamInfer(iter(self.sent.get, None), timeout=7200)

    def close(self) -> None:
        self.sent.put(None)
        self.call.cancel()
        super().close()

    def send(self) -> None:
        parameters = {"triton_enable_empty_final_response": True}
        self.sent.put(self.requests.request("py_decoupled", [text("CODE", [SENDS.encode()])], parameters=parameters))
        seen = []
        while True:
            one = next(self.call)
            if one.error_message:
                self.check_error(one.error_message)
            if one.infer_response.parameters["triton_final_response"].bool_param:
                break
            seen.append(np.frombuffer(one.infer_response.raw_output_contents[0], np.float32).tolist())
        assert seen == [[float(n), n + 0.5] for n in range(RESPONSES)]


class Plain(Way):
    """Inline and through a region, in turns."""

    def __init__(self, server):
        super().__init__(server)
        self.made = self.open.enter_context(lent(self.client, 2 * SIZE))

    def send(self) -> None:
        sent = self.chance.randbytes(SIZE)
        try:
            found = self.client.infer("py_identity", [Given("INPUT0", "FP32", [SIZE // 4], sent)]).outputs["OUTPUT0"].raw
            assert found == sent
            self.made.write(sent)
            given = Given("INPUT0", "FP32", [SIZE // 4], region=(self.made.name, SIZE, 0))
            self.client.infer("py_identity", [given], [RequestedOutput("OUTPUT0", (self.made.name, SIZE, SIZE))])
            assert self.made.read(SIZE, SIZE) == sent
        except Refused as refusal:
            self.check_error(refusal.text)


WAYS = (Nested, NestedDecoupled, Decoupled, Plain)


def test_many_requests_leave_nothing_that_grows(victim):
    """Descriptors, mappings and memory of the server and of its models' processes."""
    MADE.clear()
    with contextlib.ExitStack() as held:
        ways = [held.enter_context(contextlib.closing(way(victim))) for way in WAYS]

        def send(times: int) -> None:
            each = [threading.Thread(target=lambda way=way: [way.send() for _ in range(times // len(ways))]) for way in ways]
            failures = []
            hook, threading.excepthook = threading.excepthook, lambda failed: failures.append(failed.exc_value)
            try:
                for one in each:
                    one.start()
                for one in each:
                    one.join()
            finally:
                threading.excepthook = hook
            assert failures == []

        send(WARM_UP)
        before, children = held_by(victim), processes_of(victim.pid)
        since = time.monotonic()
        send(REQUESTS)
        took = time.monotonic() - since
        assert processes_of(victim.pid) == children, "a model's process died"
        slack = {"resident": RESIDENT_SLACK, "resident in processes": CHILD_SLACK * len(children)}
        left = {name: falls_to(lambda name=name: held_by(victim)[name], most + slack.get(name, 0)) for name, most in before.items()}
    print(f"{REQUESTS} requests in {took:.0f} s; " + ", ".join(f"{name} {left[name] - before[name]:+,}" for name in before))


def held_by(server) -> dict[str, int]:
    """What the server and its models' processes have."""
    children = processes_of(server.pid)
    looks = {
        "descriptors": lambda: descriptors(server.pid),
        "descriptors of processes": lambda: in_all(descriptors, children),
        "mappings": lambda: mappings(server.pid),
        "mappings of processes": lambda: in_all(mappings, children),
        "resident": lambda: resident(server.pid),
        "resident in processes": lambda: in_all(resident, children),
    }
    return {name: settled(look) for name, look in looks.items()}
