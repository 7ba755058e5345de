"""Which piece of shared memory does the next tensor get?

A *slab* is what the server knows by one name: a registered region or a lease. Slabs are cut into *blocks* of one size class
each, and a block is lent for one tensor:

    slab  "nerite-4711-…"   |block|block|block|block| … 16 or more   classes up to 64 KiB
    slab  "nerite-4711-…"   |          block        |                larger ones: a slab each

A block returns when nothing refers to it any more: no handle, no array over it, no request in flight. Nothing here speaks to
a server: making and dropping slabs is the caller's, through two functions.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from typing import Any, Callable, Optional

import numpy as np

BLOCK_BYTES_MIN = 256
CARVED_BYTES_MAX = 64 << 10
SLAB_BYTES_MIN = 64 << 10
SLAB_BLOCKS_MIN = 16
PAGE_BYTES = 4096
# What a pool keeps unused; beyond it whole slabs go back to the system.
FREE_BYTES_MAX = 256 << 20


def size_class(byte_size: int) -> int:
    """The block size for a tensor: a power of two, above 64 KiB in four steps from one power to the next."""
    if byte_size <= BLOCK_BYTES_MIN:
        return BLOCK_BYTES_MIN
    power = 1 << (byte_size - 1).bit_length()
    if power <= CARVED_BYTES_MAX:
        return power
    step = max(power // 8, PAGE_BYTES)
    return -(-byte_size // step) * step


def slab_bytes(block_bytes: int) -> int:
    """The size of a slab for blocks of one class."""
    return max(block_bytes * SLAB_BLOCKS_MIN, SLAB_BYTES_MIN) if block_bytes <= CARVED_BYTES_MAX else block_bytes


class Slab:
    """Memory that the server knows by one name, mapped here. ``memory`` is a uint8 array that keeps the mapping alive.

    ``keeper`` is what must live as long as the slab does.
    """

    def __init__(self, name: str, memory: np.ndarray, keeper: Any = None):
        self.name = name
        self.memory = memory
        self.keeper = keeper
        self.address: int = memory.ctypes.data if memory.size else 0
        self.byte_size: int = memory.nbytes
        # Set when the slab is cut: the class its blocks are lent as, and their size (all of it for a slab of one block).
        self.size_class = 0
        self.block_bytes = self.byte_size
        self.lent = 0
        # A retired slab lends no more and is dropped with its last block: a request whose end was not seen may still write
        # into it.
        self.retired = False
        # A dropped slab is unknown to the server.
        self.dropped = False


class Block:
    """A piece of a slab, lent to one tensor for as long as anything refers to this object.

    Arrays made by :meth:`array` have it as their base, so they keep the memory both mapped and out of the pool.
    """

    __slots__ = ("slab", "offset", "byte_size", "__array_interface__", "__weakref__")

    def __init__(self, slab: Slab, offset: int, byte_size: int):
        self.slab = slab
        self.offset = offset
        self.byte_size = byte_size
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (byte_size,),
            "typestr": "|u1",
            "data": (slab.address + offset, False),
        }

    def array(self) -> np.ndarray:
        """All bytes of the block as uint8, shape [byte_size]; the block lives as long as the array."""
        return np.asarray(self)


class Returns:
    """Where blocks come back to. Finalizers run anywhere, also under the pool's lock: they only append, which is atomic."""

    def __init__(self) -> None:
        self._pieces: collections.deque[tuple[Slab, int]] = collections.deque()
        self._closed = False

    def put(self, piece: tuple[Slab, int]) -> None:
        """A block is back; a closed pool lets its memory go."""
        if not self._closed:
            self._pieces.append(piece)

    def take(self) -> list[tuple[Slab, int]]:
        """What came back since the last time."""
        found = []
        while self._pieces:
            found.append(self._pieces.popleft())
        return found

    def close(self) -> None:
        """Nobody will take what comes from now on."""
        self._closed = True
        self._pieces.clear()


