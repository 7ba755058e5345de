"""How does a program create, find and release named shared memory?

    region = Region.create("/frames", 1 << 20)          # one process
    region = Region.attach("/frames")                   # another
    frame = region.as_numpy([480, 640, 3], "UINT8")     # a view, not a copy

Only the process that created a region unlinks it, not a process that attached it or a forked child. It is never unmapped while an array
uses it: :meth:`Region.destroy` raises an error instead. Memory is allocated when the region is created, so a full /dev/shm is an error at
creation, and not a SIGBUS at the first write.
"""

from __future__ import annotations

import errno
import mmap
import operator
import os
import secrets
import weakref
from typing import Any, Optional, Sequence

import numpy as np

from nerite import _datatypes
from nerite._arrays import ArrayProtocols

SHM_DIRECTORY = "/dev/shm"


class RegionError(Exception):
    """A region cannot be created, found, read or written as requested."""


class RegionInUse(RegionError):
    """Arrays over the region still exist."""


def available() -> bool:
    """Whether this system has POSIX shared memory in /dev/shm."""
    return os.path.isdir(SHM_DIRECTORY)


def fresh_key(prefix: str = "nerite") -> str:
    """A unique key that other users cannot guess."""
    return f"/{prefix}-{os.getpid()}-{secrets.token_hex(16)}"


def path_of(key: str) -> str:
    """The path of a key's object. Slashes at the beginning of the key are ignored. Raises RegionError if the rest is not one name."""
    if not isinstance(key, str):
        raise RegionError(f"invalid shared memory key {key!r}: one name, with or without a slash in front")
    name = key.lstrip("/")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise RegionError(f"invalid shared memory key '{key}': one name, with or without a slash in front")
    return f"{SHM_DIRECTORY}/{name}"


def _unlink_own(path: str, identity: tuple[int, int], pid: int) -> None:
    """Unlinks the object if it is still the one that this process created."""
    if os.getpid() != pid:
        return
    try:
        status = os.stat(path, follow_symlinks=False)
        if (status.st_dev, status.st_ino) == identity:
            os.unlink(path)
    except FileNotFoundError:
        pass


