"""What do the HTTP and the gRPC client do alike about managed buffers?"""

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
from nerite._session import ANSWER_S, Holding, LeaseTransport, Session, Untrusted, server_id_among
from nerite._transports import WAYS, Refused, RegionTransport, Transport
from nerite._trust import default_path

# A way that could not be opened, perhaps after a long wait, is not tried again for so long.
AGAIN_S = 5.0
# How Triton's servers say that they know no region of a name.
REGION_LOST = "Unable to find shared memory region"

Makers = Mapping[str, Callable[[], Transport]]


class Way:
    """One way for buffers to travel: not tried yet, open, or refused for good."""

    def __init__(self, name: str, make: Callable[[], Transport]):
        self.name = name
        self.why_not: Optional[str] = None
        # Why it could not be opened the last time, and when to try again.
        self._refusal, self._again_at = "", 0.0
        self._make = make
        self._opening = threading.Lock()
        self._transport: Optional[Transport] = None
        self.pool: Optional[Pool] = None

    def acquire(self, byte_size: int) -> Block:
        """A shared block. Raises :class:`Refused`."""
        if self.why_not is not None:
            raise Refused(self.why_not, final=True)
        try:
            return self._living().acquire(byte_size)
        except Refused as refusal:
            if refusal.final:
                self.why_not = str(refusal)
            raise

    def close(self) -> None:
        """Gives everything back to the server."""
        if self.pool is not None:
            self.pool.close()
        if self._transport is not None:
            self._transport.close()

    def retire_all(self) -> None:
        """Nothing made so far is lent again."""
        if self.pool is not None:
            self.pool.retire_all()

    def open(self) -> Transport:
        """The way itself. Raises :class:`Refused`."""
        if self.why_not is not None:
            raise Refused(self.why_not, final=True)
        try:
            self._living()
        except Refused as refusal:
            if refusal.final:
                self.why_not = str(refusal)
            raise
        assert self._transport is not None
        return self._transport

    def has_room(self, byte_size: int) -> bool:
        """Whether a block can be had without asking the server."""
        pool, transport = self.pool, self._transport
        return pool is not None and transport is not None and transport.is_alive() and pool.has_free(byte_size)

    def is_settled(self) -> bool:
        """Whether the server need not be asked whether this way can be had."""
        return self.why_not is not None or (self._transport is not None and self._transport.is_alive())

    def _living(self) -> Pool:
        pool, transport = self.pool, self._transport
        if pool is not None and transport is not None and transport.is_alive():
            return pool
        if time.monotonic() < self._again_at:
            raise Refused(self._refusal, final=False)
        # Not under the lock: it asks the server, and one thread's greenlets would wait there for each other.
        try:
            made = self._make()
        except Refused as refusal:
            self._refusal, self._again_at = str(refusal), time.monotonic() + AGAIN_S
            if isinstance(refusal, Untrusted):
                # Other ways go to the address that the program named, but whoever waits there should not go unnoticed.
                warnings.warn(str(refusal), RuntimeWarning, stacklevel=2)
            raise
        with self._opening:
            if self._transport is transport:
                self._transport = made
                self.pool = Pool(made.make, made.drop)
            else:
                made.close()
            assert self.pool is not None
            return self.pool


