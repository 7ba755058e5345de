#!/usr/bin/env python3
"""What does a process see whose guard meets the loss of memory that it has mapped?

    guarded.py LIBRARY CASE [STEP …]

One case for `test_guard_library.py`, in a process that it may cost its life. It loads the guard as the processes do
that run Python models. Objects are files of `/dev/shm` whose names are gone before they are used, so nothing is left behind.
"""

import ctypes
import errno
import faulthandler
import itertools
import mmap
import os
import resource
import signal
import sys
import tempfile
import threading

import numpy as np

PAGE = mmap.PAGESIZE
MANY = 10_000
AT_ONCE = 8192


class Guard:
    """The library's four functions."""

    def __init__(self, path: str):
        library = ctypes.CDLL(path, use_errno=True)
        self.install = library.nerite_guard_install
        self.map = library.nerite_guard_map
        self.map.restype = ctypes.c_void_p
        self.map.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
        self.unmap = library.nerite_guard_unmap
        self.unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.lost_at = library.nerite_guard_lost_at
        self.lost_at.restype = ctypes.c_ssize_t
        self.lost_at.argtypes = [ctypes.c_void_p]


class Region:
    """An object, and an array on the guarded mapping of it."""

    def __init__(self, guard: Guard, size: int):
        self.guard, self.size = guard, size
        self.fd = object_of(size)
        self.start = guard.map(self.fd, 0, size)
        assert self.start, os.strerror(ctypes.get_errno())
        self.bytes = array_at(self.start, size)

    def resize(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def lost_at(self) -> int:
        return self.guard.lost_at(self.start)

    def unmap(self) -> None:
        self.bytes = None
        assert self.guard.unmap(self.start, self.size) == 0


def object_of(size: int) -> int:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="nerite-guarded-") as file:
        file.truncate(size)
        return os.dup(file.fileno())


def array_at(start: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(start), np.uint8)


def mappings() -> int:
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


def reads(guard: Guard) -> None:
    region, other = Region(guard, 8 * PAGE), Region(guard, PAGE)
    region.bytes[:] = 7
    other.bytes[:] = 9
    assert region.lost_at() == -1
    region.resize(PAGE)
    assert region.bytes[5 * PAGE + 3] == 0
    assert region.lost_at() == 5 * PAGE + 3
    # Each byte that is read from now on is a zero, those that the object still has included; nobody believes them.
    assert region.bytes.sum() == 0
    assert region.lost_at() == 5 * PAGE + 3
    assert (other.lost_at(), other.bytes.sum()) == (-1, 9 * PAGE)


def writes(guard: Guard) -> None:
    region = Region(guard, 4 << 20)
    region.resize(0)
    region.bytes[:] = 1
    assert region.bytes.sum() == 4 << 20
    assert region.lost_at() >= 0
    assert os.fstat(region.fd).st_size == 0


def floats(guard: Guard) -> None:
    """Arithmetic over both, as a model does it."""
    one, other = Region(guard, 1 << 20), Region(guard, 1 << 20)
    left, right = one.bytes.view(np.float32), other.bytes.view(np.float32)
    left[:] = 1.5
    right[:] = 2.0
    one.resize(512 << 10)
    np.multiply(left, right, out=right)
    assert one.lost_at() >= 512 << 10
    assert other.lost_at() == -1
    # The first half was computed before the fault.
    assert right[0] == 3.0 and right[-1] == 0.0


def within_a_page(guard: Guard) -> None:
    region = Region(guard, 4 * PAGE)
    region.bytes[:] = 7
    region.resize(PAGE + 100)
    # The rest of the last page is the object's still, and zeros: the client's own doing.
    assert region.bytes[: PAGE + 100].min() == 7
    assert region.bytes[PAGE + 100 : 2 * PAGE].max() == 0
    assert region.lost_at() == -1
    assert region.bytes[2 * PAGE] == 0
    assert region.lost_at() == 2 * PAGE


def regrown(guard: Guard) -> None:
    region = Region(guard, 4 * PAGE)
    region.bytes[:] = 7
    region.resize(0)
    region.resize(4 * PAGE)
    # Nobody looked meanwhile: the object is there, and empty.
    assert (region.bytes.sum(), region.lost_at()) == (0, -1)
    region.resize(0)
    assert region.bytes[0] == 0
    region.resize(4 * PAGE)
    os.pwrite(region.fd, b"x" * PAGE, 0)
    assert (region.bytes.sum(), region.lost_at()) == (0, 0)


def punched(guard: Guard) -> None:
    region = Region(guard, 4 * PAGE)
    region.bytes[:] = 7
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 0x01 | 0x02
    offset, length = ctypes.c_long(PAGE), ctypes.c_long(PAGE)
    assert libc.fallocate(region.fd, keep_size_and_punch, offset, length) == 0, os.strerror(ctypes.get_errno())
    assert (region.bytes.sum(), region.lost_at()) == (7 * 3 * PAGE, -1)


