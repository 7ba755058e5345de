"""Can a client harm others by tokens: wrong ones, huge ones, or more requests than its own may make?"""

import collections
import contextlib
import pathlib
import socket
import statistics
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import servers
from clients import Refused, fp32, grpc_channel, http_call, http_infer, pb, service_stub
from packets import SessionClient
from tritonclient.utils import InferenceServerException
from witness import resident

sys.path.insert(0, str(servers.ROOT / "python"))

import nerite  # noqa: E402

ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
ALL = 'scopes = ["infer", "control", "regions", "read"]'
WRONG = 10_000
RATE, BURST = 20, 10
RESIDENT_SLACK = 8 << 20


def token(name: str, rest: str = ALL) -> str:
    return f'[[token]]\nname = "{name}"\nsecret = "{name}-secret"\n{rest}\n'


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


def put(path: pathlib.Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.replace(path)


@pytest.fixture(scope="module")
def guarded(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no tokens")
    path, socket_path = launcher.scratch / "hostile_tokens.toml", launcher.scratch / "hostile_tokens.sock"
    few = f'scopes = ["infer"]\nrequests_per_second = {RATE}\nburst = {BURST}'
    put(path, token("honest") + token("few", few))
    flags = [f"--access-tokens-file={path}", f"--session-socket={socket_path}"]
    with launcher.running("hostile_tokens", *flags, repository=launcher.copy_of("hostile_tokens", "identity_fp32")) as found:
        found.tokens, found.session = path, socket_path
        yield found
        assert found.process.poll() is None, found.log_text()[-3000:]


def infers(server, who: str) -> int:
    return http_infer(server.http, "identity_fp32", ONE, headers=bearer(who)).status


class Honest(threading.Thread):
    """A client that is to be served whatever others do."""

    def __init__(self, server):
        super().__init__()
        self.server, self.ended = server, threading.Event()
        self.statuses, self.took_ms = collections.Counter(), []

    def run(self) -> None:
        while not self.ended.is_set():
            begun = time.monotonic()
            self.statuses[infers(self.server, "honest")] += 1
            self.took_ms.append((time.monotonic() - begun) * 1000)

    @classmethod
    @contextlib.contextmanager
    def running(cls, server):
        found = cls(server)
        found.start()
        try:
            yield found
        finally:
            found.ended.set()
            found.join()
        assert set(found.statuses) == {200}, found.statuses


def pipelined(server, header: bytes, count: int) -> int:
    """Requests with this header over one connection, without waiting; gives how many were answered with 401."""
    host, port = server.http.split(":")
    request = b"GET /v2/models/identity_fp32 HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + header + b"\r\n\r\n"
    refused, at = 0, b""
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        sender = threading.Thread(target=lambda: peer.sendall(request * count))
        sender.start()
        while refused < count:
            part = peer.recv(1 << 16)
            if not part:
                break
            at += part
            refused += at.count(b"HTTP/1.1 401")
            at = at[-len(b"HTTP/1.1 401") + 1 :]
        sender.join()
    return refused


@pytest.mark.parametrize("length", [20, 500, 4000])
def test_ten_thousand_wrong_tokens_slow_nobody_and_leave_nothing(guarded, length):
    pipelined(guarded, b"Bearer " + b"w" * length, 100)
    before, found = resident(guarded.pid), []
    with Honest.running(guarded) as honest:
        flood = [
            threading.Thread(target=lambda: found.append(pipelined(guarded, b"Bearer " + b"w" * length, WRONG // 4)))
            for _ in range(4)
        ]
        begun = time.monotonic()
        for one in flood:
            one.start()
        for one in flood:
            one.join()
        took_s = time.monotonic() - begun
    assert sum(found) == WRONG
    print(f"{WRONG} wrong tokens of {length} bytes in {took_s:.2f} s; honest: median {statistics.median(honest.took_ms):.1f} ms of {len(honest.took_ms)}")
    assert statistics.median(honest.took_ms) < 100
    assert resident(guarded.pid) - before < RESIDENT_SLACK


@pytest.mark.parametrize("length", [513, 8_000, 60_000, 2_000_000])
def test_a_huge_header_is_refused(guarded, length):
    huge = "Bearer " + "h" * length
    with contextlib.suppress(ConnectionError):
        answer = http_call(guarded.http, "GET", "/v2/models/identity_fp32", headers={"Authorization": huge})
        assert answer.status in (401, 431, 400), answer
    with grpc_channel(guarded.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        service_stub(channel).ModelMetadata(pb.ModelMetadataRequest(name="identity_fp32"), metadata=(("authorization", huge),))
    assert caught.value.code() in (
        grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN,
    ), caught.value  # fmt: skip
    if length < 100_000:
        with pytest.raises(ConnectionError):
            nerite.connect(f"unix:{guarded.session}", token="h" * length)
    assert infers(guarded, "honest") == 200


ODD = [b"", b" ", b"Bearer", b"Bearer ", b"Bearer \x00", b"Bearer \xff\xfe", b"Basic aG9uZXN0LXNlY3JldA==", b"bearer honest-secret x", b"Bearer honest-secre", b"Bearer honest-secrett"]


@pytest.mark.parametrize("header", ODD)
def test_an_odd_header_is_no_token(guarded, header):
    assert pipelined(guarded, header, 1) == (0 if b"\x00" in header else 1)
    assert infers(guarded, "honest") == 200


def test_a_file_that_is_replaced_under_load_takes_nothing_away_that_stays(guarded):
    before = guarded.tokens.read_text()
    with Honest.running(guarded) as honest, contextlib.closing(nerite.connect(f"unix:{guarded.session}", token="honest-secret")) as client:
        model, array = client.model("identity_fp32"), np.ones(1, np.float32)

        def infer_until(holds) -> None:
            deadline = time.monotonic() + 60
            while not holds():
                assert time.monotonic() < deadline
                assert model(array)["OUTPUT0"][0] == 1
                time.sleep(0.005)

        def is_found_faulty() -> bool:
            page = http_call(guarded.metrics, "GET", "/metrics", headers=bearer("honest")).ok().body.decode()
            return "\nnerite_token_file_current 0\n" in page

        faulty = "[[token]]\nname = 1"
        for at in range(150):
            # No file stays until it is looked at twice, so the emptied one is never in force.
            put(guarded.tokens, [before + token(f"t{at}"), faulty, before, ""][at % 4])
            replaced = time.monotonic()
            infer_until(lambda: time.monotonic() > replaced + 0.02)
        put(guarded.tokens, before + token("added"))
        infer_until(lambda: infers(guarded, "added") == 200)
        put(guarded.tokens, faulty)
        infer_until(is_found_faulty)
        assert infers(guarded, "added") == 200
        put(guarded.tokens, before)
        infer_until(lambda: infers(guarded, "added") == 401)
    assert honest.statuses[200] > 10
    assert infers(guarded, "few") in (200, 429)


def test_a_quota_is_not_evaded_by_connections_or_protocols_and_is_nobody_elses(guarded):
    """Over HTTP, gRPC, streams and sessions at once, each with connections of its own."""
    time.sleep(1.5 * BURST / RATE)
    passed, refused, ended = collections.Counter(), collections.Counter(), threading.Event()
    raw = np.ones(1, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[raw])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    metadata = (("authorization", "Bearer few-secret"),)

    def over_http():
        (passed if infers(guarded, "few") == 200 else refused)["http"] += 1

    def over_grpc():
        with grpc_channel(guarded.grpc) as channel:
            try:
                service_stub(channel).ModelInfer(request, metadata=metadata)
                passed["grpc"] += 1
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                refused["grpc"] += 1

    def over_a_stream():
        with grpc_channel(guarded.grpc) as channel:
            try:
                for answer in service_stub(channel).ModelStreamInfer(iter([request] * 20), metadata=metadata):
                    (refused if answer.error_message else passed)["stream"] += 1
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                refused["stream"] += 1

    def over_a_session():
        with nerite.connect(f"unix:{guarded.session}", token="few-secret") as client:
            model = client.model("identity_fp32")
            for _ in range(20):
                try:
                    model(np.ones(1, np.float32))
                    passed["session"] += 1
                except InferenceServerException:
                    refused["session"] += 1

    def repeat(way):
        while not ended.is_set():
            way()

    begun = time.monotonic()
    with Honest.running(guarded) as honest:
        all_ways = [threading.Thread(target=repeat, args=(way,)) for way in (over_http, over_grpc, over_a_stream, over_a_session) * 2]
        for one in all_ways:
            one.start()
        time.sleep(4)
        ended.set()
        for one in all_ways:
            one.join()
    took_s = time.monotonic() - begun
    print(f"passed {dict(passed)}, refused {dict(refused)} in {took_s:.2f} s")
    assert sum(passed.values()) <= BURST + RATE * took_s + 1
    assert all(refused[way] for way in ("http", "grpc", "stream", "session")), refused
    assert honest.statuses[200] > 10, "another token's quota is its own"


def test_bytes_that_came_over_a_session_are_owed_and_bytes_in_leases_are_not(guarded):
    def session(name: str) -> SessionClient:
        return SessionClient(guarded.session, bearer(name))

    put(guarded.tokens, guarded.tokens.read_text() + token("bytes", 'scopes = ["infer", "regions"]\nbytes_per_second = 1000'))
    deadline = time.monotonic() + 60
    while infers(guarded, "bytes") == 401 and time.monotonic() < deadline:
        time.sleep(0.05)
    with nerite.connect(f"unix:{guarded.session}", token="bytes-secret") as client:
        model = client.model("identity_fp32")
        # Far more than the quota, in shared memory.
        for _ in range(5):
            assert model(np.ones(5000, np.float32)).OUTPUT0.shape == (5000,)
    with contextlib.closing(session("bytes")) as client:
        # The debt takes over half a minute, so the next request comes before it is paid.
        client.infer("identity_fp32", [fp32("INPUT0", [1.0] * 5000)])
        with pytest.raises(Refused) as caught:
            client.infer("identity_fp32", [fp32("INPUT0", [1.0])])
        assert caught.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED and "1000 bytes of tensors per second" in str(caught.value)
    with contextlib.closing(session("honest")) as client:
        client.infer("identity_fp32", [fp32("INPUT0", [1.0] * 5000)])
