"""What if clients open connections and then keep the server waiting?

Each of these is done by one user, while others are to be served as if nothing happened.
"""

import contextlib
import http.client
import json
import os
import pathlib
import socket
import tempfile
import threading
import time

import numpy as np
import pytest
import servers
import strangers
import tritonclient.grpc as grpcclient
from busy import TIMES_COUNT
from clients import GrpcClient, fp32, http_call, pb
from frames import frame, message, open_connection
from packets import Raw, welcomed
from server_setup import put_delayed
from strangers import call_headers, close_all, connections_of, data, hello, is_ended, read_exactly, read_until_end
from users import as_user
from witness import are_answered, comes_to, descriptors, witnesses

FILES = 1024
# Half of three quarters of these.
ONE_PEERS = 384
STRANGER, ANOTHER = 12345, 12346
HALF_HEAD = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX-Never: "
INFER = "/v2/models/identity_fp32/infer"
HALF_BODY = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf".encode()
# The server answers it before the body has come, when it begins to read that.
AWAITED_BODY = HALF_BODY.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
# How long something may take that should take a second: this machine may be very busy.
SOON_S = 30
# A stop takes 2 s at the most after the last answer. Where times do not count, this machine may be busy with other things.
STOP_SOON_S = 2 if TIMES_COUNT else 5
# Then it is asked why it has not ended. All time limits are longer.
STOP_S = 20
# Inferences of each session whose answers are not read.
UNREAD_ANSWERS = 40
PATIENT_S = 300

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


@contextlib.contextmanager
def running(launcher, name: str, *flags: str, files: tuple[int, int] | None = None, lives: bool = True):
    """A server that lives to the end of the block, without sessions unless a flag says where. `files`: its limits of open files, soft and hard."""
    if launcher.oracle:
        pytest.skip("2.51 has none of these limits")
    repository = launcher.copy_of(name, "identity_fp32", "simple")
    put_delayed(repository, "delayed", 3000)
    command, environment = servers.nerite_command(repository)
    limits = ["prlimit", f"--nofile={files[0]}:{files[1]}"] if files else []
    flags = ["--session-socket=off", *flags]
    log = launcher.scratch / f"{name}.log"
    server = servers.start([*limits, *command], environment, flags, log, oracle=False, repository=repository)
    try:
        yield server
        assert not lives or server.process.poll() is None, f"the server died:\n{server.log_text()[-3000:]}"
    finally:
        servers.stop(server)


def counts(server, family: str) -> dict[str, int]:
    """The samples of a family of metrics, by reason."""
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    samples = [line.split(" ") for line in page.splitlines() if line.startswith(family)]
    return {name.partition('reason="')[2].rstrip('"}'): int(value) for name, value in samples}


# ---------------------------------------------------------------------------------------------- too many


@pytest.fixture(scope="module")
def small(launcher):
    """A server that may have few files, soft and hard."""
    with running(launcher, "small", files=(FILES, FILES)) as server:
        yield server


@pytest.mark.parametrize("uid", [STRANGER, 0])
@pytest.mark.parametrize(("port", "first"), [("http", HALF_HEAD), ("http", b""), ("grpc", hello()), ("grpc", b"PRI"), ("metrics", HALF_HEAD)])
def test_whoever_opens_more_connections_than_there_can_be_locks_nobody_out(small, uid, port, first):
    with witnesses(small) as watching:
        opened = []
        for _ in range(3):
            opened += connections_of(uid, getattr(small, port), 400, first)
            are_answered(watching, 3)
        assert descriptors(small.pid) < FILES
        for newcomer in (STRANGER, ANOTHER, 0):
            assert status_of(newcomer, small) == 200
        close_all(opened)
        are_answered(watching, 3)
    comes_to(lambda: counts(small, "nerite_connections ").get("", 0), 1)
    lines = small.log_text().count("connection was refused")
    assert lines < 100, f"{lines} lines of one attack"


