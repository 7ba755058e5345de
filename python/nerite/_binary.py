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
# The distribution that brings the program; this package itself belongs to `nerite-client`, on which that one depends.
DISTRIBUTION = "nerite"


class ServerMissing(FileNotFoundError):
    """No server is installed, only its clients."""


def binary() -> pathlib.Path:
    """The program: that of ``NERITE_BIN``, of the distribution ``nerite``, of this Python's scripts, or of the PATH. Raises ServerMissing."""
    named = os.environ.get("NERITE_BIN")
    if named:
        # Who names a program wants that one, not another that happens to be there.
        if not _is_program(named):
            raise ServerMissing(f"NERITE_BIN is '{named}', where no program is")
        return pathlib.Path(named)
    for candidate in _candidates():
        if _is_program(candidate):
            return pathlib.Path(candidate)
    raise ServerMissing(
        f"no server is installed for {sys.executable}, only its clients (nerite-client {__version__}): "
        f"`pip install {DISTRIBUTION}=={__version__}` brings it, or NERITE_BIN names one"
    )


def examples() -> pathlib.Path:
    """The folder of the examples that were installed with the server: ``models`` is a model repository. Raises ServerMissing."""
    found = binary().resolve().parent.parent / "share" / "nerite" / "examples"
    if not (found / "models").is_dir():
        raise ServerMissing(f"'{found}' has no models: the server at {binary()} was installed without its examples")
    return found


def environment() -> dict[str, str]:
    """This process's environment, as if the virtual environment of this Python were active: models and ONNX Runtime come from it."""
    found = dict(os.environ)
    if sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = sys.prefix
        found["PATH"] = os.pathsep.join([os.path.join(sys.prefix, "bin"), *filter(None, [found.get("PATH")])])
    return found


def warn_of_other_version() -> None:
    """Says so where pip was made to install a client and a server that do not belong together."""
    try:
        installed = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return
    if installed != __version__:
        warnings.warn(
            f"the server is {DISTRIBUTION} {installed}, and its clients are nerite-client {__version__}: "
            f"`pip install {DISTRIBUTION}=={__version__}` makes them one",
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
