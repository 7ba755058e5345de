"""Which two servers are compared, and how do they start and stop?"""

import contextlib
import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import time

import servers
import triton

from .repositories import PYTHON_IDENTITY, put_peer_backend, write_digits, write_identity

READY_LIMIT_S = 60


@dataclasses.dataclass
class Side:
    """One of the two servers: what it is called in the tables, and how it is started over its repository."""

    name: str
    model: str
    command: list[str]
    environment: dict[str, str]
    repository: pathlib.Path
    server: servers.Server | None = None

    @property
    def identity_backend(self) -> str:
        """The backend of its identity: compiled if it can be, else Python."""
        return "python" if self.model == PYTHON_IDENTITY else "identity"


def make_sides(scratch: pathlib.Path, peer_backends: pathlib.Path | None, baseline: pathlib.Path | None) -> list[Side]:
    ours, theirs = scratch / "nerite", scratch / "peer"
    sides = [Side("nerite", "identity, built in", *servers.nerite_command(ours), ours)]
    if baseline:
        command, environment = servers.nerite_command(theirs)
        sides.append(Side("baseline", "identity, built in", [str(baseline.resolve()), *command[1:]], environment, theirs))
    else:
        peer_model = put_peer_backend(scratch / "backends", peer_backends)
        sides.append(Side("Triton 2.51", peer_model, *triton.command(theirs, scratch), theirs))
    for side in sides:
        write_identity(side.repository, side.identity_backend)
    if importlib.util.find_spec("onnxruntime"):
        write_digits(ours, "onnx")
        write_digits(theirs, "onnx" if baseline else "python")
    return sides


def python_sides(sides: list[Side], scratch: pathlib.Path) -> list[Side]:
    """Both servers over the same identity in Python, in the same interpreter with the same numpy."""
    found = []
    for side in sides:
        other = moved(side, scratch, "python")
        if not other.repository.exists():
            write_identity(other.repository, "python")
        path = f"{triton.environment_path() / 'bin'}{os.pathsep}{side.environment['PATH']}"
        found.append(dataclasses.replace(other, model=PYTHON_IDENTITY, environment=side.environment | {"PATH": path}))
    return found


def moved(side: Side, scratch: pathlib.Path, name: str) -> Side:
    """The same server over another repository, which is called after `name` and the server and is not made yet."""
    repository = scratch / f"{name}_{side.repository.name}"
    command = [part.replace(str(side.repository), str(repository)) for part in side.command]
    return dataclasses.replace(side, command=command, repository=repository, server=None)


@contextlib.contextmanager
def running(sides: list[Side], scratch: pathlib.Path, check: bool = True):
    """Both servers up and ready, both down afterwards. With `check`, their identity is tried first."""
    try:
        for side in sides:
            log = scratch / f"{side.repository.name}.log"
            side.server = servers.start(side.command, side.environment, [], log)
            wait_ready(side.server.http)
            if check:
                check_identity(side)
        yield
    finally:
        for side in sides:
            if side.server is not None:
                servers.stop(side.server)
                side.server = None


def check_identity(side: Side, model: str = "identity_fp32") -> None:
    """A server that answers fast but wrongly is not worth measuring."""
    sent = os.urandom(4096)
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [1024], "parameters": {"binary_data_size": len(sent)}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    connection = http.client.HTTPConnection(side.server.http, timeout=READY_LIMIT_S)
    with contextlib.closing(connection):
        length = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", f"/v2/models/{model}/infer", head + sent, length)
        answer = connection.getresponse().read()
    if not answer.endswith(sent):
        raise RuntimeError(f"{side.name} answers {answer[:400]!r} and not the bytes it was sent")


def wait_ready(address: str) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while not is_ready(address):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{address} is not ready after {READY_LIMIT_S} s")
        time.sleep(0.001)


def is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
