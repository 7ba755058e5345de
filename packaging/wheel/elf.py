"""What does a program need of the system it runs on?

Read from the program itself, as the dynamic linker does: the machine, the libraries, and the versions of their symbols.
The layouts are those of elf(5).

    python packaging/wheel/elf.py target/release/nerite
"""

from __future__ import annotations

import pathlib
import struct
import sys
from typing import NamedTuple

MACHINES = {62: "x86_64", 183: "aarch64"}
# Libraries that each system with glibc has; others would have to travel in the wheel (PEP 600).
OF_THE_SYSTEM = {
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
}
# The first glibc that pip has a tag for.
GLIBC_MIN = (2, 17)

SHT_DYNAMIC, SHT_GNU_VERNEED, DT_NEEDED = 6, 0x6FFFFFFE, 1


class Needs(NamedTuple):
    """What a program needs."""

    machine: str
    libraries: frozenset[str]
    # (library, version of its symbols), such as ("libc.so.6", "GLIBC_2.34")
    versions: frozenset[tuple[str, str]]

    def glibc(self) -> tuple[int, int]:
        """The oldest glibc that has all symbols."""
        required = [name.removeprefix("GLIBC_") for _, name in self.versions if name.startswith("GLIBC_")]
        numbers = [tuple(int(part) for part in name.split(".")[:2]) for name in required if name[0].isdigit()]
        return max([GLIBC_MIN, *numbers])


def wheel_tag(path: pathlib.Path) -> str:
    """The tag of a wheel with this program. Raises ValueError for one that needs what a system may lack."""
    needs = read(path)
    foreign = needs.libraries - OF_THE_SYSTEM
    if foreign:
        raise ValueError(f"{path} needs {', '.join(sorted(foreign))}, which not every system has")
    major, minor = needs.glibc()
    return f"py3-none-manylinux_{major}_{minor}_{needs.machine}"


def read(path: pathlib.Path) -> Needs:
    data = pathlib.Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no ELF program of 64 bits, least byte first")
    (machine,) = struct.unpack_from("<H", data, 18)
    if machine not in MACHINES:
        raise ValueError(f"{path} is for machine {machine}; known are {MACHINES}")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQII", data, table + at * size) for at in range(count)]
    libraries: set[str] = set()
    versions: set[tuple[str, str]] = set()
    for _, kind, _, _, offset, length, link, info in sections:
        if kind == SHT_DYNAMIC:
            entries = struct.iter_unpack("<qQ", data[offset : offset + length])
            libraries |= {_text(data, sections[link][4] + value) for tag, value in entries if tag == DT_NEEDED}
        elif kind == SHT_GNU_VERNEED:
            versions |= _versions(data, offset, info, sections[link][4])
    return Needs(MACHINES[machine], frozenset(libraries), frozenset(versions))


def _versions(data: bytes, at: int, count: int, names: int) -> set[tuple[str, str]]:
    """The entries of a section of needed versions: for each library a chain of versions."""
    found = set()
    for _ in range(count):
        _, versions, library, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(versions):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            found.add((_text(data, names + library), _text(data, names + name)))
            entry += step
        at += following
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(f"{one}: {wheel_tag(pathlib.Path(one))}; {', '.join(sorted(name for _, name in read(one).versions))}")
