"""How is an array of Arrow read without pyarrow?

By Arrow's C data interface: ``__arrow_c_array__`` returns two capsules, with the structures ``ArrowSchema`` (the type) and ``ArrowArray`` (the
buffers). https://arrow.apache.org/docs/format/CDataInterface.html describes both. Numbers are read in place. Booleans (one bit each) and
texts (offsets and bytes) are copied, because tensors have another layout.

A column of a table has ``__arrow_c_stream__``: its elements come in chunks, each of which is such an array
(https://arrow.apache.org/docs/format/CStreamInterface.html). One chunk is read as an array is. Several are joined, which is one copy.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from typing import Any, Iterator, Optional

import numpy as np
from tritonclient.utils import InferenceServerException

_NUMBERS = {
    b"c": "|i1", b"C": "|u1", b"s": "<i2", b"S": "<u2", b"i": "<i4", b"I": "<u4", b"l": "<i8", b"L": "<u8",
    b"e": "<f2", b"f": "<f4", b"g": "<f8",
}  # fmt: skip
# Texts and bytes, and the type of their offsets.
_TEXTS = {b"u": "<i4", b"z": "<i4", b"U": "<i8", b"Z": "<i8"}
_BOOL = b"b"
# The number of elements in each list of a type such as "+w:4" follows this.
_FIXED_LIST = b"+w:"
# The most levels of lists with a fixed length, each of which is one dimension.
_LISTS_MAX = 8


class _Schema(ctypes.Structure):
    """ArrowSchema."""


class _Array(ctypes.Structure):
    """ArrowArray."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    """ArrowArrayStream."""


# Errors are numbers of errno. The functions fill the structures, and the caller must release them.
_get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.c_void_p)
_Stream._fields_ = [
    ("get_schema", _get),
    ("get_next", _get),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
_release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A separate prototype, because other modules declare the argument types of the same function differently.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def array_of(given: Any) -> Optional[np.ndarray]:
    """The elements of an object with ``__arrow_c_array__``. Numbers are a read-only view. None if the type has no counterpart here.

    Raises an error if elements are null.
    """
    capsules = given.__arrow_c_array__()
    schema = _Schema.from_address(_pointer(capsules[0], b"arrow_schema"))
    array = _Array.from_address(_pointer(capsules[1], b"arrow_array"))
    return _elements(schema, array, 0, array.length, capsules, 0)


def array_of_stream(given: Any) -> Optional[tuple[np.ndarray, int]]:
    """The elements of an object with ``__arrow_c_stream__``, and how many bytes were copied to join chunks. None if the type has no counterpart here,
    such as the type of a whole table.

    Raises an error if elements are null, or if the chunks cannot be read.
    """
    capsule = given.__arrow_c_stream__()
    stream = _Stream.from_address(_pointer(capsule, b"arrow_array_stream"))
    schema = _Owned(_Schema)
    _call_checked(stream, stream.get_schema, schema)
    found = _empty(schema.content, 0)
    if found is None:
        return None
    chunks = [_elements(schema.content, chunk.content, 0, chunk.content.length, chunk, 0) for chunk in _chunks(stream)]
    if len(chunks) == 1:
        return None if chunks[0] is None else (chunks[0], 0)
    if chunks:
        found = np.concatenate(chunks)  # type: ignore[arg-type]
    return found, found.nbytes


class _Owned:
    """A structure that another library fills, and that is released with this object."""

    def __init__(self, kind: Any):
        self.content = kind()
        weakref.finalize(self, _released, self.content).atexit = False


def _released(content: Any) -> None:
    if content.release:
        _release(content.release)(ctypes.addressof(content))


def _call_checked(stream: Any, function: Any, owned: _Owned) -> None:
    error = function(ctypes.byref(stream), ctypes.addressof(owned.content))
    if error:
        why = (stream.get_last_error(ctypes.byref(stream)) or os.strerror(error).encode()).decode("utf-8", "replace")
        raise InferenceServerException(f"the chunks of an array of Arrow cannot be had: {why}")


def _chunks(stream: Any) -> Iterator[_Owned]:
    """The chunks that are not empty."""
    while True:
        chunk = _Owned(_Array)
        _call_checked(stream, stream.get_next, chunk)
        if not chunk.content.release:
            return
        if chunk.content.length:
            yield chunk


def _empty(schema: Any, depth: int) -> Optional[np.ndarray]:
    """An empty array of this type. None if the type has no counterpart here."""
    if schema.dictionary or depth > _LISTS_MAX or _is_extension(schema.metadata):
        return None
    kind = schema.format
    if kind.startswith(_FIXED_LIST):
        inner = _empty(schema.children[0].contents, depth + 1)
        return None if inner is None else np.empty((0, int(kind[len(_FIXED_LIST) :]), *inner.shape[1:]), inner.dtype)
    if kind in _NUMBERS or kind in _TEXTS or kind == _BOOL:
        return np.empty(0, _NUMBERS.get(kind, np.bool_ if kind == _BOOL else np.object_))
    return None


def _elements(schema: Any, array: Any, first: int, count: int, capsules: Any, depth: int) -> Optional[np.ndarray]:
    """``count`` elements of an array, from its element ``first`` on. None if the type has no counterpart here."""
    if schema.dictionary or depth > _LISTS_MAX or _is_extension(schema.metadata):
        return None
    kind, at = schema.format, array.offset + first
    is_list = kind.startswith(_FIXED_LIST)
    if not (is_list or kind == _BOOL or kind in _NUMBERS or kind in _TEXTS):
        return None
    _check_nulls(array, at, count)
    if is_list:
        width = int(kind[len(_FIXED_LIST) :])
        child = array.children[0].contents
        found = _elements(schema.children[0].contents, child, at * width, count * width, capsules, depth + 1)
        return None if found is None else found.reshape((count, width, *found.shape[1:]))
    if count == 0:
        return _empty(schema, depth)
    if kind == _BOOL:
        return _bits(array.buffers[1], at, count)
    if kind in _TEXTS:
        return _texts(array, kind, at, count)
    return np.asarray(_Memory(array.buffers[1], at, count, _NUMBERS[kind], capsules))


def _is_extension(metadata: Optional[int]) -> bool:
    """Whether this is an extension type, whose elements mean something else than their storage type, such as a tensor with other dimensions.

    ``metadata`` is an address. The number of pairs is there, and behind it the length and the bytes of each key and each value."""
    if not metadata:
        return False
    at = metadata
    (pairs,) = struct.unpack("=i", ctypes.string_at(at, 4))
    at += 4
    for _ in range(pairs):
        texts = []
        for _ in range(2):
            (length,) = struct.unpack("=i", ctypes.string_at(at, 4))
            texts.append(ctypes.string_at(at + 4, length))
            at += 4 + length
        if texts[0] == b"ARROW:extension:name":
            return True
    return False


class _Memory:
    """Memory of another library, which it releases with its capsules."""

    def __init__(self, address: int, at: int, count: int, typestr: str, capsules: Any):
        self._capsules = capsules
        where = address + at * np.dtype(typestr).itemsize
        self.__array_interface__ = {"version": 3, "shape": (count,), "typestr": typestr, "data": (where, True)}


def _check_nulls(array: Any, at: int, count: int) -> None:
    # A count of -1 means that the count is unknown.
    if array.null_count == 0 or not count or not array.n_buffers or not array.buffers[0]:
        return
    nulls = count - int(_bits(array.buffers[0], at, count).sum())
    if nulls:
        raise InferenceServerException(f"an array of Arrow with {nulls} nulls among {count} elements: a tensor has none; fill them first")


def _bits(address: int, at: int, count: int) -> np.ndarray:
    raw = ctypes.string_at(address + at // 8, (at % 8 + count + 7) // 8)
    return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[at % 8 : at % 8 + count].astype(np.bool_)


def _texts(array: Any, kind: bytes, at: int, count: int) -> np.ndarray:
    offsets = np.asarray(_Memory(array.buffers[1], at, count + 1, _TEXTS[kind], None)).tolist()
    start, end = offsets[0], offsets[-1]
    raw = ctypes.string_at(array.buffers[2] + start, end - start) if end > start else b""
    found = np.empty(count, np.object_)
    found[:] = [raw[one - start : after - start] for one, after in zip(offsets, offsets[1:])]
    return found
