"""Are arrays and columns of Arrow taken by its C interfaces, also from programs without pyarrow?"""

import collections
import ctypes
import gc
import struct

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from nerite import _arrow, _convert

_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))


class Column:
    """An array of Arrow that no library made."""

    def __init__(self, kind: str, buffers: list, length: int, offset: int = 0, nulls: int = 0, child=None, dictionary: int = 0, metadata=()):
        self.buffers = [None if one is None else np.ascontiguousarray(one) for one in buffers]
        pointers = (ctypes.c_void_p * len(buffers))(*(None if one is None else one.ctypes.data for one in self.buffers))
        texts = [text for pair in metadata for text in pair]
        encoded = struct.pack("=i", len(metadata)) + b"".join(struct.pack("=i", len(text)) + text for text in texts)
        self.metadata = ctypes.create_string_buffer(encoded)
        self.schema = _arrow._Schema(format=kind.encode(), dictionary=dictionary)
        if metadata:
            self.schema.metadata = ctypes.addressof(self.metadata)
        self.array = _arrow._Array(length=length, null_count=nulls, offset=offset, n_buffers=len(buffers), buffers=pointers)
        if child is not None:
            self.schema.n_children = self.array.n_children = 1
            self.schema.children = (ctypes.POINTER(_arrow._Schema) * 1)(ctypes.pointer(child.schema))
            self.array.children = (ctypes.POINTER(_arrow._Array) * 1)(ctypes.pointer(child.array))
        self.kept = (pointers, child)

    def __arrow_c_array__(self, requested_schema=None):
        names = (b"arrow_schema", b"arrow_array")
        return tuple(_new(ctypes.addressof(one), name, None) for one, name in zip((self.schema, self.array), names))


NUMBERS = np.arange(10, dtype=np.int16)
NOTE = (b"note", b"")
# It has three dimensions, and its storage two.
EXTENSION = [NOTE, (b"ARROW:extension:name", b"arrow.fixed_shape_tensor"), (b"ARROW:extension:metadata", b'{"shape":[2,1]}')]
TEXTS = [None, np.array([0, 1, 1, 9], np.int32), np.frombuffer("agrößer".encode(), np.uint8)]


@pytest.mark.parametrize(
    ("column", "datatype", "expected"),
    [
        (Column("s", [None, NUMBERS], 10), "INT16", NUMBERS.tolist()),
        (Column("s", [None, NUMBERS], 4, offset=3), "INT32", [3, 4, 5, 6]),
        (Column("s", [None, NUMBERS], 2, metadata=[NOTE, NOTE]), "INT16", [0, 1]),
        (Column("g", [None, np.array([0.5])], 1), "FP64", [0.5]),
        (Column("e", [None, np.array([0.5], np.float16)], 1), "FP32", [0.5]),
        (Column("f", [None, None], 0), "FP32", []),
        (Column("b", [None, np.array([0b10110010, 0b1], np.uint8)], 6, offset=3), "BOOL", [False, True, True, False, True, True]),
        (Column("u", TEXTS, 3), "BYTES", [b"a", b"", "größer".encode()]),
        (Column("u", TEXTS, 2, offset=1), "BYTES", [b"", "größer".encode()]),
        (Column("+w:2", [None], 2, offset=1, child=Column("s", [None, NUMBERS], 10, offset=1)), "INT16", [[3, 4], [5, 6]]),
        (Column("s", [np.array([0b1011], np.uint8), NUMBERS], 1, offset=1, nulls=1), "INT16", [1]),
    ],
)
def test_elements_are_those_of_the_column(column, datatype, expected):
    found, _ = _convert.elements(column, datatype)
    assert found.tolist() == expected


def test_numbers_are_read_where_they_lie_and_cannot_be_written_to():
    column = Column("s", [None, NUMBERS], 10)
    found, _ = _convert.elements(column, "INT16")
    assert np.shares_memory(found, column.buffers[1]) and not found.flags.writeable


