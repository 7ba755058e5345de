"""Whose server may read what this program sends?

Anybody can make a socket in a directory of /tmp, and wait there for tensors. So a client looks who made the place and who
listens, before it sends a byte.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import NamedTuple, Optional

ROOT = 0
# Bits of a directory's mode that let others put a socket there.
WRITABLE_BY_OTHERS = 0o022
# What the kernel tells of a peer: process, user, group.
_CREDENTIALS = struct.Struct("iII")


class Directory(NamedTuple):
    """A directory in which anybody could have made a socket."""

    path: str
    uid: int
    mode: int
    is_directory: bool


class Peer(NamedTuple):
    """Who is at the other end of a Unix socket. The process is 0 if it cannot be seen from here."""

    pid: int
    uid: int


def why_not(
    own_uid: int, server_uid: Optional[int], directory: Optional[Directory], peer_uid: Optional[int]
) -> Optional[str]:
    """Why a server is not talked to, and the cure; None if it may be, as far as is known: the directory of its socket, where the
    program did not choose it, and the user who listens, once connected. ``server_uid`` is the user that the program named."""
    if directory is not None:
        path, uid, mode, is_directory = directory
        cure = f"remove '{path}' and start the server anew, or name its socket with NERITE_SESSION_SOCKET"
        if not is_directory:
            return f"'{path}', made by user {uid}, is no directory or a link to one; {cure}"
        if uid not in (own_uid, ROOT):
            return f"its directory '{path}' belongs to user {uid}, and this is user {own_uid}; {cure}"
        if mode & WRITABLE_BY_OTHERS:
            return f"its directory '{path}' has mode {mode:04o}: others could put a socket there; {cure}"
    if peer_uid is not None and peer_uid not in (own_uid, ROOT, server_uid):
        return (
            f"the server there is user {peer_uid}, and this is user {own_uid}; if that is the server you mean, name its user: "
            f"server_uid={peer_uid} or NERITE_SERVER_UID={peer_uid}"
        )
    return None


def directory_of(path: str) -> Optional[Directory]:
    """The directory of the socket at ``path``, not followed if it is a link. None if there is none, and for a path that the program
    chose: that is the program's affair."""
    if os.fspath(path) != own_path():
        return None
    directory = os.path.dirname(path)
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    return Directory(directory, found.st_uid, stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode))


def peer_of(connected: socket.socket) -> Peer:
    """Who listened when this socket was connected."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid, uid)


def named_uid() -> Optional[int]:
    """The user whose server the environment says may be talked to. Raises ValueError."""
    text = os.environ.get("NERITE_SERVER_UID")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"NERITE_SERVER_UID is '{text}', which is no user's number")
    return int(text)


def own_path() -> str:
    """Where a server of this user puts its session socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = f"{runtime}/nerite" if runtime else f"/tmp/nerite-{os.geteuid()}"
    return f"{directory}/session.sock"


def default_path() -> str:
    """The same, unless ``NERITE_SESSION_SOCKET`` names another place."""
    return os.environ.get("NERITE_SESSION_SOCKET") or own_path()
