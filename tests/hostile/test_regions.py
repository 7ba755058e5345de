"""Does a client that misuses its own shared memory harm anybody but itself?

During each test three well-behaved clients, one per protocol, check every byte of every answer; after it the server has
the descriptors, mappings and memory it had before, and `/dev/shm` holds none of the test's objects.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import socket
import struct
import time

import graphs
import make_models
import region_faults
import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, open_client, refuses
from server_setup import DELAY_MS, onnxruntime_library
from meanwhile import Delay, again_if_too_late
from region_faults import LIES, PAGE, Meanwhile
from meters import metric
from passages import SIZE, check_lost, lost, through
from regions import SHM, Region, fresh_name
from witness import MADE, any_client, comes_to, lent, mapped_objects, mappings, times, with_each_protocol, witnesses

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")

REGISTRATIONS = 10_000
LOST = 1000
REGIONS_PER_OWNER_MAX = 12_288
LOST_IN_A_SESSION = 60


# ---------------------------------------------------------------------------------------------- shrinking and growing


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("left", region_faults.SHRUNK)
def test_a_region_that_shrank_before_the_request(client, side, left):
    region_faults.shrink_and_register_again(client, through, side, left, is_known=False)


def test_a_region_that_shrank_within_its_last_page_ends_in_zeros(client):
    region_faults.shrink_within_the_last_page(client, through)


@with_each_protocol
@pytest.mark.parametrize("side", ["input", "output"])
@again_if_too_late
def test_a_region_that_shrinks_while_models_run(victim, client, side):
    content = random.Random(2).randbytes(SIZE)
    with lent(client, SIZE, content) as bad, lent(client, SIZE, content) as good, lent(client, SIZE) as apart:
        source, target = (bad, good) if side == "input" else (good, bad)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            delay = Delay(DELAY_MS)
            running = [pool.submit(through, client, source, target, SIZE, "delayed") for _ in range(2)]
            other = pool.submit(through, client, good, apart, SIZE, "delayed")
            delay.wait_for_requests(victim, "delayed", 3)
            os.truncate(bad.path, 0)
            delay.must_last()
            for one in running:
                check_lost(one.exception(), bad, "has 0 now (touched at offset ")
            other.result()
        if side == "output":
            assert apart.read(SIZE) == content


def test_a_region_that_shrinks_and_grows_all_the_time(client):
    region_faults.shrink_and_grow_all_the_time(client, through)


def test_a_region_that_grows_stays_what_it_was(client):
    region_faults.grow(client, through)
    with lent(client, SIZE) as made:
        os.truncate(made.path, 8 * SIZE)
        with refuses("INVALID_ARG", f"Invalid offset for shared memory region: '{made.name}'"):
            client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(made.name, 4, SIZE))])


@with_each_protocol
def test_a_thousand_lost_regions_cost_no_more_than_whole_ones(victim, client):
    before = mappings(victim.pid)
    count = LOST_IN_A_SESSION if client.protocol == "session" else LOST
    with contextlib.ExitStack() as held:
        made = [held.enter_context(lent(client, 4 * PAGE)) for _ in range(count)]
        for one in made:
            os.truncate(one.path, 0)
            with refuses("INVALID_ARG", lost(one, "has 0 now (touched at offset ")):
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [PAGE], region=(one.name, 4 * PAGE, 0))])
        # The two that remain are the witnesses'. Lost ones hold zeros of the server's own, not one mapping more than before.
        comes_to(lambda: mapped_objects(victim.pid), 2)
        assert mappings(victim.pid) <= before + count + 50


# ---------------------------------------------------------------------------------------------- inside the engines

BIG = 16 << 20


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def engine(request: pytest.FixtureRequest, launcher):
    """A server whose models run on one of the two engines; `sums` is large enough for all of an engine's threads."""
    if launcher.oracle:
        pytest.skip("a client that truncates its region kills 2.51 (SIGBUS)")
    library = "none" if request.param == "embedded" else onnxruntime_library()
    repository = launcher.copy_of(f"hostile_{request.param}", "identity_fp32", "simple")
    make_models.put(repository, "sums", graphs.add_sub("FP32", ["batch", "n"]))
    name = f"hostile_{request.param}"
    with launcher.running(name, f"--onnxruntime-library={library}", repository=repository) as found:
        yield found


