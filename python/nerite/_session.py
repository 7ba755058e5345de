"""How is memory borrowed from a server on this host?

Over its session socket: a Unix socket of type SEQPACKET, one packet one message (``session.proto``), descriptors beside it.
A lease is a sealed memfd of the server's: it cannot shrink under us, it has no name in any file system, and the server has it
back when the socket closes, however this process ends.
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
import threading
import weakref
from typing import Callable, Iterable, Optional, Sequence, Tuple

import numpy as np

from nerite import _protobuf, _trust
from nerite._pool import Block, Slab
from nerite._transports import Refused, is_this_host
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
CLIENT_ID, CLIENT_RETURNED, CLIENT_HELLO, CLIENT_BORROW, CLIENT_FETCH, CLIENT_ABANDON = 1, 2, 3, 4, 11, 12
HELLO_VERSION_MIN, HELLO_VERSION_MAX, HELLO_CLIENT = 1, 2, 3
BORROW_BYTE_SIZE, FETCH_NAMES, ABANDON_TAG, ABANDON_KEPT = 1, 1, 1, 2
SERVER_ID, SERVER_FORGOTTEN, SERVER_ERROR, SERVER_WELCOME, SERVER_LEASE, SERVER_LEASES = 1, 2, 4, 6, 7, 11
WELCOME_SERVER_ID, WELCOME_SESSION_KEY, LEASES_LEASES = 8, 9, 1
ERROR_CODE, ERROR_MESSAGE = 1, 2
LEASE_NAME, LEASE_BYTE_SIZE, LEASE_DESCRIPTOR = 1, 2, 3
# What a server's metadata lists among its extensions, with 32 hexadecimal digits and a bracket behind it.
SERVER_EXTENSION = "nerite_server("
# A lease that a request holds: its name and the number of the holding, for it may be lent to the same request again.
Holding = Tuple[str, int]
# gRPC's numbers of failures that asking again does not change.
FINAL_CODES = {7: "permission denied", 12: "unimplemented", 16: "unauthenticated"}


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
# Leases from this size on are worth huge pages, where the system gives shared memory any.
HUGE_PAGE = 2 << 20
_MAP_FAILED = ctypes.c_void_p(-1).value


class SessionLost(Refused):
    """The server has closed the session, or speaks something else."""

    def __init__(self, why: str):
        super().__init__(why, final=False)


class Untrusted(Refused):
    """Somebody is at the session socket whom this program has no reason to trust. Nothing was sent."""

    def __init__(self, path: str, why: str):
        super().__init__(f"session socket '{path}' is not used: {why}", final=True)


class Session:
    """One connection to a session socket. Thread-safe. Everything borrowed goes back when the object goes.

    ``server_uid`` names a user whose server may be talked to, besides this program's own user and root.
    """

    def __init__(self, path: str, answer_s: float = ANSWER_S, server_uid: Optional[int] = None):
        self._lock = threading.Lock()
        self._last_id = 0
        # What the server said when it ended the session, and whether asking again is of no use.
        self._last_word: Optional[Tuple[str, bool]] = None
        self._tags = itertools.count(1)
        self._holdings = itertools.count()
        # Mappings by name: a lease that is lent a second time comes without its descriptor.
        self._mappings: dict[str, np.ndarray] = {}
        # Leases that are to be returned, each with the set of those that its request holds.
        self._returns: collections.deque[tuple[Holding, set[Holding]]] = collections.deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(answer_s)
            self._connect(path, server_uid)
            client = f"nerite-python {__version__}"
            hello = [(HELLO_VERSION_MIN, VERSION), (HELLO_VERSION_MAX, VERSION)]
            welcome, _ = self._ask(CLIENT_HELLO, _protobuf.encode([*hello, (HELLO_CLIENT, client)]), SERVER_WELCOME)
        except OSError as error:
            self._socket.close()
            raise Refused(f"no session at '{path}': {error.strerror or error}", final=True) from error
        except BaseException:
            self._socket.close()
            raise
        #: The server process, as its metadata names it; empty from servers that do not say.
        self.server_id = _text(welcome, WELCOME_SERVER_ID)
        #: What outputs name to be placed in leases of this session; empty from servers that cannot.
        self.key = _text(welcome, WELCOME_SESSION_KEY)
        _sessions.add(self)

    def borrow(self, byte_size: int) -> tuple[str, np.ndarray]:
        """A lease of at least ``byte_size`` bytes: its name, and its memory as uint8."""
        self._return_held()
        with self._lock:
            answer, descriptors = self._ask(
                CLIENT_BORROW, _protobuf.encode([(BORROW_BYTE_SIZE, byte_size)]), SERVER_LEASE
            )
            try:
                return self._map(answer, descriptors, byte_size)
            finally:
                _close_all(descriptors)

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these leases are mapped here, so that nobody need be asked for them."""
        return all(name in self._mappings for name in names)

    def fetch(self, names: Sequence[str]) -> None:
        """Maps leases that responses over HTTP or gRPC named."""
        missing = [name for name in names if name not in self._mappings]
        for first in range(0, len(missing), DESCRIPTORS_MAX):
            self._fetch(missing[first : first + DESCRIPTORS_MAX])

    def placed(self, name: str, offset: int, byte_size: int, held: set[Holding]) -> Block:
        """An output in a lease that was fetched. The lease goes back when nothing refers to the block any more; until then it is
        in ``held``."""
        self._drain()
        memory = self._mappings.get(name)
        if memory is None or offset < 0 or byte_size < 0 or offset + byte_size > memory.nbytes:
            raise SessionLost(f"an output of {byte_size} bytes was placed at {offset} of a lease that is not that large")
        slab = Slab(name, memory[offset : offset + byte_size], keeper=self)
        slab.lent = 1
        block = Block(slab, 0, byte_size)
        holding = name, next(self._holdings)
        held.add(holding)
        weakref.finalize(block, self._let_go, holding, held).atexit = False
        return block

    def new_key(self) -> tuple[str, int]:
        """What the outputs of one request name to be placed here, and the request's tag, for :meth:`abandon`."""
        tag = next(self._tags)
        return f"{self.key}-{tag}", tag

    def abandon(self, tag: int, held: Iterable[Holding] = ()) -> None:
        """No further answer to requests of this tag will be looked at: what was or will be placed for them comes back, but for
        the leases in ``held``. Waits for nobody."""
        call = (CLIENT_ABANDON, _protobuf.encode([(ABANDON_TAG, tag), *((ABANDON_KEPT, name) for name, _ in held)]))
        try:
            self._send_now(_protobuf.encode([call]))
        except OSError:
            # The session is over, and with it what it had; or nobody reads there, and the session's end will do it.
            pass

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

    def why_ended(self) -> Optional[str]:
        """Why the session is over, in the server's words if it said any; None while it goes on."""
        if self.is_alive():
            return None
        self._drain()
        return "the server has closed it" if self._last_word is None else self._last_word[0]

    def peer_pid(self) -> int:
        """The process at the other end."""
        return _trust.peer_of(self._socket).pid

    def close(self) -> None:
        """Ends the session at once: the server takes back what it lent."""
        self._socket.close()

    def __del__(self) -> None:
        # A session ends with its last array as a matter of course: no reason for Python to warn of an open socket.
        if (opened := getattr(self, "_socket", None)) is not None:
            opened.close()

    def _connect(self, path: str, server_uid: Optional[int]) -> None:
        """Connects, and looks who is there."""
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

    def _let_go(self, holding: Holding, held: set[Holding]) -> None:
        """A placed output is no longer used. A finalizer, which runs anywhere: it takes no lock and waits for nobody."""
        self._returns.append((holding, held))
        self._return_held()

    def _return_held(self) -> None:
        """Returns what is to be returned, as far as the socket takes it now."""
        going = []
        while self._returns:
            try:
                going.append(self._returns.popleft())
            except IndexError:
                break
        if not going:
            return
        try:
            self._send_now(_protobuf.encode([(CLIENT_RETURNED, name) for (name, _), _ in going]))
        except BlockingIOError:
            self._returns.extend(going)
            return
        except OSError:
            # The session is over: the server has them all.
            pass
        # Only now: what is abandoned before this went out must not come back twice, for it may be lent again in between.
        for holding, held in going:
            held.discard(holding)

    def _send_now(self, packet: bytes) -> None:
        # Not the socket's own send, which waits for room first. A packet goes whole or not at all, so no lock is needed.
        os.write(self._socket.fileno(), packet)

    def _fetch(self, names: Sequence[str]) -> None:
        with self._lock:
            call = _protobuf.encode([(FETCH_NAMES, name) for name in names])
            answer, descriptors = self._ask(CLIENT_FETCH, call, SERVER_LEASES)
            try:
                for number, lease in _protobuf.decode(answer):
                    if number == LEASES_LEASES and isinstance(lease, bytes):
                        self._map(lease, descriptors, 1)
            finally:
                _close_all(descriptors)

    def _drain(self) -> None:
        """Reads what came unasked, mostly news of leases that are no more, so that it does not pile up at the server."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._hear()
        finally:
            self._lock.release()

    def _hear(self) -> None:
        """Takes what is there already, the server's last word for one."""
        try:
            poll = select.poll()
            if self._socket.fileno() >= 0:
                poll.register(self._socket, select.POLLIN)
            while self._socket.fileno() >= 0 and poll.poll(0):
                packet, descriptors = self._receive()
                _close_all(descriptors)
                self._read(packet, -1, -1)
        except Refused:
            # The next call says so.
            pass

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.send(packet)
        except OSError as error:
            # A server that turned us away closed before it read this, and what it said of that can still be received.
            self._hear()
            raise self._lost(f"the session is lost: {error.strerror or error}") from error

    def _lost(self, otherwise: str) -> Refused:
        """What to raise when nothing more comes: the server's last word, if it spoke one."""
        return SessionLost(otherwise) if self._last_word is None else Refused(*self._last_word)

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
            try:
                packet, descriptors, flags, _ = self._receive_now()
            except ConnectionResetError:
                # Told once, where the other end closed before it had read all of ours; what it said before comes then.
                packet, descriptors, flags, _ = self._receive_now()
        except OSError as error:
            # A late answer would be taken for that of the next call.
            self._socket.close()
            raise SessionLost(f"no answer from the session: {error.strerror or error}") from error
        if not packet or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close_all(descriptors)
            self._socket.close()
            raise self._lost("the server closed the session" if not packet else "an answer was cut short")
        return packet, list(descriptors)

    def _receive_now(self) -> tuple[bytes, list[int], int, object]:
        return socket.recv_fds(self._socket, PACKET_BYTES_MAX, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)

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
        said = dict(fields)
        last_word = said.get(SERVER_ERROR)
        if said.get(SERVER_ID, 0) == 0 and isinstance(last_word, bytes):
            # An error about no call: the session is over.
            refusal = _refusal(last_word)
            self._last_word = str(refusal), refusal.final
            raise refusal
        if said.get(SERVER_ID, 0) != asked:
            return None
        for number, value in fields:
            if number == SERVER_ERROR and isinstance(value, bytes):
                raise _refusal(value)
            if number == expected and isinstance(value, bytes):
                return value
        raise SessionLost("the answer is of another kind than the call")

    def _map(self, answer: bytes, descriptors: list[int], asked: int) -> tuple[str, np.ndarray]:
        """The lease of the answer; takes its descriptor out of the list, which the caller closes."""
        lease = dict(_protobuf.decode(answer))
        raw_name, byte_size = lease.get(LEASE_NAME, b""), lease.get(LEASE_BYTE_SIZE, 0)
        if not isinstance(raw_name, bytes) or not isinstance(byte_size, int) or byte_size < asked or not raw_name:
            raise SessionLost(f"{asked} bytes were asked for, the lease has {byte_size!r}")
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
            raise SessionLost("a lease was lent that was never seen here")
        return name, memory[:byte_size]


