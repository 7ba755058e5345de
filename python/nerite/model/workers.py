"""How do the interpreters that a model starts find ``triton_python_backend_utils``?

Workers of ``multiprocessing`` that are not forked get only the path of the process that started them. The modules are in no folder, so an
archive of them in memory is added to that path.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib

from .channel import memory_file

_ALIASES = ("triton_python_backend_utils", "c_python_backend_utils")
_PACKAGE = __package__ or "nerite_model"
# 1 January 1980, the first day of the format.
_DAY = 0x21
# The descriptor of the archive on the path.
_descriptor = -1


def name_as_tritons() -> None:
    """Makes the modules importable by the names that models use."""
    from . import native, utils

    utils.__name__ = _ALIASES[0]
    sys.modules.update(zip(_ALIASES, (utils, native)))


def archive(sources: dict[str, str]) -> bytes:
    """An uncompressed ZIP archive of these modules and of those that replace Triton's. The module ``zipfile`` is not used, because its
    import would take longer than this.
    """
    # An import returns the module that is in `sys.modules` under the name after its code has run.
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
    """Lets other interpreters find these modules as long as this process lives."""
    descriptor = memory_file("nerite-modules")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(archive(sources))
    global _descriptor
    _descriptor = descriptor
    sys.path.append(_path(os.getpid()))


def move_path() -> None:
    """Renews the path after a fork, because the parent process may end."""
    if _descriptor >= 0:
        old = _path(os.getppid())
        sys.path[:] = [_path(os.getpid()) if one == old else one for one in sys.path]


def _path(pid: int) -> str:
    return f"/proc/{pid}/fd/{_descriptor}"
