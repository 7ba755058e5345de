"""How many system calls does the server make for one request?"""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time

import pytest
from clients import GrpcClient, fp32, grpc_channel
from python_setup import serving

REQUESTS = 200
# What reads, what writes, and what changes the set of sockets that a thread waits for. How often a thread waits depends on time.
GROUPS = {
    "read": {"recvfrom", "recvmsg"},
    "write": {"sendto", "sendmsg", "writev"},
    "wait": {"epoll_wait", "epoll_pwait"},
    "epoll_ctl": {"epoll_ctl"},
    "futex": {"futex"},
}


@contextlib.contextmanager
def http_client(server, model="identity_fp32"):
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.http.rsplit(":", 1)
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as connection:

        def infer():
            connection.sendall((head + body).encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")

        yield infer


@contextlib.contextmanager
def grpc_client(server, model="identity_fp32"):
    with grpc_channel(server.grpc) as channel:
        client = GrpcClient(channel)
        yield lambda: client.infer(model, [fp32("INPUT0", [1])])


def counted(pid: int, out, work) -> dict[str, int]:
    """The system calls of the process during `work`, by name."""
    tracer = subprocess.Popen(["strace", "-f", "-c", "-o", out, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    said = tracer.stderr.readline()
    if "attached" not in said:
        tracer.wait()
        pytest.skip(f"strace may not look at the server: {said}")
    # It attaches to one thread after the other.
    time.sleep(0.3)
    work()
    tracer.send_signal(signal.SIGINT)
    tracer.communicate()
    rows = [line.split() for line in out.read_text().splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) in (5, 6) and row[3].isdigit()}


def for_each(calls: dict[str, int]) -> dict[str, float]:
    """How many calls of each group there were for a request."""
    return {name: sum(calls.get(call, 0) for call in of) / REQUESTS for name, of in GROUPS.items()}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(("protocol", "reads_max"), [(http_client, 1.05), (grpc_client, 1.3)])
def test_a_request_is_read_at_once_and_answered_at_once(server, tmp_path, protocol, reads_max):
    if server.pid is None or server.oracle:
        pytest.skip("needs a server of its own")
    with protocol(server) as infer:
        for _ in range(50):
            infer()
        calls = counted(server.pid, tmp_path / "calls", lambda: [infer() for _ in range(REQUESTS)])
    each = for_each(calls)
    # A client over gRPC sends pings and windows of its own now and then.
    assert 1 <= each["read"] <= reads_max, calls
    assert 1 <= each["write"] <= reads_max, calls
    assert each["epoll_ctl"] <= 0.05, calls


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("protocol", [http_client, grpc_client])
def test_the_socket_of_a_models_process_is_registered_once(launcher, tmp_path, protocol):
    if launcher.oracle:
        pytest.skip("needs a server of its own")
    with serving(launcher, f"registered-{protocol.__name__}", "py_identity") as server, protocol(server, "py_identity") as infer:
        for _ in range(50):
            infer()

        def stays_registered() -> bool:
            """Whether front threads wait for the process in a round of requests, and keep its socket registered."""
            each = for_each(counted(server.pid, tmp_path / "calls", lambda: [infer() for _ in range(REQUESTS)]))
            assert each["read"] >= 1, each
            # A front thread waits for the request, and then for the answer. A worker that waits for the answer is woken by a futex.
            is_watched = each["wait"] >= 1.5 and each["futex"] <= 0.5
            return is_watched and each["epoll_ctl"] <= 0.2

        # On a busy machine a worker takes over runs that took long, and the socket is registered anew after each. One round must be good.
        assert any(stays_registered() for _ in range(10))
