"""How are the messages of sessions encoded and decoded without the protobuf package?

Only the types that they use: varints, and fields of wire types 0 (varint) and 2 (length-delimited), and doubles. Other fields of fixed size are
skipped, as a reader must do with unknown fields.
"""

from __future__ import annotations

import struct
from typing import Iterable, Iterator, Optional, Union

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
UINT64_MAX = 2**64 - 1

Value = Union[int, str, bytes]


class DecodeError(ValueError):
    """The bytes are not a valid message."""


def varint(value: int) -> bytes:
    """An integer from 0 to 2^64 - 1 in groups of 7 bits, lowest first."""
    if not 0 <= value <= UINT64_MAX:
        raise ValueError(f"{value} does not fit 64 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields: Iterable[tuple[int, Value]]) -> bytes:
    """A message of (field number, value) pairs. Zeros and empty strings are written too, because oneofs need them."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3 | VARINT) + varint(int(value))
        else:
            content = value.encode("utf-8") if isinstance(value, str) else value
            out += varint(number << 3 | BYTES) + varint(len(content)) + content
    return bytes(out)


def double(number: int, value: float) -> bytes:
    """A field of wire type 1: 64 bits of a floating-point number."""
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and the offset after it."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise DecodeError("the message ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & UINT64_MAX, at
        shift += 7


def decode(message: bytes) -> Iterator[tuple[int, Union[int, bytes]]]:
    """The (field number, value) pairs of one message, in order."""
    for number, kind, value in _walk(message):
        if kind in (VARINT, BYTES):
            yield number, value


def read_double(message: bytes, wanted: int) -> Optional[float]:
    """The last double in the field ``wanted``. None if there is none."""
    found = [value for number, kind, value in _walk(message) if number == wanted and kind == FIXED64 and isinstance(value, bytes)]
    return float(struct.unpack("<d", found[-1])[0]) if found else None


def _walk(message: bytes) -> Iterator[tuple[int, int, Union[int, bytes]]]:
    """The field number, wire type and value of each field."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(message, at)
            yield number, kind, value
        elif kind == BYTES:
            length, at = read_varint(message, at)
            if length > len(message) - at:
                raise DecodeError(f"field {number} says {length} bytes, {len(message) - at} are left")
            yield number, kind, message[at : at + length]
            at += length
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
            if length > len(message) - at:
                raise DecodeError(f"the message ends inside field {number}")
            yield number, kind, message[at : at + length]
            at += length
        else:
            raise DecodeError(f"field {number} has wire type {kind}")