class LeaseTransport:
    """Leases as slabs of the pool. A slab keeps its session, so memory outlives even a closed client while arrays need it."""

    def __init__(
        self,
        path: str,
        url: str,
        is_certain: bool,
        server_id: Callable[[], Optional[str]] = lambda: None,
        answer_s: float = ANSWER_S,
        server_uid: Optional[int] = None,
    ):
        """``server_id`` tells what the server behind the url calls itself, or None where it cannot be asked."""
        self._session: Optional[Session] = Session(path, answer_s, server_uid)
        if not is_certain and not is_server_of(self._session, url, server_id()):
            self._session.close()
            raise Refused(f"the server at '{path}' is not seen to be that of '{url}'; name its socket to be sure", final=True)

    def session(self) -> Optional[Session]:
        """The session, for outputs that the server is to place; None from servers that cannot."""
        return self._session if self._session is not None and self._session.key else None

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


def is_server_of(session: Session, url: str, server_id: Optional[str]) -> bool:
    """Whether the session is with the server of the url: they name the same process, or /proc shows it at the port."""
    if server_id is not None and session.server_id:
        return server_id == session.server_id
    return is_this_host(url) and listens(session.peer_pid(), url)


def server_id_among(extensions: Sequence[str]) -> Optional[str]:
    """What a server of this kind calls itself in its metadata; empty for other servers."""
    for one in extensions:
        if one.startswith(SERVER_EXTENSION) and one.endswith(")"):
            return one[len(SERVER_EXTENSION) : -1]
    return ""


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
    """Maps a lease, having made sure that it has its bytes and can never have fewer."""
    try:
        seals = fcntl.fcntl(descriptor, F_GET_SEALS)
        actual = os.fstat(descriptor).st_size
        if not seals & F_SEAL_SHRINK or actual < byte_size:
            raise SessionLost(f"a lease of {byte_size} bytes has {actual} and seals {seals:#x}")
        return _map(descriptor, byte_size)
    except OSError as error:
        raise Refused(f"unable to map a lease of {byte_size} bytes: {error.strerror}", final=False) from error


def _map(descriptor: int, byte_size: int) -> np.ndarray:
    """The memory, for as long as arrays over it live.

    Not by the module mmap: its mappings each keep a descriptor open, of which a process has a thousand, as a session has leases.
    """
    address = _libc.mmap(None, byte_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if byte_size >= HUGE_PAGE:
        # The server asks for them as well, but whoever touches a page first decides. Only a hint: a refusal changes nothing.
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
    """A forked child lets go of its parent's sessions, so that the parent's death still ends them."""
    for session in list(_sessions):
        session._lock = threading.Lock()
        session._socket.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