def threads(guard: Guard) -> None:
    """Copies without the interpreter's lock, both ways, while the object goes and comes."""
    size, rounds = 8 << 20, 20
    for round in range(rounds):
        region = Region(guard, size)
        inside = threading.Barrier(5)

        def work(writing: bool, region=region, inside=inside):
            own = np.ones(size, np.uint8)
            inside.wait()
            for _ in range(8):
                np.copyto(*((region.bytes, own) if writing else (own, region.bytes)))

        workers = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(4)]
        for worker in workers:
            worker.start()
        inside.wait()
        region.resize(PAGE * round)
        if round % 2:
            region.resize(size)
        for worker in workers:
            worker.join()
        if round % 2 == 0:
            assert region.bytes.sum() >= 0 and region.lost_at() >= PAGE * round, region.lost_at()
        region.unmap()
        os.close(region.fd)


def forked(guard: Guard) -> None:
    region = Region(guard, 4 * PAGE)
    region.resize(0)
    child = os.fork()
    if child == 0:
        os._exit(0 if region.bytes[PAGE] == 0 and region.lost_at() == PAGE else 1)
    assert os.waitpid(child, 0)[1] == 0
    # What another process lost is not lost here before it is touched.
    assert region.lost_at() == -1


def many(guard: Guard) -> None:
    fd = object_of(PAGE)
    descriptors = len(os.listdir("/proc/self/fd"))
    starts = [guard.map(fd, 0, PAGE) for _ in range(AT_ONCE)]
    assert all(starts)
    for start in starts:
        assert guard.unmap(start, PAGE) == 0
    before, resident = mappings(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(MANY):
        start = guard.map(fd, 0, PAGE)
        assert guard.lost_at(start) == -1
        assert guard.unmap(start, PAGE) == 0
    assert mappings() <= before + 2
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 1024
    assert all(guard.map(fd, 0, PAGE) for _ in range(AT_ONCE))


def refused(guard: Guard) -> None:
    fd = object_of(PAGE)
    for arguments, expect in [((-1, 0, PAGE), errno.EBADF), ((fd, 0, 0), errno.EINVAL), ((fd, 1, PAGE), errno.EINVAL)]:
        assert guard.map(*arguments) is None
        assert ctypes.get_errno() == expect, arguments
    start = guard.map(fd, 0, PAGE)
    for arguments in [(None, PAGE), (start, 0), (start, 2 * PAGE), (start + PAGE, PAGE), (start + 1, PAGE)]:
        assert guard.unmap(*arguments) == errno.EINVAL, arguments
    assert [guard.unmap(start, PAGE), guard.unmap(start, PAGE)] == [0, errno.EINVAL]
    assert [guard.lost_at(start), guard.lost_at(None)] == [-1, -1]


def unwatched(_: Guard) -> None:
    """Ends the process: a mapping that is none of the guard's."""
    fd = object_of(PAGE)
    memory = mmap.mmap(fd, PAGE)
    os.ftruncate(fd, 0)
    memory[0]


def where_one_was(guard: Guard) -> None:
    """Ends the process: the same addresses, after they were given back."""
    region = Region(guard, PAGE)
    start = region.start
    region.unmap()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fixed_noreplace = 0x100000
    found = libc.mmap(start, PAGE, mmap.PROT_READ, mmap.MAP_SHARED | fixed_noreplace, region.fd, 0)
    assert found == start, os.strerror(ctypes.get_errno())
    region.resize(0)
    array_at(start, PAGE).sum()


def enabled_late(guard: Guard) -> None:
    """Ends the process: another handler is first, and nobody has put the guard before it again."""
    region = Region(guard, PAGE)
    faulthandler.enable()
    region.resize(0)
    region.bytes.sum()


def enabled_late_and_installed(guard: Guard) -> None:
    region = Region(guard, PAGE)
    faulthandler.enable()
    assert guard.install() == 0
    region.resize(0)
    assert (region.bytes.sum(), region.lost_at()) == (0, 0)


def sent(_: Guard) -> None:
    """Ends the process, where nobody else handles it."""
    os.kill(os.getpid(), signal.SIGBUS)


def handled_in_python(guard: Guard) -> None:
    """A signal that somebody sent still comes to the model's own handler, set before the guard or after it."""
    seen = []
    signal.signal(signal.SIGBUS, lambda *_: seen.append(1))
    for _ in range(2):
        assert guard.install() == 0
        os.kill(os.getpid(), signal.SIGBUS)
    assert seen == [1, 1]
    reads(guard)


def toggled(guard: Guard) -> None:
    """Who sets handlers for ever is told so, and not left without a guard in silence."""
    for times in itertools.count(1):
        faulthandler.enable()
        if (failed := guard.install()) != 0:
            break
        faulthandler.disable()
    assert (failed, times) == (errno.EBUSY, 16)
    faulthandler.disable()
    # Now the guard is the first again.
    reads(guard)
    unwatched(guard)


def main() -> None:
    library, case, *steps = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard = Guard(library)
    for step in steps or ["install"]:
        if step == "install":
            assert guard.install() == 0
        elif step == "map":
            assert guard.map(object_of(PAGE), 0, PAGE)
        elif step == "faulthandler":
            faulthandler.enable()
    globals()[case](guard)
    print("survived")


if __name__ == "__main__":
    main()
