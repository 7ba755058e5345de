"""Does a compiled backend in a process of its own answer later and several times, and what if it dies with such requests?"""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import threading
import time

import grpc
import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, fp32, grpc_channel, http_call, int32, open_client
from compiled_setup import put, serving, workers_of
from gates import Gate
from regions import registered
from test_copies import copying
from test_decoupled import Stream
from witness import comes_to, maps_with

SIZE = 1 << 20
LATE_MS = 300
DECOUPLED = "model_transaction_policy { decoupled: true }"
ONE = "instance_group { kind: KIND_CPU count: 1 }"


@pytest.fixture(scope="module")
def answering(launcher):
    if launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    repository = launcher.scratch / "isolated_answers"
    put(repository, "late", "late", delay_ms=str(LATE_MS), more=ONE)
    put(repository, "repeat", "repeat", datatype="INT32", more=ONE + DECOUPLED)
    put(repository, "well", more=ONE)
    put(repository, "counts", "count", more=ONE)
    gate = Gate(launcher.scratch / "isolated_answers_gate")
    put(repository, "slow", "read_long", gate=str(gate.path), more=ONE)
    put(repository, "asking", backend="asking", more=ONE)
    put(repository, "again", "again", backend="sequences", more=ONE + "sequence_batching { iterative_sequence: true }")
    flags = ["--backend-config=isolated=true", "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false"]
    with serving(launcher, "isolated_answers", repository, *flags, sources=("sample", "asking", "sequences")) as found:
        found.gate = gate
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, answering):
    with open_client(request.param, answering) as found:
        yield found


def workers_with(server, instance: str) -> list[int]:
    """The processes of that instance, one at most."""
    found = []
    for pid in workers_of(server):
        with contextlib.suppress(OSError):
            if instance.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def process_that_has(server, name: str, model: str) -> int:
    """The process of that model's instance, which has the region mapped."""
    argument = f"{model}_0_0".encode()
    having = [pid for pid in workers_of(server) if maps_with(pid, name)]
    (found,) = [pid for pid in having if argument in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return found


def executions(server) -> float | None:
    """The value of the counter that the backend of `counts` made; None if there is none."""
    page = http_call(server.metrics, "GET", "/metrics").body.decode().splitlines()
    lines = [line for line in page if line.startswith('sample_executions{model="counts"}')]
    return float(lines[0].split()[-1]) if lines else None


def test_metrics_of_a_process_are_on_the_servers_page_and_go_with_it(answering, client):
    # The process lives, and the backend has made its counter.
    client.infer("counts", [fp32("IN", [1])])
    before = executions(answering)
    for _ in range(2):
        client.infer("counts", [fp32("IN", [1])])
    assert executions(answering) == before + 2
    (pid,) = workers_with(answering, "counts_0_0")
    os.kill(pid, signal.SIGKILL)
    # The next process is started at once, and makes a counter of its own.
    comes_to(lambda: executions(answering), 0.0)
    client.infer("counts", [fp32("IN", [1])])
    assert executions(answering) == 1


def test_a_request_that_is_answered_on_another_thread(client):
    """The backend reads its inputs for a while after it has answered, and other requests come meanwhile."""
    for number in range(3):
        assert client.infer("late", [fp32("IN", [number, 5])]).outputs["OUT"].raw == fp32("", [number, 5]).raw


def test_requests_that_are_answered_after_their_run_are_not_mixed_up(answering):
    failures = []

    def infer(number: int) -> None:
        try:
            with open_client("http", answering) as client:
                for value in range(5):
                    sent = fp32("IN", [number, value])
                    assert client.infer("late", [sent]).outputs["OUT"].raw == sent.raw
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=infer, args=[number]) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []


