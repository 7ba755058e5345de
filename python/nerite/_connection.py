"""How are inferences run over a session, by one thread at a time?

A *plan* is a request with known shapes: a model, its inputs and the requested outputs. Each of its *slots* has memory for the inputs,
memory for the outputs, and a handle of the server (``Prepare`` in docs/session.md). A call takes a free slot, writes the inputs, sends six
bytes and receives four. A slot is used again when no array refers to its outputs any more, as the count of references shows.

After a fork no slot is used again, because the child may have arrays over its outputs, which this count does not include. The client continues
with another session (_forks.py).

The first call of a plan is a plain request (``Infer``), because its answer contains the sizes of the outputs. Calls are always plain if the
size of an output cannot be known beforehand (BYTES, or shapes that depend on values), or if they have more than tensors.
"""

from __future__ import annotations

import itertools
import socket
import struct
import weakref
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _datatypes, _messages, _protobuf
from nerite._arrays import is_brain, output
from nerite._calls import CALL_ID, CALLED, CALLED_TOGETHER, CLIENT_CALL, CLIENT_ID, SERVER_ANSWERS, SERVER_CALLED, SERVER_ID, together
from nerite._deadline import NEVER, Deadline
from nerite._messages import Answer, Metadata, Spec, Window
from nerite._plans import BrainSlot, Plan, Slot, _references
from nerite._pool import FREE_BYTES_MAX, Block, Pool, Slab
from nerite._response import Head, Response
from nerite._session import ANSWER_S, PACKET_BYTES_MAX, HeldLease, Session, SessionLost, _close_all
from nerite._trace import Trace
from nerite._transports import Refused

# Fields of session.proto that are used here.
CLIENT_INFER, CLIENT_PREPARE, CLIENT_RELEASE, CLIENT_DESCRIBE = 8, 13, 15, 16
SERVER_MORE, SERVER_ERROR, SERVER_INFERENCE, SERVER_PREPARED, SERVER_DESCRIBED = 3, 4, 9, 12, 15
INFER_TRACE = CALL_TRACE = 3
INFERENCE_RESPONSE, INFERENCE_PLACED = 1, 2
PLACED_OUTPUT, PLACED_LEASE, PLACED_OFFSET, PLACED_BYTE_SIZE = 1, 2, 3, 4
# The error code of a handle that does not exist any more. The request was not run.
STALE = 9
# The most slots of one session (the server's limit of handles, minus some that are being replaced) and plans.
SLOTS_MAX, PLANS_MAX = 240, 64
# The prepared calls of a session keep at most this many bytes, and at most 1/SLOT_PARTS of its quota. The pool keeps at most 1/FREE_PARTS of the quota as
# free memory. The rest is for outputs that the server places.
SLOT_BYTES_MAX, SLOT_PARTS, FREE_PARTS = 1 << 30, 2, 4
ALIGNMENT_BYTES = 64
# The server's error texts for an output that does not fit into its memory, and for one that the model did not make this time.
OUTPUTS_DIFFER = ("to hold the results", "which the request placed in memory")
# The most times that a request is sent. It is sent again if the server had no memory for its outputs, and other memory was returned since.
ROOM_TRIES_MAX = 16
# The server's error text for a lease that exceeds a quota.
NO_ROOM = "bytes does not fit: "
# The texts of refusals by the rules of access: of a token without the scope, and of a client without a token.
NO_SCOPE = ("has no scope", "wants a token with scope")
CALLED_BYTES = len(CALLED)


class Stale(Exception):
    """The model has changed. The request was not run."""


class NoLoopConnection(Exception):
    """The event loop can have no connection, so calls for asyncio wait in threads."""


class Lost(ConnectionError):
    """The connection to the server is lost. ``sent`` says whether the request may have reached the server."""

    def __init__(self, why: str, sent: bool):
        super().__init__(why)
        self.sent = sent


class Input(NamedTuple):
    """One input of a call. ``array`` has the elements, or for BYTES the encoded elements. If there is a ``block``, the elements are in it
    already."""

    spec: Spec
    array: Any
    block: Optional[Block]


class Call(NamedTuple):
    """A request. ``is_plain``: it consists of tensors only, so it can be prepared. ``is_row``: inputs got a first dimension of 1, which outputs
    lose again."""

    model: str
    version: str
    metadata: Metadata
    inputs: Sequence[Input]
    outputs: tuple[str, ...]
    id: str = ""
    parameters: Any = None
    is_row: bool = False
    #: The lent buffers that it reads.
    lent: Sequence[Any] = ()
    #: Whether it must not be run twice. The server chooses the memory of its outputs, so that none can be too small.
    once: bool = False
    #: The span that it belongs to.
    trace: Optional[Trace] = None

    def is_plain(self) -> bool:
        return not (self.id or self.parameters or self.once)