@pytest.mark.parametrize(
    ("column", "datatype", "text"),
    [
        (Column("s", [np.array([0b1011], np.uint8), NUMBERS], 4, nulls=1), "INT16", "1 nulls among 4 elements"),
        (Column("s", [np.array([0b1011], np.uint8), NUMBERS], 4, nulls=-1), "INT16", "1 nulls among 4 elements"),
        (Column("l", [None, np.arange(3)], 3), "INT32", "unexpected datatype INT64 from Column, expected INT32"),
        (Column("tdD", [None, NUMBERS], 3), "INT32", "an array or column of Arrow with elements of a fixed size or texts"),
        (Column("s", [None, NUMBERS], 3, dictionary=1), "INT16", "an array or column of Arrow with elements of a fixed size or texts"),
        (Column("s", [None, NUMBERS], 3, metadata=EXTENSION), "INT16", "an array or column of Arrow with elements of a fixed size or texts"),
        (
            Column("+w:2", [None], 2, child=Column("s", [None, NUMBERS], 10), metadata=EXTENSION),
            "INT16",
            "an array or column of Arrow with elements of a fixed size or texts",
        ),
    ],
)
def test_what_has_no_elements_of_the_datatype_is_refused(column, datatype, text):
    with pytest.raises(InferenceServerException, match=text):
        _convert.elements(column, datatype)


def test_columns_of_pyarrow_are_taken():
    pa = pytest.importorskip("pyarrow")
    for column, datatype in [
        (pa.array([1, 2, 3], pa.int32())[1:], "INT32"),
        (pa.array([True, False, True] * 5)[4:], "BOOL"),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), "INT16"),
        (pa.array([0.5, 1.5]), "FP64"),
    ]:
        assert _convert.elements(column, datatype)[0].tolist() == column.to_pylist()
    for column in (pa.array(["a", "ö"]), pa.array([b"a", b"b"], pa.large_binary()), pa.array(["a", "b"]).dictionary_encode()):
        found = _convert.elements(column, "BYTES")[0].tolist()
        assert [one if isinstance(one, str) else one.decode() for one in found] == [
            one if isinstance(one, str) else one.decode() for one in column.to_pylist()
        ]
    with pytest.raises(InferenceServerException, match="1 nulls among 2 elements"):
        _convert.elements(pa.array([1.0, None]), "FP64")


class Chunks:
    """A column in chunks that no library made. ``broken`` is the text with which the second chunk cannot be had."""

    def __init__(self, *chunks: Column, kind: Column = None, broken: str = ""):
        self.left = list(chunks)
        self.kind = kind or chunks[0]
        self.broken = broken.encode()
        self.released = collections.Counter()
        self.functions = [
            _arrow._get(self._get_schema),
            _arrow._get(self._get_next),
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: ctypes.cast(ctypes.c_char_p(self.broken), ctypes.c_void_p).value or 0),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: self.released.update(["schema"])),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: self.released.update(["array"])),
        ]
        last_error = type(_arrow._Stream().get_last_error)(ctypes.cast(self.functions[2], ctypes.c_void_p).value)
        self.stream = _arrow._Stream(get_schema=self.functions[0], get_next=self.functions[1], get_last_error=last_error)

    def _get_schema(self, _, into):
        self._move(self.kind.schema, into, self.functions[3])
        return 0

    def _get_next(self, _, into):
        if self.broken and len(self.left) == 1:
            return 5
        if self.left:
            self._move(self.left.pop(0).array, into, self.functions[4])
        else:
            ctypes.memset(into, 0, ctypes.sizeof(_arrow._Array))
        return 0

    @staticmethod
    def _move(one, into, release):
        ctypes.memmove(into, ctypes.addressof(one), ctypes.sizeof(one))
        type(one).from_address(into).release = ctypes.cast(release, ctypes.c_void_p).value

    def __arrow_c_stream__(self, requested_schema=None):
        return _new(ctypes.addressof(self.stream), b"arrow_array_stream", None)


def numbers(length: int, offset: int = 0) -> Column:
    return Column("s", [None, NUMBERS], length, offset=offset)


def test_one_chunk_is_read_where_it_lies_and_released_with_its_array():
    column = numbers(4, 3)
    chunks, copied = Chunks(numbers(0), column, numbers(0)), []
    found, _ = _convert.elements(chunks, "INT16", copied.append)
    assert found.tolist() == [3, 4, 5, 6] and np.shares_memory(found, column.buffers[1]) and not found.flags.writeable
    assert copied == [0] and chunks.released == {"schema": 1, "array": 2}, "those without elements, at once"
    del found
    gc.collect()
    assert chunks.released == {"schema": 1, "array": 3}


