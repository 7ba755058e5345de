"""What is the least that a small request can cost: a bare epoll loop in C that answers with the same bytes?"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile

import numpy as np
import servers
from clients import Given, GrpcClient, HttpClient, RequestedOutput, grpc_channel
from regions import registered

from .cells import byte_count
from .report import LIMIT
from .repositories import ROOT, compiler
from .sides import READY_LIMIT_S, Side

NAME = "epoll loop"
MODEL = "identity_fp32"
RECEIVED_BYTES = 1 << 16


@contextlib.contextmanager
def limit(ours: Side, scratch: pathlib.Path, protocol: str, placement: str, size: str, in_socket: bool = False):
    """The loop, with an answer that nerite, which runs, gives now. A side for `measured`, or None without a C compiler."""
    if compiler() is None:
        yield None
        return
    program, place = scratch / "epoll", pathlib.Path(tempfile.mkdtemp(prefix="limit-", dir=scratch))
    if not program.exists():
        subprocess.run([compiler(), "-O2", "-o", str(program), str(ROOT / "benches" / "peer" / "epoll.c")], check=True)
    answer, counter, path = place / "answer", place / "counter", place / "socket"
    answer.write_bytes(captured(ours, protocol, placement, byte_count(size)))
    (port,) = servers.free_ports(1)
    copied = byte_count(size) if placement == "inline" and protocol == "http" else 0
    command = [str(program), protocol, str(path if in_socket else port), str(answer), str(copied), str(counter)]
    process = subprocess.Popen(servers.dying_with_us(command))
    try:
        address = f"127.0.0.1:{port}"
        server = servers.Server(address, address, "", pid=process.pid, process=process)
        side = Side(LIMIT, NAME, "fixed bytes", command, dict(os.environ), place, server=server, described_by=ours, counter=counter)
        side.sockets = {protocol: path} if in_socket else {}
        wait_listening(process, path if in_socket else port)
        yield side
    finally:
        process.kill()
        process.wait()


def wait_listening(process: subprocess.Popen, where: pathlib.Path | int) -> None:
    """Tries to connect until the loop listens."""
    while process.poll() is None:
        is_path = isinstance(where, pathlib.Path)
        with socket.socket(socket.AF_UNIX if is_path else socket.AF_INET) as tried, contextlib.suppress(OSError):
            tried.connect(str(where) if is_path else ("127.0.0.1", where))
            return
    raise RuntimeError(f"the epoll loop ended with {process.returncode}")


def captured(side: Side, protocol: str, placement: str, size: int) -> bytes:
    """The bytes of one answer of the identity: of HTTP all, of gRPC the message."""
    sent = np.ones(size // 4, np.float32).tobytes()
    with contextlib.ExitStack() as held:
        client = HttpClient(side.server.http) if protocol == "http" else GrpcClient(held.enter_context(grpc_channel(side.server.grpc)))
        regions = [None, None]
        if placement == "shm":
            regions = [held.enter_context(registered(client, size, sent)) for _ in range(2)]
        given = Given("INPUT0", "FP32", [size // 4], b"" if regions[0] else sent, region=regions[0] and (regions[0].name, size, 0))
        wanted = RequestedOutput("OUTPUT0", region=regions[1] and (regions[1].name, size, 0))
        if protocol == "grpc":
            return client.call("ModelInfer", client.request(MODEL, [given], [wanted])).SerializeToString()
        document = json.dumps(client.document([given], [wanted])).encode()
        return exchanged(side.server.http, post(document, b"" if regions[0] else sent))


def post(document: bytes, tensor: bytes) -> bytes:
    """An infer request in HTTP. Its tensor, if there is one, lies behind the JSON."""
    parts = f"Inference-Header-Content-Length: {len(document)}\r\n" if tensor else ""
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\n{parts}Content-Length: {len(document) + len(tensor)}\r\n\r\n"
    return head.encode() + document + tensor


def exchanged(address: str, request: bytes) -> bytes:
    """The whole answer to one request, on a connection of its own."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=READY_LIMIT_S) as connection:
        connection.sendall(request)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """An answer with its head. Its length stands there."""
    answer, end = bytearray(), -1
    while end < 0 or len(answer) < end:
        part = connection.recv(RECEIVED_BYTES)
        if not part:
            raise RuntimeError(f"the connection ends after {bytes(answer[:400])!r}")
        answer += part
        if end < 0 and (at := answer.find(b"\r\n\r\n")) >= 0:
            lengths = [line for line in bytes(answer[:at]).lower().split(b"\r\n") if line.startswith(b"content-length:")]
            end = at + 4 + int(lengths[0].partition(b":")[2])
    return bytes(answer)
