#!/usr/bin/env python3
"""How do the tests get their Python environment?

    python3 tests/setup_venv.py          # makes .venv beside the sources, or does nothing if it is current
    .venv/bin/python -m pytest tests/conformance/test_health.py

The packages are installed once for each lock (`requirements.txt`) and interpreter, into ~/.cache/nerite. `.venv` is a
copy of that installation by hard links, and has the package `nerite` of these sources in addition. A registry that does
not answer ends the program with status 69 and a line that begins with `no registry:`.
"""

import hashlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
PACKAGE = ROOT / "python"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "nerite"
# EX_UNAVAILABLE of sysexits.h.
NO_REGISTRY = 69


def key(*locks: pathlib.Path) -> str:
    """The name of an installation: a hash of its locks and the version of the interpreter."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:16]
    return f"{digest}-{sys.version_info.major}.{sys.version_info.minor}"


def pip(python: pathlib.Path, *words: "str | pathlib.Path") -> None:
    """Runs pip. Where it cannot fetch what it wants, this program ends."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout)
        said = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or ["pip says nothing"]
        print(f"no registry: pip install {' '.join(map(str, words))}: {said[-1]}", flush=True)
        sys.exit(NO_REGISTRY)


def make_environment(folder: pathlib.Path) -> pathlib.Path:
    """Makes an empty environment, and returns its interpreter."""
    if importlib.util.find_spec("ensurepip") is not None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    else:
        # Debian's Python has no `ensurepip` without the package python3-venv. `virtualenv` brings its own pip.
        with tempfile.TemporaryDirectory() as place:
            pip(pathlib.Path(sys.executable), "--target", place, "virtualenv")
            subprocess.run(
                [sys.executable, "-m", "virtualenv", "--quiet", folder], check=True, env={**os.environ, "PYTHONPATH": place}
            )
    return folder / "bin" / "python"


def place(name: str, lock: pathlib.Path) -> pathlib.Path:
    """The installation of the packages of a lock, whether the cache has it or not."""
    return CACHE / f"{name}-{key(lock)}"


def installed(name: str, lock: pathlib.Path) -> pathlib.Path:
    """The installation of the packages of a lock, made now if the cache does not have it."""
    target = place(name, lock)
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    # Renamed at the end, so that an interrupted installation is not taken for a complete one.
    made = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=CACHE))
    made.chmod(0o755)
    pip(make_environment(made), "-r", lock)
    try:
        made.rename(target)
    except OSError:
        # Another process was faster.
        shutil.rmtree(made)
    return target


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def ensure() -> pathlib.Path:
    """Makes or renews `.venv`, and returns its interpreter."""
    python, stamp = VENV / "bin" / "python", VENV / "nerite-requirements.stamp"
    current = key(REQUIREMENTS, PACKAGE / "pyproject.toml")
    if python.exists() and stamp.exists() and stamp.read_text() == current:
        return python
    source = installed("python", REQUIREMENTS)
    shutil.rmtree(VENV, ignore_errors=True)
    shutil.copytree(source, VENV, symlinks=True, copy_function=link_or_copy)
    # What builds the package is there already, so nothing is fetched.
    local = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--editable", PACKAGE]
    subprocess.run([python, "-m", "pip", "install", *local], check=True)
    stamp.write_text(current)
    return python


if __name__ == "__main__":
    print(ensure())
