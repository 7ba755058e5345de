"""What is the tensor object of a model, and how are its elements serialised?

Elements of fixed size are contiguous and row-major. Each element of ``BYTES`` is a length of 4 bytes (little endian) and that many bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np

from . import arguments
from .errors import TritonModelException, refused_arguments, refused_call

if TYPE_CHECKING:
    from .cuda import DeviceArray

LENGTH_BYTES = 4
_new = object.__new__
_pack_length = struct.Struct("<I").pack_into
_unpack_length = struct.Struct("<I").unpack_from

# The numpy dtype of each datatype of the protocol. An element of BF16 is two bytes.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
    "BF16": np.dtype(np.uint16),
}
# The protocol's name for each type number of numpy. Several C types may be the same here.
DATATYPES: dict[int, str] = {np.dtype(np.bytes_).num: "BYTES"}
for _datatype, _dtype in NUMPY_DTYPES.items():
    DATATYPES.setdefault(_dtype.num, _datatype)
for _code in "bBhHiIlLqQ":
    _dtype = np.dtype(_code)
    DATATYPES.setdefault(_dtype.num, f"{'UINT' if _dtype.kind == 'u' else 'INT'}{_dtype.itemsize * 8}")
# The numbers of datatypes in Triton's C API.
TRITON_NUMBERS = {name: number for number, name in enumerate(list(NUMPY_DTYPES), start=1)}


class Tensor:
    """A named array. The array of an input is the client's own memory, and read-only. It is valid until the request is answered."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_name", "datatype", "_array", "_shape", "_memory", "_offset")
    # Whether inputs are copied for the model, which may then write to them.
    private_inputs = False
    # The elements, if they are in the memory of a GPU.
    on_device: Optional[DeviceArray] = None
    # The place of an input, until its array is made.
    _shape: Sequence[int]
    _memory: np.ndarray
    _offset: int

    def __init__(self, name: str, numpy_array: np.ndarray) -> None:
        if type(name) is not str or not isinstance(numpy_array, np.ndarray):
            try:
                name, _ = arguments.text(name), arguments.instance(numpy_array, np.ndarray)
            except arguments.Unfit:
                raise refused_arguments("Tensor", "arg0: str, arg1: numpy.ndarray", (name, numpy_array)) from None
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = DATATYPES.get(numpy_array.dtype.num)
        if datatype is None or not numpy_array.dtype.isnative:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self.datatype = datatype
        self._array: Optional[np.ndarray] = numpy_array

    @staticmethod
    def _over(name: str, datatype: str, shape: Sequence[int], memory: np.ndarray, offset: int) -> Tensor:
        """An input over the bytes of a segment, from ``offset``. Its array is made at first use."""
        tensor = _new(Tensor)
        tensor._name = name
        tensor.datatype = datatype
        tensor._array = None
        tensor._shape = shape
        tensor._memory = memory
        tensor._offset = offset
        return tensor

    @staticmethod
    def _of_array(name: str, datatype: str, array: np.ndarray) -> Tensor:
        """An input whose array is made already."""
        tensor = _new(Tensor)
        tensor._name = name
        tensor.datatype = datatype
        tensor._array = array
        return tensor

    @staticmethod
    def _of(name: str, datatype: str, array: np.ndarray) -> Tensor:
        """A tensor whose numpy dtype does not determine its datatype: ``BF16`` as ``uint16``."""
        tensor = Tensor(name, array)
        tensor.datatype = datatype
        return tensor

    def array(self) -> np.ndarray:
        """The elements. BF16 is ``uint16``."""
        array = self._array
        if array is None:
            array = np.ndarray(self._shape, NUMPY_DTYPES[self.datatype], self._memory, self._offset)
            if Tensor.private_inputs:
                array = array.copy()
            else:
                array.flags.writeable = False
            self._array = array
        return array

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def as_numpy(self) -> np.ndarray:
        """The tensor's elements, without a copy. For BYTES, an object array of ``bytes``."""
        if self.datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self.array()

    def shape(self) -> list[int]:
        """The lengths of the tensor's dimensions."""
        return list(self.array().shape)

    def triton_dtype(self) -> int:
        """The number of the datatype in Triton's C API, for ``pb_utils.triton_to_numpy_type``."""
        return TRITON_NUMBERS[self.datatype]

    def is_cpu(self) -> bool:
        """Whether the elements are in host memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule; see :meth:`__dlpack__`."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, *, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """A DLPack capsule over the elements. For an input, over a copy, because the consumer may write. With ``copy=False`` and a version from 1.0
        on, an input is exported as read-only memory, without a copy. ``stream`` has no meaning for the host.
        """
        from . import dlpack

        return dlpack.exported(self.array(), self.datatype, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: the host."""
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of an object that makes one."""
        from . import dlpack

        try:
            name = arguments.text(name)
        except arguments.Unfit:
            returns = "c_python_backend_utils.Tensor"
            raise refused_call("from_dlpack", "arg0: str, arg1: object", (name, tensor), returns) from None
        datatype, elements = dlpack.imported(tensor)
        if isinstance(elements, np.ndarray):
            return Tensor._of(name, datatype, elements)
        return DeviceTensor._on(name, datatype, elements)


class DeviceTensor(Tensor):
    """A named array in the memory of a GPU. numpy cannot access it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("on_device",)
    on_device: DeviceArray

    @staticmethod
    def _on(name: str, datatype: str, elements: DeviceArray) -> DeviceTensor:
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        tensor = _new(DeviceTensor)
        tensor._name = name
        tensor.datatype = datatype
        tensor.on_device = elements
        return tensor

    def array(self) -> np.ndarray:
        """Always an error."""
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def as_numpy(self) -> np.ndarray:
        """Always an error."""
        return self.array()

    def shape(self) -> list[int]:
        """The lengths of the tensor's dimensions."""
        return list(self.on_device.shape)

    def is_cpu(self) -> bool:
        """Whether the elements are in host memory."""
        return False

    def __dlpack__(self, stream: Any = None, *, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """A DLPack capsule over the elements, without a copy. With ``dl_device=(1, 0)``, over a copy on the host."""
        from . import dlpack

        return dlpack.exported_from_gpu(self.on_device, self.datatype, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: the kind of memory, and the number of the GPU."""
        return self.on_device.place


# Triton has only one class for both.
DeviceTensor.__name__ = DeviceTensor.__qualname__ = "Tensor"


class BrokenInput(Exception):
    """A BYTES input whose lengths do not match its size. Only its request fails."""


def decoded(memory: np.ndarray, offset: int, byte_size: int, shape: Sequence[int], name: str) -> np.ndarray:
    """The elements of a BYTES tensor as an object array of ``bytes``.

    The client may change the lengths at any time, so each is read once, then checked.
    """
    view = memoryview(memory)[offset : offset + byte_size]
    found: list[bytes] = []
    at = 0
    while at < byte_size:
        left = byte_size - at - LENGTH_BYTES
        if left < 0:
            raise BrokenInput(
                f"incomplete string length indicator for inference input '{name}', "
                f"expecting {LENGTH_BYTES} bytes but only {byte_size - at} bytes available"
            )
        (length,) = _unpack_length(view, at)
        if length > left:
            raise BrokenInput(
                f"incomplete string data for inference input '{name}', "
                f"expecting string of length {length} but only {left} bytes available"
            )
        at += LENGTH_BYTES
        found.append(view[at : at + length].tobytes())
        at += length
    array = np.empty(len(found), np.object_)
    array[:] = found
    count = 1
    for dim in shape:
        count *= dim
    if count != len(found):
        raise BrokenInput(f"unexpected number of string elements {len(found)} for inference input '{name}', expecting {count}")
    return array.reshape(shape)


def encoded(array: np.ndarray) -> list[bytes]:
    """The elements of a BYTES tensor in row-major order. Bytes are kept, and any other element is converted with ``str`` to UTF-8."""
    elements = np.asarray(array).ravel().tolist()
    return [one if type(one) is bytes else str(one).encode("utf-8") for one in elements]


def encoded_bytes(elements: Sequence[bytes]) -> int:
    """The size of these elements when serialised."""
    return sum(map(len, elements)) + LENGTH_BYTES * len(elements)


def write_elements(elements: Sequence[bytes], memory: np.ndarray, offset: int) -> None:
    """Serialises the elements directly into the segment, from ``offset``."""
    view = memoryview(memory)
    at = offset
    for one in elements:
        _pack_length(view, at, len(one))
        at += LENGTH_BYTES
        end = at + len(one)
        view[at:end] = one
        at = end
