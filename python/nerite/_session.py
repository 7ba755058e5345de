"""How is memory borrowed from a server on the same host?

Over its session socket: a Unix socket of type SEQPACKET. Each packet is one message (``session.proto``), which may have descriptors. A
lease is a sealed memfd of the server: it cannot shrink and has no name in a file system. The server gets it back when the socket closes,
also if this process is killed.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import itertools
import mmap
import os
import select
import socket
import sys
import threading
import weakref
from typing import Callable, Iterable, Optional, Sequence, Tuple, TypeVar

import numpy as np

from nerite import _forks, _protobuf, _trust
from nerite._pool import Block, Slab
from nerite._transports import Refused, is_this_host, port_of
from nerite._version import __version__

VERSION = 1
# If an answer takes longer, the server does not respond, and other ways are tried.
ANSWER_S = 5.0
PACKET_BYTES_MAX = 128 << 10
DESCRIPTORS_MAX = 128
# Linux's constant, which not every version of the module fcntl has.
F_GET_SEALS = 1034
F_SEAL_SHRINK = 2

# Fields of session.proto that are used here.
CLIENT_ID, CLIENT_RETURNED, CLIENT_HELLO, CLIENT_BORROW, CLIENT_FETCH, CLIENT_ABANDON = 1, 2, 3, 4, 11, 12
HELLO_VERSION_MIN, HELLO_VERSION_MAX, HELLO_CLIENT, HELLO_HEADERS = 1, 2, 3, 4
HEADER_NAME, HEADER_VALUE = 1, 2
BORROW_BYTE_SIZE, FETCH_NAMES, ABANDON_TAG, ABANDON_KEPT = 1, 1, 1, 2
SERVER_ID, SERVER_FORGOTTEN, SERVER_ERROR, SERVER_WELCOME, SERVER_LEASE, SERVER_LEASES = 1, 2, 4, 6, 7, 11
WELCOME_BYTES_MAX, WELCOME_SERVER_ID, WELCOME_SESSION_KEY, LEASES_LEASES = 5, 8, 9, 1
ERROR_CODE, ERROR_MESSAGE = 1, 2
LEASE_NAME, LEASE_BYTE_SIZE, LEASE_DESCRIPTOR = 1, 2, 3
# The prefix of an entry in the extensions of a server's metadata. 32 hexadecimal digits and a bracket follow.
SERVER_EXTENSION = "nerite_server("
# A lease that a request holds: its name, and a number, because it may be lent to the same request again.
HeldLease = Tuple[str, int]
# gRPC status codes after which a retry is useless.
FINAL_CODES = {7: "permission denied", 12: "unimplemented", 16: "unauthenticated"}


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
# Leases of this size and above use huge pages, if the system has them for shared memory.
HUGE_PAGE = 2 << 20
_MAP_FAILED = ctypes.c_void_p(-1).value


class SessionLost(Refused):
    """The server has closed the session, or uses another protocol."""

    def __init__(self, why: str):
        super().__init__(why, final=False)


class NoSocket(Refused):
    """No server listens at the session socket."""

    def __init__(self, path: str, why: str):
        super().__init__(f"no session at '{path}': {why}", final=True)


class Untrusted(Refused):
    """The process at the session socket belongs to a user that is not trusted. Nothing was sent to it."""

    def __init__(self, path: str, why: str):
        super().__init__(f"session socket '{path}' is not used: {why}", final=True)


class Session:
    """One connection to a session socket. Thread-safe. All leases are returned when the object is collected.

    ``server_uid`` is a further user whose server is trusted, in addition to this program's own user and root. ``token`` is the secret
    of a token, if the server has tokens. The default is ``NERITE_TOKEN``.
    """

    def __init__(
        self, path: str, answer_s: float = ANSWER_S, server_uid: Optional[int] = None, token: Optional[str] = None
    ):
        self._lock = threading.Lock()
        self._last_id = 0
        # The server's last message, and whether a retry is useless.
        self._last_word: Optional[Tuple[str, bool]] = None
        self._tags = itertools.count(1)
        self._holdings = itertools.count()
        # Leases whose holding has a lower number were lent before a fork, and stay with this session.
        self._kept_below = 0
        # Mappings by name, because a lease that is lent again comes without its descriptor.
        self._mappings: dict[str, np.ndarray] = {}
        # Leases to return, each with the set of leases that its request holds.
        self._returns: collections.deque[tuple[HeldLease, set[HeldLease]]] = collections.deque()
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(answer_s)
            self._connect(path, server_uid)
            client = f"nerite-python {__version__}"
            hello = [(HELLO_VERSION_MIN, VERSION), (HELLO_VERSION_MAX, VERSION), (HELLO_CLIENT, client)]
            hello += [(HELLO_HEADERS, _protobuf.encode(header)) for header in _headers(token)]
            welcome, _ = self._exchange(CLIENT_HELLO, _protobuf.encode(hello), SERVER_WELCOME)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._socket.close()
            raise NoSocket(path, error.strerror) from error
        except OSError as error:
            self._socket.close()
            raise Refused(f"no session at '{path}': {error.strerror or error}", final=True) from error
        except BaseException:
            self._socket.close()
            raise
        #: The server's id in its metadata. Empty if the server sends none.
        self.server_id = _text(welcome, WELCOME_SERVER_ID)
        #: The key by which outputs are placed in leases of this session. Empty if the server does not support that.
        self.key = _text(welcome, WELCOME_SESSION_KEY)
        #: The most bytes that the session may borrow. A server that does not report a limit has none of its own.
        self.lease_bytes_max = int(dict(_protobuf.decode(welcome)).get(WELCOME_BYTES_MAX, 0)) or _protobuf.UINT64_MAX
        _sessions.add(self)
        _forks.watch(self)

    @property
    def outdated(self) -> bool:
        """Whether there was a fork since the session began. The child may have arrays over its memory, so another session serves further calls."""
        return self._kept_below > 0

    def before_fork(self) -> None:
        """Outdates the session: no lease is returned any more. The server would lend it again, or clear it."""
        self._kept_below = sys.maxsize

    def after_fork(self) -> None:
        """Leases that are placed from now on are returned: a stream may still need many."""
        self._kept_below = next(self._holdings) + 1

    def borrow(self, byte_size: int) -> tuple[str, np.ndarray]:
        """Borrows a lease of at least ``byte_size`` bytes. Returns its name, and its memory as uint8."""
        self._return_held()
        with self._lock:
            answer, descriptors = self._exchange(
                CLIENT_BORROW, _protobuf.encode([(BORROW_BYTE_SIZE, byte_size)]), SERVER_LEASE
            )
            try:
                return self._map(answer, descriptors, byte_size)
            finally:
                _close_all(descriptors)

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these leases are mapped already, so no request is needed."""
        return all(name in self._mappings for name in names)

    def fetch(self, names: Sequence[str]) -> None:
        """Maps leases that are named in responses over HTTP or gRPC."""
        missing = [name for name in names if name not in self._mappings]
        for first in range(0, len(missing), DESCRIPTORS_MAX):
            self._fetch(missing[first : first + DESCRIPTORS_MAX])

    def placed(self, name: str, offset: int, byte_size: int, held: set[HeldLease]) -> Block:
        """A block for an output in a fetched lease. The lease is returned when no array refers to the block any more. Until then it is in
        ``held``."""
        self._drain()
        memory = self._mappings.get(name)
        if memory is None or offset < 0 or byte_size < 0 or offset + byte_size > memory.nbytes:
            raise SessionLost(f"the server placed an output of {byte_size} bytes at offset {offset} of a lease that ends before")
        slab = Slab(name, memory[offset : offset + byte_size], owner=self)
        slab.lent = 1
        block = Block(slab, 0, byte_size)
        held_lease = name, next(self._holdings)
        held.add(held_lease)
        weakref.finalize(block, self._let_go, held_lease, held).atexit = False
        return block

    def new_key(self) -> tuple[str, int]:
        """The key for outputs of one request, and the request's tag, for :meth:`abandon`."""
        tag = next(self._tags)
        return f"{self.key}-{tag}", tag

    def abandon(self, tag: int, held: Iterable[HeldLease] = ()) -> None:
        """Tells the server that no further response of this tag will be read. The server takes back the leases for such responses, except the
        leases in ``held``. Does not block."""
        call = (CLIENT_ABANDON, _protobuf.encode([(ABANDON_TAG, tag), *((ABANDON_KEPT, name) for name, _ in held)]))
        try:
            self._send_now(_protobuf.encode([call]))
        except OSError:
            # The session has ended, and its leases with it. Or the server does not read, and the end of the session will return them.
            pass

    def give_back(self, name: str) -> None:
        """Returns a lease. There is no answer. After a fork, the end of the session returns it."""
        if self.outdated:
            return
        with self._lock:
            self._send(_protobuf.encode([(CLIENT_RETURNED, name)]))

    def is_alive(self) -> bool:
        """Whether the server has not closed the session."""
        if self._socket.fileno() < 0:
            return False
        # `recv` with MSG_PEEK is not used, because it would block on a socket with a timeout.
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def why_ended(self) -> Optional[str]:
        """Why the session ended, with the server's text if there is one. None while it is open."""
        if self.is_alive():
            return None
        self._drain()
        return "the server has closed it" if self._last_word is None else self._last_word[0]

    def peer_pid(self) -> int:
        """The process ID of the server."""
        return _trust.peer_of(self._socket).pid

    def close(self) -> None:
        """Closes the session. The server takes back its leases."""
        self._socket.close()

    def __del__(self) -> None:
        # A session normally ends with its last array, so Python must not warn about an open socket.
        if (opened := getattr(self, "_socket", None)) is not None:
            opened.close()

    def _connect(self, path: str, server_uid: Optional[int]) -> None:
        """Connects, and checks the server's user."""
        own_uid, directory = os.geteuid(), _trust.directory_of(path)
        try:
            named = _trust.named_uid() if server_uid is None else server_uid
        except ValueError as error:
            raise Untrusted(path, str(error)) from None
        why = _trust.why_not(own_uid, named, directory, None)
        if why is None:
            self._socket.connect(path)
            why = _trust.why_not(own_uid, named, directory, _trust.peer_of(self._socket).uid)
        if why is not None:
            raise Untrusted(path, why)

    def _let_go(self, held_lease: HeldLease, held: set[HeldLease]) -> None:
        """Notes that a placed output is not used any more. It is a finalizer, which may run anywhere, so it takes no lock and does not
        block."""
        self._returns.append((held_lease, held))
        self._return_held()

    def _return_held(self) -> None:
        """Returns leases, as far as the socket accepts packets now."""
        going = []
        while self._returns:
            try:
                going.append(self._returns.popleft())
            except IndexError:
                break
        # Checked after no array referred to them any more: a child of a later fork has no array over them.
        going = [one for one in going if one[0][1] >= self._kept_below]
        if not going:
            return
        try:
            self._send_now(_protobuf.encode([(CLIENT_RETURNED, name) for (name, _), _ in going]))
        except BlockingIOError:
            self._returns.extend(going)
            return
        except OSError:
            # The session has ended, so the server has all leases.
            pass
        # The entries are removed only now. Otherwise `abandon` could return a lease a second time, when it is lent again already.
        for held_lease, held in going:
            held.discard(held_lease)

    def _send_now(self, packet: bytes) -> None:
        # The socket's own `send` would block. A packet is sent completely or not at all, so no lock is needed.
        os.write(self._socket.fileno(), packet)

    def _fetch(self, names: Sequence[str]) -> None:
        with self._lock:
            call = _protobuf.encode([(FETCH_NAMES, name) for name in names])
            answer, descriptors = self._exchange(CLIENT_FETCH, call, SERVER_LEASES)
            try:
                for number, lease in _protobuf.decode(answer):
                    if number == LEASES_LEASES and isinstance(lease, bytes):
                        self._map(lease, descriptors, 1)
            finally:
                _close_all(descriptors)

    def _drain(self) -> None:
        """Reads messages that are not answers, usually notices of freed leases, so that they do not fill the server's buffer."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._hear()
        finally:
            self._lock.release()

    def _hear(self) -> None:
        """Reads pending messages, such as the server's last one."""
        try:
            poll = select.poll()
            if self._socket.fileno() >= 0:
                poll.register(self._socket, select.POLLIN)
            while self._socket.fileno() >= 0 and poll.poll(0):
                packet, descriptors = self._receive()
                _close_all(descriptors)
                self._read(packet, -1, -1)
        except Refused:
            # The next call raises the error.
            pass

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.send(packet)
        except OSError as error:
            # A server that refused the session closed it before it read this packet. Its message can still be received.
            self._hear()
            raise self._lost(f"the session is lost: {error.strerror or error}") from error

    def _lost(self, otherwise: str) -> Refused:
        """The exception for an ended session: with the server's last message, if there is one."""
        return SessionLost(otherwise) if self._last_word is None else Refused(*self._last_word)

    def _exchange(self, call: int, content: bytes, expected: int) -> tuple[bytes, list[int]]:
        """Sends one call and waits for its answer. Returns the answer and its descriptors."""
        self._last_id += 1
        call_id = self._last_id
        self._send(_protobuf.encode([(CLIENT_ID, call_id), (call, content)]))
        while True:
            packet, descriptors = self._receive()
            try:
                answer = self._read(packet, call_id, expected)
            except BaseException:
                _close_all(descriptors)
                raise
            if answer is not None:
                return answer, descriptors
            _close_all(descriptors)

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            try:
                packet, descriptors, flags, _ = self._receive_now()
            except ConnectionResetError:
                # If a peer closed the socket before it had read everything, the error is reported once. Its last message can be received after
                # that.
                packet, descriptors, flags, _ = self._receive_now()
        except OSError as error:
            # A late answer would be taken for the answer to the next call.
            self._socket.close()
            raise SessionLost(f"no answer from the session: {error.strerror or error}") from error
        if not packet or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close_all(descriptors)
            self._socket.close()
            raise self._lost("the server closed the session" if not packet else "an answer was cut short")
        return packet, list(descriptors)

    def _receive_now(self) -> tuple[bytes, list[int], int, object]:
        return socket.recv_fds(self._socket, PACKET_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)

    def _read(self, packet: bytes, call_id: int, expected: int) -> Optional[bytes]:
        """The answer to the call with this id. None if the packet is about something else."""
        try:
            fields = list(_protobuf.decode(packet))
        except _protobuf.DecodeError as error:
            self._socket.close()
            raise SessionLost(f"the answer is not one of a session socket: {error}") from error
        for number, value in fields:
            if number == SERVER_FORGOTTEN and isinstance(value, bytes):
                self._mappings.pop(value.decode("utf-8", "replace"), None)
        said = dict(fields)
        last_word = said.get(SERVER_ERROR)
        if said.get(SERVER_ID, 0) == 0 and isinstance(last_word, bytes):
            # An error without a call ends the session.
            refusal = _refusal(last_word)
            self._last_word = str(refusal), refusal.final
            raise refusal
        if said.get(SERVER_ID, 0) != call_id:
            return None
        for number, value in fields:
            if number == SERVER_ERROR and isinstance(value, bytes):
                raise _refusal(value)
            if number == expected and isinstance(value, bytes):
                return value
        raise SessionLost("the answer is of another kind than the call")

    def _map(self, answer: bytes, descriptors: list[int], byte_size_min: int) -> tuple[str, np.ndarray]:
        """The name and the memory of the lease in an answer. It must have at least ``byte_size_min`` bytes. Removes the lease's descriptor
        from the list. The caller closes the other descriptors."""
        lease = dict(_protobuf.decode(answer))
        raw_name, byte_size = lease.get(LEASE_NAME, b""), lease.get(LEASE_BYTE_SIZE, 0)
        if not isinstance(raw_name, bytes) or not isinstance(byte_size, int) or byte_size < byte_size_min or not raw_name:
            raise SessionLost(f"{byte_size_min} bytes were asked for, the lease has {byte_size!r}")
        name = raw_name.decode("utf-8")
        if lease.get(LEASE_DESCRIPTOR):
            if not descriptors:
                raise SessionLost("a lease came without its descriptor")
            descriptor = descriptors.pop(0)
            try:
                self._mappings[name] = _map_sealed(descriptor, byte_size)
            finally:
                os.close(descriptor)
        memory = self._mappings.get(name)
        if memory is None or memory.nbytes < byte_size:
            raise SessionLost("the server lent a lease again that this client does not have")
        return name, memory[:byte_size]


