"""Which objects are a model's requests and responses?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from . import arguments
from .arguments import Unfit
from .errors import Named, TritonError, TritonModelException, refused_arguments, refused_call
from .packets import Request, encode
from .tensors import Tensor

if TYPE_CHECKING:
    from .answer import Answer

FLAG_FINAL = 1
RELEASE_RESCHEDULE = 2


class MemoryType(Named):
    """The kind of a tensor's memory."""

    __module__ = "c_python_backend_utils"
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = range(2)


class PreferredMemory:
    """The preferred memory for outputs of a nested request."""

    __module__ = "c_python_backend_utils"

    def __init__(self, preferred_memory_type: Any, preferred_device_id: int = 0) -> None:
        try:
            self.preferred_memory_type = arguments.instance(preferred_memory_type, MemoryType)
            self.preferred_device_id = arguments.signed_64(preferred_device_id)
        except Unfit:
            signature = "preferred_memory_type: c_python_backend_utils.MemoryType, preferred_device_id: int = 0"
            given = (preferred_memory_type,) if preferred_device_id == 0 else (preferred_memory_type, preferred_device_id)
            raise refused_arguments("PreferredMemory", signature, given) from None


class InferenceTrace:
    """The trace of a request. If it is given to a request for another model, that request's trace is a child of this one."""

    __module__ = "c_python_backend_utils"
    # The server's number of the request. None for a request that the model made.
    _number: Optional[int] = None
    # The context for other systems, so that their spans are below the request's. None if there are no spans.
    _context: Optional[dict[str, str]] = None

    @staticmethod
    def _of(number: Optional[int], context: Optional[dict[str, str]] = None) -> InferenceTrace:
        trace = InferenceTrace()
        trace._number = number
        trace._context = context
        return trace

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry context in JSON, or None: the headers ``traceparent`` and perhaps ``tracestate``."""
        return None if self._context is None else encode(self._context)


_REQUEST_SIGNATURE = (
    "request_id: str = '', correlation_id: object = 0, inputs: List[c_python_backend_utils.Tensor], "
    "requested_output_names: List[str], model_name: str, model_version: int = -1, flags: int = 0, timeout: int = 0, "
    "preferred_memory: c_python_backend_utils.PreferredMemory, trace: c_python_backend_utils.InferenceTrace, "
    "parameters: object = None"
)
_FLAGS_SIGNATURE = "self: c_python_backend_utils.InferenceRequest, arg0: int"
_EXEC_SIGNATURE = "self: c_python_backend_utils.InferenceRequest, decoupled: bool = False"
# The value of an argument that was not given and has no value of its own. None is not accepted for such an argument.
_DEFAULT: Any = type("_Default", (), {})()
_REQUEST_ARGUMENTS: dict[str, Any] = {
    "request_id": "",
    "correlation_id": 0,
    "inputs": None,
    "requested_output_names": None,
    "model_name": None,
    "model_version": -1,
    "flags": 0,
    "timeout": 0,
    "preferred_memory": _DEFAULT,
    "trace": _DEFAULT,
    "parameters": None,
}


def _refused_request(values: tuple[Any, ...]) -> TypeError:
    named = {name: value for (name, usual), value in zip(_REQUEST_ARGUMENTS.items(), values) if value is not usual}
    return refused_arguments("InferenceRequest", _REQUEST_SIGNATURE, (), named)


def _checked_correlation(correlation_id: Any) -> Union[int, str]:
    if isinstance(correlation_id, str):
        return correlation_id
    if not isinstance(correlation_id, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= correlation_id < 1 << 64:
        raise arguments.uncastable(correlation_id)
    return int(correlation_id)


class InferenceRequest:
    """One request of a batch. Its arrays are valid until it is answered. In default mode, that is when ``execute`` returns."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_wire", "_inputs", "_answer", "_flags", "_trace", "_is_again", "__weakref__")
    # The function that sends a request to another model. None if there is no server.
    _exec: Optional[Callable[[InferenceRequest, bool], Any]] = None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Optional[Sequence[Tensor]] = None,
        requested_output_names: Optional[Sequence[str]] = None,
        model_name: Optional[str] = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _DEFAULT,
        trace: InferenceTrace = _DEFAULT,
        parameters: Optional[dict[str, Any]] = None,
    ) -> None:
        try:
            request_id, model_name = arguments.text(request_id), arguments.text(model_name)
            arguments.some(correlation_id)
            inputs = list(arguments.instances(inputs, Tensor))
            requested_output_names = arguments.texts(requested_output_names)
            model_version = arguments.signed_64(model_version)
            flags, timeout = arguments.unsigned_32(flags), arguments.unsigned_64(timeout)
            if preferred_memory is not _DEFAULT:
                arguments.instance(preferred_memory, PreferredMemory)
            trace = None if trace is _DEFAULT else arguments.instance(trace, InferenceTrace)
        except Unfit:
            given = (request_id, correlation_id, inputs, requested_output_names, model_name, model_version, flags, timeout)
            raise _refused_request((*given, preferred_memory, trace, parameters)) from None
        checked = checked_parameters(parameters, (bool, int, str, float), "bool/int/str/float")
        correlation_id = _checked_correlation(correlation_id)
        if None in inputs:
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        if "" in requested_output_names:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        self._wire: dict[str, Any] = {
            "model": model_name,
            "version": model_version,
            "id": request_id,
            "correlation": correlation_id,
            "timeout": timeout,
            "parameters": checked,
            "outputs": [[name] for name in requested_output_names],
        }
        self._inputs = inputs
        self._answer: Optional[Answer] = None
        self._flags = flags
        self._trace = trace
        self._is_again = False

    @staticmethod
    def _of(wire: Request, inputs: list[Tensor], answer: Answer) -> InferenceRequest:
        """Makes a request that a client sent."""
        request = InferenceRequest.__new__(InferenceRequest)
        request._wire = wire  # type: ignore[assignment]
        request._inputs = inputs
        request._answer = answer
        request._flags = wire["flags"]
        # The trace is made at first use.
        request._trace = None
        request._is_again = False
        return request

    def inputs(self) -> list[Tensor]:
        """The input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """The client's id of the request."""
        return str(self._wire["id"])

    def correlation_id(self) -> Union[int, str]:
        """The sequence of the request. 0 for none."""
        correlation: Union[int, str] = self._wire["correlation"]
        return correlation

    def flags(self) -> int:
        """The sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Changes the sequence flags."""
        try:
            self._flags = arguments.unsigned_32(flags)
        except Unfit:
            raise refused_call("set_flags", _FLAGS_SIGNATURE, (self, flags)) from None

    def timeout(self) -> int:
        """The request's timeout in µs. 0 for none."""
        return int(self._wire["timeout"])

    def parameters(self) -> str:
        """The request's parameters, in JSON."""
        return encode(self._wire["parameters"])

    def requested_output_names(self) -> set[str]:
        """The outputs that the client requested."""
        return {output[0] for output in self._wire["outputs"]}

    def trace(self) -> InferenceTrace:
        """The trace that the request belongs to."""
        if self._trace is None:
            self._trace = InferenceTrace._of(self._wire.get("number"), self._wire.get("trace"))
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request."""
        return self._answer is not None and self._answer.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender of this request's responses. Any thread may use it."""
        if self._answer is None:
            raise TritonModelException("The request was made by the model and has no response sender.")
        return self._answer.sender()

    def set_release_flags(self, flags: int) -> None:
        """Sets what happens to the request when ``execute`` returns. With the flag for rescheduling, the request runs again and is not
        answered."""
        try:
            self._is_again = arguments.unsigned_32(flags) == RELEASE_RESCHEDULE
        except Unfit:
            raise refused_call("set_release_flags", _FLAGS_SIGNATURE, (self, flags)) from None

    def output_array(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array of this shape and dtype over the place of the output ``name``. A result that is computed into it (``out=``) and returned
        as ``Tensor(name, array)`` is not copied again. Not in Triton.
        """
        if self._answer is None:
            raise TritonModelException("The request was made by the model and has no outputs here.")
        return self._answer.output_array(name, shape, dtype)

    def exec(self, decoupled: bool = False) -> Any:
        """Sends the request to the model that it names, and waits for the response. If decoupled, returns an iterator over the
        responses."""
        try:
            decoupled = arguments.truth(decoupled)
        except Unfit:
            raise refused_call("exec", _EXEC_SIGNATURE, (self, decoupled), "object") from None
        if InferenceRequest._exec is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return InferenceRequest._exec(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """As :meth:`exec`, for ``await``. If decoupled, the first response has arrived then."""
        import asyncio
        import contextvars

        try:
            decoupled = arguments.truth(decoupled)
        except Unfit:
            raise refused_call("async_exec", _EXEC_SIGNATURE, (self, decoupled), "object") from None
        # The thread gets the context of the calling task, which shows whether `execute` has started that task (`waiting`).
        return asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, self._exec_and_hear, decoupled)

    def _exec_and_hear(self, decoupled: bool) -> Any:
        responses = self.exec(decoupled)
        if decoupled:
            responses._await_first()
        return responses


class InferenceResponse:
    """The outputs of one request, or its error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_outputs", "_error", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[dict[str, Any]] = None,
    ) -> None:
        if type(output_tensors) not in (list, tuple) or (error is not None and not isinstance(error, TritonError)):
            output_tensors = _checked_outputs(output_tensors, error, parameters)
        for tensor in output_tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                if tensor is None and _may_be_none(output_tensors):
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise _refused_response(output_tensors, error, parameters)
        # A copy of the list, as in compiled code, because the model may use the given one again.
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = checked_parameters(parameters, (bool, int, str), "bool/int/str") if parameters is not None else None

    def output_tensors(self) -> list[Tensor]:
        """The output tensors."""
        return list(self._outputs)

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """The error of the request."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters, in JSON."""
        return encode(self._parameters or {})


