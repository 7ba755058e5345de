"""Which program goes into the wheel, and where does it run?

The program is that of NERITE_BIN, or the release build, which is made first. The wheel's tag says what the program needs: the machine of
its ELF header, and the newest version of glibc that its symbols ask for.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXAMPLES = ("models", "digits", "pipeline", "python")
sys.path.insert(0, str(HERE))

import elf  # noqa: E402
from metadata_hook import version  # noqa: E402


def program() -> pathlib.Path:
    named = os.environ.get("NERITE_BIN")
    if named:
        return pathlib.Path(named)
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "nerite-server"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "nerite"


def examples() -> dict[str, str]:
    """Where each file of the examples is installed: beside the program, where `nerite demo` looks for them."""
    files = (file for part in EXAMPLES for file in sorted((ROOT / "examples" / part).rglob("*")) if file.is_file())
    return {str(file): f"share/nerite/{file.relative_to(ROOT).as_posix()}" for file in files if "__pycache__" not in file.parts}


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version_of_build: str, build_data: dict) -> None:
        built = program()
        # A program for another machine runs under an emulator.
        runner = os.environ.get("NERITE_RUNNER", "").split()
        printed = subprocess.run([*runner, built, "version"], capture_output=True, text=True, check=True).stdout.split()
        if printed != ["nerite", version()]:
            raise ValueError(f"{built} is {' '.join(printed)}, and the wheel is nerite {version()}")
        build_data["tag"] = elf.wheel_tag(built)
        build_data["pure_python"] = False
        build_data["shared_data"] |= examples()
        build_data["shared_scripts"][str(built)] = "nerite"
