"""How is memory borrowed from a server on this host?

Over its session socket: a Unix socket of type SEQPACKET, one packet one message (``session.proto``), descriptors beside it.
A lease is a sealed memfd of the server's: it cannot shrink under us, it has no name in any file system, and the server has it
back when the socket closes, however this process ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import weakref
from typing import Optional

import numpy as np

from nerite import _protobuf
from nerite._pool import Slab
from nerite._transports import Refused
from nerite._version import __version__

VERSION = 1
# An answer that takes longer comes from a server that is stuck: other ways are tried.
ANSWER_S = 5.0
PACKET_BYTES_MAX = 128 << 10
DESCRIPTORS_MAX = 128
# Linux's, which the module fcntl does not name everywhere.
F_GET_SEALS = 1034
F_SEAL_SHRINK = 2

# Fields of session.proto that are used here.
CLIENT_ID, CLIENT_RETURNED, CLIENT_HELLO, CLIENT_BORROW = 1, 2, 3, 4
HELLO_VERSION_MIN, HELLO_VERSION_MAX, HELLO_CLIENT = 1, 2, 3
BORROW_BYTE_SIZE = 1
SERVER_ID, SERVER_FORGOTTEN, SERVER_ERROR, SERVER_WELCOME, SERVER_LEASE = 1, 2, 4, 6, 7
ERROR_CODE, ERROR_MESSAGE = 1, 2
LEASE_NAME, LEASE_BYTE_SIZE, LEASE_DESCRIPTOR = 1, 2, 3
# gRPC's numbers of failures that asking again does not change.
FINAL_CODES = {7: "permission denied", 12: "unimplemented", 16: "unauthenticated"}


class SessionLost(Refused):
    """The server has closed the session, or speaks something else."""

    def __init__(self, why: str):
        super().__init__(why, final=False)


class Session:
    """One connection to a session socket. Thread-safe. Everything borrowed goes back when the object goes."""

    def __init__(self, path: str):
        self._lock = threading.Lock()
        self._last_id = 0
        # Mappings by name: a lease that is lent a second time comes without its descriptor.
        self._mappings: dict[str, np.ndarray] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(ANSWER_S)
            self._socket.connect(path)
            client = f"nerite-python {__version__}"
            hello = [(HELLO_VERSION_MIN, VERSION), (HELLO_VERSION_MAX, VERSION)]
            self._ask(CLIENT_HELLO, _protobuf.encode([*hello, (HELLO_CLIENT, client)]), SERVER_WELCOME)
        except OSError as error:
            self._socket.close()
            raise Refused(f"no session at '{path}': {error.strerror or error}", final=True) from error
        except BaseException:
            self._socket.close()
            raise
        _sessions.add(self)

    def borrow(self, byte_size: int) -> tuple[str, np.ndarray]:
        """A lease of at least ``byte_size`` bytes: its name, and its memory as uint8."""
        with self._lock:
            answer, descriptors = self._ask(
                CLIENT_BORROW, _protobuf.encode([(BORROW_BYTE_SIZE, byte_size)]), SERVER_LEASE
            )
            return self._map(answer, descriptors, byte_size)

    def give_back(self, name: str) -> None:
        """The lease is no longer used here. Wants no answer."""
        with self._lock:
            self._send(_protobuf.encode([(CLIENT_RETURNED, name)]))

    def is_alive(self) -> bool:
        """Whether the server still holds its end."""
        if self._socket.fileno() < 0:
            return False
        # Not a recv that peeks: on a socket with a timeout it would wait.
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def peer_pid(self) -> int:
        """The process at the other end."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", found)[0])

    def close(self) -> None:
        """Ends the session at once: the server takes back what it lent."""
        self._socket.close()

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.send(packet)
        except OSError as error:
            raise SessionLost(f"the session is lost: {error.strerror or error}") from error

    def _ask(self, call: int, content: bytes, expected: int) -> tuple[bytes, list[int]]:
        """Sends one call and waits for its answer; returns the answer and the descriptors that came with it."""
        self._last_id += 1
        asked = self._last_id
        self._send(_protobuf.encode([(CLIENT_ID, asked), (call, content)]))
        while True:
            packet, descriptors = self._receive()
            try:
                answer = self._read(packet, asked, expected)
            except BaseException:
                _close_all(descriptors)
                raise
            if answer is not None:
                return answer, descriptors
            _close_all(descriptors)

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            packet, descriptors, flags, _ = socket.recv_fds(
                self._socket, PACKET_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            # A late answer would be taken for that of the next call.
            self._socket.close()
            raise SessionLost(f"no answer from the session: {error.strerror or error}") from error
        if not packet or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close_all(descriptors)
            self._socket.close()
            raise SessionLost("the server closed the session" if not packet else "an answer was cut short")
        return packet, list(descriptors)

    def _read(self, packet: bytes, asked: int, expected: int) -> Optional[bytes]:
        """The answer to the call ``asked``, or None if the packet is about something else."""
        try:
            fields = list(_protobuf.decode(packet))
        except _protobuf.DecodeError as error:
            self._socket.close()
            raise SessionLost(f"not a session: {error}") from error
        for number, value in fields:
            if number == SERVER_FORGOTTEN and isinstance(value, bytes):
                self._mappings.pop(value.decode("utf-8", "replace"), None)
        if dict(fields).get(SERVER_ID, 0) != asked:
            return None
        for number, value in fields:
            if number == SERVER_ERROR and isinstance(value, bytes):
                raise _refusal(value)
            if number == expected and isinstance(value, bytes):
                return value
        raise SessionLost("the answer is of another kind than the call")

    def _map(self, answer: bytes, descriptors: list[int], asked: int) -> tuple[str, np.ndarray]:
        try:
            lease = dict(_protobuf.decode(answer))
            raw_name, byte_size = lease.get(LEASE_NAME, b""), lease.get(LEASE_BYTE_SIZE, 0)
            if not isinstance(raw_name, bytes) or not isinstance(byte_size, int) or byte_size < asked or not raw_name:
                raise SessionLost(f"{asked} bytes were asked for, the lease has {byte_size!r}")
            name = raw_name.decode("utf-8")
            if lease.get(LEASE_DESCRIPTOR):
                if not descriptors:
                    raise SessionLost(f"lease '{name}' came without its descriptor")
                self._mappings[name] = _map_sealed(descriptors[0], byte_size)
            memory = self._mappings.get(name)
            if memory is None or memory.nbytes < byte_size:
                raise SessionLost(f"lease '{name}' was never seen here")
            return name, memory[:byte_size]
        finally:
            _close_all(descriptors)


class LeaseTransport:
    """Leases as slabs of the pool. A slab keeps its session, so memory outlives even a closed client while arrays need it."""

    def __init__(self, path: str, url: str, is_certain: bool):
        self._session: Optional[Session] = Session(path)
        if not is_certain and not listens(self._session.peer_pid(), url):
            self._session.close()
            raise Refused(f"the server at '{path}' is not seen to be that of '{url}'; name its socket to be sure", final=True)

    def make(self, byte_size: int) -> Slab:
        """Borrows."""
        session = self._session
        if session is None:
            raise Refused("the client is closed", final=True)
        name, memory = session.borrow(byte_size)
        return Slab(name, memory, keeper=session)

    def is_alive(self) -> bool:
        """Whether the server still holds its end of the session."""
        return self._session is not None and self._session.is_alive()

    def drop(self, slab: Slab) -> None:
        """Returns a lease. One that arrays still need is returned by the end of its session, when they are gone."""
        if slab.lent == 0:
            try:
                slab.keeper.give_back(slab.name)
            except Refused:
                pass

    def close(self) -> None:
        """The session ends when the last slab has gone."""
        self._session = None


def default_path() -> str:
    """Where a server of this user puts its session socket, unless ``NERITE_SESSION_SOCKET`` names another place."""
    named = os.environ.get("NERITE_SESSION_SOCKET")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = f"{runtime}/nerite" if runtime else f"/tmp/nerite-{os.getuid()}"
    return f"{directory}/session.sock"


def listens(pid: int, url: str) -> bool:
    """Whether the process listens at the port of ``url``, as far as /proc lets us see."""
    port = url.split("/", 1)[0].rsplit(":", 1)[-1]
    if not port.isdigit():
        return False
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        # Columns: 1 local address and port in hexadecimal, 3 state (0A listens), 9 inode.
        sockets |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == int(port)}
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(entry.path) in sockets:
                    return True
            except OSError:
                continue
    except OSError:
        pass
    return False


def _map_sealed(descriptor: int, byte_size: int) -> np.ndarray:
    """Maps a lease, having made sure that it has its bytes and can never have fewer."""
    try:
        seals = fcntl.fcntl(descriptor, F_GET_SEALS)
        actual = os.fstat(descriptor).st_size
        if not seals & F_SEAL_SHRINK or actual < byte_size:
            raise SessionLost(f"a lease of {byte_size} bytes has {actual} and seals {seals:#x}")
        return np.frombuffer(mmap.mmap(descriptor, byte_size), dtype=np.uint8)
    except OSError as error:
        raise Refused(f"unable to map a lease of {byte_size} bytes: {error.strerror}", final=False) from error


def _refusal(error: bytes) -> Refused:
    fields = dict(_protobuf.decode(error))
    code, message = fields.get(ERROR_CODE, 0), fields.get(ERROR_MESSAGE, b"")
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else ""
    return Refused(text or f"error {code!r}", final=code in FINAL_CODES)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child lets go of its parent's sessions, so that the parent's death still ends them."""
    for session in list(_sessions):
        session._lock = threading.Lock()
        session._socket.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
