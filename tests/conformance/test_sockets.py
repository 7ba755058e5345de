"""Does HTTP work as it is written on the wire: connections, chunks, pipelines, and bytes that are no HTTP?"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from clients import TIMEOUT_S, differs, fp32

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
INFER = b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\n"


class Wire:
    """A plain socket that can read one HTTP answer at a time."""

    def __init__(self, url: str):
        host, _, port = url.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> "Wire":
        self.socket.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            key, _, value = line.decode().partition(":")
            headers[key.lower()] = value.strip()
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(self.file.readline(), 16):
                body += self.file.read(size)
                self.file.readline()
            self.file.readline()
        elif status not in (100, 204):
            body = self.file.read(int(headers.get("content-length", 0)))
        return status, headers, body

    def closed(self) -> bool:
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def wire(server):
    with contextlib.closing(Wire(server.http)) as made:
        yield made


def plain(body: bytes = BODY, *headers: bytes) -> bytes:
    more = b"".join(one + b"\r\n" for one in headers)
    return INFER + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def good(answer) -> None:
    status, _, body = answer
    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [1, 2]


def chunked(*pieces: bytes) -> bytes:
    framed = b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces)
    return INFER + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def test_a_connection_is_kept(wire):
    for _ in range(5):
        good(wire.send(plain()).answer())


def test_an_error_keeps_the_connection(wire):
    assert wire.send(plain(b"{}")).answer()[0] == 500
    assert wire.send(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()[0] == 404
    good(wire.send(plain()).answer())


def test_connection_close_is_honoured(wire):
    good(wire.send(plain(BODY, b"Connection: close")).answer())
    assert wire.closed()


def test_http_1_0_closes(wire):
    wire.send(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert wire.answer()[0] == 200
    assert wire.closed()


@differs("2.51 answers the first request of a pipeline and forgets the others", run=False)
def test_a_pipeline_is_answered_in_order(wire):
    wire.send(plain() + b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" + plain(b"{}") + plain())
    good(wire.answer())
    assert wire.answer()[0::2] == (200, b"")
    assert wire.answer()[0] == 500
    good(wire.answer())


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_chunked_body(wire, size):
    good(wire.send(chunked(*(BODY[at : at + size] for at in range(0, len(BODY), size)))).answer())
    good(wire.send(plain()).answer())


def test_a_chunked_binary_body(wire):
    document = json.dumps(
        {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1000], "parameters": {"binary_data_size": 4000}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    raw = fp32("", range(1000)).raw
    body = document + raw
    head = INFER + b"Inference-Header-Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(document)
    pieces = [body[at : at + 333] for at in range(0, len(body), 333)]
    wire.send(head + b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n")
    status, headers, answer = wire.answer()
    assert status == 200
    assert answer[int(headers["inference-header-content-length"]) :] == raw


@differs("2.51 loses the path of a request line that comes in pieces, 404", run=False)
def test_a_body_in_many_small_packets(wire):
    data = plain()
    wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(data), 5):
        wire.send(data[at : at + 5])
    good(wire.answer())


def test_expect_100_continue(wire):
    wire.send(INFER + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert wire.answer()[0] == 100
    good(wire.send(BODY).answer())


def test_header_names_in_any_case(wire):
    document = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}
    ).encode()
    body = document + fp32("", [1, 2]).raw
    good(wire.send(plain(body, b"inFERENCE-header-CONTENT-length: %d" % len(document))).answer())


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET /v2\r\n\r\n\x00\x00",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x00" * 5000,
    ],
)
def test_what_is_no_http_closes_the_connection_and_nothing_else(server, garbage):
    with contextlib.closing(Wire(server.http)) as broken:
        broken.socket.settimeout(5)
        left = b""
        # The other side may close before all is sent.
        with contextlib.suppress(OSError):
            broken.send(garbage)
            broken.socket.shutdown(socket.SHUT_WR)
            left = broken.file.read()
        assert not left.startswith(b"HTTP/1.1 200")
    with contextlib.closing(Wire(server.http)) as wire:
        good(wire.send(plain()).answer())


def test_a_client_that_leaves_before_the_answer(server):
    for _ in range(20):
        with contextlib.closing(Wire(server.http)) as gone:
            gone.send(plain())
    with contextlib.closing(Wire(server.http)) as wire:
        good(wire.send(plain()).answer())


def test_a_hundred_connections(server):
    with contextlib.ExitStack() as held:
        wires = [held.enter_context(contextlib.closing(Wire(server.http))) for _ in range(100)]
        for one in wires:
            one.send(plain())
        for one in wires:
            good(one.answer())


# ---------------------------------------------------------------------------------------------- Unix sockets


def test_real_clients_talk_over_unix_sockets(launcher, tmp_path):
    """gRPC's own clients name the socket's path as the host they want, which is none."""
    if launcher.oracle:
        pytest.skip("Triton has no Unix sockets")
    sockets = {kind: tmp_path / kind for kind in ("http", "grpc")}
    flags = [f"--{kind}-socket={path}" for kind, path in sockets.items()]
    repository = launcher.copy_of("unix_repository", "identity_fp32")
    with launcher.running("unix_sockets", *flags, repository=repository):
        client = grpcclient.InferenceServerClient(f"unix:{sockets['grpc']}")
        given = grpcclient.InferInput("INPUT0", [1 << 20], "FP32")
        values = np.arange(1 << 20, dtype=np.float32)
        given.set_data_from_numpy(values)
        for _ in range(20):
            assert (client.infer("identity_fp32", [given]).as_numpy("OUTPUT0") == values).all()
        client.close()
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(sockets["http"]))
            stream.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert stream.recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("flag, mode", [(None, 0o600), ("0660", 0o660), ("0o666", 0o666), ("600", 0o600)])
def test_unix_sockets_have_the_mode_that_was_asked_for(launcher, flag, mode, umask):
    if launcher.oracle:
        pytest.skip("Triton has no Unix sockets")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-modes-"))
    folder.chmod(0o755)
    sockets = {kind: folder / kind for kind in ("http", "grpc")}
    flags = [f"--{kind}-socket={path}" for kind, path in sockets.items()]
    flags += [f"--{kind}-socket-mode={flag}" for kind in sockets if flag]
    repository = launcher.copy_of(f"modes_{time.monotonic_ns()}", "identity_fp32")
    before = os.umask(umask)
    try:
        with launcher.running("modes", *flags, repository=repository):
            for path in sockets.values():
                assert stat.S_IMODE(path.lstat().st_mode) == mode
                if os.geteuid() == 0:
                    assert another_user_connects(path) == (mode == 0o666)
        assert not any(path.exists() for path in sockets.values())
    finally:
        os.umask(before)
        shutil.rmtree(folder)


CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    sys.exit(1)
"""


def another_user_connects(path) -> bool:
    return subprocess.run([sys.executable, "-c", CONNECT, path], timeout=60).returncode == 0
