#!/usr/bin/env python3
"""What does a client do while it waits to be killed?

    killed.py HTTP GRPC SESSION    then, on the standard input, lines `start KIND SEED` and `kill PID`

One process that has everything imported and makes clients by fork: a thousand of them in a minute. It answers `start` with
the client's pid, at once, and `kill` when the client is dead, its sockets closed. A client's names and objects carry its pid.
"""

import contextlib
import http.client
import json
import mmap
import os
import pathlib
import random
import signal
import socket
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "conformance")]

import packets  # noqa: E402
from clients import Given, GrpcClient, RequestedOutput, grpc_channel  # noqa: E402

MODELS = ["identity_fp32", "identity_fp32", "brief"]
SIZE = 96 << 10


def object_path(pid: int) -> pathlib.Path:
    return pathlib.Path("/dev/shm") / f"nerite_test_killed_{pid}"


def region_name(pid: int) -> str:
    return f"killed_{pid}"


def make_object() -> mmap.mmap:
    descriptor = os.open(object_path(os.getpid()), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.ftruncate(descriptor, 2 * SIZE)
    memory = mmap.mmap(descriptor, 2 * SIZE)
    os.close(descriptor)
    return memory


def over_http(url: str, name: str, chance) -> None:
    """Requests through the region `name`, some of them inline and cut off by nature when the client dies."""
    connection = http.client.HTTPConnection(url)
    while True:
        size = 4 * chance.randrange(1, SIZE // 4)
        inline = chance.random() < 0.3
        given = {"name": "INPUT0", "datatype": "FP32", "shape": [size // 4]}
        where = {"shared_memory_region": name, "shared_memory_byte_size": size}
        given["parameters"] = {"binary_data_size": size} if inline else where
        output = {"name": "OUTPUT0", "parameters": where | {"shared_memory_offset": SIZE}}
        header = json.dumps({"inputs": [given], "outputs": [output]}).encode()
        body = header + (bytes(size) if inline else b"")
        headers = {"Inference-Header-Content-Length": str(len(header))}
        connection.request("POST", f"/v2/models/{chance.choice(MODELS)}/infer", body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()


def register_over_http(url: str, memory_bytes: int) -> None:
    pid = os.getpid()
    body = json.dumps({"key": f"/{object_path(pid).name}", "offset": 0, "byte_size": memory_bytes})
    connection = http.client.HTTPConnection(url)
    connection.request("POST", f"/v2/systemsharedmemory/region/{region_name(pid)}/register", body)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()


def http_client(urls, chance) -> None:
    memory = make_object()
    register_over_http(urls[0], len(memory))
    over_http(urls[0], region_name(os.getpid()), chance)


def grpc_client(urls, chance) -> None:
    memory = make_object()
    with grpc_channel(urls[1]) as channel:
        client = GrpcClient(channel)
        name = region_name(os.getpid())
        client.register_system(name, f"/{object_path(os.getpid()).name}", len(memory))
        while True:
            size = 4 * chance.randrange(1, SIZE // 4)
            inline = chance.random() < 0.3
            where = {"raw": bytes(size)} if inline else {"region": (name, size, 0)}
            given = Given("INPUT0", "FP32", [size // 4], **where)
            client.infer(chance.choice(MODELS), [given], [RequestedOutput("OUTPUT0", (name, size, SIZE))])


def borrow(raw: packets.Raw, id: int, byte_size: int) -> tuple[str, mmap.mmap]:
    raw.call(id, borrow={"byte_size": byte_size})
    message, descriptors = raw.receive()
    memory = mmap.mmap(descriptors[0], message.lease.byte_size)
    os.close(descriptors[0])
    return message.lease.name, memory


def session_client(urls, chance) -> None:
    """Leases, a region of its own, outputs in leases it returns some time, and up to eight inferences in flight."""
    raw = packets.welcomed(urls[2])
    name, memory = borrow(raw, 2, 2 * SIZE)
    make_object()
    key = f"/{object_path(os.getpid()).name}"
    raw.call(3, register_system={"name": "mine", "key": key, "offset": 0, "byte_size": 2 * SIZE})
    assert raw.answer().WhichOneof("answer") == "done"
    in_flight, id, placed = 0, 3, []
    while True:
        while in_flight < 8:
            size = 4 * chance.randrange(SIZE // 8, SIZE // 4)
            given = Given("INPUT0", "FP32", [size // 4], region=(chance.choice([name, "mine"]), size, 0))
            outputs = [] if in_flight % 2 else [RequestedOutput("OUTPUT0", (name, size, SIZE))]
            request = GrpcClient.request(None, chance.choice(MODELS), [given], outputs)
            leased = ["OUTPUT0"] if in_flight % 2 else []
            id += 1
            back = [placed.pop() for _ in range(chance.randrange(len(placed) + 1))]
            raw.call(id, back, infer={"request": request.SerializeToString(), "leased_outputs": leased})
            in_flight += 1
        message, descriptors = raw.receive()
        for one in descriptors:
            os.close(one)
        if message.id:
            assert message.WhichOneof("answer") == "inference", message
            placed += [one.lease.name for one in message.inference.placed]
            in_flight -= 1


def lease_over_http(urls, chance) -> None:
    """Who does not read what the session sends, and uses what it was lent over HTTP."""
    raw = packets.welcomed(urls[2])
    name, memory = borrow(raw, 2, 2 * SIZE)
    over_http(urls[0], name, chance)


def half_open(urls, chance) -> None:
    """Connects again and again and stops half-way."""
    while True:
        raw = packets.Raw(urls[2])
        for step in (packets.encode(1, hello=packets.HELLO), packets.encode(2, borrow={"byte_size": SIZE})):
            if chance.random() < 0.7:
                raw.send(step)
        host, port = urls[0].split(":")
        with socket.create_connection((host, int(port))) as plain:
            plain.send(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.001)
        raw.close()


KINDS = {
    "http": http_client,
    "grpc": grpc_client,
    "session": session_client,
    "lease": lease_over_http,
    "half": half_open,
}


def start(kind: str, seed: int, urls) -> int:
    pid = os.fork()
    if pid:
        return pid
    # Nothing of the parent's is used from here on, and nothing is said: whoever fails, ends.
    status = 1
    try:
        with open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), 0)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            KINDS[kind](urls, random.Random(seed))
    finally:
        os._exit(status)


def main() -> None:
    urls = sys.argv[1:4]
    for line in sys.stdin:
        match line.split():
            case ["start", kind, seed]:
                print(start(kind, int(seed), urls), flush=True)
            case ["kill", pid]:
                os.kill(int(pid), signal.SIGKILL)
                _, status = os.waitpid(int(pid), 0)
                print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()
