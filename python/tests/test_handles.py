"""Is a handle the array it holds to other libraries, and takes it what they have without loss?"""

import array
import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import nerite.http
from nerite import _convert, _datatypes
from nerite.model import dlpack
from nerite.shm import Region, RegionInUse, fresh_key

FIXED = list(_datatypes.ELEMENT_BYTES)
# What each datatype's numbers look like that are hard to represent elsewhere.
CORNERS = {
    "BOOL": [False, True],
    "FP16": [65504.0, 2.0**-24, float("inf")],
    "BF16": [3.3895313892515355e38, 1.0078125, float("inf")],
    "FP32": [3.4028234663852886e38, 1.1754943508222875e-38, 16777215.0],
    "FP64": [1.7976931348623157e308, 2.2250738585072014e-308, 9007199254740991.0],
}


@pytest.fixture
def client():
    with nerite.http.InferenceServerClient("localhost:1", buffers="inline") as found:
        yield found


@pytest.fixture
def make(client):
    return client.register_input_tensor_with_shared_memory


def corners(datatype: str) -> np.ndarray:
    dtype = _datatypes.numpy_dtype(datatype)
    if datatype in CORNERS:
        return np.array(CORNERS[datatype], dtype)
    bounds = np.iinfo(dtype)
    return np.array([bounds.min, bounds.max, 1], dtype)


class Exporter:
    """What speaks DLPack only, with the kind of memory it says it lies in."""

    def __init__(self, values: np.ndarray, datatype: str, kind: int = 1):
        self.values, self.datatype, self.kind = values, datatype, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, dl_device=None, **_):
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("this library copies to no other device")
        return dlpack.exported(self.values, self.datatype)


class ByNumpy:
    """What speaks DLPack as numpy does, in its strides, and nothing else."""

    def __init__(self, values: np.ndarray):
        self.values = values

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self):
        return self.values.__dlpack__()


class NumpyOnDemand:
    """What speaks ``__array__`` only."""

    def __init__(self, answer):
        self.answer = answer

    def __array__(self, dtype=None, copy=None):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class OnDemand(NumpyOnDemand):
    """What DLPack has no word for, and ``__array__`` has."""

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self):
        raise BufferError("no such dtype")


@pytest.mark.parametrize("datatype", FIXED)
def test_arrays_that_other_libraries_make_of_a_handle_share_its_memory(make, datatype):
    handle = make([2, 3], datatype)
    handle.as_memory()[:] = 0
    seen = np.asarray(handle)
    assert (seen.dtype, seen.shape) == (_datatypes.numpy_dtype(datatype), (2, 3))
    found, borrowed = dlpack.borrowed(handle)
    assert (found, borrowed.shape) == (datatype, (2, 3))
    handle.as_memory()[:] = 1
    assert seen.tobytes() == borrowed.tobytes() == b"\1" * handle.byte_size
    if datatype != "BF16":
        by_dlpack, by_buffer = np.from_dlpack(handle), np.asarray(handle.__buffer__(0))
        assert by_dlpack.dtype == by_buffer.dtype == seen.dtype
        assert np.shares_memory(by_dlpack, seen) and np.shares_memory(by_buffer, seen)


def test_numpy_is_told_whether_it_gets_a_copy(make):
    handle = make([3], "INT32")
    handle[:] = [1, 2, 3]
    assert np.shares_memory(handle.__array__(), handle.as_numpy())
    assert np.shares_memory(handle.__array__(np.int32, copy=False), handle.as_numpy())
    assert not np.shares_memory(handle.__array__(copy=True), handle.as_numpy())
    assert not np.shares_memory(np.array(handle), handle.as_numpy())
    wide = np.asarray(handle, dtype=np.float64)
    assert (wide.dtype, wide.tolist()) == (np.float64, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="elements of int32, as float64 they are a copy; drop copy=False"):
        handle.__array__(np.float64, copy=False)


