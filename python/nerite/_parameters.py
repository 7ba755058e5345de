"""Which parameters and sequences may go with a request?

Parameters of the protocols are bool, int64, double or text, and the number of a sequence is an unsigned number of 64 bits. Other values are refused before
anything is sent, because they would reach the model as another value.
"""

from __future__ import annotations

import operator
from typing import Any, Mapping, Optional

import numpy as np

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
SEQUENCE_ID = "sequence_id"


def checked(parameters: Optional[Mapping[str, Any]], sequence: Any = None) -> Optional[dict[str, Any]]:
    """The parameters of a request, with those of its sequence, as Python's own types. None if there are none."""
    given = dict(parameters or {})
    if sequence is not None:
        given.update(_of_sequence(sequence))
    return {key: _sequence_id(value) if key == SEQUENCE_ID else _value(key, value) for key, value in given.items()} or None


def _of_sequence(sequence: Any) -> dict[str, Any]:
    number, *marks = sequence if isinstance(sequence, tuple) else (sequence,)
    if unknown := set(marks) - {"start", "end"}:
        raise ValueError(f"a sequence is marked 'start' or 'end', not {unknown.pop()!r}")
    return {SEQUENCE_ID: number, "sequence_start": "start" in marks, "sequence_end": "end" in marks}


def _sequence_id(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"a sequence is a whole number or a str, got {value!r}") from None
    if not 0 <= number <= UINT64_MAX:
        raise ValueError(f"sequence {number} is none of the numbers from 0 to {UINT64_MAX}; name it by a str")
    return number


def _value(key: str, value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        number = int(value)
        if not INT64_MIN <= number <= INT64_MAX:
            raise ValueError(f"parameter '{key}' is {number}, whole numbers go from {INT64_MIN} to {INT64_MAX}; give it as a str")
        return number
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"parameter '{key}' is {value!r}; parameters are bool, int, float or str")
