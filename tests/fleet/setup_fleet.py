#!/usr/bin/env python3
"""How do the tests get Ray, Envoy and a small S3 server?

    python3 tests/fleet/setup_fleet.py

They are installed once for their lock into ~/.cache/nerite, as setup_venv.py installs the packages of the tests. They have an environment of
their own, because Ray wants other versions of what the tests have.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import setup_venv  # noqa: E402

LOCK = HERE / "requirements.txt"


def place() -> pathlib.Path:
    """The environment, whether it is there or not."""
    return setup_venv.place("fleet", LOCK)


def installed() -> pathlib.Path:
    """The environment, installed now if it is not there."""
    return setup_venv.installed("fleet", LOCK)


if __name__ == "__main__":
    print(installed())
