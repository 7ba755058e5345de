"""Which servers are compared, how do they start and stop, and in which order are they measured?"""

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import servers
import triton

from .report import LIMIT, OURS, PEER, Bound, Found, medians
from .repositories import PYTHON_IDENTITY, has_onnx_backend, put_peer_backends, write_digits, write_identity

READY_LIMIT_S = 60
# What stands in a table for which the wheel has no backend.
NO_PEER = "no peer: give --peer-backends DIR"


@dataclasses.dataclass
class Side:
    """A server: its role and its name in the tables, and how it is started over its repository."""

    role: str
    name: str
    model: str
    command: list[str]
    environment: dict[str, str]
    repository: pathlib.Path
    # The backend of its ONNX models: `onnxruntime`, or `python` for onnxruntime in a Python model.
    onnx_backend: str = "onnxruntime"
    server: servers.Server | None = None
    # Unix sockets that are measured in the place of ports, by protocol.
    sockets: dict[str, pathlib.Path] = dataclasses.field(default_factory=dict)
    # The server that describes its model, where it knows only the answer to a request.
    described_by: "Side | None" = None
    # A file with the number of answers, where there are no statistics.
    counter: pathlib.Path | None = None

    @property
    def identity_backend(self) -> str:
        """The backend of its identity: compiled if it can be, else Python."""
        return "python" if self.model == PYTHON_IDENTITY else "identity"

    def address(self, protocol: str) -> str:
        if protocol in self.sockets:
            return f"unix:{self.sockets[protocol]}"
        return self.server.http if protocol == "http" else self.server.grpc


@dataclasses.dataclass
class Bare:
    """A limit that is no server: what it takes to do the work alone."""

    measure: Callable[[], dict]
    role: str = LIMIT


@dataclasses.dataclass
class Run:
    """What each row gets: the options, a folder for its files, and the two servers, the peer first."""

    options: argparse.Namespace
    scratch: pathlib.Path
    pair: list[Side]

    @property
    def peer(self) -> Side:
        return self.pair[0]

    @property
    def ours(self) -> Side:
        return self.pair[1]

    @property
    def names(self) -> dict[str, str]:
        """What the roles are called in tables."""
        return {PEER: self.peer.name, OURS: self.ours.name, LIMIT: "limit"}

    @property
    def peers_engine(self) -> str:
        """What runs the peer's ONNX models."""
        if self.options.baseline:
            return f"{self.peer.name}: the same"
        return f"{self.peer.name}: " + ("onnxruntime in a Python model" if self.peer.onnx_backend == "python" else "its ONNX Runtime backend")

    def with_onnxruntime(self, side: Side) -> Side:
        """The side with ONNX Runtime in the place of nerite's own engine."""
        is_nerite = side.role == OURS or self.options.baseline
        return with_flags(side, servers.onnxruntime_flag()) if is_nerite else side

    def targets(self, *bounds: Bound) -> tuple[Bound, ...]:
        """What is aimed at, is aimed at beside Triton."""
        return () if self.options.baseline else bounds


def make_sides(scratch: pathlib.Path, peer_backends: pathlib.Path | None, baseline: pathlib.Path | None) -> list[Side]:
    """The peer, which is Triton or an earlier build, and nerite."""
    ours, theirs = scratch / "nerite", scratch / "peer"
    if baseline:
        command, environment = servers.nerite_command(theirs)
        peer = Side(PEER, "baseline", "identity, built in", [str(baseline.resolve()), *command[1:]], environment, theirs)
    else:
        command, environment = triton.command(theirs, scratch)
        backends = scratch / "backends"
        model = put_peer_backends(backends, peer_backends)
        onnx = "onnxruntime" if has_onnx_backend(backends) else "python"
        peer = Side(PEER, "Triton 2.51", model, command, environment, theirs, onnx)
    sides = [peer, Side(OURS, "nerite", "identity, built in", *servers.nerite_command(ours), ours)]
    for side in sides:
        write_identity(side.repository, side.identity_backend)
    return sides


def measured(sides: Sequence[Side | Bare], options, measure: Callable[[Side], dict]) -> Found:
    """Medians of all rounds, by role. A round is A B B A, so that what a machine does more and more of falls on all sides alike."""
    results: dict[str, list[dict]] = {side.role: [] for side in sides}
    for _ in range(options.runs):
        for side in (*sides, *reversed(sides)):
            results[side.role].append(side.measure() if isinstance(side, Bare) else measure(side))
    return {role: medians(found) for role, found in results.items()}


def with_flags(side: Side, *flags: str) -> Side:
    return dataclasses.replace(side, command=[*side.command, *flags], server=None)


def digit_sides(sides: list[Side], scratch: pathlib.Path) -> list[Side]:
    """Both servers over the digit net. It has a repository of its own, because Triton runs it in a process that would be counted elsewhere."""
    found = [moved(side, scratch, "digits") for side in sides]
    for side in found:
        if not side.repository.exists():
            write_digits(side.repository, side.onnx_backend)
    return found


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
