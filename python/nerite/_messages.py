"""How are requests and responses of a session encoded and decoded?

These are messages of Triton's gRPC service (``ModelInferRequest``, ``ModelInferResponse``, ``ModelMetadataResponse``), with the fields that
a session needs. The protobuf package is not needed.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from nerite import _protobuf

# Fields of the messages.
REQUEST_MODEL, REQUEST_VERSION, REQUEST_ID, REQUEST_PARAMETERS, REQUEST_INPUTS, REQUEST_OUTPUTS = 1, 2, 3, 4, 5, 6
INPUT_NAME, INPUT_DATATYPE, INPUT_SHAPE, INPUT_PARAMETERS = 1, 2, 3, 4
OUTPUT_NAME, OUTPUT_PARAMETERS = 1, 2
RESPONSE_MODEL, RESPONSE_VERSION, RESPONSE_ID, RESPONSE_PARAMETERS, RESPONSE_OUTPUTS, RESPONSE_RAW = 1, 2, 3, 4, 5, 6
BOOL_PARAM, INT64_PARAM, STRING_PARAM, DOUBLE_PARAM, UINT64_PARAM = 1, 2, 3, 4, 5

Parameter = Union[bool, int, str, float]


class Spec(NamedTuple):
    """A tensor in a model's metadata. A dimension of -1 is variable."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Window(NamedTuple):
    """The memory of a tensor: the lease or region, and the bytes in it."""

    name: str
    offset: int
    byte_size: int


class Metadata(NamedTuple):
    """The inputs and outputs of a model."""

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]


class Answer(NamedTuple):
    """A response without its leases."""

    model: str
    version: str
    id: str
    parameters: dict[str, Parameter]
    outputs: list[Spec]
    raw: list[bytes]


def request(
    model: str,
    version: str,
    inputs: Iterable[tuple[Spec, Window]],
    outputs: Iterable[tuple[str, Optional[Window]]],
    id: str = "",
    parameters: Optional[Mapping[str, Parameter]] = None,
) -> bytes:
    """An encoded ``ModelInferRequest``. Its inputs lie in windows. Outputs without a window come with the response."""
    fields: list[tuple[int, Any]] = [(REQUEST_MODEL, model)]
    if version:
        fields.append((REQUEST_VERSION, version))
    if id:
        fields.append((REQUEST_ID, id))
    fields += [(REQUEST_PARAMETERS, _entry(key, value)) for key, value in (parameters or {}).items()]
    for spec, window in inputs:
        tensor = [(INPUT_NAME, spec.name), (INPUT_DATATYPE, spec.datatype), (INPUT_SHAPE, packed(spec.shape))]
        fields.append((REQUEST_INPUTS, _protobuf.encode([*tensor, *((INPUT_PARAMETERS, one) for one in _placed(window))])))
    for name, place in outputs:
        entries = () if place is None else _placed(place)
        fields.append(
            (REQUEST_OUTPUTS, _protobuf.encode([(OUTPUT_NAME, name), *((OUTPUT_PARAMETERS, one) for one in entries)]))
        )
    return _protobuf.encode(fields)


def expected(answer: Answer) -> bytes:
    """The encoded response that the client expects, for the server to compare."""
    outputs = [
        _protobuf.encode([(1, spec.name), (2, spec.datatype), (3, packed(spec.shape))]) for spec in answer.outputs
    ]
    head = [(RESPONSE_MODEL, answer.model), (RESPONSE_VERSION, answer.version), (RESPONSE_ID, answer.id)]
    return _protobuf.encode([*head, *((RESPONSE_OUTPUTS, one) for one in outputs)])


def read_response(message: bytes) -> Answer:
    """Decodes a ``ModelInferResponse``."""
    texts = {RESPONSE_MODEL: "", RESPONSE_VERSION: "", RESPONSE_ID: ""}
    parameters: dict[str, Parameter] = {}
    outputs: list[Spec] = []
    raw: list[bytes] = []
    for number, value in _protobuf.decode(message):
        if not isinstance(value, bytes):
            continue
        if number in texts:
            texts[number] = value.decode("utf-8", "replace")
        elif number == RESPONSE_PARAMETERS:
            key, parameter = _read_entry(value)
            parameters[key] = parameter
        elif number == RESPONSE_OUTPUTS:
            outputs.append(_read_tensor(value))
        elif number == RESPONSE_RAW:
            raw.append(value)
    return Answer(texts[RESPONSE_MODEL], texts[RESPONSE_VERSION], texts[RESPONSE_ID], parameters, outputs, raw)


def read_metadata(message: bytes) -> Metadata:
    """Decodes a ``ModelMetadataResponse``."""
    found: dict[int, list[Spec]] = {4: [], 5: []}
    for number, value in _protobuf.decode(message):
        if number in found and isinstance(value, bytes):
            found[number].append(_read_tensor(value))
    return Metadata(tuple(found[4]), tuple(found[5]))


def packed(shape: Sequence[int]) -> bytes:
    """Dimensions as a packed field of int64."""
    return b"".join(_protobuf.varint(dim & _protobuf.UINT64_MAX) for dim in shape)


def _unpacked(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = _protobuf.read_varint(content, at)
        yield value - (1 << 64) if value >> 63 else value


def _read_tensor(message: bytes) -> Spec:
    name = datatype = ""
    shape: list[int] = []
    for number, value in _protobuf.decode(message):
        if number == 3:
            shape += _unpacked(value) if isinstance(value, bytes) else [value - (1 << 64) if value >> 63 else value]
        elif isinstance(value, bytes) and number in (1, 2):
            text = value.decode("utf-8", "replace")
            name, datatype = (text, datatype) if number == 1 else (name, text)
    return Spec(name, datatype, tuple(shape))


def _placed(window: Window) -> Iterator[bytes]:
    yield _entry("shared_memory_region", window.name)
    yield _entry("shared_memory_byte_size", window.byte_size)
    if window.offset:
        yield _entry("shared_memory_offset", window.offset)


def _entry(key: str, value: Parameter) -> bytes:
    """One entry of a map of parameters."""
    if isinstance(value, bool):
        choice = _protobuf.encode([(BOOL_PARAM, int(value))])
    elif isinstance(value, int):
        choice = _protobuf.encode([(INT64_PARAM, value & _protobuf.UINT64_MAX)])
    elif isinstance(value, str):
        choice = _protobuf.encode([(STRING_PARAM, value)])
    elif isinstance(value, float):
        choice = _protobuf.double(DOUBLE_PARAM, value)
    else:
        raise TypeError(f"parameter '{key}' is {value!r}; parameters are bool, int, float or str")
    return _protobuf.encode([(1, key), (2, choice)])


def _read_entry(message: bytes) -> tuple[str, Parameter]:
    key, parameter = "", ""  # type: str, Parameter
    for number, value in _protobuf.decode(message):
        if number == 1 and isinstance(value, bytes):
            key = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            for kind, content in _protobuf.decode(value):
                if kind == BOOL_PARAM:
                    parameter = bool(content)
                elif kind == STRING_PARAM and isinstance(content, bytes):
                    parameter = content.decode("utf-8", "replace")
                elif kind == INT64_PARAM and isinstance(content, int):
                    parameter = content - (1 << 64) if content >> 63 else content
                elif kind == UINT64_PARAM and isinstance(content, int):
                    parameter = content
            if (double := _protobuf.read_double(value, DOUBLE_PARAM)) is not None:
                parameter = double
    return key, parameter
