"""What if the guard cannot be loaded into a Python model's process? Then no region is mapped there, and the server copies."""

import os
import random

import pytest
from clients import Given, RequestedOutput, refuses
from passages import SIZE, lost
from pythons import (
    MODELS,
    baseline_of,
    check_left,
    check_no_memory_of_clients,
    everybody,
    in_all,
    processes_of,
    serving,
    through,
)
from test_copies import copied
from witness import MADE, any_client, lent, mapped_objects, with_each_protocol

NO_CTYPES = "import sys\nsys.modules['ctypes'] = sys.modules['_ctypes'] = None\n"


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    """A server whose Python cannot import ctypes."""
    if launcher.oracle:
        pytest.skip("2.51 has no guard")
    folder = tmp_path_factory.mktemp("without_ctypes")
    (folder / "sitecustomize.py").write_text(NO_CTYPES)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        with serving(launcher, "python_unguarded", folder / "socket", MODELS) as found:
            yield found
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def baseline(victim):
    found = baseline_of(victim)
    yield found
    check_left(victim, found)


@pytest.fixture(autouse=True)
def nobody_is_harmed(victim, baseline):
    MADE.clear()
    before = processes_of(victim.pid)
    with everybody(victim):
        yield
    assert processes_of(victim.pid) == before, f"a model's process died:\n{victim.log_text()[-3000:]}"
    check_no_memory_of_clients(victim)


@pytest.mark.parametrize("model", ["py_identity", "py_copies"])
def test_regions_are_copied_and_answers_are_right(victim, client, model):
    content = random.Random(1).randbytes(SIZE)
    with lent(client, SIZE, content) as source, lent(client, SIZE) as target:
        before = sum(copied(victim).values())
        through(client, source, target, model=model)
        assert target.read(SIZE) == content
        assert in_all(mapped_objects, processes_of(victim.pid)) == 0
        assert sum(copied(victim).values()) >= before + 2 * SIZE


@with_each_protocol
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_that_shrank(victim, client, side):
    content = random.Random(2).randbytes(SIZE)
    with lent(client, SIZE, content) as bad, lent(client, SIZE, content) as good:
        source, target = (bad, good) if side == "input" else (good, bad)
        through(client, source, target)
        os.truncate(bad.path, SIZE // 2)
        for _ in range(2):
            with refuses("INVALID_ARG", lost(bad, f"has {SIZE // 2} now (touched at offset ")):
                through(client, source, target)
        good.write(content)
        through(client, good, good)
        os.truncate(bad.path, SIZE)
        bad.write(content)
        client.register_system(bad.name, bad.key, SIZE)
        through(client, source, target)
        assert target.read(SIZE) == content


def test_a_lease_may_be_mapped_since_it_cannot_shrink_but_need_not(victim):
    with any_client("session", victim) as client:
        lease = client.borrow(SIZE, random.Random(3).randbytes(SIZE // 2))
        half = SIZE // 2
        given = Given("INPUT0", "FP32", [half // 4], region=(lease.name, half, 0))
        client.infer("py_identity", [given], [RequestedOutput("OUTPUT0", (lease.name, half, half))])
        assert lease.read(half) == lease.read(half, half)