def _headers(token: Optional[str]) -> list[list[tuple[int, _protobuf.Value]]]:
    """The headers in Hello, each as the fields of a message."""
    header = bearer(token)
    return [[(HEADER_NAME, "authorization"), (HEADER_VALUE, header)]] if header else []


def bearer(token: Optional[str]) -> Optional[str]:
    """The value of the header ``authorization`` for a token, by default ``NERITE_TOKEN``; None without one."""
    # A variable that was read from a file often ends in a newline.
    token = os.environ.get("NERITE_TOKEN", "").strip() if token is None else token
    return f"Bearer {token}" if token else None


class LeaseTransport:
    """Leases as slabs of the pool. A slab keeps its session alive, so the memory stays valid for arrays even after the client is closed."""

    def __init__(
        self,
        url: str,
        session_socket: Optional[str],
        server_id: Callable[[], Optional[str]] = lambda: None,
        answer_s: float = ANSWER_S,
        server_uid: Optional[int] = None,
        token: Optional[str] = None,
    ):
        """The arguments ``url``, ``session_socket`` and ``server_id`` are those of :func:`session_of`."""
        make = lambda path: Session(path, answer_s, server_uid, token)  # noqa: E731
        self._session: Optional[Session] = session_of(url, session_socket, make, server_id)

    def session(self) -> Optional[Session]:
        """The session, for outputs that the server places. None if the server does not support that."""
        return self._session if self._session is not None and self._session.key else None

    def make(self, byte_size: int) -> Slab:
        """Borrows a lease."""
        session = self._session
        if session is None:
            raise Refused("the client is closed", final=True)
        name, memory = session.borrow(byte_size)
        return Slab(name, memory, owner=session)

    def is_alive(self) -> bool:
        """Whether the server has not closed the session, and no fork has outdated it."""
        return self._session is not None and not self._session.outdated and self._session.is_alive()

    def drop(self, slab: Slab) -> None:
        """Returns a lease. If arrays still use it, the end of its session returns it."""
        if slab.lent == 0:
            try:
                slab.owner.give_back(slab.name)
            except Refused:
                pass

    def close(self) -> None:
        """Drops the reference to the session. It ends with its last slab."""
        self._session = None