def status_of(uid: int, server) -> int:
    """The status of a request on a new connection of that user."""
    (one,) = connections_of(uid, server.http, 1)
    with one:
        one.settimeout(SOON_S)
        one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(one)
        answer.begin()
        return answer.status


def wait_until_begun(connections) -> None:
    """Waits until the server has begun the request of each, `AWAITED_BODY` or a stream of gRPC. A connection without one may be ended for another."""
    for one in connections:
        head = read_exactly(one, 9)
        if head == b"HTTP/1.1 ":
            assert read_exactly(one, 3) == b"100"
            continue
        while head[3] != strangers.HEADERS:
            read_exactly(one, int.from_bytes(head[:3], "big"))
            head = read_exactly(one, 9)


@pytest.mark.parametrize(("port", "first"), [("http", AWAITED_BODY), ("grpc", hello() + call_headers("ModelStreamInfer", 1))])
def test_one_user_may_have_half_of_the_places_and_is_told_so(small, port, first):
    with witnesses(small) as watching:
        taken = connections_of(STRANGER, getattr(small, port), ONE_PEERS, first)
        comes_to(lambda: counts(small, "nerite_connections ")[""] >= ONE_PEERS, True)
        wait_until_begun(taken)
        (refused,) = connections_of(STRANGER, getattr(small, port), 1)
        with refused:
            word = b"".join(iter(lambda: refused.recv(4096), b""))
        reason = f"user {STRANGER} has {ONE_PEERS} connections open, of {ONE_PEERS} that one peer may have"
        assert reason in word.decode("latin-1")
        if port == "http":
            head, _, body = word.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"connection: close" in head
            assert reason in json.loads(body)["error"]
        assert status_of(ANOTHER, small) == 200 and status_of(0, small) == 200
        assert counts(small, "nerite_connections_refused_total")["peer"] >= 1
        close_all(taken)
        are_answered(watching, 3)


def test_operators_and_others_find_places_though_all_are_taken(launcher):
    with running(launcher, "full", "--connections-max=64", "--connections-per-peer-max=30") as server:
        strangers_own = [connections_of(uid, server.http, 30, AWAITED_BODY) for uid in (STRANGER, ANOTHER)]
        comes_to(lambda: counts(server, "nerite_connections ")[""] >= 60, True)
        for each in strangers_own:
            wait_until_begun(each)
        assert http_call(server.http, "GET", "/v2/health/live").status == 200
        (refused,) = connections_of(ANOTHER + 1, server.http, 1)
        with refused:
            assert b"60 connections are open, of 60 that there may be" in refused.recv(4096)
        for each in strangers_own:
            close_all(each)
        comes_to(lambda: counts(server, "nerite_connections ")[""], 1)
        own = connections_of(0, server.http, 56, AWAITED_BODY)
        wait_until_begun(own)
        assert status_of(STRANGER, server) == 200
        close_all(own)


def files_allowed(pid: int) -> tuple[int, int]:
    """The limits of open files of a process, soft and hard."""
    lines = pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()
    (found,) = [line.split()[3:5] for line in lines if line.startswith("Max open files")]
    return int(found[0]), int(found[1])


def test_a_low_soft_limit_of_open_files_is_raised(launcher):
    """A thousand half heads fit then, which the soft limit alone would not let in, and others are served."""
    soft, hard, heads = 256, 4096, 1000
    with running(launcher, "raised", files=(soft, hard)) as server:
        assert files_allowed(server.pid) == (hard, hard)
        with witnesses(server) as watching:
            opened = connections_of(STRANGER, server.http, heads, HALF_HEAD)
            comes_to(lambda: counts(server, "nerite_connections ")[""] >= heads, True)
            for newcomer in (STRANGER, ANOTHER, 0):
                assert status_of(newcomer, server) == 200
            are_answered(watching, 3)
            close_all(opened)
        assert sum(counts(server, "nerite_connections_refused_total").values()) == 0


# ---------------------------------------------------------------------------------------------- too slow


