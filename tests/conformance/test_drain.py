"""Does a server that drains lose no request, and does everybody see that it drains?"""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import tempfile
import threading
import time

import grpc
import pytest
import servers
import tritonclient.grpc as tritongrpc
from catalogue import SLOW_MS
from clients import GrpcClient, fp32, grpc_channel, http_call, http_infer, open_client
from meanwhile import waiting_at

MODEL = "identity_fp32"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
SLOW_MODEL = "slow_fp32"
# Longer than any test: such a server drains, and such a request lasts, until the test ends that.
ENDLESS = "--drain-seconds=3600"
ENDLESS_MS = 3_600_000
WAIT_S = 60
# How often a condition is looked at, a signal is sent again, a balancer looks, and a client sends a request.
POLL_S, SIGNAL_S, BALANCER_S, REQUEST_S = 0.01, 0.3, 0.5, 0.2


@pytest.fixture
def running(launcher):
    """Starts servers with a model that answers what it is sent."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")

    def start(*flags: str):
        name = f"drain_{time.monotonic_ns()}"
        repository = launcher.copy_of(name, MODEL, SLOW_MODEL)
        config = repository / SLOW_MODEL / "config.pbtxt"
        config.write_text(config.read_text().replace(f'"{SLOW_MS}"', f'"{ENDLESS_MS}"'))
        return launcher.running(name, *flags, repository=repository)

    return start


def wait_for(holds, server) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline and server.process.poll() is None, server.log_text()[-3000:]
        time.sleep(POLL_S)


def grpc_infer(channel) -> None:
    GrpcClient(channel).infer(MODEL, [fp32("INPUT0", [1.0])])


def is_ready(server) -> bool:
    return http_call(server.http, "GET", "/v2/health/ready").status == 200


def drained(server) -> None:
    """Tells it to end, and waits until everybody sees that it drains."""
    server.process.terminate()
    wait_for(lambda: not is_ready(server), server)


def ended(server) -> int:
    """Tells it to end until it has ended: signals that follow each other at once count as one."""
    deadline = time.monotonic() + WAIT_S
    while server.process.poll() is None:
        assert time.monotonic() < deadline, server.log_text()[-3000:]
        server.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(SIGNAL_S)
    return server.process.returncode


def test_a_server_that_drains_says_that_it_is_not_ready_and_serves_everything(running):
    with running(ENDLESS) as server, grpc_channel(server.grpc) as channel:
        drained(server)
        answer = http_call(server.http, "GET", "/v2/health/ready")
        assert (answer.status, answer.error) == (503, "Server draining: it serves requests until it stops, send new ones elsewhere")
        assert http_call(server.http, "GET", "/v2/health/live").status == 200
        assert http_call(server.http, "GET", f"/v2/models/{MODEL}/ready").status == 503
        # Field 1 is the status, 2 is NOT_SERVING.
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02"
        with contextlib.closing(tritongrpc.InferenceServerClient(server.grpc)) as client:
            assert client.is_server_live() and not client.is_server_ready()
            assert client.get_model_repository_index().models[0].state == "READY"
        for protocol in ("http", "grpc"):
            with open_client(protocol, server) as client:
                client.infer(MODEL, [fp32("INPUT0", [1.0])])
        assert http_call(server.metrics, "GET", "/metrics").status == 200
        assert "Draining for 3600 s: the server is not ready, and serves requests as before." in server.log_text()
        assert ended(server) == 0


def test_a_connection_of_http_is_closed_with_an_answer(running):
    with running(ENDLESS) as server, contextlib.closing(http.client.HTTPConnection(server.http, timeout=WAIT_S)) as kept:

        def answer() -> http.client.HTTPResponse:
            kept.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(BODY))
            found = kept.getresponse()
            assert found.status == 200, found.read()
            found.read()
            return found

        assert answer().getheader("connection") is None
        first = kept.sock
        drained(server)
        # The connection was open and idle all the time, and its next request is answered.
        assert kept.sock is first and answer().getheader("connection") == "close"
        assert kept.sock is None
        # So is the first of a new connection.
        assert http_infer(server.http, MODEL, BODY).ok().headers["connection"] == "close"
        assert ended(server) == 0


def test_an_idle_connection_of_grpc_is_told_to_go(running):
    with running(ENDLESS) as server, grpc_channel(server.grpc) as channel:
        grpc_infer(channel)
        has_gone = threading.Event()
        channel.subscribe(lambda state: state is grpc.ChannelConnectivity.IDLE and has_gone.set())
        drained(server)
        assert has_gone.wait(WAIT_S)
        # Whoever comes back is served: the balancer may not have looked yet.
        for _ in range(3):
            grpc_infer(channel)
        assert ended(server) == 0


def test_a_server_drains_as_long_as_it_was_told(running):
    with running("--drain-seconds=1") as server:
        begun = time.monotonic()
        server.process.terminate()
        assert server.process.wait(WAIT_S) == 0
        assert time.monotonic() - begun >= 1


def test_a_signal_ends_the_draining_and_one_more_ends_the_server_at_once(running):
    with running(ENDLESS, "--exit-timeout-secs=3600") as server:
        drained(server)
        # A request that is under way keeps the server from ending by itself.
        asking = threading.Thread(target=lost, args=[server])
        asking.start()
        wait_for(lambda: waiting_at(server.pid, SLOW_MODEL), server)
        assert ended(server) == 1
        asking.join()
        assert "Signal (15) received again. Exiting immediately." in server.log_text()


def lost(server) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        http_infer(server.http, SLOW_MODEL, {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})


def test_the_command_makes_the_server_at_a_socket_or_of_a_number_drain(running):
    binary = servers.nerite_binary()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        for by in (f"--session-socket={path}", "--pid={}"):
            with running(f"--session-socket={path}") as server:
                # `setpriv` becomes the server, so the number is the server's.
                done = subprocess.run([binary, "drain", by.format(server.process.pid)], capture_output=True, text=True, check=False)
                expect = f"process {server.process.pid} drains: it is not ready, and serves requests until SIGTERM stops it\n"
                assert (done.returncode, done.stdout) == (0, expect), done.stderr
                wait_for(lambda: not is_ready(server), server)
                assert "Draining until a signal ends that" in server.log_text()
                assert http_infer(server.http, MODEL, BODY).status == 200
                # Without --drain-seconds the first SIGTERM stops it.
                server.process.terminate()
                assert server.process.wait(WAIT_S) == 0
        done = subprocess.run([binary, "drain", f"--session-socket={path}"], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"no server at session socket {path}" in done.stderr


class Client:
    """Sends requests one after the other until `stop`, without trying one again, and keeps what went wrong."""

    def __init__(self, send, pause_s: float, stop):
        self.answered, self.lost = 0, []
        self.send, self.pause_s, self.stop = send, pause_s, stop
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self.send()
                self.answered += 1
            except Exception as error:  # noqa: BLE001
                self.lost.append(repr(error))
            time.sleep(self.pause_s)


@contextlib.contextmanager
def clients(http_url: str, grpc_url: str, pause_s: float, stop):
    """Clients that connect for each request, that keep a connection, and that use gRPC."""
    with contextlib.ExitStack() as held:
        kept = held.enter_context(contextlib.closing(http.client.HTTPConnection(http_url, timeout=WAIT_S)))
        channel = held.enter_context(grpc_channel(grpc_url))

        def by_kept() -> None:
            kept.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(BODY))
            answer = kept.getresponse()
            assert (answer.status, answer.read() != b"") == (200, True)

        ways = {
            "a connection for each": lambda: http_infer(http_url, MODEL, BODY).ok(),
            "a kept connection": by_kept,
            "gRPC": lambda: grpc_infer(channel),
        }
        begun = {name: Client(send, pause_s, stop) for name, send in ways.items()}
        try:
            yield begun
        finally:
            stop.set()
            for one in begun.values():
                one.thread.join()


def test_five_requests_a_second_are_all_answered_until_the_balancer_sends_none(running):
    with running("--drain-seconds=3") as server:
        stop = threading.Event()
        with clients(server.http, server.grpc, REQUEST_S, stop) as begun:
            wait_for(lambda: all(one.answered > 2 for one in begun.values()), server)
            server.process.terminate()
            # A balancer looks once in a while, and sends nothing more to a server that is not ready.
            while is_ready(server):
                time.sleep(BALANCER_S)
            before = {name: one.answered for name, one in begun.items()}
            wait_for(lambda: all(one.answered > before[name] for name, one in begun.items()), server)
            stop.set()
        assert server.process.wait(WAIT_S) == 0
        assert {name: one.lost for name, one in begun.items()} == dict.fromkeys(begun, [])


def test_an_upgrade_on_the_same_ports_loses_no_request(running, launcher, tmp_path):
    reuse = ["--reuse-http-port=true", "--reuse-grpc-port=true", "--drain-seconds=1"]
    with running(*reuse) as old:
        stop = threading.Event()
        with clients(old.http, old.grpc, 0, stop) as begun:
            wait_for(lambda: all(one.answered > 2 for one in begun.values()), old)
            with next_server(old, reuse, tmp_path / "log") as new:
                old.process.terminate()
                assert old.process.wait(WAIT_S) == 0, old.log_text()[-3000:]
                before = {name: one.answered for name, one in begun.items()}
                wait_for(lambda: all(one.answered > before[name] for name, one in begun.items()), new)
                stop.set()
                for one in begun.values():
                    one.thread.join()
        assert {name: one.lost for name, one in begun.items()} == dict.fromkeys(begun, [])


@contextlib.contextmanager
def next_server(old, flags: list[str], log):
    """A second server on the ports of the first, with a metrics port of its own, once it serves."""
    command, environment = servers.nerite_command(old.repository)
    (metrics,) = servers.free_ports(1)
    ports = [f"--{name}-{what}" for name, url in (("http", old.http), ("grpc", old.grpc)) for what in (f"address={url.split(':')[0]}", f"port={url.split(':')[1]}")]
    with log.open("wb") as out:
        process = subprocess.Popen(
            servers.dying_with_us([*command, *ports, f"--metrics-port={metrics}", *flags]), env=environment, stdout=out, stderr=out
        )
    new = servers.Server(old.http, old.grpc, f"127.0.0.1:{metrics}", pid=process.pid, log=log, process=process)
    try:
        wait_for(lambda: re.search("Started Metrics Service", new.log_text()), new)
        yield new
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