S = TypeVar("S", bound=Session)


def session_of(url: str, session_socket: Optional[str], make: Callable[[str], S], server_id: Callable[[], Optional[str]]) -> S:
    """A session with the server at ``url``, made by ``make`` with the path of its socket. That is the one that the program named, or else the first of the
    default ones at which this server is. ``server_id`` is the id of the server at the url, or None if it is not available. Raises :class:`Refused`."""
    if session_socket is not None:
        return make(session_socket)
    refusal: Optional[Refused] = None
    for path in _trust.paths_of(port_of(url)):
        try:
            session = make(path)
        except NoSocket as absent:
            refusal = refusal or absent
            continue
        if is_server_of(session, url, server_id()):
            return session
        session.close()
        refusal = Refused(f"the server at '{path}' is not seen to be that of '{url}'; name its socket to be sure", final=True)
    assert refusal is not None
    raise refusal


def is_server_of(session: Session, url: str, server_id: Optional[str]) -> bool:
    """Whether the session is with the server at the url: both report the same id, or /proc shows that the process listens at the port."""
    if server_id is not None and session.server_id:
        return server_id == session.server_id
    return is_this_host(url) and listens(session.peer_pid(), url)


def server_id_among(extensions: Sequence[str]) -> Optional[str]:
    """The id in a nerite server's metadata. Empty for other servers."""
    for one in extensions:
        if one.startswith(SERVER_EXTENSION) and one.endswith(")"):
            return one[len(SERVER_EXTENSION) : -1]
    return ""