@pytest.fixture(scope="module")
def impatient(launcher):
    """A server that waits for a second only."""
    times = ["header", "idle"]
    flags = [f"--http-{time}-timeout=1" for time in times] + ["--grpc-idle-timeout=1"]
    with running(launcher, "impatient", *flags, "--body-progress-timeout=1", "--write-timeout=1") as server:
        yield server


@contextlib.contextmanager
def ends_for(server, reason: str):
    """What is done in the block makes the server end at least one connection or call for that reason."""
    before = counts(server, "nerite_connections_ended_total")[reason]
    yield
    comes_to(lambda: counts(server, "nerite_connections_ended_total")[reason] > before, True)


BEGINNINGS = [
    ("http", b"", "head"),
    ("http", HALF_HEAD, "head"),
    ("http", HALF_BODY, "body"),
    ("metrics", HALF_HEAD, "head"),
    ("grpc", b"", "head"),
    ("grpc", strangers.PREFACE, "head"),
    ("grpc", hello(), "idle"),
    ("grpc", hello() + frame(strangers.HEADERS, 0, 1, b"\0\x01a\x01b"), "body"),
    ("grpc", hello() + call_headers("ModelInfer", 1)[:20], "body"),
]


@pytest.mark.parametrize(("port", "first", "reason"), BEGINNINGS)
def test_who_stops_in_the_middle_is_ended(impatient, port, first, reason):
    with ends_for(impatient, reason):
        (one,) = connections_of(STRANGER, getattr(impatient, port), 1, first)
        with one:
            assert is_ended(one, SOON_S)


@pytest.mark.parametrize(("first", "drop", "reason"), [(HALF_HEAD, b"a", "head"), (HALF_BODY, b"1", "body")])
def test_who_sends_a_byte_now_and_then_is_ended(impatient, first, drop, reason):
    with ends_for(impatient, reason):
        (one,) = connections_of(STRANGER, impatient.http, 1, first)
        with one:
            deadline = time.monotonic() + SOON_S
            with contextlib.suppress(OSError):
                while not is_ended(one, 0.2):
                    assert time.monotonic() < deadline
                    one.sendall(drop)


def test_half_a_message_ends_its_call_only(launcher):
    """Only the rest of a message is waited for so shortly, not the next call."""
    short = running(launcher, "half_message", "--body-progress-timeout=1")
    with short as server, strangers.connect(server.grpc) as one, ends_for(server, "body"):
        one.sendall(hello() + call_headers("ModelInfer", 1) + data(1, message(bytes(1000))[:500]))
        one.settimeout(SOON_S)
        # No message, only a status.
        assert list(read_until_end(one, 1)) == [strangers.HEADERS]
        one.sendall(call_headers("ServerLive", 3) + data(3, message(b""), end=True))
        assert read_until_end(one, 3)[strangers.DATA] == message(b"\x08\x01")


def request(values: int) -> pb.ModelInferRequest:
    """An inference whose answer is as large as its input."""
    made = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[bytes(4 * values)])
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[values])
    return made


LARGE = 8 << 20


def unread(server, kind: str) -> socket.socket:
    """A connection on which a large answer waits that nobody reads."""
    if kind == "http":
        one = strangers.connect(server.http)
        document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [LARGE], "parameters": {"binary_data_size": 4 * LARGE}}],
                    "parameters": {"binary_data_output": True}}  # fmt: skip
        head = json.dumps(document).encode()
        one.sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(head) + 4 * LARGE}\r\n"
            f"Inference-Header-Content-Length: {len(head)}\r\n\r\n".encode() + head + bytes(4 * LARGE)
        )
        return one
    call = "ModelInfer" if kind == "unary" else "ModelStreamInfer"
    one = open_connection(server.grpc)
    one.sendall(call_headers(call, 1))
    body = message(request(100_000).SerializeToString())
    for _ in range(1 if kind == "unary" else 20):
        one.sendall(data(1, body, end=kind == "unary"))
    return one


