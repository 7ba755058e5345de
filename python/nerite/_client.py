"""How does a program connect to a server, and how do its threads share the connections?"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import functools
import os
import threading
import time
import warnings
import weakref
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, Optional, Sequence, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _trust
from nerite._connection import Lost, NoLoopConnection, SessionConnection
from nerite._loop_connection import LoopConnection
from nerite._messages import Spec
from nerite._model import Model
from nerite._plain_connection import PlainConnection
from nerite._pool import Block
from nerite._response import Response
from nerite._session import SessionLost, Untrusted, is_server_of, server_id_among
from nerite._transports import Refused

T = TypeVar("T")
# The most threads for asynchronous calls.
THREADS_MAX = 16
# The most connections of one client. Further threads wait for one. There are more than threads for asynchronous calls, so that slow ones leave
# some for the program's own threads.
CONNECTIONS_MAX = 2 * THREADS_MAX
# The server is not asked for another session for this time after it had no room for one.
FULL_S = 5.0
# The most idle clients of gRPC that are kept for streams.
IDLE_STREAMS_MAX = 4
HTTP_DEFAULT = "http://localhost:8000"
# The protocol for each scheme of an address, and whether it uses TLS.
_SCHEMES = {"http": ("http", False), "https": ("http", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}


class Client:
    """A connection to a server, made by :func:`connect`. Any number of threads may use it, also after ``fork``.

    A process that gets it by pickle, as a worker of ``multiprocessing`` does, connects anew in the same way. If it was made with a token, that is part of
    the pickle.
    """

    def __init__(
        self,
        url: Optional[str],
        session_socket: Optional[str],
        server_uid: Optional[int],
        token: Optional[str],
        repeat_lost: bool,
        options: Any,
    ):
        self._made_with = (url, session_socket, server_uid, token, repeat_lost, dict(options))
        self._scheme, self._address, is_secured = _parts(url)
        self._socket_path = self._address if self._scheme == "unix" else session_socket
        self._server_uid = server_uid
        self._token = token
        self._repeat_lost = repeat_lost
        self._options = {"ssl": True, **options} if is_secured else dict(options)
        self._session_path: Optional[str] = None
        self._start_afresh()
        _clients.add(self)
        self._choose()

    @property
    def transport(self) -> str:
        """How tensors reach the server: ``session``, or over HTTP or gRPC ``lease``, ``region`` or ``inline``."""
        return "session" if self._session_path is not None else self._run(lambda connection: connection.transport)

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that this client has copied so far. An input that was written to a buffer of ``model.input`` is not copied."""
        return self._copied_before + sum(connection.copied_bytes for connection in list(self._all))

    def model(self, name: str, version: Any = "", batch: bool = True) -> Model:
        """A model that can be called as a function. With ``batch=False`` its calls take single rows, without the batch dimension."""
        return Model(self, name, str(version), batch)

    def close(self) -> None:
        """Closes the connections. Arrays stay valid."""
        self._closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        for connection in list(self._all):
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._session_path or f"{self._scheme}://{self._address}"
        return f"<nerite client of {where}>"

    def __reduce__(self) -> Any:
        """For pickle: the other process connects anew, in the same way. Its token is part of what is pickled."""
        return Client, self._made_with

    # Methods for class Model.

    def _quick(self, key: Any, arrays: Sequence[np.ndarray], whole: Callable[[Any], Any]) -> Optional[Response]:
        """Runs one inference over a session, if a prepared plan for it exists. An exception affects only its connection."""
        try:
            connection = self._free.pop()
        except IndexError:
            return None
        try:
            if connection._timeout is not None:
                connection.set_timeout(None)
            response = connection.quick(key, arrays, whole)
        except BaseException:
            self._put(connection)
            raise
        self._free.append(connection)
        if self._waiting or self._closed:
            try:
                connection = self._free.pop()
            except IndexError:
                # Another thread has taken the connection.
                return response
            self._put(connection)
        return response

    def _run(self, call: Callable[[Any], T]) -> T:
        """Calls ``call`` with a connection that no other thread uses meanwhile. If the server was restarted, connects again."""
        for is_last in (False, True):
            connection = self._take()
            try:
                return call(connection)
            except Lost as lost:
                # A request that was sent may have been run. It is sent again only if the program allowed that.
                if is_last or (lost.sent and not self._repeat_lost):
                    raise
                self._drop_free()
            finally:
                self._put(connection)
        raise AssertionError("the second try returned or raised")

    async def _run_async(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """As :meth:`_run`, for asyncio, with the connection of the running loop. Raises :class:`NoLoopConnection` if there can be none."""
        for is_last in (False, True):
            connection = await self._of_loop()
            try:
                return await call(connection)
            except Lost as lost:
                if is_last or (lost.sent and not self._repeat_lost):
                    raise
        raise AssertionError("the second try returned or raised")

    def _repeats_lost(self) -> bool:
        """Whether a request that a lost server may have run is sent again."""
        return self._repeat_lost

    def _stream(self, call: Callable[[Any], Iterator[T]]) -> Iterator[T]:
        """As :meth:`_run`, for any number of responses. What was sent is never sent again, because responses may have come before."""
        if self._session_path is None:
            yield from self._stream_plain(call)
            return
        for is_last in (False, True):
            connection, thread = self._take(), threading.get_ident()
            with self._lock:
                self._streaming[thread] += 1
            try:
                connection.set_timeout(None)
                yield from call(connection)
                return
            except Lost as lost:
                if is_last or lost.sent:
                    raise
                self._drop_free()
            finally:
                with self._lock:
                    self._streaming[thread] -= 1
                    if self._streaming[thread] <= 0:
                        del self._streaming[thread]
                self._put(connection)

    def _lend(self, spec: Spec) -> Optional[Block]:
        """Memory for an input, which the server knows by name. None if there is no session."""
        if self._session_path is None:
            return None
        from nerite._datatypes import fixed_byte_size

        byte_size = max(fixed_byte_size(spec.shape, spec.datatype) or 0, 1)
        return self._run(lambda connection: connection.lend(byte_size))

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        """The threads for asynchronous calls."""
        with self._lock:
            if self._executor is None:
                self._executor = concurrent.futures.ThreadPoolExecutor(THREADS_MAX, "nerite")
            return self._executor

    def _start_afresh(self) -> None:
        """Sets the state of a client without connections. A forked child uses it too, because all connections are its parent's."""
        # The lock must be reentrant: if the garbage collector ends a stream, the current thread takes the lock, and may have it already.
        self._lock = threading.RLock()
        self._free: collections.deque[Any] = collections.deque()
        self._all: set[Any] = set()
        # The number of threads that wait for a connection, because the limit is reached.
        self._waiting = 0
        self._came_back = threading.Condition(self._lock)
        self._open = 0
        # The number of open streams of each thread. Each stream keeps a connection.
        self._streaming: collections.Counter[int] = collections.Counter()
        # The most connections until that time, because the server refused another one.
        self._open_max, self._full_until = CONNECTIONS_MAX, 0.0
        self._idle_streams: collections.deque[PlainConnection] = collections.deque()
        # The connection of each event loop, or the task that opens it.
        self._loops: dict[asyncio.AbstractEventLoop, Any] = {}
        # Bytes that closed connections have copied.
        self._copied_before = 0
        self._executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._thread = threading.local()
        self._closed = False

    async def _of_loop(self) -> Any:
        """The connection of the running loop."""
        self._check_open()
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is not None and not isinstance(found, asyncio.Task):
            if not found.broken:
                return found
            self._forget_loop(loop)
            found = None
        if found is None:
            if time.monotonic() < self._full_until or (self._session_path is None and not self._has_plain_loops()):
                raise NoLoopConnection
            # Other threads' loops begin and end meanwhile.
            for other in [one for one in list(self._loops) if one.is_closed()]:
                self._forget_loop(other)
            found = self._loops[loop] = loop.create_task(self._open_for(loop))
        # A call that is cancelled meanwhile does not cancel the connection of the others.
        return await asyncio.shield(found)

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceServerException("the client is closed")

    def _has_plain_loops(self) -> bool:
        from nerite import _plain_loop_connection

        return _plain_loop_connection.is_possible(self._scheme, self._options)

    async def _open_for(self, loop: asyncio.AbstractEventLoop) -> Any:
        try:
            self._check_open()
            connection = await self._open_session(loop) if self._session_path is not None else await self._open_plain()
        except BaseException as error:
            self._loops.pop(loop, None)
            if not isinstance(error, Refused):
                raise
            if not error.final and not isinstance(error, SessionLost) and self._open > 0:
                # The server has no room for another session now. The threads of this client share those that it has.
                self._full_until = time.monotonic() + FULL_S
                raise NoLoopConnection from None
            raise ConnectionError(str(error)) from None
        self._loops[loop] = connection
        self._all.add(connection)
        # Runners of asyncio end all generators before they close their loop.
        connection.until_end = self._until_end(loop, connection)
        await connection.until_end.__anext__()
        if self._closed:
            # The client did not know of this connection when it closed its own.
            await connection.until_end.aclose()
            self._check_open()
        return connection

    async def _open_session(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        # It is made in a thread, because connecting waits for the server.
        make = functools.partial(LoopConnection, self._session_path or "", self._server_uid, self._token)
        connection = await loop.run_in_executor(self._threads(), make)
        connection.begin()
        return connection

    async def _open_plain(self) -> Any:
        from nerite._plain_loop_connection import PlainLoopConnection

        connection = PlainLoopConnection(self._scheme, self._address, self._plain_options(), self._token)
        await connection.open()
        return connection

    async def _until_end(self, loop: asyncio.AbstractEventLoop, connection: Any) -> AsyncIterator[None]:
        """Ends with its loop, and closes the loop's connection then."""
        try:
            yield
        finally:
            if self._loops.get(loop) is connection:
                self._forget_loop(loop)
            await connection.finish()

    def _forget_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes the connection of a loop that has ended, or a broken one."""
        connection = self._loops.pop(loop, None)
        if connection is not None and not isinstance(connection, asyncio.Task):
            self._all.discard(connection)
            self._copied_before += connection.copied_bytes
            connection.close()

    def _choose(self) -> None:
        """Tries to open a session, and keeps its connection."""
        path = self._socket_path or _trust.default_path()
        try:
            connection = SessionConnection(path, self._server_uid, self._token)
        except Refused as refusal:
            if self._scheme == "unix":
                raise ConnectionError(str(refusal)) from None
            if isinstance(refusal, Untrusted):
                warnings.warn(str(refusal), RuntimeWarning, stacklevel=3)
            if not self._scheme:
                self._scheme, self._address = HTTP_DEFAULT.split("://")
                if not _is_live(self._plain()):
                    raise ConnectionError(
                        f"no server was found: {refusal}, and no server answers at {HTTP_DEFAULT}; start one with `nerite serve`, or "
                        f"name its address"
                    ) from None
            return
        if self._scheme in ("http", "grpc") and self._socket_path is None and not self._is_same(connection):
            connection.close()
            return
        self._session_path = path
        self._open += 1
        self._all.add(connection)
        self._free.append(connection)

    def _is_same(self, connection: SessionConnection) -> bool:
        """Whether the session's server is the server that the program named."""
        try:
            plain = self._plain()
            server_id = server_id_among(plain.client._extensions())
        except Exception:  # noqa: BLE001 - restricted, or no server answers: other signs decide
            server_id = None
        return is_server_of(connection, self._address, server_id)

    def _plain(self) -> PlainConnection:
        """This thread's client for HTTP or gRPC. An HTTP client can be used only by the thread that made it."""
        connection = getattr(self._thread, "plain", None)
        if connection is None:
            connection = self._thread.plain = self._new_plain()
        return connection

    def _plain_options(self) -> dict[str, Any]:
        options = dict(self._options)
        if self._socket_path is not None:
            options["session_socket"] = self._socket_path
        if self._server_uid is not None:
            options["server_uid"] = self._server_uid
        return options

    def _new_plain(self) -> PlainConnection:
        connection = PlainConnection(self._scheme, self._address, self._plain_options(), self._token)
        self._all.add(connection)
        return connection

    def _stream_plain(self, call: Callable[[Any], Iterator[T]]) -> Iterator[T]:
        """The responses over a client of its own: a client of gRPC has one stream, and several threads may read these responses."""
        self._check_open()
        if self._scheme != "grpc":
            # HTTP has no streams. This raises the error, and no further client is made.
            yield from call(self._plain())
            return
        try:
            connection = self._idle_streams.pop()
        except IndexError:
            connection = self._new_plain()
        try:
            yield from call(connection)
        except BaseException:
            self._forget_plain(connection)
            raise
        if self._closed or len(self._idle_streams) >= IDLE_STREAMS_MAX:
            self._forget_plain(connection)
        else:
            self._idle_streams.append(connection)

    def _forget_plain(self, connection: PlainConnection) -> None:
        self._copied_before += connection.copied_bytes
        self._all.discard(connection)
        connection.close()

    def _take(self) -> Any:
        self._check_open()
        if self._session_path is None:
            return self._plain()
        try:
            # A free connection is taken without a lock.
            return self._free.pop()
        except IndexError:
            return self._open_another()

    def _open_another(self) -> Any:
        """A new connection. If the limit is reached, waits for one that is given back."""
        while True:
            with self._lock:
                while self._open >= (self._open_max if time.monotonic() < self._full_until else CONNECTIONS_MAX):
                    # A server that was full may have room again by then.
                    longest = FULL_S if self._open < CONNECTIONS_MAX else None
                    self._waiting += 1
                    try:
                        if self._free or self._came_back.wait(longest):
                            return self._free.pop()
                    except IndexError:
                        continue
                    finally:
                        self._waiting -= 1
                self._open += 1
            try:
                connection = SessionConnection(self._session_path or "", self._server_uid, self._token)
            except BaseException as error:
                self._closed_one()
                if not isinstance(error, Refused):
                    raise
                # The server has no room for another session now. The sessions that this client has are enough, one after the other.
                with self._lock:
                    # A thread that keeps a connection for a stream must not wait. It could wait for itself, or for a thread that waits for it.
                    may_wait = self._open > 0 and not self._streaming[threading.get_ident()]
                    is_full = not error.final and not isinstance(error, SessionLost) and may_wait
                    if is_full:
                        self._open_max, self._full_until = self._open, time.monotonic() + FULL_S
                if is_full:
                    continue
                raise ConnectionError(str(error)) from None
            self._all.add(connection)
            return connection

    def _put(self, connection: Any) -> None:
        if self._session_path is None:
            return
        if connection.broken or self._closed:
            self._drop(connection)
            return
        self._free.append(connection)
        # The connection was put back before this check. So a thread that begins to wait after it finds the connection.
        if self._waiting:
            with self._lock:
                self._came_back.notify()

    def _closed_one(self) -> None:
        with self._lock:
            self._open -= 1
            self._came_back.notify()

    def _drop(self, connection: Any) -> None:
        """Closes a broken connection."""
        with self._lock:
            if connection not in self._all:
                return
            self._all.discard(connection)
            self._copied_before += connection.copied_bytes
        connection.close()
        self._closed_one()

    def _drop_free(self) -> None:
        """Closes the other connections to a server that has gone."""
        while self._free:
            try:
                self._drop(self._free.pop())
            except IndexError:
                return


def connect(
    url: Optional[str] = None,
    *,
    session_socket: Optional[str] = None,
    server_uid: Optional[int] = None,
    token: Optional[str] = None,
    repeat_lost: bool = False,
    **options: Any,
) -> Client:
    """Connects to a server.

    >>> import nerite
    >>> client = nerite.connect()               # a server of this user, on this host
    >>> digits = client.model("digits")
    >>> out = digits(image=array)               # by name, or in the model's order: digits(array)
    >>> out["probabilities"]                    # or out.probabilities, or: label, probabilities = out

    Parameters
    ----------
    url : str or path
        ``http://host:port`` or ``grpc://host:port`` of any server of Triton's protocols, ``https://`` or ``grpcs://`` of one with TLS, or
        ``unix:/path`` or a ``pathlib.Path`` of a session socket. Without it, the session socket of this user's server, and if there is none,
        ``http://localhost:8000``.
    session_socket : str
        The path of the server's session socket, where it is not the default one.
    server_uid : int
        A further user whose server is trusted on the session socket, in addition to this program's own user and root.
    token : str
        The secret of a token that the server knows, where it asks for one (``--access-tokens-file``). By default ``NERITE_TOKEN``.
    repeat_lost : bool
        Whether a request is sent again if the server ended after the request was sent. It may run twice then. Without it such a request
        raises ConnectionError, and the next request connects again.
    options
        Options of the clients ``nerite.http.InferenceServerClient`` or ``nerite.grpc.InferenceServerClient``. The server's certificate is
        checked against ``ssl_options={"ca_certs": "root.pem"}`` for HTTP, and ``root_certificates="root.pem"`` for gRPC.

    Tensors go through shared memory if possible: over a session (``client.transport`` is ``"session"``), or in leases or regions with HTTP
    and gRPC (``"lease"``, ``"region"``). Otherwise they are sent in the messages (``"inline"``).
    """
    return Client(url, session_socket, server_uid, token, repeat_lost, options)


def _parts(url: Any) -> tuple[str, str, bool]:
    """Splits an address into protocol (``http``, ``grpc``, ``unix``), place, and whether TLS is used. Empty without an address."""
    if url is None:
        return "", "", False
    if isinstance(url, os.PathLike):
        return "unix", os.fspath(url), False
    if not isinstance(url, str):
        raise TypeError(f"an address is a str such as http://host:port, or the path of a session socket; got {url!r}")
    if url.startswith("unix:"):
        return "unix", url[len("unix:") :].removeprefix("//"), False
    scheme, _, place = url.partition("://")
    if scheme not in _SCHEMES:
        hint = f"unix:{url}" if url.startswith("/") else ""
        raise ValueError(
            f"'{url}' is not an address{'; did you mean ' + hint + '?' if hint else ''}; give http://host:port, grpc://host:port, https:// or grpcs:// for TLS, or unix:/path of a session socket"
        )
    protocol, is_secured = _SCHEMES[scheme]
    return protocol, place, is_secured


def _is_live(connection: PlainConnection) -> bool:
    try:
        return bool(connection.client.is_server_live())
    except Exception:  # noqa: BLE001 - any error of the client's library if no server answers
        return False


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    clients = list(_clients)
    if any(client._session_path is None and client._scheme == "http" for client in clients):
        import gevent

        # gevent's loop was copied from the parent, so it is initialised again.
        gevent.reinit()
    for client in clients:
        client._start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)