@pytest.mark.parametrize(
    ("chunks", "datatype", "expected"),
    [
        ([numbers(2), numbers(0), numbers(3, 5)], "INT32", [0, 1, 5, 6, 7]),
        ([Column("b", [None, np.array([0b101], np.uint8)], 3)] * 2, "BOOL", [True, False, True] * 2),
        ([Column("u", TEXTS, 3), Column("u", TEXTS, 1)], "BYTES", [b"a", b"", "größer".encode(), b"a"]),
        ([Column("+w:2", [None], 2, child=numbers(10)), Column("+w:2", [None], 1, child=numbers(10, 1))], "INT16", [[0, 1], [2, 3], [1, 2]]),
    ],
)
def test_several_chunks_are_joined_and_that_copy_is_counted(chunks, datatype, expected):
    column, copied = Chunks(*chunks), []
    found, _ = _convert.elements(column, datatype, copied.append)
    assert found.tolist() == expected
    assert len(copied) == 1 and copied[0] > 0
    gc.collect()
    assert column.released == {"schema": 1, "array": len(chunks)}


def test_a_column_without_chunks_has_no_elements():
    for kind, shape in ((numbers(0), (0,)), (Column("+w:3", [None], 0, child=numbers(0)), (0, 3))):
        found, _ = _convert.elements(Chunks(kind=kind), "INT16")
        assert found.shape == shape and found.dtype == np.int16
    # A list of columns is a tensor of one dimension more.
    found, _ = _convert.elements([Chunks(numbers(2)), Chunks(numbers(2, 4))], "INT16")
    assert found.tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Chunks(numbers(1), Column("s", [np.array([0b1], np.uint8), NUMBERS], 2, nulls=1)), "1 nulls among 2 elements"),
        (Chunks(Column("l", [None, np.arange(3)], 3)), "unexpected datatype INT64 from Chunks, expected INT16"),
        (Chunks(Column("+s", [None], 3)), "an array or column of Arrow with elements of a fixed size or texts"),
        (Chunks(numbers(1), numbers(1), broken="the file is cut"), "cannot be had: the file is cut"),
        (Chunks(numbers(1), numbers(1), broken=" "), "cannot be had:"),
    ],
)
def test_a_column_that_is_no_tensor_is_refused(column, text):
    with pytest.raises(InferenceServerException, match=text):
        _convert.elements(column, "INT16")
    gc.collect()
    assert column.released["schema"] == 1


def test_columns_of_pyarrow_and_pandas_are_taken():
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    whole = pa.chunked_array([pa.array([1, 2, 3, 4], pa.int32())])
    table = pa.table({"a": whole, "b": pa.chunked_array([[1], [2, 3, 4]], pa.int32())})
    for column, copies in ((table["a"], 0), (table["a"].slice(1, 2), 0), (table["b"], 16), (table.to_pandas(types_mapper=pd.ArrowDtype)["a"], 0)):
        copied = []
        found, _ = _convert.elements(column, "INT32", copied.append)
        assert found.tolist() == [int(one) for one in column.to_numpy()] and copied == [copies]
    found, _ = _convert.elements(table["a"], "INT32")
    assert found.ctypes.data == whole.chunk(0).buffers()[1].address
    texts, _ = _convert.elements(pd.Series(["a", "ö"]), "BYTES")
    assert [one if isinstance(one, str) else one.decode() for one in texts] == ["a", "ö"]
    # Over an array of numpy NaN is a number. A nullable column says what is missing.
    found, _ = _convert.elements(pd.Series([1.0, np.nan]), "FP64")
    assert np.isnan(found).tolist() == [False, True]
    for missing in (pd.Series([1.0, None], dtype="Float64"), pa.chunked_array([[1.0], [None]])):
        with pytest.raises(InferenceServerException, match="1 nulls among"):
            _convert.elements(missing, "FP64")
    # A whole table is the array that it makes itself.
    found, _ = _convert.elements(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), "FP64")
    assert found.tolist() == [[1, 3], [2, 4]]
