"""What do the tests of packages share?"""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "conformance"), str(ROOT / "packaging" / "wheel")]

import servers  # noqa: E402


@pytest.fixture(scope="session")
def program() -> pathlib.Path:
    """The server's program: NERITE_BIN or the release build."""
    found = servers.nerite_binary()
    if not found.exists():
        pytest.skip(f"{found} is not built")
    return found


@pytest.fixture(scope="session")
def stripped(program, tmp_path_factory) -> pathlib.Path:
    """The same without symbols, as users get it: a development build would make a wheel of 100 MB."""
    target = tmp_path_factory.mktemp("stripped") / "nerite"
    if shutil.which("strip"):
        subprocess.run(["strip", "-o", target, program], check=True)
    else:
        shutil.copy2(program, target)
    return target
