"""Does everything that clients make the server hold stay within its budgets, and does it cost those who hold it?"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time

import grpc
import numpy as np
import pytest
import python_catalogue
from confinement import ADDRESS_SPACE_BYTES, GROUP_BYTES, confined, control_group
from clients import Given, Refused, http_call, open_client, refuses
from frames import (
    DATA, END_HEADERS, END_STREAM, HEADERS, call_head, frame, frames_of, literal, open_connection, received, reference, send_call,
)  # fmt: skip
from holding import MODEL, get_unread, head, header_bomb, http_generate, http_post, infer_message, many, session_infer
from server_setup import put_delayed
from meters import metric, peak
from packets import open_session
from python_setup import PATIENT
from regions import Region
from witness import are_answered, falls_to, resident, settled, witnesses

MIB = 1 << 20
BUDGET = 256 * MIB
PER_PEER = 160 * MIB
# Beside the budget: what the allocator keeps, what the library has not yet handed over, and blocks that grow by doubling.
SLACK = 160 * MIB
# What the allocator keeps once everybody is gone.
LEFT = 48 * MIB
STRANGER = 1_000_000 + os.getpid()
SLOW, SLOW_MS = "slow_to_copy", 200


@pytest.fixture(scope="module")
def budgeted(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 has no budgets")
    repository = launcher.copy_of("budgeted", MODEL, "simple")
    put_delayed(repository, SLOW, SLOW_MS)
    session = tmp_path_factory.mktemp("budgeted") / "session"
    flags = [f"--session-socket={session}", f"--memory-budget={BUDGET}", f"--memory-budget-per-peer={PER_PEER // MIB}M", "--http-max-input-size=1000000000"]
    with launcher.running("budgeted", *flags, repository=repository) as found:
        with witnesses(found) as watching:
            are_answered(watching, 20)
        found.session = session
        found.quiet_bytes = settled(lambda: resident(found.pid))
        yield found


@pytest.fixture
def bounded(budgeted):
    """The witnesses of this user, one of another, and the bound that holds during the test and after it."""
    before = budgeted.quiet_bytes
    falls_to(lambda: resident(budgeted.pid), before + LEFT)
    # The stranger connects first: meanwhile no other socket may be made.
    with stranger(budgeted) as other, witnesses(budgeted) as found, peak(lambda: resident(budgeted.pid)) as peak_bytes:
        yield budgeted
        are_answered(found, 2)
        seen = other.answers
        deadline = time.monotonic() + 60
        while other.answers < seen + 2 and other.failure is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.failure is None and other.answers >= seen + 2, other.failure
    assert budgeted.process.poll() is None, budgeted.log_text()[-3000:]
    print(f"peak: {(peak_bytes.most - before) / MIB:.0f} MiB")
    assert peak_bytes.most - before < BUDGET + SLACK
    # What the allocator keeps is not what clients hold.
    falls_to(lambda: resident(budgeted.pid), before + LEFT)
    falls_to(lambda: metric(budgeted, 'nerite_memory_budget_bytes{state="used"}'), 4 * MIB)


class Stranger(threading.Thread):
    """Another user, who asks for little over one connection all the time."""

    def __init__(self, connection: http.client.HTTPConnection):
        super().__init__()
        self.connection, self.ended, self.answers, self.failure = connection, threading.Event(), 0, None

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                values = np.random.default_rng().random(500, np.float32)
                raw = values.tobytes()
                text = head(len(raw))
                self.connection.request("POST", f"/v2/models/{MODEL}/infer", text + raw, {"Inference-Header-Content-Length": str(len(text))})
                answer = self.connection.getresponse()
                assert answer.status == 200 and answer.read().endswith(raw)
                self.answers += 1
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure


@contextlib.contextmanager
def stranger(server):
    """The user who makes a socket is the one who counts, whoever uses it afterwards."""
    connection = http.client.HTTPConnection(server.http, timeout=60)
    if os.geteuid() == 0:
        os.seteuid(STRANGER)
    try:
        connection.connect()
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
    found = Stranger(connection)
    found.start()
    try:
        yield found
    finally:
        found.ended.set()
        found.join()
        connection.close()


def shed(server) -> int:
    return sum(metric(server, f'nerite_shed_connections_total{{reason="{reason}"}}') for reason in ("connection", "peer", "all", "stalled"))


def test_references_to_headers_hold_little_in_many_open_calls(bounded):
    with many(20, lambda: header_bomb(bounded, 4096)):
        time.sleep(1)
        falls_to(lambda: resident(bounded.pid), bounded.quiet_bytes + PER_PEER + LEFT)


def test_a_head_larger_than_the_limit_costs_its_call_alone(bounded):
    connection = open_connection(bounded.grpc)
    with contextlib.closing(connection):
        connection.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ServerLive", literal("a", "b", indexed=True) + reference(62) * 600)))
        connection.sendall(frame(HEADERS, END_HEADERS, 3, call_head("ServerLive")))
        connection.sendall(frame(DATA, END_STREAM, 3, bytes(5)))
        answers = {}
        for kind, stream, fields in frames_of(received(connection, 2)):
            if kind == HEADERS:
                answers.setdefault(stream, {}).update(fields)
    assert answers[1][":status"] == "431" and answers[3]["grpc-status"] == "0"


def test_answers_over_http_that_nobody_reads(bounded):
    before = shed(bounded)
    with many(60, lambda: http_post(bounded, 8 * MIB)):
        time.sleep(1)
    assert shed(bounded) > before


def test_generated_texts_that_nobody_reads(bounded):
    before = shed(bounded)
    with many(20, lambda: http_generate(bounded, 4 * MIB)):
        falls_to(lambda: before - shed(bounded), -1)


def test_the_status_of_many_regions_that_nobody_reads(bounded):
    regions = 8000
    with contextlib.closing(Region(4096)) as made, contextlib.closing(http.client.HTTPConnection(bounded.http)) as calls:

        def each(call: str, document: str) -> None:
            for number in range(regions):
                calls.request("POST", f"/v2/systemsharedmemory/region/{str(number).ljust(1024, '_')}/{call}", document)
                answer = calls.getresponse()
                assert (answer.read(), answer.status) == (b"", 200)

        each("register", json.dumps({"key": made.key, "byte_size": 4096}))
        try:
            # One status has 8 MB, of which the kernel takes up to 4: seventy of them are more than one user may make the server hold.
            before = shed(bounded)
            with many(70, lambda: get_unread(bounded, "/v2/systemsharedmemory/status")):
                falls_to(lambda: before - shed(bounded), -1)
        finally:
            each("unregister", "{}")


def test_a_region_has_a_name_of_bounded_length(bounded):
    answer = http_call(bounded.http, "POST", f"/v2/systemsharedmemory/region/{'n' * 1025}/register", '{"key":"/k","byte_size":4096}')
    assert answer.status == 400 and b"has 1025 bytes, at most 1024 are allowed" in answer.body


def test_an_error_quotes_a_part_of_a_long_name(bounded):
    name = "n" * 1_000_000
    body = json.dumps({"inputs": [{"name": name, "datatype": "FP32", "shape": [1], "data": [1]}]})
    for path, text in ((f"/v2/models/{MODEL}/infer", body), (f"/v2/models/{MODEL}/generate_stream", json.dumps({name: "x"}))):
        answer = http_call(bounded.http, "POST", path, text)
        assert answer.status == 400 and len(answer.body) < 300_000, (answer.status, len(answer.body))


def test_a_configuration_that_a_load_brings_is_bounded(launcher):
    repository = launcher.copy_of("long_configuration", MODEL)
    with launcher.running("long_configuration", "--model-control-mode=explicit", repository=repository) as server:
        config = json.dumps({"backend": "identity", "parameters": {"long": {"string_value": "x" * (1 << 20)}}})
        answer = http_call(server.http, "POST", f"/v2/repository/models/{MODEL}/load", json.dumps({"parameters": {"config": config}}))
        assert answer.status == 400 and f"has {len(config)} bytes, at most {1 << 20} are taken".encode() in answer.body


def test_answers_over_grpc_that_nobody_reads(bounded):
    before = shed(bounded)
    content = infer_message(8 * MIB)

    def make() -> socket.socket:
        connection = open_connection(bounded.grpc, initial_window=0)
        send_call(connection, 1, content)
        return connection

    with many(100, make):
        time.sleep(1)
    assert shed(bounded) > before


def test_small_answers_of_many_calls_that_nobody_reads(bounded):
    content = infer_message(60_000)

    def make() -> socket.socket:
        connection = open_connection(bounded.grpc, initial_window=0)
        with contextlib.suppress(OSError):
            for number in range(500):
                send_call(connection, 2 * number + 1, content, piece=1 << 16)
        return connection

    with many(20, make):
        time.sleep(1)


def test_half_bodies_that_wait_for_each_other_are_told_why(bounded):
    before = shed(bounded)
    made = []

    def make() -> socket.socket:
        made.append(http_post(bounded, 16 * MIB, 8 * MIB))
        return made[-1]

    with many(18, make):
        with concurrent.futures.ThreadPoolExecutor(len(made)) as pool:
            answers = [answer for answer in pool.map(lambda one: received(one, 6), made) if answer]
        assert shed(bounded) > before
    assert answers and all(answer.startswith(b"HTTP/1.1 503") and b"memory budget" in answer for answer in answers), answers
    assert "memory budget" in bounded.log_text()


def test_a_message_announced_beyond_the_budget_is_refused_before_it_comes(bounded):
    ended, announced = shed(bounded), PER_PEER + MIB

    def refusal(bytes_announced: int) -> str:
        return f"a message of {bytes_announced} bytes is announced, of {PER_PEER} that a connection may hold"

    with contextlib.closing(http_post(bounded, announced, 0)) as connection:
        answer = received(connection, 10)
        assert answer.startswith(b"HTTP/1.1 503") and refusal(len(head(announced)) + announced).encode() in answer, answer
    with contextlib.closing(open_connection(bounded.grpc)) as connection:
        connection.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ModelInfer")))
        connection.sendall(frame(DATA, 0, 1, b"\0" + announced.to_bytes(4, "big") + b"\0" * 100))
        fields = next(fields for kind, _, fields in frames_of(received(connection, 10)) if kind == HEADERS and "grpc-status" in fields)
    assert fields["grpc-status"] == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]) and refusal(announced) in fields["grpc-message"], fields
    # The connection was not ended for it: nothing was held.
    assert shed(bounded) == ended


def test_half_messages_over_grpc_are_told_why(bounded):
    content = infer_message(16 * MIB)
    statuses = []

    def hear(connection: socket.socket) -> None:
        for kind, _, fields in frames_of(received(connection, 30)):
            if kind == HEADERS and "grpc-status" in fields:
                statuses.append((fields["grpc-status"], fields["grpc-message"]))

    def make() -> socket.socket:
        connection = open_connection(bounded.grpc)
        threading.Thread(target=hear, args=[connection], daemon=True).start()
        connection.sendall(frame(HEADERS, END_HEADERS, 1, call_head("ModelInfer")))
        whole = b"\0" + len(content).to_bytes(4, "big") + content[: 8 * MIB]
        with contextlib.suppress(OSError):
            for at in range(0, len(whole), 1 << 14):
                connection.sendall(frame(DATA, 0, 1, whole[at : at + (1 << 14)]))
        return connection

    with many(40, make):
        deadline = time.monotonic() + 30
        while not statuses and time.monotonic() < deadline:
            time.sleep(0.1)
    code, text = statuses[0]
    assert code == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]) and text.startswith("memory budget"), statuses


def test_requests_of_sessions_that_wait_for_a_slow_model(bounded):
    used = 'nerite_memory_budget_bytes{state="used"}'
    with peak(lambda: metric(bounded, used)) as seen, many(10, lambda: session_infer(bounded, SLOW, 256)):
        time.sleep(1)
    # All of them would hold 320 MiB.
    assert PER_PEER / 2 < seen.most <= BUDGET


def test_answers_of_sessions_that_nobody_reads(bounded):
    before = shed(bounded)
    with many(20, lambda: session_infer(bounded, MODEL, 150)):
        falls_to(lambda: before - shed(bounded), -1)
    assert "memory budget" in bounded.log_text()


def test_a_session_that_is_ended_for_its_memory_is_told_why(launcher, tmp_path):
    repository = launcher.copy_of("told_why", MODEL)
    put_delayed(repository, SLOW, 2000)
    flags = [f"--session-socket={tmp_path / 'session'}", "--memory-budget-per-connection=1M"]
    with launcher.running("told_why", *flags, repository=repository) as server:
        server.session = tmp_path / "session"
        with contextlib.closing(session_infer(server, SLOW, 40)) as held:
            # It holds more than it may, little of that is completed in two seconds, and its further requests wait in the socket.
            last = answer = held.answer()
            while answer is not None:
                last, answer = answer, held.answer()
            assert last.id == 0 and last.error.message.startswith("memory budget"), last.error


def test_a_large_request_passes_where_nobody_else_holds_much(bounded):
    values = np.arange(35 * MIB, dtype=np.float32)
    raw = values.tobytes()
    assert len(raw) > PER_PEER * 3 // 4
    text = head(len(raw))
    answer = http_call(bounded.http, "POST", f"/v2/models/{MODEL}/infer", text + raw, {"Inference-Header-Content-Length": str(len(text))})
    assert answer.status == 200 and answer.body.endswith(raw)


# ---------------------------------------------------------------------------------------------- hosts with little memory


def attack(server) -> None:
    """All of it at once."""
    content = infer_message(4 * MIB)

    def unread() -> socket.socket:
        connection = open_connection(server.grpc, initial_window=0)
        for number in range(4):
            send_call(connection, 2 * number + 1, content)
        return connection

    with many(10, lambda: header_bomb(server, 4096)), many(40, unread), many(60, lambda: http_post(server, 8 * MIB)):
        with many(20, lambda: http_post(server, 16 * MIB, 8 * MIB)):
            time.sleep(3)


def is_answered(server) -> None:
    """Once what the attackers held is on its way back."""
    raw = np.arange(1000, dtype=np.float32).tobytes()
    text = head(len(raw))
    deadline = time.monotonic() + 60
    while True:
        assert server.process.poll() is None, server.log_text()[-3000:]
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = http_call(server.http, "POST", f"/v2/models/{MODEL}/infer", text + raw, {"Inference-Header-Content-Length": str(len(text))})
            if answer.status == 200:
                assert answer.body.endswith(raw)
                return
        assert time.monotonic() < deadline, "nobody is answered"
        time.sleep(0.2)


def test_a_limit_on_the_address_space_ends_nothing(launcher, tmp_path):
    with confined(launcher, tmp_path, "prlimit", f"--as={ADDRESS_SPACE_BYTES}") as server:
        attack(server)
        is_answered(server)
        assert 0 < metric(server, 'nerite_memory_budget_bytes{state="max"}') < ADDRESS_SPACE_BYTES


def test_a_control_group_is_the_host(launcher, tmp_path):
    if not shutil.which("sh"):
        pytest.skip("there is no shell")
    with control_group() as into, confined(launcher, tmp_path, *into) as server:
        assert metric(server, 'nerite_memory_budget_bytes{state="max"}') == GROUP_BYTES // 2
        attack(server)
        is_answered(server)
        deadline = time.monotonic() + 10
        while metric(server, "nv_cpu_memory_total_bytes") != GROUP_BYTES and time.monotonic() < deadline:
            time.sleep(0.2)
        assert metric(server, "nv_cpu_memory_total_bytes") == GROUP_BYTES


def test_leases_and_the_memory_of_models_processes_follow_the_limit_of_a_control_group(launcher, tmp_path):
    """All leases together may have half of it, one session half of that. Models' processes may share another half with the server."""
    repository, path = launcher.copy_of("group_pools", MODEL), tmp_path / "session"
    python_catalogue.put(repository, python_catalogue.named("py_large"))
    half, flags = GROUP_BYTES // 2, [f"--session-socket={path}", PATIENT]
    inputs = lambda size: [Given("SIZE", "INT64", [1], np.array([size], np.int64).tobytes())]
    with control_group() as into, confined(launcher, tmp_path, *into, repository=repository, flags=flags) as server:
        with open_session(path) as first, open_session(path) as second, open_session(path) as third:
            with refuses("INVALID_ARG", f"a lease of {half // 2 + MIB} bytes is larger than a session may have, {half // 2} "):
                first.borrow(half // 2 + MIB)
            for client in (first, second):
                client.borrow(half // 2)
            with refuses("UNAVAILABLE", f"a lease of {MIB} bytes does not fit: all sessions together have {half} of {half} "):
                third.borrow(MIB)
        with open_client("grpc", server) as client:
            with pytest.raises(Refused) as caught:
                client.infer("py_large", inputs(half + MIB))
            assert f"no memory to share {half + MIB} bytes" in caught.value.text, caught.value.text
            assert f"in use of {half}, half of the host's or the control group's memory" in caught.value.text, caught.value.text
            assert len(client.infer("py_large", inputs(MIB)).outputs["MADE"].raw) == MIB
