"""Which servers may this program send data to?

Any user can make a socket in a directory like /tmp, and receive tensors there. So the client checks the owner of the directory and the user
of the server before it sends data.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import NamedTuple, Optional

ROOT = 0
# Mode bits of a directory with which other users can make a socket there.
WRITABLE_BY_OTHERS = 0o022
# The kernel's credentials of a peer: process, user, group.
_CREDENTIALS = struct.Struct("iII")


class Directory(NamedTuple):
    """A directory in which other users could have made the socket."""

    path: str
    uid: int
    mode: int
    is_directory: bool


class Peer(NamedTuple):
    """The peer of a Unix socket. The process is 0 if it is not visible from this namespace."""

    pid: int
    uid: int


def why_not(
    own_uid: int, server_uid: Optional[int], directory: Optional[Directory], peer_uid: Optional[int]
) -> Optional[str]:
    """Why a server is not trusted, and what the user can do. None if it is trusted so far. Checks the directory of its socket, unless the
    program chose it, and the server's user once connected. ``server_uid`` is the user that the program named."""
    if directory is not None and (why := why_not_in(own_uid, directory)) is not None:
        return f"{why}; remove '{directory.path}' and start the server anew, or name its socket with NERITE_SESSION_SOCKET"
    if peer_uid is not None and peer_uid not in (own_uid, ROOT, server_uid):
        return (
            f"the server there is user {peer_uid}, and this is user {own_uid}; if that is the server you mean, name its user: "
            f"server_uid={peer_uid} or NERITE_SERVER_UID={peer_uid}"
        )
    return None


def why_not_in(own_uid: int, directory: Directory) -> Optional[str]:
    """Why what lies in the directory is not trusted. None if it is trusted so far."""
    path, uid, mode, is_directory = directory
    if not is_directory:
        return f"'{path}', made by user {uid}, is no directory or a link to one"
    if uid not in (own_uid, ROOT):
        return f"its directory '{path}' belongs to user {uid}, and this is user {own_uid}"
    if mode & WRITABLE_BY_OTHERS:
        return f"its directory '{path}' has mode {mode:04o}: others could put a socket there"
    return None


def directory_of(path: str) -> Optional[Directory]:
    """The directory of the socket at ``path``, if it is the default one. A link is not followed. None if the directory does not exist. None also for
    another directory, which the program chose: it is not checked."""
    directory = os.path.dirname(path)
    if directory != own_directory():
        return None
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    return Directory(directory, found.st_uid, stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode))


def peer_of(connected: socket.socket) -> Peer:
    """The process that listened when this socket was connected."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid, uid)


def named_uid() -> Optional[int]:
    """The user whose server is trusted, from the environment. Raises ValueError."""
    text = os.environ.get("NERITE_SERVER_UID")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"NERITE_SERVER_UID is '{text}', which is not the number of a user")
    return int(text)


def own_directory() -> str:
    """The directory in which this user's servers make their session sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/nerite" if runtime else f"/tmp/nerite-{os.geteuid()}"


def default_path() -> str:
    """The path in ``NERITE_SESSION_SOCKET``, or else that of the first server of this user."""
    return os.environ.get("NERITE_SESSION_SOCKET") or f"{own_directory()}/session.sock"


def paths_of(port: str) -> list[str]:
    """Where the session socket of the server with this HTTP port can be, the most specific place first. An empty port means no port."""
    if not port or os.environ.get("NERITE_SESSION_SOCKET"):
        return [default_path()]
    return [f"{own_directory()}/session-{port}.sock", default_path()]
