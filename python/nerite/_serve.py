"""How does a notebook or a test start its own server?"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Sequence, Union

from nerite import _binary, _probe
from nerite._folder import Folder

if TYPE_CHECKING:
    from nerite._client import Client

Path = Union[str, "os.PathLike[str]"]

READY_WITHIN_S = 60.0
# The default of --exit-timeout-secs, and how much longer a server may take to end before it is killed.
EXIT_S, LATE_S = 30.0, 10.0
LOOK_EVERY_S = 0.01
# Another process may take a port after it was found free and before the server listens there.
PORT_TRIES = 3
PORT_IS_TAKEN = "already in use"
# The most characters of the log's end that an error shows.
LOG_SHOWN_MAX = 4000
LOOPBACK = "127.0.0.1"
# Statuses of HTTP.
READY, UNAUTHORIZED, FORBIDDEN = 200, 401, 403
# Flags without a value: True sets them, False leaves them out.
ALONE = frozenset({"disable-auto-complete-config"})
# Variables that are paths on the host, and not settings of a server.
NO_SETTINGS = frozenset({"NERITE_CUDA_LIBRARY", "NERITE_EXAMPLES"})


class ServerError(RuntimeError):
    """The server did not become ready, or ended unexpectedly. The text ends with its log."""


def serve(
    model_repository: Union[Path, Sequence[Path], None] = None, *, ready_within: float = READY_WITHIN_S, **flags: Any
) -> Server:
    """Starts a server for this process, and returns when it is ready.

    >>> import nerite
    >>> import numpy as np
    >>> array = np.zeros((1, 64), np.float32)
    >>> with nerite.serve("models") as server:
    ...     out = server.connect().model("digits")(image=array)

    Parameters
    ----------
    model_repository
        The path of a model repository, or several.
    ready_within : float
        Seconds that the models may take to load.
    flags
        Flags of ``nerite serve``, with underscores: ``model_control_mode="explicit", load_model=["a", "b"]``. A list sets the flag once for
        each element.

    The server listens on the loopback, at free ports, and has its own session socket. Flags can change that, environment variables
    ``NERITE_*`` cannot. Models run with this Python interpreter. The server stops at the end of the ``with`` block, by ``stop()``, when the
    object is collected, and when this process ends for any reason. If it does not become ready, the error shows its log. Its files are in
    a temporary folder, which is removed when it stops. If this process was killed, the folder is removed when this user starts the next server.
    """
    _binary.warn_of_other_version()
    given = {name.replace("_", "-"): value for name, value in flags.items() if value is not None}
    if model_repository is not None:
        given["model-repository"] = model_repository
    for _ in range(PORT_TRIES - 1):
        try:
            return Server(given, ready_within)
        except ServerError as error:
            if PORT_IS_TAKEN not in str(error):
                raise
    return Server(given, ready_within)


class Server:
    """A running server, made by :func:`serve`."""

    def __init__(self, given: dict[str, Any], ready_within: float):
        self._folder = Folder()
        try:
            self._start(given)
        except BaseException:
            self._folder.remove()
            raise
        self._finalizer = weakref.finalize(self, _end, self._process, self._stop_within_s, self._folder, os.getpid())
        try:
            self._until_ready(ready_within)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def http_url(self) -> str:
        """``http://127.0.0.1:<port>``, with ``https`` if the server has a certificate."""
        return f"http{'s' if self._has_tls else ''}://{self.http}"

    @property
    def log(self) -> str:
        """Its log so far."""
        return self._log if self._log is not None else _text(self._log_path)

    def connect(self, url: Optional[str] = None, **options: Any) -> Client:
        """A client, as from :func:`nerite.connect`: over the session socket, or over ``"http"`` or ``"grpc"``."""
        from nerite._client import connect

        if url == "http":
            url = self.http_url
        elif url == "grpc":
            url = f"grpc://{self.grpc}"
        elif url is None:
            url = f"unix:{self.session_socket}" if self.session_socket else self.http_url
        return connect(url, **options)

    def wait(self, timeout: Optional[float] = None) -> Optional[int]:
        """Waits until the server has ended, at most ``timeout`` seconds. Returns its exit status, or None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def stop(self) -> int:
        """Stops the server after requests in flight have ended. Returns its exit status: 0 if all ended in time."""
        if self._log is None:
            _end_process(self._process, self._stop_within_s)
            self._log = _text(self._log_path)
            self._finalizer()
        return self._process.returncode

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        ended = self._process.poll()
        self.stop()
        if kind is not None and ended is not None:
            print(self._ended(ended), file=sys.stderr)

    def __repr__(self) -> str:
        state = "stopped" if self._log is not None else f"process {self.pid}"
        return f"<nerite server at {self.http_url}, {state}>"

    def _start(self, given: dict[str, Any]) -> None:
        self._log: Optional[str] = None
        self._log_path = os.path.join(self._folder.path, "log")
        ports = _free_ports(3)
        given = dict(given)
        places = [
            _place(given.setdefault("http-address", LOOPBACK), given.setdefault("http-port", ports[0])),
            _place(given.setdefault("grpc-address", LOOPBACK), given.setdefault("grpc-port", ports[1])),
            _place(given.setdefault("metrics-address", given["http-address"]), given.setdefault("metrics-port", ports[2])),
        ]
        #: The addresses where it listens, ``host:port``.
        self.http, self.grpc, self.metrics = places
        socket_path = str(given.setdefault("session-socket", os.path.join(self._folder.path, "session.sock")))
        #: The path of its session socket. None if it has none.
        self.session_socket: Optional[str] = None if socket_path == "off" else socket_path
        if self.session_socket is None and self._taken(given, self.http):
            raise ServerError(f"another program listens at {self.http} already; choose another http_port")
        self._has_http = _is_on(given.get("allow-http", True))
        self._has_tls = any(_is_on(given.get(flag, False)) for flag in ("http-use-ssl", "http-use-ssl-mutual"))
        self._is_behind_proxy = bool(given.get("trusted-proxies"))
        self._may_be_unready = not _is_on(given.get("exit-on-error", True))
        self._stop_within_s = sum(_seconds(given, *flag) for flag in (("drain-seconds", 0.0), ("exit-timeout-secs", EXIT_S))) + LATE_S
        given.setdefault("parent-pid", os.getpid())
        command = [str(_binary.binary()), "serve", *(word for name in given for word in _words(name, given[name]))]
        with open(self._log_path, "wb") as log:
            # The server runs in its own process session, so Ctrl-C in a notebook or a test does not interrupt it. It stops when this process ends.
            self._process = subprocess.Popen(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._folder.inherited(),
            )

    @staticmethod
    def _taken(given: dict[str, Any], place: str) -> bool:
        return _is_on(given.get("allow-http", True)) and not _is_on(given.get("reuse-http-port", False)) and _listens(place)

    def _until_ready(self, ready_within: float) -> None:
        deadline = time.monotonic() + ready_within
        while not self._is_ready():
            status = self._process.poll()
            if status is not None:
                raise ServerError(self._ended(status))
            if time.monotonic() > deadline:
                raise ServerError(f"the server was not ready within {ready_within:g} s; its log:\n{_shown(self.log)}")
            time.sleep(LOOK_EVERY_S)

    def _is_ready(self) -> bool:
        # Another server may listen at a port that the caller chose. This server listens at its session socket once it has all of its ports.
        if self.session_socket and not _listens(self.session_socket):
            return False
        if not self._has_http:
            # The server listens only after the models are loaded.
            return _listens(self.session_socket or self.grpc)
        try:
            status, _ = _probe.get(self.http, "/v2/health/ready", self._has_tls, self._is_behind_proxy)
        except (OSError, http.client.HTTPException) as error:
            if not (self._has_tls and isinstance(error, (ssl.SSLError, ConnectionResetError))):
                return False
            # The server requires a certificate of its clients.
            status = UNAUTHORIZED
        # A refusal is an answer too: the server listens only after the models are loaded.
        is_ready = status in (READY, UNAUTHORIZED, FORBIDDEN) or self._may_be_unready
        return is_ready and self._process.poll() is None

    def _ended(self, status: int) -> str:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f"the server ended {how}; its log:\n{_shown(self.log)}"


def _place(address: Any, port: Any) -> str:
    """Where to connect to a server that listens at this address and port, as ``host:port``."""
    host = str(address).strip("[]")
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _environment() -> dict[str, str]:
    """The environment of the server, without settings of servers: the flags contain all of them."""
    return {name: value for name, value in _binary.environment().items() if not name.startswith("NERITE_") or name in NO_SETTINGS}


def _words(name: str, value: Any) -> Iterator[str]:
    if name in ALONE:
        yield from [f"--{name}"] if _is_on(value) else []
        return
    several: Iterable[Any] = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    for one in several:
        text = str(one).lower() if isinstance(one, bool) else os.fspath(one) if isinstance(one, pathlib.PurePath) else str(one)
        yield f"--{name}={text}"


def _seconds(given: dict[str, Any], flag: str, default: float) -> float:
    """The value of a flag with seconds. The server refuses what is no number itself."""
    try:
        return float(given.get(flag, default))
    except (TypeError, ValueError):
        return default


def _is_on(value: Any) -> bool:
    """Parses a boolean as the server does. The server refuses other values itself."""
    return str(value).lower() not in ("false", "off", "0")


def _free_ports(count: int) -> list[int]:
    """Free ports. All are held open until the last one is found, so that they differ."""
    with contextlib.ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in found]


def _listens(place: str) -> bool:
    """Whether a server listens at a session socket or at ``host:port``."""
    if os.path.isabs(place):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            return one.connect_ex(place) == 0
    host, _, port = place.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
        return True
    return False


def _end(process: subprocess.Popen[bytes], within_s: float, folder: Folder, owner: int) -> None:
    # A forked child inherits the object. It must not stop its parent's server or remove the folder.
    if os.getpid() == owner:
        _end_process(process, within_s)
        folder.remove()


def _end_process(process: subprocess.Popen[bytes], within_s: float) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            return log.read()
    except OSError:
        return ""


def _shown(log: str) -> str:
    return log if len(log) <= LOG_SHOWN_MAX else f"[…]{log[-LOG_SHOWN_MAX:]}"
