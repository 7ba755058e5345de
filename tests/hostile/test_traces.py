"""Does tracing cost anybody but its operator anything, whatever clients send and however slow the disk is?"""

import json
import os
import threading
import time

import numpy as np
import pytest
import servers
from busy import front_threads_come_back
from clients import fp32, http_call, open_client
from meters import metric, peak
from packets import open_session
from witness import resident

# What all traces together may hold, and what the allocator and the requests themselves add.
TRACES_BYTES_MAX = 64 << 20
SLACK_BYTES = 96 << 20
FLOOD_S = 6
SENDERS = 4
BIG = np.arange(2 << 20, dtype=np.float32)


def flood(server, seconds: float = FLOOD_S) -> int:
    """Large tensors from several clients at once. Gives how many were answered."""
    until, counts = time.monotonic() + seconds, []

    def send(protocol):
        with open_client(protocol, server) as client:
            count = 0
            while time.monotonic() < until:
                client.infer("identity_fp32", [fp32("INPUT0", BIG)])
                count += 1
            counts.append(count)

    senders = [threading.Thread(target=send, args=(("http", "grpc")[n % 2],)) for n in range(SENDERS)]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    assert len(counts) == SENDERS, "a sender failed"
    return sum(counts)


@pytest.fixture(params=["disk", "stuck"])
def traced(request, launcher, tmp_path):
    """Its trace file is on a disk, or a pipe that nobody reads: then the thread that writes never comes back."""
    if launcher.oracle:
        pytest.skip("2.51 keeps all traces in memory")
    path = tmp_path / "trace.json"
    if request.param == "stuck":
        os.mkfifo(path)
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
             "--trace-config=level=TENSORS"]  # fmt: skip
    repository = launcher.copy_of("traces", "identity_fp32", "simple")
    with launcher.running(f"traces_{request.param}", *flags, repository=repository) as server:
        yield server, path, request.param


def test_large_tensors_of_traced_requests_hold_bounded_memory_and_delay_nobody(traced):
    server, path, kind = traced
    flood(server, 1)
    before = resident(server.pid)
    with front_threads_come_back(server), peak(lambda: metric(server, "nerite_trace_bytes")) as held:
        sent = flood(server)
    assert 0 < held.most <= TRACES_BYTES_MAX, held.most
    assert resident(server.pid) - before <= TRACES_BYTES_MAX + SLACK_BYTES
    if kind == "disk":
        notes = json.loads(wait_for_all(server, path))
        shortened = metric(server, 'nerite_traces_total{outcome="shortened"}')
        tensors = [note["tensor"] for note in notes if "tensor" in note]
        assert shortened >= sent and len(tensors) >= 2 * sent
        assert all(one["bytes_left_out"] > 0 for one in tensors)
        assert {one["shape"] for one in tensors} == {str(len(BIG))}


def wait_for_all(server, path) -> str:
    deadline = time.monotonic() + 60
    while metric(server, "nerite_trace_bytes") > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_text()


def test_a_flood_of_small_requests_fills_no_memory_when_the_disk_is_stuck(traced):
    server, _, kind = traced
    until = time.monotonic() + 2 * FLOOD_S
    dropped = 'nerite_traces_total{outcome="dropped"}'

    def send():
        with open_client("http", server) as client:
            numbers = fp32("INPUT0", np.zeros(16_384, np.float32))
            while time.monotonic() < until and (kind == "disk" or metric(server, dropped) == 0):
                for _ in range(50):
                    client.infer("identity_fp32", [numbers])

    senders = [threading.Thread(target=send) for _ in range(SENDERS)]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    assert metric(server, "nerite_trace_bytes") <= TRACES_BYTES_MAX
    if kind == "stuck":
        assert metric(server, dropped) > 0
    # It still answers, and still ends when it is told, though the thread that writes does not.
    with open_client("http", server) as client:
        client.infer("identity_fp32", [fp32("INPUT0", np.zeros(4, np.float32))])
    assert http_call(server.http, "POST", "/v2/trace/setting", {"trace_level": ["OFF"]}).status == 200
    began = time.monotonic()
    assert servers.stop(server) == 0 and time.monotonic() - began < 20


def test_a_stranger_switches_no_trace_on(launcher, tmp_path):
    """Who may is held by test_log_settings.py; here, that a refusal changes nothing."""
    if launcher.oracle or os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    from users import as_user

    path = tmp_path / "trace.json"
    repository = launcher.copy_of("traces_stranger", "identity_fp32")
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1"]
    with launcher.running("traces_stranger", *flags, repository=repository) as server:
        change = lambda: http_call(server.http, "POST", "/v2/trace/setting", {"trace_level": ["TENSORS"]})
        assert as_user(65103, change).status == 403
        with open_client("http", server) as client:
            client.infer("identity_fp32", [fp32("INPUT0", np.zeros(4, np.float32))])
        assert metric(server, "nerite_trace_bytes") == 0 and not path.exists()


def test_requests_of_sessions_and_tensors_in_leases_are_traced(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    path, socket = tmp_path / "trace.json", tmp_path / "session"
    flags = [f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
             "--trace-config=level=TENSORS", f"--session-socket={socket}"]  # fmt: skip
    repository = launcher.copy_of("traces_session", "identity_fp32")
    with launcher.running("traces_session", *flags, repository=repository) as server, open_session(str(socket)) as client:
        reply = client.infer("identity_fp32", [fp32("INPUT0", np.array([1.5, 2], np.float32))], leased=["OUTPUT0"], id="mine")
        assert np.frombuffer(reply.outputs["OUTPUT0"].raw, np.float32).tolist() == [1.5, 2]
        notes = json.loads(wait_for_all(server, path))
    begins = [note for note in notes if "model_name" in note]
    assert [begin["request_id"] for begin in begins] == ["mine"]
    tensors = {note["activity"]: note["tensor"]["data"] for note in notes if "tensor" in note}
    assert tensors == {"TENSOR_QUEUE_INPUT": "1.5,2", "TENSOR_BACKEND_OUTPUT": "1.5,2"}
    points = [one["name"] for note in notes for one in note.get("timestamps", [])]
    assert {"REQUEST_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"} <= set(points) and not any("RECV" in name for name in points)
