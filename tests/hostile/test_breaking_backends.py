"""Does a compiled backend that breaks the interface's rules, or whose client does, harm anybody else?"""

import concurrent.futures
import os
import time

import pytest
from clients import Given, RequestedOutput, fp32, open_client, refuses
from compiled_setup import errors, put, serving
from gates import Gate
from meanwhile import Delay, again_if_too_late
from regions import registered

SIZE = 1 << 20
LATE_MS = 1500
BUSY_MS = 4000
HANG_MS = 8000
QUEUED = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }"
MODES = ["throw_away", "twice", "leak", "release_twice"]


@pytest.fixture(scope="module")
def breaking(launcher):
    if launcher.oracle:
        pytest.skip("Triton does not survive it")
    repository = launcher.scratch / "breaking"
    for mode in MODES:
        put(repository, mode, mode)
    put(repository, "well")
    put(repository, "asking", backend="asking")
    put(repository, "slow", "read_long", delay_ms="200")
    for name in ("queued", "crowded"):
        put(repository, name, "read_long", delay_ms=str(BUSY_MS), more=QUEUED)
    put(repository, "late", "late", delay_ms=str(LATE_MS))
    gate = Gate(launcher.scratch / "breaking_gate")
    put(repository, "read_long", "read_long", gate=str(gate.path), more="max_batch_size: 1")
    with serving(launcher, "breaking", repository, "--model-control-mode=explicit", "--load-model=*", sources=("sample", "asking")) as found:
        found.gate = gate
        yield found


@pytest.fixture
def client(breaking):
    with open_client("http", breaking) as found:
        yield found


def wait_for_error(server, *parts: str) -> None:
    deadline = time.monotonic() + 60
    while not any(all(part in line for part in parts) for line in errors(server)):
        assert time.monotonic() < deadline, (parts, errors(server))
        time.sleep(0.02)


def lives(client) -> None:
    assert client.infer("well", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw


def test_a_response_that_is_thrown_away_is_an_error(breaking, client):
    with refuses("INTERNAL", "the model ended its work on this request without a final response"):
        client.infer("throw_away", [fp32("IN", [1])], id="lost7")
    wait_for_error(breaking, "backend 'sample'", "[request id: lost7]", "without a final response")
    lives(client)


def test_what_is_sent_twice_is_sent_once(breaking, client):
    for _ in range(3):
        assert client.infer("twice", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw
    wait_for_error(breaking, "backend 'sample'", "TRITONBACKEND_ResponseSend", "the response", "is not there")
    wait_for_error(breaking, "backend 'sample'", "TRITONBACKEND_ResponseSend", "after the final response")
    lives(client)


def test_what_is_released_twice_is_released_once(breaking, client):
    for _ in range(3):
        assert client.infer("release_twice", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw
    wait_for_error(breaking, "backend 'sample'", "TRITONBACKEND_RequestRelease", "the request", "is not there")
    wait_for_error(breaking, "backend 'sample'", "TRITONBACKEND_RequestId", "the request", "is not there")
    lives(client)


def test_requests_that_are_never_released_keep_their_model_and_the_library(breaking, client):
    for _ in range(5):
        assert client.infer("leak", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw
    client.unload("leak")
    wait_for_error(breaking, "backend 'sample'", "never released 5 requests of instance 'leak_0'")
    lives(client)
    assert "model leak is finalized" not in breaking.log_text()


def test_a_model_ends_after_its_last_request_is_released(breaking, client):
    assert client.infer("late", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw
    client.unload("late")
    deadline = time.monotonic() + 60
    while "model late is finalized" not in breaking.log_text():
        assert time.monotonic() < deadline, breaking.log_text()
        lives(client)
        time.sleep(0.02)
    log = breaking.log_text()
    assert 0 < log.index("a request is released late") < log.index("instance late_0 is finalized"), log
    lives(client)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("lost", ["input", "output"])
def test_a_region_that_shrinks_while_a_backend_uses_it_fails_that_request(breaking, protocol, lost):
    with open_client(protocol, breaking) as client, registered(client, SIZE) as first, registered(client, SIZE) as second:
        given = [Given("IN", "FP32", [1, SIZE // 4], region=(first.name, SIZE, 0))]
        outputs = [RequestedOutput("OUT", (second.name, SIZE, 0))]
        client.infer("read_long", given, outputs)
        with concurrent.futures.ThreadPoolExecutor(1) as pool, breaking.gate.closed() as gate:
            began = time.monotonic()
            running = pool.submit(client.infer, "read_long", given, outputs)
            gate.has_run()
            gone = first if lost == "input" else second
            os.truncate(gone.path, 0)
            lives(client)
            gate.open()
            with refuses("INVALID_ARG", f"shared memory region '{gone.name}'"):
                running.result()
            assert time.monotonic() - began < 60
        lives(client)


def test_a_request_that_is_the_servers_is_neither_sent_again_nor_deleted(breaking, client):
    for _ in range(3):
        reply = client.infer("asking", [fp32("IN", [1])], parameters={"target": "slow", "breaks": 1, "wait": 1})
        assert reply.outputs["OUT"].raw is not None
    for call in ("TRITONSERVER_ServerInferAsync", "TRITONSERVER_InferenceRequestDelete"):
        wait_for_error(breaking, "backend 'asking'", call, "is the server's until its release function is called")
    wait_for_error(breaking, "backend 'asking'", "TRITONSERVER_InferenceResponseDelete", "is not there")
    lives(client)
    client.unload("asking")
    client.load("asking")
    reply = client.infer("asking", [fp32("IN", [1])], parameters={"target": "well"})
    assert reply.outputs["OUT"].raw == fp32("", [1]).raw


@again_if_too_late
def test_a_backend_that_hangs_when_it_gets_a_request_back_stops_no_timeouts(breaking, client):
    given = [fp32("IN", [1])]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        delay = Delay(BUSY_MS)
        busy = [pool.submit(client.infer, model, given) for model in ("queued", "crowded")]
        for model in ("queued", "crowded"):
            delay.wait_for_requests(breaking, model)
        with refuses("UNAVAILABLE", "Request timeout expired"):
            client.infer("asking", given, parameters={"target": "queued", "hang_ms": HANG_MS})
        for model in ("crowded", "queued", "crowded"):
            with refuses("UNAVAILABLE", "Request timeout expired"):
                client.infer(model, given)
        delay.must_last()
        # Without the clock, they would have waited for the end of these runs.
        assert not any(one.done() for one in busy)
        assert all(one.result().outputs["OUT"].shape == [1] for one in busy)
    lives(client)


def test_a_backend_is_loaded_and_unloaded_many_times(breaking, client):
    for _ in range(100):
        client.unload("well")
        client.load("well")
    lives(client)


