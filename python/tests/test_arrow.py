"""Are arrays of Arrow taken by its C data interface, also from programs without pyarrow?"""

import ctypes
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
        told = struct.pack("=i", len(metadata)) + b"".join(struct.pack("=i", len(text)) + text for text in texts)
        self.metadata = ctypes.create_string_buffer(told)
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
        (Column("tdD", [None, NUMBERS], 3), "INT32", "an array of Arrow with elements of a fixed size or texts"),
        (Column("s", [None, NUMBERS], 3, dictionary=1), "INT16", "an array of Arrow with elements of a fixed size or texts"),
        (Column("s", [None, NUMBERS], 3, metadata=EXTENSION), "INT16", "an array of Arrow with elements of a fixed size or texts"),
        (
            Column("+w:2", [None], 2, child=Column("s", [None, NUMBERS], 10), metadata=EXTENSION),
            "INT16",
            "an array of Arrow with elements of a fixed size or texts",
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
