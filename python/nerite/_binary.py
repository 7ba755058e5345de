"""Where is the program of the server?"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import sys
import sysconfig
import warnings
from typing import Iterator

from nerite._version import __version__

NAME = "nerite"
# The distribution with the program. This package itself belongs to `nerite-client`, which that distribution depends on.
DISTRIBUTION = "nerite"


class ServerMissing(FileNotFoundError):
    """Only the clients are installed, and no server."""


def binary() -> pathlib.Path:
    """The path of the program: from ``NERITE_BIN``, the distribution ``nerite``, this Python's scripts, or the PATH. Raises
    ServerMissing."""
    named = os.environ.get("NERITE_BIN")
    if named:
        # If the variable is set, no other program may be used instead.
        if not _is_program(named):
            raise ServerMissing(f"NERITE_BIN is '{named}', which is not an executable program")
        return pathlib.Path(named)
    for candidate in _candidates():
        if _is_program(candidate):
            return pathlib.Path(candidate)
    raise ServerMissing(
        f"no server is installed for {sys.executable}, only its clients (nerite-client {__version__}): "
        f"install the wheel of {DISTRIBUTION} {__version__}, put the program `{NAME}` on the PATH, or name it by NERITE_BIN"
    )


def examples() -> pathlib.Path:
    """The folder of the examples that are installed with the server. Its folder ``models`` is a model repository. Raises ServerMissing."""
    found = binary().resolve().parent.parent / "share" / "nerite" / "examples"
    if not (found / "models").is_dir():
        raise ServerMissing(f"'{found}' has no models: the server at {binary()} was installed without its examples")
    return found


def environment() -> dict[str, str]:
    """The environment of this process, as if the virtual environment of this Python were active, so that models and ONNX Runtime are found
    there."""
    found = dict(os.environ)
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
        found["PATH"] = os.pathsep.join([os.path.join(sys.prefix, "bin"), *filter(None, [found.get("PATH")])])
    return found


def warn_of_other_version() -> None:
    """Warns if the installed client and server have different versions."""
    try:
        installed = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return
    if installed != __version__:
        warnings.warn(
            f"the server is {DISTRIBUTION} {installed}, and its clients are nerite-client {__version__}: "
            "install the wheels of one version",
            RuntimeWarning,
            stacklevel=3,
        )


def _candidates() -> Iterator[str | os.PathLike[str]]:
    try:
        files = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (pathlib.Path(str(file.locate())).resolve() for file in files if file.parts[-2:] == ("bin", NAME))
    yield os.path.join(sysconfig.get_path("scripts"), NAME)
    on_path = shutil.which(NAME)
    if on_path:
        yield on_path


def _is_program(path: str | os.PathLike[str]) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
