#!/usr/bin/env python3
"""How do the tests get the real Triton 2.51 and PyTorch?

    cargo xtask oracle          # or python3 tests/setup_oracle.py [triton] [torch]

Each is installed once for its lock into ~/.cache/nerite, as setup_venv.py installs the packages of the tests. They have environments
of their own, because the wheel with Triton wants an older numpy, and because PyTorch has 5 GB.
"""

import os
import pathlib
import sys

import setup_venv

HERE = pathlib.Path(__file__).resolve().parent
LOCKS = {"triton": HERE / "oracle" / "triton.txt", "torch": HERE / "oracle" / "torch.txt"}


def place(name: str) -> pathlib.Path:
    """The environment of this name, whether it is there or not."""
    return setup_venv.place(name, LOCKS[name])


def installed(name: str) -> pathlib.Path:
    """The environment of this name, installed now if it is not there."""
    return setup_venv.installed(name, LOCKS[name])


def packages(environment: pathlib.Path) -> pathlib.Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def add_torch() -> None:
    """Lets this process and those that it starts import PyTorch, if it is there."""
    folder = str(packages(place("torch")))
    if os.path.exists(folder) and folder not in sys.path:
        # At the end, so that all else comes from the environment of the tests.
        sys.path.append(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))


if __name__ == "__main__":
    for each in sys.argv[1:] or LOCKS:
        print(installed(each))
