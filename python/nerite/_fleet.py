"""Which servers of a fleet may a client on this host use?

On each node of a fleet, a file names the node's proxy and the session sockets of the replicas that are ready there. The fleet writes it anew, by rename,
when one of them comes or goes. Its keys are ``http``, ``grpc`` and ``sessions``; others are ignored.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any, Collection, NamedTuple, Optional, Sequence, Tuple

from nerite import _trust

NAME = re.compile(r"[a-z0-9-]{1,40}")
_ADDRESS = re.compile(r"(\[[^/\]]+\]|[^/:\s]+):[0-9]+")
FILE_BYTES_MAX = 1 << 20
# Tells one content of the file from another: device, inode, time of change and size.
Stamp = Tuple[int, int, int, int]


class Places(NamedTuple):
    """The servers on this host: the addresses of the proxy, and the session sockets of the replicas."""

    http: str
    grpc: str
    sessions: tuple[str, ...]


def path_of(fleet: str) -> str:
    """The path of the file of a fleet on this host. ``fleet`` is the fleet's name, or the path itself. Raises ValueError for any other name."""
    if "/" in fleet:
        return fleet
    if not NAME.fullmatch(fleet):
        raise ValueError(f"'{fleet}' is no name of a fleet, which has 1 to 40 of the characters a-z, 0-9 and '-'; a path of its file has a '/'")
    return f"{_trust.own_directory()}/fleet-{fleet}.json"


def read(path: str) -> tuple[Places, Stamp]:
    """The servers in the file. Raises ConnectionError if the file is missing, belongs to another user, or is malformed."""
    own_uid, directory = os.geteuid(), _trust.directory_of(path)
    if directory is not None and (why := _trust.why_not_in(own_uid, directory)) is not None:
        raise ConnectionError(f"the fleet's file '{path}' is not used: {why}")
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if (why := _why_not_file(own_uid, found)) is not None:
                raise ConnectionError(f"the fleet's file '{path}' is not used: {why}")
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConnectionError(f"no fleet of that name has a proxy on this host: there is no '{path}'; `nerite fleet status` lists its nodes") from None
    except ConnectionError:
        raise
    except OSError as error:
        raise ConnectionError(f"the fleet's file '{path}' is not used: {error.strerror}") from None
    try:
        return _parsed(content), _stamp(found)
    except ValueError as error:
        raise ConnectionError(f"the fleet's file '{path}' is malformed: {error}") from None


def stamp_of(path: str) -> Optional[Stamp]:
    """The stamp of the file's present content. None without a file."""
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None


def choice(sessions: Sequence[str], lost: Collection[str], present: Optional[str], number: int) -> Optional[str]:
    """The session socket that a thread uses from now on: the present one as long as it can be used, because the thread's buffers are there. Otherwise one
    of the others, by the number of the choice, so that threads spread over them. None if only the proxy is left. ``lost`` are those that failed just now."""
    usable = [one for one in sorted(sessions) if one not in lost]
    if present in usable:
        return present
    return usable[number % len(usable)] if usable else None


def _why_not_file(own_uid: int, found: os.stat_result) -> Optional[str]:
    """Why the file is not trusted. None if it is: it would send tensors to whatever server it names."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid not in (own_uid, _trust.ROOT):
        return f"it belongs to user {found.st_uid}, and this is user {own_uid}"
    if found.st_mode & _trust.WRITABLE_BY_OTHERS:
        return f"it has mode {stat.S_IMODE(found.st_mode):04o}: others could write to it"
    return None


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _parsed(content: bytes) -> Places:
    """The servers in the content of a file. Raises ValueError."""
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        found: Any = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    for key in ("http", "grpc"):
        if not isinstance(found.get(key), str) or not _ADDRESS.fullmatch(found[key]):
            raise ValueError(f"'{key}' is {found.get(key)!r}, not host:port")
    sessions = found.get("sessions")
    if not isinstance(sessions, list) or not all(isinstance(one, str) and one.startswith("/") and "\0" not in one for one in sessions):
        raise ValueError(f"'sessions' is {sessions!r}, not a list of absolute paths")
    return Places(found["http"], found["grpc"], tuple(sessions))
