"""How are tensors exchanged with other libraries without numpy?

With DLPack's capsules. Every library reads the first layout (``DLManagedTensor``). The second one (``DLManagedTensorVersioned``) has flags, for
read-only memory among others. It is made where the consumer asks for it (``max_version``). The elements may be in the memory of a GPU.

numpy makes the structures, and its compiled functions free them. A consumer that refuses a tensor drops its capsule while an exception is pending,
and a callback of ctypes cannot preserve that exception. numpy has no BF16 and no GPUs, so the type and the device are written here.

    DLTensor:                  data | device type, id | dimensions | code, bits, lanes | shape | strides | byte offset
    DLManagedTensor:           DLTensor | context | deleter
    DLManagedTensorVersioned:  major, minor | context | deleter | flags | DLTensor
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Optional, Union

import numpy as np

from . import cuda
from .errors import TritonModelException
from .tensors import DATATYPES, NUMPY_DTYPES, DeviceTensor

_NOT_CONTIGUOUS = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
_DEVICE_CPU, _DEVICE_CUDA, _DEVICE_CUDA_HOST, _DEVICE_CUDA_MANAGED = 1, cuda.KIND, 3, 13
_HOST_KINDS = (_DEVICE_CPU, _DEVICE_CUDA_HOST)
_GPU_KINDS = (_DEVICE_CUDA, _DEVICE_CUDA_MANAGED)
HOST = (_DEVICE_CPU, 0)
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_VERSIONED_NAME, _USED_VERSIONED_NAME = b"dltensor_versioned", b"used_dltensor_versioned"
# The version of the second layout. Later minor versions have the same structure.
_VERSION = (1, 0)
_FLAG_READ_ONLY, _FLAG_IS_COPIED = 1, 2
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


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
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
    ]


# Both layouts have a function of this type. Its argument is the address of the structure.
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# Not ctypes.pythonapi, because a model may declare the types of its functions differently.
_python = ctypes.PyDLL(None)
_new = _python.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_set_name = _python.PyCapsule_SetName
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_named = _python.PyCapsule_IsValid
# The capsule is passed by its address, because no reference to it may be taken while it is destroyed.
_is_named.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_pointer = _python.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_clear_error = _python.PyErr_Clear
_clear_error.restype = None

# Whether numpy makes capsules of the first layout (from 1.22 on), and of the second one (from 2.1 on).
_NUMPY_MAKES = {_NAME: hasattr(np.ndarray, "__dlpack__"), _VERSIONED_NAME: bool(np.lib.NumpyVersion(np.__version__) >= "2.1.0")}
# For each structure that was made without numpy, the objects that it points to, until its consumer releases it.
_lent: dict[int, tuple[Any, ...]] = {}


def _give_back(managed: int) -> None:
    _lent.pop(managed, None)


def _destroy(capsule: int) -> None:
    """Called when a capsule that was not consumed is destroyed.

    If an exception is pending, no call works, so the exception is cleared first. The caller of the consumer gets ``SystemError`` in its place.
    """
    _clear_error()
    for name in (_NAME, _VERSIONED_NAME):
        if _is_named(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


# The callback for C.
_deleter = _Deleter(_give_back)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def exported(
    array: np.ndarray,
    datatype: str,
    max_version: Optional[tuple[int, int]] = None,
    dl_device: Optional[tuple[int, int]] = None,
    copy: Optional[bool] = None,
) -> Any:
    """A capsule over the elements. The last three arguments are those of ``__dlpack__``.

    It is over a copy if one is requested, and if the elements are not contiguous or are read-only, because the consumer may write. If the consumer
    wants no copy, read-only memory is marked as such, if the layout has a flag for that. Raises ``BufferError`` if a copy would be needed.
    """
    if dl_device is not None and tuple(dl_device) != HOST:
        raise BufferError(f"the tensor is in the host's memory {HOST}, asked for device {tuple(dl_device)}; move it after from_dlpack")
    if datatype == "BYTES":
        raise TritonModelException("DLPack does not have support for string tensors.")
    is_versioned = max_version is not None and max_version[0] >= _VERSION[0]
    is_fit = array.flags.c_contiguous and array.dtype.isnative
    is_copied = bool(copy) or not is_fit or not (array.flags.writeable or (copy is False and is_versioned))
    if is_copied:
        if copy is False:
            why = "read-only, which the first layout cannot say; ask with max_version=(1, 0)" if is_fit else "not contiguous"
            raise BufferError(f"the tensor cannot be exported without a copy: its memory is {why}, or drop copy=False")
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    flags = (_FLAG_IS_COPIED if is_copied else 0) | (0 if array.flags.writeable else _FLAG_READ_ONLY)
    return _made(array, HOST, datatype, flags if is_versioned else None)


def exported_from_gpu(
    array: cuda.DeviceArray,
    datatype: str,
    max_version: Optional[tuple[int, int]] = None,
    dl_device: Optional[tuple[int, int]] = None,
    copy: Optional[bool] = None,
) -> Any:
    """As :func:`exported`, for elements on a GPU: a capsule over them, or over a copy on the host if ``dl_device`` is the host.

    This waits until all work that writes the elements is done, so the consumer's stream needs to wait for nothing.
    """
    place = array.place if dl_device is None else tuple(dl_device)
    if place == HOST and copy is not False:
        return exported(array.on_host(NUMPY_DTYPES[datatype]), datatype, max_version)
    if place != array.place or copy:
        what = "a copy of it on the GPU" if place == array.place else f"it on device {place}"
        raise BufferError(f"the tensor is in the memory of GPU {array.place[1]}, and {what} was asked for; copy it after from_dlpack")
    array.await_writers()
    array.is_exported = True
    is_versioned = max_version is not None and max_version[0] >= _VERSION[0]
    return _made(np.asarray(_Addressed(array, datatype)), array.place, datatype, 0 if is_versioned else None)


class _Addressed:
    """Lets numpy make an array over elements on a GPU. numpy does not access the elements."""

    def __init__(self, array: cuda.DeviceArray, datatype: str) -> None:
        self._owner = array
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": _KINDS[datatype][2],
            "data": (array.address, False),
        }


def _made(array: np.ndarray, place: tuple[int, int], datatype: str, flags: Optional[int]) -> Any:
    """A capsule over contiguous elements: in the second layout with these flags, or in the first layout if they are None. It keeps the array's
    memory alive.
    """
    name = _NAME if flags is None else _VERSIONED_NAME
    if not _NUMPY_MAKES[name]:
        return _made_without_numpy(array, place, datatype, flags)
    code, bits, _ = _KINDS[datatype]
    numbers = array.view(f"u{bits // 8}")
    capsule = numbers.__dlpack__() if flags is None else numbers.__dlpack__(max_version=_VERSION)  # type: ignore[call-arg]
    managed: Any = (_Managed if flags is None else _Versioned).from_address(_pointer(id(capsule), name))
    managed.tensor.code = code
    managed.tensor.device_type, managed.tensor.device_id = place
    if flags is not None:
        managed.flags = flags
    return capsule


def _made_without_numpy(array: np.ndarray, place: tuple[int, int], datatype: str, flags: Optional[int]) -> Any:
    """As :func:`_made`, for versions of numpy that do not make such capsules."""
    code, bits, _ = _KINDS[datatype]
    address, shape = array.__array_interface__["data"][0], array.shape
    count = len(shape)
    dims, strides = (ctypes.c_int64 * count)(*shape), (ctypes.c_int64 * count)()
    step = 1
    for axis in reversed(range(count)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    tensor = _Tensor(address, *place, count, code, bits, 1, dims, strides, 0)
    managed: Any
    if flags is not None:
        managed = _Versioned(*_VERSION, None, _deleter, flags, tensor)
    else:
        managed = _Managed(tensor, None, _deleter)
    at = ctypes.addressof(managed)
    _lent[at] = (managed, dims, strides, array)
    return _new(at, _NAME if flags is None else _VERSIONED_NAME, ctypes.cast(_destructor, ctypes.c_void_p))


class _Owner:
    """The owner of a tensor of another library, which is released with this object."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.addressof(self._managed))


