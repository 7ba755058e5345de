"""Does the client borrow, keep and return leases as the session's protocol says?"""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from session_server import SessionServer
from tritonclient.utils import InferenceServerException

from nerite import _protobuf
from nerite._buffers import view
from nerite._managed import Buffers, PendingRequest
from nerite._session import LeaseTransport, Session, listens
from nerite._transports import Refused


@pytest.fixture
def server(tmp_path):
    made = SessionServer(tmp_path / "s")
    yield made
    made.close()


@pytest.fixture
def buffers(server):
    made = Buffers(["lease"], {"lease": lambda: LeaseTransport("", server.path)})
    yield made
    made.close()


def contents(server, block, count):
    return os.pread(server.memory[block.slab.name], count, block.offset)


def test_a_client_says_who_it_is(server):
    Session(server.path)
    assert server.hellos[0][1] == server.hellos[0][2] == 1
    assert server.hellos[0][3].startswith(b"nerite-python")


def test_the_server_sees_what_is_written_to_a_lease(server, buffers):
    block = buffers.lend_shared(400)
    view(block, [10, 10], "FP32")[...] = np.arange(100, dtype=np.float32).reshape(10, 10)
    assert contents(server, block, 400) == np.arange(100, dtype=np.float32).tobytes()
    os.pwrite(server.memory[block.slab.name], b"\1" * 400, block.offset)
    assert view(block, [400], "UINT8").sum() == 400


def test_small_tensors_share_a_lease(server, buffers):
    blocks = [buffers.lend_shared(100) for _ in range(50)]
    assert server.lent == 1
    assert len({one.offset for one in blocks}) == 50


def test_a_lease_that_is_lent_again_comes_without_its_descriptor(server):
    session = Session(server.path)
    name, memory = session.borrow(5000)
    memory[0] = 7
    session.give_back(name)
    server.wait(lambda: server.returned == [name])
    again, same = session.borrow(4000)
    assert again == name
    assert same[0] == 7


def test_a_forgotten_lease_is_unmapped(server):
    session = Session(server.path)
    name, memory = session.borrow(5000)
    session.give_back(name)
    server.wait(lambda: server.returned == [name])
    server.forget = [name]
    other, _ = session.borrow(5000)
    assert other != name
    assert set(session._mappings) == {other}
    memory[0] = 1


def test_closing_ends_the_session_when_the_last_array_is_gone(server, buffers):
    block = buffers.lend_shared(1000)
    array = view(block, [1000], "UINT8")
    array[:] = 9
    del block
    buffers.close()
    assert server.ended == 0
    assert server.returned == []
    assert (array == 9).all()
    del array
    gc.collect()
    server.wait(lambda: server.ended == 1)


@pytest.mark.filterwarnings("error")
def test_the_end_of_a_session_causes_no_warning(server):
    buffers = Buffers(["lease"], {"lease": lambda: LeaseTransport("", server.path)})
    array = view(buffers.lend_shared(1000), [1000], "UINT8")
    buffers.close()
    del array
    gc.collect()
    server.wait(lambda: server.ended == 1)


def test_closing_returns_idle_leases(server, buffers):
    buffers.lend_shared(100_000)
    buffers.close()
    server.wait(lambda: server.ended == 1)
    assert len(server.returned) == 1


def test_a_lost_session_is_made_anew(server, buffers):
    first = buffers.lend_shared(100)
    array = first.array()
    server.hang_up()
    server.wait(lambda: server.ended == 1)
    second = buffers.lend_shared(100)
    assert second.slab is not first.slab
    assert len(server.hellos) == 2
    array[:] = 1


@pytest.mark.parametrize(
    ("code", "message", "final"),
    [(8, "the session has borrowed 10 of 10 bytes", False), (7, "uid 5 is not allowed", True), (12, "no", True)],
)
def test_a_refusal_carries_the_servers_reason(server, code, message, final):
    session = Session(server.path)
    server.refuse = (code, message)
    with pytest.raises(Refused, match=message) as caught:
        session.borrow(10)
    assert caught.value.final == final
    server.refuse = None
    assert session.borrow(10)[1].nbytes >= 10


@pytest.mark.parametrize(("code", "message", "final"), [(8, "256 sessions are open", False), (7, "user 5 may not", True)])
def test_a_client_that_is_turned_away_hears_why(server, code, message, final):
    server.rejection = (code, message)
    for _ in range(20):
        # Whether its Hello can still be sent or not.
        with pytest.raises(Refused, match=message) as caught:
            Session(server.path)
        assert caught.value.final == final


