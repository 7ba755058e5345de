"""In which ways are the bytes of a tensor sent to the server?

* ``lease``: memory of the server, lent over its session socket. The server takes it back when this process ends.
* ``region``: POSIX shared memory that this process makes and registers by the standard call. Its name in /dev/shm is removed as soon as the
  server has mapped it, so even a killed process leaves no file behind.
* ``inline``: bytes in the request and in the response. This always works.

A way is first tried for the first buffer, because a client may be made before its server is started.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import time
from typing import Any, Callable, Protocol

from nerite import shm
from nerite._deadline import current
from nerite._pool import Slab

WAYS = ("lease", "region", "inline")
# The prefix of the names of pool regions. They exist in /dev/shm only between creation and registration.
POOL_PREFIX = "nerite-pool"
# An older region was left by a process that was killed between the two, if that process does not exist any more.
ORPHAN_AGE_S = 60.0
# The longest time of a registration. If it takes longer, the server does not respond, and other ways are tried.
REGISTER_S = 5.0
# The timeout of releasing regions. The server may have ended, or may not respond.
GOODBYE_S = 2.0
# Triton before 24.12 refuses with this text to unregister a region, for a moment after the response that used it.
STILL_IN_USE = "it is currently in use"
TRIES_MAX, AGAIN_S = 10, 0.02


class Refused(Exception):
    """This way cannot be used now. ``final`` means that a retry is useless."""

    def __init__(self, why: str, final: bool):
        super().__init__(why)
        self.final = final


class Transport(Protocol):
    """The interface of a way with shared memory, for the pool."""

    def make(self, byte_size: int) -> Slab:
        """Makes a slab of at least ``byte_size`` bytes that the server knows by the slab's name. Raises :class:`Refused`."""

    def is_alive(self) -> bool:
        """Whether present slabs are still valid, as far as is known without a request to the server."""

    def drop(self, slab: Slab) -> None:
        """Releases a slab at the server. Never raises."""

    def close(self) -> None:
        """Ends the transport. Never raises."""


def host_of(url: str) -> str:
    """The host in a client's url: ``host:port/path``, ``[::1]:port``, ``unix:path``, ``dns:///host:port``."""
    if url.startswith(("unix:", "unix-abstract:")):
        return ""
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        if url.startswith(scheme):
            url = url[len(scheme) :]
            break
    authority = url.split("/", 1)[0]
    if authority.startswith("["):
        return authority[1:].split("]", 1)[0]
    return authority.rsplit(":", 1)[0] if authority.count(":") == 1 else authority


def port_of(url: str) -> str:
    """The port in a client's url. Empty if it names none."""
    port = url.split("/", 1)[0].rsplit(":", 1)[-1]
    return port if port.isascii() and port.isdigit() else ""


def is_this_host(url: str) -> bool:
    """Whether the server of the url can be on this host: the address is a Unix socket, the loopback, or an address of this host."""
    host = host_of(url)
    if host == "":
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_ours(family, address) for family, _, _, _, address in found)


def _is_ours(family: int, address: Any) -> bool:
    if ipaddress.ip_address(address[0].split("%", 1)[0]).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
        return True
    except OSError:
        return False


class RegionTransport:
    """POSIX regions that this process makes and registers through the client."""

    def __init__(
        self,
        url: str,
        register: Callable[[str, str, int], None],
        unregister: Callable[[str], None],
        server_is_away: Callable[[BaseException], bool],
    ):
        self._register = register
        self._unregister = unregister
        self._server_is_away = server_is_away
        if not shm.available():
            raise Refused(f"there is no {shm.SHM_DIRECTORY} here", final=True)
        if not is_this_host(url):
            raise Refused(f"the server of '{url}' is on another host", final=True)
        sweep_orphans()

    def make(self, byte_size: int) -> Slab:
        try:
            region = shm.Region.create(shm.fresh_key(POOL_PREFIX), byte_size)
        except shm.RegionError as error:
            raise Refused(str(error), final=False) from error
        name = region.key[1:]
        try:
            self._register(name, region.key, byte_size)
        except Exception as error:  # noqa: BLE001 - any error of the client's library if no server answers
            # Raises TimeoutError if the call's time is over, so that no other way is tried.
            current().left()
            raise Refused(f"the server did not take a region: {error}", final=not self._server_is_away(error)) from error
        finally:
            # The server has mapped the region, or the registration failed. In both cases its name is not needed any more.
            region.unlink()
        return Slab(name, region.as_numpy([byte_size]))

    def is_alive(self) -> bool:
        return True

    def drop(self, slab: Slab) -> None:
        for _ in range(TRIES_MAX):
            try:
                self._unregister(slab.name)
                return
            except Exception as error:  # noqa: BLE001 - a server that is gone has forgotten the region with everything else
                if STILL_IN_USE not in str(error):
                    return
                time.sleep(AGAIN_S)

    def close(self) -> None:
        pass


def sweep_orphans() -> None:
    """Unlinks pool regions of this user that killed processes have left.

    Processes that have mapped such a region keep it. A process in another PID namespace that is still alive has registered its region long
    ago.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(shm.SHM_DIRECTORY):
            if not entry.name.startswith(f"{POOL_PREFIX}-"):
                continue
            with contextlib.suppress(OSError, ValueError):
                maker = int(entry.name[len(POOL_PREFIX) + 1 :].split("-", 1)[0])
                age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age_s > ORPHAN_AGE_S and not os.path.exists(f"/proc/{maker}"):
                    os.unlink(entry.path)
