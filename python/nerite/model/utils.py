"""What does the module ``triton_python_backend_utils`` contain?

It can be imported without a server, to test a model: ``import nerite.model.utils as pb_utils``.
"""

from __future__ import annotations

import json  # noqa: F401 - models use what Triton's module happens to import, too
import struct
from typing import Any, Optional

import numpy as np

from .config import ModelConfig
from .native import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    Logger,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    is_model_ready,
    load_model,
    unload_model,
)
from .tensors import encoded

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
# In the order of the numbers of datatypes in Triton's C API, from 1.
_NUMBERED: list[Any] = [np.bool_, *list(TRITON_STRING_TO_NUMPY.values())[1:]]
_model_dir = ""


def get_model_dir() -> str:
    """The directory of the running model's version."""
    return _model_dir


def serialize_byte_tensor(input_tensor: np.ndarray) -> Any:
    """The serialised elements in row-major order, each after its length. ``()`` for no elements, None for an array of numbers."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return b"".join(part for one in encoded(input_tensor) for part in (struct.pack("<I", len(one)), one))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray:
    """The elements that :func:`serialize_byte_tensor` wrote: an object array of one dimension."""
    found, at = [], 0
    while at < len(encoded_tensor):
        (length,) = struct.unpack_from("<I", encoded_tensor, at)
        (element,) = struct.unpack_from(f"<{length}s", encoded_tensor, at + 4)
        found.append(element)
        at += 4 + length
    return np.array(found, dtype=np.object_)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """The request's input of this name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """The response's output of this name, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> Optional[dict[str, Any]]:
    """The configuration of the input of this name, or None."""
    return next((one for one in model_config.get("input", ()) if one["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> Optional[dict[str, Any]]:
    """The configuration of the output of this name, or None."""
    return next((one for one in model_config.get("output", ()) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the model is decoupled by its configuration."""
    return model_config["model_transaction_policy"]["decoupled"] if "model_transaction_policy" in model_config else False


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a datatype's number in Triton's C API. None if it has none."""
    return _NUMBERED[data_type - 1] if 0 < data_type <= len(_NUMBERED) else None


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """The number of a numpy type in Triton's C API. None if it has none."""
    if data_type == np.bytes_:
        return 13
    return next((number for number, known in enumerate(_NUMBERED, start=1) if data_type == known), None)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a name such as ``TYPE_FP32``."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]
