"""Does a collector of OpenTelemetry that misbehaves cost a client anything, or keep the server from its end?"""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import servers
from busy import front_threads_come_back
from clients import GrpcClient, fp32, http_call, http_infer, open_client
from meters import metric, peak
from packets import open_session
from witness import resident

TRACES_BYTES_MAX = 64 << 20
SLACK_BYTES = 64 << 20
FLOOD_S = 5
# What a post to the collector may take.
POST_MS = 3000
SENDERS = 4
# What the last traces may take, and the end of the server beside.
STOP_S_MAX = 2 + 4
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-01"}


def deaf(connection):
    """Reads nothing, and never answers."""
    time.sleep(3600)


def silent(connection):
    """Reads all, and never answers."""
    while connection.recv(1 << 16):
        pass


def endless(connection):
    """Answers a head at once, and then a body without end. The status says that it took the spans."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def long_head(connection):
    """Answers a head without end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"x-more: " + b"y" * 4000 + b"\r\n")


def nonsense(connection):
    connection.recv(1 << 16)
    connection.sendall(b"\x00\x16SSH-2.0-nonsense\r\n\r\n" * 100)


def closing(connection):
    """Hangs up in the middle of the post."""
    connection.recv(64)


def dripping(connection):
    """Answers a byte of the head each second."""
    for byte in b"HTTP/1.1 200 OK\r\n" * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(1)


@contextlib.contextmanager
def collector(behave):
    """The URL of a collector that does this with each connection; of one that is down for None."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
    if behave is None:
        listener.close()
        yield url
        return

    def one(connection):
        with contextlib.suppress(OSError), connection:
            behave(connection)

    def listen():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    yield url
    listener.close()


def flood(server, seconds: float) -> list[float]:
    """Traced requests of several clients at once. Gives how long the slowest of each took."""
    until, slowest = time.monotonic() + seconds, []
    numbers = fp32("INPUT0", np.zeros(16, np.float32))

    def send(protocol):
        most, count = 0.0, 0
        with open_client(protocol, server) as client:
            while time.monotonic() < until:
                began = time.monotonic()
                client.infer("identity_fp32", [numbers])
                most, count = max(most, time.monotonic() - began), count + 1
        slowest.append(most)
        assert count > 0

    senders = [threading.Thread(target=send, args=(("http", "grpc")[n % 2],)) for n in range(SENDERS)]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    assert len(slowest) == SENDERS, "a sender failed"
    return slowest


BEHAVIOURS = [None, deaf, silent, endless, long_head, nonsense, closing, dripping]


@pytest.mark.parametrize("behave", BEHAVIOURS, ids=lambda one: one.__name__ if one else "down")
def test_a_collector_that_misbehaves_delays_nobody_and_holds_bounded_memory(launcher, behave, monkeypatch):
    if launcher.oracle:
        pytest.skip("2.51 has no such promise")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(POST_MS))
    flags = ["--trace-config=mode=opentelemetry", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
             "--trace-config=opentelemetry,bsp_schedule_delay=50",
             "--trace-config=opentelemetry,bsp_max_queue_size=60"]  # fmt: skip
    repository = launcher.copy_of("collectors", "identity_fp32")
    with collector(behave) as url:
        flags.append(f"--trace-config=opentelemetry,url={url}")
        with launcher.running("collectors", *flags, repository=repository) as server:
            flood(server, 0.5)
            before = resident(server.pid)
            with front_threads_come_back(server), peak(lambda: metric(server, "nerite_trace_bytes")) as held:
                slowest = flood(server, FLOOD_S)
            assert 0 < held.most <= TRACES_BYTES_MAX
            assert resident(server.pid) - before <= SLACK_BYTES
            # Nobody waited for a post.
            assert max(slowest) < POST_MS / 1000, slowest
            if behave is not endless:
                assert metric(server, 'nerite_traces_total{outcome="dropped"}') > 0
                # Once a minute, and not for each trace.
                assert 1 <= server.log_text().count("did not take them") <= 2
            began = time.monotonic()
            assert servers.stop(server) == 0 and time.monotonic() - began < STOP_S_MAX


def test_headers_that_name_a_trace_may_be_of_any_size_and_kind(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such promise")
    flags = ["--trace-config=mode=opentelemetry", "--trace-config=rate=0", "--trace-config=level=TIMESTAMPS"]
    repository = launcher.copy_of("collectors", "identity_fp32")
    with collector(None) as url, launcher.running(
        "collectors_headers", *flags, f"--trace-config=opentelemetry,url={url}", repository=repository
    ) as server:
        document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
        kinds = ["", "-" * 55, "0" * 55, "f" * 4000, "00-" + "g" * 32 + "-" + "1" * 16 + "-01", "\xe4" * 55]
        with front_threads_come_back(server):
            for parent in kinds:
                for state in ("", "x" * 4000, "\xff", PARENT["traceparent"]):
                    headers = {"traceparent": parent, "tracestate": state}
                    http_infer(server.http, "identity_fp32", document, headers=headers).ok()
            assert metric(server, "nerite_trace_bytes") == 0
            for _ in range(200):
                http_infer(server.http, "identity_fp32", document, headers={**PARENT, "tracestate": "a=" + "x" * 4000}).ok()
        assert 0 < metric(server, "nerite_trace_bytes") < 1 << 20
        assert http_call(server.http, "GET", "/v2/health/live").status == 200


def test_the_trace_context_of_a_packet_may_be_of_any_size_and_kind(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    flags = ["--trace-config=mode=opentelemetry", "--trace-config=rate=0", "--trace-config=level=TIMESTAMPS"]
    repository, path = launcher.copy_of("collectors_packets", "identity_fp32"), tmp_path / "session"
    with collector(None) as url, launcher.running(
        "collectors_packets", *flags, f"--trace-config=opentelemetry,url={url}", f"--session-socket={path}", repository=repository
    ) as server, open_session(path) as client:
        infer = {"request": GrpcClient.request(client, "identity_fp32", [fp32("INPUT0", [1])]).SerializeToString()}
        prepared, _ = client.call(prepare={"infer": infer})
        handle = prepared.prepared.handle

        def check(parent: bytes, state: bytes) -> None:
            trace = {"trace_parent": parent, "trace_state": state}
            for call in ({"infer": {**infer, "trace": trace}}, {"call_prepared": {"handle": handle, "trace": trace}}):
                message, _ = client.call(**call)
                assert message.WhichOneof("answer") == "inference", message

        good = PARENT["traceparent"].encode()
        with front_threads_come_back(server):
            for parent in (b"", b"-" * 55, b"0" * 55, b"f" * 60_000, b"00-" + b"g" * 32 + b"-" + b"1" * 16 + b"-01", b"\xe4\0\n" * 20):
                for state in (b"", b"x" * 60_000, b"\xff\0\n", good):
                    check(parent, state)
            assert metric(server, "nerite_trace_bytes") == 0
            for _ in range(100):
                check(good, b"a=" + b"x" * 60_000)
        assert 0 < metric(server, "nerite_trace_bytes") < 1 << 20
        assert http_call(server.http, "GET", "/v2/health/live").status == 200
