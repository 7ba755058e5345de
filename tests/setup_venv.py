#!/usr/bin/env python3
"""How do the tests get their Python environment?

    python3 tests/setup_venv.py          # makes .venv beside the sources, or does nothing if it is current
    .venv/bin/python -m pytest tests -m quick
    .venv/bin/python -m pytest python/tests

The hash of requirements.txt and of the package's pyproject.toml is the stamp: a second run costs nothing, a changed pin rebuilds.
"""

import argparse
import hashlib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "requirements.txt"
PACKAGE = ROOT / "python"


def stamp_text() -> str:
    """What must be equal for an environment to be kept: the pins, the package's description and the interpreter."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + (PACKAGE / "pyproject.toml").read_bytes()).hexdigest()
    return f"{digest} {sys.version_info.major}.{sys.version_info.minor}\n"


def ensure(venv: pathlib.Path) -> pathlib.Path:
    """Makes or updates the environment at `venv` and returns its interpreter."""
    python = venv / "bin" / "python"
    stamp = venv / "nerite-requirements.stamp"
    if python.exists() and stamp.exists() and stamp.read_text() == stamp_text():
        return python
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)], check=True)
    # The package's distribution had the server's name once; two that hold the same package would hide each other.
    subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", "nerite"], check=True)
    # Editable and without its dependencies, which are pinned above.
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "-e", str(PACKAGE)], check=True)
    # Written last, so that an interrupted installation is not taken for a complete one.
    stamp.write_text(stamp_text())
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="make the tests' Python environment")
    parser.add_argument("--venv", type=pathlib.Path, default=ROOT / ".venv")
    print(ensure(parser.parse_args().venv))


if __name__ == "__main__":
    main()