@pytest.mark.parametrize("bad_side", ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"])
def test_regions_that_shrink_inside_an_engine(engine, bad_side):
    chance = random.Random(6)
    left, right = (np.arange(BIG // 4, dtype=np.float32) % modulus for modulus in (251, 509))
    where = ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"]
    lost_count = 0
    with witnesses(engine), open_client("grpc", engine) as client, contextlib.ExitStack() as held:
        made = {side: held.enter_context(lent(client, BIG)) for side in where}
        bad = made[bad_side]
        given = [Given(side, "FP32", [1, BIG // 4], region=(made[side].name, BIG, 0)) for side in where[:2]]
        outputs = [RequestedOutput(side, (made[side].name, BIG, 0)) for side in where[2:]]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for _ in times(15, lambda: lost_count):
                made["INPUT0"].write(left.tobytes())
                made["INPUT1"].write(right.tobytes())
                running = pool.submit(client.infer, "sums", given, outputs)
                time.sleep(chance.uniform(0, 0.03))
                os.truncate(bad.path, chance.choice([0, BIG // 2]))
                if running.exception():
                    lost_count += 1
                    check_lost(running.exception(), bad, "has ")
                else:
                    for side, sums in (("OUTPUT0", left + right), ("OUTPUT1", left - right)):
                        # An output that shrank after the answer is the client's own loss.
                        assert side == bad_side or made[side].read(BIG) == sums.tobytes()
                os.truncate(bad.path, BIG)
                client.unregister("system", bad.name)
                client.register_system(bad.name, bad.key, BIG)
    assert lost_count > 0
    assert engine.process.poll() is None


# ---------------------------------------------------------------------------------------------- holes


def test_a_hole_is_zeros_and_harms_nothing(client):
    region_faults.punch(client, through, is_known=False)


def test_holes_that_appear_all_the_time(client):
    region_faults.punch_all_the_time(client, through, 200)


# ---------------------------------------------------------------------------------------------- keys


def test_a_key_that_names_another_object_later(client):
    region_faults.give_the_key_to_another_object(client, through)


@pytest.mark.parametrize(("anew", "says"), region_faults.KEYS_AFTERWARDS)
def test_a_key_that_was_removed_from_a_region_that_shrank(client, anew, says):
    region_faults.shrink_and_remove_the_key(client, through, anew, says, is_known=False)


def make_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


STRANGERS = [
    ("a FIFO", os.mkfifo),
    ("a directory", os.mkdir),
    ("a symbolic link", lambda path: os.symlink("/etc/passwd", path)),
    ("a symbolic link", lambda path: os.symlink("/dev/zero", path)),
    ("a socket", make_socket),
]


@pytest.mark.parametrize(("species", "make"), STRANGERS)
def test_a_key_that_names_no_shared_memory_object(client, species, make):
    path = SHM / f"nerite_test_{fresh_name()}"
    MADE.add(path)
    make(path)
    try:
        for _ in range(20):
            with pytest.raises(Refused) as caught:
                client.register_system(fresh_name(), f"/{path.name}", 64)
            assert f"it is {species}, not a shared memory object" in caught.value.text
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_an_object_that_is_huge_on_paper(victim, client):
    """Ten times the memory as address space, without a page of memory; more than a server hands out is refused with the bound."""
    huge = 10 * metric(victim, "nv_cpu_memory_total_bytes")
    with lent(client, PAGE) as made:
        name = fresh_name()
        os.truncate(made.path, huge)
        client.register_system(name, made.key, huge)
        given = Given("INPUT0", "FP32", [1], region=(name, 4, huge - 4))
        assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == bytes(4)
        os.truncate(made.path, 1 << 62)
        with refuses("INVALID_ARG", f"failed to register shared memory region '{name}x': unable to process address space"):
            client.register_system(f"{name}x", made.key, 1 << 62)
        client.unregister("system", name)
        os.truncate(made.path, PAGE)


# ---------------------------------------------------------------------------------------------- scribbling


def test_scribbling_during_inference_changes_only_the_scribblers_result(client):
    chance = random.Random(4)
    with lent(client, SIZE) as made:

        def scribble():
            # No number whose double overflows: that would be the model's own trouble.
            made.write(bytes([chance.randrange(64)]) * (SIZE // 4), chance.randrange(4) * (SIZE // 4))

        with Meanwhile(scribble):
            for _ in range(50):
                through(client, made, made)
                inputs = [Given(f"INPUT{n}", "INT32", [1, 16], region=(made.name, 64, n * 64)) for n in range(2)]
                client.infer("simple", inputs, [RequestedOutput("OUTPUT0", (made.name, 64, 128)), RequestedOutput("OUTPUT1")])
            through(client, made, made, model="delayed")


@again_if_too_late
def test_what_is_written_after_sending_is_what_the_model_reads(victim, client):
    """No copy was made on the way: the model, which waits before it reads, sees what was written meanwhile."""
    early, late = b"\x66" * SIZE, b"\x77" * SIZE
    with lent(client, SIZE, early) as made, lent(client, SIZE) as target:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            delay = Delay(DELAY_MS)
            running = pool.submit(through, client, made, target, SIZE, "delayed")
            delay.wait_for_requests(victim, "delayed")
            made.write(late)
            delay.must_last()
            running.result()
        assert target.read(SIZE) == late


# ---------------------------------------------------------------------------------------------- strings


@pytest.mark.parametrize("length", LIES)
def test_a_string_that_claims_more_than_there_is(client, length):
    with lent(client, PAGE, struct.pack("<I", length) + b"abcd") as made:
        for _ in range(20):
            with pytest.raises(Refused) as caught:
                client.infer("identity_bytes", [Given("INPUT0", "BYTES", [1], region=(made.name, 8, 0))])
            assert f"expecting string of length {length} but only 4 bytes available" in caught.value.text


def test_string_lengths_that_change_all_the_time(client):
    """An answer is right, refused, or strings that lie within the region; never a byte from elsewhere."""
    count, chance = 64, random.Random(5)
    with lent(client, PAGE, (struct.pack("<I", 4) + b"abcd") * count) as made:

        def lie():
            at = 8 * chance.randrange(count)
            made.write(struct.pack("<I", chance.choice([0, 3, 5, 12, *LIES])), at)
            made.write(struct.pack("<I", 4), at)

        with Meanwhile(lie):
            for _ in range(300):
                with contextlib.suppress(Refused):
                    given = Given("INPUT0", "BYTES", [count], region=(made.name, 8 * count, 0))
                    raw = client.infer("identity_bytes", [given]).outputs["OUTPUT0"].raw
                    assert len(raw) == 8 * count and set(raw[4::8]) <= set(b"abcd")


def test_strings_in_a_region_that_shrank(client):
    with lent(client, 2 * PAGE, struct.pack("<I", 4) + b"abcd") as made:
        given = [Given("INPUT0", "BYTES", [1], region=(made.name, 8, 0))]
        os.truncate(made.path, 0)
        for _ in range(2):
            with refuses("INVALID_ARG", lost(made, "has 0 now (touched at offset 0)")):
                client.infer("identity_bytes", given)


# ---------------------------------------------------------------------------------------------- many


@with_each_protocol
def test_ten_thousand_registrations_leave_nothing_behind(victim, client):
    # A third of them by each protocol.
    with lent(client, 4 * PAGE, b"\x42" * 16) as made:
        for number in range(REGISTRATIONS // 3):
            name = fresh_name()
            client.register_system(name, made.key, PAGE, PAGE * (number % 4))
            if number % 100 == 0:
                given = Given("INPUT0", "FP32", [4], region=(name, 16, 0))
                raw = client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw
                assert raw == made.read(16, PAGE * (number % 4))
            client.unregister("system", name)
        comes_to(lambda: mapped_objects(victim.pid), 3)


def test_as_many_regions_as_there_may_be(victim):
    """Somebody who registers all that one user may have keeps nobody from being lent memory, nor from using what is there."""
    calls = http.client.HTTPConnection(victim.http)

    def call(name: str, verb: str, document=None) -> tuple[int, str]:
        calls.request("POST", f"/v2/systemsharedmemory/region/{name}/{verb}", json.dumps(document or {}))
        answer = calls.getresponse()
        return answer.status, answer.read().decode()

    made, name, count = Region(PAGE), fresh_name(), 0
    MADE.add(made.path)
    try:
        while (answer := call(f"{name}_{count}", "register", {"key": made.key, "byte_size": PAGE}))[0] == 200:
            count += 1
        assert REGIONS_PER_OWNER_MAX - 10 <= count <= REGIONS_PER_OWNER_MAX
        assert "unable to process address space" in answer[1] and f"at most {REGIONS_PER_OWNER_MAX}" in answer[1]
        with any_client("session", victim) as client, lent(client, PAGE, b"\x01\x02\x03\x04") as own:
            for memory in (own, client.borrow(PAGE, b"\x01\x02\x03\x04")):
                given = Given("INPUT0", "FP32", [1], region=(memory.name, 4, 0))
                assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == b"\x01\x02\x03\x04"
        # All of them lost at once: what the guard puts in their place makes no more mappings of them.
        os.truncate(made.path, 0)
        with open_client("grpc", victim) as client:
            for number in range(0, count, 100):
                with pytest.raises(Refused) as caught:
                    client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(f"{name}_{number}", 4, 0))])
                assert "can no longer be used" in caught.value.text
    finally:
        for number in range(count):
            call(f"{name}_{number}", "unregister")
        made.close()
        calls.close()


def test_losing_regions_again_and_again_leaves_nothing_behind(victim, client):
    """What a request wrote in place of the client's memory goes back, too."""
    size = 16 << 20
    with lent(client, size, np.ones(size // 4, np.float32).tobytes()) as whole:
        for _ in range(20):
            with lent(client, size) as made:
                os.truncate(made.path, 0)
                with refuses("INVALID_ARG", lost(made, "has 0 now (touched at offset ")):
                    through(client, whole, made, size)