class _Borrowed(_Owner):
    """A tensor of another library in the host's memory. It is released when no array uses it any more."""

    def __init__(self, managed: Any, shape: tuple[int, ...], typestr: str, strides: Optional[tuple[int, ...]]) -> None:
        super().__init__(managed)
        tensor: _Tensor = managed.tensor
        is_read_only = bool(getattr(managed, "flags", 0) & _FLAG_READ_ONLY)
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            # In bytes. None if the elements are contiguous.
            "strides": strides,
            "data": ((tensor.data or 0) + tensor.byte_offset, is_read_only),
        }


def imported(tensor: Any) -> tuple[str, Union[np.ndarray, cuda.DeviceArray]]:
    """The datatype and the elements of a capsule, or of an object that makes one, without a copy. As in Triton they must be contiguous. If they
    are on a GPU, this waits until they have been written.
    """
    if isinstance(tensor, DeviceTensor):
        # The model may have changed the elements by a library that does not wait.
        cuda.device(tensor.on_device.place[1]).await_all()
        return tensor.datatype, tensor.on_device
    return _of_numpy(tensor) if isinstance(tensor, np.ndarray) else _taken(tensor, _HOST_KINDS + _GPU_KINDS, any_strides=False)


def borrowed(tensor: Any) -> tuple[str, np.ndarray]:
    """As :func:`imported`, for objects on the host that are no numpy arrays. The elements need not be contiguous."""
    return _taken(tensor, _HOST_KINDS, any_strides=True)