class Buffers:
    """One client's buffers: the ways they may travel, in order of preference."""

    def __init__(self, ways: Sequence[str], makers: Makers):
        self._names = tuple(ways)
        self._makers = dict(makers)
        self._closed = False
        self._start_afresh()
        _open_buffers.add(self)

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._ways = [Way(name, self._makers[name]) for name in self._names if name != "inline"]

    def lend(self, byte_size: int) -> Block:
        """A shared block, or one on the heap where sharing cannot be had."""
        return self.lend_shared(byte_size) or _buffers.heap_block(byte_size)

    def lend_shared(self, byte_size: int) -> Optional[Block]:
        """A shared block; None where the tensor is to travel inline; an error where that is not allowed."""
        return self._lend(byte_size)[1]

    def placing_session(self) -> Optional[Session]:
        """The session whose leases the server may choose for outputs; None where they are to come with the response."""
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
        """Whether outputs of these sizes (None: not known) find their places without a word to the server."""
        self._check_open()
        first = self._ways[0] if self._ways else None
        if first is None or first.why_not is not None:
            return first is None or first.name == "lease"
        return all(first.has_room(size) if size else first.is_settled() for size in byte_sizes)

    def way(self) -> str:
        """The way that a small buffer travels now."""
        return self._lend(1)[0]

    def refusals(self) -> dict[str, str]:
        """Why ways were given up for good."""
        return {way.name: way.why_not for way in self._ways if way.why_not is not None}

    def retire_all(self) -> None:
        """The server has lost what it knew, by a restart for example: nothing made so far is lent again."""
        for way in self._ways:
            way.retire_all()

    def census(self) -> dict[str, dict[str, int]]:
        """Slabs, bytes and lent blocks of each way in use."""
        return {way.name: way.pool.census() for way in self._ways if way.pool is not None}

    def close(self) -> None:
        """Tells the server to forget everything. Arrays keep their memory."""
        if self._closed:
            return
        self._closed = True
        # A forked child holds only copies of what is its parent's to give back.
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
    """The ways to try for a client's ``buffers=`` argument."""
    if buffers == "auto":
        return offered
    if buffers in offered:
        return (buffers,)
    raise InferenceServerException(f"buffers must be 'auto' or one of {', '.join(offered)}, got '{buffers}'")


class Placing:
    """Outputs that the server places: those of one request, or of all requests of a stream."""

    def __init__(self, session: Session):
        self.session = session
        self.key, self._tag = session.new_key()
        self.asked: set[str] = set()
        self._held: set[Holding] = set()
        self._ending = threading.Lock()
        self._given_up = False

    def is_missing(self, result: Any) -> bool:
        """Whether leases that the response names must be fetched, which waits for the server."""
        return not self.session.has([name for _, name, _, _ in self._leases(result)])

    def settle(self, result: Any) -> dict[str, Block]:
        """Where the outputs of one response lie. The leases are ours from here on."""
        leases = self._leases(result)
        try:
            self.session.fetch([name for _, name, _, _ in leases])
            with self._ending:
                # What was given up may be lent for something else already.
                if leases and self._given_up:
                    raise InferenceServerException("the response came after its outputs were given up")
                return {
                    output: self.session.placed(name, offset, byte_size, self._held)
                    for output, name, offset, byte_size in leases
                }
        except Refused as refusal:
            raise InferenceServerException(f"outputs lie in leases that cannot be had: {refusal}") from refusal

    def give_up(self) -> None:
        """No response will be looked at any more."""
        with self._ending:
            if not self._given_up:
                self._given_up = True
                self.session.abandon(self._tag, list(self._held))

    def _leases(self, result: Any) -> list[tuple[str, str, int, int]]:
        """Output, lease, offset and byte size of those outputs whose places the server chose."""
        return [one for one in result._named_places() if one[0] in self.asked]


def check_names(outputs: Sequence[Any]) -> None:
    """Refuses an output that is asked for twice: older servers write to the first of its places, newer ones refuse it in these
    words."""
    seen: set[str] = set()
    for output in outputs:
        if output.name() in seen:
            raise InferenceServerException(f"output '{output.name()}' already exists in request")
        seen.add(output.name())


