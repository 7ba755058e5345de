"""How does this process map memory that the server shares with it?

A segment is a part of a file that the server sent. It stays mapped until the last array over it is collected: numpy keeps the owner of the
mapping alive, and to forget a segment only drops our own reference. Large memory, and all of clients, is unmapped on another thread (``unmapping``).
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import time
from typing import Any, Callable, Iterable, Optional, Sequence

import numpy as np

from . import prepared
from .packets import Segment
from .unmapping import Mapping, Unmapper

# The longest time, in seconds, until another thread has read a packet that has arrived.
_AWAITED_S = 5.0
_LOOK_AGAIN_S = 0.001
# The size of an IPC handle.
_HANDLE_BYTES = 64
_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
# How the server marks memory that is mapped privately.
_PRIVATE = "private"
# As MADV_DONTNEED, for memory that is locked (Linux 5.18). The module mmap has no name for it.
_MADV_DONTNEED_LOCKED = 24


class Unmapped(Exception):
    """Memory cannot be mapped, or is not mapped. The text is for the server."""


class Guard:
    """The server's guard against memory that clients remove, loaded from a descriptor. It also ends the process with its group when the server has
    ended."""

    def __init__(self, descriptor: int) -> None:
        import ctypes

        library = ctypes.CDLL(f"/proc/self/fd/{descriptor}", use_errno=True)
        self._errno = ctypes.get_errno
        self._map = library.nerite_guard_map
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t)
        self._unmap = library.nerite_guard_unmap
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.lost_at = library.nerite_guard_lost_at
        self.lost_at.restype = ctypes.c_ssize_t
        self.lost_at.argtypes = (ctypes.c_void_p,)
        library.nerite_guard_faults.restype = ctypes.c_void_p
        # The number of faults of this process so far.
        self.faults = ctypes.c_size_t.from_address(library.nerite_guard_faults())
        for begun in (library.nerite_guard_install, library.nerite_guard_end_with_parent):
            code = begun()
            if code:
                raise OSError(code, os.strerror(code))

    def map(self, descriptor: int, file_offset: int, length: int) -> int:
        """Maps a part of a file under the guard. Returns its address."""
        start = self._map(descriptor, file_offset, length)
        if not start:
            code = self._errno()
            raise OSError(code, os.strerror(code))
        return int(start)

    def unmap(self, start: int, length: int) -> None:
        """Unmaps such a part."""
        self._unmap(start, length)


class _Watched:
    """A guarded mapping of a client's object, which lasts as long as this object. Arrays over it have it as their base."""

    def __init__(self, guard: Guard, unmapper: Unmapper, descriptor: int, file_offset: int, length: int) -> None:
        self._guard = guard
        self._unmapper = unmapper
        self.start = guard.map(descriptor, file_offset, length)
        self.length = length
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (self.start, False)}

    def __del__(self) -> None:
        if "__array_interface__" not in self.__dict__:
            return
        # A small mapping is passed on too. It may be the last one of a client's large object, which the kernel then frees before the call returns.
        self._unmapper.pass_on(functools.partial(self._guard.unmap, self.start, self.length))


