"""Does a client that shrinks the memory that a Python model works on harm anybody but itself?

The model's process has the client's own region mapped. Whatever becomes of the region, that process must live on, and all
other requests be answered to the byte; afterwards the server and its children hold what they held before.
"""

import concurrent.futures
import contextlib
import ctypes
import os
import random
import struct
import time

import numpy as np
import pytest
from doors import Refused, refuses
from meanwhile import Delay, again_if_too_late
from passages import SIZE, check_lost, lost
from pythons import (
    STEPS,
    WAIT_MS,
    Meanwhile,
    baseline,
    door,
    mapped_by_children,
    nobody_else_is_harmed,
    through,
    victim,
)  # some of them are fixtures
from witness import lent, times

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")

PAGE = os.sysconf("SC_PAGESIZE")


# ---------------------------------------------------------------------------------------------- shrinking and growing


@pytest.mark.parametrize("model", ["py_identity", "py_copies"])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", [0, PAGE, SIZE // 2 + 100])
def test_a_region_that_shrank_before_the_request(door, side, left, model):
    content = random.Random(1).randbytes(SIZE)
    with lent(door, SIZE, content) as bad, lent(door, SIZE, content) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        # The child has it mapped already.
        through(door, source, target, model=model)
        os.truncate(bad.path, left)
        # The first request finds it out, the others are told.
        for _ in range(3):
            with refuses("INVALID_ARG", lost(bad, f"has {left} now (touched at offset ")):
                through(door, source, target, model=model)
        good.write(content)
        through(door, good, good, model=model)
        assert good.read(SIZE) == content
        os.truncate(bad.path, SIZE)
        bad.write(content)
        with refuses("INVALID_ARG", lost(bad, f"has {SIZE} now, but no memory when it was touched")):
            through(door, source, target, model=model)
        # Nobody has to unregister it first.
        door.register_system(bad.name, bad.key, SIZE)
        through(door, source, target, model=model)
        assert target.read(SIZE) == content


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrank_before_the_child_ever_saw_it(door, side):
    content = random.Random(2).randbytes(SIZE)
    with lent(door, SIZE, content) as bad, lent(door, SIZE, content) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        os.truncate(bad.path, 0)
        with refuses("INVALID_ARG", lost(bad, "has 0 now (touched at offset ")):
            through(door, source, target)
        through(door, good, good)


