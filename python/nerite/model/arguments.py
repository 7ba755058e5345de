"""Which values are accepted for the argument of a compiled function?

Triton's classes are compiled with pybind11, which converts each argument to a C++ type before the function runs, or raises ``TypeError``. The
functions here accept the same values.
"""

from __future__ import annotations

import operator
from typing import Any, Sequence


class Unfit(Exception):
    """A value that cannot be converted. The caller makes a ``TypeError`` of it."""


def text(value: Any) -> str:
    """A string. Bytes of UTF-8 are accepted as well."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise Unfit from None
    raise Unfit


def whole(value: Any, lowest: int, highest: int) -> int:
    """An integer within these bounds. A ``float`` is refused, even if it is whole."""
    if isinstance(value, float):
        raise Unfit
    try:
        number = operator.index(value)
    except TypeError:
        raise Unfit from None
    if not lowest <= number <= highest:
        raise Unfit
    return number


def unsigned_32(value: Any) -> int:
    """An integer of 32 bits without sign."""
    return whole(value, 0, (1 << 32) - 1)


def unsigned_64(value: Any) -> int:
    """An integer of 64 bits without sign."""
    return whole(value, 0, (1 << 64) - 1)


def signed_64(value: Any) -> int:
    """An integer of 64 bits with sign."""
    return whole(value, -(1 << 63), (1 << 63) - 1)


def truth(value: Any) -> bool:
    """A truth value, or an object that defines ``__bool__``. A list, a string and None do not."""
    if value is None or not hasattr(type(value), "__bool__"):
        raise Unfit
    return bool(value)


def some(value: Any) -> Any:
    """Any object, except None."""
    if value is None:
        raise Unfit
    return value


def instance(value: Any, kind: type) -> Any:
    """An object of this class."""
    if not isinstance(value, kind):
        raise Unfit
    return value


def items(value: Any) -> Sequence[Any]:
    """A sequence. A string, bytes, a dictionary, a set and a generator are none."""
    if type(value) in (list, tuple):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (str, bytes, bytearray, dict)) or not hasattr(type(value), "__getitem__"):
        raise Unfit
    return list(value)


def texts(value: Any) -> list[str]:
    """A sequence of strings."""
    return [text(one) for one in items(value)]


def instances(value: Any, kind: type) -> Sequence[Any]:
    """A sequence of objects of this class. None in it is accepted here, and refused by the function itself."""
    found = items(value)
    for one in found:
        if one is not None and not isinstance(one, kind):
            raise Unfit
    return found


def uncastable(value: Any) -> RuntimeError:
    """The error of compiled code for a value that it converts only after the function has begun."""
    return RuntimeError(
        f"Unable to cast Python instance of type {type(value)} to C++ type '?' (#define PYBIND11_DETAILED_ERROR_MESSAGES or "
        "compile in debug mode for details)"
    )
