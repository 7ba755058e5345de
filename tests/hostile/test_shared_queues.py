"""How long does a client wait for a model whose queue another one has filled?

What others wait for is counted in answers, not in time: how many of the flood were answered between the request of a witness and its answer.
Sequences wait in a backlog for the only slot of their model.
"""

import contextlib
import os
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_client
from batching_setup import batching, pending, put
from strangers import close_all, connections_of

NOBODY = 65534
DELAY_MS = 50
CONNECTIONS = 4
FLOOD = 100
BATCH = 4
# The run in progress, two turns of the other peer, and one run that ends while the answer is read.
RUNS_MAX = 4
# Sequences of a client with thousands of them. Its answers are counted late here, and others start late, so some more than its turn may be counted.
SEQUENCES = 3_000
COUNTED_MAX = 30
# Asks `alone`.
ENSEMBLE = """\
name: "ensemble"
platform: "ensemble"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step {
    model_name: "alone" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""
ALONE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
# One slot, which a sequence keeps until its END.
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 1 }"}
SEQUENCE_BATCHING = ALONE + "sequence_batching { max_sequence_idle_microseconds: 60000000 %s }\n"


@pytest.fixture(scope="module")
def repository(launcher):
    if launcher.oracle:
        pytest.skip("2.51 runs requests in the order of arrival")
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    found = launcher.copy_of("shared_queues", "identity_fp32")
    batched = batching("batched", max_batch=BATCH, delay_ms=DELAY_MS)
    put(launcher, found, batched)
    put(launcher, found, type(batched)(**(vars(batched) | {"name": "alone", "extra": ALONE})))
    for name, strategy in STRATEGIES.items():
        one_slot = {"name": name, "max_batch": 1, "extra": SEQUENCE_BATCHING % strategy}
        put(launcher, found, type(batched)(**(vars(batched) | one_slot)))
    (found / "ensemble" / "1").mkdir(parents=True)
    (found / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    return found


@pytest.fixture(scope="module")
def server(launcher, repository):
    with launcher.running("shared_queues", repository=repository) as found:
        yield found


class Flood:
    """Requests of one user over a few connections, all at once, and what became of them so far."""

    def __init__(self, server, model: str, count: int = FLOOD):
        self.answers, self.refusals, self.changed = 0, [], threading.Condition()
        self.clients = [
            triton_client.InferenceServerClient(server.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CONNECTIONS)
        ]
        given = triton_client.InferInput("INPUT0", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        for number in range(count):
            # Each is a sequence of one request.
            sequence = {"sequence_id": 1000 + number, "sequence_start": True, "sequence_end": True}
            more = sequence if model in STRATEGIES else {}
            self.clients[number % CONNECTIONS].async_infer(model, [given], self.ended, **more)

    def ended(self, result, error) -> None:
        with self.changed:
            if error is None:
                self.answers += 1
            else:
                self.refusals.append(error)
            self.changed.notify_all()

    def comes_to(self, answers: int, refusals: int = 0) -> None:
        with self.changed:
            come = self.changed.wait_for(lambda: self.answers >= answers and len(self.refusals) >= refusals, 60)
            assert come, (self.answers, self.refusals)

    def close(self) -> None:
        for client in self.clients:
            client.close()


def request_to(server, model: str, parameters: str = "{}") -> bytes:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[7]}],"parameters":%s}' % parameters.encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {server.http}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def request_as(server, model: str, uid: int, parameters: str = "{}") -> bytes:
    """The answer to one request of that user, over a connection of its own."""
    (one,) = connections_of(uid, server.http, 1, request_to(server, model, parameters))
    try:
        one.settimeout(60)
        found = b""
        while b"]" not in found.partition(b"\r\n\r\n")[2].partition(b'"data"')[2]:
            part = one.recv(1 << 16)
            assert part, found
            found += part
        return found
    finally:
        close_all([one])


@pytest.mark.parametrize("who", ["another user", "another connection of the user"])
@pytest.mark.parametrize("model", ["alone", "batched", "ensemble"])
def test_a_flood_keeps_nobody_else_waiting(server, model, who):
    with contextlib.closing(Flood(server, model)) as flood:
        flood.comes_to(1)
        for _ in range(3):
            before = flood.answers
            answer = request_as(server, model, NOBODY if who == "another user" else 0)
            between = flood.answers - before
            assert answer.startswith(b"HTTP/1.1 200") and b"7" in answer.partition(b'"data"')[2], answer
            # The flood's connections have two turns each before another one of the same user.
            turns = 0 if who == "another user" else 2 * CONNECTIONS
            assert between <= RUNS_MAX * (BATCH if model == "batched" else 1) + turns, f"{between} were answered first"
        assert flood.answers < FLOOD, "the flood was over before the last answer"
        flood.comes_to(FLOOD)
        assert flood.refusals == []


@pytest.mark.parametrize("model", ["alone", "batched"])
def test_a_flood_that_fills_the_queue_keeps_nobody_out(launcher, repository, model):
    most = 20
    with launcher.running("shared_queues_full", f"--queue-requests-max={most}", repository=repository) as server:
        with contextlib.closing(Flood(server, model)) as flood:
            # More than the rest finds no place, so the queue is full.
            flood.comes_to(1, FLOOD // 4)
            for _ in range(3):
                assert request_as(server, model, NOBODY).startswith(b"HTTP/1.1 200")
            flood.comes_to(most)
            with flood.changed:
                assert flood.changed.wait_for(lambda: flood.answers + len(flood.refusals) == FLOOD, 60)
            for error in flood.refusals:
                assert error.status() == str(grpc.StatusCode.UNAVAILABLE)
                assert f"Exceeds maximum queue size: {most} requests wait for model '{model}'" in error.message()


def sequence_as(server, model: str, uid: int, flood: Flood) -> list[int]:
    """How many of the flood were answered between each request and the answer of a sequence of three, of that user."""
    between = []
    for step in range(3):
        flags = f'"sequence_start":{str(step == 0).lower()},"sequence_end":{str(step == 2).lower()}'
        before = flood.answers
        answer = request_as(server, model, uid, f'{{"sequence_id":7,{flags}}}')
        between.append(flood.answers - before)
        assert answer.startswith(b"HTTP/1.1 200") and b"7" in answer.partition(b'"data"')[2], answer
    return between


@pytest.mark.parametrize("model", STRATEGIES)
def test_a_backlog_of_thousands_of_sequences_keeps_nobody_else_waiting(launcher, repository, model):
    with launcher.running("shared_backlog", repository=repository) as server:
        with contextlib.closing(Flood(server, model, SEQUENCES)) as flood:
            # Once all of the flood has come, nothing but its runs is under way.
            until = time.monotonic() + 60
            while pending(server, model) + flood.answers < SEQUENCES - CONNECTIONS:
                assert time.monotonic() < until, (pending(server, model), flood.answers)
                time.sleep(DELAY_MS / 1000)
            for _ in range(3):
                begins, goes_on, _ = sequence_as(server, model, NOBODY, flood)
                assert begins <= COUNTED_MAX, f"{begins} were answered before the sequence of another user began"
                # The slot is the sequence's own until its END.
                assert goes_on <= COUNTED_MAX, f"{goes_on} were answered while the sequence had the slot"
            assert pending(server, model) > 0, "the flood was over before the last answer"
            assert flood.refusals == []


@pytest.mark.parametrize("model", STRATEGIES)
def test_a_backlog_that_is_full_keeps_nobody_out(launcher, repository, model):
    most = 20
    with launcher.running("shared_backlog_full", f"--queue-requests-max={most}", repository=repository) as server:
        with contextlib.closing(Flood(server, model)) as flood:
            flood.comes_to(1, FLOOD // 4)
            sequence_as(server, model, NOBODY, flood)
            with flood.changed:
                assert flood.changed.wait_for(lambda: flood.answers + len(flood.refusals) == FLOOD, 60)
            assert flood.answers >= most - 1
            for error in flood.refusals:
                assert error.status() == str(grpc.StatusCode.UNAVAILABLE)
                assert f"Exceeds maximum queue size: {most} requests wait for model '{model}'" in error.message()
