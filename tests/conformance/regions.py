"""How does a test make shared memory of its own?"""

import contextlib
import mmap
import os
import pathlib
import secrets
import time

from clients import Refused

SHM = pathlib.Path("/dev/shm")


class Region:
    """A POSIX shared memory object of this test; `key` has the leading slash that clients send."""

    def __init__(self, byte_size: int, content: bytes = b"", key: str = ""):
        self.key = key or f"/nerite_test_{secrets.token_hex(6)}"
        self.path = SHM / self.key[1:]
        self.byte_size = byte_size
        descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(descriptor, byte_size)
            self.map = mmap.mmap(descriptor, byte_size)
        finally:
            os.close(descriptor)
        self.map[: len(content)] = content

    def read(self, byte_size: int, offset: int = 0) -> bytes:
        return self.map[offset : offset + byte_size]

    def write(self, content: bytes, offset: int = 0) -> None:
        self.map[offset : offset + len(content)] = content

    def close(self) -> None:
        self.map.close()
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def region(byte_size: int, content: bytes = b""):
    made = Region(byte_size, content)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def registered(client, byte_size: int, content: bytes = b"", name: str | None = None):
    """A region that the server knows, under `name` or a name nobody else has; unregistered at the end."""
    with region(byte_size, content) as made:
        made.name = name or f"region_{secrets.token_hex(6)}"
        client.register_system(made.name, made.key, byte_size)
        try:
            yield made
        finally:
            unregister_soon(client, made.name)


def unregister_soon(client, name: str) -> None:
    """2.51 refuses while a request holds the region, and lets go of it a moment after the client has its answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return client.unregister("system", name)
        except Refused as refusal:
            if "currently in use" not in refusal.text or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def fresh_name() -> str:
    return f"region_{secrets.token_hex(6)}"