class SessionConnection(Session):
    """A session that one thread at a time uses."""

    def __init__(self, path: str, server_uid: Optional[int] = None, token: Optional[str] = None, answer_s: float = ANSWER_S):
        # The constructor of the base class uses it.
        self._deadline = NEVER
        super().__init__(path, answer_s, server_uid, token)
        # With a timeout, Python would poll the socket before each receive.
        self._socket.setblocking(True)
        self._timeout: Optional[float] = None
        self._buffer = bytearray(PACKET_BYTES_MAX)
        # Set if the next answer could belong to an earlier request, or if no answer can arrive.
        self.broken = False
        # The functions that send and receive each call. Tests replace them to count the calls.
        self.send_packet = self._socket.send
        self.receive_packet = self._socket.recv_into
        quota = self.lease_bytes_max
        self.pool = Pool(self._make_slab, self._drop_slab, min(FREE_BYTES_MAX, quota // FREE_PARTS))
        self.plans: dict[Any, Plan] = {}
        self.held: set[HeldLease] = set()
        #: The blocks of lent buffers.
        self.lent: weakref.WeakSet[Block] = weakref.WeakSet()
        # The prepared slots and their memory, which is bounded.
        self.slots = self.slot_bytes = 0
        self._slot_bytes_max = min(SLOT_BYTES_MAX, quota // SLOT_PARTS)
        # The number of calls so far. A plan keeps the number of its last call, which shows its age.
        self._calls = 0
        self.copied_bytes = 0

    def note_copy(self, byte_size: int) -> None:
        """Counts bytes of inputs that were copied before they are placed."""
        self.copied_bytes += byte_size

    def describe(self, model: str, version: str) -> Metadata:
        """The inputs and outputs of the model."""
        content = _protobuf.encode([(1, model), (2, version)])
        described, _ = self._call_repeatable(CLIENT_DESCRIBE, content, SERVER_DESCRIBED)
        return _messages.read_metadata(_field(described, 1))

    def lend(self, byte_size: int) -> Block:
        """Memory for an input, which the server knows by name as long as this session is open."""
        if not self.is_alive():
            raise self._lost_here("the server has gone", sent=False)
        self.limit(NEVER)
        block = self.pool.acquire(byte_size)
        self.lent.add(block)
        return block

    def limit(self, deadline: Deadline) -> None:
        """Sets the deadline of the following calls."""
        self._deadline = deadline
        self._set_timeout(deadline.left())

    def _set_timeout(self, seconds: Optional[float]) -> None:
        """Sets the timeout of one answer."""
        if seconds != self._timeout:
            whole = 0 if seconds is None else max(int(seconds * 1e6), 1)
            packed = struct.pack("ll", whole // 1_000_000, whole % 1_000_000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
            self._timeout = seconds

    def call(self, call: Call, key: Any) -> Response:
        """Runs one inference. ``key`` identifies its plan: model, outputs, shapes, and the blocks of inputs in lent buffers."""
        plan = self.plans.get(key) if key is not None else None
        slot = None if plan is None else self._slot(plan, call)
        if slot is None:
            return self._learn(call, key)
        try:
            self._write(slot, call)
            self._transmit(slot.packet if call.trace is None else _traced_packet(slot, call.trace))
            size = self._receive_into()
        except BaseException:
            self._break()
            raise
        if size == CALLED_BYTES and self._buffer.startswith(CALLED):
            return self._expected(slot)
        return self._settle(slot, call, key, self._await(size, CALL_ID))

    def quick(self, key: Any, arrays: Sequence[np.ndarray], whole: Callable[[Any], Call]) -> Optional[Response]:
        """As :meth:`call`, for a plan that has a free slot, and arrays of exactly its shapes and datatypes. None if no slot is free.
        ``whole`` makes the :class:`Call`, which is needed only if the answer is not the expected one."""
        try:
            plan = self.plans[key]
            free = plan.free
            slot = free.popleft()
        except (KeyError, IndexError):
            return None
        if _references(slot.memory) > slot.idle_references:
            free.append(slot)
            slot = plan.idle()
            if slot is None:
                return None
        if self._kept_below:
            return None
        plan.last_call = self._calls = self._calls + 1
        for view, array in zip(slot.views, arrays):
            view[...] = array
        self.copied_bytes += slot.input_bytes
        try:
            self.send_packet(slot.packet)
            size = self.receive_packet(self._buffer)
        except BaseException as error:
            self._break()
            if isinstance(error, OSError):
                # Only a send fails with EPIPE, so then the request was not sent.
                raise Lost(f"the server has gone: {error.strerror or error}", sent=not isinstance(error, BrokenPipeError)) from error
            raise
        if size == CALLED_BYTES and self._buffer.startswith(CALLED):
            free.append(slot)
            return slot.response()
        return self._settle(slot, whole(self), key, self._await(size, CALL_ID))

    def quick_many(self, keys: Sequence[Any], all_arrays: Sequence[Sequence[np.ndarray]]) -> Optional[list[Any]]:
        """As :meth:`quick`, for up to 32 calls in one packet. None if one of them has no slot. If an answer is not the expected one, the
        list has ``(slot, answer)`` in its place."""
        if keys.count(keys[0]) == len(keys):
            return self.quick_equal(keys[0], list(zip(*all_arrays)), len(keys))
        slots = self._idle_slots(keys)
        if slots is None:
            return None
        for slot, arrays in zip(slots, all_arrays):
            for view, array in zip(slot.views, arrays):
                view[...] = array
        self.copied_bytes += sum([slot.input_bytes for slot in slots])
        answers = self._called_together(together([slot.varint for slot in slots]), CALLED_TOGETHER[len(slots)], len(slots))
        return [self._expected(slot) if answer is None else (slot, answer) for slot, answer in zip(slots, answers or itertools.repeat(None))]

    def quick_equal(self, key: Any, columns: Sequence[Sequence[np.ndarray]], count: int) -> Optional[list[Any]]:
        """As :meth:`quick_many`, for ``count`` calls of one plan. ``columns`` has the arrays of all calls for each input."""
        plan = self.plans.get(key)
        group = None if plan is None else plan.idle_group(count)
        if plan is None or group is None:
            return None
        self._note(plan)
        for views, arrays in zip(group.inputs, columns):
            for view, array in zip(views, arrays):
                view[...] = array
        self.copied_bytes += group.input_bytes
        answers = self._called_together(group.packet, group.expected, count)
        if answers is None:
            return group.responses()
        plan.take(group.slots)
        return [self._expected(slot) if answer is None else (slot, answer) for slot, answer in zip(group.slots, answers)]

    def _called_together(self, packet: bytes, expected: bytes, count: int) -> Optional[list[Any]]:
        """Sends the packet of this many calls. Returns the answers, with None for each expected answer. Returns None if all answers are as expected."""
        try:
            self._transmit(packet)
            size = self._receive_into()
            if size == len(expected) and self._buffer.startswith(expected):
                return None
            return self._await_many(count, size)
        except BaseException:
            self._break()
            raise

    def _idle_slots(self, keys: Sequence[Any]) -> Optional[list[Slot]]:
        """An idle slot for each key. None if one of them has none."""
        slots: list[Slot] = []
        for key, equal in itertools.groupby(keys):
            plan, count = self.plans.get(key), len(list(equal))
            taken = None if plan is None else plan.take_idle(count)
            if plan is None or taken is None or self._kept_below:
                for slot in slots:
                    slot.give_back()
                return None
            self._note(plan)
            slots += taken
        return slots

    def _expected(self, slot: Slot) -> Response:
        """The response that was expected."""
        slot.give_back()
        return slot.response()

    def call_many(self, calls: Sequence[Call], key_of: Any) -> list[Any]:
        """Runs up to 32 inferences with one packet. Returns a response or an exception for each."""
        slots = []
        for call in calls:
            key = key_of(call)
            plan = self.plans.get(key)
            slot = None if plan is None else self._slot(plan, call)
            if slot is None:
                for taken in slots:
                    taken.give_back()
                return self._each(calls, key_of)
            slots.append(slot)
        try:
            for slot, call in zip(slots, calls):
                self._write(slot, call)
            self._transmit(together([slot.varint for slot in slots]))
            answers = self._await_many(len(slots), self._receive_into())
        except BaseException:
            self._break()
            raise
        outcomes = []
        for index, (slot, call) in enumerate(zip(slots, calls)):
            answer = answers[index]
            if answer is None:
                outcomes.append(self._expected(slot))
            else:
                outcomes.append(self._caught(self._settle, slot, call, key_of(call), answer))
        return outcomes

    def stream(self, call: Call) -> Iterator[Response]:
        """The responses of a decoupled model."""
        blocks = self._place(call)
        message = self._message(call, blocks)
        self._last_id += 1
        call_id = self._last_id
        try:
            self._transmit(_protobuf.encode([(CLIENT_ID, call_id), (CLIENT_INFER, message)]))
            more = True
            while more:
                fields, descriptors = self._next(call_id)
                try:
                    more = bool(fields.get(SERVER_MORE, 0))
                    if SERVER_ERROR in fields:
                        raise _failure(fields[SERVER_ERROR])
                    response = self._read_inference(fields[SERVER_INFERENCE], descriptors)
                finally:
                    _close_all(descriptors)
                if response is not None:
                    yield response
        except InferenceServerException:
            if more:
                self._break()
            raise
        except BaseException:
            # Further responses would be taken for answers to the next call.
            self._break()
            raise

    # Internal steps.

    def _each(self, calls: Sequence[Call], key_of: Any) -> list[Any]:
        """Runs the inferences one after the other."""
        outcomes: list[Any] = []
        for call in calls:
            try:
                outcomes.append(self.call(call, key_of(call)))
            except (InferenceServerException, Stale) as error:
                outcomes.append(error)
            except Lost as lost:
                # Earlier inferences have been run. If this one counted as unsent, the caller would send all of them again.
                raise Lost(str(lost), sent=lost.sent or bool(outcomes)) from lost
        return outcomes

    def _caught(self, call: Any, *given: Any) -> Any:
        """The result or the error of one of several calls, after others have been answered."""
        try:
            return call(*given)
        except (InferenceServerException, Stale) as error:
            return error
        except Lost as lost:
            raise Lost(str(lost), sent=True) from lost

    def _slot(self, plan: Plan, call: Call) -> Optional[Slot]:
        """A free slot. None if the call must be a plain request."""
        self._note(plan)
        if plan.answer is None:
            return None
        slot = plan.idle()
        # Checked after the slot was found idle: a child of a later fork has no array over it.
        if self.outdated:
            return None
        if slot is not None:
            return slot
        if self.slots >= SLOTS_MAX:
            self._retire_some(plan)
        return None if self.slots >= SLOTS_MAX else self._prepare(plan, call)

    def _note(self, plan: Plan) -> None:
        """Notes that a plan is used."""
        plan.last_call = self._calls = self._calls + 1

    def _prepare(self, plan: Plan, call: Call) -> Slot:
        """A new slot, prepared at the server."""
        plan.preparing += 1
        try:
            slot, content = self._new_slot(plan, call)
            prepared, _ = self._call_repeatable(CLIENT_PREPARE, content, SERVER_PREPARED)
        finally:
            plan.preparing -= 1
        self.slots += 1
        return self._kept(slot, prepared)

    def _kept(self, slot: Slot, prepared: bytes) -> Slot:
        """The slot with the handle that the server gave it. The slot belongs to its plan from now on. Idle plans lose
        their slots if all slots together take too much memory."""
        slot.handle = int(dict(_protobuf.decode(prepared)).get(1, 0))
        slot.varint = _protobuf.varint(slot.handle)
        slot.packet = _protobuf.encode([(CLIENT_ID, CALL_ID), (CLIENT_CALL, _protobuf.encode([(1, slot.handle)]))])
        slot.plan.slots.append(slot)
        self.slot_bytes += slot.byte_size
        for key in self._idle_plans():
            if self.slot_bytes <= self._slot_bytes_max:
                break
            self._retire(self.plans.pop(key))
        return slot

    def _new_slot(self, plan: Plan, call: Call) -> tuple[Slot, bytes]:
        """A slot with memory, and the request to prepare it."""
        assert plan.answer is not None
        slot = BrainSlot() if any(is_brain(element_dtype(spec.datatype)) for spec in plan.answer.outputs) else Slot()
        slot.plan = plan
        sizes = [_byte_size(one.spec) for one in call.inputs]
        slot.blocks = [one.block or self.pool.acquire(max(size, 1)) for one, size in zip(call.inputs, sizes)]
        slot.views = [
            None if one.block is not None else _array(block, one.spec.shape, one.spec.datatype)
            for one, block in zip(call.inputs, slot.blocks)
        ]
        slot.input_bytes = sum(view.nbytes for view in slot.views if view is not None)
        slot.places, slot.sizes, end = [], {}, 0
        for spec in plan.answer.outputs:
            slot.places.append((spec.name, end, spec.shape, element_dtype(spec.datatype)))
            slot.sizes[spec.name] = _byte_size(spec)
            end += -(-slot.sizes[spec.name] // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        outputs = self.pool.acquire(max(end, 1))
        slot.byte_size = outputs.byte_size + sum(block.byte_size for block in slot.blocks)
        slot.place_outputs(outputs.array())
        slot.head = Head(plan.answer.model, plan.answer.version, plan.answer.id)
        request = _messages.request(
            call.model,
            call.version,
            [(one.spec, _window(block, size)) for one, block, size in zip(call.inputs, slot.blocks, sizes)],
            [(name, Window(outputs.slab.name, outputs.offset + at, slot.sizes[name])) for name, at, _, _ in slot.places],
        )
        infer = _protobuf.encode([(1, request)])
        return slot, _protobuf.encode([(1, infer), (2, _messages.expected(plan.answer))])

    def _write(self, slot: Slot, call: Call) -> None:
        for view, one in zip(slot.views, call.inputs):
            if view is not None:
                view[...] = one.array
        self.copied_bytes += slot.input_bytes

    def _settle(self, slot: Slot, call: Call, key: Any, answer: Any) -> Response:
        """Handles an answer that is not the expected one."""
        fields, descriptors = answer
        if fields.get(SERVER_MORE):
            _close_all(descriptors)
            # The next call has the same id, so it would get the rest.
            self._break()
            raise _several(fields)
        response = self._settled(slot, call, key, answer)
        return self._learn(call, key) if response is None else response

    def _settled(self, slot: Slot, call: Call, key: Any, answer: Any) -> Optional[Response]:
        """The response. None if the request was not answered and must be sent as a plain one."""
        fields, descriptors = answer
        _close_all(descriptors)
        if SERVER_CALLED in fields:
            return self._expected(slot)
        if SERVER_ERROR in fields:
            code = dict(_protobuf.decode(fields[SERVER_ERROR])).get(1, 0)
            if code == STALE:
                self.forget(call.model)
                raise Stale(str(_failure(fields[SERVER_ERROR])))
            slot.give_back()
            failure = _failure(fields[SERVER_ERROR])
            if any(text in str(failure) for text in OUTPUTS_DIFFER):
                # The outputs do not depend on the input shapes only. From now on the server chooses the memory of the outputs.
                self._retire(slot.plan)
                # Another call may have dropped or replaced the plan meanwhile.
                if self.plans.get(key) is slot.plan:
                    self.plans[key] = Plan(None)
                return None
            raise failure
        message = _field(fields[SERVER_INFERENCE], INFERENCE_RESPONSE)
        if not message:
            slot.give_back()
            raise _none()
        read = _messages.read_response(message)
        arrays = {}
        places = {name: (at, slot.sizes[name]) for name, at, _, _ in slot.places}
        for index, spec in enumerate(read.outputs):
            raw = read.raw[index] if index < len(read.raw) else b""
            at, size = places.get(spec.name, (0, 0))
            if raw or not 0 < _byte_size(spec) <= size:
                arrays[spec.name] = _inline(raw, spec)
            else:
                arrays[spec.name] = output(np.ndarray(spec.shape, element_dtype(spec.datatype), slot.memory, at))
        slot.give_back()
        return Response(arrays, Head(read.model, read.version, read.id, read.parameters))

    def _learn(self, call: Call, key: Any) -> Response:
        """Sends a plain request, and keeps its answer for the next call of the plan."""
        blocks = self._place(call)
        for left in reversed(range(ROOM_TRIES_MAX)):
            try:
                answer, descriptors = self._call_once(CLIENT_INFER, self._message(call, blocks), SERVER_INFERENCE)
                break
            except InferenceServerException as error:
                if not left or not self._may_resend(call, error):
                    raise
        try:
            response = self._read_inference(answer, descriptors)
        finally:
            _close_all(descriptors)
        return self._learned(call, key, response)

    def _learned(self, call: Call, key: Any, response: Optional[Response]) -> Response:
        """The answer to a plain request, which is kept for the next call of the plan."""
        if response is None:
            raise _none()
        if key is not None and call.is_plain() and key not in self.plans:
            self._calls += 1
            self.plans[key] = Plan(_known(call, response._answer), self._calls)
            while len(self.plans) > PLANS_MAX:
                self._retire(self.plans.pop(min(self.plans, key=self._last_call)))
        return response

    def _place(self, call: Call) -> list[tuple[Block, int]]:
        """Copies the inputs of a plain request to shared memory. Returns their blocks."""
        sizes = [
            _datatypes.encoded_byte_size(one.array) if one.block is None and one.spec.datatype == "BYTES" else _byte_size(one.spec)
            for one in call.inputs
        ]
        # All memory is requested first, because the server may refuse it.
        blocks = [one.block or self.pool.acquire(max(size, 1)) for one, size in zip(call.inputs, sizes)]
        for one, block, size in zip(call.inputs, blocks, sizes):
            if one.block is not None:
                continue
            if one.spec.datatype == "BYTES":
                _datatypes.write_elements(one.array, block.array().data)
            else:
                _array(block, one.spec.shape, one.spec.datatype)[...] = one.array
            self.copied_bytes += size
        return list(zip(blocks, sizes))

    def _message(self, call: Call, blocks: Sequence[tuple[Block, int]]) -> bytes:
        request = _messages.request(
            call.model,
            call.version,
            [(one.spec, _window(block, size)) for one, (block, size) in zip(call.inputs, blocks)],
            [(name, None) for name in call.outputs],
            call.id,
            call.parameters,
        )
        leased = call.outputs or [spec.name for spec in call.metadata.outputs]
        trace = () if call.trace is None else ((INFER_TRACE, call.trace.message()),)
        return _protobuf.encode([(1, request), *((2, name) for name in leased), *trace])

    def _read_inference(self, inference: bytes, descriptors: list[int]) -> Optional[Response]:
        """Reads a response, whose outputs may lie in leases. None for a notice that no response follows."""
        message, placed = b"", {}
        for number, value in _protobuf.decode(inference):
            if number == INFERENCE_RESPONSE and isinstance(value, bytes):
                message = value
            elif number == INFERENCE_PLACED and isinstance(value, bytes):
                fields = dict(_protobuf.decode(value))
                lease, size = fields.get(PLACED_LEASE, b""), int(fields.get(PLACED_BYTE_SIZE, 0))
                name, _ = self._map(lease, descriptors, 0)
                placed[fields.get(PLACED_OUTPUT, b"").decode()] = name, int(fields.get(PLACED_OFFSET, 0)), size
        if not message and not placed:
            return None
        read = _messages.read_response(message)
        arrays: dict[str, np.ndarray] = {}
        for index, spec in enumerate(read.outputs):
            if spec.name in placed:
                block = self.placed(*placed[spec.name], self.held)
                is_text = spec.datatype == "BYTES"
                arrays[spec.name] = (
                    _datatypes.decode_elements(block.array().data, spec.shape)
                    if is_text
                    else output(_array(block, spec.shape, spec.datatype))
                )
            else:
                arrays[spec.name] = _inline(read.raw[index] if index < len(read.raw) else b"", spec)
        response = Response(arrays, Head(read.model, read.version, read.id, read.parameters))
        response._answer = read
        return response

    def forget(self, model: str) -> None:
        """Drops all plans of the model."""
        for key in [key for key in self.plans if key[0] == model]:
            self._retire(self.plans.pop(key))

    def _last_call(self, key: Any) -> int:
        return self.plans[key].last_call

    def _idle_plans(self) -> list[Any]:
        """The keys of the plans that have slots and that no call uses, those first that were not used for the longest time."""
        return sorted((key for key, plan in self.plans.items() if plan.slots and plan.is_idle()), key=self._last_call)

    def _make_room(self, error: InferenceServerException) -> bool:
        """After the error that a quota is used up, returns memory that no call uses to the server: free memory, or else that of the plan that was not used
        for the longest time. False after any other error, or if there is no such memory."""
        if NO_ROOM not in str(error.message()):
            return False
        if self.pool.trim():
            return True
        for key in self._idle_plans():
            self._retire(self.plans.pop(key))
            if self.pool.trim():
                return True
        return False

    def _may_resend(self, call: Call, error: InferenceServerException) -> bool:
        """Whether the request is sent once more, because there is memory for the outputs now. False within a sequence, whose state may have
        changed, and if the model may run only once."""
        return self._make_room(error) and not call.once and "sequence_id" not in (call.parameters or {})

    def _retire(self, plan: Plan) -> None:
        """Releases the plan's handles. Arrays over outputs stay valid."""
        handles = b"".join(_protobuf.varint(slot.handle) for slot in plan.slots)
        self.slots -= len(plan.slots)
        self.slot_bytes -= sum(slot.byte_size for slot in plan.slots)
        plan.retire()
        if handles:
            try:
                self._transmit(_protobuf.encode([(CLIENT_RELEASE, _protobuf.encode([(1, handles)]))]))
            except Lost:
                # The handles ended with the session. The error is dropped, because a request that was answered before must not count as unsent.
                pass

    def _retire_some(self, but: Plan) -> None:
        for key in sorted(self.plans, key=self._last_call):
            if self.slots < SLOTS_MAX:
                return
            if self.plans[key] is not but:
                self._retire(self.plans.pop(key))

    def _call_repeatable(self, call: int, content: bytes, expected: int) -> tuple[bytes, list[int]]:
        """Sends one call that is no inference, and waits for its answer. :class:`Lost` has ``sent=False``, because such a call may be repeated."""
        try:
            answer, descriptors = self._call_once(call, content, expected)
        except Lost as lost:
            raise Lost(str(lost), sent=False) from lost
        _close_all(descriptors)
        return answer, []

    def _call_once(self, call: int, content: bytes, expected: int) -> tuple[bytes, list[int]]:
        self._last_id += 1
        call_id = self._last_id
        packet = _whole(call_id, call, content)
        try:
            self._transmit(packet)
            fields, descriptors = self._next(call_id)
        except BaseException:
            self._break()
            raise
        is_whole = not fields.get(SERVER_MORE)
        if is_whole and expected in fields:
            return fields[expected], descriptors
        _close_all(descriptors)
        if is_whole and SERVER_ERROR in fields:
            raise _failure(fields[SERVER_ERROR])
        self._break()
        raise _several(fields)

    def _transmit(self, packet: bytes) -> None:
        try:
            self.send_packet(packet)
        except OSError as error:
            raise self._lost_here(f"the server has gone: {error.strerror or error}", sent=False) from error

    def _receive_into(self) -> int:
        try:
            if self._deadline:
                self._set_timeout(self._deadline.left())
            size = self.receive_packet(self._buffer)
        except (BlockingIOError, TimeoutError):
            raise self._deadline.late() from None
        except OSError as error:
            raise self._lost_here(f"the server closed the connection before it answered: {error.strerror or error}", sent=True) from error
        if not size:
            raise self._lost_here("the server closed the connection before it answered", sent=True)
        return size

    def _await(self, size: int, call_id: int) -> tuple[dict[int, Any], list[int]]:
        """The answer to a call. A packet of ``size`` bytes was received already, which may be about something else. The answer has no descriptors."""
        while True:
            fields = self._fields(bytes(self._buffer[:size]))
            if fields.get(SERVER_ID, 0) == call_id:
                return fields, []
            size = self._receive_into()

    def _await_many(self, count: int, size: int) -> list[Any]:
        """The first answer to each of a packet of calls, in order. None for those that are as expected. A packet of ``size`` bytes was
        received already."""
        answers: dict[int, Any] = {}
        while True:
            packet = bytes(self._buffer[:size])
            fields = self._fields(packet)
            found = [fields] if fields.get(SERVER_ID, 0) else []
            for number, message in _protobuf.decode(fields.get(SERVER_ANSWERS, b"")):
                if number == 1 and isinstance(message, bytes):
                    found.append(dict(_protobuf.decode(message)))
            for one in found:
                answers.setdefault(one.get(SERVER_ID, 0) - CALL_ID, None if SERVER_CALLED in one else (one, []))
            if len(answers) >= count:
                return [answers.get(index) for index in range(count)]
            size = self._receive_into()

    def _next(self, call_id: int) -> tuple[dict[int, Any], list[int]]:
        """The next message with this id, and its descriptors."""
        while True:
            try:
                packet, descriptors, flags, _ = self._receive_now()
            except (BlockingIOError, TimeoutError):
                raise self._deadline.late() from None
            except OSError as error:
                raise self._lost_here(f"the server closed the connection before it answered: {error.strerror or error}", sent=True) from error
            if not packet or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                _close_all(list(descriptors))
                raise self._lost_here("the server closed the connection before it answered", sent=True)
            fields = self._fields(packet)
            if fields.get(SERVER_ID, 0) == call_id:
                return fields, list(descriptors)
            _close_all(list(descriptors))

    def _fields(self, packet: bytes) -> dict[int, Any]:
        """The fields of a message. Drops the mappings of leases that do not exist any more."""
        try:
            self._read(packet, -1, -1)
            return dict(_protobuf.decode(packet))
        except (Refused, _protobuf.DecodeError) as error:
            raise self._lost_here(f"the session has ended: {error}", sent=True) from error

    def _break(self) -> None:
        """Closes the session, because further messages would be taken for the next answer. The server cancels requests in flight."""
        self.broken = True
        for plan in list(self.plans.values()):
            # An array or a lent buffer may keep this object alive for long. This object must not keep the memory of other calls.
            plan.retire()
        if self.outdated:
            # A program may fork often. So the memory is dropped now, and not by the collector of reference cycles.
            self.pool.trim()
            self._mappings.clear()
        self._socket.close()

    def abort(self) -> None:
        """Ends the session while another thread waits for an answer. That thread gets :class:`Lost`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The session has ended already.
            pass

    def _lost_here(self, why: str, sent: bool) -> Lost:
        self._break()
        return Lost(why, sent)

    def close(self) -> None:
        """Closes the session. Arrays over its memory stay valid."""
        self._break()

    def refusal_of_memory(self) -> Optional[str]:
        """Why the access rules forbid this client to borrow memory. None if they permit it."""
        try:
            name, _ = self.borrow(1)
        except Refused as refusal:
            return str(refusal) if any(text in str(refusal) for text in NO_SCOPE) else None
        self.give_back(name)
        return None

    def _make_slab(self, byte_size: int) -> Slab:
        while True:
            try:
                name, memory = self.borrow(byte_size)
                return Slab(name, memory, owner=self)
            except Refused as error:
                if isinstance(error, SessionLost) or self._last_word is not None:
                    raise self._lost_here(f"the server has gone: {error}", sent=False) from error
                refusal = InferenceServerException(f"the server lends no memory: {error}")
                if not self._make_room(refusal):
                    raise refusal from error

    def _drop_slab(self, slab: Slab) -> None:
        try:
            self.give_back(slab.name)
        except Refused:
            pass

    def _receive_now(self) -> Any:
        if self._deadline:
            self._set_timeout(self._deadline.left())
        return super()._receive_now()

    def _drain(self) -> None:
        """Does nothing: the next message may be a response of a stream. Notices are handled when the next message is read."""

    def _send_now(self, packet: bytes) -> None:
        self._socket.send(packet, socket.MSG_DONTWAIT)


def _whole(call_id: int, call: int, content: bytes) -> bytes:
    """The packet of a call with this id."""
    packet = _protobuf.encode([(CLIENT_ID, call_id), (call, content)])
    if len(packet) > PACKET_BYTES_MAX:
        raise InferenceServerException(f"a request of {len(packet)} bytes beside its tensors, {PACKET_BYTES_MAX} fit")
    return packet


def _traced_packet(slot: Slot, trace: Trace) -> bytes:
    """The packet of a prepared call that belongs to a span."""
    return _protobuf.encode([(CLIENT_ID, CALL_ID), (CLIENT_CALL, traced_call(slot, trace))])


def traced_call(slot: Slot, trace: Optional[Trace]) -> bytes:
    """The content of a prepared call, which may belong to a span."""
    return _protobuf.encode([(1, slot.handle), *(() if trace is None else ((CALL_TRACE, trace.message()),))])


def _known(call: Call, answer: Answer) -> Optional[Answer]:
    """The answer, if it can be expected for later calls. None if its outputs may have other sizes next time."""
    if answer.parameters or any(one.spec.datatype == "BYTES" for one in call.inputs):
        return None
    shapes = {one.spec.shape for one in call.inputs}
    rows = {shape[0] for shape in shapes if shape}
    dims = {spec.name: spec.shape for spec in call.metadata.outputs}
    for spec in answer.outputs:
        wanted = dims.get(spec.name, ())
        follows = spec.shape in shapes or (bool(spec.shape) and spec.shape[0] in rows and -1 not in wanted[1:])
        if spec.datatype == "BYTES" or (-1 in wanted and not follows) or not _byte_size(spec):
            return None
    return answer


def _byte_size(spec: Spec) -> int:
    return _datatypes.fixed_byte_size(spec.shape, spec.datatype) or 0


def _window(block: Block, byte_size: int) -> Window:
    return Window(block.slab.name, block.offset, byte_size)


def _array(block: Block, shape: Sequence[int], datatype: str) -> np.ndarray:
    return block.array()[: _byte_size(Spec("", datatype, tuple(shape)))].view(element_dtype(datatype)).reshape(tuple(shape))


def element_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of the datatype. BF16 without ml_dtypes is ``uint16``."""
    try:
        return _datatypes.numpy_dtype(datatype)
    except InferenceServerException:
        if datatype == "BF16":
            return np.dtype(np.uint16)
        raise


def _inline(raw: bytes, spec: Spec) -> np.ndarray:
    if spec.datatype == "BYTES":
        return _datatypes.decode_elements(raw, spec.shape)
    return output(np.frombuffer(raw, element_dtype(spec.datatype)).reshape(spec.shape))


def _failure(error: bytes) -> InferenceServerException:
    fields = dict(_protobuf.decode(error))
    message = fields.get(2, b"")
    return InferenceServerException(message.decode("utf-8", "replace") if isinstance(message, bytes) else "", str(fields.get(1, 0)))


def _several(fields: dict[int, Any]) -> InferenceServerException:
    """The error of a call with an answer that is not its last one."""
    if SERVER_ERROR in fields:
        return _failure(fields[SERVER_ERROR])
    return InferenceServerException("the model gives several responses; ask it by .stream()")


def _none() -> InferenceServerException:
    return InferenceServerException("the model gave no response; ask it by .stream()")


def _field(message: bytes, number: int) -> bytes:
    value = dict(_protobuf.decode(message)).get(number, b"")
    return value if isinstance(value, bytes) else b""

