"""Which errors can a model have, and with which text are they sent to clients?"""

from __future__ import annotations

import enum
import sys
from types import CodeType, FrameType
from typing import Any, Optional

from . import arguments

# The code objects whose frames end a traceback: the functions that call the model.
CALLERS: set[CodeType] = set()
# The folders of the model, in which its modules are looked for.
FOLDERS: list[str] = []
# Longer error texts are cut, because the texts of a whole batch are sent in one packet.
ERROR_CHARACTERS_MAX = 1 << 16
# The prefix of this package's modules. Their frames are not shown, because Triton has compiled code there.
_PACKAGE = __name__.rpartition(".")[0] + "."


class TritonModelException(Exception):
    """The exception of the functions of this package."""

    __module__ = "c_python_backend_utils"


class Named(enum.IntEnum):
    """An enumeration like that of compiled bindings: members equal their numbers, and print as their names."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, specification: str) -> str:
        return format(str(self), specification)


class _ErrorCode(Named):
    """The codes of a :class:`TritonError`."""

    __module__ = "c_python_backend_utils"
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)


_ErrorCode.__name__ = _ErrorCode.__qualname__ = "__ErrorCode"
_ERROR_SIGNATURE = "message: str, code: c_python_backend_utils.TritonError.__ErrorCode = <__ErrorCode.INTERNAL: 1>"


class TritonError:
    """The error of a response: a text, and a code that becomes the status of HTTP or gRPC."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_message", "_code")

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = _ErrorCode

    def __init__(self, message: str, code: Any = _ErrorCode.INTERNAL) -> None:
        try:
            self._message = arguments.text(message)
            arguments.instance(code, _ErrorCode)
        except arguments.Unfit:
            given = (message,) if code is _ErrorCode.INTERNAL else (message, code)
            raise refused_arguments("TritonError", _ERROR_SIGNATURE, given) from None
        self._code = code

    def code(self) -> Any:
        """One of the codes of this class."""
        return self._code

    def message(self) -> str:
        """The text."""
        return self._message


def refused_arguments(name: str, signature: str, given: tuple[Any, ...] = (), named: Optional[dict[str, Any]] = None) -> TypeError:
    """The error of a constructor with wrong arguments, with the text of compiled bindings."""
    return _refused("__init__", "constructor", f"c_python_backend_utils.{name}({signature})", given, named)


def refused_call(name: str, signature: str, given: tuple[Any, ...], returns: str = "None") -> TypeError:
    """The error of a function with wrong arguments. ``returns`` is the type of its value."""
    return _refused(name, "function", f"({signature}) -> {returns}", given, None)


def _refused(name: str, kind: str, signature: str, given: tuple[Any, ...], named: Optional[dict[str, Any]]) -> TypeError:
    parts = [", ".join(map(repr, given))] if given else []
    if named:
        parts.append("kwargs: " + ", ".join(f"{key}={value!r}" for key, value in named.items()))
    return TypeError(
        f"{name}(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\nInvoked with: {'; '.join(parts)}"
    )


def of_request(request_id: str, text: str) -> str:
    """An error of one request, in the form in which the server names the request."""
    return f"[request id: {request_id or '<id_unknown>'}] {text}"


def error_text(error: BaseException, cure: str = "") -> str:
    """The error in Triton's form: type, message, and traceback, innermost frame first. ``cure`` follows the message."""
    try:
        message = _message(error) or "<EMPTY MESSAGE>"
    except Exception:  # noqa: BLE001 - a model's own class may fail here as well
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
    places = "".join(f"  {frame.f_code.co_filename}({line}): {frame.f_code.co_name}\n" for frame, line in _frames(error))
    message = message[:ERROR_CHARACTERS_MAX] + (f"; {cure}" if cure else "")
    return f"{type(error).__name__}: {message}" + (f"\n\nAt:\n{places}" if places else "")


def _message(error: BaseException) -> str:
    # Python's own message omits the folder, and all models have a model.py.
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    # The module may have existed when the model was loaded. Python's own message names no folder.
    if isinstance(error, ModuleNotFoundError) and error.name and FOLDERS and str(error) == f"No module named {error.name!r}":
        return f"{error} ('{error.name.replace('.', '/')}.py' is neither in {' nor in '.join(FOLDERS)}, nor on the interpreter's own path)"
    return str(error)


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames between the error and this package, with their lines."""
    lines: dict[FrameType, int] = {}
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        lines[frame] = trace.tb_lineno
        trace = trace.tb_next
    found = []
    at: Optional[FrameType] = frame
    while at is not None and at.f_code not in CALLERS:
        if not at.f_globals.get("__name__", "").startswith(_PACKAGE):
            found.append((at, lines.get(at, at.f_lineno)))
        at = at.f_back
    return found


def say(text: str) -> None:
    """Prints a text for the server's operator."""
    print(text, file=sys.stderr, flush=True)
