"""Which block of shared memory does the next tensor get?

A *slab* is memory that the server knows by one name: a registered region or a lease. A slab is divided into *blocks* of one size class, and
each block is lent for one tensor:

    slab  "nerite-4711-…"   |block|block|block|block| … 16 or more   classes up to 64 KiB
    slab  "nerite-4711-…"   |          block        |                larger ones: a slab each

A block returns to the pool when no handle, array or request in flight refers to it. The pool sends no requests: it makes and drops slabs
with two functions of the caller.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from typing import Any, Callable, Optional

import numpy as np

from nerite import _forks

BLOCK_BYTES_MIN = 256
CARVED_BYTES_MAX = 64 << 10
SLAB_BYTES_MIN = 64 << 10
SLAB_BLOCKS_MIN = 16
PAGE_BYTES = 4096
# The most unused bytes that a pool keeps. Further slabs are returned to the system.
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

    ``owner`` is an object that must live as long as the slab.
    """

    def __init__(self, name: str, memory: np.ndarray, owner: Any = None):
        self.name = name
        self.memory = memory
        self.owner = owner
        self.address: int = memory.ctypes.data if memory.size else 0
        self.byte_size: int = memory.nbytes
        # Set when the slab is divided: the size class of its blocks, and their size (the whole slab if it has one block).
        self.size_class = 0
        self.block_bytes = self.byte_size
        self.lent = 0
        # A retired slab lends no more blocks, and is dropped with its last one: a request whose end was not seen may still write to it.
        self.retired = False
        # The server does not know a dropped slab any more.
        self.dropped = False


class Block:
    """A part of a slab, lent to one tensor as long as this object is referenced.

    Arrays of :meth:`array` have it as their base, so they keep the memory mapped and the block out of the pool.
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


class ReturnedBlocks:
    """The list of returned blocks. Finalizers run anywhere, also under the pool's lock, so they only append, which is atomic."""

    def __init__(self) -> None:
        self._pieces: collections.deque[tuple[Slab, int]] = collections.deque()
        self._closed = False

    def put(self, piece: tuple[Slab, int]) -> None:
        """Adds a block. If the pool is closed, the memory is released instead."""
        if not self._closed:
            self._pieces.append(piece)

    def take(self) -> list[tuple[Slab, int]]:
        """Takes the blocks that were returned since the last call."""
        found = []
        while self._pieces:
            found.append(self._pieces.popleft())
        return found

    def close(self) -> None:
        """Blocks that are returned from now on are released."""
        self._closed = True
        self._pieces.clear()


class Pool:
    """Lends blocks. Thread-safe. Never calls ``make`` or ``drop`` under its lock, because they wait for the server."""

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
        _forks.watch(self)

    def _start_afresh(self) -> None:
        """Sets the state of an empty pool. A forked child uses it too, because its parent owns all memory."""
        self._lock = threading.Lock()
        self._slabs: set[Slab] = set()
        #: Slabs that are not dropped although no block of them is lent: a call that waits for more memory needs them.
        self.reserved: set[Slab] = set()
        self._free: dict[int, list[tuple[Slab, int]]] = {}
        self._returns = ReturnedBlocks()
        #: Set by a fork: a block that comes back is not lent again, because the child may have arrays over it.
        self.outdated = False

    def before_fork(self) -> None:
        """Outdates the pool."""
        self.outdated = True

    def after_fork(self) -> None:
        """Does nothing: the pool stays outdated."""

    def acquire(self, byte_size: int) -> Block:
        """A block of at least ``byte_size`` bytes. Its content is undefined. Raises what ``make`` raises."""
        if self.closed:
            raise ValueError("the pool is closed")
        wanted = size_class(byte_size)
        with self._lock:
            has_returns = self._file_returns()
            found = self._pop(wanted)
            idle = self._take_idle() if has_returns else []
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
        """Whether a block of that size is probably available without a new slab."""
        wanted = size_class(byte_size)
        with self._lock:
            self._file_returns()
            return any(not slab.retired for slab, _ in self._free.get(wanted, ()))

    def close(self) -> None:
        """Drops every slab. Blocks that are still lent keep their memory, which the server does not know any more."""
        with self._lock:
            self._file_returns()
            self._returns.close()
            slabs, self._slabs = self._slabs, set()
            self._free.clear()
            self.closed = True
        for slab in slabs:
            slab.dropped = True
            self._drop(slab)

    def trim(self) -> int:
        """Drops all slabs that have no lent block and are not reserved. Returns their size in bytes."""
        with self._lock:
            self._file_returns()
            idle = [slab for slab in self._slabs if slab.lent == 0 and slab not in self.reserved]
            self._remove(idle)
        for slab in idle:
            self._drop(slab)
        return sum(slab.byte_size for slab in idle)

    def retire_all(self) -> None:
        """No present slab is lent again, because the server has lost it."""
        with self._lock:
            for slab in self._slabs:
                slab.retired = True

    def census(self) -> dict[str, int]:
        """The numbers of slabs, bytes and lent blocks."""
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
        # The last entry is taken first, so tensors that are made one after another have ascending addresses.
        count = slab.byte_size // wanted if carved else 1
        pieces = [(slab, index * wanted) for index in reversed(range(count))]
        self._free.setdefault(wanted, []).extend(pieces)

    def _file_returns(self) -> bool:
        """Adds returned blocks to the free ones. Returns whether there were any."""
        returned = self._returns.take()
        for slab, offset in returned:
            slab.lent -= 1
            # Checked after the block came back: a child of a later fork has no array over it.
            if slab in self._slabs and not (slab.retired or self.outdated):
                self._free.setdefault(slab.size_class, []).append((slab, offset))
        return bool(returned)

    def _take_idle(self) -> list[Slab]:
        """Takes the slabs to drop: retired ones, and the largest idle ones above the limit."""
        unused = [slab for slab in self._slabs if slab.lent == 0 and slab not in self.reserved]
        going = [slab for slab in unused if slab.retired]
        idle = sorted((slab for slab in unused if not slab.retired), key=lambda one: one.byte_size)
        excess = sum(slab.byte_size for slab in idle) - self._free_bytes_max
        while excess > 0 and idle:
            slab = idle.pop()
            excess -= slab.byte_size
            going.append(slab)
        self._remove(going)
        return going

    def _remove(self, going: list[Slab]) -> None:
        """Removes these slabs and their free blocks."""
        for slab in going:
            self._slabs.discard(slab)
            slab.dropped = True
            pieces = self._free.get(slab.size_class, [])
            pieces[:] = [piece for piece in pieces if piece[0] is not slab]


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._start_afresh()


os.register_at_fork(after_in_child=_after_fork_in_child)