def _taken(tensor: Any, kinds: tuple[int, ...], any_strides: bool) -> Any:
    has_waited = False
    if type(tensor).__name__ != "PyCapsule":
        if not (hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        kind, number = map(int, tensor.__dlpack_device__())
        _check_device(kind, kinds)
        has_waited = kind in _GPU_KINDS
        tensor = _capsule_from_gpu(tensor, cuda.device(number)) if has_waited else _capsule(tensor)
    layout, name, used_name = _Managed, _NAME, _USED_NAME
    if _is_named(id(tensor), _VERSIONED_NAME):
        layout, name, used_name = _Versioned, _VERSIONED_NAME, _USED_VERSIONED_NAME
    elif not _is_named(id(tensor), _NAME):
        raise TritonModelException("The DLPack capsule has been consumed already, or is not one of a tensor.")
    managed: Any = layout.from_address(_pointer(id(tensor), name))
    if layout is _Versioned and managed.major != _VERSION[0]:
        raise TritonModelException(f"DLPack version {managed.major}.{managed.minor} is not supported, only version {_VERSION[0]}.")
    dl_tensor: _Tensor = managed.tensor
    _check_device(dl_tensor.device_type, kinds)
    found = _BY_CODE.get((dl_tensor.code, dl_tensor.bits))
    if found is None or dl_tensor.lanes != 1:
        raise TritonModelException("DLPack tensor type is not supported.")
    datatype, typestr = found
    shape = tuple(dl_tensor.shape[: dl_tensor.dimensions])
    strides = None
    if not _is_contiguous(dl_tensor, shape):
        if not any_strides:
            raise TritonModelException(_NOT_CONTIGUOUS)
        strides = tuple(stride * dl_tensor.bits // 8 for stride in dl_tensor.strides[: dl_tensor.dimensions])
    if dl_tensor.device_type in _GPU_KINDS and not has_waited:
        # A capsule does not name the stream on which its elements are written.
        cuda.device(dl_tensor.device_id).await_all()
    # From now on this module must release the tensor.
    _set_name(tensor, used_name)
    if dl_tensor.device_type in _GPU_KINDS:
        byte_size, address = math.prod(shape) * dl_tensor.bits // 8, (dl_tensor.data or 0) + dl_tensor.byte_offset
        return datatype, cuda.DeviceArray(shape, byte_size, address, (dl_tensor.device_type, dl_tensor.device_id), _Owner(managed))
    owner = _Borrowed(managed, shape, typestr, strides)
    return datatype, np.empty(shape, typestr) if 0 in shape else np.asarray(owner)


def _capsule(tensor: Any) -> Any:
    """The capsule of an object: in the second layout, if its library knows it, because libraries refuse to export read-only memory in the first one.
    """
    try:
        return tensor.__dlpack__(max_version=_VERSION)
    except TypeError:
        return tensor.__dlpack__()


def _capsule_from_gpu(tensor: Any, device: cuda.Device) -> Any:
    """The capsule of an object on a GPU, after the work that writes its elements was done."""
    stream = device.stream()
    # Libraries use their stream of the current device.
    with device.current():
        try:
            made = tensor.__dlpack__(stream=stream, max_version=_VERSION)
        except TypeError:
            made = tensor.__dlpack__(stream=stream)
    device.await_stream()
    return made


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


def _is_contiguous(dl_tensor: _Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the elements are contiguous in row-major order. True if there are no elements or no strides."""
    if not dl_tensor.strides or 0 in shape:
        return True
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 and dl_tensor.strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def _check_device(kind: int, kinds: tuple[int, ...]) -> None:
    if kind not in kinds:
        raise TritonModelException(f"DLDevice type {kind} is not supported by Python backend.")
