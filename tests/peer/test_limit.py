"""Does the bare epoll loop answer each request with the bytes that it was given?"""

import contextlib
import os
import pathlib
import socket
import subprocess

import pytest
import servers
from clients import grpc_channel, service_stub
from comparison.limit import received, wait_listening
from tritonclient.grpc import service_pb2 as pb

ROOT = servers.ROOT
REQUEST = b"POST /v2/models/a/infer HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: %d\r\n\r\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("limit") / "epoll"
    source = ROOT / "benches" / "peer" / "epoll.c"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", made, source], check=True)
    return made


@contextlib.contextmanager
def running(program: pathlib.Path, folder: pathlib.Path, protocol: str, answer: bytes, copied: int = 0, where=None):
    (folder / "answer").write_bytes(answer)
    where = where or servers.free_ports(1)[0]
    process = subprocess.Popen([program, protocol, str(where), folder / "answer", str(copied), folder / "counter"])
    try:
        wait_listening(process, where)
        yield where
    finally:
        process.kill()
        process.wait()


def count(folder: pathlib.Path) -> int:
    return int.from_bytes((folder / "counter").read_bytes(), "little")


def test_each_http_request_gets_the_answer_however_it_arrives(program, tmp_path):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    with running(program, tmp_path, "http", answer) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        request = REQUEST % 4 + b"body"
        for part in (request[:20], request[20:-2], request[-2:]):
            connection.sendall(part)
        assert received(connection) == answer
        connection.sendall(request * 2)
        both = b""
        while len(both) < 2 * len(answer):
            both += connection.recv(4096)
        assert both == answer * 2
        assert count(tmp_path) == 3


def test_a_tensor_is_copied_to_the_end_of_the_answer(program, tmp_path):
    size = 1 << 20
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (size + 2) + b"{}" + bytes(size)
    with running(program, tmp_path, "http", answer, size, tmp_path / "socket") as path, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        for _ in range(2):
            tensor = os.urandom(size)
            connection.sendall(REQUEST % (size + 5) + b"head " + tensor)
            assert received(connection) == answer[:-size] + tensor


def test_grpc_clients_read_the_message(program, tmp_path):
    message = pb.ModelInferResponse(model_name="m" * 100)
    with running(program, tmp_path, "grpc", message.SerializeToString()) as port, grpc_channel(f"127.0.0.1:{port}") as channel:
        stub = service_stub(channel)
        for _ in range(3):
            assert stub.ModelInfer(pb.ModelInferRequest(model_name="any", raw_input_contents=[bytes(5000)])) == message
        assert count(tmp_path) == 3