def test_elements_of_bytes_are_a_copy_and_nothing_else(make):
    handle = make([2], "BYTES")
    handle.copy_from(["a", b"\xff\0"])
    assert np.asarray(handle).tolist() == [b"a", b"\xff\0"] == list(handle)
    assert handle[1] == b"\xff\0"
    with pytest.raises(ValueError, match="no fixed place, an array of them is a copy"):
        handle.__array__(copy=False)
    for refused in (handle.__dlpack__, lambda: handle.__buffer__(0), lambda: handle.__setitem__(0, b"b")):
        with pytest.raises(BufferError, match="have no fixed place, .* write with copy_to_shared_memory"):
            refused()


def test_a_buffer_returns_when_a_consumer_of_dlpack_refuses_it(make):
    handle = make([4], "BF16")
    returned = weakref.ref(handle._block)
    with pytest.raises((BufferError, RuntimeError), match="nsupported"):  # numpy has no BF16
        np.from_dlpack(handle)
    handle.release()
    gc.collect()
    assert returned() is None


def test_dlpack_does_what_its_consumer_asks(make):
    handle = make([2], "FP32")
    handle[...] = 1
    by_version = np.from_dlpack(handle)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert by_version.flags.writeable
        assert not np.shares_memory(np.from_dlpack(handle, copy=True), handle.as_numpy())
    found, copied = dlpack.borrowed(handle.__dlpack__(copy=True))
    handle[...] = 2
    assert (found, copied.tolist()) == ("FP32", [1.0, 1.0])
    assert handle.__dlpack_device__() == (1, 0)
    assert dlpack.borrowed(handle.__dlpack__(dl_device=(1, 0), stream=None))[1].tolist() == [2.0, 2.0]
    with pytest.raises(BufferError, match=r"host's memory \(1, 0\), asked for device \(2, 1\)"):
        handle.__dlpack__(dl_device=(2, 1))


def test_the_buffer_protocol_refuses_what_it_has_no_word_for(make):
    with pytest.raises(BufferError, match="the buffer protocol has no BF16"):
        make([1], "BF16").__buffer__(0)


def test_a_memoryview_of_a_handle_is_its_memory(make):
    handle = make([2, 2], "INT16")
    # Python itself asks for it from 3.12 on.
    with memoryview(handle) if sys.version_info >= (3, 12) else handle.__buffer__(0) as memory:
        memory[1, 1] = -5
        assert (memory.format, memory.shape) == ("h", (2, 2))
    assert handle[1, 1] == -5


def test_indices_are_those_of_numpy(make):
    handle = make([2, 3], "FP64")
    handle[...] = 0
    handle[0] = [1, 2, 3]
    handle[1, ::2] += 7
    assert [row.tolist() for row in handle] == [[1.0, 2.0, 3.0], [7.0, 0.0, 7.0]]
    assert np.shares_memory(handle[:, 1], handle.as_numpy())
    assert len(handle) == 2
    with pytest.raises(IndexError):
        handle[2]


def test_a_handle_is_true_whatever_its_shape(make):
    assert make([0], "FP32") and make([], "FP32")
    assert np.asarray(make([0, 3], "FP32")).shape == (0, 3)
    assert np.from_dlpack(make([0, 3], "FP32")).shape == (0, 3)


def test_arrays_of_other_libraries_keep_the_memory(make):
    handle = make([4], "INT64")
    handle[:] = 5
    views = [np.asarray(handle), np.from_dlpack(handle), np.asarray(handle.__buffer__(0)), dlpack.borrowed(handle)[1]]
    handle.release()
    del handle
    gc.collect()
    assert [view.tolist() for view in views] == [[5] * 4] * 4


def test_a_released_handle_is_no_array(make):
    handle = make([1], "FP32")
    handle.release()
    for use in (lambda: np.asarray(handle), lambda: handle[0], lambda: np.from_dlpack(handle)):
        with pytest.raises(InferenceServerException, match="the buffer was released"):
            use()


