"""How are inferences run over a session without a thread, for asyncio?

All calls of an event loop share one session. The loop watches its socket, and each answer goes to the call that waits for it.

A call that is cancelled sends ``Cancel`` (docs/session.md). Its memory is used again only when the server has answered the call, because the model may
read and write the memory until then. If a request for memory was cancelled, its lease is kept for other calls. If the preparation of an inference was
cancelled, its handle is released.
"""

from __future__ import annotations

import array
import asyncio
import collections
import socket
from typing import Any, Callable, Optional, TypeVar

from tritonclient.utils import InferenceServerException

from nerite import _messages, _protobuf
from nerite._connection import (
    CALL_ID,
    CLIENT_CALL,
    CLIENT_DESCRIBE,
    CLIENT_INFER,
    CLIENT_PREPARE,
    CLIENT_RELEASE,
    ROOM_TRIES_MAX,
    SERVER_CALLED,
    SERVER_DESCRIBED,
    SERVER_ERROR,
    SERVER_ID,
    SERVER_INFERENCE,
    SERVER_MORE,
    SERVER_PREPARED,
    SLOTS_MAX,
    Call,
    Lost,
    SessionConnection,
    _failure,
    _field,
    _several,
    _whole,
    traced_call,
)
from nerite._messages import Metadata
from nerite._plans import Plan, Slot
from nerite._pool import Slab
from nerite._response import Response
from nerite._session import ANSWER_S, BORROW_BYTE_SIZE, CLIENT_BORROW, DESCRIPTORS_MAX, SERVER_LEASE, SessionLost, _close_all

T = TypeVar("T")
CLIENT_CANCEL = 9
# The most inferences of a loop in flight, cancelled ones included until they are answered. A session may have 256. Further ones wait.
IN_FLIGHT_MAX = 192
# The most packets that are read before the loop continues with other tasks.
READS_MAX = 32
# The most borrowed slabs that the pool has not taken yet.
SPARES_MAX = 2
CONTROL_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
# Called with the fields and the descriptors of an answer that nobody waits for.
GivenUp = Callable[[Any, Any], None]


class _NeedsSlab(Exception):
    """Memory must be borrowed first."""

    def __init__(self, byte_size: int):
        super().__init__(byte_size)
        self.byte_size = byte_size


class _Awaited:
    """A request whose last answer has not arrived."""

    __slots__ = ("future", "given_up", "lent", "is_inference")

    def __init__(self, future: asyncio.Future[Any], given_up: GivenUp, lent: Any, is_inference: bool):
        self.future = future
        self.given_up = given_up
        #: The lent buffers that the model reads.
        self.lent = lent
        self.is_inference = is_inference


