"""Which rows are there?"""

import dataclasses
from collections.abc import Callable

from .batch import batching
from .calls import calls
from .connections import new_connections
from .growth import growth
from .load import by_perf_analyzer, large_inline, large_shm, middle_shm, python_identity, small_inline, small_requests, unix_sockets
from .memory import memory, size
from .network import large_net, small_net
from .pipelines import ensemble
from .python_calls import nested_calls, streamed_responses
from .report import Table
from .sequences import sequences
from .sides import Run
from .start import start


@dataclasses.dataclass(frozen=True)
class Row:
    """A promise of docs/promises.md, and what measures it."""

    name: str
    title: str
    measure: Callable[[Run], list[Table]]


ROWS = (
    Row("L1", "Small requests by shared memory", small_requests),
    Row("inline", "Small requests inline", small_inline),
    Row("L2", "Small requests over Unix sockets", unix_sockets),
    Row("L3", "Large tensors inline", large_inline),
    Row("L4", "256 KiB by shared memory", middle_shm),
    Row("L5", "A new connection", new_connections),
    Row("T2", "Requests of NVIDIA's load generator", by_perf_analyzer),
    Row("T4", "Large tensors by shared memory", large_shm),
    Row("T5", "A Python model", python_identity),
    Row("nested", "A Python model that calls another one", nested_calls),
    Row("stream", "A decoupled Python model", streamed_responses),
    Row("T6", "A small ONNX model", small_net),
    Row("L7", "A large ONNX model", large_net),
    Row("L12", "Dynamic batching", batching),
    Row("L14", "An ensemble", ensemble),
    Row("L15", "Sequences", sequences),
    Row("T7", "Start and stop", start),
    Row("T8", "Memory", memory),
    Row("T9", "Size", size),
    Row("T10", "A call from a program", calls),
    Row("T11", "Growth", growth),
)


def chosen(names: list[str]) -> list[Row]:
    """The rows of these names, in the order of the table; all without any."""
    known = {row.name.lower(): row for row in ROWS}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        raise ValueError(f"no row {', '.join(unknown)}: there are {', '.join(row.name for row in ROWS)}")
    wanted = {name.lower() for name in names} or set(known)
    return [row for row in ROWS if row.name.lower() in wanted]
