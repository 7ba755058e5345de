"""How does a model's process access the memory of a GPU?

By the CUDA driver, which is loaded for the first tensor on a GPU. All calls are made in the device's primary context, which PyTorch, CuPy
and CUDA's own runtime use as well.

    memory of the GPU ◄──► page-locked block ◄──► memory of the host
                      bus                  memmove

The driver copies from and to ordinary memory in the same two steps. They are done here, because a client can remove the memory of its region at any
time: the guard handles a fault of ``memmove``, and would not handle one within the driver. A client's memory on a GPU is opened by its IPC handle.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Any, Iterator, Optional, Union

import numpy as np

from .errors import TritonModelException

LIBRARY = "libcuda.so.1"
LIBRARY_VARIABLE = "NERITE_CUDA_LIBRARY"
# Each device has two page-locked blocks of this size. One is filled while the other is copied from.
BLOCK_BYTES = 4 << 20
_NON_BLOCKING = 1
_LAZY_ENABLE_PEER_ACCESS = 1
# DLPack's kind of memory that was allocated on a GPU.
KIND = 2


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


_Number, _Handle, _Size, _Address = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
# The functions of the driver, and the types of their arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(_Number), _Number),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_Handle), _Number),
    "cuCtxPushCurrent_v2": (_Handle,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(_Handle),),
    "cuCtxSynchronize": (),
    "cuStreamCreate": (ctypes.POINTER(_Handle), ctypes.c_uint),
    "cuStreamSynchronize": (_Handle,),
    "cuMemHostAlloc": (ctypes.POINTER(_Handle), _Size, ctypes.c_uint),
    "cuMemcpyDtoHAsync_v2": (_Handle, _Address, _Size, _Handle),
    "cuMemcpyHtoDAsync_v2": (_Address, _Handle, _Size, _Handle),
    "cuMemcpyDtoDAsync_v2": (_Address, _Address, _Size, _Handle),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_Address), _IpcHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_Address,),
    "cuGetErrorName": (_Number, ctypes.POINTER(ctypes.c_char_p)),
    "cuGetErrorString": (_Number, ctypes.POINTER(ctypes.c_char_p)),
}


class Driver:
    """The CUDA driver of this process."""

    def __init__(self) -> None:
        path = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
        try:
            library = ctypes.CDLL(path)
            self._functions = {name: getattr(library, name) for name in _FUNCTIONS}
        except (OSError, AttributeError) as error:
            raise TritonModelException(
                f"a tensor is in the memory of a GPU, and the CUDA driver cannot be loaded: {error}; bring the tensor to the host first"
            ) from error
        for name, arguments in _FUNCTIONS.items():
            self._functions[name].argtypes = arguments
        self.call("cuInit", 0)

    def call(self, name: str, *given: Any) -> None:
        """Calls a function of the driver. Its error becomes an exception."""
        code = self._functions[name](*given)
        if code:
            raise TritonModelException(f"{name}: {self._text('cuGetErrorString', code)} ({self._text('cuGetErrorName', code)}, {code})")

    def _text(self, name: str, code: int) -> str:
        text = ctypes.c_char_p()
        self._functions[name](code, ctypes.byref(text))
        return (text.value or b"unknown error").decode("utf-8", "replace")


class _Lane:
    """A stream of a device, and a page-locked block that it fills."""

    def __init__(self, driver: Driver) -> None:
        self.stream, self.block = _Handle(), _Handle()
        driver.call("cuStreamCreate", ctypes.byref(self.stream), _NON_BLOCKING)
        driver.call("cuMemHostAlloc", ctypes.byref(self.block), BLOCK_BYTES, 0)


class Device:
    """A GPU, by the number that it has in this process."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._context = _Handle()
        handle = _Number()
        driver.call("cuDeviceGet", ctypes.byref(handle), number)
        # The context is kept until the process ends.
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        # Held while the lanes are used.
        self._copying = threading.Lock()
        self._lanes: tuple[_Lane, ...] = ()
        self._stream = _Handle()
        with self.current():
            driver.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes this device the current one of the thread."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", None)

    def stream(self) -> int:
        """A stream for DLPack: the library that exports a tensor makes this stream wait for its own work."""
        return self._stream.value or 0

    def await_stream(self) -> None:
        """Waits for the work that :meth:`stream` waits for."""
        with self.current():
            self._driver.call("cuStreamSynchronize", self._stream)

    def await_all(self) -> None:
        """Waits for all work of this process on the device."""
        with self.current():
            self._driver.call("cuCtxSynchronize")

    def to_host(self, address: int, target: int, byte_size: int) -> None:
        """Copies bytes of the device to an address of this process. The work that writes them must be done."""
        with self._copying, self.current():
            self._lanes = self._lanes or (_Lane(self._driver), _Lane(self._driver))
            begun: Optional[tuple[_Lane, int, int]] = None
            for number, at in enumerate(range(0, byte_size, BLOCK_BYTES)):
                lane, length = self._lanes[number % 2], min(BLOCK_BYTES, byte_size - at)
                self._driver.call("cuMemcpyDtoHAsync_v2", lane.block, address + at, length, lane.stream)
                if begun is not None:
                    self._finish(*begun)
                begun = (lane, target + at, length)
            if begun is not None:
                self._finish(*begun)

    def from_host(self, source: int, address: int, byte_size: int) -> None:
        """Copies bytes of this process to an address of the device, and waits until they are there."""
        with self._copying, self.current():
            self._lanes = self._lanes or (_Lane(self._driver), _Lane(self._driver))
            for number, at in enumerate(range(0, byte_size, BLOCK_BYTES)):
                lane, length = self._lanes[number % 2], min(BLOCK_BYTES, byte_size - at)
                # The last copy from this block may not have ended.
                self._driver.call("cuStreamSynchronize", lane.stream)
                ctypes.memmove(lane.block.value, source + at, length)
                self._driver.call("cuMemcpyHtoDAsync_v2", address + at, lane.block, length, lane.stream)
            for lane in self._lanes:
                self._driver.call("cuStreamSynchronize", lane.stream)

    def within(self, source: int, address: int, byte_size: int) -> None:
        """Copies bytes of a GPU to an address of this one, and waits until they are there. The work that writes them must be done."""
        with self.current():
            self._driver.call("cuMemcpyDtoDAsync_v2", address, source, byte_size, self._stream)
            self._driver.call("cuStreamSynchronize", self._stream)

    def open(self, handle: bytes) -> int:
        """Opens memory of another process. Returns its address."""
        address = _Address()
        with self.current():
            self._driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _IpcHandle.from_buffer_copy(handle), _LAZY_ENABLE_PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        """Closes memory of another process."""
        with self.current():
            self._driver.call("cuIpcCloseMemHandle", address)

    def _finish(self, lane: _Lane, target: int, length: int) -> None:
        self._driver.call("cuStreamSynchronize", lane.stream)
        ctypes.memmove(target, lane.block.value, length)


