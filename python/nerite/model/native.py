"""What does the module ``c_python_backend_utils`` contain, which is compiled code in Triton?"""

from __future__ import annotations

from .errors import TritonError, TritonModelException
from .logger import Logger
from .metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Metric,
    MetricFamily,
    MetricKind,
)
from .nested import ResponseIterator, is_model_ready, load_model, unload_model
from .requests import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from .tensors import Tensor

TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]
