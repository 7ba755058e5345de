"""How does `maturin` make the wheel of the server?

It compiles the program and packs it. What it cannot do is done here, around it: the examples are gathered, and a program that is compiled already
(NERITE_BIN) is packed as it is. So the tarball, the Debian package and the wheel of a release hold the same bytes.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sysconfig

import maturin

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# `data` of pyproject.toml. Its parts are named as PEP 427 has them.
DATA = ROOT / "target" / "wheel"
EXAMPLES = ("models", "digits", "pipeline", "python")
# The tag is that of the oldest glibc that has all symbols of the program. A program that needs a library beside glibc is refused.
ARGUMENTS = {"build-args": "--compatibility pypi"}
GIVEN_PROGRAM = HERE / "given_program.py"

# Maturin's package starts the program `maturin`, which lies beside this interpreter. Without build isolation that folder need not be on the PATH.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

# Each call of this module has a process of its own. There `maturin` finds the program of NERITE_BIN, if it is set, instead of compiling one.
if os.environ.get("NERITE_BIN"):
    os.environ["CARGO"] = str(GIVEN_PROGRAM)

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel


def gather_examples() -> None:
    """Puts the examples where `nerite demo` looks for them beside the installed program."""
    target = DATA / "data" / "share" / "nerite" / "examples"
    shutil.rmtree(DATA, ignore_errors=True)
    for part in EXAMPLES:
        shutil.copytree(ROOT / "examples" / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
    # Modes depend on the umask of whoever checked the files out.
    for path in DATA.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # `maturin` wants the folder of the data here too.
    gather_examples()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    gather_examples()
    return maturin.build_wheel(wheel_directory, {**ARGUMENTS, **(config_settings or {})}, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise RuntimeError("a source distribution would need the whole workspace: build the wheel from the repository")
