"""Which thread of a model's process unmaps large memory, and does it let go of all of it?"""

import _thread
import mmap
import os
import threading

import numpy as np
import pytest
from model_server import OBEDIENT, PATIENCE_S, assert_eventually, given, guard_library, obey, read_text, start  # noqa: F401

from nerite.model import unmapping
from nerite.model.memory import _Watched
from nerite.model.unmapping import UNMAPPED_HERE_BYTES_MAX, Mapping, Unmapper

MUCH = 40 << 20
NAME = "unmapping-test"


@pytest.fixture
def file():
    """An object in memory."""
    descriptor = os.memfd_create(NAME)
    os.truncate(descriptor, MUCH)
    yield descriptor
    os.close(descriptor)


def mappings(pid: int | str = "self", name: str = NAME) -> int:
    with open(f"/proc/{pid}/maps") as lines:
        return sum(f"/memfd:{name}" in line for line in lines)


def array_over(mapping: Mapping, unmapper: Unmapper) -> np.ndarray:
    mapping.unmapper = unmapper
    return np.frombuffer(mapping, np.uint8)


def test_large_memory_is_released_in_pieces_on_another_thread(file):
    released = []

    class Noted(Mapping):
        def madvise(self, advice, start, length):
            released.append((_thread.get_ident(), advice, start, length))
            super().madvise(advice, start, length)

    array = array_over(Noted(file, MUCH), Unmapper())
    array[:: 1 << 20] = 1
    part = array[100:]
    del array
    assert mappings() == 1 and not released
    del part
    assert_eventually(mappings, 0)
    assert [one[1:] for one in released] == [
        (mmap.MADV_DONTNEED, at << 20, size << 20) for at, size in ((0, 16), (16, 16), (32, 8))
    ]
    (thread,) = {one[0] for one in released}
    assert thread != _thread.get_ident()
    assert os.pread(file, 1, 1 << 20) == b"\1"


def test_small_memory_is_unmapped_at_once(file):
    array = array_over(Mapping(file, UNMAPPED_HERE_BYTES_MAX), Unmapper())
    assert mappings() == 1
    del array
    assert mappings() == 0


def test_a_region_is_unmapped_on_another_thread_however_small_it_is(file):
    class Noting:
        """As the guard, without its library."""

        def __init__(self):
            self.made, self.threads = mmap.mmap(file, mmap.PAGESIZE), []

        def map(self, *_):
            return np.frombuffer(self.made, np.uint8).__array_interface__["data"][0]

        def unmap(self, start, length):
            self.threads.append((_thread.get_ident(), length))

    guard = Noting()
    array = np.asarray(_Watched(guard, Unmapper(), file, 0, mmap.PAGESIZE))
    assert array[0] == 0 and not guard.threads
    del array
    assert_eventually(lambda: len(guard.threads), 1)
    ((thread, length),) = guard.threads
    assert thread != _thread.get_ident() and length == mmap.PAGESIZE


def test_what_waits_is_unmapped_in_order_by_one_thread_and_on_this_one_if_there_is_none(monkeypatch):
    unmapper, done, go_on = Unmapper(), [], threading.Event()
    unmapper.pass_on(lambda: go_on.wait(PATIENCE_S))
    for number in range(3):
        unmapper.pass_on(lambda number=number: done.append((number, _thread.get_ident())))
    assert not done
    go_on.set()
    assert_eventually(lambda: [number for number, _ in done], [0, 1, 2])
    assert len({thread for _, thread in done}) == 1 and done[0][1] != _thread.get_ident()
    assert_eventually(unmapper._running.locked, False)

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(unmapping._thread, "start_new_thread", refuse)
    for number in range(3, 5):
        unmapper.pass_on(lambda number=number: done.append((number, _thread.get_ident())))
    assert done[3:] == [(3, _thread.get_ident()), (4, _thread.get_ident())]


def test_memory_is_unmapped_if_the_kernel_does_not_release_its_pages(file):
    class Locked(Mapping):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    array = array_over(Locked(file, MUCH), Unmapper())
    del array
    assert_eventually(mappings, 0)


@pytest.mark.parametrize("is_region", [False, True])
def test_a_process_lets_go_of_what_is_forgotten(start, is_region):  # noqa: F811
    descriptor = os.open(guard_library(), os.O_RDONLY)
    try:
        server = start(OBEDIENT, guard=descriptor)
    finally:
        os.close(descriptor)
    memory = server.memory(200 << 20, is_region=is_region)
    one = given(memory, "IN", np.ones(4, np.int32), "INT32")
    assert read_text(server, obey(server, "out = request.inputs()[0].as_numpy().tolist()", [one])) == "[1, 1, 1, 1]"
    pid = int(read_text(server, obey(server, "import os; out = os.getpid()")))
    before = mappings(pid, "test")
    server.send({"forget": [memory.segment]})
    assert_eventually(lambda: mappings(pid, "test"), before - 1)
    assert read_text(server, obey(server, "out = 7")) == "7"