def _checked_outputs(outputs: Any, error: Any, parameters: Any) -> Sequence[Tensor]:
    try:
        if error is not None:
            arguments.instance(error, TritonError)
        return arguments.items(outputs)
    except Unfit:
        raise _refused_response(outputs, error, parameters) from None


def _may_be_none(outputs: Sequence[Any]) -> bool:
    """Whether every element has a type that is accepted. The types of all elements are checked before their values."""
    return all(one is None or isinstance(one, Tensor) for one in outputs)


def _refused_response(outputs: Any, error: Any, parameters: Any) -> TypeError:
    signature = (
        "output_tensors: List[c_python_backend_utils.Tensor] = [], error: c_python_backend_utils.TritonError = None, "
        "parameters: object = None"
    )
    # The exact form of the call is unknown here. This is the usual one.
    named = {key: value for key, value in (("error", error), ("parameters", parameters)) if value is not None}
    return refused_arguments("InferenceResponse", signature, () if outputs == () else (outputs,), named)


class InferenceResponseSender:
    """Sends the responses of one request, from any thread."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_answer", "__weakref__")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Sends the response. With the final flag, no more responses follow."""
        self._answer.send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request."""
        return self._answer.is_cancelled()


def checked_parameters(parameters: Any, kinds: tuple[type, ...], names: str) -> dict[str, Any]:
    """The parameters, after a check: keys are strings, and values have types that can be sent."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, kinds):
            raise TritonModelException(f"Expect parameters values to have type {names}, found type {type(value)}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise TritonModelException(f"Expect parameters values to fit into 64 bits, found {value}")
        # They travel as JSON, which has no such numbers.
        if isinstance(value, float) and not math.isfinite(value):
            raise TritonModelException(f"Expect parameters values to be finite numbers, found {float(value)}")
    return dict(parameters)
