"""Which objects are a model's requests and responses?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from .errors import Named, TritonError, TritonModelException, refused_arguments
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
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request. If it is given to a request for another model, that request's trace is a child of this one."""

    __module__ = "c_python_backend_utils"
    # The server's number of the request. None for a request that the model made.
    _number: Optional[int] = None
    # What other systems are told, so that their spans are below the request's; None where there are no spans.
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


class InferenceRequest:
    """One request of a batch. Its arrays are valid until it is answered, in default mode: until ``execute`` returns."""

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
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[dict[str, Any]] = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise refused_arguments("InferenceRequest", _REQUEST_SIGNATURE)
        if any(tensor is None for tensor in inputs):
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        if any(not name for name in requested_output_names):
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        self._wire: dict[str, Any] = {
            "model": model_name,
            "version": model_version,
            "id": request_id,
            "correlation": correlation_id,
            "timeout": timeout,
            "parameters": checked_parameters(parameters, (bool, int, str, float), "bool/int/str/float"),
            "outputs": [[name] for name in requested_output_names],
        }
        self._inputs = list(inputs)
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
        # Made when it is asked for.
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
        self._flags = flags

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
        self._is_again = flags == RELEASE_RESCHEDULE

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
        if InferenceRequest._exec is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return InferenceRequest._exec(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """As :meth:`exec`, for ``await``."""
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)


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
        is_list = type(output_tensors) in (list, tuple)
        if not is_list or (error is not None and not isinstance(error, TritonError)):
            raise _refused_response(output_tensors, error, parameters)
        for tensor in output_tensors:
            if type(tensor) is not Tensor:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise _refused_response(output_tensors, error, parameters)
        self._outputs = output_tensors
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
    return dict(parameters)
