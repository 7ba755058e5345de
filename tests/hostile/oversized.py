"""Which requests are more work, or more memory, than their bytes say?"""

import functools
import zlib

MIB = bytes(1 << 20)
BOMB_MIB = 1024
WINDOW_BITS = {"gzip": 31, "deflate": 15}


def many(count: int, one) -> list:
    return [one(n) for n in range(count)]


def json_input(n: int) -> dict:
    return {"name": f"n{n}", "datatype": "FP32", "shape": [1], "data": [1]}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def names(number: int, count: int) -> bytes:
    """A request with so many entries of one field, each with a name of its own, or (parameters) a key."""
    entries = b"".join(field(number, field(1, b"n%d" % n)) for n in range(count))
    return field(1, b"identity_fp32") + entries


def packed(encoding: str, pieces) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, WINDOW_BITS[encoding])
    return b"".join([*map(deflate.compress, pieces), deflate.flush()])


@functools.cache
def bomb(encoding: str) -> bytes:
    """About a MB."""
    return packed(encoding, (MIB for _ in range(BOMB_MIB)))
