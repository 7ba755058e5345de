"""How long does a client wait for a model whose queue another one has filled?

What others wait for is counted in runs, not in time: how many of the flood began to run between the arrival of a witness's request and its own run. Both are
times of the server, because this process may be held up.
Sequences wait in a backlog for the only slot of their model.
"""

import contextlib
import os
import threading
import time
import uuid

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_client
from batching_setup import batching, pending, put
from meanwhile import TooLate, again_if_too_late
from server_times import times_of, tracing
from strangers import close_all, connections_of

NOBODY = 65534
DELAY_MS = 50
CONNECTIONS = 4
FLOOD = 100
BATCH = 4
# Two turns of the other peer, and two runs that begin while the request is on its way to the queue.
RUNS_MAX = 4
# Sequences of a client with thousands of them. Others start late on a busy machine, so some more than its turn may run first.
SEQUENCES = 3_000
FIRST_MAX = 30
# It has `alone` as its step.
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
def server(launcher, repository, tmp_path_factory):
    with traced(launcher, "shared_queues", repository, tmp_path_factory.mktemp("shared_queues")) as found:
        yield found


@contextlib.contextmanager
def traced(launcher, name: str, repository, folder):
    with launcher.running(name, *tracing(folder), repository=repository) as found:
        found.traces = folder
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
        self.ids = [uuid.uuid4().hex for _ in range(count)]
        for number, name in enumerate(self.ids):
            # Each is a sequence of one request.
            sequence = {"sequence_id": 1000 + number, "sequence_start": True, "sequence_end": True}
            more = sequence if model in STRATEGIES else {}
            self.clients[number % CONNECTIONS].async_infer(model, [given], self.ended, request_id=name, **more)

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

    def is_over(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.answers + len(self.refusals) == len(self.ids), 60)

    def close(self) -> None:
        for client in self.clients:
            client.close()


def request_to(server, model: str, name: str, parameters: str) -> bytes:
    body = b'{"id":"%s","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[7]}],"parameters":%s}' % (name.encode(), parameters.encode())
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {server.http}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def request_as(server, model: str, uid: int, parameters: str = "{}") -> str:
    """One request of that user over a connection of its own, which is answered; its id."""
    name = uuid.uuid4().hex
    (one,) = connections_of(uid, server.http, 1, request_to(server, model, name, parameters))
    try:
        one.settimeout(60)
        found = b""
        while b"]" not in found.partition(b"\r\n\r\n")[2].partition(b'"data"')[2]:
            part = one.recv(1 << 16)
            assert part, found
            found += part
        assert found.startswith(b"HTTP/1.1 200") and b"7" in found.partition(b'"data"')[2], found
        return name
    finally:
        close_all([one])


def first_of(times: dict[str, dict[str, int]], flood: Flood, name: str) -> int:
    """How many of the flood began to run after that request had come and before it began to run itself."""
    own = times[name]
    return sum(own["REQUEST_START"] < times[one]["COMPUTE_START"] < own["COMPUTE_START"] for one in flood.ids if one in times)


@pytest.mark.parametrize("who", ["another user", "another connection of the user"])
@pytest.mark.parametrize("model", ["alone", "batched", "ensemble"])
@again_if_too_late
def test_a_flood_keeps_nobody_else_waiting(server, model, who):
    rows = BATCH if model == "batched" else 1
    with contextlib.closing(Flood(server, model, FLOOD * rows)) as flood:
        flood.comes_to(1)
        ids = [request_as(server, model, NOBODY if who == "another user" else 0) for _ in range(3)]
        flood.comes_to(FLOOD * rows)
        assert flood.refusals == []
    times = times_of(server.traces, {*ids, *flood.ids})
    if max(times[one]["COMPUTE_START"] for one in flood.ids) < times[ids[-1]]["COMPUTE_START"]:
        # The flood was over before the last answer.
        raise TooLate
    for name in ids:
        first = first_of(times, flood, name)
        # The flood's connections have two turns each before another one of the same user.
        turns = 0 if who == "another user" else 2 * CONNECTIONS
        assert first <= RUNS_MAX * rows + turns, f"{first} ran first"


@pytest.mark.parametrize("model", ["alone", "batched"])
def test_a_flood_that_fills_the_queue_keeps_nobody_out(launcher, repository, model):
    most = 20
    with launcher.running("shared_queues_full", f"--queue-requests-max={most}", repository=repository) as server:
        with contextlib.closing(Flood(server, model)) as flood:
            # More than the rest finds no place, so the flood has all places that it may have.
            flood.comes_to(1, FLOOD // 4)
            for _ in range(3):
                request_as(server, model, NOBODY)
            flood.is_over()
            assert flood.answers >= 3 * most // 4
            for error in flood.refusals:
                assert error.status() == str(grpc.StatusCode.UNAVAILABLE)
                assert f"Exceeds maximum queue size: {most} requests may wait for model '{model}'" in error.message()


def sequence_as(server, model: str, uid: int) -> list[str]:
    """A sequence of three requests of that user, which are answered; their ids."""
    ids = []
    for step in range(3):
        flags = f'"sequence_start":{str(step == 0).lower()},"sequence_end":{str(step == 2).lower()}'
        ids.append(request_as(server, model, uid, f'{{"sequence_id":7,{flags}}}'))
    return ids


@pytest.mark.parametrize("model", STRATEGIES)
def test_a_backlog_of_thousands_of_sequences_keeps_nobody_else_waiting(launcher, repository, model, tmp_path):
    with traced(launcher, "shared_backlog", repository, tmp_path / "traces") as server:
        with contextlib.closing(Flood(server, model, SEQUENCES)) as flood:
            # Once all of the flood has come, nothing but its runs is under way.
            until = time.monotonic() + 60
            while pending(server, model) + flood.answers < SEQUENCES - CONNECTIONS:
                assert time.monotonic() < until, (pending(server, model), flood.answers)
                time.sleep(DELAY_MS / 1000)
            ids = [sequence_as(server, model, NOBODY) for _ in range(3)]
            assert pending(server, model) > 0, "the flood was over before the last answer"
            assert flood.refusals == []
            times = times_of(server.traces, {name for names in ids for name in names})
            for names in ids:
                begins, goes_on, _ = (first_of(times, flood, name) for name in names)
                assert begins <= FIRST_MAX, f"{begins} ran before the sequence of another user began"
                # The slot is the sequence's own until its END.
                assert goes_on <= FIRST_MAX, f"{goes_on} ran while the sequence had the slot"


@pytest.mark.parametrize("model", STRATEGIES)
def test_a_backlog_that_is_full_keeps_nobody_out(launcher, repository, model):
    most = 20
    with launcher.running("shared_backlog_full", f"--queue-requests-max={most}", repository=repository) as server:
        with contextlib.closing(Flood(server, model)) as flood:
            flood.comes_to(1, FLOOD // 4)
            sequence_as(server, model, NOBODY)
            flood.is_over()
            assert flood.answers >= 3 * most // 4
            for error in flood.refusals:
                assert error.status() == str(grpc.StatusCode.UNAVAILABLE)
                assert f"Exceeds maximum queue size: {most} requests may wait for model '{model}'" in error.message()