def test_torch_shares_the_memory(make):
    torch = pytest.importorskip("torch")
    for datatype, dtype in (("FP32", torch.float32), ("BF16", torch.bfloat16), ("BOOL", torch.bool)):
        handle = make([2, 2], datatype)
        handle.as_memory()[:] = 0
        tensor = torch.from_dlpack(handle)
        assert (tensor.dtype, tuple(tensor.shape)) == (dtype, (2, 2))
        tensor[1, 1] = 1
        assert tensor.data_ptr() == handle.as_memory().ctypes.data
        assert float(handle[1, 1]) == 1.0
        handle.copy_from(torch.zeros(2, 2, dtype=dtype).t())
        assert not tensor.any()


@pytest.mark.parametrize("datatype", FIXED)
def test_every_source_of_the_same_datatype_is_taken(make, datatype):
    values = corners(datatype)
    handle = make(values.shape, datatype)
    plain = values.view(np.uint16) if datatype == "BF16" else values
    other = make(values.shape, datatype)
    other.copy_from(values)
    listed = [values.tolist(), tuple(values.tolist()), list(values)]
    for source in [values, *listed, values.tobytes(), Exporter(plain, datatype), NumpyOnDemand(values), other]:
        handle.as_memory()[:] = 0
        handle.copy_from(source)
        assert handle.as_numpy().tobytes() == values.tobytes(), source


def test_the_order_of_elements_in_memory_does_not_matter(make):
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    handle = make([3, 2], "INT32")
    for source in (values.T, ByNumpy(values.T), NumpyOnDemand(values.T), values.T.astype(">i4")):
        handle[...] = -1
        handle.copy_from(source)
        assert handle.as_numpy().tolist() == values.T.tolist()


def test_objects_with_a_buffer_are_elements_of_its_format(make):
    handle = make([3], "FP32")
    for source in (array.array("f", [1, 2, 3]), (ctypes.c_float * 3)(1, 2, 3)):
        handle[:] = 0
        handle.copy_from(source)
        assert handle.as_numpy().tolist() == [1.0, 2.0, 3.0]


def test_nested_sequences_may_hold_numbers_and_arrays(make):
    handle = make([2, 2], "FP32")
    sources = [
        [[1, 2.5], [True, 4]],
        [np.float32([1, 2.5]), [1, 4]],
        [range(1, 3), np.float16([1, 4])],
        ((1, 2), Exporter(np.float32([1, 4]), "FP32")),
    ]
    for source in sources:
        handle[...] = 0
        handle.copy_from(source)
        assert handle.as_numpy().ravel().tolist() in ([1, 2.5, 1, 4], [1, 2, 1, 4])
    halves = make([2, 2], "BF16")
    halves.copy_from([Exporter(np.uint16([0x3F80, 0x4000]), "BF16"), [3, 4]])
    assert np.asarray(halves, np.float32).tolist() == [[1, 2], [3, 4]]
    scalar = make([], "INT8")
    scalar.copy_from(-128)
    assert scalar.as_numpy() == -128
    empty = make([2, 0], "INT8")
    empty.copy_from([[], []])
    words = make([2, 2], "BYTES")
    words.copy_from([["a", b"b\0"], np.array(["c", "größe"])])
    assert words.as_numpy().tolist() == [[b"a", b"b\0"], [b"c", "größe".encode()]]


@pytest.mark.parametrize("wanted", FIXED)
@pytest.mark.parametrize("found", FIXED)
def test_arrays_of_another_datatype_are_converted_only_without_loss(make, found, wanted):
    values = corners(found)
    handle = make(values.shape, wanted)
    if _convert.is_lossless(values.dtype, wanted):
        handle.copy_from(values)
        assert (handle.as_numpy().astype(values.dtype) == values).all()
        return
    assert found != wanted
    text = rf"unexpected datatype {found} from numpy array, expected {wanted}; .*astype\("
    with pytest.raises(InferenceServerException, match=text):
        handle.copy_from(values)
    with pytest.raises(InferenceServerException, match=rf"unexpected datatype {found} from NumpyOnDemand, expected {wanted}"):
        handle.copy_from(NumpyOnDemand(values))
    with pytest.raises(InferenceServerException, match=f"unexpected datatype {found} .* expected {wanted}"):
        handle.copy_from([one for one in values])


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("INT8", "INT32"),
        ("UINT8", "INT16"),
        ("FP16", "FP32"),
        ("BF16", "FP32"),
        ("FP32", "FP64"),
        ("INT32", "FP64"),
        ("BOOL", "UINT8"),
    ],
)
def test_these_conversions_lose_nothing(found, wanted):
    assert _convert.is_lossless(_datatypes.numpy_dtype(found), wanted)