_driver: Optional[Driver] = None
_devices: dict[int, Device] = {}
# Held while the driver or a device is made.
_making = threading.Lock()


def device(number: int) -> Device:
    """The GPU with this number. Raises ``TritonModelException`` if there is none."""
    found = _devices.get(number)
    if found is not None:
        return found
    global _driver
    with _making:
        if _driver is None:
            _driver = Driver()
        if number not in _devices:
            try:
                _devices[number] = Device(_driver, number)
            except TritonModelException as error:
                raise TritonModelException(f"the memory of GPU {number} cannot be reached: {error}") from error
        return _devices[number]


class DeviceArray:
    """Contiguous elements in the memory of a GPU."""

    __slots__ = ("shape", "nbytes", "address", "place", "is_exported", "_owner")

    def __init__(self, shape: tuple[int, ...], byte_size: int, address: int, place: tuple[int, int], owner: Any) -> None:
        self.shape = shape
        self.nbytes = byte_size
        self.address = address
        # DLPack's kind of memory, and the number of the GPU.
        self.place = place
        # Whether another library got the elements. It may write to them at any time.
        self.is_exported = False
        # Keeps the memory allocated.
        self._owner = owner

    def await_writers(self) -> None:
        """Waits for all writes of other libraries, if one of them got the elements."""
        if self.is_exported:
            device(self.place[1]).await_all()

    def copy_to(self, target: np.ndarray) -> None:
        """Copies the elements to a contiguous array of the same size."""
        self.await_writers()
        if self.nbytes:
            device(self.place[1]).to_host(self.address, target.__array_interface__["data"][0], self.nbytes)

    def on_host(self, dtype: np.dtype[Any]) -> np.ndarray:
        """A copy of the elements on the host."""
        made = np.empty(self.shape, dtype)
        self.copy_to(made)
        return made


class DeviceSegment:
    """A client's region on a GPU. It is opened at its first use, and closed when no tensor uses it any more."""

    __slots__ = ("_handle", "_byte_size", "_gpu", "_address", "_opening")

    def __init__(self, handle: bytes, byte_size: int, gpu: int) -> None:
        self._handle = handle
        self._byte_size = byte_size
        self._gpu = gpu
        self._address: Optional[int] = None
        # Held while it is opened.
        self._opening = threading.Lock()

    def address(self) -> int:
        """The address of its first byte. Raises ``TritonModelException`` if it cannot be opened."""
        with self._opening:
            if self._address is None:
                try:
                    self._address = device(self._gpu).open(self._handle)
                except TritonModelException as error:
                    raise TritonModelException(
                        f"the client's region on GPU {self._gpu} cannot be opened in the model's process: {error}; it must still be allocated"
                    ) from error
            return self._address

    def elements(self, shape: tuple[int, ...], offset: int, byte_size: int) -> DeviceArray:
        """The elements at this offset."""
        return DeviceArray(tuple(shape), byte_size, self.address() + offset, (KIND, self._gpu), self)

    def offset_of(self, array: DeviceArray) -> Optional[int]:
        """The offset of these elements, if they are a part of it."""
        if self._address is None or array.place[1] != self._gpu:
            return None
        offset = array.address - self._address
        return offset if 0 <= offset and offset + array.nbytes <= self._byte_size else None

    def write(self, source: Union[np.ndarray, DeviceArray], offset: int) -> None:
        """Copies elements to this offset."""
        target = self.address() + offset
        if not source.nbytes:
            return
        if isinstance(source, DeviceArray):
            source.await_writers()
            # A model may answer with its input, which may be at this place already.
            if source.address != target:
                device(self._gpu).within(source.address, target, source.nbytes)
        else:
            source = np.ascontiguousarray(source)
            device(self._gpu).from_host(source.__array_interface__["data"][0], target, source.nbytes)

    def __del__(self) -> None:
        if self._address is not None:
            # The context may have ended, which has closed this memory too.
            with contextlib.suppress(TritonModelException):
                device(self._gpu).close(self._address)
