"""What has to be copied, placed and removed so that a folder holds what a bucket holds?

Everything here is a function of values: nothing reads a file, a clock or the network. A *unit* is a name directly below the URL, as a model's directory
is. It is what the folder replaces at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Objects of one tree, and folders within folders. The server refuses more of either in one model.
OBJECTS_MAX = 100_000
DEPTH_MAX = 32
# Bytes of a name, as in Linux.
NAME_BYTES_MAX = 255
# Sums of all objects, in lines of about 300 bytes.
SUMS_BYTES_MAX = 32 << 20
SUMS_FILE = "SHA256SUMS"
# What Python writes beside a model's code. The server skips it too.
PYTHON_CACHE = "__pycache__"
CONFIG_FILE = "config.pbtxt"
# Seconds after the first failure. Each further one doubles them.
RETRY_S = 1.0


class BucketError(Exception):
    """A copy that was not made. The text names the object or the URL, and the cure."""


@dataclass(frozen=True)
class Remote:
    """An object as the store lists it."""

    #: Its name below the URL.
    key: str
    size: int
    #: Differs when the content does: an ETag, a generation, or a time of modification. Empty if the store has none.
    validator: str
    #: How the store finds it.
    place: str = ""
    #: Sums of its content in hexadecimal digits, by their algorithm.
    sums: Mapping[str, str] = field(default_factory=dict)


class Step(NamedTuple):
    """One rename: ``add``, ``exchange`` or ``remove`` a unit."""

    kind: str
    unit: str


def check_key(key: str) -> None:
    """Refuses what is no relative path of plain names."""
    parts = key.split("/")
    reason = None
    if key.startswith("/"):
        reason = "begins with '/'"
    elif "" in parts:
        reason = "has an empty part" if parts[-1] else "ends in '/'"
    elif "." in parts:
        reason = "has the part '.'"
    elif any(part.startswith("..") for part in parts):
        # The server skips such names, and the staging folder has one.
        reason = "has a part that begins with '..'"
    elif "\\" in key or not key.isprintable():
        reason = "has a backslash or a character that cannot be printed"
    elif any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        reason = f"has a part of more than {NAME_BYTES_MAX} bytes"
    elif len(parts) > DEPTH_MAX:
        reason = f"has {len(parts)} parts, more than {DEPTH_MAX}"
    if reason:
        raise BucketError(f"object {key!r} {reason}: rename or remove it in the bucket")


def checked(objects: Iterable[Remote]) -> dict[str, Remote]:
    """The objects by their keys. Refuses names that cannot all be files of one folder, or that somebody could take for each other."""
    by_key: dict[str, Remote] = {}
    # Each file and folder by its name without regard to case, with its name, and whether it is a file.
    seen: dict[str, tuple[str, bool]] = {}
    for remote in objects:
        check_key(remote.key)
        if len(by_key) == OBJECTS_MAX:
            raise BucketError(f"more than {OBJECTS_MAX} objects: name a prefix with fewer")
        parts = remote.key.split("/")
        for count in range(1, len(parts) + 1):
            name, is_file = "/".join(parts[:count]), count == len(parts)
            other, other_is_file = seen.setdefault(name.casefold(), (name, is_file))
            if other != name:
                raise BucketError(f"objects {other!r} and {name!r} differ only by case: rename one in the bucket")
            if is_file != other_is_file or (is_file and remote.key in by_key):
                raise BucketError(f"object {name!r} is a file and a folder, or there twice: remove one in the bucket")
        by_key[remote.key] = remote
    if not by_key:
        # An empty answer is more often a wrong prefix than a wish to unload all models.
        raise BucketError("there are no objects: correct the URL, or empty the folder by hand")
    return by_key


def parse_sums(text: str) -> dict[str, str]:
    """The sums of a file that ``sha256sum`` wrote, by key."""
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        digest, _, name = line.partition(" ")
        key = name[1:].removeprefix("./") if name[:1] in (" ", "*") else ""
        if not line.strip():
            continue
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef") or not key:
            raise BucketError(f"line {number} of {SUMS_FILE} is not of the form that sha256sum writes: {line[:80]!r}")
        sums[key] = digest.lower()
    return sums


def with_sums(objects: Mapping[str, Remote], sums: Mapping[str, str]) -> dict[str, Remote]:
    """The objects with the sums of the file. Both name the same objects, or the upload is not complete."""
    missing, unnamed = sorted(sums.keys() - objects.keys() - {SUMS_FILE}), sorted(objects.keys() - sums.keys() - {SUMS_FILE})
    if missing:
        raise BucketError(f"{SUMS_FILE} names {missing[0]!r}, which is not in the bucket: complete the upload, or make the file anew")
    if unnamed:
        raise BucketError(f"{SUMS_FILE} does not name {unnamed[0]!r}: make the file anew, and upload it last")
    return {
        key: remote if key == SUMS_FILE else Remote(key, remote.size, remote.validator, remote.place, {"sha256": sums[key]})
        for key, remote in objects.items()
    }


def identity(url: str, remote: Remote) -> str:
    """The name of an object's content in the staging folder. Equal names mean that nothing has to be fetched."""
    state = remote.sums.get("sha256") or remote.validator
    if not state:
        raise BucketError(f"the store has neither an ETag nor a time for {remote.key!r}: put a file {SUMS_FILE} at the root of the tree")
    return hashlib.sha256("\0".join([url, remote.key, str(remote.size), state]).encode()).hexdigest()


def units(identities: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The paths and identities of each unit."""
    made: dict[str, dict[str, str]] = {}
    for key, name in identities.items():
        made.setdefault(key.partition("/")[0], {})[key] = name
    return made


def steps(
    wanted: Mapping[str, Mapping[str, str]], found: Mapping[str, Mapping[str, str]], owned: Iterable[str]
) -> list[Step]:
    """The renames that make the folder hold what is wanted, in an order for a server that reads between any two of them.

    ``found`` has what the folder holds: each name, with the paths and identities of files that were copied. Files of others are not in it.
    New units come first, because a changed one may need them (a model in an ensemble). A configuration that is itself a unit comes after all else that
    comes. Removals are last.
    """
    owned = set(owned)
    foreign = sorted(found.keys() & wanted.keys() - owned)
    if foreign:
        raise BucketError(f"the folder has {foreign[0]!r}, which no copy put there: remove it, or name an empty folder")
    coming = [Step("exchange" if unit in found else "add", unit) for unit in sorted(wanted) if wanted[unit] != found.get(unit)]
    coming.sort(key=lambda step: (step.unit == CONFIG_FILE, step.kind != "add"))
    return coming + [Step("remove", unit) for unit in sorted(owned & found.keys() - wanted.keys())]


def check_space(needed: int, free: int, folder: str) -> None:
    """Refuses what the disk cannot hold, before anything is fetched."""
    if needed > free:
        raise BucketError(f"{needed} bytes are to be fetched, and the disk of {folder} has {free} free: free space, or use a larger disk")


def delay_s(every_s: float, failures: int) -> float:
    """How long to wait for the next round after this many failures in a row."""
    return min(every_s, RETRY_S * 2.0 ** min(failures - 1, 30)) if failures else every_s
