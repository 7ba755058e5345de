"""How does a model make its own metrics?

The server keeps the metrics and shows them on its metrics port. Each change is a call on the side channel, which is open from the start, so
metrics can be made in ``initialize``.
"""

from __future__ import annotations

import collections
import weakref
from typing import Any, Deque, Optional

from .channel import Ended, SideChannel
from .errors import Named, TritonModelException, refused_arguments, refused_call

_SIGNATURE = "name: str, description: str, kind: c_python_backend_utils.MetricKind"
_ORPHAN = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER "
    "its corresponding 'Metric' objects have been deleted."
)
_side: Optional[SideChannel] = None
_instance = ""
# Families that the model has dropped, and that were not reported to the server yet.
_gone: Deque[int] = collections.deque()


def connect(side: SideChannel, instance: str) -> None:
    """Sets the channel to the server."""
    global _side, _instance
    _side, _instance = side, instance


def forget_gone() -> None:
    """Reports to the server which families the model has dropped."""
    gone = []
    while _gone:
        gone.append(_gone.popleft())
    if gone and _side is not None:
        _side.notify({"unmeasured": gone})


def is_behind() -> bool:
    """Whether a family that the model has dropped was not reported to the server yet."""
    return bool(_gone)


def _call(what: str, question: Any) -> Any:
    if _side is None:
        raise TritonModelException(f"{what}: there is no server that would keep it.")
    forget_gone()
    try:
        answer = _side.call(question)
    except (Ended, OSError) as error:
        # OSError: this process was forked by the model, and does not have the channel.
        raise TritonModelException(f"{what}: the server cannot be reached from this process.") from error
    if "error" in answer:
        raise TritonModelException(f"{what}: Failed to process the request for model '{_instance}', message: {answer['error']}")
    return answer


class MetricKind(Named):
    """The kind of a metric."""

    __module__ = "c_python_backend_utils"
    COUNTER, GAUGE, HISTOGRAM = range(3)


COUNTER, GAUGE, HISTOGRAM = MetricKind


class Metric:
    """One metric of a family, with given labels. It can be used as long as the family exists."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_family")

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    def increment(self, value: float) -> None:
        """Adds to a counter or a gauge."""
        self._measure("increment", value)

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._measure("set", value)

    def observe(self, value: float) -> None:
        """Adds the value to a histogram."""
        self._measure("observe", value)

    def value(self) -> float:
        """The value of a counter or a gauge."""
        return float(self._change("Failed to get metric value", "value", "0"))

    def _measure(self, how: str, value: Any) -> None:
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise refused_call(how, "self: c_python_backend_utils.Metric, arg0: float", (self, value))
        self._change(f"Failed to {how} metric value", how, repr(float(value)))

    def _change(self, what: str, how: str, value: str) -> Any:
        if self._family() is None:
            raise TritonModelException(f"{what}: {_ORPHAN}")
        # The value is sent as text, because JSON has no infinities and no NaN.
        return _call(what, {"measure": [self._number, how, value]})["value"]


class MetricFamily:
    """The metrics of one name. Families of several models with the same name are one family, which is removed with the last of them."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_kind", "__weakref__")
    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, *given: Any, **named: Any) -> None:
        rest = [named.get(key) for key in ("name", "description", "kind")[len(given) :]]
        texts = [*given, *rest]
        if len(texts) != 3 or len(given) + len(named) != 3 or not _fit(texts):
            raise refused_arguments("MetricFamily", _SIGNATURE, given, named)
        name, description, self._kind = texts
        self._number = _call(
            "Error when creating MetricFamily", {"metric_family": [name, description, self._kind.name]}
        )["number"]

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:
        """The metric with these labels. For a histogram, ``buckets`` are its ascending upper bounds."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if self._kind is MetricKind.HISTOGRAM and buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if self._kind is not MetricKind.HISTOGRAM and buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        bounds = None if buckets is None else [repr(float(bound)) for bound in buckets]
        made = Metric.__new__(Metric)
        made._family = weakref.ref(self)
        named = {str(name): value for name, value in (labels or {}).items()}
        made._number = _call("Error when creating Metric", {"metric": [self._number, named, bounds]})["number"]
        return made

    def __del__(self) -> None:
        # No lock may be taken here, because a finalizer can run within any other code.
        if hasattr(self, "_number"):
            _gone.append(self._number)


def _fit(texts: list[Any]) -> bool:
    return isinstance(texts[0], str) and isinstance(texts[1], str) and isinstance(texts[2], MetricKind)