def test_nothing_is_copied_of_a_request_that_is_answered_later(answering, client):
    with registered(client, 2 * SIZE, b"\x01" * SIZE) as made:
        given = [Given("IN", "FP32", [SIZE // 4], region=(made.name, SIZE, 0))]
        with copying(answering):
            for _ in range(3):
                client.infer("late", given, [RequestedOutput("OUT", (made.name, SIZE, SIZE))])
        assert made.read(SIZE, SIZE) == b"\x01" * SIZE


def test_a_model_is_unloaded_after_the_backend_has_released_its_request(answering):
    with open_client("http", answering) as client:
        client.infer("late", [fp32("IN", [1])])
        client.unload("late")
        comes_to(lambda: "instance late_0_0 is finalized" in answering.log_text(), True)
        log = answering.log_text()
        assert log.rindex("a request is released late") < log.rindex("instance late_0_0 is finalized")
        client.load("late")
        client.infer("late", [fp32("IN", [1])])


def test_a_request_whose_process_is_killed_while_it_asks_is_told(answering, client):
    """The model that it asks takes long, and lives on."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    with registered(client, 4096, bytes(4096)) as made, pool, answering.gate.closed() as gate:
        given = [Given("IN", "FP32", [1], region=(made.name, 4, 0))]
        running = pool.submit(client.infer, "asking", given, parameters={"target": "slow", "wait": 1})
        gate.has_run()
        os.kill(process_that_has(answering, made.path.name, "asking"), signal.SIGKILL)
        failure = running.exception()
    assert "was ended by signal 9 (SIGKILL) while it had this request" in failure.text
    assert client.infer("slow", [fp32("IN", [1])]).outputs["OUT"].raw is not None
    assert client.infer("asking", [fp32("IN", [1])], parameters={"target": "well"}).outputs["OUT"].raw == fp32("", [1]).raw


def test_a_request_that_runs_again_and_again_is_told_when_its_process_is_killed(answering, client):
    ended = []

    def infer() -> None:
        try:
            client.infer("again", [fp32("IN", [1e9])])
        except Refused as refused:
            ended.append(refused.text)

    thread = threading.Thread(target=infer)
    thread.start()
    deadline = time.monotonic() + 60
    # After a kill between two runs, another process has the next one. A process that is killed while it loads would fail the request with another text.
    while thread.join(0.2) or thread.is_alive():
        assert time.monotonic() < deadline
        http_call(answering.http, "GET", "/v2/models/again/ready").ok()
        for pid in workers_with(answering, "again_0_0"):
            os.kill(pid, signal.SIGKILL)
    (text,) = ended
    assert "was ended by signal 9 (SIGKILL) while it had this request" in text
    for runs_wanted in (1, 50):
        reply = client.infer("again", [fp32("IN", [runs_wanted])])
        assert np.frombuffer(reply.outputs["OUT"].raw, np.float32).tolist() == [runs_wanted]


def test_a_stream_whose_process_is_killed_is_told(answering):
    """A client that reads nothing has its stream kept open: the backend waits for it."""
    with open_client("http", answering) as http, registered(http, SIZE, np.arange(SIZE // 4, dtype=np.int32).tobytes()) as made:
        with grpc_channel(answering.grpc) as channel:
            stream = Stream(channel)
            given = Given("IN", "INT32", [SIZE // 4], region=(made.name, SIZE, 0))
            stream.sent.put(stream.client.request("repeat", [given], None, id="r"))
            found = [np.frombuffer(next(stream.call).infer_response.raw_output_contents[0], np.int32)[0] for _ in range(5)]
            assert found == [0, 1, 2, 3, 4]
            os.kill(process_that_has(answering, made.path.name, "repeat"), signal.SIGKILL)
            with contextlib.suppress(grpc.RpcError):
                while not (message := next(stream.call)).error_message:
                    pass
            assert "was ended by signal 9 (SIGKILL) while it had this request" in message.error_message
            # The next request starts it anew.
            stream.sent.put(stream.client.request("repeat", [int32("IN", [7])], None, id="s"))
            assert np.frombuffer(next(stream.call).infer_response.raw_output_contents[0], np.int32).tolist() == [7]
            stream.sent.put(None)
        assert http.infer("well", [fp32("IN", [1])]).outputs["OUT"].raw == fp32("", [1]).raw


def test_a_stream_whose_client_goes_ends(answering):
    with open_client("http", answering) as http, registered(http, SIZE, bytes(SIZE)) as made:
        for _ in range(3):
            with grpc_channel(answering.grpc) as channel:
                stream = Stream(channel)
                given = Given("IN", "INT32", [SIZE // 4], region=(made.name, SIZE, 0))
                stream.sent.put(stream.client.request("repeat", [given], None, id="r"))
                next(stream.call)
                stream.call.cancel()
        # Nothing keeps the model: it is unloaded at once.
        http.unload("repeat")
        comes_to(lambda: answering.log_text().count("model repeat is finalized") > 1, True)
        http.load("repeat")


@pytest.mark.parametrize("more", [[], ["--backend-config=sample,sandbox-memory=4294967296"]])
def test_a_backend_in_a_sandbox_answers(launcher, more):
    """Where memory is limited, no file of memory can be made, so what the library links to is a file for a moment."""
    if launcher.oracle:
        pytest.skip("Triton has no sandboxes")
    name = f"sandboxed_backend_{len(more)}"
    repository = launcher.scratch / name
    put(repository, "confined", more=ONE)
    with serving(launcher, name, repository, "--backend-config=sample,sandbox=on", *more) as server, open_client("http", server) as client:
        assert "model 'confined' is confined: " in server.log_text()
        assert len(workers_of(server)) == 1
        with registered(client, 2 * SIZE, b"\x01" * SIZE) as made:
            given = [Given("IN", "FP32", [SIZE // 4], region=(made.name, SIZE, 0))]
            client.infer("confined", given, [RequestedOutput("OUT", (made.name, SIZE, SIZE))])
            assert made.read(SIZE, SIZE) == b"\x01" * SIZE