def nested(depth: int):
    value: object = [1]
    for _ in range(depth):
        value = [value, ()]
    return value


@pytest.mark.parametrize(
    ("datatype", "given", "text"),
    [
        ("INT8", [1, 128], r"got 128 \(int\), a tensor of INT8 takes whole numbers from -128 to 127"),
        ("UINT64", [1, -1], r"got -1 \(int\), .* takes whole numbers from 0 to 18446744073709551615"),
        ("INT32", [1.0, 2], r"got 1.0 \(float\), a tensor of INT32 takes whole numbers"),
        ("BOOL", [0, 1], r"got 0 \(int\), a tensor of BOOL takes True and False"),
        ("FP16", [1, 1e6], r"got 1000000.0 \(float\), a tensor of FP16 takes numbers"),
        ("BF16", [1, 1e39], r"got 1e\+39 \(float\), a tensor of BF16 takes numbers"),
        ("FP64", [1, 10**400], r"got 1000+ \(int\), a tensor of FP64 takes numbers"),
        ("FP32", [1, "2"], r"got '2' \(str\), a tensor of FP32 takes numbers"),
        ("BYTES", [b"a", 2], r"got 2 \(int\), a tensor of BYTES takes str and bytes"),
        ("BYTES", np.zeros(2), "unexpected datatype FP64 from numpy array, expected BYTES; give elements of str or bytes"),
        ("FP32", [None, 1], "expected an array .*, got NoneType"),
        ("FP32", {1.0, 2.0}, "expected an array .*, got set"),
        ("FP32", [[1], [1, 2]], r"equal lengths: element 1 has shape \[2\], element 0 \[1\]"),
        ("FP32", [1, 2, 3], r"unexpected list shape \[3\], expected \[2\]"),
        ("FP32", nested(40), "at most 32 dimensions"),
        ("FP32", NumpyOnDemand(TypeError("not today")), "a NumpyOnDemand gives no array: not today"),
        ("FP32", OnDemand(TypeError("not today")), "a OnDemand gives no array: not today"),
        ("FP32", OnDemand(np.zeros(2)), "unexpected datatype FP64 from OnDemand, expected FP32"),
        ("FP32", Exporter(np.zeros(2, np.uint16), "BF16", kind=2), "memory of a device .*kind 2.* bring it to the host first"),
        ("FP16", Exporter(np.zeros(2, np.uint16), "BF16"), "unexpected datatype BF16 from Exporter, expected FP16"),
        ("FP32", array.array("d", [1, 2]), "unexpected datatype FP64 from array, expected FP32"),
        ("FP32", np.zeros(2, np.complex64), "unexpected datatype complex64 .* expected FP32"),
        ("INT64", np.zeros(2, "m8[s]"), "unexpected datatype timedelta64.* expected INT64"),
    ],
)
def test_a_conversion_that_loses_values_is_refused_and_writes_nothing(client, make, datatype, given, text):
    handle = make([2], datatype)
    before = handle.as_memory().tobytes()
    with pytest.raises(InferenceServerException, match=text):
        client.copy_to_shared_memory(handle, given)
    assert handle.as_memory().tobytes() == before


def test_a_region_is_an_array_of_its_bytes():
    with Region.create(fresh_key("nerite-handles"), 64) as region:
        region[:4] = [1, 2, 3, 4]
        seen = np.asarray(region)
        assert (seen.dtype, seen.shape, len(region)) == (np.uint8, (64,), 64)
        assert np.shares_memory(seen, np.from_dlpack(region))
        assert region.buf[:4].tobytes() == seen[:4].tobytes() == bytes(region.__buffer__(0)[:4]) == b"\1\2\3\4"
        with pytest.raises(RegionInUse):
            region.destroy()
        del seen
