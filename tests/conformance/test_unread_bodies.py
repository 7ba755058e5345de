"""Does a client get the answer to a request whose body the server does not read?"""

import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest
import tritonclient.http
from test_access import EVERYTHING, ONE, bearer, guarded, token
from tritonclient.utils import InferenceServerException

FILE = "\n".join([
    token("all", EVERYTHING),
    token("read", '["read"]'),
    token("few", '["infer"]', "requests_per_second = 1\nburst = 1"),
])  # fmt: skip
MANY = np.ones(1 << 19, np.float32)  # 2 MiB


@pytest.fixture(scope="module")
def server(launcher):
    with guarded(launcher, "unread", FILE) as found:
        yield found


@pytest.mark.parametrize(("who", "status"), [("few", "429"), ("read", "403"), ("wrong", "401")])
def test_a_client_of_triton_reads_why_its_large_request_is_refused(server, who, status):
    found, begun = [], time.monotonic()
    for _ in range(15):
        with contextlib.closing(tritonclient.http.InferenceServerClient(server.http)) as client:
            tensor = tritonclient.http.InferInput("INPUT0", [MANY.size], "FP32")
            tensor.set_data_from_numpy(MANY)
            try:
                client.infer("identity_fp32", [tensor], headers=bearer(who))
                found.append("200")
            except InferenceServerException as error:
                found.append(error.status())
    # One of the first token's requests is within its quota, and one more for each second.
    passed = 1 + time.monotonic() - begun if who == "few" else 0
    assert found.count("200") <= passed and {status} <= set(found) <= {status, "200"}, found


@pytest.mark.parametrize("path", ["/v2/models/identity_fp32/infer", "/v2/logging", "/no/such/path", "/v2/health/live"])
def test_a_connection_lives_on_after_refusals(server, path):
    body = json.dumps(ONE | {"parameters": {"filler": "x" * 5000}})
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
        connection.connect()
        first = connection.sock
        for _ in range(50):
            connection.request("POST", path, body, bearer("read"))
            answer = connection.getresponse()
            assert answer.status in (403, 404, 405) and answer.read(), answer.status
        assert connection.sock is first


@pytest.mark.parametrize("path", ["/ui/api/models", "/ui/no/such/path"])
def test_the_page_reads_what_it_refuses(server, path):
    headers = {"content-type": "application/json", "host": server.metrics}
    with contextlib.closing(http.client.HTTPConnection(server.metrics, timeout=60)) as connection:
        for _ in range(3):
            connection.request("POST", path, b"x" * (2 << 20), headers)
            answer = connection.getresponse()
            assert answer.status in (404, 405) and answer.read()


def open_raw(server, length: str) -> socket.socket:
    host, port = server.http.split(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer read-secret\r\n{length}\r\n\r\n"
    opened.sendall(head.encode())
    return opened


def read_to_end(opened: socket.socket) -> bytes:
    parts = []
    while part := opened.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_who_is_slow_to_send_is_answered_and_the_connection_ends(server):
    for length in ("content-length: 1000000000", "transfer-encoding: chunked"):
        with open_raw(server, length) as opened:
            begun = time.monotonic()
            answer = read_to_end(opened)
            assert answer.startswith(b"HTTP/1.1 403") and b"connection: close" in answer.lower(), answer
            assert time.monotonic() - begun < 15


def test_who_reads_only_after_all_was_sent_gets_the_answer(server):
    """The sender takes longer than the server waits before it answers."""
    size = 64 << 20
    with open_raw(server, f"content-length: {size}") as opened:
        for _ in range(16):
            opened.sendall(b"x" * (size // 16))
            time.sleep(0.1)
        answer = read_to_end(opened)
    assert answer.startswith(b"HTTP/1.1 403") and b"connection: close" in answer.lower(), answer


def test_what_never_ends_is_cut(server):
    with open_raw(server, "transfer-encoding: chunked") as opened:
        piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        ended = threading.Event()

        def send() -> None:
            with contextlib.suppress(OSError):
                while True:
                    opened.sendall(piece)
            ended.set()

        threading.Thread(target=send, daemon=True).start()
        assert ended.wait(60), "the server takes bytes without end"


def test_who_asks_before_it_sends_is_told_not_to(server):
    with open_raw(server, "content-length: 1000000\r\nexpect: 100-continue") as opened:
        answer = read_to_end(opened)
    assert answer.startswith(b"HTTP/1.1 403") and b"100 Continue" not in answer, answer
