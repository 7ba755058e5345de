"""What do the tests of packages share?"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "packaging" / "wheel")]

import servers  # noqa: E402


LIBRARY = "libtritonserver.so"


def library_of(program: pathlib.Path) -> pathlib.Path:
    """NERITE_LIBRARY, or what lies beside the program, or else the development build, if it has the functions of now."""
    if named := os.environ.get("NERITE_LIBRARY"):
        return pathlib.Path(named)
    beside, development = program.with_name(LIBRARY), ROOT / "target" / "debug" / LIBRARY
    newest = max(source.stat().st_mtime for source in (ROOT / "crates" / "cabi" / "src" / "calls").glob("*.rs"))
    is_good = not beside.exists() and development.exists() and development.stat().st_mtime >= newest
    return development if is_good else beside


@pytest.fixture(scope="session")
def program() -> pathlib.Path:
    """The server's program: NERITE_BIN or the development build."""
    return servers.nerite_binary()


@pytest.fixture(scope="session")
def stripped(program, tmp_path_factory) -> pathlib.Path:
    """The same without symbols, as users get it: a development build would make a wheel of 100 MB."""
    target = tmp_path_factory.mktemp("stripped") / "nerite"
    # The library for programs goes into the release if it is beside the program.
    for name in ("nerite", LIBRARY):
        one = program if name == "nerite" else library_of(program)
        if one.exists() and shutil.which("strip"):
            subprocess.run(["strip", "-o", target.with_name(name), one], check=True)
        elif one.exists():
            shutil.copy2(one, target.with_name(name))
    return target
