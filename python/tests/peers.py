"""Which servers are there to talk to, and how are they started?"""

import contextlib
import os
import pathlib
import sys
from dataclasses import dataclass
from typing import Optional

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "models")]

import catalogue  # noqa: E402
import servers  # noqa: E402
import triton  # noqa: E402

import nerite.grpc  # noqa: E402
import nerite.http  # noqa: E402
from nerite._transports import POOL_PREFIX  # noqa: E402

# What of the catalogue the tests use; Triton takes a process for each.
MODELS = {"simple", "slow_fp32", "repeat_int32", *(f"identity_{one.lower()}" for one in catalogue.DATATYPES)}


@dataclass
class Found:
    """A running server, and its client class per protocol."""

    name: str
    http: str
    grpc: str
    process: object
    session_socket: Optional[str] = None

    def url(self, protocol: str) -> str:
        return self.http if protocol == "http" else self.grpc

    def client(self, protocol: str, **options):
        if options.get("buffers") == "lease":
            options["session_socket"] = self.session_socket
        return module(protocol).InferenceServerClient(self.url(protocol), **options)

    def regions(self) -> list[str]:
        """The names of the system regions it knows."""
        with contextlib.closing(nerite.http.InferenceServerClient(self.http)) as client:
            return [one["name"] for one in client.get_system_shared_memory_status()]


def module(protocol: str):
    return nerite.http if protocol == "http" else nerite.grpc


class Launcher:
    """Starts each kind of server once per set of flags."""

    def __init__(self, repository: pathlib.Path, scratch: pathlib.Path):
        self.repository = repository
        self.scratch = scratch
        self.running: dict[tuple[str, ...], Found] = {}
        self.ends = contextlib.ExitStack()

    def get(self, kind: str, *flags: str) -> Found:
        if (kind, *flags) not in self.running:
            self.running[(kind, *flags)] = self.fresh(kind, *flags)
        return self.running[(kind, *flags)]

    def fresh(self, kind: str, *flags: str) -> Found:
        scratch = self.scratch / f"{kind}-{len(list(self.scratch.iterdir()))}"
        scratch.mkdir()
        session_socket = str(scratch / "session.sock") if kind == "nerite" else None
        if session_socket and not any(flag.startswith("--session-socket") for flag in flags):
            flags = (*flags, f"--session-socket={session_socket}")
        started = (self._nerite if kind == "nerite" else self._triton)(scratch, list(flags))
        self.ends.callback(servers.stop, started)
        return Found(kind, started.http, started.grpc, started, session_socket)

    def _nerite(self, scratch: pathlib.Path, flags: list[str]):
        command, environment = servers.nerite_command(self.repository)
        return servers.start(command, environment, ["--exit-on-error=false", *flags], scratch / "log")

    def _triton(self, scratch: pathlib.Path, flags: list[str]):
        if not triton.is_installed():
            pytest.skip("Triton is not installed: cargo xtask oracle")
        models = scratch / "models"
        for model in catalogue.models():
            if model.name in MODELS:
                triton.put(models / model.name, model)
        graph = self.repository / "simple" / "1" / "model.onnx"
        (models / "simple" / "1" / "model.onnx").write_bytes(graph.read_bytes())
        command, environment = triton.command(models, scratch)
        return servers.start(command, environment, flags, scratch / "log", oracle=True)


def shared_objects() -> set[str]:
    """What of ours lies in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"{POOL_PREFIX}-{os.getpid()}-")}
