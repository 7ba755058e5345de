"""What has Triton that is not here yet? It can be named, and says what it is when it is used."""

from __future__ import annotations

from typing import Any

from .errors import Named, absent


class MetricKind(Named):
    """What a metric counts."""

    __module__ = "c_python_backend_utils"
    COUNTER, GAUGE, HISTOGRAM = range(3)


COUNTER, GAUGE, HISTOGRAM = MetricKind


class Metric:
    """A metric of the model's own."""

    __module__ = "c_python_backend_utils"

    def __init__(self, *_: Any, **__: Any) -> None:
        raise absent("A model asked for a metric of its own")


class MetricFamily:
    """Metrics of one name."""

    __module__ = "c_python_backend_utils"
    COUNTER, GAUGE, HISTOGRAM = MetricKind
    Metric = Metric

    def __init__(self, *_: Any, **__: Any) -> None:
        raise absent("A model asked for metrics of its own (MetricFamily)")
