"""Does a client that shrinks the memory that a Python model works on harm anybody but itself?

The model's process has the client's own region mapped. Whatever becomes of the region, that process must live on, and all
other requests be answered to the byte; afterwards the server and its children hold what they held before.
"""

import concurrent.futures
import functools
import os
import random
import time

import region_faults
import numpy as np
import pytest
from clients import refuses
from meanwhile import Delay, again_if_too_late
from region_faults import PAGE
from passages import SIZE, check_lost, lost
from pythons import (
    STEPS,
    WAIT_MS,
    baseline,
    mapped_by_children,
    nobody_else_is_harmed,
    through,
    victim,
)  # some of them are fixtures
from witness import lent, with_each_protocol

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")


# ---------------------------------------------------------------------------------------------- shrinking and growing


@pytest.mark.parametrize("model", ["py_identity", "py_copies"])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", region_faults.SHRUNK)
def test_a_region_that_shrank_before_the_request(client, side, left, model):
    by_model = functools.partial(through, model=model)
    region_faults.shrink_and_register_again(client, by_model, side, left, is_known=True)


@with_each_protocol
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrank_before_the_child_ever_saw_it(client, side):
    content = random.Random(2).randbytes(SIZE)
    with lent(client, SIZE, content) as bad, lent(client, SIZE, content) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        os.truncate(bad.path, 0)
        with refuses("INVALID_ARG", lost(bad, "has 0 now (touched at offset ")):
            through(client, source, target)
        through(client, good, good)


@pytest.mark.parametrize("left", [0, SIZE // 2, SIZE // 2 + 100])
@pytest.mark.parametrize("side", ["input", "output"])
@again_if_too_late
def test_a_region_that_shrinks_while_the_model_reads_it(victim, client, side, left):
    content = random.Random(3).randbytes(SIZE)
    with lent(client, SIZE, content) as bad, lent(client, SIZE, content) as good, lent(client, SIZE) as apart:
        source, target = (bad, good) if side == "input" else (good, bad)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            # The model looks at the last part before the last wait.
            delay = Delay(WAIT_MS * (STEPS - 1) / STEPS)
            running = pool.submit(through, client, source, target, SIZE, "py_slow")
            waiting = pool.submit(through, client, source, target, SIZE, "py_slow")
            other = pool.submit(through, client, good, apart, SIZE, "py_copies")
            delay.until(lambda: mapped_by_children(victim, bad.path.name))
            time.sleep(WAIT_MS / 1000 / STEPS)
            os.truncate(bad.path, left)
            delay.must_last()
            check_lost(running.exception(), bad, f"has {left} now (touched at offset ")
            check_lost(waiting.exception(), bad, f"has {left} now (touched at offset ")
            other.result()
        if side == "output":
            assert apart.read(SIZE) == content
            through(client, good, apart, SIZE, "py_slow")
            assert apart.read(SIZE) == content


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrinks_under_a_model_that_writes_in_place(client, side):
    with lent(client, SIZE, bytes(SIZE)) as bad, lent(client, SIZE, bytes(SIZE)) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        through(client, source, target, model="py_in_place")
        assert target.read(SIZE) == np.ones(SIZE // 4, np.float32).tobytes()
        os.truncate(bad.path, PAGE)
        with refuses("INVALID_ARG", lost(bad, f"has {PAGE} now (touched at offset ")):
            through(client, source, target, model="py_in_place")


@pytest.mark.parametrize("model", ["py_identity", "py_copies", "py_in_place"])
def test_a_region_that_shrinks_and_grows_all_the_time(client, model):
    by_model = functools.partial(through, model=model)
    region_faults.shrink_and_grow_all_the_time(client, by_model, more=float(model == "py_in_place"))


def test_an_output_region_that_shrinks_and_grows_all_the_time(client):
    content = random.Random(4).randbytes(SIZE)
    with lent(client, SIZE, content) as good, lent(client, SIZE) as bad:

        def breathe():
            os.truncate(bad.path, 1000 * PAGE % SIZE)
            os.truncate(bad.path, SIZE)

        region_faults.be_refused_now_and_then(client, bad, breathe, lambda: through(client, good, bad, model="py_copies"))


def test_a_region_that_grows_stays_what_it_was(client):
    region_faults.grow(client, through)


def test_a_region_that_shrank_within_its_last_page_ends_in_zeros(client):
    region_faults.shrink_within_the_last_page(client, through)


def test_losing_regions_again_and_again_leaves_nothing_behind(client):
    size = 16 << 20
    with lent(client, size, np.ones(size // 4, np.float32).tobytes()) as whole:
        for number in range(20):
            with lent(client, size) as made:
                source, target = (whole, made) if number % 2 else (made, whole)
                if number % 4 < 2:
                    through(client, source, target, size)
                os.truncate(made.path, 0)
                with refuses("INVALID_ARG", lost(made, "has 0 now (touched at offset ")):
                    through(client, source, target, size)


# ---------------------------------------------------------------------------------------------- holes and keys


def test_a_hole_is_zeros_and_harms_nothing(client):
    region_faults.punch(client, through, is_known=True)


def test_holes_that_appear_all_the_time(client):
    region_faults.punch_all_the_time(client, functools.partial(through, model="py_copies"), 100)


def test_a_key_that_names_another_object_later(client):
    region_faults.give_the_key_to_another_object(client, through)


@pytest.mark.parametrize(("anew", "says"), region_faults.KEYS_AFTERWARDS)
def test_a_key_that_was_removed_from_a_region_that_shrank(client, anew, says):
    region_faults.shrink_and_remove_the_key(client, through, anew, says, is_known=True)
