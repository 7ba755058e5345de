"""Which packets do the server and a model's process exchange, and how is each encoded?

The types are those of JSON, so packets need no conversion: a packet is a ``dict`` with one of the shapes below, and a tensor in it is a
list of the parts that its type names. The server's side is ``crates/process/src/packets.rs``. ``docs/python-process.md`` describes both.
``tests/packets`` has one packet of each kind, which the tests of both sides read and write.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypedDict, Union

# [name, datatype, shape, segment, offset, bytes]. The segment is None if the tensor has no bytes, or more than its place.
TensorAt = Tuple[str, str, Sequence[int], Optional[int], int, int]
# [name, segment, offset, capacity, fixed]. If fixed is true, no other place is possible. It is a list, because a place may be replaced.
PlaceFor = List[Any]
# [segment, bytes, file_offset, is_region], and the number of the GPU for a region on one. A descriptor comes with the packet: of the memory, or for a
# region on a GPU, of a file with its IPC handle.
Segment = Any
# [code, text]
Failure = Tuple[str, str]
# [path, bytes, time of the last modification in nanoseconds since 1970]
ImportedFile = Tuple[str, int, int]

# The index of the segment in a TensorAt and in a PlaceFor.
TENSOR_SEGMENT, PLACE_SEGMENT = 3, 1


class _BackendClass(TypedDict, total=False):
    """Where the class of a model is, if it belongs to its backend and not to its version."""

    class_dir: str


class Model(_BackendClass):
    """The names of a model. All are strings."""

    name: str
    version: str
    file: str
    version_dir: str
    model_dir: str
    instance: str
    # What lists of processes show.
    title: str


def class_file(model: Model) -> str:
    """The path of the file with the model's class."""
    return os.path.join(model.get("class_dir", model["version_dir"]), model["file"])


class Request(TypedDict):
    """One request of a batch."""

    number: int
    id: str
    rows: int
    correlation: Union[int, str]
    flags: int
    timeout: int
    parameters: Dict[str, Any]
    inputs: List[TensorAt]
    outputs: List[PlaceFor]
    # The request's span, if its trace becomes spans; may be absent.
    trace: Dict[str, str]
    # Not in the packet: what equal requests share (:class:`nerite.model.prepared.Prepared`); may be absent.
    prepared: Any


class Command(TypedDict, total=False):
    """A message of the server on the channel. ``do`` is the command. The fields below it are its arguments."""

    do: str
    # complete
    config: Dict[str, Any]
    # complete and initialize
    model: Model
    # initialize
    args: Dict[str, str]
    decoupled: bool
    # execute
    requests: List[Request]
    # Memory that the packet introduces, and memory that was removed. The latter may also come alone.
    map: List[Segment]
    forget: List[int]
    # initialize: whether other processes are forked from this one, and the port at which a debugger attaches before the model is imported. reap: the
    # process that has ended.
    template: bool
    debug: int
    pid: int
    # The answer to a Need: segment, offset, capacity, or the reason why there is no memory.
    at: Tuple[int, int, int]
    error: str


class Ready(TypedDict, total=False):
    """The process has loaded its model. ``decides`` says whether the model reports its own readiness."""

    python: str
    numpy: str
    guard: bool
    decides: bool
    # Files of the user's own, outside the model's directory, that were imported, and how many more there are.
    imported: List[ImportedFile]
    unreported: int


class Response(TypedDict, total=False):
    """The response of one request: outputs and parameters, or an error that the model set, or the failure of the model."""

    outputs: List[TensorAt]
    parameters: Dict[str, Any]
    error: Failure
    failed: Failure
    # Instead of these: the request is to run again.
    again: bool


class Answer(TypedDict, total=False):
    """The answer of the process to a command. The first seven fields exclude each other. ``responses`` are sent packed."""

    error: str
    config: Dict[str, Any]
    ready: Ready
    is_ready: bool
    done: bool
    # fork and reap: the new process, and how an old one ended.
    forked: int
    reaped: Optional[int]
    # execute
    responses: List[Response]
    # Memory that was missing when it was accessed: segment and offset.
    lost: List[List[int]]
    # Memory of the server that the model's arrays use from now on, and memory that they do not use any more.
    held: List[int]
    let_go: List[int]
    # Memory that could not be mapped.
    unmapped: List[int]


class Need(TypedDict):
    """The call for memory for an output: the request's index in the batch, the output's name, its bytes."""

    need: Tuple[int, str, int]


class _LogOfRun(TypedDict, total=False):
    """The number of the first request of the batch that the model has, for the error if its process dies."""

    of: int


class Log(_LogOfRun):
    """A line for the server's log, on the side channel: level and text, and file and line number of the caller."""

    log: Tuple[str, str]
    at: Tuple[str, int]


class IsCancelled(TypedDict):
    """On the side channel: the number of a request. The answer is a boolean, which says whether the client cancelled the request."""

    cancelled: Union[int, bool]


class LetGo(TypedDict):
    """On the side channel: memory that an idle model does not use any more, and the segments of it that the server had kept."""

    let_go: List[int]


# For speed, all packets use one encoder, and there is no white space in the output. The server sends none either.
encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode


def written(packet: Any) -> bytes:
    """The encoded packet."""
    # A lone surrogate, as in names of files that are not UTF-8, is not valid JSON for the server.
    return encode(packet).encode("utf-8", "replace")


def read(text: Any) -> Any:
    """Decodes a packet."""
    return _decode(str(text, "utf-8"))[0]


def long_bytes(packet: Any) -> Optional[int]:
    """The size of a text that was too long for the socket, and is in a file that comes with this packet."""
    return packet.get("long")  # type: ignore[no-any-return]


def long(byte_size: int) -> Any:
    """The packet that replaces such a text."""
    return {"long": byte_size}
