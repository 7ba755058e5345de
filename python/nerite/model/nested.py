"""How does a model send requests to other models of the server?

Inputs in memory that the server shares with this process are not copied. Others are copied once into memory that the server provides.
Outputs are read where the other model, or the server, wrote them.
"""

from __future__ import annotations

import collections
import math
import re
import threading
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import arguments, waiting
from .arguments import Unfit
from .errors import TritonError, TritonModelException, refused_call
from .requests import InferenceRequest, InferenceResponse
from .tensors import NUMPY_DTYPES, DeviceTensor, Tensor, decoded, encoded, encoded_bytes, write_elements

if TYPE_CHECKING:
    from .answer import ModelChannel

_ALIGN = 64
_LOAD_SIGNATURE = "model_name: str, config: str = '', files: object = None"
_UNLOAD_SIGNATURE = "model_name: str, unload_dependents: bool = False"
_READY_SIGNATURE = "model_name: str, model_version: str = ''"
# An iterator keeps the responses that it has read for a second loop, as in Triton. It drops them when they have more tensors or bytes than this.
_KEPT_TENSORS_MAX = 64
_KEPT_BYTES_MAX = 16 << 20
# The most iterators of a process that keep responses, because all share the memory of the instance.
_KEEPING_MAX = 8
# What a short element of BYTES takes beside its length and text.
_ELEMENT_BYTES = 48
_READINESS_FAILED = "Failed to check model readiness: "
ONLY_IN_EXECUTE = "BLS is only supported during the 'execute' function."
NOT_IN_TEMPLATES = (
    "With SHARE_INITIALIZE, 'initialize' runs in a process that cannot load, unload or look at other models; do that in 'initialize_instance'."
)
# Set while the model may call the server.
_model_channel: "Optional[ModelChannel]" = None
# Otherwise, why the model may not call the server.
_refusal = ONLY_IN_EXECUTE


def connect(model_channel: "Optional[ModelChannel]") -> None:
    """Allows the model to load other models. None: this process is a template, whose calls the server does not read."""
    global _model_channel, _refusal
    _model_channel = model_channel
    _refusal = NOT_IN_TEMPLATES if model_channel is None else ONLY_IN_EXECUTE


def begin() -> None:
    """Allows the model to send requests."""
    InferenceRequest._exec = staticmethod(execute)


def end() -> None:
    """Forbids requests again. The model may still load, unload and check other models."""
    InferenceRequest._exec = None


def speaking() -> "ModelChannel":
    """The model's channel to the server. Raises ``TritonModelException`` if the model may not use it now."""
    if _model_channel is None:
        raise TritonModelException(_refusal)
    return _model_channel


