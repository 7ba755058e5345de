"""How do the HTTP and the gRPC client use managed buffers?"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _buffers
from nerite._buffers import ManagedInput, ManagedOutput, TensorBuffer, wants_place
from nerite._pool import Block, Pool
from nerite._session import ANSWER_S, HeldLease, LeaseTransport, NoSocket, Session, Untrusted, server_id_among
from nerite._transports import WAYS, Refused, RegionTransport, Transport, port_of
from nerite._trust import paths_of

# A way that could not be opened, perhaps after a long wait, is not tried again for this time.
AGAIN_S = 5.0
# The text with which Triton's servers say that a region does not exist.
REGION_LOST = "Unable to find shared memory region"
# The text of this client, if that region was a lease of a session that has ended.
LENDER_ENDED = "the session that lent the request's memory has ended"

Makers = Mapping[str, Callable[[], Transport]]


class TransportPool:
    """One way of sending buffers. It is open, permanently refused, or not tried yet."""

    def __init__(self, name: str, make: Callable[[], Transport], is_only: bool = False):
        self.name = name
        self._is_only = is_only
        self.why_not: Optional[str] = None
        # Why the last attempt failed, and when to try again.
        self._refusal, self._again_at = "", 0.0
        self._make = make
        self._opening = threading.Lock()
        self._transport: Optional[Transport] = None
        self.pool: Optional[Pool] = None
        # Pools that a fork has outdated, while some of their blocks are in use.
        self._outdated: list[Pool] = []

    def acquire(self, byte_size: int) -> Block:
        """A shared block. Raises :class:`Refused`."""
        pool = self._living()
        try:
            return pool.acquire(byte_size)
        except Refused as refusal:
            if refusal.final:
                self.why_not = str(refusal)
            raise

    def close(self) -> None:
        """Returns all memory to the server."""
        outdated, self._outdated = self._outdated, []
        for pool in outdated if self.pool is None else (*outdated, self.pool):
            pool.close()
        if self._transport is not None:
            self._transport.close()

    def retire_all(self) -> None:
        """The memory that exists now is not lent again."""
        for pool in self._outdated if self.pool is None else (*self._outdated, self.pool):
            pool.retire_all()

    def open(self) -> Transport:
        """Opens the way. Raises :class:`Refused`."""
        self._living()
        assert self._transport is not None
        return self._transport

    def has_room(self, byte_size: int) -> bool:
        """Whether a block is available without a request to the server."""
        pool, transport = self.pool, self._transport
        return pool is not None and not pool.outdated and transport is not None and transport.is_alive() and pool.has_free(byte_size)

    def is_settled(self) -> bool:
        """Whether it is known without a request to the server that this way can or cannot be used."""
        return self.why_not is not None or (self._transport is not None and self._transport.is_alive())

    def is_lost(self) -> bool:
        """Whether this way was open, and its server has ended it."""
        return self._transport is not None and not self._transport.is_alive()

    def _living(self) -> Pool:
        if self.why_not is not None:
            raise Refused(self.why_not, final=True)
        pool, transport = self.pool, self._transport
        if pool is not None and not pool.outdated and transport is not None and transport.is_alive():
            return pool
        if time.monotonic() < self._again_at:
            raise Refused(self._refusal, final=False)
        # This sends a request, so it is done without the lock: greenlets of one thread would block each other.
        try:
            made = self._make()
        except Refused as refusal:
            self._note(refusal)
            if isinstance(refusal, Untrusted):
                # Other ways use the address that the program named, so they are safe. But the user should know of a foreign server at the
                # socket.
                warnings.warn(str(refusal), RuntimeWarning, stacklevel=2)
            raise
        with self._opening:
            if self._transport is transport:
                before, self._transport = self.pool, made
                pool = self.pool = Pool(made.make, made.drop)
            else:
                made.close()
                before, pool = None, self.pool
            assert pool is not None
        self._drop_outdated(before)
        return pool

    def _drop_outdated(self, before: Optional[Pool]) -> None:
        """Drops the memory of outdated pools that is not in use any more. If the session of the pool ``before`` has ended without a fork, the server has
        its memory back already."""
        if before is not None and before.outdated:
            self._outdated.append(before)
        for pool in list(self._outdated):
            pool.trim()
            if not pool.census()["slabs"] and pool in self._outdated:
                self._outdated.remove(pool)

    def _note(self, refusal: Refused) -> None:
        """Notes why the way could not be opened."""
        has_no_socket = isinstance(refusal, NoSocket)
        # A way that was open may work again after a restart of the server. A missing socket is not final for the only way, because the server may be
        # started later.
        if refusal.final and self._transport is None and not (has_no_socket and self._is_only):
            self.why_not = str(refusal)
        # Checking for a socket takes no time, so the next buffer tries again at once.
        self._refusal, self._again_at = str(refusal), 0.0 if has_no_socket else time.monotonic() + AGAIN_S


class Buffers:
    """The buffers of one client: the ways of sending them, in order of preference."""

    def __init__(self, ways: Sequence[str], makers: Makers):
        self._names = tuple(ways)
        self._makers = dict(makers)
        self._closed = False
        self._start_afresh()
        _open_buffers.add(self)

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._ways = [TransportPool(name, self._makers[name], len(self._names) == 1) for name in self._names if name != "inline"]

    def lend(self, byte_size: int) -> Block:
        """A shared block, or one on the heap if sharing is not possible."""
        return self.lend_shared(byte_size) or _buffers.heap_block(byte_size)

    def lend_shared(self, byte_size: int) -> Optional[Block]:
        """A shared block. None if the tensor is sent inline. Raises an error if that is not allowed."""
        return self._lend(byte_size)[1]

    def placing_session(self) -> Optional[Session]:
        """The session in whose leases the server may place outputs. None if outputs come with the response."""
        self._check_open()
        for way in self._ways:
            try:
                transport = way.open() if way.name == "lease" else None
            except Refused:
                continue
            if isinstance(transport, LeaseTransport):
                return transport.session()
        return None

    def is_at_hand(self, byte_sizes: Iterable[Optional[int]]) -> bool:
        """Whether memory for outputs of these sizes (None: not known) is available without a request to the server."""
        self._check_open()
        first = self._ways[0] if self._ways else None
        if first is None or first.why_not is not None:
            return first is None or first.name == "lease"
        return all(first.has_room(size) if size else first.is_settled() for size in byte_sizes)

    def has_lost(self) -> bool:
        """Whether the way that is tried first was open, and its server has ended it."""
        return bool(self._ways) and self._ways[0].is_lost()

    def way(self) -> str:
        """The way in which a small buffer is sent now."""
        return self._lend(1)[0]

    def refusals(self) -> dict[str, str]:
        """The reasons why ways were refused permanently."""
        return {way.name: way.why_not for way in self._ways if way.why_not is not None}

    def retire_all(self) -> None:
        """No present memory is lent again, because the server has lost it, for example by a restart."""
        for way in self._ways:
            way.retire_all()

    def census(self) -> dict[str, dict[str, int]]:
        """The numbers of slabs, bytes and lent blocks of each way in use."""
        return {way.name: way.pool.census() for way in self._ways if way.pool is not None}

    def close(self) -> None:
        """Releases all memory at the server. Arrays keep theirs."""
        if self._closed:
            return
        self._closed = True
        # A forked child must not release memory of its parent.
        if os.getpid() == self._pid:
            for way in self._ways:
                way.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceServerException("the client is closed")
        if os.getpid() != self._pid:
            self._start_afresh()

    def _lend(self, byte_size: int) -> tuple[str, Optional[Block]]:
        self._check_open()
        refusals = []
        for way in self._ways:
            try:
                return way.name, way.acquire(byte_size)
            except Refused as refusal:
                refusals.append(f"{way.name}: {refusal}")
        if "inline" not in self._names:
            raise InferenceServerException(f"no memory to share with the server; {'; '.join(refusals)}")
        return "inline", None


_open_buffers: weakref.WeakSet[Buffers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for buffers in list(_open_buffers):
        buffers.close()


def chosen_ways(buffers: str, offered: tuple[str, ...]) -> tuple[str, ...]:
    """The ways to try for the argument ``buffers=`` of a client."""
    if buffers == "auto":
        return offered
    if buffers in offered:
        return (buffers,)
    raise InferenceServerException(f"buffers must be 'auto' or one of {', '.join(offered)}, got '{buffers}'")


class LeasedOutputs:
    """Outputs that the server places in leases: the outputs of one request, or of all requests of a stream."""

    def __init__(self, session: Session):
        self.session = session
        self.key, self._tag = session.new_key()
        self.requested: set[str] = set()
        self._held: set[HeldLease] = set()
        self._ending = threading.Lock()
        self._given_up = False

    def is_missing(self, result: Any) -> bool:
        """Whether leases in the response must be fetched, which blocks."""
        return not self.session.has([name for _, name, _, _ in self._leases(result)])

    def settle(self, result: Any) -> dict[str, Block]:
        """The blocks of the outputs of one response. The leases belong to this client from now on."""
        leases = self._leases(result)
        try:
            self.session.fetch([name for _, name, _, _ in leases])
            with self._ending:
                # After `give_up` the server may have lent the leases again already.
                if leases and self._given_up:
                    raise InferenceServerException("the response came after its request was given up")
                return {
                    output: self.session.placed(name, offset, byte_size, self._held)
                    for output, name, offset, byte_size in leases
                }
        except Refused as refusal:
            raise InferenceServerException(f"the leases with the outputs cannot be fetched: {refusal}") from refusal

    def give_up(self) -> None:
        """Notes that no further response will be read."""
        with self._ending:
            if not self._given_up:
                self._given_up = True
                self.session.abandon(self._tag, list(self._held))

    def _leases(self, result: Any) -> list[tuple[str, str, int, int]]:
        """Output, lease, offset and byte size of the outputs that the server placed."""
        return [one for one in result._named_places() if one[0] in self.requested]


def check_names(outputs: Sequence[Any]) -> None:
    """Refuses an output that is requested twice. Older servers would write to the first place. Newer ones refuse it with this text."""
    seen: set[str] = set()
    for output in outputs:
        if output.name() in seen:
            raise InferenceServerException(f"output '{output.name()}' already exists in request")
        seen.add(output.name())


class PendingRequest:
    """The memory that a request keeps until it has ended, and the places of its outputs.

    The server writes an output of known size to a block of this client. For other outputs, it chooses leases of the session.
    """

    __slots__ = ("outputs", "placed", "inputs", "placing", "_buffers", "__weakref__")

    def __init__(self, inputs: Iterable[Any], outputs: Optional[Sequence[Any]], buffers: Buffers):
        self._buffers = buffers
        # The blocks are kept, because their handle may be released or take a larger block during the request.
        self.inputs = [one._managed_block() for one in inputs if isinstance(one, ManagedInput)]
        self.placed: dict[str, Block] = {}
        self.placing: Optional[LeasedOutputs] = None
        self.outputs = outputs
        if outputs is not None and any(isinstance(one, ManagedOutput) for one in outputs):
            check_names(outputs)
            self.outputs = [self._place(one) if wants_place(one) else one for one in outputs]

    def _place(self, output: Any) -> Any:
        byte_size = output.byte_size()
        if byte_size == 0:
            # An output without bytes needs no memory.
            return output
        if byte_size is None:
            self.placing = placing_for(self._buffers, self.placing)
            return output if self.placing is None else output._placed_for(self.placing)
        block = self._buffers.lend_shared(byte_size)
        if block is None:
            return output
        self.placed[output.name()] = block
        return output._placed_in(block)

    def is_missing(self, result: Any) -> bool:
        """Whether leases in the response must be fetched, which blocks."""
        return self.placing is not None and self.placing.is_missing(result)

    def settle(self, result: Any) -> dict[str, Block]:
        """The blocks of the outputs of the response."""
        if self.placing is None:
            return self.placed
        try:
            placed = {**self.placed, **self.placing.settle(result)}
        except BaseException:
            self.give_up()
            raise
        # From now on only the arrays keep the session alive.
        self.placing = None
        return placed

    def give_up(self) -> None:
        """Notes that the response will not be read."""
        placing, self.placing = self.placing, None
        if placing is not None:
            placing.give_up()

    def lost(self, error: BaseException, is_answer: Callable[[BaseException], bool]) -> None:
        """Handles a failed request. If the error is not the server's answer, the server may still write to the outputs, so they are not
        lent again."""
        if REGION_LOST in str(error):
            self._buffers.retire_all()
            self._say_why(error)
        if not is_answer(error):
            self.give_up()
            for block in self.placed.values():
                block.slab.retired = True

    def _say_why(self, error: BaseException) -> None:
        """Explains an unknown lease: the server's own error would advise to register a region."""
        # Inputs that are sent in other ways have no block.
        sessions = [one.slab.owner for one in (*self.inputs, *self.placed.values()) if one is not None]
        if self.placing is not None:
            sessions.append(self.placing.session)
        why = next((why for one in sessions if isinstance(one, Session) and (why := one.why_ended()) is not None), None)
        if why is not None and isinstance(error, InferenceServerException):
            error._msg = f"{LENDER_ENDED}: {why}; its buffers are lost, make new ones"


