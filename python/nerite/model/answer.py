"""How is the response of one request written, and what has the model sent so far?"""

from __future__ import annotations

import collections
import threading
import weakref
from typing import Any, Optional, Sequence

import numpy as np

from . import arguments, waiting
from .calls import Calls
from .channel import Channel, Ended, SideChannel
from .errors import ERROR_CHARACTERS_MAX, TritonModelException, of_request, refused_call
from .memory import Memory, Unmapped
from .packets import Command, PlaceFor, Request, Response, TensorAt
from .requests import FLAG_FINAL, InferenceResponse, InferenceResponseSender
from .tensors import DATATYPES, NUMPY_DTYPES, Tensor, encoded, encoded_bytes, write_elements

# For outputs of this size and above, it is checked whether the model computed them in place.
_IN_PLACE_BYTES_MIN = 4096
# The most outputs that the operator is warned of, and characters of their names.
_WARNED_MAX, _NAME_CHARACTERS_MAX = 64, 256
_SEND_SIGNATURE = (
    "self: c_python_backend_utils.InferenceResponseSender, "
    "response: c_python_backend_utils.InferenceResponse = None, flags: int = 0"
)


class Refused(Exception):
    """The server has no memory for an output."""


class ModelChannel:
    """The channel for the threads of a model while a batch runs: one call at a time, and none after the batch."""

    def __init__(self, channel: Channel, side: SideChannel, calls: Calls) -> None:
        self.channel = channel
        self.side = side
        self.calls = calls
        self.memory = Memory()
        # The model's name, its configured outputs, and the outputs of which the operator was warned.
        self.model = ""
        self.declared: frozenset[str] = frozenset()
        self._warned: set[str] = set()
        # Held during a call and its answer.
        self.exchange = threading.Lock()
        # Held while a response is written, and to forbid further responses. The model's code may run meanwhile, and send another response.
        self.sending = threading.RLock()
        # Notifies threads that wait for a response.
        self.news = threading.Condition(threading.Lock())
        # For a decoupled model: the number of requests whose inputs the server keeps. Then those of them that the model has dropped
        # and that were not reported to the server yet: the request's number, the pending call for its places, and the segments of its inputs.
        self.open_requests = 0
        self.released: collections.deque[tuple[int, int, list[Optional[int]]]] = collections.deque()
        # The segments of the batch's places that were replaced. The model may have arrays over them.
        self.replaced: list[int] = []
        # The batch that execute runs now, and the requests to other models that other threads made.
        self.execution: Optional[waiting.Execution] = None
        self.watch = waiting.Watch(self)
        # Requests to other models whose responses are not needed any more.
        self.unwanted: collections.deque[int] = collections.deque()
        # The requests to other models whose responses an iterator reads.
        self.iterators: set[int] = set()
        # The iterators that keep responses for a second loop.
        self.keeping: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def warn_undeclared(self, name: str) -> None:
        """Warns the operator, once, of an output that the configuration does not have. The server compares those that it has."""
        if not self.declared or name in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(name)
        what = f"is not in its configuration, which has {', '.join(sorted(self.declared))}; no client gets it"
        self.side.log("WARNING", f"model '{self.model}': the output '{name[:_NAME_CHARACTERS_MAX]}' of a response {what}")

    def request_place(self, index: int, name: str, byte_size: int) -> tuple[int, int, int]:
        """Asks the server for memory for an output of the batch's request ``index``. Returns segment, offset and capacity."""
        with self.exchange:
            self.channel.send({"need": (index, name, byte_size)})
            while True:
                received, descriptors = self.channel.receive()
                message: Command = received
                if message.get("forget"):
                    self.memory.forget(message["forget"])
                if message.get("map"):
                    self.memory.map(message["map"], descriptors)
                if "error" in message:
                    raise Refused(message["error"])
                if "at" in message:
                    segment, offset, capacity = message["at"]
                    return segment, offset, capacity


