"""How does a server under test get started and stopped?"""

import contextlib
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The programs, libraries and examples of the development build, and what makes them.
DEVELOPMENT_BUILD = ROOT / "target" / "debug"
BUILD = "cargo build --workspace --lib --bins --tests --examples"
START_LIMIT_S = 240
STOP_LIMIT_S = 40
PORT_MIN = 10_000
TRIES = 3
# Runs the command behind it as on such a kernel.
OLDER_KERNEL = [sys.executable, str(ROOT / "tests" / "conformance" / "older_kernel.py")]


@dataclass
class Server:
    """Where a running server answers. `pid` and `log` are None when somebody else started it."""

    http: str
    grpc: str
    metrics: str
    oracle: bool = False
    pid: int | None = None
    log: pathlib.Path | None = None
    repository: pathlib.Path | None = None
    process: subprocess.Popen | None = field(default=None, repr=False)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log else ""


def free_ports(count: int) -> list[int]:
    """Ports nobody listened on a moment ago; all are held until the last is found, so that they differ. None is of those that
    the system gives to whoever connects to somebody. Each process of a test run has a range of its own: where two of them
    chose the same port, the server of one would be taken for that of the other."""
    found = []
    worker, workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = (first_of_the_systems() - PORT_MIN) // workers
    first = PORT_MIN + worker * ports
    with contextlib.ExitStack() as held:
        while len(found) < count:
            one = held.enter_context(socket.socket())
            port = random.randrange(first, first + ports)
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    return found


def first_of_the_systems() -> int:
    with contextlib.suppress(OSError):
        first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first > 2 * PORT_MIN:
            return first
    return 1 << 16


def dying_with_us(command: list[str]) -> list[str]:
    """The command, told to end when the test run is killed. By a program rather than by code run in the fork: the gRPC
    library's threads do not survive a fork, and the child would die of them now and then."""
    wrapper = shutil.which("setpriv")
    return [wrapper, "--pdeathsig", "KILL", *command] if wrapper else command


def is_up(url: str) -> bool:
    """Whether it answers. It does once its models are loaded, or its start failed."""
    try:
        with urllib.request.urlopen(f"http://{url}/v2/health/live", timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def nerite_binary() -> pathlib.Path:
    """The binary under test: NERITE_BIN, or else the development build."""
    found = pathlib.Path(os.environ.get("NERITE_BIN", DEVELOPMENT_BUILD / "nerite"))
    assert found.exists(), f"{found} is not built: {BUILD}"
    return found


def nerite_command(repository: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """The command line up to the repository, and the environment."""
    before = OLDER_KERNEL if tests_older_kernel() else []
    return [*before, str(nerite_binary()), "serve", f"--model-repository={repository}"], dict(os.environ)


def tests_older_kernel() -> bool:
    """Whether all servers run as on a kernel that cannot refuse descriptors."""
    return os.environ.get("NERITE_TEST_OLDER_KERNEL") == "1"


def onnxruntime_flag() -> str:
    """Serve ONNX models by the library inside the Python package that the tests compare with."""
    capi = pathlib.Path(onnxruntime.__file__).parent / "capi"
    return f"--onnxruntime-library={next(capi.glob('libonnxruntime.so.*'))}"


def start(command: list[str], environment: dict[str, str], flags: list[str], log: pathlib.Path, **facts) -> Server:
    """Starts a server on free ports of the loopback and waits until it answers. Again where somebody took a port since."""
    for _ in range(TRIES - 1):
        try:
            return start_once(command, environment, flags, log, **facts)
        except RuntimeError:
            if "already in use" not in log.read_text(errors="replace"):
                raise
    return start_once(command, environment, flags, log, **facts)


def start_once(command: list[str], environment: dict[str, str], flags: list[str], log: pathlib.Path, **facts) -> Server:
    http, grpc, metrics = free_ports(3)
    ports = [
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            dying_with_us(command + ports + flags), env=environment, stdout=out, stderr=out
        )
    server = Server(
        f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}",
        pid=process.pid, log=log, process=process, **facts,
    )
    deadline = time.monotonic() + START_LIMIT_S
    # A port with TLS may want a certificate of its clients. Where both have it, the log says that both listen.
    plain = [port for port in ("http", "metrics") if not any(flag.startswith(f"--{port}-use-ssl") for flag in flags)]
    while not (is_up(getattr(server, plain[0])) if plain else "Started Metrics Service" in server.log_text()):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}:\n{server.log_text()[-4000:]}")
        if time.monotonic() > deadline:
            stop(server)
            raise RuntimeError(f"no answer after {START_LIMIT_S} s:\n{server.log_text()[-4000:]}")
        time.sleep(0.02)
    return server


def stop(server: Server) -> int | None:
    """Asks the server to end, insists after a while, and returns its exit status."""
    if server.process is None:
        return None
    server.process.terminate()
    try:
        return server.process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        return server.process.wait()
