"""How does a tensor of each datatype lie in bytes?

Names of datatypes are those of the protocol (``"FP32"``, ``"BYTES"``, …). Fixed-size elements lie back to back, little
endian, row-major. Elements of ``BYTES`` are each a length of 4 bytes (little endian) and that many bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Optional, Sequence, Union

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, triton_to_np_dtype

ELEMENT_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
LENGTH_BYTES = 4
ELEMENT_BYTES_MAX = 2**32 - 1

BytesLike = Union[bytes, bytearray, memoryview]


def check_datatype(datatype: str) -> str:
    """The datatype itself, or an error that lists those there are."""
    if datatype != "BYTES" and datatype not in ELEMENT_BYTES:
        raise InferenceServerException(f"unknown datatype '{datatype}', expected one of {', '.join(ELEMENT_BYTES)}, BYTES")
    return datatype


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple of whole numbers; dimensions of -1 (not known yet) are kept."""
    dims = tuple(int(dim) for dim in shape)
    if any(dim < -1 for dim in dims):
        raise InferenceServerException(f"shape {list(dims)} has a negative dimension")
    return dims


def element_count(shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has; a scalar (shape ``[]``) has one."""
    count = 1
    for dim in shape:
        count *= int(dim)
    return count


def fixed_byte_size(shape: Sequence[int], datatype: str) -> Optional[int]:
    """The tensor's size in bytes; None where the shape does not tell (BYTES, a dimension of -1)."""
    if datatype == "BYTES" or any(dim < 0 for dim in shape):
        return None
    return element_count(shape) * ELEMENT_BYTES[datatype]


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """What numpy calls the datatype; BF16 as tritonclient has it."""
    found = triton_to_np_dtype(datatype)
    if found is None:
        raise InferenceServerException(f"datatype '{datatype}' has no numpy form here")
    return np.dtype(found)


def datatype_of(array: np.ndarray) -> Optional[str]:
    """What the protocol calls the array's dtype; None where it has no word for it."""
    return np_to_triton_dtype(array.dtype)


def encoded_elements(array: np.ndarray) -> list[bytes]:
    """The elements of a BYTES tensor in row-major order, each as the bytes that will travel.

    Bytes stay as they are, anything else becomes its ``str`` in UTF-8: tritonclient's rule.
    """
    elements = array.ravel(order="C").tolist()
    return [one if isinstance(one, bytes) else str(one).encode("utf-8") for one in elements]


def encoded_byte_size(elements: Sequence[bytes]) -> int:
    """The bytes that these elements take when serialised."""
    return sum(map(len, elements)) + LENGTH_BYTES * len(elements)


def write_elements(elements: Sequence[bytes], memory: memoryview) -> int:
    """Serialises the elements into ``memory``, which must hold :func:`encoded_byte_size`; returns the bytes written."""
    at = 0
    for one in elements:
        end = at + LENGTH_BYTES + len(one)
        struct.pack_into("<I", memory, at, len(one))
        memory[at + LENGTH_BYTES : end] = one
        at = end
    return at


def walk_elements(memory: BytesLike, count: int) -> tuple[list[bytes], int]:
    """Reads ``count`` elements; returns them and the bytes they took.

    The lengths may come from another process: each is read once, then checked against what is left.
    """
    view = memoryview(memory)
    found: list[bytes] = []
    at, end = 0, len(view)
    for index in range(count):
        if end - at < LENGTH_BYTES:
            raise InferenceServerException(f"element {index} of {count} begins at byte {at}, the buffer has {end} bytes")
        (length,) = struct.unpack_from("<I", view, at)
        at += LENGTH_BYTES
        if length > end - at:
            raise InferenceServerException(f"element {index} of {count} says {length} bytes, only {end - at} are left")
        found.append(bytes(view[at : at + length]))
        at += length
    return found, at


def decode_elements(memory: BytesLike, shape: Sequence[int]) -> np.ndarray:
    """A BYTES tensor as an object array of ``bytes`` (a copy: elements have no fixed place)."""
    elements, _ = walk_elements(memory, element_count(shape))
    decoded = np.empty(len(elements), dtype=np.object_)
    decoded[:] = elements
    return decoded.reshape(tuple(shape))
