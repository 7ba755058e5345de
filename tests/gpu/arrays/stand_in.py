"""What can a model do with arrays on a GPU, where the GPU is the stand-in driver?

A library of arrays as small as it can be: memory of the driver, and DLPack's first layout. ``torch_arrays.py`` has the same functions.
"""

import ctypes
import os

import numpy as np

KINDS = {"f": 2, "i": 0, "u": 1, "b": 6}
BF16 = 4
NAME, USED_NAME = b"dltensor", b"used_dltensor"
CUDA = 2

driver = ctypes.CDLL(os.environ["NERITE_CUDA_LIBRARY"])
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


def call(name, *words):
    code = getattr(driver, name)(*words)
    assert code == 0, f"{name}: {code}"


call("cuInit", 0)
contexts = {}
streams = {}


def enter(number):
    """Makes the device the current one of this thread."""
    if number not in contexts:
        contexts[number] = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(contexts[number]), number)
    call("cuCtxPushCurrent_v2", contexts[number])
    if number not in streams:
        streams[number] = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(streams[number]), 1)
    return streams[number]


def leave():
    call("cuCtxPopCurrent_v2", None)


class Array:
    """Elements in memory of the driver. They are written when the array is exported, not before."""

    def __init__(self, elements, datatype=None, number=0):
        self.elements = np.asarray(elements, order="C")
        self.datatype, self.number = datatype, number
        self.memory = ctypes.c_uint64()
        enter(number)
        call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(max(self.elements.nbytes, 1)))
        leave()

    def __del__(self):
        enter(self.number)
        call("cuMemFree_v2", self.memory)
        leave()

    def __dlpack_device__(self):
        return CUDA, self.number

    def __dlpack__(self, stream=None):
        # Whoever names no stream of this device cannot know when the elements have been written.
        enter(self.number)
        call("cuStreamSynchronize", ctypes.c_void_p(stream))
        leave()
        return self.exported()

    def exported(self):
        stream = enter(self.number)
        if self.elements.nbytes:
            source = self.elements.ctypes.data_as(ctypes.c_void_p)
            call("cuMemcpyHtoDAsync_v2", self.memory, source, ctypes.c_size_t(self.elements.nbytes), stream)
        leave()
        ndim, item = self.elements.ndim, self.elements.itemsize
        shape = (ctypes.c_int64 * ndim)(*self.elements.shape)
        code = BF16 if self.datatype == "BF16" else KINDS[self.elements.dtype.kind]
        tensor = DLTensor(self.memory.value, CUDA, self.number, ndim, code, 8 * item, 1, shape, None, 0)
        managed = Managed(tensor, None, give_back)
        lent[ctypes.addressof(managed)] = managed, shape, self
        return python.PyCapsule_New(ctypes.addressof(managed), NAME, None)


lent = {}
give_back = DELETER(lambda address: lent.pop(address) and None)


def make(elements, datatype=None, number=0):
    """An array on a GPU. BF16 is given as uint16."""
    return Array(elements, datatype, number)


def capsule(array):
    """A capsule of the array, which tells nothing of streams."""
    return array.exported()


def count(index):
    """One of the stand-in's counts of this process."""
    driver.standInCounts.restype = ctypes.POINTER(ctypes.c_int64)
    return driver.standInCounts()[index]


def waits():
    """How often somebody waited for all work on a device."""
    return count(11)


def page_locked():
    """Page-locked blocks."""
    return count(3)


def live():
    """How many arrays there are."""
    return count(1)


def opened():
    """How many IPC handles are open, each opening counted."""
    return count(2)


def copied_to_host():
    """Bytes that went from a device to the host."""
    return count(7)


def _taken(tensor, use):
    """Calls ``use`` with DLPack's description of a tensor on a GPU, and gives the tensor back."""
    stream = enter(tensor.__dlpack_device__()[1])
    made = tensor.__dlpack__(stream=stream.value)
    managed = Managed.from_address(python.PyCapsule_GetPointer(made, NAME))
    python.PyCapsule_SetName(made, USED_NAME)
    used = use(managed.tensor, stream)
    leave()
    managed.deleter(ctypes.addressof(managed))
    return used


def read(tensor):
    """The elements of a tensor that speaks DLPack: a copy of their bytes, and their shape."""

    def use(described, stream):
        shape = list(described.shape[: described.ndim])
        into = np.empty(int(np.prod(shape)) * described.bits // 8, np.uint8)
        if into.size:
            target = into.ctypes.data_as(ctypes.c_void_p)
            source = ctypes.c_uint64(described.data + described.byte_offset)
            call("cuMemcpyDtoHAsync_v2", target, source, ctypes.c_size_t(into.size), stream)
        return into, shape

    return _taken(tensor, use)


def address(tensor):
    """Where the elements of a tensor that speaks DLPack lie."""
    return _taken(tensor, lambda described, _: described.data + described.byte_offset)
