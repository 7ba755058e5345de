"""Does a compiled backend that is careless with memory and time harm clients other than its own?"""

import contextlib
import json
import queue
import re
import socket
import time

import pytest
from clients import TIMEOUT_S, Given, GrpcClient, Refused, RequestedOutput, fp32, grpc_channel, open_client, refuses, service_stub
from compiled_setup import put, serving
from regions import registered
from witness import comes_to

DECOUPLED = "model_transaction_policy { decoupled: true } instance_group { kind: KIND_CPU count: 1 }"
ONE = "instance_group { kind: KIND_CPU count: 1 }"
# Blocks of this size are used again; smaller ones are cleared by the allocator.
COUNT = 1 << 18
SECRET = b"\x5a" * (4 * COUNT)


@pytest.fixture(scope="module", params=["here", "apart"])
def unwritten(request: pytest.FixtureRequest, launcher):
    """In the server's process, and in one of its own."""
    if launcher.oracle:
        pytest.skip("Triton does not clear memory")
    repository = launcher.scratch / f"unwritten_{request.param}"
    for mode in ("unwritten", "identity"):
        put(repository, mode, mode, backend="careless", more=ONE)
    flags = ["--backend-config=careless,isolated=true"] if request.param == "apart" else []
    with serving(launcher, f"unwritten_{request.param}", repository, *flags, sources=("careless",)) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_that_is_not_written_has_nothing_of_another_client(unwritten, protocol):
    secret, zeros = Given("IN", "FP32", [COUNT], SECRET), Given("IN", "FP32", [COUNT], bytes(4 * COUNT))
    for _ in range(20):
        with open_client("http", unwritten) as other:
            assert other.infer("identity", [secret]).outputs["OUT"].raw == SECRET
            other.infer("unwritten", [secret])
        with open_client(protocol, unwritten) as client:
            found = client.infer("unwritten", [zeros]).outputs["OUT"].raw
        assert len(found) == 4 * COUNT
        assert not any(found), f"{sum(map(bool, found))} bytes of another client"


def test_what_lay_in_the_clients_own_region_stays_there(unwritten):
    with open_client("http", unwritten) as client, registered(client, 4096) as made:
        made.write(b"own!" * 1024)
        given = [Given("IN", "FP32", [1024], bytes(4096))]
        client.infer("unwritten", given, [RequestedOutput("OUT", (made.name, 4096, 0))])
        assert made.read(4096) == b"own!" * 1024


@pytest.fixture(scope="module")
def careless(launcher):
    if launcher.oracle:
        pytest.skip("Triton does not bound what waits for a client")
    repository = launcher.scratch / "careless"
    put(repository, "flood", "flood", backend="careless", more=DECOUPLED)
    for mode in ("unknown", "keep", "unwritten"):
        put(repository, mode, mode, backend="careless")
    for name, peer in (("itself", "itself"), ("first", "second"), ("second", "first"), ("well", "unwritten")):
        put(repository, name, "load", backend="careless", peer=peer)
    loads = [f"--load-model={name}" for name in ("flood", "unknown", "keep")]
    flags = ["--model-control-mode=explicit", "--exit-timeout-secs=1", *loads]
    with serving(launcher, "careless", repository, *flags, sources=("careless",)) as found:
        yield found


class Stream:
    """One stream of responses."""

    def __init__(self, server):
        self.open = contextlib.ExitStack()
        channel = self.open.enter_context(grpc_channel(server.grpc))
        self.client, self.sent = GrpcClient(channel), queue.Queue()
        self.call = service_stub(channel).ModelStreamInfer(iter(self.sent.get, None), timeout=TIMEOUT_S)

    def send(self, responses: int, count: int) -> "Stream":
        parameters = {"triton_enable_empty_final_response": True}
        self.sent.put(self.client.request("flood", [fp32("IN", [responses] * count)], parameters=parameters))
        return self

    def close(self):
        self.sent.put(None)
        self.call.cancel()
        self.open.close()


def all_of(stream: Stream) -> int:
    """How many responses come, the last one not counted."""
    count = 0
    for one in stream.call:
        assert not one.error_message, one.error_message
        if one.infer_response.parameters["triton_final_response"].bool_param:
            return count
        count += 1
    raise AssertionError("no last response")


@pytest.mark.parametrize(("responses", "count"), [(1 << 22, 1), (1000, 1 << 18), (100, 1 << 16)])
def test_a_client_that_does_not_read_keeps_the_instance_from_nobody(careless, responses, count):
    """Millions of small responses, and a thousand of a MiB, are more than the server keeps. A hundred of 256 KiB are not."""
    unread = Stream(careless).send(responses, count)
    time.sleep(0.5)
    other, began = Stream(careless).send(2, 1), time.monotonic()
    assert all_of(other) == 2
    took = time.monotonic() - began
    other.close()
    unread.close()
    # The run makes all that may wait first: some ten thousand responses in a debug build.
    assert took < 10, took


def test_the_request_of_a_client_that_does_not_read_ends_with_the_numbers(careless):
    stream = Stream(careless).send(1000, 1 << 18)
    # Nobody reads until its run has ended, which is when the only instance answers another request.
    other = Stream(careless).send(2, 1)
    assert all_of(other) == 2
    other.close()
    text = next(one.error_message for one in stream.call if one.error_message)
    assert "the client does not read: " in text and "the server keeps 67108864 bytes at most" in text, text
    stream.close()


def test_a_client_that_reads_late_gets_what_the_server_keeps(careless):
    """More than a window of 64 responses, and less than the server keeps."""
    stream = Stream(careless).send(2000, 1000)
    time.sleep(1)
    assert all_of(stream) == 2000
    stream.close()


def ask_without_waiting(server, model: str, id: str) -> socket.socket:
    """A request whose answer nobody waits for."""
    host, _, port = server.http.rpartition(":")
    body = json.dumps({"id": id, "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    made = socket.create_connection((host, int(port)))
    made.sendall(f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


def test_a_request_that_is_kept_for_ever_is_named_when_its_model_is_unloaded(careless):
    def lines() -> list[str]:
        return [line for line in careless.log_text().splitlines() if "model 'keep' version 1 is unloaded, but 1 requests have no last answer" in line]

    with ask_without_waiting(careless, "keep", "kept7"), open_client("http", careless) as client:
        comes_to(lambda: "a request is kept" in careless.log_text(), True)
        client.unload("keep")
        comes_to(lambda: len(lines()), 1)
        assert re.search(r"; backend 'careless': \[request id: kept7\] has had the request for \d\d+ s", lines()[0]), lines()
        # Others are served meanwhile.
        client.load("unwritten")
        assert client.infer("unwritten", [fp32("IN", [1])]).outputs["OUT"].raw == bytes(4)


@pytest.mark.parametrize(("name", "last"), [("itself", "itself"), ("first", "second")])
def test_a_model_that_waits_for_its_own_load_fails_to_load(careless, name, last):
    began = time.monotonic()
    with open_client("http", careless) as client:
        text = f"the load of model '{name}' waits for model '{last}', which asks for it while it is loaded or unloaded itself"
        with pytest.raises(Refused) as caught:
            client.load(name)
        assert text in caught.value.text, caught.value.text
        client.load("well")
        assert client.infer("unwritten", [fp32("IN", [1])]).outputs["OUT"].raw == bytes(4)
    assert time.monotonic() - began < 30


def test_an_output_that_the_model_does_not_have_is_an_error(careless):
    with open_client("http", careless) as client:
        with refuses("INVALID_ARG", "unexpected inference output 'NOSUCH' for model 'unknown'"):
            client.infer("unknown", [fp32("IN", [1])])