def placing_for(buffers: Buffers, before: Optional[LeasedOutputs]) -> Optional[LeasedOutputs]:
    """The placing for further outputs. None if outputs come inside the response."""
    if before is not None and before.session.is_alive() and not before.session.outdated:
        return before
    session = buffers.placing_session()
    return None if session is None else LeasedOutputs(session)


class PlacedResult:
    """The part of an ``InferResult`` for outputs in managed buffers, which both protocols share."""

    _placed: Mapping[str, Block] = {}

    @classmethod
    def unsettled(cls, result: Any) -> Any:
        """Makes a ``tritonclient`` result one of this class, without the places of its outputs."""
        made = cls.__new__(cls)
        made.__dict__.update(result.__dict__)
        return made

    @classmethod
    def of(cls, result: Any, pending: PendingRequest) -> Any:
        """Makes a ``tritonclient`` result one of this class, with the places of its outputs."""
        made = cls.unsettled(result)
        made._placed = pending.settle(made)
        return made

    def _named_places(self) -> list[tuple[str, str, int, int]]:
        """Output, region, offset and byte size of the outputs whose place is in the response."""
        raise NotImplementedError

    def as_numpy(self, name: str) -> Optional[np.ndarray]:
        """The output as an array. None if the response has no output of that name.

        If the output is in shared memory and its elements have a fixed size, the array is a writable view on that memory, and keeps the
        memory as long as it lives. Other outputs are as in tritonclient. Those with elements of fixed size are read-only.
        """
        block = self._placed.get(name)
        if block is None:
            return super().as_numpy(name)  # type: ignore[misc]
        described = self._described(name)
        return None if described is None else _buffers.view(block, *described)

    def _described(self, name: str) -> Optional[tuple[tuple[int, ...], str]]:
        """The output's shape and datatype in the response."""
        raise NotImplementedError


