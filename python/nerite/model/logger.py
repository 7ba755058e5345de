"""How does a model write to the server's log?"""

from __future__ import annotations

from typing import Any, Callable

from .errors import _Named

LogLevel: Any = _Named("LogLevel", ["INFO", "WARNING", "ERROR", "VERBOSE"], module="c_python_backend_utils", start=0)  # type: ignore[call-overload]


def _printed(level: str, text: str) -> None:
    print(text, flush=True)


class Logger:
    """Lines of a level each. Before the server listens, and where there is none, they are printed."""

    __module__ = "c_python_backend_utils"
    INFO, WARNING, ERROR, VERBOSE = LogLevel
    LogLevel = LogLevel
    _write: Callable[[str, str], None] = staticmethod(_printed)

    @staticmethod
    def log(message: str, level: Any = LogLevel.INFO) -> None:
        """Writes a line of the level."""
        Logger._write(level.name, message)

    @staticmethod
    def log_info(message: str) -> None:
        """Writes what is worth knowing."""
        Logger._write("INFO", message)

    @staticmethod
    def log_warn(message: str) -> None:
        """Writes a warning."""
        Logger._write("WARNING", message)

    @staticmethod
    def log_error(message: str) -> None:
        """Writes an error."""
        Logger._write("ERROR", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Writes what is only worth knowing when something is being looked for."""
        Logger._write("VERBOSE", message)