class Memory:
    """The mapped segments, by the server's numbers."""

    def __init__(self, guard: Optional[Guard] = None) -> None:
        self._guard = guard
        self._unmapper = Unmapper()
        # Arrays of bytes, and objects for memory of a GPU.
        self._bytes: dict[int, Any] = {}
        # Only the objects for memory of a GPU.
        self._on_gpus: dict[int, Any] = {}
        # Addresses and lengths.
        self._addresses: dict[int, tuple[int, int]] = {}
        # For memory that others read too: the mapping, and the number of its bytes before the segment. It is mapped privately, so that what the
        # model writes there stays in this process.
        self._private: dict[int, tuple[mmap.mmap, int]] = {}
        # For regions: the segment's address, and the number of bytes of the mapping before it.
        self._regions: dict[int, tuple[int, int]] = {}
        # For each segment: the base of all arrays over it, and the segment's bytes. Inputs without an array refer to the bytes. Then the reference
        # counts of both when the segment is not in use.
        self._uses: dict[int, list[Any]] = {}
        self._held: set[int] = set()
        # Reads packets of another channel, which may introduce segments.
        self.read_more: Optional[Callable[[float], bool]] = None
        # Held while the set above is changed.
        self._lock = threading.Lock()
        # Why each of these segments could not be mapped. An entry is removed when the server is told of it.
        self.unmapped: dict[int, str] = {}

    def __getitem__(self, segment: int) -> Any:
        """The segment's bytes, as an array of uint8. Of a region on a GPU, a ``DeviceSegment``."""
        try:
            return self._bytes[segment]
        except KeyError:
            return self._awaited(segment)

    def _awaited(self, segment: int) -> Any:
        """The bytes of a segment that another thread is about to map, because another channel introduced it."""
        deadline = time.monotonic() + _AWAITED_S
        while segment not in self._bytes:
            if segment in self.unmapped:
                raise Unmapped(self.unmapped[segment])
            if time.monotonic() > deadline:
                raise Unmapped(f"memory of segment {segment} is not mapped in the model's process")
            if self.read_more is None or not self.read_more(_LOOK_AGAIN_S):
                time.sleep(_LOOK_AGAIN_S)
        return self._bytes[segment]

    def map(self, wanted: list[Segment], descriptors: list[int]) -> None:
        """Maps each segment, and closes the descriptors. If one cannot be mapped, each access to it fails, so that only its own request does."""
        try:
            for (segment, length, file_offset, is_region, *more), descriptor in zip(wanted, descriptors):
                is_private = more == [_PRIVATE]
                if more and not is_private:
                    from . import cuda

                    on_gpu = cuda.DeviceSegment(os.pread(descriptor, _HANDLE_BYTES, 0), length, more[0])
                    self._bytes[segment] = self._on_gpus[segment] = on_gpu
                    # Otherwise the local variable would keep it open.
                    del on_gpu
                    continue
                try:
                    self._map_with_retry(segment, length, file_offset, is_region, is_private, descriptor)
                except (OSError, ValueError) as error:
                    self.unmapped[segment] = (
                        f"memory of {length} bytes cannot be mapped in the model's process: {error}; "
                        "raise its limits on address space (ulimit -v) and mappings, or use smaller regions"
                    )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _map_with_retry(self, segment: int, length: int, file_offset: int, is_region: bool, is_private: bool, descriptor: int) -> None:
        try:
            self._map(segment, length, file_offset, is_region, is_private, descriptor)
        except OSError:
            # Memory that waits to be unmapped may take the address space.
            self._unmapper.finish()
            self._map(segment, length, file_offset, is_region, is_private, descriptor)

    def _map(self, segment: int, length: int, file_offset: int, is_region: bool, is_private: bool, descriptor: int) -> None:
        skip = file_offset % _PAGE_BYTES
        if not is_region:
            access = mmap.ACCESS_COPY if is_private else mmap.ACCESS_WRITE
            mapping = Mapping(descriptor, skip + length, access=access, offset=file_offset - skip)
            mapping.unmapper = self._unmapper
            whole = np.frombuffer(mapping, np.uint8)
            if is_private:
                self._private[segment] = mapping, skip
            # Otherwise the local variable would keep it mapped.
            del mapping
        elif self._guard is None:
            raise OSError("a client's region needs the guard, which is not there")
        else:
            owner = _Watched(self._guard, self._unmapper, descriptor, file_offset - skip, skip + length)
            self._regions[segment] = (owner.start, skip)
            whole = np.asarray(owner)
        self._bytes[segment] = whole[skip : skip + length]
        if not is_private:
            self._addresses[segment] = (whole.__array_interface__["data"][0] + skip, length)
        use = self._uses[segment] = [whole, self._bytes[segment], 0]
        # Otherwise the local variable would count as a reference.
        del whole
        use[2] = sys.getrefcount(use[0]) + sys.getrefcount(use[1])

    def is_private(self, segment: int) -> bool:
        """Whether others read the segment too."""
        return segment in self._private

    def refresh(self, segment: int, offset: int, byte_size: int) -> None:
        """Makes these bytes of a private segment equal to those of the server. Drops the pages that the model has written to."""
        found = self._private.get(segment)
        if found is None or byte_size == 0:
            return
        mapping, skip = found
        start = (skip + offset) // _PAGE_BYTES * _PAGE_BYTES
        length = skip + offset + byte_size - start
        try:
            mapping.madvise(mmap.MADV_DONTNEED, start, length)
        except OSError:
            try:
                mapping.madvise(_MADV_DONTNEED_LOCKED, start, length)
            except OSError as error:
                raise Unmapped(
                    f"memory of an input that other models read too cannot be read anew: {error}; if the model locks its memory, that needs Linux 5.18"
                ) from error

    def expect_use(self, segment: Any, more: int) -> None:
        """Notes that this package itself has that many arrays more, or fewer, over the segment. Call this after such an array was made, or before it is
        dropped. So an unused segment may seem to be used for a moment, but never the reverse.
        """
        with self._lock:
            use = self._uses.get(segment)
            if use is not None:
                use[2] += more

    def _in_use(self, segment: Any) -> bool:
        use = self._uses.get(segment)
        return use is not None and sys.getrefcount(use[0]) + sys.getrefcount(use[1]) > use[2]

    def _any_in_use(self, segments: Sequence[Any]) -> bool:
        uses, count = self._uses, sys.getrefcount
        for segment in segments:
            use = uses.get(segment)
            if use is not None and count(use[0]) + count(use[1]) > use[2]:
                return True
        return False

    def kept(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[int], list[int], bool]:
        """The segments of inputs and outputs that the model still uses, now that its batch has been answered.

        Returns segments of the server's memory that arrays still use (each is reported once), those of them that are not used any more, and
        whether an array over a client's input is still used, which will change when the client writes there.
        """
        if not self._held and not self._any_in_use(inputs) and not self._any_in_use(outputs):
            return [], [], False
        fresh: list[int] = []
        let_go: list[int] = []
        keeps_region = False
        with self._lock:
            for segments in (inputs, outputs):
                for segment in segments:
                    if segment in self._held or not self._in_use(segment):
                        continue
                    if segment not in self._regions:
                        fresh.append(segment)
                        self._held.add(segment)
                    elif segments is inputs:
                        keeps_region = True
            if self._held:
                let_go = [segment for segment in self._held if not self._in_use(segment)]
                self._held.difference_update(let_go)
        return fresh, let_go, keeps_region

    def keeps_any(self) -> bool:
        """Whether the server keeps memory for the model. The model may have stopped using that memory already."""
        return bool(self._held)

    def let_go(self) -> list[int]:
        """The memory that the model does not use any more."""
        with self._lock:
            return [segment for segment in self._held if not self._in_use(segment)]

    def given_back(self, segments: Iterable[int]) -> None:
        """Notes that the server was notified that these segments are not used any more."""
        with self._lock:
            # Another thread may use a segment again.
            self._held.difference_update([one for one in segments if not self._in_use(one)])

    def hold(self, segment: int) -> None:
        """Notes that the server keeps the segment until it is notified that no array uses it any more."""
        with self._lock:
            self._held.add(segment)

    def find(self, array: np.ndarray) -> Optional[tuple[int, int]]:
        """The segment and the offset of an array's elements. None if they are not contiguous or not in a segment."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        address = array.__array_interface__["data"][0]
        for segment, (start, length) in list(self._addresses.items()):
            if start <= address and address + array.nbytes <= start + length:
                return segment, address - start
        return None

    def find_on_device(self, array: Any) -> Optional[tuple[int, int]]:
        """The segment and the offset of elements on a GPU. None if they are not in a client's region."""
        for segment, held in list(self._on_gpus.items()):
            offset = held.offset_of(array)
            if offset is not None:
                return segment, offset
        return None

    def forget(self, segments: Iterable[int]) -> None:
        """Drops segments that the server has removed. A mapping ends with the last array over it."""
        prepared.forget(segments)
        for segment in segments:
            self._bytes.pop(segment, None)
            self._addresses.pop(segment, None)
            self._private.pop(segment, None)
            self._regions.pop(segment, None)
            self._on_gpus.pop(segment, None)
            self._uses.pop(segment, None)
            self._held.discard(segment)

    def has_lost(self) -> bool:
        """Whether any memory was missing so far when it was accessed. Calling the guard for each segment takes longer."""
        guard = self._guard
        return guard is not None and guard.faults.value != 0

    def lost(self, segments: Iterable[int]) -> list[list[int]]:
        """The segments whose memory was missing when it was accessed: ``[segment, offset]`` each."""
        found = []
        regions, guard = self._regions, self._guard
        for segment in segments:
            region = regions.get(segment)
            if region is not None and guard is not None:
                offset = guard.lost_at(region[0])
                if offset >= 0:
                    found.append([segment, max(offset - region[1], 0)])
        return found