class LoopConnection(SessionConnection):
    """The session of one event loop. The constructor connects, which blocks. After it, :meth:`begin` must be called on the loop."""

    def __init__(self, path: str, server_uid: Optional[int] = None, token: Optional[str] = None, answer_s: float = ANSWER_S):
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._awaited: dict[int, _Awaited] = {}
        # Packets that the socket did not take.
        self._unsent: collections.deque[bytes] = collections.deque()
        # Borrowed memory that the pool has not taken yet.
        self._spares: list[Slab] = []
        #: The number of calls that use it now.
        self.users = 0
        super().__init__(path, server_uid, token, answer_s)
        self._socket.setblocking(False)
        # The base class uses CALL_ID for calls of prepared inferences. The ids of this class begin after it.
        self._last_id = max(self._last_id, CALL_ID)
        self.send_packet = self._post  # type: ignore[assignment]

    def begin(self) -> None:
        """Makes the running loop watch the socket."""
        self._loop = asyncio.get_running_loop()
        self._borrowing = asyncio.Lock()
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._loop.add_reader(self._socket.fileno(), self._read_all)

    async def describe_async(self, model: str, version: str) -> Metadata:
        """The inputs and outputs of the model."""
        content = _protobuf.encode([(1, model), (2, version)])
        described, _ = await self._answered(CLIENT_DESCRIBE, content, SERVER_DESCRIBED, _dropped)
        return _messages.read_metadata(_field(described, 1))

    async def call_async(self, call: Call, key: Any) -> Response:
        """Runs one inference, as :meth:`SessionConnection.call`."""
        async with _Place(self._places) as place:
            plan = self.plans.get(key) if key is not None else None
            slot = None if plan is None else await self._slot_async(plan, call)
            if slot is not None:
                response = await self._call_slot(slot, call, key, place)
                if response is not None:
                    return response
                await place.taken_again()
            return await self._infer(call, key, place)

    async def finish(self) -> None:
        """Closes the session at the end of its loop."""
        self._break()

    def close(self) -> None:
        """Closes the session, from any thread."""
        loop = self._loop
        if loop is not None and asyncio._get_running_loop() is not loop and loop.is_running():
            try:
                loop.call_soon_threadsafe(self._break)
                return
            except RuntimeError:
                # The loop was closed meanwhile.
                pass
        self._break()

    # Internal steps.

    async def _call_slot(self, slot: Slot, call: Call, key: Any, place: _Place) -> Optional[Response]:
        """The response to a prepared inference. None if it must be sent as a plain request."""

        def given_up(fields: Any, descriptors: Any) -> None:
            _close_all(descriptors)
            if not fields.get(SERVER_MORE):
                # The model uses the memory until its last answer.
                slot.give_back()

        self._write(slot, call)
        content = traced_call(slot, call.trace)
        fields, descriptors = await self._first_answer(CLIENT_CALL, content, given_up, call.lent, place)
        if fields.get(SERVER_MORE):
            self._cancel(fields[SERVER_ID])
            given_up(fields, descriptors)
            raise _several(fields)
        if SERVER_CALLED in fields:
            return self._expected(slot)
        return self._settled(slot, call, key, (fields, descriptors))

    async def _infer(self, call: Call, key: Any, place: _Place) -> Response:
        """Sends a plain request. If memory for its outputs was lacking, and there is some now, sends it once more."""
        blocks = await self._with_room(lambda: self._place(call))
        for left in reversed(range(ROOM_TRIES_MAX)):
            try:
                return self._learned(call, key, await self._answer_to(call, blocks, place))
            except InferenceServerException as error:
                if not left or not self._may_resend(call, error):
                    raise
            await place.taken_again()
        raise AssertionError("the last try returned or raised")

    async def _answer_to(self, call: Call, blocks: Any, place: _Place) -> Optional[Response]:
        """The response to one plain request."""

        def given_up(fields: Any, descriptors: Any, _: Any = blocks) -> None:
            # Reading the response maps its leases. They are returned when the response is dropped.
            try:
                if SERVER_INFERENCE in fields:
                    self._read_inference(fields[SERVER_INFERENCE], descriptors)
            finally:
                _close_all(descriptors)

        fields, descriptors = await self._first_answer(CLIENT_INFER, self._message(call, blocks), given_up, call.lent, place)
        try:
            if fields.get(SERVER_MORE):
                self._cancel(fields[SERVER_ID])
                given_up(fields, descriptors)
                raise _several(fields)
            if SERVER_ERROR in fields:
                raise _failure(fields[SERVER_ERROR])
            return self._read_inference(fields[SERVER_INFERENCE], descriptors)
        finally:
            _close_all(descriptors)

    async def _slot_async(self, plan: Plan, call: Call) -> Optional[Slot]:
        """A free slot. None if the call must be a plain request."""
        self._note(plan)
        if plan.answer is None or plan.retired:
            return None
        idle = plan.idle()
        # Checked after the slot was found idle, as in the base class.
        if self.outdated:
            return None
        if idle is not None:
            return idle
        if self.slots >= SLOTS_MAX:
            self._retire_some(plan)
        if self.slots >= SLOTS_MAX:
            return None
        self.slots += 1
        plan.preparing += 1
        try:
            # The plan may be retired while memory is borrowed.
            made = await self._with_room(lambda: None if plan.answer is None else self._new_slot(plan, call))
            if made is None:
                self.slots -= 1
                return None
            slot, content = made

            def given_up(fields: Any, descriptors: Any, _: Any = slot) -> None:
                _close_all(descriptors)
                if SERVER_PREPARED in fields:
                    self._release(int(dict(_protobuf.decode(fields[SERVER_PREPARED])).get(1, 0)))

            prepared, _ = await self._answered(CLIENT_PREPARE, content, SERVER_PREPARED, given_up)
            self._kept(slot, prepared)
        except BaseException:
            self.slots -= 1
            raise
        finally:
            plan.preparing -= 1
        if plan.retired:
            # The model has changed meanwhile.
            self._retire(plan)
            return None
        return slot

    def _release(self, handle: int) -> None:
        try:
            self._transmit(_protobuf.encode([(CLIENT_RELEASE, _protobuf.encode([(1, _protobuf.varint(handle))]))]))
        except Lost:
            # The handle ended with the session.
            pass

    async def _with_room(self, step: Callable[[], T]) -> T:
        """The result of a step that takes memory from the pool."""
        try:
            return step()
        except _NeedsSlab:
            pass
        # One call at a time borrows a slab, because one slab is enough for many calls.
        async with self._borrowing:
            try:
                while True:
                    try:
                        return step()
                    except _NeedsSlab as need:
                        await self._borrow(need.byte_size)
            finally:
                self.pool.reserved.clear()

    async def _borrow(self, byte_size: int) -> None:
        def keep(fields: Any, descriptors: Any) -> None:
            try:
                if SERVER_LEASE in fields:
                    self._spares.append(Slab(*self._map(fields[SERVER_LEASE], descriptors, byte_size), owner=self))
                    if len(self._spares) > SPARES_MAX:
                        # Calls that were cancelled while they borrowed memory have left other slabs.
                        self._drop_slab(self._spares.pop(0))
            finally:
                _close_all(descriptors)

        self._return_held()
        content = _protobuf.encode([(BORROW_BYTE_SIZE, byte_size)])
        try:
            lease, descriptors = await self._answered(CLIENT_BORROW, content, SERVER_LEASE, keep)
        except InferenceServerException as error:
            if self._make_room(error):
                # The step that needs the memory requests it again.
                return
            raise InferenceServerException(f"the server lends no memory: {error.message()}") from error
        keep({SERVER_LEASE: lease}, descriptors)

    def _make_slab(self, byte_size: int) -> Slab:
        fitting = [slab for slab in self._spares if slab.byte_size >= byte_size]
        if not fitting:
            raise _NeedsSlab(byte_size)
        slab = min(fitting, key=lambda one: one.byte_size)
        self._spares.remove(slab)
        if self._borrowing.locked():
            # The step may need a further slab. Then it is repeated, and this slab must not be returned to make room for the other one.
            self.pool.reserved.add(slab)
        return slab

    async def _answered(self, call: int, content: bytes, expected: int, given_up: GivenUp) -> tuple[bytes, list[int]]:
        """The answer to a call that is no inference, with its descriptors."""
        try:
            fields, descriptors = await self._first_answer(call, content, given_up)
        except Lost as lost:
            # Only inferences must not be repeated.
            raise Lost(str(lost), sent=False) from lost
        if expected in fields:
            return fields[expected], descriptors
        _close_all(descriptors)
        if SERVER_ERROR in fields:
            raise _failure(fields[SERVER_ERROR])
        raise SessionLost("the answer is of another kind than the call")

    async def _first_answer(
        self, call: int, content: bytes, given_up: GivenUp, lent: Any = (), place: Optional[_Place] = None
    ) -> tuple[dict[int, Any], list[int]]:
        """The first answer to a call. If nobody waits for it any more, ``given_up`` gets it and all further answers."""
        self._last_id += 1
        call_id = self._last_id
        packet = _whole(call_id, call, content)
        if self.broken:
            raise Lost("the server has gone", sent=False)
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._transmit(packet)
        for one in lent:
            one.freeze()
        self._awaited[call_id] = _Awaited(future, given_up, lent, place is not None)
        if place is not None:
            place.keep()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The answer arrived just before. It may be the first of several.
                given_up(*future.result())
            if call_id in self._awaited and place is not None:
                self._cancel(call_id)
            raise

    def _cancel(self, call_id: int) -> None:
        """Notifies the server that nobody waits for the inference any more."""
        try:
            self._transmit(_protobuf.encode([(CLIENT_CANCEL, _protobuf.encode([(1, call_id)]))]))
        except Lost:
            # The server cancels everything at the end of a session.
            pass

    def _read_all(self) -> None:
        """Reads the packets that have arrived."""
        for _ in range(READS_MAX):
            try:
                flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                size, ancillary, flags, _ = self._socket.recvmsg_into([self._buffer], CONTROL_BYTES, flags)
            except BlockingIOError:
                return
            except OSError as error:
                return self._break(f"the server closed the connection before it answered: {error.strerror or error}")
            descriptors = _descriptors(ancillary)
            if not size or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                _close_all(descriptors)
                return self._break()
            try:
                fields = self._fields(bytes(memoryview(self._buffer)[:size]))
            except Lost:
                _close_all(descriptors)
                return
            self._heard(fields, descriptors)

    def _heard(self, fields: dict[int, Any], descriptors: list[int]) -> None:
        call_id = fields.get(SERVER_ID, 0)
        awaited = self._awaited.get(call_id)
        if awaited is None:
            return _close_all(descriptors)
        if not fields.get(SERVER_MORE):
            del self._awaited[call_id]
            self._ended(awaited)
        if awaited.future.done():
            awaited.given_up(fields, descriptors)
        else:
            awaited.future.set_result((fields, descriptors))

    def _ended(self, awaited: _Awaited) -> None:
        for one in awaited.lent:
            one.thaw()
        # A closed loop cannot wake a waiter.
        if awaited.is_inference and not awaited.future.get_loop().is_closed():
            self._places.release()

    def _post(self, packet: bytes) -> int:
        """Sends a packet now, or when the socket takes it."""
        if not self._unsent:
            try:
                return self._socket.send(packet)
            except BlockingIOError:
                assert self._loop is not None
                self._loop.add_writer(self._socket.fileno(), self._send_unsent)
        self._unsent.append(packet)
        return len(packet)

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                self._socket.send(self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            return self._break(f"the server has gone: {error.strerror or error}")
        assert self._loop is not None
        self._loop.remove_writer(self._socket.fileno())

    def _send(self, packet: bytes) -> None:
        if self._loop is None:
            return super()._send(packet)
        try:
            self._post(packet)
        except OSError as error:
            raise SessionLost(f"the session is lost: {error.strerror or error}") from error

    def _lost_here(self, why: str, sent: bool) -> Lost:
        self._break(why)
        return Lost(why, sent)

    def _break(self, why: str = "the server closed the connection before it answered") -> None:
        """Ends the session and all calls of the loop."""
        descriptor = self._socket.fileno()
        if descriptor >= 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
        super()._break()
        self._unsent.clear()
        awaited, self._awaited = list(self._awaited.values()), {}
        for one in awaited:
            self._ended(one)
            if not one.future.done() and not one.future.get_loop().is_closed():
                one.future.set_exception(Lost(why, sent=True))


class _Place:
    """The place of a call among those in flight. A cancelled call keeps it until the server has answered."""

    def __init__(self, places: asyncio.Semaphore):
        self._places = places
        self._is_own = False

    async def __aenter__(self) -> _Place:
        await self.taken_again()
        return self

    async def taken_again(self) -> None:
        """Takes a place for a further request of the call."""
        await self._places.acquire()
        self._is_own = True

    def keep(self) -> None:
        """The request was sent: its last answer gives the place back."""
        self._is_own = False

    async def __aexit__(self, *_: object) -> None:
        if self._is_own:
            self._is_own = False
            self._places.release()


def _dropped(_: Any, descriptors: Any) -> None:
    _close_all(descriptors)


def _descriptors(ancillary: Any) -> list[int]:
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return list(found)
