"""Are tensors exchanged by the newer DLPack protocol, with a copy only where one is needed?"""

import gc
import sys

import numpy as np
import pytest

import nerite.model.utils as pb_utils
from nerite.model import dlpack, tensors

IS_VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
needs_versions = pytest.mark.skipif(not IS_VERSIONED, reason="numpy exchanges version 1 of DLPack from 2.1 on")


@pytest.fixture(params=["by numpy", "without numpy"])
def maker(request, monkeypatch):
    """Whether numpy makes the structures. Versions of numpy that make none leave it to the package."""
    if request.param == "without numpy":
        for name in dlpack._NUMPY_MAKES:
            monkeypatch.setitem(dlpack._NUMPY_MAKES, name, False)
    return request.param


def tensor_of(kind: str):
    """A tensor, and its array."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).copy()
    if kind == "strided":
        array = array.T
    if kind == "read-only":
        array.flags.writeable = False
    return pb_utils.Tensor("a", array), array


V1 = (1, 0)
# The kind of memory, the arguments, whether the capsule has the second layout, and whether it is over a copy. None: it cannot be done.
TABLE = [
    ("writable", {}, False, False),
    ("writable", {"stream": None, "max_version": None, "dl_device": None, "copy": None}, False, False),
    ("writable", {"max_version": (0, 8)}, False, False),
    ("writable", {"max_version": V1}, True, False),
    ("writable", {"max_version": (2, 3)}, True, False),
    ("writable", {"dl_device": (1, 0)}, False, False),
    ("writable", {"copy": False}, False, False),
    ("writable", {"copy": False, "max_version": V1}, True, False),
    ("writable", {"copy": True}, False, True),
    ("writable", {"copy": True, "max_version": V1}, True, True),
    ("writable", {"dl_device": (2, 0)}, None, None),
    ("strided", {}, False, True),
    ("strided", {"max_version": V1}, True, True),
    ("strided", {"copy": False}, None, None),
    ("strided", {"copy": False, "max_version": V1}, None, None),
    ("read-only", {}, False, True),
    ("read-only", {"max_version": V1}, True, True),
    ("read-only", {"copy": True, "max_version": V1}, True, True),
    ("read-only", {"copy": False}, None, None),
    ("read-only", {"copy": False, "max_version": V1}, True, False),
]


@pytest.mark.parametrize("kind, arguments, versioned, copied", TABLE, ids=str)
def test_what_a_capsule_is_over(maker, kind, arguments, versioned, copied):
    tensor, array = tensor_of(kind)
    before = sys.getrefcount(array)
    if versioned is None:
        with pytest.raises(BufferError):
            tensor.__dlpack__(**arguments)
        assert sys.getrefcount(array) == before and not dlpack._lent
        return
    capsule = tensor.__dlpack__(**arguments)
    assert ("dltensor_versioned" in repr(capsule)) == versioned
    taken = pb_utils.Tensor.from_dlpack("b", capsule).as_numpy()
    assert (taken == array).all() and np.shares_memory(taken, array) != copied
    assert taken.flags.writeable == (copied or array.flags.writeable)
    with pytest.raises(pb_utils.TritonModelException, match="consumed already"):
        pb_utils.Tensor.from_dlpack("c", capsule)
    del taken
    gc.collect()
    assert sys.getrefcount(array) == before and not dlpack._lent


def test_the_stream_may_be_given_by_its_place():
    tensor, array = tensor_of("writable")
    assert np.shares_memory(pb_utils.Tensor.from_dlpack("b", tensor.__dlpack__(None)).as_numpy(), array)
    assert tensor.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("versions", [None, V1])
def test_capsules_that_nobody_takes_are_given_back(maker, versions):
    tensor, array = tensor_of("writable")
    before = sys.getrefcount(array)
    capsule = tensor.__dlpack__(max_version=versions)
    assert sys.getrefcount(array) == before + 1
    del capsule
    assert sys.getrefcount(array) == before and not dlpack._lent


class FirstLayout:
    """A tensor that knows the first layout only."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **_):
        return self._tensor.__dlpack__()

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


# A capsule is dropped while the exception of the consumer is pending.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wrap", [lambda tensor: tensor, FirstLayout], ids=["as numpy asks", "first layout"])
def test_a_tensor_that_its_consumer_refuses_is_given_back(maker, wrap):
    array = np.zeros(6, dtype=np.uint16)
    before = sys.getrefcount(array)
    given = wrap(tensors.Tensor._of("a", "BF16", array))
    # numpy has no BF16. Callbacks of ctypes lose its error.
    expected = (BufferError, RuntimeError) if maker == "by numpy" else (SystemError, BufferError, RuntimeError)
    with pytest.raises(expected) as raised:
        np.from_dlpack(given)
    assert maker != "by numpy" or "nsupported" in str(raised.value)
    del given, raised
    gc.collect()
    assert sys.getrefcount(array) == before and not dlpack._lent


@needs_versions
@pytest.mark.parametrize("kind", ["writable", "read-only"])
def test_numpy_takes_both(maker, kind):
    tensor, array = tensor_of(kind)
    before = sys.getrefcount(array)
    taken = np.from_dlpack(tensor)
    assert (taken == array).all() and np.shares_memory(taken, array) == (kind == "writable") and taken.flags.writeable
    view = np.from_dlpack(tensor, copy=False)
    assert np.shares_memory(view, array) and view.flags.writeable == (kind == "writable")
    copy = np.from_dlpack(tensor, copy=True)
    assert not np.shares_memory(copy, array) and (copy == array).all()
    del taken, view, copy
    gc.collect()
    assert sys.getrefcount(array) == before and not dlpack._lent


class Library:
    """An array of another library: numpy's, which is not known as such."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **wanted):
        return self._array.__dlpack__(**wanted)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@needs_versions
def test_read_only_memory_of_another_library_is_taken_as_it_is():
    _, array = tensor_of("read-only")
    with pytest.raises(BufferError):
        array.__dlpack__()
    taken = pb_utils.Tensor.from_dlpack("b", Library(array)).as_numpy()
    assert np.shares_memory(taken, array) and not taken.flags.writeable


@pytest.mark.parametrize("versions", [None, V1])
def test_bf16_and_arrays_without_dimensions_travel_in_both_layouts(maker, versions):
    bits = np.array(0x3F80, dtype=np.uint16)
    given = tensors.Tensor._of("a", "BF16", bits)
    taken = pb_utils.Tensor.from_dlpack("b", given.__dlpack__(max_version=versions))
    assert taken.datatype == "BF16" and taken.shape() == [] and np.shares_memory(taken.array(), bits)


def test_another_major_version_is_refused(maker):
    tensor, _ = tensor_of("writable")
    capsule = tensor.__dlpack__(max_version=V1)
    dlpack._Versioned.from_address(dlpack._pointer(id(capsule), dlpack._VERSIONED_NAME)).major = 2
    with pytest.raises(pb_utils.TritonModelException, match="DLPack version 2.0 is not supported, only version 1."):
        pb_utils.Tensor.from_dlpack("b", capsule)


def test_torch_reads_inputs_and_views():
    torch = pytest.importorskip("torch")
    for kind in ("writable", "read-only"):
        tensor, array = tensor_of(kind)
        assert torch.equal(torch.from_dlpack(tensor), torch.tensor(array.tolist()))
