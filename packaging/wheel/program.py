"""What does the wheel of the server hold, and which systems does its tag name?

The program and the examples. The program is that of NERITE_BIN, or cargo compiles it. So the tarball, the Debian package and the wheel of a release hold the
same bytes, and a program that was handed over is packed without cargo.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ("models", "digits", "pipeline", "python")
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
# What each system with glibc has, by PEP 600.
LIBRARIES = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux[\w-]*)\.so\.\d+")


class Program(BuildHookInterface):
    """Adds the program and the examples to the wheel, and gives the wheel its tag."""

    def initialize(self, version: str, build_data: dict) -> None:
        given = os.environ.get("NERITE_BIN")
        program = pathlib.Path(given).resolve() if given else compiled()
        check_version(program, self.metadata.version)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(program)}"
        build_data["shared_scripts"] = {str(program): "nerite"}
        build_data["shared_data"] = examples()


def examples() -> dict[str, str]:
    """The files of the examples, and where `nerite demo` looks for them beside the installed program."""
    files = (file for part in EXAMPLES for file in (ROOT / "examples" / part).rglob("*") if file.is_file() and file.parent.name != "__pycache__")
    return {str(file): f"share/nerite/{file.relative_to(ROOT)}" for file in sorted(files)}


def compiled() -> pathlib.Path:
    """Compiles the program."""
    target = os.environ.get("CARGO_BUILD_TARGET", "")
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "nerite-server"], cwd=ROOT, check=True)
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return folder / target / "release" / "nerite"


def check_version(program: pathlib.Path, version: str) -> None:
    """Refuses the program of another version."""
    # A program for another machine runs under an emulator.
    command = [*shlex.split(os.environ.get("NERITE_RUNNER", "")), str(program), "version"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    if printed != ["nerite", version]:
        sys.exit(f"{program} is {' '.join(printed)}, and the wheel is nerite {version}")


def platform(program: pathlib.Path) -> str:
    """The tag of the systems on which the program runs: its machine, and the newest glibc that one of its symbols asks for."""
    with program.open("rb") as file:
        try:
            elf = ELFFile(file)
        except ELFError as error:
            sys.exit(f"{program} is no program for Linux: {error}")
        dynamic = (tag for section in elf.iter_sections() if isinstance(section, DynamicSection) for tag in section.iter_tags("DT_NEEDED"))
        if others := [tag.needed for tag in dynamic if not LIBRARIES.fullmatch(tag.needed)]:
            sys.exit(f"{program} needs {', '.join(others)}, which not every system has")
        needs = (section for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection))
        names = (version.name for section in needs for _, versions in section.iter_versions() for version in versions)
        found = [tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names if re.fullmatch(r"GLIBC_[\d.]+", name)]
        major, minor = max(found)[:2]
        return f"manylinux_{major}_{minor}_{MACHINES[elf['e_machine']]}"
