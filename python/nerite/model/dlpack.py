"""How are tensors exchanged with other libraries without numpy?

With DLPack's capsules, in the first layout (``DLManagedTensor``), which every library reads. numpy has no BF16 and does not export
read-only memory, so the structures are made here.

    DLManagedTensor:  data | device type, id | dimensions | code, bits, lanes | shape | strides | byte offset | context | deleter
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from .errors import TritonModelException, absent
from .tensors import DATATYPES

_NOT_CONTIGUOUS = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
_DEVICE_CPU, _DEVICE_CUDA_HOST = 1, 3
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
# The datatype's name -> DLPack's code and bits, and numpy's type string.
_KINDS: dict[str, tuple[int, int, str]] = {
    "BOOL": (6, 8, "|b1"),
    "UINT8": (1, 8, "|u1"),
    "UINT16": (1, 16, "<u2"),
    "UINT32": (1, 32, "<u4"),
    "UINT64": (1, 64, "<u8"),
    "INT8": (0, 8, "|i1"),
    "INT16": (0, 16, "<i2"),
    "INT32": (0, 32, "<i4"),
    "INT64": (0, 64, "<i8"),
    "FP16": (2, 16, "<f2"),
    "FP32": (2, 32, "<f4"),
    "FP64": (2, 64, "<f8"),
    "BF16": (4, 16, "<u2"),
}
_BY_CODE = {(code, bits): (datatype, typestr) for datatype, (code, bits, typestr) in _KINDS.items()}


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("dimensions", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
]

_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_named = ctypes.pythonapi.PyCapsule_IsValid
# The capsule is passed by address, because no reference to it may be taken while it is destroyed.
_is_named.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)

# The objects that each exported structure points to, until its consumer releases it.
_lent: dict[int, tuple[Any, ...]] = {}


def _give_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    """Called when a capsule is destroyed that was not consumed."""
    if _is_named(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


# The callback for C.
_deleter = _Deleter(_give_back)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def exported(array: np.ndarray, datatype: str) -> Any:
    """A capsule over the elements. If they are read-only, over a copy: DLPack's first layout has no flag for read-only memory, and inputs
    are the client's memory.
    """
    if datatype == "BYTES":
        raise TritonModelException("DLPack does not have support for string tensors.")
    if not array.flags.writeable or not array.flags.c_contiguous or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    code, bits, _ = _KINDS[datatype]
    count = array.ndim
    dims = (ctypes.c_int64 * count)(*array.shape)
    strides = (ctypes.c_int64 * count)(*(stride // array.itemsize for stride in array.strides))
    address = array.__array_interface__["data"][0]
    managed = _Managed(address, _DEVICE_CPU, 0, count, code, bits, 1, dims, strides, 0, None, _deleter)
    at = ctypes.addressof(managed)
    _lent[at] = (managed, dims, strides, array)
    return _new(at, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))


class _Borrowed:
    """A tensor of another library. It is released when no array uses it any more."""

    def __init__(self, managed: _Managed, shape: tuple[int, ...], typestr: str, strides: Optional[tuple[int, ...]]) -> None:
        self._managed = managed
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            # In bytes. None if the elements are contiguous.
            "strides": strides,
            "data": ((managed.data or 0) + managed.byte_offset, False),
        }

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.byref(self._managed))


def imported(tensor: Any) -> tuple[str, np.ndarray]:
    """The datatype and the elements of a capsule, or of an object that makes one, without a copy. As in Triton they must be contiguous.
    """
    return _of_numpy(tensor) if isinstance(tensor, np.ndarray) else _taken(tensor, any_strides=False)


def borrowed(tensor: Any) -> tuple[str, np.ndarray]:
    """As :func:`imported`, for objects that are no numpy arrays. The elements need not be contiguous."""
    return _taken(tensor, any_strides=True)


def _taken(tensor: Any, any_strides: bool) -> tuple[str, np.ndarray]:
    if type(tensor).__name__ != "PyCapsule":
        if not (hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        _check_device(int(tensor.__dlpack_device__()[0]))
        tensor = tensor.__dlpack__()
    if not _is_named(id(tensor), _NAME):
        raise TritonModelException("The DLPack capsule has been consumed already, or is not one of a tensor.")
    managed = _Managed.from_address(_pointer(id(tensor), _NAME))
    _check_device(managed.device_type)
    found = _BY_CODE.get((managed.code, managed.bits))
    if found is None or managed.lanes != 1:
        raise TritonModelException("DLPack tensor type is not supported.")
    datatype, typestr = found
    shape = tuple(managed.shape[: managed.dimensions])
    strides = None
    if not _is_contiguous(managed, shape):
        if not any_strides:
            raise TritonModelException(_NOT_CONTIGUOUS)
        strides = tuple(stride * managed.bits // 8 for stride in managed.strides[: managed.dimensions])
    # From now on this module must release the tensor.
    _set_name(tensor, _USED_NAME)
    owner = _Borrowed(managed, shape, typestr, strides)
    return datatype, np.empty(shape, typestr) if 0 in shape else np.asarray(owner)


def _of_numpy(array: np.ndarray) -> tuple[str, np.ndarray]:
    """A numpy array is used directly. numpy refuses to export read-only arrays, such as inputs."""
    datatype = DATATYPES.get(array.dtype.num)
    if datatype == "BYTES":
        raise TritonModelException("DLPack does not have support for string tensors.")
    if datatype is None or not array.dtype.isnative:
        raise TritonModelException("DLPack tensor type is not supported.")
    if not array.flags.c_contiguous:
        raise TritonModelException(_NOT_CONTIGUOUS)
    return datatype, array


def _is_contiguous(managed: _Managed, shape: tuple[int, ...]) -> bool:
    """Whether the elements are contiguous in row-major order. True if there are no elements or no strides."""
    if not managed.strides or 0 in shape:
        return True
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 and managed.strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def _check_device(kind: int) -> None:
    if kind not in (_DEVICE_CPU, _DEVICE_CUDA_HOST):
        raise absent("A model answered with a tensor in the memory of a device")