def test_the_servers_last_word_is_kept(server, buffers):
    session = Session(server.path)
    assert session.why_ended() is None
    server.end_all(14, "the operator has ended this session")
    server.wait(lambda: server.ended == 1)
    for _ in range(2):
        with pytest.raises(Refused, match="the operator has ended this session"):
            session.borrow(10)
        assert session.why_ended() == "the operator has ended this session"


def test_a_request_with_memory_of_an_ended_session_says_so(server, buffers):
    block = buffers.lend_shared(100)
    server.end_all(14, "the operator has ended this session")
    server.wait(lambda: server.ended == 1)
    pending = PendingRequest([], None, buffers)
    # With an input that has no block, for its bytes travel in the request.
    pending.inputs = [None, block]
    unknown = "Unable to find shared memory region: 'lease-1'; register it before the request"
    error = InferenceServerException(unknown, status="404")
    pending.lost(error, lambda _: True)
    assert error.message().startswith("the session that lent the request's memory has ended: the operator has ended")
    assert error.status() == "404"
    # Where the session goes on, the server knows better.
    pending.inputs = [buffers.lend_shared(100)]
    error = InferenceServerException(unknown)
    pending.lost(error, lambda _: True)
    assert error.message() == unknown


def test_a_lease_that_could_shrink_is_refused(server):
    session = Session(server.path)
    server.seals = 0
    with pytest.raises(Refused, match="seals"):
        session.borrow(4096)


def test_a_lease_with_fewer_bytes_than_it_says_is_refused(server):
    session = Session(server.path)
    server.shrink_to = 100
    with pytest.raises(Refused, match="has 100"):
        session.borrow(4096)


def test_refused_leases_leave_no_descriptor(server):
    session = Session(server.path)
    server.seals = 0
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(Refused):
            session.borrow(4096)
    # The stand-in server lives in this process and keeps one for each.
    assert len(os.listdir("/proc/self/fd")) == before + 20


def test_a_server_without_free_sessions_is_not_asked_again_at_once(server, buffers, monkeypatch):
    server.refuse = (8, "256 sessions are open")
    for _ in range(5):
        with pytest.raises(Exception, match="256 sessions are open"):
            buffers.lend_shared(100)
    assert len(server.sockets) == 1
    server.refuse = None
    monkeypatch.setattr(buffers._ways[0], "_again_at", 0.0)
    assert buffers.lend_shared(100) is not None


def test_no_socket_is_a_final_refusal(tmp_path):
    with pytest.raises(Refused, match="no session at") as caught:
        Session(str(tmp_path / "none"))
    assert caught.value.final


def test_a_socket_found_by_default_must_be_that_of_the_urls_server(server, monkeypatch):
    monkeypatch.setenv("NERITE_SESSION_SOCKET", server.path)
    with pytest.raises(Refused, match="not seen to be that of"):
        LeaseTransport("localhost:1", None)


@pytest.mark.filterwarnings("error")
def test_the_listener_of_a_port_is_found():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert not listens(os.getpid(), f"localhost:{port}")
        one.listen()
        assert listens(os.getpid(), f"localhost:{port}/base")
        assert not listens(os.getppid(), f"localhost:{port}")
    assert not listens(os.getpid(), "unix:/some/path")


def test_a_forked_child_closes_the_session_of_its_parent(server, buffers):
    block = buffers.lend_shared(1000)
    child = os.fork()
    if child == 0:
        try:
            del block
            buffers.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.ended == 0
    assert server.returned == []
    view(block, [1000], "UINT8")[:] = 1
    assert contents(server, block, 1000) == b"\1" * 1000


def test_a_killed_process_ends_its_session(server):
    code = (
        "import os, signal; from nerite._session import Session; "
        f"s = Session('{server.path}'); s.borrow(1 << 20); os.fork() or os._exit(0); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    server.wait(lambda: server.ended == 1)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_numbers_survive_the_wire(value):
    assert list(_protobuf.decode(_protobuf.encode([(1, value), (15, b"x"), (16, "é")]))) == [
        (1, value),
        (15, b"x"),
        (16, "é".encode()),
    ]


@pytest.mark.parametrize("packet", [b"\x08", b"\x0a\x05ab", b"\x0b", b"\x0d\0\0", b"\xff" * 11])
def test_incomplete_messages_are_errors(packet):
    with pytest.raises(_protobuf.DecodeError):
        list(_protobuf.decode(packet))


def test_messages_are_those_of_the_protobuf_package():
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.SystemSharedMemoryRegisterRequest(name="n", key="/k", offset=300, byte_size=2**40)
    assert _protobuf.encode([(1, "n"), (2, "/k"), (3, 300), (4, 2**40)]) == theirs.SerializeToString()
