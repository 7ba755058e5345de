"""Which files of the user's own, outside the model's directory, did this process import?

The server follows changes of these files. It follows those in the model's directory anyway. Files of the interpreter and of installed packages
do not change while a model is written, so they are left out.
"""

from __future__ import annotations

import os
import stat
import sys
import types
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import packets

# The server accepts no more files, and no longer paths. Both limits are repeated in `crates/backend/src/limits.rs`.
FILES_MAX = 256
PATH_BYTES_MAX = 1024

# The folders that packages are installed to.
_INSTALLED = ("/site-packages/", "/dist-packages/")
# An interpreter with such a prefix is the system's. The user's own files may have the same prefix.
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")


class ImportedFiles:
    """The files, each in the state that it had soon after it was imported."""

    def __init__(self, model_dir: str) -> None:
        self._left_out = folders([model_dir, *interpreter_folders()])
        self._seen: Set[str] = set()
        self._files: Dict[str, Tuple[int, int]] = {}
        self._beyond = 0

    def note(self, modules: Optional[Iterable[Any]] = None) -> None:
        """Notes the files of the modules that were imported since the last call."""
        for module in list(sys.modules.values()) if modules is None else modules:
            path = _file_of(module)
            if path is None or path in self._seen:
                continue
            self._seen.add(path)
            try:
                if is_own(path, self._left_out):
                    self._note_file(os.path.abspath(path))
            except (OSError, ValueError):
                # It is not the path of a file. A module may set `__file__` to any text.
                continue

    def report_in(self, ready: packets.Ready) -> None:
        """Adds the files to the answer to ``initialize``."""
        if self._files:
            ready["imported"] = [(path, *state) for path, state in self._files.items()]
        if self._beyond:
            ready["unreported"] = self._beyond

    def _note_file(self, path: str) -> None:
        state = _state(path)
        if state is None or path in self._files:
            return
        if len(self._files) >= FILES_MAX or len(os.fsencode(path)) > PATH_BYTES_MAX or not _is_text(path):
            self._beyond += 1
            return
        self._files[path] = state


def folders(paths: Iterable[str]) -> "Tuple[str, ...]":
    """These folders, and the folders to which links in their paths lead, each with a slash at its end."""
    absolute = [os.path.abspath(path) for path in paths]
    both = {*absolute, *map(os.path.realpath, absolute)}
    return tuple(sorted(path.rstrip("/") + "/" for path in both))


def interpreter_folders() -> List[str]:
    """The folders of the standard library, and of the environment if the interpreter belongs to one."""
    version = "python{}.{}".format(*sys.version_info[:2])
    platform = os.path.join(sys.base_exec_prefix, getattr(sys, "platlibdir", "lib"), version)
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    return [os.path.dirname(os.__file__), platform, *(one for one in prefixes if one not in _SYSTEM_PREFIXES)]


def is_own(path: str, left_out: "Tuple[str, ...]") -> bool:
    """Whether a module's file is the user's own, and in none of these folders."""

    def is_elsewhere(path: str) -> bool:
        return not path.startswith(left_out) and not any(folder in path for folder in _INSTALLED)

    # The path alone decides for most modules. Following links takes a system call for each folder of a path.
    path = os.path.abspath(path)
    return is_elsewhere(path) and is_elsewhere(os.path.realpath(path))


def _file_of(module: Any) -> Optional[str]:
    """A module's file. Its own functions are not called, because they may import more."""
    if not isinstance(module, types.ModuleType):
        return None
    path = object.__getattribute__(module, "__dict__").get("__file__")
    return path if type(path) is str else None


def _state(path: str) -> Optional[Tuple[int, int]]:
    """The size of a regular file, and its time of modification in nanoseconds since 1970. None if it is no regular file."""
    found = os.stat(path)
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _is_text(path: str) -> bool:
    """Whether the path can be in a packet, which is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
