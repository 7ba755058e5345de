"""How are tensors of each datatype serialised?

Datatypes have the protocol's names (``"FP32"``, ``"BYTES"``, …). Elements of fixed size are contiguous, little endian and row-major. Each
element of ``BYTES`` is a length of 4 bytes (little endian) and that many bytes.
"""

from __future__ import annotations

import operator
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
# The largest size that can be represented.
TENSOR_BYTES_MAX = 2**63 - 1

BytesLike = Union[bytes, bytearray, memoryview]


def check_datatype(datatype: str) -> str:
    """The datatype itself. Raises an error with the list of datatypes if it is unknown."""
    if datatype != "BYTES" and datatype not in ELEMENT_BYTES:
        raise InferenceServerException(f"unknown datatype '{datatype}', expected one of {', '.join(ELEMENT_BYTES)}, BYTES")
    return datatype


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape as a tuple of ints. Dimensions of -1 (unknown) are kept."""
    if isinstance(shape, (str, bytes)):
        raise InferenceServerException(f"shape {shape!r} is no sequence of whole numbers")
    try:
        # int() is not used, because int(2.5) is 2.
        dims = tuple(operator.index(dim) for dim in shape)
    except TypeError:
        raise InferenceServerException(f"shape {shape!r} is no sequence of whole numbers") from None
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
    """The tensor's size in bytes. None if the shape does not determine it (BYTES, a dimension of -1)."""
    if datatype == "BYTES" or any(dim < 0 for dim in shape):
        return None
    return _addressable(element_count(shape) * ELEMENT_BYTES[datatype], shape, datatype, "")


def empty_byte_size(shape: Sequence[int]) -> int:
    """The size of a BYTES tensor of empty elements: a length for each."""
    return _addressable(LENGTH_BYTES * element_count(shape), shape, "BYTES", " and more")


def _addressable(byte_size: int, shape: Sequence[int], datatype: str, more: str) -> int:
    if byte_size > TENSOR_BYTES_MAX:
        raise InferenceServerException(
            f"a tensor {list(shape)} of {datatype} takes {byte_size} bytes{more}, no memory has more than {TENSOR_BYTES_MAX}"
        )
    return byte_size


def check_byte_size(byte_size: Optional[int], shape: Optional[Sequence[int]], datatype: Optional[str]) -> Optional[int]:
    """The given size of a tensor, or the size from shape and datatype. Raises an error if the two differ."""
    fixed = None if shape is None or datatype is None else fixed_byte_size(shape, datatype)
    if byte_size is None:
        return fixed
    try:
        requested = operator.index(byte_size)
    except TypeError:
        raise InferenceServerException(f"byte_size {byte_size!r} is no whole number") from None
    if requested < 0:
        raise InferenceServerException(f"byte_size {requested} is negative")
    if fixed is not None and requested != fixed:
        assert shape is not None
        raise InferenceServerException(f"a tensor {list(shape)} of {datatype} takes {fixed} bytes, not the {requested} asked for")
    return requested


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of the datatype. BF16 is as in tritonclient."""
    found = triton_to_np_dtype(datatype)
    if found is None:
        raise InferenceServerException(f"datatype '{datatype}' has no numpy dtype in the installed tritonclient")
    dtype = np.dtype(found)
    if dtype.itemsize != ELEMENT_BYTES.get(datatype, dtype.itemsize):
        # Older versions of tritonclient use float32 for BF16, which cannot be a view of the bytes.
        raise InferenceServerException(
            f"a {datatype} element has {ELEMENT_BYTES[datatype]} bytes, the installed tritonclient makes it a {dtype} of "
            f"{dtype.itemsize}; install a newer tritonclient"
        )
    return dtype


def datatype_of(array: np.ndarray) -> Optional[str]:
    """The protocol's datatype of the array's dtype. None if there is none."""
    return np_to_triton_dtype(array.dtype)


def encoded_elements(array: np.ndarray) -> list[bytes]:
    """The elements of a BYTES tensor in row-major order, as the bytes that are sent.

    Bytes are kept, and any other element is converted with ``str`` to UTF-8, as in tritonclient.
    """
    elements = array.ravel(order="C").tolist()
    encoded = [one if isinstance(one, bytes) else str(one).encode("utf-8") for one in elements]
    longest = max(map(len, encoded), default=0)
    if longest > ELEMENT_BYTES_MAX:
        raise InferenceServerException(f"a BYTES element has {longest} bytes, it may have {ELEMENT_BYTES_MAX}")
    return encoded


def encoded_byte_size(elements: Sequence[bytes]) -> int:
    """The size of these elements when serialised."""
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

    Another process may write the lengths, so each is read once, then checked against the remaining bytes.
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
