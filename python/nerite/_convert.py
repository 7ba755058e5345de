"""How are a program's values converted to the elements of a datatype, without loss?

* An array (numpy, or an object with DLPack, ``__array__``, the buffer protocol or Arrow's C data and stream interfaces) has a datatype. It is
  converted if every value of its datatype exists in the wanted datatype (INT8 to INT32, FP16 to FP32), and refused otherwise.
* Python's numbers have no datatype, so their values decide. An integer datatype accepts integers in its range. A floating-point datatype
  accepts integers that it represents exactly. It accepts floats and rounds them, but refuses a float that would become infinite or 0. BOOL
  accepts True and False. BYTES accepts ``str`` and ``bytes``, also as elements of an array of objects.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np
from tritonclient.utils import InferenceServerException

from nerite import _datatypes

# numpy's limit of dimensions is 32 in version 1 and 64 in version 2.
DIMENSIONS_MAX = 32
# DLPack's device types that the host can read: host memory, and memory pinned for CUDA.
_HOST_KINDS = (1, 3)
# The largest number of each floating-point datatype, as texts for errors.
LARGEST = {"FP16": "65504", "BF16": "3.3895e38", "FP32": "3.4028e38", "FP64": "1.7977e308"}
# The bits of the mantissa of each floating-point datatype, with the first one, which is not stored.
EXACT_BITS = {"FP16": 11, "BF16": 8, "FP32": 24, "FP64": 53}


def elements(given: Any, datatype: str, note_copy: Callable[[int], None] = lambda _: None) -> tuple[np.ndarray, np.dtype[Any]]:
    """Converts ``given`` to an array that can be assigned to elements of ``datatype``. Also returns the dtype as which those elements are
    viewed. ``note_copy`` is called with the number of bytes that were copied to join the chunks of a column."""
    if isinstance(given, np.ndarray) and datatype == _datatypes.datatype_of(given) and not isinstance(given, np.ma.MaskedArray):
        return (given if datatype != "BYTES" else _texts(given)), given.dtype
    found = _of_column(given, datatype, note_copy)
    if found is None:
        found = _converted(given, datatype, 0)
    # BF16 from DLPack comes as ``uint16``, which needs only numpy.
    return found, found.dtype if datatype == "BF16" and found.dtype == np.uint16 else _datatypes.numpy_dtype(datatype)


def _converted(given: Any, datatype: str, depth: int) -> np.ndarray:
    if depth > DIMENSIONS_MAX:
        raise InferenceServerException(
            f"nested lists are {depth} deep or more, a tensor has at most {DIMENSIONS_MAX} dimensions"
        )
    if isinstance(given, np.ndarray):
        return _checked(_unmasked(given), datatype, "numpy array")
    if isinstance(given, (list, tuple)):
        return _of_sequence(given, datatype, depth)
    if type(given) is bytes and datatype == "UINT8":
        return np.frombuffer(given, np.uint8)
    if type(given) in (bool, int, float, str, bytes):
        return _of_values([given], datatype).reshape(())
    if hasattr(given, "__arrow_c_array__"):
        # This is tried before the other protocols of these libraries, because those turn nulls into NaN.
        from nerite import _arrow

        if (found := _arrow.array_of(given)) is not None:
            return _checked(found, datatype, type(given).__name__)
    if depth and (column := _of_column(given, datatype, lambda _: None)) is not None:
        return column
    if hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
        return _of_dlpack(given, datatype, depth)
    if hasattr(given, "__array__") or hasattr(given, "__array_interface__"):
        _check_missing(given)
        return _checked(_array_of(given), datatype, type(given).__name__)
    try:
        memory = memoryview(given)
    except TypeError:
        pass
    else:
        return _checked(np.asarray(memory), datatype, type(given).__name__)
    if isinstance(given, AnySequence) and not isinstance(given, (str, bytes)):
        return _of_sequence(given, datatype, depth)
    raise InferenceServerException(
        f"expected an array (of numpy, or an object with DLPack, __array__, the buffer protocol, or an array or column of Arrow with elements of a "
        f"fixed size or texts), nested lists of numbers or texts, or bytes, got {type(given).__name__}"
    )


def _unmasked(array: np.ndarray) -> np.ndarray:
    """The array, if none of its elements is masked."""
    if isinstance(array, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(array))
        if masked:
            raise InferenceServerException(
                f"an array with {masked} masked elements among {array.size}: a tensor has none; fill them first, with .filled(value)"
            )
        return np.ma.getdata(array)
    return array


def _of_column(given: Any, datatype: str, note_copy: Callable[[int], None]) -> Optional[np.ndarray]:
    """The elements of a column in chunks, by Arrow's protocol: other protocols turn nulls into NaN. None if the object is not a column, such as a
    whole table."""
    # A column over a numpy array is read as that array, because there NaN is a number.
    if not hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__") or isinstance(getattr(given, "dtype", None), np.dtype):
        return None
    from nerite import _arrow

    try:
        found = _arrow.array_of_stream(given)
    except InferenceServerException:
        raise
    except Exception as error:
        # pandas needs pyarrow for this.
        if hasattr(given, "__array__"):
            return None
        raise InferenceServerException(f"a {type(given).__name__} gives no column of Arrow: {error}") from error
    if found is None:
        return None
    array, copied = found
    note_copy(copied)
    return _checked(array, datatype, type(given).__name__)


def _check_missing(given: Any) -> None:
    """Refuses an extension array of pandas with missing elements, which its ``__array__`` would turn into NaN."""
    dtype, is_missing = getattr(given, "dtype", None), getattr(given, "isna", None)
    # Where NaN stands for a missing element, it may be a number as well.
    if not callable(is_missing) or not hasattr(dtype, "na_value") or isinstance(dtype.na_value, float):
        return
    missing = int(np.count_nonzero(is_missing()))
    if missing:
        raise InferenceServerException(
            f"{type(given).__name__} with {missing} missing elements among {len(given)}: a tensor has none; fill them first, with .fillna(value)"
        )


def _array_of(given: Any) -> np.ndarray:
    """The object as an array, by its own protocols."""
    try:
        return np.asarray(given)
    except Exception as error:
        raise InferenceServerException(f"a {type(given).__name__} gives no array: {error}") from error


def _of_dlpack(given: Any, datatype: str, depth: int) -> np.ndarray:
    name = type(given).__name__
    kind = int(given.__dlpack_device__()[0])
    source = given if kind in _HOST_KINDS else _on_host(given, name, kind)
    try:
        # Imported at first use, because it needs ctypes with callbacks, which some systems forbid.
        from nerite.model import dlpack

        found, array = dlpack.borrowed(source)
    except Exception as error:
        # DLPack does not support every dtype, and some libraries export fewer dtypes with it than with `__array__`.
        if hasattr(given, "__array__"):
            return _checked(_array_of(given), datatype, name)
        raise InferenceServerException(f"a {name} gives no array by DLPack: {error}") from error
    if found == "BF16":
        if datatype == "BF16" and depth == 0:
            return array
        array = array.view(_datatypes.numpy_dtype("BF16"))
    return _checked(array, datatype, name)


def _on_host(given: Any, name: str, kind: int) -> Any:
    """A capsule over a copy on the host, which libraries with DLPack 1.0 make."""
    try:
        return given.__dlpack__(dl_device=(_HOST_KINDS[0], 0), copy=True, max_version=(1, 0))
    except Exception as error:
        raise InferenceServerException(
            f"a {name} in the memory of a device (DLPack's kind {kind}) cannot be copied from here; bring it to the host "
            f"first, with .cpu() in PyTorch, .get() in CuPy or numpy.asarray in JAX"
        ) from error


def _checked(array: np.ndarray, datatype: str, name: str) -> np.ndarray:
    """The array, if its conversion loses no value."""
    found = _datatypes.datatype_of(array)
    if datatype == "BYTES" and (found == datatype or array.dtype.kind == "U"):
        return _texts(array)
    if found == datatype or is_lossless(array.dtype, datatype):
        return array
    raise InferenceServerException(
        f"got unexpected datatype {found or array.dtype} from {name}, expected {datatype}; {_cure(datatype)}"
    )


def _texts(array: np.ndarray) -> np.ndarray:
    """The array, if all its elements are texts. Other elements are refused: ``str(None)`` would be a text, but hardly the one
    that was meant."""
    if array.dtype.kind == "O":
        values = array.ravel().tolist()
        if not all(issubclass(one, (str, bytes)) for one in set(map(type, values))):
            _refuse((one for one in values if not isinstance(one, (str, bytes))), "BYTES", "str and bytes")
    return array


def is_lossless(dtype: np.dtype[Any], datatype: str) -> bool:
    """Whether each value of the dtype, numeric or boolean, exists in the datatype."""
    if datatype == "BYTES" or not (dtype.kind in "biuf" or _datatypes.datatype_of(np.empty(0, dtype)) == "BF16"):
        return False
    wanted = _datatypes.numpy_dtype(datatype)
    if dtype.kind in "iu" and dtype.itemsize == 8 and wanted.kind == "f":
        # numpy calls this safe, but FP64 holds integers exactly only up to 53 bits.
        return False
    return np.can_cast(dtype, wanted, "safe")


def _cure(datatype: str) -> str:
    if datatype == "BYTES":
        return "give elements of str or bytes, in a list or an array of dtype object"
    dtype = _datatypes.numpy_dtype(datatype)
    module = "ml_dtypes" if datatype == "BF16" else "numpy"
    return f"where values may be lost, say so with numpy.asarray(data).astype({module}.{dtype.name})"


def _of_sequence(given: Sequence[Any], datatype: str, depth: int) -> np.ndarray:
    kinds = set(map(type, given))
    if kinds <= {bool, int, float, str, bytes}:
        return _of_values(given, datatype)
    rows = [_converted(one, datatype, depth + 1) for one in given]
    for index, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise InferenceServerException(
                f"nested lists must have equal lengths: element {index} has shape {list(row.shape)}, element 0 "
                f"{list(rows[0].shape)}"
            )
    if datatype == "BYTES":
        stacked = np.empty((len(rows), *rows[0].shape), dtype=np.object_)
        for index, row in enumerate(rows):
            stacked[index] = row
        return stacked
    return np.stack([row.astype(_datatypes.numpy_dtype(datatype), copy=False) for row in rows])


def _of_values(values: Sequence[Any], datatype: str) -> np.ndarray:
    """An array of Python values, each of which is checked."""
    if datatype == "BYTES":
        _check_types(values, (str, bytes), datatype, "str and bytes")
        texts = np.empty(len(values), dtype=np.object_)
        texts[:] = values
        return texts
    dtype = _datatypes.numpy_dtype(datatype)
    if dtype.kind == "b":
        _check_types(values, (bool,), datatype, "True and False")
        return np.array(values, dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        takes = f"whole numbers from {bounds.min} to {bounds.max}"
        _check_types(values, (bool, int), datatype, takes)
        _refuse((one for one in values if not bounds.min <= one <= bounds.max), datatype, takes)
        return np.array(values, dtype)
    return _of_numbers(values, datatype, dtype)


def _of_numbers(values: Sequence[Any], datatype: str, dtype: np.dtype[Any]) -> np.ndarray:
    _check_types(values, (bool, int, float), datatype, "numbers")
    up_to = f"numbers from -{LARGEST[datatype]} to {LARGEST[datatype]}"
    try:
        wide = np.array(values, np.float64)
    except OverflowError:
        _refuse((one for one in values if isinstance(one, int) and one.bit_length() > 1024), datatype, up_to)
        raise
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    became_infinite = np.isinf(narrow.astype(np.float64)) & np.isfinite(wide)
    _refuse((values[index] for index in np.flatnonzero(became_infinite)), datatype, up_to)
    became_zero = (narrow == 0) & (wide != 0)
    _refuse((values[index] for index in np.flatnonzero(became_zero)), datatype, "numbers that do not become 0; give 0.0 where {0} may")
    # All whole numbers up to this one are exact.
    exact_max = 1 << EXACT_BITS[datatype]
    if int in set(map(type, values)):
        _refuse(
            (one for one, got in zip(values, narrow.tolist()) if type(one) is int and abs(one) > exact_max and int(got) != one),
            datatype, f"whole numbers beyond {exact_max} only if it has them exactly; give float({{0}}) where it may be rounded",
        )  # fmt: skip
    return narrow


def _check_types(values: Sequence[Any], types: tuple[type, ...], datatype: str, takes: str) -> None:
    """Refuses values of other types than these. A bool counts as an int only if bool is listed."""
    if not set(map(type, values)) <= set(types):
        _refuse((one for one in values if type(one) not in types), datatype, takes)


def _refuse(values: Iterable[Any], datatype: str, takes: str) -> None:
    for value in values:
        shown = repr(value)[:60]
        raise InferenceServerException(f"got {shown} ({type(value).__name__}), a tensor of {datatype} takes {takes.replace('{0}', shown)}")
