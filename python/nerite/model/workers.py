"""How do the interpreters that a model starts find ``triton_python_backend_utils``?

Workers of ``multiprocessing`` that are not forked begin with nothing but the path of the process that started them. The modules lie
in no folder, so an archive of them in memory is put on that path.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib

_ALIASES = ("triton_python_backend_utils", "c_python_backend_utils")
_PACKAGE = __package__ or "nerite_model"
# 1 January 1980, the first day of the format.
_DAY = 0x21
# The archive that was put on the path.
_descriptor = -1


def name_as_tritons() -> None:
    """Makes the modules known by the names that models import."""
    from . import native, utils

    utils.__name__ = _ALIASES[0]
    sys.modules.update(zip(_ALIASES, (utils, native)))


def archive(sources: dict[str, str]) -> bytes:
    """A ZIP archive, not compressed, of these modules and of those that stand for Triton's. ``zipfile`` would take longer to import
    than all of this.
    """
    # Whoever imports a module gets what lies under its name when it has run.
    alias = f"from {_PACKAGE}.workers import name_as_tritons\nname_as_tritons()\n"
    files = {_file(name, sources): text for name, text in (*sources.items(), *((name, alias) for name in _ALIASES))}
    body, directory = bytearray(), bytearray()
    for name, text in files.items():
        path, content = name.encode(), text.encode()
        fixed = struct.pack("<5H3L2H", 20, 0, 0, 0, _DAY, zlib.crc32(content), len(content), len(content), len(path), 0)
        directory += b"PK\1\2\x14\0" + fixed + struct.pack("<3H2L", 0, 0, 0, 0, len(body)) + path
        body += b"PK\3\4" + fixed + path + content
    end = struct.pack("<4H2LH", 0, 0, len(files), len(files), len(directory), len(body), 0)
    return bytes(body + directory + b"PK\5\6" + end)


def _file(name: str, sources: dict[str, str]) -> str:
    is_package = any(other.startswith(name + ".") for other in sources)
    return name.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def put_on_path(sources: dict[str, str]) -> None:
    """Has other interpreters find these modules for as long as this process lives."""
    descriptor = os.memfd_create("nerite-modules")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(archive(sources))
    global _descriptor
    _descriptor = descriptor
    sys.path.append(_path(os.getpid()))


def move_path() -> None:
    """The same after a fork: the process that it was may end."""
    if _descriptor >= 0:
        old = _path(os.getppid())
        sys.path[:] = [_path(os.getpid()) if one == old else one for one in sys.path]


def _path(pid: int) -> str:
    return f"/proc/{pid}/fd/{_descriptor}"
