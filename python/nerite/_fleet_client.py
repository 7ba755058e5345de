"""How does a client of a fleet go from a replica on its host to the proxy, and back?

It has a client for each replica on this host, over sessions, and one for the proxy, over HTTP. Each thread uses one of them. If a replica has gone, a
request that was not sent to it goes through the proxy. The thread uses a replica again when the file names one, and one that failed after a pause. A
sequence stays with the server at which it began.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from typing import Any, Awaitable, Callable, Iterator, Optional, Sequence, TypeVar

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _fleet, _options, _parameters
from nerite._client import Client
from nerite._connection import Lost, SessionConnection, element_dtype
from nerite._datatypes import fixed_byte_size
from nerite._deadline import NEVER, Deadline, deadline_of
from nerite._loop_connection import LoopConnection
from nerite._messages import Metadata, Spec
from nerite._model import Model
from nerite._pool import Block
from nerite._response import Response
from nerite._session import ANSWER_S

T = TypeVar("T")
# The time between two looks at the fleet's file.
LOOK_S = 0.2
# For this time after a replica failed, it is not tried again, unless the file changes.
RETRY_S = 1.0
# The most sequences whose server is known. The one that began first is forgotten, and from then on its requests go where others go.
SEQUENCES_MAX = 1 << 14
# The most servers whose description of a model is kept.
SERVERS_MAX = 64
# In place of the path of a session socket: the proxy.
PROXY = ""


class Elsewhere(Exception):
    """The request belongs to a sequence of another server. It was not sent."""

    def __init__(self, path: str, who: str):
        super().__init__(who)
        self.path = path


class FleetModel(Model):
    """A model of a fleet. Replicas may describe it differently while a new version is rolled out."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self._of_server: dict[str, Metadata] = {}

    def _known(self, connection: Any) -> Optional[Metadata]:
        return None if self._metadata is None else self._of_server.get(connection.server_id)

    def _learned(self, found: Metadata, server_id: str) -> Metadata:
        # Without a description, the model has changed at one server at least.
        of_server = {} if self._metadata is None else dict(self._of_server)
        while len(of_server) >= SERVERS_MAX:
            del of_server[next(iter(of_server))]
        self._of_server = {**of_server, server_id: found}
        return super()._learned(found, server_id)

    def _call(self, connection: Any, given: Any, metadata: Optional[Metadata] = None) -> Any:
        parameters, sequence = given[3], given[5]
        if parameters or sequence is not None:
            checked = _parameters.checked(parameters, sequence) or {}
            if number := checked.get(_parameters.SEQUENCE_ID):
                self._client._check_sequence(self.name, number, bool(checked.get("sequence_start")), connection)
        return super()._call(connection, given, metadata)

    # The keys of plans contain the datatypes. Otherwise the quick path could write an array into the plan of a replica that takes another datatype.

    def _new_key(self, shapes: tuple[tuple[int, ...], ...]) -> Any:
        # In this order: a description that arrives in between replaces the dict, and the key with it.
        keys, wanted = self._keys, self._wanted
        key = keys[shapes] = (*super()._new_key(shapes), wanted)
        return key

    def _key(self, call: Any) -> Any:
        if (key := super()._key(call)) is None:
            return None
        return (*key, tuple((spec.name, None if spec.datatype == "BYTES" else element_dtype(spec.datatype)) for spec in call.metadata.inputs))


class Replica(Client):
    """The client of one replica on this host. It connects when it is used, so that a call's timeout includes connecting."""

    def __init__(self, fleet: FleetClient, path: str):
        self._fleet = fleet
        # Whether the replica is known to lend memory to this client.
        self._lends = False
        super().__init__(f"unix:{path}", None, fleet._server_uid, fleet._token, False, {})

    def _choose(self) -> None:
        self._session_path = self._address

    def _may_wait(self, in_thread: bool = True) -> bool:
        # The fleet's client knows the streams of all its servers.
        return self._fleet._may_wait(in_thread)

    def _open_another(self, deadline: Deadline, may_wait: Optional[bool]) -> Any:
        connection = super()._open_another(deadline, may_wait)
        if not self._lends:
            try:
                connection.limit(deadline)
                if (why_not := connection.refusal_of_memory()) is not None:
                    raise ConnectionError(f"a session needs memory of the server: {why_not}")
            except BaseException:
                self._drop(connection)
                raise
            self._lends = connection.is_alive()
        return connection

    async def _open_session(self, loop: asyncio.AbstractEventLoop) -> LoopConnection:
        if not self._lends:
            await loop.run_in_executor(self._threads(), lambda: self._put(self._take(deadline_of(ANSWER_S))))
        return await super()._open_session(loop)