def listens(pid: int, url: str) -> bool:
    """Whether the process listens at the port of ``url``, as far as /proc is readable."""
    port = port_of(url)
    if not port:
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
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if os.readlink(entry.path) in sockets:
                        return True
                except OSError:
                    continue
    except OSError:
        pass
    return False


def _map_sealed(descriptor: int, byte_size: int) -> np.ndarray:
    """Maps a lease, after a check that it has its size and can never shrink."""
    try:
        seals = fcntl.fcntl(descriptor, F_GET_SEALS)
        actual = os.fstat(descriptor).st_size
        if not seals & F_SEAL_SHRINK or actual < byte_size:
            raise SessionLost(f"a lease of {byte_size} bytes has {actual} and seals {seals:#x}")
        return _map(descriptor, byte_size)
    except OSError as error:
        raise Refused(f"unable to map a lease of {byte_size} bytes: {error.strerror}", final=False) from error


def _map(descriptor: int, byte_size: int) -> np.ndarray:
    """The mapped memory. It is unmapped with the last array over it.

    The module mmap is not used: each of its mappings keeps a descriptor open. The usual limit is about a thousand, and a session can have
    as many leases.
    """
    address = _libc.mmap(None, byte_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if byte_size >= HUGE_PAGE:
        # The server requests huge pages too, but the process that first touches a page decides. It is only a hint, so an error is ignored.
        _libc.madvise(address, byte_size, mmap.MADV_HUGEPAGE)
    memory = (ctypes.c_ubyte * byte_size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, byte_size).atexit = False
    return np.frombuffer(memoryview(memory), dtype=np.uint8)


def _refusal(error: bytes) -> Refused:
    fields = dict(_protobuf.decode(error))
    code, message = fields.get(ERROR_CODE, 0), fields.get(ERROR_MESSAGE, b"")
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else ""
    return Refused(text or f"error {code!r}", final=code in FINAL_CODES)


def _text(message: bytes, field: int) -> str:
    value = dict(_protobuf.decode(message)).get(field, b"")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child closes its copies of its parent's sockets, so that the parent's end still ends the sessions."""
    for session in list(_sessions):
        session._lock = threading.Lock()
        session._socket.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
