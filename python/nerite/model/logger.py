"""How does a model write to the server's log?"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Tuple

from .errors import Named, refused_call


class LogLevel(Named):
    """The level of a line."""

    __module__ = "c_python_backend_utils"
    INFO, WARNING, ERROR, VERBOSE = range(4)


# The place of a call: the file's name and the line number.
Whence = Tuple[str, int]


def _printed(level: str, text: str, whence: Whence) -> None:
    print(text, flush=True)


def _whence(depth: int) -> Whence:
    """The place of the call that is this many frames above."""
    frame = sys._getframe(depth)
    return os.path.basename(frame.f_code.co_filename), frame.f_lineno


class Logger:
    """Writes log lines. Before the server listens, and without a server, they are printed."""

    __module__ = "c_python_backend_utils"
    INFO, WARNING, ERROR, VERBOSE = LogLevel
    LogLevel = LogLevel
    _write: Callable[[str, str, Whence], None] = staticmethod(_printed)

    @staticmethod
    def log(message: str, level: Any = LogLevel.INFO) -> None:
        """Writes a line of the level."""
        if not isinstance(message, str) or not isinstance(level, LogLevel):
            signature = "message: str, level: c_python_backend_utils.Logger.LogLevel = <LogLevel.INFO: 0>"
            raise refused_call("log", signature, (message,) if level is LogLevel.INFO else (message, level))
        Logger._write(level.name, message, _whence(2))

    @staticmethod
    def log_info(message: str) -> None:
        """Writes an informational line."""
        Logger._line("log_info", "INFO", message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Writes a warning."""
        Logger._line("log_warn", "WARNING", message)

    @staticmethod
    def log_error(message: str) -> None:
        """Writes an error."""
        Logger._line("log_error", "ERROR", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Writes a line for debugging."""
        Logger._line("log_verbose", "VERBOSE", message)

    @staticmethod
    def _line(name: str, level: str, message: str) -> None:
        if not isinstance(message, str):
            raise refused_call(name, "message: str", (message,))
        Logger._write(level, message, _whence(3))