@pytest.mark.parametrize("kind", ["http", "unary", "stream"])
def test_who_does_not_read_its_answer_is_ended(impatient, kind):
    with contextlib.ExitStack() as held, ends_for(impatient, "write"):
        # On a busy machine one may be ended before it has sent all.
        for _ in range(3):
            with contextlib.suppress(OSError):
                held.enter_context(unread(impatient, kind))
    # What is ended was the connection or the stream; either way the rest of the server is well.
    assert http_call(impatient.http, "GET", "/v2/health/live").status == 200


def test_a_slow_upload_that_goes_on_is_served(launcher):
    """It takes longer in all than the server waits for a piece. A piece comes in far less, even from a busy machine."""
    limit_s = 6
    values = np.arange(20 * (64 << 10) // 4, dtype=np.float32).tobytes()
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values) // 4], "parameters": {"binary_data_size": len(values)}}],
                "parameters": {"binary_data_output": True}}  # fmt: skip
    head = json.dumps(document).encode()

    def parts():
        yield head
        for at in range(0, len(values), 64 << 10):
            time.sleep(limit_s / 15)
            yield values[at : at + (64 << 10)]

    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Length": str(len(head) + len(values))}
    with running(launcher, "slow_upload", f"--body-progress-timeout={limit_s}") as server:
        with contextlib.closing(http.client.HTTPConnection(server.http, timeout=SOON_S)) as connection:
            connection.request("POST", INFER, parts(), headers)
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read().endswith(values)


def test_an_open_stream_may_rest(impatient):
    values = grpcclient.InferInput("INPUT0", [1], "FP32")
    values.set_data_from_numpy(np.ones(1, np.float32))
    answers, received = [], threading.Semaphore(0)
    with grpcclient.InferenceServerClient(impatient.grpc) as client:
        client.start_stream(lambda result, error: (answers.append(error), received.release()))
        for _ in range(2):
            client.async_stream_infer("identity_fp32", [values])
            assert received.acquire(timeout=SOON_S)
            time.sleep(4)
        assert answers == [None, None]


# ---------------------------------------------------------------------------------------------- a stop


def half_requests(server) -> list[socket.socket]:
    held = [connections_of(STRANGER, server.http, 5, first) for first in (b"", HALF_HEAD, HALF_BODY)]
    half_call = hello() + call_headers("ModelInfer", 1) + data(1, message(bytes(1000))[:500])
    half_stream = hello() + call_headers("ModelStreamInfer", 1)
    firsts = (b"PRI", hello(), half_call, half_stream, half_stream + data(1, message(bytes(1000))[:500]))
    held += [connections_of(STRANGER, server.grpc, 5, first) for first in firsts]
    held.append(connections_of(STRANGER, server.metrics, 5, HALF_HEAD))
    return [one for each in held for one in each]


@contextlib.contextmanager
def patient(launcher, name: str, *more: str, exit_s: int = PATIENT_S):
    """A server with sessions that would wait for minutes for each kind of client, and that long for its exit."""
    limits = ["http-header", "http-idle", "grpc-idle", "grpc-handshake", "body-progress", "write"]
    flags = [f"--{limit}-timeout={PATIENT_S}" for limit in limits]
    with tempfile.TemporaryDirectory(prefix="nerite-stop-") as folder:
        os.chmod(folder, 0o755)
        session = f"{folder}/session"
        flags += [f"--session-socket={session}", f"--session-allow-uid={STRANGER}"]
        with running(launcher, name, *flags, *more, f"--exit-timeout-secs={exit_s}", lives=False) as server:
            server.session = session
            yield server


def stops(server) -> float:
    """Seconds to its end, which must be a clean one that gave nobody up, and a prompt one."""
    begun = time.monotonic()
    server.process.terminate()
    return prompt_end(server, begun)


