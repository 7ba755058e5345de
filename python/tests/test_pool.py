"""Does the pool lend what is free, and nothing that is in use?"""

import gc
import os
import threading

import numpy as np
import pytest

from nerite import _pool
from nerite._pool import Pool, Slab


class Maker:
    """Slabs on the heap, counted."""

    def __init__(self):
        self.made: list[int] = []
        self.dropped: list[Slab] = []

    def make(self, byte_size: int) -> Slab:
        self.made.append(byte_size)
        return Slab(f"slab{len(self.made)}", np.zeros(byte_size, np.uint8))


@pytest.fixture
def maker():
    return Maker()


@pytest.fixture
def pool(maker):
    return Pool(maker.make, maker.dropped.append)


@pytest.mark.parametrize(
    ("requested", "given"),
    [
        (0, 256),
        (1, 256),
        (256, 256),
        (257, 512),
        (65536, 65536),
        (65537, 81920),
        (100_000, 114688),
        (1 << 20, 1 << 20),
        ((1 << 20) + 1, (1 << 20) + (1 << 18)),
        (150_528 * 4, 655360),
    ],
)
def test_a_size_class_is_large_enough_and_not_much_larger(requested, given):
    assert _pool.size_class(requested) == given
    assert _pool.size_class(given) == given
    assert given >= requested
    assert requested <= 65536 or given <= requested * 1.25 + 4096


def test_blocks_in_use_never_overlap(pool):
    blocks = [pool.acquire(size) for size in (1, 100, 256, 257, 5000, 70_000, 70_000, 3_000_000) for _ in range(20)]
    spans = sorted((one.slab.address + one.offset, one.byte_size) for one in blocks)
    for (first, size), (second, _) in zip(spans, spans[1:]):
        assert first + size <= second


def test_a_block_returns_when_nothing_refers_to_it(pool, maker):
    block = pool.acquire(1000)
    place = block.slab, block.offset
    del block
    again = pool.acquire(1000)
    assert (again.slab, again.offset) == place
    assert maker.made == [65536]


def test_an_array_keeps_its_block_out_of_the_pool(pool):
    block = pool.acquire(100_000)
    place = block.slab
    array = block.array()[:400].view(np.float32).reshape(10, 10)
    del block
    gc.collect()
    assert pool.acquire(100_000).slab is not place
    part = array[2:3].T
    del array
    assert pool.acquire(100_000).slab is not place
    del part
    assert pool.acquire(100_000).slab is place


def test_a_retired_slab_is_dropped_with_its_last_block_and_never_lent(pool, maker):
    first, second = pool.acquire(300), pool.acquire(300)
    slab = first.slab
    assert second.slab is slab
    slab.retired = True
    third = pool.acquire(300)
    assert third.slab is not slab
    del first
    pool.acquire(300)
    assert maker.dropped == []
    del second
    pool.acquire(300)
    assert maker.dropped == [slab]
    assert slab.dropped


def test_memory_beyond_the_bound_goes_back_largest_first(maker):
    pool = Pool(maker.make, maker.dropped.append, free_bytes_max=3 << 20)
    blocks = [pool.acquire(size << 20) for size in (1, 2, 4)]
    large = blocks[2].slab
    del blocks
    pool.acquire(100)
    assert maker.dropped == [large]
    assert pool.census()["bytes"] == (3 << 20) + 65536


def test_a_closed_pool_forgets_its_slabs_but_leaves_arrays_their_memory(pool, maker):
    array = pool.acquire(64).array()
    array[:] = 7
    pool.close()
    assert [slab.dropped for slab in maker.dropped] == [True]
    assert (array == 7).all()
    with pytest.raises(ValueError, match="closed"):
        pool.acquire(1)


def test_a_failing_maker_leaves_the_pool_as_it_was(maker):
    def fail(_):
        raise OSError("no room")

    pool = Pool(fail, maker.dropped.append)
    with pytest.raises(OSError, match="no room"):
        pool.acquire(1)
    assert pool.census() == {"slabs": 0, "bytes": 0, "lent": 0}


def test_threads_get_blocks_of_their_own(pool):
    clashes = []

    def work(mark: int):
        for size in range(1, 400):
            block = pool.acquire(size * 7)
            array = block.array()
            array[:] = mark
            if (array != mark).any():
                clashes.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    gc.collect()
    assert pool.census()["lent"] == 0


def test_a_forked_child_gets_no_memory_of_its_parent(pool, maker):
    kept = pool.acquire(300)
    del_me = pool.acquire(300)
    child = os.fork()
    if child == 0:
        try:
            theirs = kept.slab
            kept = del_me = None
            mine = pool.acquire(300)
            os._exit(0 if mine.slab is not theirs and maker.dropped == [] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert del_me is not None
    assert pool.census()["lent"] == 2
