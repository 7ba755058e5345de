"""What does a Python model's process read from memory that its client scribbles in, and when does it let go of it?
"""

import concurrent.futures
import contextlib
import os
import random
import signal
import struct
import subprocess
import sys
import time

import pytest
from clients import Given, Refused, RequestedOutput, fp32, refuses
from meanwhile import Delay, again_if_too_late
from region_faults import LIES, PAGE, Meanwhile
from passages import SIZE, lost
from pythons import (
    WAIT_MS,
    baseline,
    mapped_by_children,
    nobody_else_is_harmed,
    processes_of,
    through,
    victim,
)  # some of them are fixtures
from regions import Region
from witness import MADE, PROTOCOLS, any_client, comes_to, lent, with_each_protocol

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")



# ---------------------------------------------------------------------------------------------- scribbling, strings


def test_scribbling_during_inference_changes_only_the_scribblers_result(client):
    chance = random.Random(6)
    with lent(client, SIZE) as made, lent(client, SIZE) as target:

        def scribble():
            made.write(bytes([chance.randrange(256)]) * (SIZE // 4), chance.randrange(4) * (SIZE // 4))

        with Meanwhile(scribble):
            for _ in range(50):
                through(client, made, target, model="py_copies")
                through(client, made, made)
            through(client, made, target, model="py_slow")


@pytest.mark.parametrize("length", LIES)
def test_a_string_that_claims_more_than_there_is(client, length):
    with lent(client, PAGE, struct.pack("<I", length) + b"abcd") as made:
        for _ in range(5):
            with pytest.raises(Refused) as caught:
                client.infer("py_strings", [Given("INPUT0", "BYTES", [1], region=(made.name, 8, 0))])
            assert f"expecting string of length {length} but only 4 bytes available" in caught.value.text


@pytest.mark.parametrize("model", ["py_strings", "py_slow_strings"])
def test_string_lengths_that_change_all_the_time(client, model):
    """An answer is right, refused, or strings that lie within the region; never a byte from elsewhere."""
    count, chance = 64, random.Random(7)
    with lent(client, PAGE, (struct.pack("<I", 4) + b"abcd") * count) as made:

        def lie():
            at = 8 * chance.randrange(count)
            made.write(struct.pack("<I", chance.choice([0, 3, 5, 12, *LIES])), at)
            made.write(struct.pack("<I", 4), at)

        with Meanwhile(lie):
            for _ in range(200 if model == "py_strings" else 3):
                with contextlib.suppress(Refused):
                    given = Given("INPUT0", "BYTES", [count], region=(made.name, 8 * count, 0))
                    raw = client.infer(model, [given]).outputs["OUTPUT0"].raw
                    while raw:
                        (length,) = struct.unpack_from("<I", raw)
                        assert 4 + length <= len(raw)
                        raw = raw[4 + length :]


def test_strings_in_a_region_that_shrank(client):
    word = struct.pack("<I", 4) + b"abcd"
    with lent(client, SIZE, word * (SIZE // 8)) as made:
        given = [Given("INPUT0", "BYTES", [SIZE // 8], region=(made.name, SIZE, 0))]
        with lent(client, SIZE) as target:
            client.infer("py_strings", given, [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))])
            assert target.read(SIZE) == word * (SIZE // 8)
        os.truncate(made.path, SIZE // 2)
        for _ in range(2):
            with refuses("INVALID_ARG", lost(made, f"has {SIZE // 2} now (touched at offset {SIZE // 2})")):
                client.infer("py_strings", given)


# ---------------------------------------------------------------------------------------------- letting go


# Regions of the witnesses who ask a Python model.
WITNESSED = 1


def soon(look, expected) -> None:
    since = time.monotonic()
    comes_to(look, expected)
    print(f"after {1000 * (time.monotonic() - since):.0f} ms")


@with_each_protocol
def test_the_child_lets_go_of_a_region_that_is_unregistered(victim, client):
    with contextlib.closing(Region(SIZE)) as made:
        MADE.add(made.path)
        made.name = f"{made.key[1:]}_{client.protocol}"
        for _ in range(3):
            client.register_system(made.name, made.key, SIZE)
            through(client, made, made)
            assert mapped_by_children(victim, made.path.name) >= 1
            client.unregister("system", made.name)
            soon(lambda: mapped_by_children(victim, made.path.name), 0)


@again_if_too_late
def test_the_child_lets_go_of_a_region_that_is_unregistered_while_it_reads(victim, client):
    content = random.Random(8).randbytes(SIZE)
    with contextlib.closing(Region(SIZE, content)) as made, lent(client, SIZE) as target:
        MADE.add(made.path)
        made.name = f"{made.key[1:]}_{client.protocol}"
        client.register_system(made.name, made.key, SIZE)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            delay = Delay(WAIT_MS)
            running = pool.submit(through, client, made, target, SIZE, "py_slow")
            try:
                delay.until(lambda: mapped_by_children(victim, made.path.name))
            finally:
                client.unregister("system", made.name)
            delay.must_last()
            running.result()
        assert target.read(SIZE) == content
        soon(lambda: mapped_by_children(victim, made.path.name), 0)


BIG = 3 << 20


def leases_of_that_size(victim) -> int:
    """Mappings in the children of leases as large as only these tests borrow."""
    found = 0
    for child in processes_of(victim.pid):
        with open(f"/proc/{child}/maps", encoding="utf-8") as maps:
            for line in maps:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                found += "memfd:nerite-lease" in line and end - start >= BIG
    return found


@pytest.mark.parametrize("reader", PROTOCOLS)
@pytest.mark.parametrize("end", ["returned", "closed"])
def test_the_child_lets_go_of_a_lease(victim, reader, end):
    # What went between server and child in other tests looks alike, and is kept a few seconds for the next request.
    comes_to(lambda: leases_of_that_size(victim), 0)
    with any_client("session", victim) as session, any_client(reader, victim) as client:
        lease = session.borrow(BIG, random.Random(9).randbytes(BIG // 2))
        half = BIG // 2
        given = Given("INPUT0", "FP32", [half // 4], region=(lease.name, half, 0))
        if reader == "session":
            client.close()
            client = session
        client.infer("py_copies", [given], [RequestedOutput("OUTPUT0", (lease.name, half, half))])
        assert lease.read(half) == lease.read(half, half)
        assert leases_of_that_size(victim) == 1
        session.give_back(lease) if end == "returned" else session.close()
        soon(lambda: leases_of_that_size(victim), 0)


CLIENT = """
import sys, time
sys.path[:0] = sys.argv[2:]
import packets
from clients import Given, RequestedOutput
client = packets.SessionClient(sys.argv[1])
lease = client.borrow(BIG)
half = BIG // 2
given = Given("INPUT0", "FP32", [half // 4], region=(lease.name, half, 0))
asked = [RequestedOutput("OUTPUT0", (lease.name, half, half))]
client.infer("py_copies", [given], asked)
print("ready", flush=True)
while True:
    client.infer("py_slow", [given], asked)
"""


def test_the_child_lets_go_when_its_client_is_killed(victim):
    comes_to(lambda: leases_of_that_size(victim), 0)
    command = [sys.executable, "-c", CLIENT.replace("BIG", str(BIG)), str(victim.session), *sys.path]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout.readline().strip() == "ready"
            time.sleep(0.1)
            assert leases_of_that_size(victim) >= 1
            client.send_signal(signal.SIGKILL)
            client.wait()
            soon(lambda: leases_of_that_size(victim), 0)


def test_a_model_that_keeps_its_inputs_for_ever(victim, client):
    """It looks at memory that is not the client's any more: its process lives, and nobody else's request is refused for it."""
    sent = fp32("INPUT0", range(SIZE // 4))
    for forget in range(4):
        with contextlib.closing(Region(SIZE, sent.raw)) as made, lent(client, SIZE) as target:
            MADE.add(made.path)
            made.name = f"{made.key[1:]}_kept"
            client.register_system(made.name, made.key, SIZE)
            through(client, made, target, model="py_keeps")
            os.truncate(made.path, PAGE * forget)
            time.sleep(0.05)
            if forget % 2:
                with refuses("INVALID_ARG", lost(made, f"has {PAGE * forget} now (touched at ")):
                    through(client, made, target, model="py_keeps")
            client.unregister("system", made.name)
            for _ in range(5):
                given = fp32("INPUT0", range(16))
                assert client.infer("py_keeps", [given]).outputs["OUTPUT0"].raw == given.raw
    client.infer("py_keeps", [fp32("INPUT0", [-1])])
    soon(lambda: mapped_by_children(victim, "nerite_test_"), WITNESSED)


def test_memory_that_an_idle_model_lets_go_of_goes_back(victim, client):
    """Its server need not wait for another request, which may never come."""
    if client.protocol == "session":
        pytest.skip("a session's messages are small")
    for _ in range(2):
        client.infer("py_keeps", [fp32("INPUT0", range(BIG // 4))])
    assert leases_of_that_size(victim) >= 2
    time.sleep(5)
    assert leases_of_that_size(victim) >= 2, "what a model keeps stays"
    client.infer("py_keeps", [fp32("INPUT0", [-2])])
    soon(lambda: leases_of_that_size(victim), 0)


def test_a_thousand_registrations_leave_nothing_behind(victim, client):
    with contextlib.closing(Region(4 * PAGE, b"\x42" * 16)) as made:
        MADE.add(made.path)
        for number in range(1000):
            name = f"{made.key[1:]}_{number}"
            client.register_system(name, made.key, PAGE, PAGE * (number % 4))
            given = Given("INPUT0", "FP32", [4], region=(name, 16, 0))
            raw = client.infer("py_identity", [given]).outputs["OUTPUT0"].raw
            assert raw == made.read(16, PAGE * (number % 4))
            client.unregister("system", name)
        soon(lambda: mapped_by_children(victim, made.path.name), 0)


def test_many_regions_at_once(client):
    """More than travel in one packet."""
    with contextlib.ExitStack() as held:
        made = [held.enter_context(lent(client, PAGE, struct.pack("<f", number))) for number in range(60)]
        for one in made:
            given = Given("INPUT0", "FP32", [1], region=(one.name, 4, 0))
            assert client.infer("py_identity", [given]).outputs["OUTPUT0"].raw == one.read(4)
        for one in made[::2]:
            os.truncate(one.path, 0)
        for number, one in enumerate(made):
            given = Given("INPUT0", "FP32", [1], region=(one.name, 4, 0))
            with contextlib.nullcontext() if number % 2 else refuses("INVALID_ARG", lost(one, "has 0 now (touched at ")):
                client.infer("py_identity", [given])


def test_large_outputs_leave_nothing_behind(client):
    """In a body, and in a region; larger than what was guessed, and smaller."""
    with lent(client, 32 << 20) as made:
        for number, size in enumerate([1, 32 << 20, 1 << 10, 16 << 20, 32 << 20, 24 << 20] * 2):
            given = Given("SIZE", "INT64", [1], size.to_bytes(8, "little"))
            inline = number % 2 == 0 and (client.protocol != "session" or size < 1 << 16)
            where = None if inline else [RequestedOutput("MADE", (made.name, size, 0))]
            raw = client.infer("py_large", [given], where).outputs["MADE"].raw
            assert (made.read(size) if where else raw) == bytes([size % 256]) * size
