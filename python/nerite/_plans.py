"""Which parts of a request are kept, so that the next one with the same shapes is only a call?"""

from __future__ import annotations

import collections
import sys
from typing import Any, Iterable, Optional

import numpy as np

from nerite._arrays import output
from nerite._calls import CALLED_TOGETHER, together
from nerite._messages import Answer
from nerite._pool import Block
from nerite._response import Head, Response, response_class

# The most slots that are checked to find an idle one.
LOOKS_MAX = 8
# The most groups of one size that a plan keeps.
GROUPS_MAX = 4

_references = sys.getrefcount


class Plan:
    """Calls with the same shapes. ``answer`` is the server's answer to the first one. None if the sizes of outputs are not known.

    ``free`` has the slots that no call uses. Arrays may still refer to their outputs; those given back first are the most likely to be idle.
    """

    __slots__ = ("answer", "free", "groups", "slots", "retired", "preparing", "last_call")

    def __init__(self, answer: Optional[Answer], last_call: int = 0):
        self.answer = answer
        #: The number of its last call, among all of the connection.
        self.last_call = last_call
        #: The number of slots that are being made.
        self.preparing = 0
        self.free: collections.deque[Slot] = collections.deque()
        #: The groups of each size, those used last at the end. Their slots are in ``free`` as well.
        self.groups: dict[int, collections.deque[Group]] = {}
        self.slots: list[Slot] = []
        self.retired = False

    def is_idle(self) -> bool:
        """Whether no call uses it now."""
        return not self.preparing and len(self.free) == len(self.slots)

    def idle(self) -> Optional[Slot]:
        """Takes a slot to whose outputs no array refers. None if there is none among the first :data:`LOOKS_MAX`."""
        for _ in range(min(len(self.free), LOOKS_MAX)):
            slot = self.free.popleft()
            if slot.is_idle():
                return slot
            self.free.append(slot)
        return None

    def take_idle(self, count: int) -> Optional[list[Slot]]:
        """Takes ``count`` slots to whose outputs no array refers. None if there are fewer."""
        free = self.free
        if len(free) < count:
            return None
        slots = [free.popleft() for _ in range(count)]
        busy = [slot for slot in slots if _references(slot.memory) > slot.idle_references]
        if not busy:
            return slots
        slots = [slot for slot in slots if _references(slot.memory) <= slot.idle_references]
        while free and len(slots) < count:
            slot = free.popleft()
            (busy if _references(slot.memory) > slot.idle_references else slots).append(slot)
        free.extend(busy)
        if len(slots) < count:
            free.extend(slots)
            return None
        return slots

    def idle_group(self, count: int) -> Optional[Group]:
        """A group of ``count`` slots to whose outputs no array refers. None if there are fewer. Its slots stay among the free ones: no other call uses
        them before the answer arrives, because one thread at a time uses a connection."""
        groups = self.groups.setdefault(count, collections.deque(maxlen=GROUPS_MAX))
        for _ in range(len(groups)):
            group = groups[0]
            groups.rotate(-1)
            if group.is_idle():
                return group
        slots = self.take_idle(count)
        if slots is None:
            return None
        self.free.extend(slots)
        group = Group(slots)
        groups.append(group)
        return group

    def take(self, slots: Iterable[Slot]) -> None:
        """Takes these slots, which are free."""
        for slot in slots:
            self.free.remove(slot)

    def retire(self) -> None:
        """Forgets the slots. No call uses the plan any more."""
        self.retired = True
        self.answer, self.slots = None, []
        self.free.clear()
        self.groups.clear()


class Slot:
    """Memory for the inputs and outputs of one call, and the server's handle for it."""

    __slots__ = ("plan", "handle", "varint", "packet", "views", "input_bytes", "blocks", "memory", "idle_references", "places", "outputs", "response_class", "sizes", "head", "byte_size")

    plan: Plan
    handle: int
    varint: bytes
    packet: bytes
    #: Where each input is written. None for one in a lent buffer.
    views: list[Optional[np.ndarray]]
    input_bytes: int
    blocks: list[Block]
    memory: np.ndarray
    idle_references: int
    #: Name, offset, shape and dtype of each output.
    places: list[tuple[str, int, tuple[int, ...], np.dtype[Any]]]
    #: Name and elements of each output. A response has views on them.
    outputs: list[tuple[str, np.ndarray]]
    response_class: type[Response]
    sizes: dict[str, int]
    head: Head
    #: The memory for inputs and outputs.
    byte_size: int

    def response(self) -> Response:
        """The expected response. The slot is in use until no array refers to its outputs."""
        arrays = {}
        for name, array in self.outputs:
            arrays[name] = array[...]
        return self.response_class(arrays, self.head)

    def place_outputs(self, memory: np.ndarray) -> None:
        """Sets the memory in which the outputs lie, at their ``places``."""
        self.memory = memory.view(_Backing).view(_SlotMemory).view(np.ndarray)
        self.outputs = [(name, np.ndarray(shape, dtype, self.memory, at)) for name, at, shape, dtype in self.places]
        self.response_class = response_class(tuple([name for name, _ in self.outputs]))
        self.idle_references = _references(self.memory)

    def is_idle(self) -> bool:
        """Whether no array refers to its outputs any more. Only those arrays refer to the memory, besides the slot and its ``outputs``."""
        return _references(self.memory) <= self.idle_references

    def give_back(self) -> None:
        """Puts the slot behind the others of its plan, after a call."""
        if not self.plan.retired:
            self.plan.free.append(self)


class BrainSlot(Slot):
    """A slot with outputs of BF16."""

    __slots__ = ()

    def response(self) -> Response:
        """The expected response, with arrays that support DLPack."""
        response = super().response()
        response._arrays = {name: output(array) for name, array in response._arrays.items()}
        return response


class Group:
    """Slots of one plan that one packet calls together. The parts that these calls need are made once."""

    __slots__ = ("slots", "inputs", "input_bytes", "packet", "expected", "only_output")

    def __init__(self, slots: list[Slot]):
        self.slots = slots
        #: For each input, where each call reads it.
        self.inputs = list(zip(*[slot.views for slot in slots]))
        self.input_bytes = sum([slot.input_bytes for slot in slots])
        #: The name of the only output, and its elements in each slot. None if there are several outputs, or one of BF16.
        self.only_output: Any = None
        if len(slots[0].outputs) == 1 and type(slots[0]) is Slot:
            self.only_output = slots[0].outputs[0][0], [array for slot in slots for _, array in slot.outputs]
        self.packet = together([slot.varint for slot in slots])
        #: The answer if all outputs are as expected.
        self.expected = CALLED_TOGETHER[len(slots)]

    def is_idle(self) -> bool:
        """As :meth:`Slot.is_idle`, for all slots."""
        return not [1 for slot in self.slots if _references(slot.memory) > slot.idle_references]

    def responses(self) -> list[Response]:
        """The expected responses. If they have one output, there is no function call for each but the constructor."""
        if self.only_output is None:
            return [slot.response() for slot in self.slots]
        (name, arrays), made, head = self.only_output, self.slots[0].response_class, self.slots[0].head
        return [made({name: array[...]}, head) for array in arrays]


class _SlotMemory(np.ndarray):
    """The base of the memory of a slot's outputs.

    An array keeps a reference to the array that it is a view on (its base). numpy skips bases whose own base has the type of the new array.
    Therefore the memory, an ndarray, is a view on a view of a third type. Then an output keeps the memory itself, and so does a view on an output.
    """


class _Backing(np.ndarray):
    """The base of a :class:`_SlotMemory`."""
