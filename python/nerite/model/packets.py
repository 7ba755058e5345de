"""What may the packets between the server and a model's process say, and how is each written?

The types are those of JSON, so that nothing is made of a packet before it is used: a packet is a ``dict`` of one of the shapes below, a
tensor in it a list of the parts that its type names. The server's half is ``crates/process/src/packets.rs``, ``docs/python.md`` describes
both, and ``tests/packets`` holds one packet of each kind, which the tests of both halves read and write.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypedDict, Union

# [name, datatype, shape, segment, offset, bytes]; the segment is None where the tensor has no bytes, or more than its place.
TensorAt = Tuple[str, str, Sequence[int], Optional[int], int, int]
# [name, segment, offset, capacity, fixed]; no other place can be had where the last is true. A list, for a place may be exchanged.
PlaceFor = List[Any]
# [segment, bytes, file_offset, is_region]; its descriptor comes beside the packet.
Segment = Tuple[int, int, int, bool]
# [code, text]
Failure = Tuple[str, str]

# Where in a TensorAt and in a PlaceFor the segment stands.
TENSOR_SEGMENT, PLACE_SEGMENT = 3, 1


class Model(TypedDict):
    """Which model; all of it texts."""

    name: str
    version: str
    file: str
    version_dir: str
    model_dir: str
    instance: str


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


class Command(TypedDict, total=False):
    """What the server says on the channel. ``do`` is the command, and those below it are its parts."""

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
    # Memory that the packet introduces, and memory that is no more. The latter may also come alone.
    map: List[Segment]
    forget: List[int]
    # initialize: whether the process is to be one from which others are forked; reap: which of them has ended.
    template: bool
    pid: int
    # The answer to a Need: segment, offset, capacity; or why there is no room.
    at: Tuple[int, int, int]
    error: str


class Ready(TypedDict, total=False):
    """A process that has its model, and whether that says itself whether it is ready."""

    python: str
    numpy: str
    guard: bool
    decides: bool


class Response(TypedDict, total=False):
    """The response of one request: outputs and parameters, or an error of the model's own, or why the model failed."""

    outputs: List[TensorAt]
    parameters: Dict[str, Any]
    error: Failure
    failed: Failure
    # None of these: the request is to run again.
    again: bool


class Answer(TypedDict, total=False):
    """What the process answers to a command. The first seven exclude each other; ``responses`` travel packed."""

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
    # Memory that was not there when it was touched: segment and offset.
    lost: List[List[int]]
    # Memory of the server's own that the model keeps arrays on from now on, and no more.
    held: List[int]
    let_go: List[int]
    # Memory that could not be mapped.
    unmapped: List[int]


class Need(TypedDict):
    """The question for room for an output: the request's index in the batch, the output's name, its bytes."""

    need: Tuple[int, str, int]


class Log(TypedDict):
    """A line for the server's log, on the side channel: level and text; file and line of who logged."""

    log: Tuple[str, str]
    at: Tuple[str, int]


class IsCancelled(TypedDict):
    """The question, on the side channel, whether the client gave up the request of this number; the answer is a truth value."""

    cancelled: Union[int, bool]


class LetGo(TypedDict):
    """On the side channel: memory that an idle model keeps no more, and those of it that the server had kept."""

    let_go: List[int]


# The shortest ways through the module: one encoder for all, and no search for white space, which the server never sends.
encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, ensure_ascii=False).encode
_decode = json.JSONDecoder().raw_decode


def written(packet: Any) -> bytes:
    """The packet as it travels."""
    # Half a surrogate pair, as in names of files that are not UTF-8, is no JSON to the server.
    return encode(packet).encode("utf-8", "replace")


def read(text: Any) -> Any:
    """The packet of these bytes."""
    return _decode(str(text, "utf-8"))[0]


def long_bytes(packet: Any) -> Optional[int]:
    """The bytes of a text that was too long for a packet, and lies in a file beside this one."""
    return packet.get("long")  # type: ignore[no-any-return]


def long(byte_size: int) -> Any:
    """The packet in place of such a text."""
    return {"long": byte_size}