@pytest.mark.parametrize("left", [0, SIZE // 2, SIZE // 2 + 100])
@pytest.mark.parametrize("side", ["input", "output"])
@again_if_too_late
def test_a_region_that_shrinks_while_the_model_reads_it(victim, door, side, left):
    content = random.Random(3).randbytes(SIZE)
    with lent(door, SIZE, content) as bad, lent(door, SIZE, content) as good, lent(door, SIZE) as apart:
        source, target = (bad, good) if side == "input" else (good, bad)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            # The model looks at the last part before the last wait.
            delay = Delay(WAIT_MS * (STEPS - 1) / STEPS)
            running = pool.submit(through, door, source, target, SIZE, "py_slow")
            waiting = pool.submit(through, door, source, target, SIZE, "py_slow")
            other = pool.submit(through, door, good, apart, SIZE, "py_copies")
            delay.until(lambda: mapped_by_children(victim, bad.path.name))
            time.sleep(WAIT_MS / 1000 / STEPS)
            os.truncate(bad.path, left)
            delay.must_last()
            check_lost(running.exception(), bad, f"has {left} now (touched at offset ")
            check_lost(waiting.exception(), bad, f"has {left} now (touched at offset ")
            other.result()
        if side == "output":
            assert apart.read(SIZE) == content
            through(door, good, apart, SIZE, "py_slow")
            assert apart.read(SIZE) == content


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrinks_under_a_model_that_writes_in_place(door, side):
    with lent(door, SIZE, bytes(SIZE)) as bad, lent(door, SIZE, bytes(SIZE)) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        through(door, source, target, model="py_in_place")
        assert target.read(SIZE) == np.ones(SIZE // 4, np.float32).tobytes()
        os.truncate(bad.path, PAGE)
        with refuses("INVALID_ARG", lost(bad, f"has {PAGE} now (touched at offset ")):
            through(door, source, target, model="py_in_place")


@pytest.mark.parametrize("model", ["py_identity", "py_copies", "py_in_place"])
def test_a_region_that_shrinks_and_grows_all_the_time(door, model):
    """Each answer holds the client's own numbers or zeros, or is refused by the region's name."""
    word, more = struct.pack("<f", 1.5), float(model == "py_in_place")
    with lent(door, SIZE, word * (SIZE // 4)) as bad, lent(door, SIZE) as good:

        def breathe():
            os.truncate(bad.path, 0)
            os.truncate(bad.path, SIZE)
            with contextlib.suppress(ValueError), bad.path.open("r+b") as file:
                file.write(word * (SIZE // 4))

        refused = 0
        with Meanwhile(breathe):
            for _ in times(200, lambda: refused):
                try:
                    through(door, bad, good, model=model)
                    assert set(np.frombuffer(good.read(SIZE), np.float32).tolist()) <= {more, 1.5 + more}
                except Refused as failure:
                    refused += 1
                    check_lost(failure, bad, "")
                    with contextlib.suppress(Refused):
                        door.register_system(bad.name, bad.key, SIZE)
        assert refused > 0


def test_an_output_region_that_shrinks_and_grows_all_the_time(door):
    content = random.Random(4).randbytes(SIZE)
    with lent(door, SIZE, content) as good, lent(door, SIZE) as bad:

        def breathe():
            os.truncate(bad.path, 1000 * PAGE % SIZE)
            os.truncate(bad.path, SIZE)

        refused = 0
        with Meanwhile(breathe):
            for _ in times(200, lambda: refused):
                try:
                    through(door, good, bad, model="py_copies")
                except Refused as failure:
                    refused += 1
                    check_lost(failure, bad, "")
                    with contextlib.suppress(Refused):
                        door.register_system(bad.name, bad.key, SIZE)
        assert refused > 0


def test_a_region_that_grows_stays_what_it_was(door):
    content = random.Random(5).randbytes(SIZE)
    with lent(door, SIZE, content) as made, lent(door, SIZE) as target:
        through(door, made, target)
        os.truncate(made.path, 8 * SIZE)
        through(door, made, target)
        assert target.read(SIZE) == content


def test_a_region_that_shrank_within_its_last_page_ends_in_zeros(door):
    content = b"\x11" * SIZE
    with lent(door, SIZE, content) as made, lent(door, SIZE) as target:
        os.truncate(made.path, SIZE - 100)
        through(door, made, target)
        assert target.read(SIZE) == content[:-100] + bytes(100)


def test_losing_regions_again_and_again_leaves_nothing_behind(door):
    size = 16 << 20
    with lent(door, size, np.ones(size // 4, np.float32).tobytes()) as whole:
        for number in range(20):
            with lent(door, size) as made:
                source, target = (whole, made) if number % 2 else (made, whole)
                if number % 4 < 2:
                    through(door, source, target, size)
                os.truncate(made.path, 0)
                with refuses("INVALID_ARG", lost(made, "has 0 now (touched at offset ")):
                    through(door, source, target, size)


# ---------------------------------------------------------------------------------------------- holes and keys


def punch_hole(path, offset: int, byte_size: int) -> None:
    """fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)"""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDWR)
    try:
        done = libc.fallocate(descriptor, 3, ctypes.c_long(offset), ctypes.c_long(byte_size))
        assert done == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(descriptor)


def test_a_hole_is_zeros_and_harms_nothing(door):
    content = b"\x22" * SIZE
    with lent(door, SIZE, content) as made, lent(door, SIZE, content) as target:
        through(door, made, target)
        punch_hole(made.path, PAGE, PAGE)
        punch_hole(target.path, 0, SIZE)
        through(door, made, target)
        assert target.read(SIZE) == content[:PAGE] + bytes(PAGE) + content[2 * PAGE :]


def test_holes_that_appear_all_the_time(door):
    word = struct.pack("<f", 2.5)
    with lent(door, SIZE, word * (SIZE // 4)) as made, lent(door, SIZE) as target:

        def punch():
            punch_hole(made.path, 0, SIZE)
            punch_hole(target.path, PAGE, SIZE // 2)
            made.write(word * (SIZE // 4))

        with Meanwhile(punch):
            for _ in range(100):
                through(door, made, target, model="py_copies")
                assert set(np.frombuffer(target.read(SIZE), np.float32).tolist()) <= {0.0, 2.5}


def test_a_key_that_names_another_object_later(door):
    old, new = b"\x33" * SIZE, b"\x44" * SIZE
    with lent(door, SIZE, old) as made, lent(door, SIZE) as target:
        made.path.unlink()
        through(door, made, target)
        assert target.read(SIZE) == old
        made.path.write_bytes(new)
        through(door, made, target)
        assert target.read(SIZE) == old, "the registration means the object, not the key"
        door.unregister("system", made.name)
        door.register_system(made.name, made.key, SIZE)
        through(door, made, target)
        assert target.read(SIZE) == new


@pytest.mark.parametrize(("anew", "says"), [(False, "its key is gone now"), (True, "its key leads to another object now")])
def test_a_key_that_was_removed_from_a_region_that_shrank(door, anew, says):
    with lent(door, SIZE) as made, lent(door, SIZE) as target:
        through(door, made, target)
        os.truncate(made.path, 0)
        made.path.unlink()
        if anew:
            made.path.write_bytes(b"\x55" * SIZE)
        with pytest.raises(Refused) as caught:
            through(door, made, target)
        check_lost(caught.value, made, "was cut short or without room (touched at offset ")
        assert says in caught.value.text
