"""Can a client stop the server with a descriptor whose close takes long?

Closing the last descriptor of a TCP connection waits for its peer if the connection has SO_LINGER. A client passes such a descriptor over each Unix socket of
the server. If the server took it, the thread that received it would wait.
"""

import array
import contextlib
import socket
import struct
import threading

import pytest
from packets import encode, refuses_descriptors, welcomed
from servers import OLDER_KERNEL
from witness import are_answered, comes_to, descriptors, settled, witnesses

# Longer than a witness waits for an answer.
LINGER_S = 600
HEAD = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# An error after which the server closes the connection without reading the rest.
REFUSED_HEAD = b"nonsense\r\n\r\n"


@pytest.fixture(scope="module", params=["this kernel", "before Linux 6.16"])
def server(request, launcher, tmp_path_factory):
    """It has all three Unix sockets, on a kernel that refuses descriptors and on one that cannot."""
    if launcher.oracle:
        pytest.skip("2.51 has no Unix sockets")
    is_older = request.param != "this kernel"
    folder = tmp_path_factory.mktemp("sockets")
    paths = {name: folder / name for name in ("http", "grpc", "session")}
    repository = launcher.copy_of("passed_descriptors", "identity_fp32", "simple")
    flags = [f"--{name}-socket={path}" for name, path in paths.items()]
    before = OLDER_KERNEL if is_older else []
    with launcher.running(repository.name, *flags, repository=repository, before=before) as found:
        found.paths, found.session = paths, paths["session"]
        found.refuses = refuses_descriptors() and not is_older
        yield found


@pytest.fixture(scope="module")
def at_rest(server):
    """How many descriptors the server has without clients."""
    return settled(lambda: descriptors(server.pid))


def lingering() -> tuple[socket.socket, socket.socket]:
    """A TCP connection whose close waits, and its peer, which does not read. The wait ends when the peer is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 16))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    return one, peer


def connect(server, name: str) -> socket.socket:
    if name == "session":
        return welcomed(server.session).socket
    one = socket.socket(socket.AF_UNIX)
    one.connect(str(server.paths[name]))
    return one


CASES = [
    ("http", b"", HEAD),
    ("http", HEAD, b"x"),
    ("http", REFUSED_HEAD, b"x"),
    ("grpc", b"", PREFACE),
    ("grpc", PREFACE, b"x"),
    ("session", b"", encode(2, session_status={})),
    ("session", b"\xff" * 100, b"x"),
]


@pytest.mark.parametrize(("name", "first", "data"), CASES)
def test_a_descriptor_whose_close_takes_long_delays_no_other_client(server, at_rest, name, first, data):
    """`first` is sent alone, `data` with the descriptor."""
    closing: list[threading.Thread] = []
    with witnesses(server) as watching, contextlib.ExitStack() as held:
        for _ in range(4):
            client = held.enter_context(connect(server, name))
            if first:
                client.sendall(first)
            one, peer = map(held.enter_context, lingering())
            was_sent = False
            # The server may have closed the connection after `first`.
            with contextlib.suppress(PermissionError, BrokenPipeError, ConnectionResetError):
                client.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))])
                was_sent = True
            assert not (was_sent and server.refuses)
            if not was_sent:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # If the server discarded the message meanwhile, this close is the last one. It then waits until the peer is closed, at the end of this block.
            closing.append(threading.Thread(target=one.close))
            closing[-1].start()
            closing[-1].join(1)
        are_answered(watching, 3)
    for thread in closing:
        thread.join()
    comes_to(lambda: descriptors(server.pid), at_rest)