def execute(request: InferenceRequest, decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
    """Sends a request, and waits for its only response. If decoupled, returns an iterator over all responses."""
    model_channel = speaking()
    number = _begin(model_channel, request, decoupled, is_copied=False)
    if decoupled:
        return ResponseIterator._of(model_channel, request, number)
    answer = model_channel.calls.wait(number)
    if answer.get("unknown"):
        answer = model_channel.calls.wait(_begin(model_channel, request, decoupled, is_copied=True))
    return _response(model_channel, answer)


def _begin(model_channel: "ModelChannel", request: InferenceRequest, decoupled: bool, is_copied: bool) -> int:
    forget_unwanted(model_channel)
    wire = request._wire
    is_held = waiting.is_held_by_caller(model_channel)
    question = {
        "model": wire["model"],
        "version": wire["version"],
        "id": wire["id"],
        "correlation": wire["correlation"],
        "flags": request._flags,
        "timeout": wire["timeout"],
        "parameters": wire["parameters"],
        "inputs": _inputs(model_channel, request._inputs, is_copied),
        "wanted": [output[0] for output in wire["outputs"]],
        "decoupled": decoupled,
        "waits": is_held,
    }
    if request._trace is not None and request._trace._number is not None:
        question["trace"] = request._trace._number
    number = model_channel.calls.begin({"infer": question, **_let_go(model_channel)})
    if not is_held:
        model_channel.watch.add(number)
    return number


def _let_go(model_channel: "ModelChannel") -> dict[str, Any]:
    """The field that reports which memory of earlier answers the model does not use any more. Without it, a loop of requests would hold the
    memory of all answers."""
    let_go = model_channel.memory.let_go()
    model_channel.memory.given_back(let_go)
    return {"let_go": let_go} if let_go else {}


def _inputs(model_channel: "ModelChannel", inputs: "list[Tensor]", is_copied: bool) -> list[Any]:
    """The place of each input. Inputs that the server cannot access are copied."""
    described, copies, total = [], [], 0
    for tensor in inputs:
        device = tensor.on_device
        array: Any = tensor.array() if device is None else device
        location = None
        if not is_copied and tensor.datatype != "BYTES":
            location = model_channel.memory.find(array) if device is None else model_channel.memory.find_on_device(device)
            if device is not None and location is not None:
                # The other model reads the elements in place, so they must be written before.
                device.await_writers()
        elements = encoded(array) if tensor.datatype == "BYTES" else None
        byte_size = array.nbytes if elements is None else encoded_bytes(elements)
        one = [tensor._name, tensor.datatype, array.shape, *(location or (None, 0)), byte_size]
        described.append(one)
        if location is None and byte_size:
            copies.append((one, tensor.datatype, array, elements, total))
            total += -(-byte_size // _ALIGN) * _ALIGN
    if copies:
        segment, base = space(model_channel, total)
        memory = model_channel.memory[segment]
        for one, datatype, array, elements, at in copies:
            one[3:5] = segment, base + at
            if elements is not None:
                write_elements(elements, memory, base + at)
                continue
            view = np.ndarray(array.shape, NUMPY_DTYPES[datatype], memory, base + at)
            if isinstance(array, np.ndarray):
                view[...] = array
            else:
                array.copy_to(view)
    return described


def space(model_channel: "ModelChannel", byte_size: int) -> tuple[int, int]:
    """Memory of the server for this many bytes: segment and offset."""
    answer = model_channel.calls.call({"space": byte_size})
    if "at" not in answer:
        raise TritonModelException(answer.get("error", "the server has no memory"))
    segment, offset, _ = answer["at"]
    return segment, offset


def _response(model_channel: "ModelChannel", answer: Any) -> InferenceResponse:
    """The server's answer as a response for the model."""
    response = answer.get("response")
    if response is None:
        return InferenceResponse([], None if "error" not in answer else TritonError(answer["error"]))
    if "error" in response:
        code, message = response["error"]
        return InferenceResponse([], TritonError(message, getattr(TritonError, code, TritonError.INTERNAL)))
    own = answer.get("own", ())
    outputs = []
    for name, datatype, shape, segment, offset, byte_size in response["outputs"]:
        memory = model_channel.memory[segment] if segment is not None else _NOTHING
        if datatype == "BYTES":
            tensor = Tensor._of(name, datatype, decoded(memory, offset, byte_size, shape, name))
        elif type(memory) is not np.ndarray:
            tensor = DeviceTensor._on(name, datatype, memory.elements(shape, offset, byte_size))
        else:
            tensor = Tensor._over(name, datatype, shape, memory, offset)
            if segment in own or segment is None:
                tensor._array = np.ndarray(shape, NUMPY_DTYPES[datatype], memory, offset)
        outputs.append(tensor)
        if segment is not None:
            model_channel.memory.hold(segment)
    return InferenceResponse(outputs, None, response.get("parameters") or None)


_NOTHING = np.empty(0, np.uint8)


class ResponseIterator:
    """An iterator over the responses of a request."""

    __module__ = "c_python_backend_utils"

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("c_python_backend_utils.ResponseIterator: No constructor defined!")

    @staticmethod
    def _of(model_channel: "ModelChannel", request: InferenceRequest, number: int) -> "ResponseIterator":
        made = ResponseIterator.__new__(ResponseIterator)
        made._model_channel, made._request, made._number = model_channel, request, number
        made._is_done = made._is_cancelled = made._is_closed = False
        # The responses that were read and that the next steps of the iteration return.
        made._ahead = collections.deque()
        # The responses that were read so far. None after some were dropped.
        made._kept = []
        made._read_count = made._kept_tensors = made._kept_bytes = 0
        # Added before the count, so that threads which do this at the same time cannot exceed the limit.
        model_channel.keeping.add(made)
        if len(model_channel.keeping) > _KEEPING_MAX:
            made._drop_kept()
        # The first answer may report that the server does not know the memory of an input. Then the inputs are sent again, as copies.
        made._is_heard = False
        # Held by the thread that waits for a response.
        made._waiting = threading.Lock()
        model_channel.iterators.add(number)
        return made

    def __iter__(self) -> "ResponseIterator":
        """The iterator itself. If it has returned all responses, it starts again at the first one."""
        if self._is_done and not self._ahead and not self._is_closed:
            if self._kept is None:
                raise RuntimeError(
                    f"the responses of this request ({self._read_count}) were not kept for a second loop: an iterator keeps at most {_KEPT_TENSORS_MAX} "
                    f"tensors and {_KEPT_BYTES_MAX} bytes, and an instance keeps those of at most {_KEEPING_MAX} iterators; "
                    "keep the responses in a list"
                )
            self._ahead.extend(self._kept)
        return self

    def _await_first(self) -> None:
        """Waits for the first response, or for the end if there is none."""
        for response in self:
            self._ahead.append(response)
            return

    def __next__(self) -> InferenceResponse:
        if self._ahead:
            return self._ahead.popleft()
        with self._waiting:
            if self._is_done:
                raise StopIteration
            answer = self._answer()
            self._is_done = answer.get("final", True)
            if self._is_closed:
                # Another thread has closed the iterator meanwhile, so the rest is not read.
                self._model_channel.calls.discard(answer)
                self._finish()
                raise StopIteration
            try:
                response = _response(self._model_channel, answer)
                self._keep(response, answer)
                return response
            finally:
                # A response that cannot be read counts as taken too.
                if self._is_done:
                    self._finish()
                else:
                    self._model_channel.calls.notify({"taken": self._number, **_let_go(self._model_channel)})

    def _answer(self) -> Any:
        """The next answer of the server."""
        calls = self._model_channel.calls
        answer = calls.next(self._number)
        if answer.get("unknown") and not self._is_heard:
            calls.drop(self._number)
            self._model_channel.iterators.discard(self._number)
            self._number = _begin(self._model_channel, self._request, True, is_copied=True)
            self._model_channel.iterators.add(self._number)
            if self._is_cancelled:
                calls.notify({"cancel": self._number})
            answer = calls.next(self._number)
        self._is_heard = True
        return answer

    def _keep(self, response: InferenceResponse, answer: Any) -> None:
        """Keeps a response for a second loop, or drops all if that would be too much."""
        self._read_count += 1
        kept = self._kept
        if kept is None:
            return
        described = answer.get("response") or {}
        outputs = described.get("outputs", ())
        self._kept_tensors += max(len(outputs), 1)
        self._kept_bytes += sum(len(str(described.get(part, ""))) for part in ("parameters", "error"))
        for _, datatype, shape, _, _, byte_size in outputs:
            self._kept_bytes += byte_size + (_ELEMENT_BYTES * math.prod(shape) if datatype == "BYTES" else 0)
        if self._kept_tensors > _KEPT_TENSORS_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            self._drop_kept()
        else:
            kept.append(response)

    def _drop_kept(self) -> None:
        self._kept = None
        self._model_channel.keeping.discard(self)

    def _finish(self) -> None:
        self._is_done = True
        self._model_channel.calls.drop(self._number)
        self._model_channel.iterators.discard(self._number)

    def cancel(self) -> None:
        """Cancels the request. Responses that were already sent still arrive."""
        if not self._is_done and not self._is_cancelled:
            self._is_cancelled = True
            self._model_channel.calls.notify({"cancel": self._number})

    def close(self) -> None:
        """Cancels the request, and ends the iteration. A thread that waits for a response gets none. Not in Triton."""
        self._is_closed = True
        self._ahead.clear()
        self._drop_kept()
        self.cancel()
        # A thread that waits is woken by the server's answer to the cancellation.
        if self._waiting.acquire(blocking=False):
            try:
                if not self._is_done:
                    self._finish()
            finally:
                self._waiting.release()

    def __del__(self) -> None:
        # No lock may be taken here, because a finalizer can run within any other code.
        if not self.__dict__.get("_is_done", True):
            self._model_channel.unwanted.append(self._number)


def forget_unwanted(model_channel: "ModelChannel") -> None:
    """Cancels the requests of iterators that were collected."""
    while model_channel.unwanted:
        number = model_channel.unwanted.popleft()
        model_channel.calls.notify({"cancel": number})
        model_channel.calls.drop(number)
        model_channel.iterators.discard(number)


def load_model(model_name: str, config: str = "", files: "Optional[dict[str, bytes]]" = None) -> None:
    """Loads or reloads a model of the server. With ``files``, from these files and not from its repository."""
    try:
        model_name, config = arguments.text(model_name), arguments.text(config)
    except Unfit:
        raise refused_call("load_model", _LOAD_SIGNATURE, (model_name, config, files)) from None
    contents = _contents(model_name, files)
    model_channel = speaking()
    total = sum(-(-len(content) // _ALIGN) * _ALIGN for content in contents.values())
    segment, at, described = None, 0, []
    if total:
        segment, at = space(model_channel, total)
    for path, content in contents.items():
        # A file without bytes needs no memory.
        place = (segment, at) if content else (0, 0)
        if content:
            np.frombuffer(model_channel.memory[segment], np.uint8)[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += -(-len(content) // _ALIGN) * _ALIGN
        described.append([path.removeprefix("file:"), *place, len(content)])
    _done("Failed to load model: ", model_channel.calls.call({"load": [model_name, config, described]}))


def _contents(model_name: str, files: Any) -> "dict[str, bytes]":
    """The files, after a check of their types."""
    if files is None:
        return {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    for path, content in files.items():
        if not isinstance(path, str):
            raise arguments.uncastable(path)
        if not isinstance(content, bytes):
            raise arguments.uncastable(content)
    return files


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model of the server."""
    try:
        model_name, unload_dependents = arguments.text(model_name), arguments.truth(unload_dependents)
    except Unfit:
        raise refused_call("unload_model", _UNLOAD_SIGNATURE, (model_name, unload_dependents)) from None
    _done("Failed to unload model: ", speaking().calls.call({"unload": [model_name, unload_dependents]}))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a version of a model is ready. Without a number, the highest one."""
    try:
        model_name, model_version = arguments.text(model_name), arguments.text(model_version)
    except Unfit:
        raise refused_call("is_model_ready", _READY_SIGNATURE, (model_name, model_version), "bool") from None
    model_channel = speaking()
    version = _version(model_version)
    return bool(_done(_READINESS_FAILED, model_channel.calls.call({"is_ready": [model_name, version]})))


def _version(text: str) -> "Optional[int]":
    """The number of a version. None for an empty text. As C's ``strtol`` does, it ignores what follows the number."""
    if not text:
        return None
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", text)
    number = int(found.group(1)) if found else None
    if number is None or not 0 <= number < 1 << 63:
        is_stol = number is None or not -(1 << 63) <= number < 1 << 63
        details = " (details: stol)" if is_stol else ""
        raise TritonModelException(
            f"{_READINESS_FAILED}failed to get model version from specified version string '{text}'{details}, "
            "version should be an integral value > 0"
        )
    return number


def _done(what: str, answer: Any) -> Any:
    if "error" in answer:
        raise TritonModelException(what + answer["error"])
    return answer.get("done", False)
