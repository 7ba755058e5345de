"""Which Python has PyTorch, scikit-learn and pillow?

NERITE_REAL_PYTHON names it. Without the variable it is the system's, which has them by Debian's python3-torch, python3-sklearn and python3-pil. The tests
run in a Python of their own, and start this one.
"""

import functools
import os
import pathlib
import subprocess
import sys

import pytest

REAL = pathlib.Path(os.environ.get("NERITE_REAL_PYTHON", "/usr/bin/python3"))
REQUIREMENTS = pathlib.Path(__file__).resolve().parent.parent / "requirements.txt"


@functools.cache
def lacks(libraries: str) -> str:
    """Why the Python cannot import these libraries; empty if it can."""
    if not REAL.exists():
        return f"{REAL} is not there"
    done = subprocess.run([REAL, "-c", f"import {libraries}"], capture_output=True, text=True)
    return f"{REAL}: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


def needs(libraries: str) -> None:
    if reason := lacks(libraries):
        pytest.skip(reason)


def with_client(folder: pathlib.Path) -> str:
    """The Python of a new environment in `folder`, which has that Python's libraries, and Triton's client as the tests have it."""
    subprocess.run([REAL, "-m", "venv", "--without-pip", "--system-site-packages", folder], check=True)
    python = str(folder / "bin" / "python")
    install(python, "tritonclient")
    return python


def install(python: str, *packages: str) -> None:
    """Installs the versions that the tests pin."""
    lines = REQUIREMENTS.read_text().splitlines()
    pins = [line for line in lines if line.startswith(tuple(f"{one}{mark}" for one in packages for mark in "=["))]
    done = subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", *pins], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' and '.join(packages)} cannot be had here: {done.stderr[-300:]}")