class WeakClient:
    """The client for its buffers. The reference is weak, because the client holds the buffers. It is strong only while the
    client is being closed."""

    def __init__(self, client: Any):
        self._weak = weakref.ref(client)
        self._leaving: Optional[Any] = None

    def register(self, name: str, key: str, byte_size: int) -> None:
        """Registers a region at the server, within the deadline of the call that needs it."""
        self._client()._register_soon(name, key, byte_size)

    def unregister(self, name: str) -> None:
        """Unregisters a region, with a short timeout."""
        self._client()._unregister_soon(name)

    def server_id(self) -> Optional[str]:
        """The server's id in its metadata. None if the metadata is not available."""
        return self._client()._fetch_server_id()

    def server_is_away(self, error: BaseException) -> bool:
        """Whether a registration failed because the server is not reachable."""
        return bool(self._client()._server_is_away(error))

    def leave(self, client: Any, buffers: Buffers) -> None:
        """Closes the buffers of the client. The client may be in its finalizer: if it is in a reference cycle, the garbage collector has
        cleared weak references already."""
        self._leaving = client
        try:
            buffers.close()
        finally:
            self._leaving = None

    def _client(self) -> Any:
        client = self._leaving or self._weak()
        if client is None:
            raise ReferenceError("the client is gone")
        return client


