"""How does a program connect to a server, and how do its threads share the connections?"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import os
import re
import threading
import time
import warnings
import weakref
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, Optional, Sequence, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _options, _trust
from nerite._connection import Lost, NoLoopConnection, SessionConnection
from nerite._deadline import NEVER, Deadline, deadline_of
from nerite._loop_connection import LoopConnection
from nerite._messages import Spec
from nerite._model import Model, is_unknown_model
from nerite._plain_connection import PlainConnection
from nerite._pool import Block
from nerite._response import Response
from nerite._session import ANSWER_S, SessionLost, Untrusted, is_server_of, server_id_among, session_of
from nerite._streams import STREAMS_MAX, StreamPlaces
from nerite._transports import Refused

T = TypeVar("T")
# The most threads for asynchronous calls.
THREADS_MAX = 16
# The most connections of one client. Further threads wait for one. Streams may have part of them, and threads for asynchronous calls another part, so that
# slow ones leave some for the program's own threads.
CONNECTIONS_MAX = STREAMS_MAX + 2 * THREADS_MAX
# For this time after the server refused a session for lack of places, no other session is requested.
FULL_S = 5.0
# The most connections that stay open after a fork because lent buffers are in their memory.
LENDERS_MAX = 4
# The most idle clients of gRPC that are kept for streams.
IDLE_STREAMS_MAX = 4
HTTP_DEFAULT = "http://localhost:8000"
# The protocol for each scheme of an address, and whether it uses TLS.
_SCHEMES = {"http": ("http", False), "https": ("http", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}
# The beginning of the address of a fleet.
_FLEET = "fleet:"
# An address without a scheme.
_HOST_AND_PORT = re.compile(r"(\[[^/\]]+\]|[^/:]+):[0-9]+(/.*)?")


class Client:
    """A connection to a server, made by :func:`connect`. Any number of threads may use it, also after ``fork``.
    A forked child keeps the outputs that its parent had, because memory from before a fork is not used again. The parent's next call opens a new session.

    A process that unpickles a client, such as a worker of ``multiprocessing``, opens its own connection with the same arguments. A token that was given to
    :func:`connect` is part of the pickle.
    """

    #: The class of its models.
    _model_type = Model

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
        _options.check(self._scheme, options)
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

    @property
    def _where(self) -> str:
        """The session socket or the address at which the server is."""
        return self._session_path or f"{self._scheme}://{self._address}"

    def model(self, name: str, version: Any = "", batch: bool = True, once: bool = False) -> Model:
        """A model that can be called as a function. With ``batch=False`` its calls take single rows, without the batch dimension.

        Over a session, one call outside of a sequence may run the model twice. This happens if the outputs are larger than those of earlier calls with
        the same shapes of inputs, or if the server had no memory for them. With ``once=True`` it never happens: the server chooses the memory of each
        output, which takes longer for small tensors, and a lack of memory is an error.

        The server is asked for the inputs and outputs of the model. An unknown model raises InferenceServerException. If the server does not tell them now,
        for example because it is not there, or takes more than 5 s, the first call asks again.
        """
        model = self._model_type(self, name, str(version), batch, once)
        try:
            self._run(model._described_by_server, deadline_of(ANSWER_S))
        except (ConnectionError, TimeoutError, InferenceServerException) as error:
            if is_unknown_model(error):
                raise
        return model

    def close(self) -> None:
        """Closes the connections. Arrays stay valid."""
        self._closed = True
        for executor in (self._executor, self._stream_executor):
            if executor is not None:
                executor.shutdown(wait=True)
        for connection in (*self._all, *self._lenders):
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nerite client of {self._where}>"

    def __reduce__(self) -> Any:
        """For pickle: the other process makes its own connection with the same arguments, the token included."""
        return type(self), self._made_with

    # Methods for class Model.

    def _quick(self, key: Any, arrays: Sequence[np.ndarray], whole: Callable[[Any], Any]) -> Optional[Response]:
        """Runs one inference over a session, if a prepared plan for it exists. An exception affects only its connection."""
        try:
            connection = self._free.pop()
        except IndexError:
            return None
        try:
            if connection._timeout is not None:
                connection.limit(NEVER)
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

    def _run(self, call: Callable[[Any], T], deadline: Deadline = NEVER) -> T:
        """Calls ``call`` with a connection that no other thread uses meanwhile. If the server was restarted, connects again."""
        for is_last in (False, True):
            connection = self._take(deadline)
            try:
                connection.limit(deadline)
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
            connection.users += 1
            try:
                return await call(connection)
            except Lost as lost:
                if is_last or (lost.sent and not self._repeat_lost):
                    raise
            finally:
                connection.users -= 1
                if connection.outdated:
                    await self._finish_outdated(connection)
        raise AssertionError("the second try returned or raised")

    def _repeats_lost(self) -> bool:
        """Whether a request that a lost server may have run is sent again."""
        return self._repeat_lost

    def _stream(self, call: Callable[[Any], Iterator[T]], deadline: Deadline = NEVER) -> Iterator[T]:
        """As :meth:`_run`, for any number of responses. A request that was sent is never sent again, because some of its responses may have arrived."""
        with self._streams.place(deadline) as is_first:
            yield from self._stream_at(call, is_first, deadline)

    def _stream_at(self, call: Callable[[Any], Iterator[T]], is_first: bool, deadline: Deadline = NEVER) -> Iterator[T]:
        """As :meth:`_stream`, for a stream that has a place. ``is_first``: the reader of this stream reads no other stream."""
        if self._session_path is None:
            yield from self._stream_plain(call, deadline)
            return
        for is_last in (False, True):
            connection = self._take(deadline, may_wait=is_first)
            try:
                connection.limit(deadline)
                yield from call(connection)
                return
            except Lost as lost:
                if is_last or lost.sent:
                    raise
                self._drop_free()
            finally:
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

    def _stream_threads(self) -> concurrent.futures.ThreadPoolExecutor:
        """The threads in which streams for asyncio wait: one for each place, so that none waits for another, or for a call."""
        with self._lock:
            if self._stream_executor is None:
                self._stream_executor = concurrent.futures.ThreadPoolExecutor(STREAMS_MAX, "nerite-stream")
            return self._stream_executor

    def _may_wait(self, in_thread: bool = True) -> bool:
        """Whether the caller may wait for a connection. A caller that reads a stream could wait for itself, or for another reader that waits
        for it. ``in_thread``: the thread waits, and all tasks of its loop with it."""
        return not (getattr(self._thread, "caller_reads", False) or self._streams.is_held_here(in_thread))

    def _start_afresh(self) -> None:
        """Sets the state of a client without connections. A forked child uses it too, because all connections are its parent's."""
        # The lock must be reentrant: if the garbage collector ends a stream, the current thread takes the lock, and may have it already.
        self._lock = threading.RLock()
        self._free: collections.deque[Any] = collections.deque()
        self._all: set[Any] = set()
        # Outdated connections with lent buffers.
        self._lenders: list[SessionConnection] = []
        # The number of threads that wait for a connection, because the limit is reached.
        self._waiting = 0
        self._came_back = threading.Condition(self._lock)
        self._open = 0
        # The places of streams. Each stream keeps a connection.
        self._streams = StreamPlaces()
        # The limit on connections until `_full_until`, after the server has refused one.
        self._open_max, self._full_until = CONNECTIONS_MAX, 0.0
        self._idle_streams: collections.deque[PlainConnection] = collections.deque()
        # The connection of each event loop, or the task that opens it.
        self._loops: dict[asyncio.AbstractEventLoop, Any] = {}
        # Bytes that closed connections have copied.
        self._copied_before = 0
        self._executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._stream_executor: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._thread = threading.local()
        self._closed = False

    async def _of_loop(self) -> Any:
        """The connection of the running loop."""
        self._check_open()
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is not None and not isinstance(found, asyncio.Task):
            if not found.broken and not found.outdated:
                return found
            if found.broken:
                self._forget_loop(loop)
            else:
                # Calls in flight go on with it, and the last one closes it.
                del self._loops[loop]
                await self._finish_outdated(found)
            found = self._loops.get(loop)
            if found is not None and not isinstance(found, asyncio.Task):
                return found
        if found is None:
            if time.monotonic() < self._full_until or (self._session_path is None and not self._has_plain_loops()):
                raise NoLoopConnection
            # Other threads may add and remove loops meanwhile, so a copy is read.
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
                # The server has no place for another session now. The threads of this client share its open sessions.
                self._full_until = time.monotonic() + FULL_S
                raise NoLoopConnection from None
            raise ConnectionError(str(error)) from None
        self._loops[loop] = connection
        self._all.add(connection)
        # Runners of asyncio close all async generators before they close their loop.
        connection.until_end = self._until_end(loop, connection)
        await connection.until_end.__anext__()
        if self._closed:
            # The client was closed before it knew of this connection.
            await connection.until_end.aclose()
            self._check_open()
        return connection

    async def _open_session(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        # The session is opened in a thread, because connecting waits for the server.
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
        """An async generator that ends with its loop, and then closes the loop's connection."""
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

    async def _finish_outdated(self, connection: Any) -> None:
        """Closes the connection of a loop that a fork has outdated, when no call uses it."""
        if not connection.users and connection in self._all and connection not in self._loops.values():
            self._all.discard(connection)
            self._copied_before += connection.copied_bytes
            await connection.until_end.aclose()

    def _choose(self) -> None:
        """Decides between a session and HTTP, unless the scheme of the address does. Keeps the connection of a session that can be used."""
        if self._scheme in ("http", "grpc"):
            return
        if not _options.has_session(self._options):
            self._choose_http(f"a session does not go with buffers={self._options['buffers']!r}")
            return
        try:
            connection = self._first_session()
        except Refused as refusal:
            if self._scheme == "unix":
                raise ConnectionError(str(refusal)) from None
            if isinstance(refusal, Untrusted):
                warnings.warn(str(refusal), RuntimeWarning, stacklevel=3)
            self._choose_http(str(refusal))
            return
        # If the program named a session socket as the address, no other transport can be used.
        why_not = connection.refusal_of_memory() if self._scheme != "unix" else None
        if why_not is not None:
            with contextlib.closing(connection):
                # Without an address, the session's server must listen at the default one too. Another program may listen there.
                if not self._address and not is_server_of(connection, HTTP_DEFAULT.split("://")[1], None):
                    raise ConnectionError(f"a session needs memory of the server: {why_not}; connect over http:// or grpc://")
            self._choose_http(why_not)
            return
        self._session_path = connection.path
        self._open += 1
        self._all.add(connection)
        self._free.append(connection)

    def _first_session(self) -> SessionConnection:
        """The first session. It must be that of the address, if the program named an address and no socket. Raises Refused."""

        def make(path: str) -> SessionConnection:
            return SessionConnection(path, self._server_uid, self._token)

        if self._scheme == "unix" or not self._address:
            return make(self._socket_path or _trust.default_path())
        return session_of(self._address, self._socket_path, make, self._server_id)

    def _choose_http(self, refusal: str) -> None:
        """Uses HTTP at the address, by default at the default one. Raises ConnectionError if no server answers there. ``refusal`` says why there is no
        session."""
        self._scheme, self._address = "http", self._address or HTTP_DEFAULT.split("://")[1]
        if not _is_live(self._plain()):
            raise ConnectionError(
                f"no server was found: {refusal}, and no server answers at http://{self._address}; start one with `nerite serve`, or name its address"
            ) from None

    def _server_id(self) -> Optional[str]:
        """The id of the server at the address, over HTTP. None if it is not available."""
        client = PlainConnection("http", self._address, {**self._options, "buffers": "inline"}, self._token)
        try:
            return server_id_among(client.client._extensions())
        except Exception:  # noqa: BLE001 - restricted, or no server answers: /proc decides
            return None
        finally:
            client.close()

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

    def _stream_plain(self, call: Callable[[Any], Iterator[T]], deadline: Deadline) -> Iterator[T]:
        """The responses of a stream, over a client that no other stream uses, because a client of gRPC has only one stream at a time."""
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
            connection.limit(deadline)
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

    def _take(self, deadline: Deadline, may_wait: Optional[bool] = None) -> Any:
        """A connection. ``may_wait``: whether to wait for one if the server has room for no more, by default as :meth:`_may_wait` says."""
        self._check_open()
        if self._session_path is None:
            return self._plain()
        try:
            # A free connection is taken without a lock.
            connection = self._free.pop()
        except IndexError:
            return self._open_another(deadline, may_wait)
        if not connection.outdated:
            return connection
        self._put(connection)
        self._drop_free(if_outdated=True)
        return self._take(deadline, may_wait)

    def _open_another(self, deadline: Deadline, may_wait: Optional[bool]) -> Any:
        """A new connection. If the limit is reached, waits until a connection is given back. The wait ends, because streams cannot hold all connections."""
        while True:
            with self._lock:
                while self._open >= (self._open_max if time.monotonic() < self._full_until else CONNECTIONS_MAX):
                    # A server that was full may have room again by then.
                    longest = FULL_S if self._open < CONNECTIONS_MAX else None
                    self._waiting += 1
                    try:
                        if self._free or self._came_back.wait(deadline.left_of(longest)):
                            return self._free.pop()
                    except IndexError:
                        continue
                    except TimeoutError:
                        # This thread may have been notified just now. Then another one must be notified in its place.
                        self._came_back.notify()
                        raise
                    finally:
                        self._waiting -= 1
                self._open += 1
            try:
                connection = SessionConnection(self._session_path or "", self._server_uid, self._token, deadline.left_of(ANSWER_S) or ANSWER_S)
            except BaseException as error:
                self._closed_one()
                if not isinstance(error, Refused):
                    raise
                if deadline.is_over():
                    raise deadline.late() from None
                # The server has no room for another session now. The threads share the sessions that this client has, one after the other.
                may_wait = self._may_wait() if may_wait is None else may_wait
                with self._lock:
                    is_full = not error.final and not isinstance(error, SessionLost) and self._open > 0 and may_wait
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
        if connection.broken or self._closed or connection.outdated:
            self._drop(connection)
            return
        self._free.append(connection)
        # The connection was put back before this check. So a thread that begins to wait after the check finds the connection.
        if self._waiting:
            with self._lock:
                self._came_back.notify()

    def _closed_one(self) -> None:
        with self._lock:
            self._open -= 1
            self._came_back.notify()

    def _drop(self, connection: Any) -> None:
        """Closes a broken or outdated connection."""
        with self._lock:
            if connection not in self._all:
                return
            self._all.discard(connection)
            self._copied_before += connection.copied_bytes
            going = [connection]
            if connection.outdated and not connection.broken and not self._closed:
                self._lenders.append(connection)
                going = self._idle_lenders()
        for one in going:
            one.close()
        self._closed_one()

    def _idle_lenders(self) -> list[SessionConnection]:
        """Removes and returns the outdated connections whose lent buffers are gone, and those beyond the limit. The server still reads the buffers of the
        others in place."""
        self._lenders, before = [one for one in self._lenders if one.lent], self._lenders
        self._lenders = self._lenders[-LENDERS_MAX:]
        return [one for one in before if one not in self._lenders]

    def _drop_free(self, if_outdated: bool = False) -> None:
        """Closes the free connections, because their server has gone. With ``if_outdated``, closes only those that a fork has outdated."""
        for _ in range(len(self._free)):
            try:
                connection = self._free.popleft()
            except IndexError:
                return
            if if_outdated and not connection.outdated:
                self._free.append(connection)
            else:
                self._drop(connection)


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
    >>> import numpy as np
    >>> array = np.zeros((1, 64), np.float32)
    >>> client = nerite.connect()               # a server of this user, on this host
    >>> digits = client.model("digits")
    >>> out = digits(image=array)               # by name, or in the model's order: digits(array)
    >>> out["probabilities"]                    # or out.probabilities, or: label, probabilities = out

    Parameters
    ----------
    url : str or path
        ``http://host:port`` or ``grpc://host:port`` of any server of Triton's protocols, ``https://`` or ``grpcs://`` of one with TLS: the client speaks
        this protocol. ``unix:/path`` or a ``pathlib.Path`` of a session socket: it opens sessions. ``host:port`` of HTTP: it opens sessions if that server
        is on this host and has them, and speaks HTTP otherwise. ``fleet:name`` of a fleet: it opens sessions with replicas on this host, and speaks HTTP
        with the fleet's proxy on this host while there are none. Without an address, the fleet in ``NERITE_FLEET`` (its name, or the path of its file), or
        the sessions of this user's first server, and if there is none, ``http://localhost:8000``.
    session_socket : str
        The path of the server's session socket, if it is not the default one.
    server_uid : int
        A further user whose server is trusted on the session socket, in addition to this program's own user and root.
    token : str
        The secret of a token, if the server requires one (``--access-tokens-file``). By default ``NERITE_TOKEN``.
    repeat_lost : bool
        Whether a request is sent again if the server ended after the request was sent. Such a request may run twice. By default it raises
        ConnectionError, and the next request connects again.
    options
        Options of the clients ``nerite.http.InferenceServerClient`` or ``nerite.grpc.InferenceServerClient``. The server's certificate is
        checked against ``ssl_options={"ca_certs": "root.pem"}`` for HTTP, and ``root_certificates="root.pem"`` for gRPC. With ``buffers="region"`` or
        ``buffers="inline"`` there is no session. With a session socket as the address, the only options are
        ``buffers="auto"`` and ``buffers="lease"``. An unknown option raises TypeError.

    Tensors go through shared memory if possible: over a session (``client.transport`` is ``"session"``), or in leases or regions with HTTP
    and gRPC (``"lease"``, ``"region"``). Otherwise they are sent in the messages (``"inline"``).
    """
    if url is None and session_socket is None and (fleet := os.environ.get("NERITE_FLEET")):
        url = f"{_FLEET}{fleet}"
    if isinstance(url, str) and url.startswith(_FLEET):
        from nerite._fleet_client import FleetClient

        return FleetClient(url, session_socket, server_uid, token, repeat_lost, options)
    return Client(url, session_socket, server_uid, token, repeat_lost, options)


def _parts(url: Any) -> tuple[str, str, bool]:
    """Splits an address into protocol (``http``, ``grpc``, ``unix``, ``fleet``, or empty if the client chooses), place, and whether TLS is used. Both are empty
    without an address."""
    if url is None:
        return "", "", False
    if isinstance(url, os.PathLike):
        return "unix", os.fspath(url), False
    if not isinstance(url, str):
        raise TypeError(f"an address is a str such as http://host:port, or the path of a session socket; got {url!r}")
    if url.startswith("unix:"):
        return "unix", url[len("unix:") :].removeprefix("//"), False
    if url.startswith(_FLEET):
        return "fleet", url[len(_FLEET) :], False
    scheme, _, place = url.partition("://")
    if scheme not in _SCHEMES:
        if _HOST_AND_PORT.fullmatch(url):
            return "", url, False
        hint = f"unix:{url}" if url.startswith("/") else ""
        raise ValueError(
            f"'{url}' is not an address{'; did you mean ' + hint + '?' if hint else ''}; give host:port, http://host:port, grpc://host:port, https:// or grpcs:// for TLS, unix:/path of a session socket, or fleet:name"
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
