"""Which values are refused because a conversion would lose something?"""

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from nerite import _convert


def check(given, datatype, expect):
    """``expect``: the elements, or a text of the error."""
    if isinstance(expect, str):
        with pytest.raises(InferenceServerException, match=expect):
            _convert.elements(given, datatype)
    else:
        found, dtype = _convert.elements(given, datatype)
        assert found.astype(dtype).tolist() == expect


@pytest.mark.parametrize(
    ("datatype", "exact", "lost"),
    [("FP16", 2048, 2049), ("BF16", 256, 257), ("FP32", 16777216, 123456789), ("FP64", 2**53, 2**53 + 1)],
)
def test_a_whole_number_in_a_list_is_taken_if_the_datatype_has_it(datatype, exact, lost):
    for number in (exact, -exact, 2 * exact, exact + 2):
        check([number], datatype, [number])
        check([[0.5, number]], datatype, [[0.5, number]])
    for number in (lost, -lost):
        for given in ([number], number, [[1, 2], [3, number]], [0.5, number]):
            check(given, datatype, rf"got {number} \(int\), .*{datatype} takes .*give float\({number}\) where it may be rounded")
        check([float(lost)], datatype, [float(np.asarray(lost).astype(_convert._datatypes.numpy_dtype(datatype)))])


@pytest.mark.parametrize(
    ("given", "datatype", "expect"),
    [
        ([0.1], "FP32", [float(np.float32(0.1))]),
        ([1e-40, 0.0, -0.0], "FP32", [float(np.float32(1e-40)), 0, 0]),
        ([float("inf"), -float("inf")], "FP16", [float("inf"), -float("inf")]),
        ([True, 3], "FP32", [1, 3]),
        ([1e39], "FP32", r"got 1e\+39 \(float\)"),
        ([70000], "FP16", r"got 70000 \(int\)"),
        ([10**400], "FP64", r"got 1000.* \(int\)"),
        ([1e-60], "FP32", r"got 1e-60 \(float\), a tensor of FP32 takes numbers that do not become 0; give 0.0 where 1e-60 may"),
        ([-1e-9], "FP16", r"got -1e-09 \(float\)"),
    ],
)
def test_a_float_is_rounded_but_neither_to_infinity_nor_to_zero(given, datatype, expect):
    check(given, datatype, expect)


@pytest.mark.parametrize("other", [None, float("nan"), 1, 2.5, b"x".__class__])
def test_an_array_of_objects_is_a_tensor_of_texts_only_if_all_are_texts(other):
    pandas = pytest.importorskip("pandas")
    objects = np.array(["a", other, b"b"], dtype=object)
    refused = r"takes str and bytes"
    check(objects, "BYTES", refused)
    check(objects.reshape(3, 1), "BYTES", refused)
    check([objects], "BYTES", refused)
    check(pandas.Series(objects, dtype=object), "BYTES", refused)
    check(np.array(["a", np.str_("ü"), b"b", np.bytes_(b"c")], dtype=object), "BYTES", ["a", "ü", b"b", b"c"])
    check(np.array([b"a", b"bc"]), "BYTES", [b"a", b"bc"])


def test_an_array_of_pandas_with_missing_elements_is_refused():
    pandas = pytest.importorskip("pandas")
    missing = "with 1 missing elements among 2: a tensor has none; fill them first, with .fillna"
    for given, datatype in (
        (pandas.array([1, None], dtype="Int32"), "FP64"),
        (pandas.array([1.5, None], dtype="Float64"), "FP64"),
        (pandas.array([True, None], dtype="boolean"), "BOOL"),
    ):
        check(given, datatype, missing)
        check([given], datatype, missing)
    check(pandas.array([1, 2], dtype="Int32"), "FP64", [1, 2])
    # NaN is a number there.
    found, _ = _convert.elements(pandas.Series([1.0, float("nan")]), "FP64")
    assert np.isnan(found[1])
