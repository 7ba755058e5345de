"""How does a client use the CUDA driver, a stand-in or the real one?"""

import base64
import contextlib
import ctypes
import pathlib


class Device:
    """Allocations on device 0, their handles, and copies."""

    def __init__(self, library: pathlib.Path):
        self.cuda = ctypes.CDLL(str(library))
        self.call("cuInit", 0)
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name: str, *words) -> None:
        code = getattr(self.cuda, name)(*words)
        assert code == 0, f"{name}: {code}"

    @contextlib.contextmanager
    def memory(self, byte_size: int):
        """An address and its handle, as `cuda_shared_memory.get_raw_handle` gives it."""
        address, handle = ctypes.c_uint64(), (ctypes.c_char * 64)()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(byte_size))
        self.call("cuIpcGetMemHandle", handle, address)
        yield address.value, base64.b64encode(bytes(handle))
        self.call("cuMemFree_v2", address)

    def write(self, address: int, content: bytes) -> None:
        size = ctypes.c_size_t(len(content))
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), content, size, self.stream)
        self.call("cuStreamSynchronize", self.stream)

    def read(self, address: int, byte_size: int) -> bytes:
        into = ctypes.create_string_buffer(byte_size)
        size = ctypes.c_size_t(byte_size)
        self.call("cuMemcpyDtoHAsync_v2", into, ctypes.c_uint64(address), size, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return into.raw