def check_send(response: Any, flags: int) -> None:
    """Checks the arguments of a sender by Triton's rules."""
    if type(flags) is not int or (response is not None and not isinstance(response, InferenceResponse)):
        try:
            flags = arguments.unsigned_32(flags)
            if response is not None:
                arguments.instance(response, InferenceResponse)
        except arguments.Unfit:
            raise refused_call("send", _SEND_SIGNATURE, (response,) if flags == 0 else (response, flags)) from None
    if flags not in (0, FLAG_FINAL):
        raise TritonModelException("Unable to send response. Unsupported flag provided.")
    if response is None and flags == 0:
        raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")


class Answer:
    """Builds the response of one request of a batch."""

    __slots__ = ("_model_channel", "_index", "_number", "_id", "_wanted", "_is_placed", "_sender", "_is_final", "is_closed", "response", "_prepared")

    def __init__(self, model_channel: ModelChannel, index: int, wire: Request) -> None:
        self._model_channel = model_channel
        self._index = index
        self._number: int = wire["number"]
        self._id: str = wire["id"]
        # The places of requested outputs, by name. When a place is replaced by a larger one, the request's own list changes too.
        prepared = self._prepared = wire.get("prepared")
        self._wanted: dict[str, PlaceFor] = prepared and prepared.wanted or {output[0]: output for output in wire["outputs"]}
        self._is_placed = False
        self._sender: Optional[weakref.ref[InferenceResponseSender]] = None
        self._is_final = False
        # Whether the batch has been answered. Then no more calls and responses are allowed.
        self.is_closed = False
        # The response for the server.
        self.response: Optional[Response] = None

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request."""
        return self._model_channel.side.is_cancelled(self._number)

    def sender(self) -> InferenceResponseSender:
        """The only sender of this request."""
        found = self._sender() if self._sender is not None else None
        if found is None:
            found = InferenceResponseSender(self)
            self._sender = weakref.ref(found)
        return found

    def sender_if_used(self) -> Optional[InferenceResponseSender]:
        """The sender, if the model still holds it."""
        return self._sender() if self._sender is not None else None

    def send(self, response: Optional[InferenceResponse], flags: int) -> None:
        """Sends a response. The rules and their texts are Triton's."""
        check_send(response, flags)
        with self._model_channel.sending:
            if response is None and self.response is None:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
            if response is not None and self.response is not None:
                raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
            if self._is_final or self.is_closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if response is not None:
                self.write(response)
            self._is_final = flags == FLAG_FINAL
        with self._model_channel.news:
            self._model_channel.news.notify_all()

    def run_again(self) -> None:
        """Schedules the request again, unless it has been answered."""
        with self._model_channel.sending:
            if self.response is None:
                self.response = {"again": True}
                self._is_final = True

    def fail(self, code: str, text: str) -> None:
        """Answers with an error."""
        self.response = {"error": (code, text[:ERROR_CHARACTERS_MAX])}

    def named(self, text: str) -> str:
        """The text of an error, with the id of this request, because its batch may have others."""
        return of_request(self._id, text)

    def refuse(self, code: str, text: str) -> None:
        """Answers with an error, before the model has seen the request."""
        self.fail(code, text)

    def write(self, response: InferenceResponse) -> None:
        """Writes the outputs to their places. Outputs that were not requested are left out."""
        error = response._error
        if error is not None:
            self.fail(error.code().name, error.message())
            return
        try:
            # If two outputs have the same name, the last one is used, as in Triton.
            outputs = {}
            declared, wanted = self._model_channel.declared, self._wanted
            for tensor in response._outputs:
                name = tensor._name
                if name not in declared:
                    self._model_channel.warn_undeclared(name)
                place = wanted.get(name)
                if place is not None:
                    outputs[name] = self._put(tensor, place)
            self.response = {"outputs": list(outputs.values()), "parameters": response._parameters or {}}
        except Ended:
            raise
        except (Refused, Unmapped) as refused:
            self.fail("INTERNAL", str(refused))
        except Exception as broken:  # noqa: BLE001 - an element's own __str__, for one
            why = f"output '{tensor._name}' could not be written: {type(broken).__name__}: {broken}"
            self.fail("INTERNAL", self.named(why))

    def _put(self, tensor: Tensor, place: PlaceFor) -> TensorAt:
        """Writes one output directly to its place, with a single copy. Returns its description for the server."""
        device = tensor.on_device
        array: Any = tensor.array() if device is None else device
        name, datatype, shape = tensor._name, tensor.datatype, array.shape
        if datatype == "BYTES":
            return self._put_bytes(name, array, place)
        prepared = self._prepared
        known = prepared and prepared.written(tensor, array, place)
        if known and not self._is_placed:
            view, tensor_at = known
            if device is None:
                view[...] = array
            else:
                device.copy_to(view)
            return tensor_at  # type: ignore[no-any-return]
        byte_size = array.nbytes
        _, segment, offset, capacity, fixed = place
        if segment is None or byte_size > capacity:
            if fixed or not byte_size:
                return name, datatype, shape, None, 0, byte_size
            self._enlarge(place, byte_size)
            _, segment, offset, _, _ = place
        held = self._model_channel.memory[segment]
        if type(held) is not np.ndarray:
            held.write(array, offset)
            return name, datatype, shape, segment, offset, byte_size
        view = np.ndarray(shape, NUMPY_DTYPES[datatype], held, offset)
        if device is not None:
            device.copy_to(view)
        elif not ((self._is_placed or byte_size >= _IN_PLACE_BYTES_MIN) and _is_there(array, view)):
            view[...] = array
        tensor_at = (name, datatype, shape, segment, offset, byte_size)
        if prepared and fixed:
            prepared.note(view, tensor_at)
        return tensor_at

    def _put_bytes(self, name: str, array: np.ndarray, place: PlaceFor) -> TensorAt:
        elements = encoded(array)
        byte_size = encoded_bytes(elements)
        if place[1] is None or byte_size > place[3]:
            if place[4] or not byte_size:
                return name, "BYTES", array.shape, None, 0, byte_size
            self._enlarge(place, byte_size)
        held = self._model_channel.memory[place[1]]
        if type(held) is np.ndarray:
            write_elements(elements, held, place[2])
        else:
            serialised = np.empty(byte_size, np.uint8)
            write_elements(elements, serialised, 0)
            held.write(serialised, place[2])
        return name, "BYTES", array.shape, place[1], place[2], byte_size

    def _enlarge(self, place: PlaceFor, byte_size: int) -> None:
        """Replaces a place of a guessed size by one that is large enough."""
        if place[1] is not None:
            self._model_channel.replaced.append(place[1])
        place[1:4] = self._model_channel.request_place(self._index, place[0], byte_size)

    def output_array(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array over the place of an output. An ordinary array if no place fits."""
        dtype = np.dtype(dtype)
        datatype = DATATYPES.get(dtype.num)
        if datatype is None or datatype == "BYTES" or not dtype.isnative:
            raise TritonModelException(f"Output '{name}' of dtype {dtype} cannot be computed in place.")
        with self._model_channel.sending:
            return self._place(name, shape, dtype)

    def _place(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        if self.is_closed:
            raise TritonModelException("The request has been answered already.")
        place = self._wanted.get(name)
        byte_size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        is_unmapped = place is not None and place[1] in self._model_channel.memory.unmapped
        if place is None or is_unmapped or (place[4] and (place[1] is None or byte_size > place[3])):
            return np.empty(shape, dtype)
        if place[1] is None or byte_size > place[3]:
            self._enlarge(place, byte_size)
        held = self._model_channel.memory[place[1]]
        if type(held) is not np.ndarray:
            return np.empty(shape, dtype)
        self._is_placed = True
        return np.ndarray(shape, dtype, held, place[2])


def _is_there(array: np.ndarray, view: np.ndarray) -> bool:
    """Whether the array already lies at the place."""
    return array.flags.c_contiguous and bool(array.__array_interface__["data"][0] == view.__array_interface__["data"][0])