class FleetClient(Client):
    """A client of a fleet, made by :func:`nerite.connect`."""

    _model_type = FleetModel

    @property
    def transport(self) -> str:
        """``session`` if this thread uses a replica on this host, ``inline`` if it uses the proxy."""
        return self._run(lambda connection: "session" if isinstance(connection, SessionConnection) else connection.transport)

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that this client has copied so far."""
        return self._copied_before + sum(one.copied_bytes for one in self._clients())

    @property
    def _where(self) -> str:
        return f"fleet:{self._address}"

    def close(self) -> None:
        """Closes the connections. Arrays stay valid."""
        super().close()
        for one in self._clients():
            one.close()

    # The steps that class Model uses.

    def _quick(self, key: Any, arrays: Sequence[np.ndarray], whole: Callable[[Any], Any]) -> Optional[Response]:
        return self._chosen()._quick(key, arrays, whole)

    def _run(self, call: Callable[[Any], T], deadline: Deadline = NEVER) -> T:
        client, repeats = self._chosen(), int(self._repeat_lost)
        while True:
            try:
                return client._run(call, deadline)
            except Elsewhere as other:
                client = self._client_of(other)
            except ConnectionError as error:
                repeats = self._repeats_after(client, error, repeats)
                client = self._proxy

    async def _run_async(self, call: Callable[[Any], Awaitable[T]]) -> T:
        client, repeats = self._chosen(), int(self._repeat_lost)
        while True:
            try:
                return await client._run_async(call)
            except Elsewhere as other:
                client = self._client_of(other)
            except ConnectionError as error:
                repeats = self._repeats_after(client, error, repeats)
                client = self._proxy

    def _stream_at(self, call: Callable[[Any], Iterator[T]], is_first: bool, deadline: Deadline = NEVER) -> Iterator[T]:
        client = self._chosen()
        while True:
            try:
                # HTTP has no streams.
                yield from (client if client is not self._proxy else self._stream_proxy())._stream_at(call, is_first, deadline)
                return
            except Elsewhere as other:
                client = self._client_of(other)
            except ConnectionError as error:
                self._repeats_after(client, error, 0)
                client = self._proxy

    def _lend(self, spec: Spec) -> Optional[Block]:
        byte_size = max(fixed_byte_size(spec.shape, spec.datatype) or 0, 1)
        return self._run(lambda connection: connection.lend(byte_size) if isinstance(connection, SessionConnection) else None)

    def _check_sequence(self, model: str, number: Any, starts: bool, connection: Any) -> None:
        """Notes where a sequence starts. Raises :class:`Elsewhere` for a later request of it that would go to another server."""
        here = getattr(connection, "path", PROXY), connection.server_id
        who = f"sequence {number!r} of model '{model}'"
        began = self._sequences.get((model, number))
        if starts:
            self._sequences[model, number] = here
            while len(self._sequences) > SEQUENCES_MAX:
                self._sequences.popitem(last=False)
        elif began is not None and began != here:
            if began[0] == here[0]:
                raise _gone(who, began[0])
            raise Elsewhere(began[0], who)

    # Internal steps.

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._look_at = 0.0
        # The number of the next choice of a thread. It begins anywhere, so that the clients of a host spread over its replicas.
        self._number = random.randrange(1 << 16)

    def _choose(self) -> None:
        if self._socket_path is not None:
            raise ValueError("session_socket does not go with a fleet, whose file names the sockets")
        self._path = _fleet.path_of(self._address)
        self._locals: dict[str, Replica] = {}
        # Until when each replica that failed is not tried again.
        self._lost: dict[str, float] = {}
        # The session socket and the server's id for each sequence.
        self._sequences: collections.OrderedDict[Any, tuple[str, str]] = collections.OrderedDict()
        # Changes when the threads must choose again.
        self._generation = 0
        self._places: Optional[_fleet.Places] = None
        self._take_over(*_fleet.read(self._path))

    def _take_over(self, places: _fleet.Places, stamp: _fleet.Stamp) -> None:
        """Uses the servers of the file from now on."""
        if not _options.has_session(self._options):
            places = places._replace(sessions=())
        before, self._places = self._places, places
        if before is None or before[:2] != places[:2]:
            if before is not None:
                self._copied_before += sum(one.copied_bytes for one in (self._proxy, self._streaming) if one is not None)
            # A lease or a region is memory of one server, and the proxy sends the next request to another one.
            options = {**self._options, "buffers": "inline"}
            self._proxy = Client(f"http://{places.http}", None, self._server_uid, self._token, False, options)
            self._streaming: Optional[Client] = None
        for path in set(self._locals) - set(places.sessions):
            self._retire(self._locals[path])
        self._lost.clear()
        self._generation += 1
        self._stamp = stamp

    def _chosen(self) -> Client:
        """The client that this thread uses now."""
        if time.monotonic() >= self._look_at:
            self._look()
        thread = self._thread
        try:
            if thread.generation == self._generation:
                return thread.client
        except AttributeError:
            # The thread's first choice.
            pass
        return self._choose_again(thread)

    def _choose_again(self, thread: Any) -> Client:
        with self._lock:
            self._check_open()
            assert self._places is not None, "_choose has read the file"
            present = getattr(thread, "client", None)
            path = _fleet.choice(self._places.sessions, self._lost, getattr(present, "_session_path", None), self._number)
            self._number += 1
            thread.client, thread.generation = self._proxy if path is None else self._local(path), self._generation
            return thread.client

    def _look(self) -> None:
        """Looks whether the file has changed, and whether a replica that failed may be tried again."""
        with self._lock:
            now = time.monotonic()
            if now < self._look_at:
                return
            self._look_at = now + LOOK_S
            if expired := [path for path, until in self._lost.items() if until <= now]:
                for path in expired:
                    del self._lost[path]
                self._generation += 1
            if _fleet.stamp_of(self._path) in (None, self._stamp):
                return
            try:
                self._take_over(*_fleet.read(self._path))
            except ConnectionError:
                # The servers that are known may still be there.
                pass

    def _repeats_after(self, client: Client, error: ConnectionError, repeats: int) -> int:
        """How often a request may still be repeated after this error. Raises the error if the request must not be sent again."""
        if isinstance(error, Lost) and error.sent:
            if not repeats:
                raise error
            return repeats - 1
        if not isinstance(client, Replica):
            raise error
        with self._lock:
            self._lost[client._address] = time.monotonic() + RETRY_S
            self._retire(client)
            self._generation += 1
        return repeats

    def _client_of(self, other: Elsewhere) -> Client:
        """The client of the server at which a sequence goes on."""
        with self._lock:
            if other.path in self._lost:
                raise _gone(other, other.path) from None
            return self._local(other.path) if other.path else self._proxy

    def _local(self, path: str) -> Replica:
        if path not in self._locals:
            self._locals[path] = Replica(self, path)
        return self._locals[path]

    def _retire(self, client: Replica) -> None:
        """Forgets a replica. Calls that use its connections end as usual."""
        if self._locals.get(client._address) is client:
            del self._locals[client._address]
            self._copied_before += client.copied_bytes
            client._drop_free()

    def _stream_proxy(self) -> Client:
        with self._lock:
            if self._streaming is None:
                assert self._places is not None, "_choose has read the file"
                self._streaming = Client(f"grpc://{self._places.grpc}", None, self._server_uid, self._token, False, {"buffers": "inline"})
            return self._streaming

    def _clients(self) -> list[Client]:
        with self._lock:
            return [one for one in (self._proxy, self._streaming, *self._locals.values()) if one is not None]


def _gone(who: object, path: str) -> InferenceServerException:
    return InferenceServerException(
        f"{who} began at the replica '{path}', which has gone or does not answer, and it cannot go on at another one: start it again"
    )
