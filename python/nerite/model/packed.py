"""How are a batch and its answer encoded in few bytes? ``crates/process/src/packets/packed.rs`` shows the layout.

Names, datatypes and shapes seldom change between requests, so they are decoded once, and recognised by their bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import packets, prepared
from .packets import Answer, Command, TensorAt

# The first byte of a batch. JSON begins with a brace.
EXECUTE = 1
_EXECUTED = 2
_OUTPUTS, _TEXT = 1, 2
_FLAGS, _FLAG_MUST_WAIT = 3, 4
# The most layouts that are kept in each direction. A model whose shapes always differ does not need them.
LAYOUTS_MAX = 512

_HEAD = struct.Struct("<III")
_REQUEST = struct.Struct("<QQQIIII")
_PAIR = struct.Struct("<II")
_PLACE = struct.Struct("<QQQ")
_NUMBER = struct.Struct("<Q")
# The end of the number of the first request. The bytes behind it are the same in equal requests.
_NUMBER_END = _HEAD.size + _NUMBER.size

# The layout of a request: name, datatype and shape of each input, name and fixed of each output, and the struct of their places.
_Layout = Tuple[List[Tuple[str, str, Tuple[int, ...]]], List[Tuple[str, bool]], struct.Struct]
_layouts: Dict[bytes, _Layout] = {}
# The encoded form of each output's name, datatype and shape.
_heads: Dict[Tuple[str, str, Sequence[int]], bytes] = {}
# The packets of answers that have one response with one output, and nothing else. A client that reuses its places gets the same answer each time.
_answers: Dict[TensorAt, bytes] = {}


def read(packet: Union[bytes, memoryview]) -> Command:
    """Decodes the command to execute a batch."""
    _, count, rest = _HEAD.unpack_from(packet)
    same = None
    if count == 1 and not rest and len(packet) <= prepared.PREPARED_BYTES_MAX:
        same = bytes(packet[_NUMBER_END:])
        kept = prepared.find(same)
        if kept is not None:
            return {"do": "execute", "requests": [prepared.again(kept, *_NUMBER.unpack_from(packet, _HEAD.size))]}
    at = _HEAD.size
    requests: List[Any] = []
    for _ in range(count):
        number, correlation, timeout, rows, flags, layout_bytes, text_bytes = _REQUEST.unpack_from(packet, at)
        at += _REQUEST.size
        key = bytes(packet[at : at + layout_bytes])
        inputs, outputs, places = _layouts.get(key) or _learnt(key)
        at += layout_bytes
        numbers = places.unpack_from(packet, at)
        at += places.size
        tensors: List[Any] = []
        each = 0
        for name, datatype, shape in inputs:
            tensors.append((name, datatype, shape, numbers[each] or None, numbers[each + 1], numbers[each + 2]))
            each += 3
        wanted: List[Any] = []
        for name, fixed in outputs:
            wanted.append([name, numbers[each] or None, numbers[each + 1], numbers[each + 2], fixed])
            each += 3
        request = {
            "number": number,
            "id": "",
            "rows": rows,
            "correlation": correlation,
            "flags": flags & _FLAGS,
            "timeout": timeout,
            "parameters": {},
            "inputs": tensors,
            "outputs": wanted,
        }
        if flags & _FLAG_MUST_WAIT:
            request["asks"] = True
        if text_bytes:
            request.update(packets.read(packet[at : at + text_bytes]))
            at += text_bytes
        requests.append(request)
    if same is not None:
        prepared.note(same, requests[0])
    command: Command = {"do": "execute", "requests": requests}
    if rest:
        command.update(packets.read(packet[at : at + rest]))
    return command


def _learnt(layout: bytes) -> _Layout:
    """Decodes a layout, and keeps it."""
    input_count, output_count = _PAIR.unpack_from(layout)
    at = _PAIR.size
    inputs = []
    for _ in range(input_count):
        name_bytes, datatype_bytes, dims = _HEAD.unpack_from(layout, at)
        at += _HEAD.size
        shape = struct.unpack_from(f"<{dims}q", layout, at)
        at += 8 * dims
        name, datatype = layout[at : at + name_bytes], layout[at + name_bytes : at + name_bytes + datatype_bytes]
        at += name_bytes + datatype_bytes
        inputs.append((name.decode(), datatype.decode(), shape))
    outputs = []
    for _ in range(output_count):
        name_bytes, fixed = _PAIR.unpack_from(layout, at)
        at += _PAIR.size
        outputs.append((layout[at : at + name_bytes].decode(), bool(fixed)))
        at += name_bytes
    if len(_layouts) >= LAYOUTS_MAX:
        _layouts.clear()
    found = (inputs, outputs, struct.Struct(f"<{3 * (input_count + output_count)}Q"))
    _layouts[layout] = found
    return found


def executed(answer: Answer) -> bytes:
    """Encodes the answer to such a command, if it has responses."""
    only = _only_output(answer)
    if only is None:
        return _encoded(answer)
    packet = _answers.get(only)
    if packet is None:
        if len(_answers) >= LAYOUTS_MAX:
            _answers.clear()
        packet = _answers[only] = _encoded(answer)
    return packet


def _only_output(answer: Answer) -> Optional[TensorAt]:
    """The only output, if the answer has one response with one output and nothing else."""
    responses = answer["responses"]
    if len(answer) > 1 or len(responses) != 1:
        return None
    response = responses[0]
    if not response or response.get("parameters"):
        return None
    outputs = response.get("outputs")
    return outputs[0] if outputs and len(outputs) == 1 else None


def _encoded(answer: Answer) -> bytes:
    """Encodes any answer with responses."""
    responses = answer["responses"]
    parts = [b""]
    for response in responses:
        # A request without a response is encoded as null. The server makes an error of it.
        outputs = response.get("outputs") if response and not response.get("parameters") else None
        if outputs is None:
            text = packets.written(response)
            parts += (_PAIR.pack(_TEXT, len(text)), text)
            continue
        parts.append(_PAIR.pack(_OUTPUTS, len(outputs)))
        for name, datatype, shape, segment, offset, byte_size in outputs:
            key = (name, datatype, shape)
            parts.append(_heads.get(key) or _head(key))
            parts.append(_PLACE.pack(segment or 0, offset, byte_size))
    rest = b""
    if len(answer) > 1:
        others = {key: answer[key] for key in ("lost", "held", "let_go", "unmapped") if answer.get(key)}  # type: ignore[literal-required]
        if others:
            rest = packets.written(others)
            parts.append(rest)
    parts[0] = _HEAD.pack(_EXECUTED, len(responses), len(rest))
    return b"".join(parts)


def _head(key: Tuple[str, str, Sequence[int]]) -> bytes:
    """Encodes an output's name, datatype and shape, and keeps the result."""
    name, datatype, shape = key
    # A lone surrogate is not valid UTF-8.
    name_bytes, datatype_bytes = name.encode("utf-8", "replace"), datatype.encode()
    head = _HEAD.pack(len(name_bytes), len(datatype_bytes), len(shape))
    if len(_heads) >= LAYOUTS_MAX:
        _heads.clear()
    found = head + struct.pack(f"<{len(shape)}q", *shape) + name_bytes + datatype_bytes
    _heads[key] = found
    return found