class Flight:
    """What one request needs to stay alive until it has ended, and where its outputs land.

    An output of known size lands in a block of ours. For the others the server chooses leases of our session.
    """

    __slots__ = ("outputs", "placed", "inputs", "placing", "_buffers", "__weakref__")

    def __init__(self, inputs: Iterable[Any], outputs: Optional[Sequence[Any]], buffers: Buffers):
        self._buffers = buffers
        # Blocks, not handles: a handle may be released, or take a larger block, while the request is on its way.
        self.inputs = [one._managed_block() for one in inputs if isinstance(one, ManagedInput)]
        self.placed: dict[str, Block] = {}
        self.placing: Optional[Placing] = None
        self.outputs = outputs
        if outputs is not None and any(isinstance(one, ManagedOutput) for one in outputs):
            check_names(outputs)
            self.outputs = [self._place(one) if wants_place(one) else one for one in outputs]

    def _place(self, output: Any) -> Any:
        byte_size = output.byte_size()
        if byte_size == 0:
            # There is nothing to write.
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
        """Whether the response names leases that must be fetched, which waits for the server."""
        return self.placing is not None and self.placing.is_missing(result)

    def settle(self, result: Any) -> dict[str, Block]:
        """Where the outputs of the response lie."""
        if self.placing is None:
            return self.placed
        try:
            placed = {**self.placed, **self.placing.settle(result)}
        except BaseException:
            self.give_up()
            raise
        # From here on the arrays alone keep the session.
        self.placing = None
        return placed

    def give_up(self) -> None:
        """The response will not be looked at."""
        placing, self.placing = self.placing, None
        if placing is not None:
            placing.give_up()

    def lost(self, error: BaseException, is_answer: Callable[[BaseException], bool]) -> None:
        """The request failed. Unless the server itself said so, it may yet write to the outputs: they are not lent again."""
        if REGION_LOST in str(error):
            self._buffers.retire_all()
            self._say_why(error)
        if not is_answer(error):
            self.give_up()
            for block in self.placed.values():
                block.slab.retired = True

    def _say_why(self, error: BaseException) -> None:
        """A server that does not know a lease cannot know that it was one, and advises to register it."""
        # Inputs that travel by other ways have no block.
        sessions = [one.slab.keeper for one in (*self.inputs, *self.placed.values()) if one is not None]
        if self.placing is not None:
            sessions.append(self.placing.session)
        why = next((why for one in sessions if isinstance(one, Session) and (why := one.why_ended()) is not None), None)
        if why is not None and isinstance(error, InferenceServerException):
            error._msg = f"the session that lent the request's memory has ended: {why}; its buffers are lost, make new ones"


def placing_for(buffers: Buffers, before: Optional[Placing]) -> Optional[Placing]:
    """The placing that further outputs go with; None where they come inside the response."""
    if before is not None and before.session.is_alive():
        return before
    session = buffers.placing_session()
    return None if session is None else Placing(session)


class PlacedResult:
    """The part of an ``InferResult`` that finds outputs in managed buffers; the same for both protocols."""

    _placed: Mapping[str, Block] = {}

    @classmethod
    def unsettled(cls, result: Any) -> Any:
        """tritonclient's result as one of ours, which does not know yet where its outputs were placed."""
        made = cls.__new__(cls)
        made.__dict__.update(result.__dict__)
        return made

    @classmethod
    def of(cls, result: Any, flight: Flight) -> Any:
        """tritonclient's result as one that knows where its outputs were placed."""
        made = cls.unsettled(result)
        made._placed = flight.settle(made)
        return made

    def _named_places(self) -> list[tuple[str, str, int, int]]:
        """Output, region, offset and byte size of the outputs for which the response says where they lie."""
        raise NotImplementedError

    def as_numpy(self, name: str) -> Optional[np.ndarray]:
        """The output as an array; None if the response has none of that name.

        A placed output of fixed element size is a writable view on the shared memory it was written to, and keeps that memory
        for as long as the array lives. Other outputs are as tritonclient gives them: those of fixed element size are read-only.
        """
        block = self._placed.get(name)
        if block is None:
            return super().as_numpy(name)  # type: ignore[misc]
        described = self._described(name)
        return None if described is None else _buffers.view(block, *described)

    def _described(self, name: str) -> Optional[tuple[tuple[int, ...], str]]:
        """The shape and datatype that the response gives for an output."""
        raise NotImplementedError