class ManagedClient:
    """The part of an ``InferenceServerClient`` that both protocols share."""

    _buffers: Optional[Buffers] = None
    _weak_client: WeakClient
    # The path of the session socket, if leases may be used.
    #: Where the server's session socket can be.
    _session_paths: Sequence[str] = ()
    # The ways that this client supports.
    _ways_offered: tuple[str, ...] = WAYS
    # The timeout of an answer from the session socket.
    _answer_s = ANSWER_S

    def register_input_tensor_with_shared_memory(
        self, shape: Sequence[int], datatype: str, byte_size: Optional[int] = None
    ) -> TensorBuffer:
        """Makes a buffer for a tensor, in memory that the server reads in place if possible.

        Parameters
        ----------
        shape : sequence of int
            The tensor's dimensions. All must be known.
        datatype : str
            The datatype in the protocol, for example ``"FP32"``.
        byte_size : int
            For BYTES: the size of the buffer. A longer tensor gets a larger buffer when it is copied.

        Returns
        -------
        TensorBuffer
            The handle. Its first content is undefined.
        """
        return TensorBuffer(self._lender(), shape, datatype, byte_size)

    def copy_to_shared_memory(self, handle: TensorBuffer, data: Any) -> None:
        """Copies a tensor of the handle's shape into its buffer. BYTES tensors are serialised in place.

        Parameters
        ----------
        handle : TensorBuffer
            The return value of ``register_input_tensor_with_shared_memory``.
        data : array_like or bytes
            ``bytes``, ``bytearray`` and ``memoryview`` are the serialised bytes of the tensor. Any other value is its elements: a numpy
            array, an object with DLPack, ``__array__``, the buffer protocol or Arrow's C interfaces, or nested lists of numbers or
            strings. An array of another datatype is converted if no value can be lost, and refused otherwise. A whole number of Python's
            is accepted if the datatype represents it exactly. A floating-point datatype also accepts Python's floats. It rounds them, but
            refuses a float that would become infinite or 0.

        To avoid the copy, write to ``handle.as_numpy()``.
        """
        _buffers.check_handle(handle).copy_from(data)

    @property
    def buffer_transport(self) -> str:
        """How managed buffers are sent to the server: ``lease``, ``region`` or ``inline``. Sends a request if that is not known yet."""
        return self._lender().way()

    def _open_buffers(
        self, url: str, ways: Sequence[str], session_socket: Optional[str], server_uid: Optional[int]
    ) -> None:
        self._session_paths = () if "lease" not in ways else (session_socket,) if session_socket else paths_of(port_of(url))
        self._weak_client = WeakClient(self)
        weak_client, answer_s = self._weak_client, self._answer_s
        makers: Makers = {
            "lease": lambda: LeaseTransport(
                url, session_socket or None, weak_client.server_id, answer_s, server_uid, getattr(self, "_token", None)
            ),
            "region": lambda: RegionTransport(url, weak_client.register, weak_client.unregister, weak_client.server_is_away),
        }
        self._buffers = Buffers(ways, makers)

    def _lender(self) -> Buffers:
        if self._buffers is None:
            raise InferenceServerException("the client is closed")
        return self._buffers

    def _pending_request(self, inputs: Iterable[Any], outputs: Optional[Sequence[Any]]) -> PendingRequest:
        return PendingRequest(inputs, outputs, self._lender())

    def _extensions(self) -> Sequence[str]:
        """The extensions in the server's metadata."""
        raise NotImplementedError

    def _fetch_server_id(self) -> Optional[str]:
        try:
            return server_id_among(self._extensions())
        except Exception:  # noqa: BLE001 - restricted, or no server answers: /proc decides
            return None

    def _close_buffers(self) -> None:
        # The attribute is missing if tritonclient's constructor failed.
        if self._buffers is not None:
            self._weak_client.leave(self, self._buffers)
