"""Does the library that guards Python models keep a process alive whose memory is taken away, and only then?

Each case runs in a process of its own (`guarded.py`), with the library that the binary carries. `NERITE_GUARD_LIBRARY`
names another.
"""

import os
import pathlib
import platform
import signal
import struct
import subprocess
import sys

import pytest
from servers import DEVELOPMENT_BUILD

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FUNCTIONS = {f"nerite_guard_{name}" for name in ("install", "map", "unmap", "lost_at", "faults", "end_with_parent")}
# What the C library is asked for. `abort` is what a panic would call: there is none left in it.
IMPORTED = {
    "__errno_location", "getpgrp", "getpid", "kill", "memcpy", "memset", "mmap", "munmap", "prctl", "raise", "sched_yield", "sigaction", "syscall", "sysconf",
}  # fmt: skip
# What the linker's start files ask for, if it is there. None of it is.
START_FILES = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__cxa_finalize", "__gmon_start__"}
BYTES_MAX = 64 << 10


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> pathlib.Path:
    if given := os.environ.get("NERITE_GUARD_LIBRARY"):
        return pathlib.Path(given)
    path = tmp_path_factory.mktemp("guard") / "guard.so"
    subprocess.run([DEVELOPMENT_BUILD / "examples" / "guard_library", path], cwd=ROOT, check=True)
    return path


def run(library: pathlib.Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, HERE / "guarded.py", library, *words], capture_output=True, text=True, timeout=120
    )


def survives(library, *words: str) -> None:
    ended = run(library, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "survived\n", ""), ended


def ends(library, *words: str) -> str:
    ended = run(library, *words)
    assert (ended.returncode, ended.stdout) == (-signal.SIGBUS, ""), ended
    return ended.stderr


@pytest.mark.parametrize(
    "case", ["reads", "writes", "floats", "within_a_page", "regrown", "punched", "threads", "forked"]
)
def test_memory_that_goes_away(library, case):
    survives(library, case)


@pytest.mark.parametrize("case", ["many", "refused", "handled_in_python"])
def test_a_well_behaved_library(library, case):
    survives(library, case)


# A model may enable Python's faulthandler before the guard is there or after it; then the guard is put before it again.
FAULTHANDLER = [
    ["faulthandler", "install"],
    ["install", "faulthandler", "install"],
    ["faulthandler", "install", "install"],
    ["install", "faulthandler", "map"],
]


@pytest.mark.parametrize("steps", FAULTHANDLER, ids=" ".join)
@pytest.mark.parametrize("case", ["reads", "threads"])
def test_a_loss_under_faulthandler(library, case, steps):
    survives(library, case, *steps)


def test_a_handler_that_came_later_is_first_until_the_guard_is_installed_again(library):
    survives(library, "enabled_late_and_installed")
    said = ends(library, "enabled_late")
    assert said.count("Fatal Python error: Bus error") == 1, said


@pytest.mark.parametrize("case", ["unwatched", "where_one_was", "sent"])
def test_what_is_none_of_the_guards_ends_the_process(library, case):
    assert ends(library, case) == ""


@pytest.mark.parametrize("steps", FAULTHANDLER, ids=" ".join)
@pytest.mark.parametrize("case", ["unwatched", "where_one_was", "sent"])
def test_faulthandler_still_says_where(library, case, steps):
    said = ends(library, case, *steps)
    assert said.count("Fatal Python error: Bus error") == 1, said
    assert f"in {case}" in said


def test_handlers_for_ever(library):
    assert ends(library, "toggled") == ""


def test_the_library_exports_its_functions_and_needs_the_c_library_alone(library):
    content = library.read_bytes()
    assert len(content) <= BYTES_MAX
    exported, imported = symbols(content)
    assert exported == FUNCTIONS
    if platform.machine() == "x86_64":
        assert imported - START_FILES <= IMPORTED
    assert "abort" not in imported
    # Any version of Python loads it.
    assert not [name for name in imported if name.startswith(("Py", "_Py"))]


def symbols(elf: bytes) -> tuple[set[str], set[str]]:
    """The names that a shared object gives and wants: of its section `.dynsym`, 64 bits, little endian."""
    assert elf[:6] == b"\x7fELF\x02\x01"
    at, size, number = *struct.unpack_from("<Q", elf, 40), *struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, at + size * index) for index in range(number)]
    dynamic = next(section for section in sections if section[1] == 11)
    names = sections[dynamic[6]][4]
    exported, imported = set(), set()
    for entry in range(dynamic[4] + 24, dynamic[4] + dynamic[5], 24):
        name, _, _, section = struct.unpack_from("<IBBH", elf, entry)
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        (exported if section else imported).add(text)
    return exported, imported