class Door:
    """A client as its buffers reach it: weakly, for it holds them, except while it says good-bye."""

    def __init__(self, client: Any):
        self._weak = weakref.ref(client)
        self._leaving: Optional[Any] = None

    def register(self, name: str, key: str, byte_size: int) -> None:
        """Makes a region known to the server."""
        self._client().register_system_shared_memory(name, key, byte_size)

    def unregister(self, name: str) -> None:
        """Lets the server forget a region, without waiting long."""
        self._client()._unregister_soon(name)

    def server_id(self) -> Optional[str]:
        """What the server calls itself in its metadata; None if it cannot be asked."""
        return self._client()._ask_server_id()

    def server_is_away(self, error: BaseException) -> bool:
        """Whether a registration failed for want of a server."""
        return bool(self._client()._server_is_away(error))

    def leave(self, client: Any, buffers: Buffers) -> None:
        """Closes the buffers of the client, which may be in its last moments: in a cycle the collector has cut weak references
        by then."""
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
    """The part of an ``InferenceServerClient`` that is the same for both protocols."""

    _buffers: Optional[Buffers] = None
    _door: Door
    # Whether there is a socket to look at, as far as the client was made after its server.
    _may_have_session = False
    # Those that the client has what it takes for.
    _ways_offered: tuple[str, ...] = WAYS
    # How long an answer from the session socket may take.
    _answer_s = ANSWER_S

    def register_input_tensor_with_shared_memory(
        self, shape: Sequence[int], datatype: str, byte_size: Optional[int] = None
    ) -> TensorBuffer:
        """A buffer that fits a tensor, in memory that the server reads in place where that can be had.

        Parameters
        ----------
        shape : sequence of int
            The tensor's dimensions, all known.
        datatype : str
            The datatype as the protocol names it, ``"FP32"`` for example.
        byte_size : int
            For BYTES: the bytes to hold ready. A longer tensor takes a larger buffer when it is copied in.

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
            What ``register_input_tensor_with_shared_memory`` returned.
        data : array_like or bytes
            ``bytes``, ``bytearray`` and ``memoryview`` are the tensor's bytes as they travel. Anything else is its elements: a
            numpy array, what speaks DLPack (on the host), ``__array__`` or the buffer protocol, or nested lists of numbers or
            texts. An array of another datatype is converted where nothing can be lost, and refused otherwise. Python's own
            numbers are taken where the datatype has them; floating-point datatypes round them.

        To copy nothing at all, write to ``handle.as_numpy()``.
        """
        _buffers.check_handle(handle).copy_from(data)

    @property
    def buffer_transport(self) -> str:
        """How managed buffers reach the server: ``lease``, ``region`` or ``inline``. Asks the server if need be."""
        return self._lender().way()

    def _open_buffers(
        self, url: str, ways: Sequence[str], session_socket: Optional[str], server_uid: Optional[int]
    ) -> None:
        self._may_have_session = "lease" in ways and os.path.exists(session_socket or default_path())
        self._door = Door(self)
        door, answer_s = self._door, self._answer_s
        makers: Makers = {
            "lease": lambda: LeaseTransport(
                session_socket or default_path(), url, session_socket is not None, door.server_id, answer_s, server_uid
            ),
            "region": lambda: RegionTransport(url, door.register, door.unregister, door.server_is_away),
        }
        self._buffers = Buffers(ways, makers)

    def _lender(self) -> Buffers:
        if self._buffers is None:
            raise InferenceServerException("the client is closed")
        return self._buffers

    def _flight(self, inputs: Iterable[Any], outputs: Optional[Sequence[Any]]) -> Flight:
        return Flight(inputs, outputs, self._lender())

    def _extensions(self) -> Sequence[str]:
        """The extensions in the server's metadata."""
        raise NotImplementedError

    def _ask_server_id(self) -> Optional[str]:
        try:
            return server_id_among(self._extensions())
        except Exception:  # noqa: BLE001 - restricted, or nobody there: other signs decide
            return None

    def _close_buffers(self) -> None:
        # Not there if tritonclient's constructor failed.
        if self._buffers is not None:
            self._door.leave(self, self._buffers)