def prompt_end(server, since: float) -> float:
    """Seconds from that moment to the server's end."""
    assert server.process.wait(STOP_S) == 0, server.log_text()[-2000:]
    took_s = time.monotonic() - since
    assert "Exit timeout expired" not in server.log_text()
    assert took_s <= STOP_SOON_S, f"{took_s:.1f} s until the end\n{server.log_text()[-2000:]}"
    return took_s


def unread_sessions(server) -> list[Raw]:
    """Sessions with answers that nobody reads: more than a socket takes, and less than what ends the session."""
    body = GrpcClient.request(None, "identity_fp32", [fp32("INPUT0", range(20_000))]).SerializeToString()
    held = as_user(STRANGER, lambda: [welcomed(server.session) for _ in range(5)])
    for one in held:
        # An answer has 80 KB. What clients may leave unread is 16 MiB for each session.
        for id in range(2, 2 + UNREAD_ANSWERS):
            one.call(id, infer={"request": body})
    return held


def unread_pages(url: str) -> list[socket.socket]:
    """Connections on which many pages of metrics wait that nobody reads."""
    return connections_of(STRANGER, url, 3, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)


HOLDERS = {
    "half requests": half_requests,
    "unread answers": lambda server: [unread(server, kind) for kind in ("http", "unary", "stream")],
    "unread answers of sessions": unread_sessions,
    "unread metrics": lambda server: unread_pages(server.metrics),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_stop_waits_for_nobody_who_keeps_the_server_waiting(launcher, holder):
    with patient(launcher, holder.replace(" ", "_")) as server:
        held = HOLDERS[holder](server)
        time.sleep(2)
        print(f"{holder}: {stops(server):.2f} s")
        close_all(held)


def reads_slowly(one: socket.socket) -> None:
    """Goes on reading until the server closes the connection, at a rate at which its answer of 32 MB takes 3 s or more.

    The kernel lets the server write on once a third of what it holds was read: a slower one would be ended as one that does not read.
    """
    with contextlib.suppress(OSError):
        while one.recv(256 << 10):
            time.sleep(0.03)


def test_a_stop_closes_all_front_ends_by_one_deadline(launcher):
    """Without an exit timeout it has 2 s for all of them. A client that reads slowly would take longer, and its connection is cut."""
    own_page = f"127.0.0.1:{servers.free_ports(1)[0]}"
    with patient(launcher, "one_deadline", f"--ui-port={own_page.rpartition(':')[2]}", exit_s=0) as server:
        held = [unread(server, kind) for kind in ("http", "unary", "stream")] + unread_sessions(server)
        held += unread_pages(server.metrics) + unread_pages(own_page)
        slow = [unread(server, "http") for _ in range(2)]
        reading = [threading.Thread(target=reads_slowly, args=(one,)) for one in slow]
        time.sleep(2)
        begun = time.monotonic()
        for one in reading:
            one.start()
        server.process.terminate()
        assert server.process.wait(STOP_S) == 0, server.log_text()[-2000:]
        print(f"{time.monotonic() - begun:.2f} s")
        (summary,) = [line for line in server.log_text().splitlines() if "Exit timeout expired" in line]
        print(summary)
        assert "open connections are closed: " in summary and "2 of HTTP" in summary and "--exit-timeout-secs" in summary
        for one in reading:
            one.join()
        close_all(held + slow)


def test_a_stop_answers_whole_requests_and_refuses_half_ones(launcher):
    with patient(launcher, "whole") as server:
        held = half_requests(server)
        answers = []
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
        thread = threading.Thread(
            target=lambda: answers.append(http_call(server.http, "POST", "/v2/models/delayed/infer", json.dumps(body).encode()))
        )
        thread.start()
        upload = strangers.connect(server.http)
        upload.sendall(HALF_BODY)
        time.sleep(1)
        server.process.terminate()
        thread.join()
        answered = time.monotonic()
        print(f"{prompt_end(server, answered):.2f} s after the answer")
        assert [answer.status for answer in answers] == [200]
        assert is_ended(upload, SOON_S)
        close_all(held)
        upload.close()