class Region(ArrayProtocols):
    """A shared memory object mapped into this process. Make one with :meth:`create` or :meth:`attach`.

    To other libraries it is an array of its bytes: ``numpy.asarray(region)``, ``torch.from_dlpack(region)``, ``region[4:8]``.
    """

    def __init__(self, key: str, mapping: mmap.mmap, unlink: Optional[weakref.finalize[Any, Any]] = None):
        self.key = key
        self.byte_size = len(mapping)
        self._map: Optional[mmap.mmap] = mapping
        self._unlink: Optional[weakref.finalize[Any, Any]] = unlink

    @classmethod
    def create(cls, key: str, byte_size: int) -> Region:
        """Creates an object of ``byte_size`` zero bytes. Raises an error if the key exists or memory is short."""
        path = path_of(key)
        try:
            byte_size = operator.index(byte_size)
        except TypeError:
            raise RegionError(f"region '{key}' was asked with {byte_size!r} bytes, which is no whole number") from None
        if byte_size <= 0:
            raise RegionError(f"a region needs at least 1 byte, '{key}' was asked with {byte_size}")
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise RegionError(f"unable to create shared memory '{key}': {_why(error, path)}") from error
        try:
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            try:
                os.posix_fallocate(descriptor, 0, byte_size)
                mapping = mmap.mmap(descriptor, byte_size)
            except (OSError, OverflowError) as error:
                _unlink_own(path, identity, os.getpid())
                raise RegionError(f"unable to create shared memory '{key}' of {byte_size} bytes: {_room(error)}") from error
        finally:
            os.close(descriptor)
        region = cls(key, mapping)
        region._unlink = weakref.finalize(region, _unlink_own, path, identity, os.getpid())
        return region

    @classmethod
    def attach(cls, key: str) -> Region:
        """Maps an object that another process created. That process unlinks it."""
        path = path_of(key)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise RegionError(f"unable to open shared memory '{key}': {_why(error, path)}") from error
        try:
            byte_size = os.fstat(descriptor).st_size
            if byte_size == 0:
                raise RegionError(f"shared memory '{key}' has 0 bytes; attach when its maker has given it some (ftruncate)")
            return cls(key, mmap.mmap(descriptor, byte_size))
        except OSError as error:
            raise RegionError(f"unable to map shared memory '{key}': {error.strerror}") from error
        finally:
            os.close(descriptor)

    @property
    def buf(self) -> memoryview:
        """All bytes of the region, writable. The region cannot be destroyed while this view exists."""
        return memoryview(self._mapped())

    def as_numpy(self, shape: Sequence[int], datatype: str = "UINT8", offset: int = 0) -> np.ndarray:
        """The tensor at ``offset`` bytes in the region.

        A writable view for datatypes of fixed size, a decoded copy for BYTES. The view keeps the memory mapped.
        """
        dims = _datatypes.check_shape(shape)
        byte_size = _datatypes.fixed_byte_size(dims, _datatypes.check_datatype(datatype))
        if byte_size is None:
            self._check(offset, 0)
            with memoryview(self._mapped()) as memory, memory[offset:] as rest:
                return _datatypes.decode_elements(rest, dims)
        self._check(offset, byte_size)
        dtype = _datatypes.numpy_dtype(datatype)
        if byte_size == 0:
            return np.empty(dims, dtype)
        raw = np.frombuffer(self._mapped(), dtype=np.uint8, count=byte_size, offset=offset)
        return raw.view(dtype).reshape(dims)

    def write(self, tensor: np.ndarray, offset: int = 0) -> int:
        """Copies a tensor to the region, serialising BYTES in place. Returns its size in bytes."""
        if _datatypes.datatype_of(tensor) == "BYTES":
            elements = _datatypes.encoded_elements(tensor)
            byte_size = _datatypes.encoded_byte_size(elements)
            self._check(offset, byte_size)
            with memoryview(self._mapped()) as memory, memory[offset:] as rest:
                _datatypes.write_elements(elements, rest)
            return byte_size
        self._check(offset, tensor.nbytes)
        if tensor.nbytes:
            raw = np.frombuffer(self._mapped(), dtype=np.uint8, count=tensor.nbytes, offset=offset)
            raw.view(tensor.dtype).reshape(tensor.shape)[...] = tensor
        return tensor.nbytes

    def unlink(self) -> None:
        """Removes the name. Processes that have mapped the memory keep it. Has an effect only in the creator."""
        if self._unlink is not None:
            self._unlink()

    def destroy(self) -> None:
        """Unmaps the region and, if this process created it, unlinks it. Raises :class:`RegionInUse` if arrays over it exist."""
        if self._map is None:
            return
        try:
            self._map.close()
        except BufferError:
            raise RegionInUse(f"region '{self.key}' has live arrays or memoryviews; drop them first") from None
        self._map = None
        self.unlink()

    def abandon(self) -> None:
        """As :meth:`destroy`, but existing arrays keep the memory until the last of them is collected."""
        self._map = None
        self.unlink()

    def __enter__(self) -> Region:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            self.destroy()
        except RegionInUse:
            if kind is None:
                raise
            # The exception of the block is more important, and its own frames may refer to the arrays.
            self.abandon()

    def __repr__(self) -> str:
        return f"Region('{self.key}', {self.byte_size} bytes{', destroyed' if self._map is None else ''})"

    def _elements(self) -> np.ndarray:
        return self.as_numpy([self.byte_size])

    def _in_place(self, protocol: str) -> tuple[str, np.ndarray]:
        return "UINT8", self._elements()

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            raise RegionError(f"region '{self.key}' was destroyed")
        return self._map

    def _check(self, offset: int, byte_size: int) -> None:
        if offset < 0 or offset + byte_size > self.byte_size:
            raise RegionError(
                f"region '{self.key}' has {self.byte_size} bytes, asked to reach {offset + byte_size} from {offset}"
            )


def _room(error: Exception) -> str:
    """The reason of an error. For a full file system, its size and what to do."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EFBIG):
        return getattr(error, "strerror", None) or str(error)
    found = os.statvfs(SHM_DIRECTORY)
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    return (
        f"{SHM_DIRECTORY} has {free} of {size} bytes free; remove objects nobody uses, or make it larger (docker run --shm-size, "
        f"mount -o remount,size=)"
    )


def _why(error: OSError, path: str) -> str:
    """Why an object could not be opened, and what to do about it."""
    why = error.strerror or str(error)
    if error.errno == errno.EEXIST:
        return f"{why}; attach to it, or take another key (nerite.shm.fresh_key)"
    if error.errno == errno.ENOENT:
        return f"{why}; is its maker in another container, with a {SHM_DIRECTORY} of its own?"
    if error.errno == errno.EACCES:
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            return why
        return (
            f"{why}: it is user {found.st_uid}'s with mode {found.st_mode & 0o7777:04o}, this is user {os.geteuid()}; run both as one "
            f"user, or widen its mode"
        )
    return why
