"""What does a model see of a request, and what does it answer with?"""

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
    """Where a tensor's memory is."""

    __module__ = "c_python_backend_utils"
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = range(2)


class PreferredMemory:
    """Where the outputs of a request that a model sends should lie."""

    __module__ = "c_python_backend_utils"

    def __init__(self, preferred_memory_type: Any, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace a request belongs to. Given to a request for another model, it shows that one below this one."""

    __module__ = "c_python_backend_utils"
    # The server's number for the request; None for a request that the model made.
    _number: Optional[int] = None

    @staticmethod
    def _of(number: Optional[int]) -> InferenceTrace:
        trace = InferenceTrace()
        trace._number = number
        return trace

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry context in JSON, or None."""
        return None


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
    # How a request is sent to another model; None where there is no server.
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
        """A request that a client sent."""
        request = InferenceRequest.__new__(InferenceRequest)
        request._wire = wire  # type: ignore[assignment]
        request._inputs = inputs
        request._answer = answer
        request._flags = wire["flags"]
        request._trace = InferenceTrace._of(wire.get("number"))
        request._is_again = False
        return request

    def inputs(self) -> list[Tensor]:
        """The input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """What the client called the request."""
        return str(self._wire["id"])

    def correlation_id(self) -> Union[int, str]:
        """The sequence that the request belongs to; 0 for none."""
        correlation: Union[int, str] = self._wire["correlation"]
        return correlation

    def flags(self) -> int:
        """The sequence flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Changes the sequence flags."""
        self._flags = flags

    def timeout(self) -> int:
        """The request's timeout in µs; 0 for none."""
        return int(self._wire["timeout"])

    def parameters(self) -> str:
        """The request's parameters, in JSON."""
        return encode(self._wire["parameters"])

    def requested_output_names(self) -> set[str]:
        """The outputs the client wants."""
        return {output[0] for output in self._wire["outputs"]}

    def trace(self) -> InferenceTrace:
        """The trace that the request belongs to."""
        return self._trace or InferenceTrace()

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._answer is not None and self._answer.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends the response of this request from any thread."""
        if self._answer is None:
            raise TritonModelException("The request was made by the model and has no response sender.")
        return self._answer.sender()

    def set_release_flags(self, flags: int) -> None:
        """Says what becomes of the request when ``execute`` returns: with the flag for that it is scheduled again, and not answered."""
        self._is_again = flags == RELEASE_RESCHEDULE

    def output_array(self, name: str, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array of this shape and dtype over the place where the output ``name`` will go: what is computed into it
        (``out=``) and answered as ``Tensor(name, array)`` is not copied again. Not in Triton.
        """
        if self._answer is None:
            raise TritonModelException("The request was made by the model and has no outputs here.")
        return self._answer.output_array(name, shape, dtype)

    def exec(self, decoupled: bool = False) -> Any:
        """Asks the model that the request names, and waits for its response; decoupled, gives an iterator over any number of them."""
        if InferenceRequest._exec is None:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return InferenceRequest._exec(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """The same, to be awaited."""
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)


class InferenceResponse:
    """The outputs of one request, or the error it failed with."""

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
        """What the request failed with."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters, in JSON."""
        return encode(self._parameters or {})


def _refused_response(outputs: Any, error: Any, parameters: Any) -> TypeError:
    signature = (
        "output_tensors: List[c_python_backend_utils.Tensor] = [], error: c_python_backend_utils.TritonError = None, "
        "parameters: object = None"
    )
    # How it was called cannot be seen from here; this is how it mostly is.
    named = {key: value for key, value in (("error", error), ("parameters", parameters)) if value is not None}
    return refused_arguments("InferenceResponse", signature, () if outputs == () else (outputs,), named)


class InferenceResponseSender:
    """Sends the response of one request, from any thread."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_answer", "__weakref__")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Sends the response; with ``flags`` final, says that no more will come."""
        self._answer.send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._answer.is_cancelled()


def checked_parameters(parameters: Any, kinds: tuple[type, ...], names: str) -> dict[str, Any]:
    """The parameters, whose keys are text and whose values are of the kinds that can travel."""
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