class Pool:
    """Lends blocks. Thread-safe; never calls ``make`` or ``drop`` under its lock, for they wait for the server."""

    def __init__(
        self,
        make: Callable[[int], Slab],
        drop: Callable[[Slab], None],
        free_bytes_max: int = FREE_BYTES_MAX,
    ):
        self._make = make
        self._drop = drop
        self._free_bytes_max = free_bytes_max
        self.closed = False
        self._start_afresh()
        _pools.add(self)

    def _start_afresh(self) -> None:
        """The state of a pool that owns nothing; also that of a child process, whose parent owns all there was."""
        self._lock = threading.Lock()
        self._slabs: set[Slab] = set()
        self._free: dict[int, list[tuple[Slab, int]]] = {}
        self._returns = Returns()

    def acquire(self, byte_size: int) -> Block:
        """A block of at least ``byte_size`` bytes. What it held before is undefined. Raises what ``make`` raises."""
        if self.closed:
            raise ValueError("the pool is closed")
        wanted = size_class(byte_size)
        with self._lock:
            idle = self._take_returns()
            found = self._pop(wanted)
        for slab in idle:
            self._drop(slab)
        if found is None:
            slab = self._make(slab_bytes(wanted))
            with self._lock:
                self._carve(slab, wanted)
                found = self._pop(wanted)
        if found is None:
            raise RuntimeError(f"a slab of {slab.byte_size} bytes has no block of {wanted}")
        slab, offset = found
        block = Block(slab, offset, slab.block_bytes)
        weakref.finalize(block, self._returns.put, found).atexit = False
        return block

    def has_free(self, byte_size: int) -> bool:
        """Whether a block of that size is likely to be had without making a slab."""
        wanted = size_class(byte_size)
        with self._lock:
            self._file_returns()
            return any(not slab.retired for slab, _ in self._free.get(wanted, ()))

    def close(self) -> None:
        """Drops every slab; blocks still lent keep their memory, unknown to the server."""
        with self._lock:
            self._file_returns()
            self._returns.close()
            slabs, self._slabs = self._slabs, set()
            self._free.clear()
            self.closed = True
        for slab in slabs:
            slab.dropped = True
            self._drop(slab)

    def retire_all(self) -> None:
        """Nothing made so far is lent again: the server has lost it."""
        with self._lock:
            for slab in self._slabs:
                slab.retired = True

    def census(self) -> dict[str, int]:
        """How many slabs and bytes there are, and how many blocks are lent."""
        with self._lock:
            self._file_returns()
            return {
                "slabs": len(self._slabs),
                "bytes": sum(slab.byte_size for slab in self._slabs),
                "lent": sum(slab.lent for slab in self._slabs),
            }

    def _pop(self, wanted: int) -> Optional[tuple[Slab, int]]:
        pieces = self._free.get(wanted)
        while pieces:
            slab, offset = pieces.pop()
            if not slab.retired:
                slab.lent += 1
                return slab, offset
        return None

    def _carve(self, slab: Slab, wanted: int) -> None:
        self._slabs.add(slab)
        carved = wanted <= CARVED_BYTES_MAX
        slab.size_class = wanted
        slab.block_bytes = wanted if carved else slab.byte_size
        # The last is taken first: ascending addresses for tensors made one after another.
        count = slab.byte_size // wanted if carved else 1
        pieces = [(slab, index * wanted) for index in reversed(range(count))]
        self._free.setdefault(wanted, []).extend(pieces)

    def _file_returns(self) -> bool:
        """Puts what came back where it can be lent from; whether anything did."""
        returned = self._returns.take()
        for slab, offset in returned:
            slab.lent -= 1
            if slab in self._slabs and not slab.retired:
                self._free.setdefault(slab.size_class, []).append((slab, offset))
        return bool(returned)

    def _take_returns(self) -> list[Slab]:
        """Files what came back; returns the slabs to drop: retired ones, and the largest idle ones beyond the bound."""
        if not self._file_returns():
            return []
        going = [slab for slab in self._slabs if slab.retired and slab.lent == 0]
        idle = sorted((slab for slab in self._slabs if not slab.retired and slab.lent == 0), key=lambda one: one.byte_size)
        excess = sum(slab.byte_size for slab in idle) - self._free_bytes_max
        while excess > 0 and idle:
            slab = idle.pop()
            excess -= slab.byte_size
            going.append(slab)
        for slab in going:
            self._slabs.discard(slab)
            slab.dropped = True
            pieces = self._free.get(slab.size_class, [])
            pieces[:] = [piece for piece in pieces if piece[0] is not slab]
        return going


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)
