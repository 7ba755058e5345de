"""Does a client that misuses memory it was lent harm anybody but itself?

As in `test_sessions.py` three well-behaved clients watch, and nothing may be left behind.
"""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import struct
import threading

import numpy as np
import pytest
from clients import Given, Refused, RequestedOutput, http_call, refuses
from server_setup import DELAY_MS, RESIDENT_SLACK, SESSION_BYTES_MAX
from meanwhile import Delay, again_if_too_late
from region_faults import LIES, PAGE
from packets import F_ADD_SEALS, SEAL_FUTURE_WRITE, SEAL_GROW, SEAL_SEAL, SEAL_SHRINK, SEAL_WRITE, open_session, welcomed
from passages import SIZE, through
from witness import any_client, comes_to, falls_to, mapped_leases, resident, torn, with_each_protocol

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")

FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_COLLAPSE, FALLOC_ZERO, FALLOC_INSERT = 1, 2, 8, 16, 32
LIBC = ctypes.CDLL(None, use_errno=True)
# At least so long is kept what was returned.
IDLE_MS = 1900


@pytest.fixture
def owner(victim):
    """The session whose memory it is about."""
    with open_session(victim.session) as found:
        yield found


@pytest.fixture
def client(request: pytest.FixtureRequest, victim, owner):
    """Who asks: the owner, or somebody to whom it told the name."""
    protocol = getattr(request, "param", "session")
    if protocol == "session":
        yield owner
        return
    with any_client(protocol, victim) as found:
        yield found


def fallocate(descriptor: int, mode: int, offset: int, byte_size: int) -> bool:
    return LIBC.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(byte_size)) == 0


@contextlib.contextmanager
def all_the_time(act):
    """Does `act` again and again, on a thread of its own, while the block runs."""
    ended = threading.Event()

    def again():
        while not ended.is_set():
            act()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ---------------------------------------------------------------------------------------------- size and seals


def test_a_lease_keeps_its_size_and_its_seals(client, owner):
    content = random.Random(1).randbytes(SIZE)
    lease, target = owner.borrow(SIZE, content), owner.borrow(SIZE)
    again = os.open(f"/proc/self/fd/{lease.descriptor}", os.O_RDWR)
    try:
        for one in (lease.descriptor, again):
            for size in (0, PAGE, lease.byte_size - 1, lease.byte_size + 1, 1 << 40):
                with pytest.raises(PermissionError):
                    os.ftruncate(one, size)
            for mode in (0, FALLOC_ZERO):
                assert not fallocate(one, mode, lease.byte_size, PAGE), "it would grow"
            for mode in (FALLOC_COLLAPSE, FALLOC_INSERT):
                assert not fallocate(one, mode, 0, PAGE)
            for seal in (SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE):
                with pytest.raises(PermissionError):
                    fcntl.fcntl(one, F_ADD_SEALS, seal)
            with pytest.raises(OSError):
                os.pwrite(one, b"x", lease.byte_size)
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{lease.descriptor}", os.O_RDWR | os.O_TRUNC)
        assert os.fstat(lease.descriptor).st_size == lease.byte_size
    finally:
        os.close(again)
    through(client, lease, target)
    assert target.read(SIZE) == content


def test_a_lease_is_no_program(owner):
    """The file cannot be run, whoever has its descriptor."""
    lease = owner.borrow(PAGE, b"#!/bin/true\n")
    with pytest.raises(PermissionError):
        os.execve(lease.descriptor, ["lease"], {})
    with pytest.raises(PermissionError):
        os.fchmod(lease.descriptor, 0o700)


# ---------------------------------------------------------------------------------------------- holes


@pytest.mark.parametrize("how", ["fallocate", "madvise"])
def test_holes_in_leases_are_zeros(client, owner, how):
    word = struct.pack("<f", 2.5)
    source, target = owner.borrow(SIZE), owner.borrow(SIZE)

    def punch():
        for one in (source, target):
            if how == "fallocate":
                assert fallocate(one.descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, PAGE, SIZE // 2)
            else:
                one.map.madvise(mmap.MADV_REMOVE, PAGE, SIZE // 2)
        source.write(word * (SIZE // 4))

    punch()
    with all_the_time(punch):
        for _ in range(100):
            through(client, source, target)
            assert set(np.frombuffer(target.read(SIZE), np.float32).tolist()) <= torn(0.0, 2.5)


@with_each_protocol
@again_if_too_late
def test_leases_that_were_punched_out_while_models_run(victim, client, owner):
    """The model finds zeros and writes to fresh pages: nobody faults."""
    source, target = owner.borrow(SIZE, b"\x11" * SIZE), owner.borrow(SIZE)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(DELAY_MS)
        running = pool.submit(through, client, source, target, SIZE, "delayed")
        delay.wait_for_requests(victim, "delayed")
        for one in (source, target):
            assert fallocate(one.descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, SIZE)
        delay.must_last()
        running.result()
    assert target.read(SIZE) == bytes(SIZE)


# ---------------------------------------------------------------------------------------------- scribbling


def test_scribbling_on_leases_changes_only_the_scribblers_result(client, owner):
    lease, chance = owner.borrow(SIZE), random.Random(2)

    def scribble():
        # No number whose double overflows: that would be the model's own trouble.
        lease.write(bytes([chance.randrange(64)]) * (SIZE // 4), chance.randrange(4) * (SIZE // 4))

    with all_the_time(scribble):
        for _ in range(50):
            through(client, lease, lease)
            inputs = [Given(f"INPUT{n}", "INT32", [1, 16], region=(lease.name, 64, n * 64)) for n in range(2)]
            client.infer("simple", inputs, [RequestedOutput("OUTPUT0", (lease.name, 64, 128)), RequestedOutput("OUTPUT1")])
        through(client, lease, lease, model="delayed")


@pytest.mark.parametrize("length", LIES)
def test_a_string_in_a_lease_that_claims_more_than_there_is(client, owner, length):
    lease = owner.borrow(PAGE, struct.pack("<I", length) + b"abcd")
    for _ in range(20):
        with pytest.raises(Refused) as caught:
            client.infer("identity_bytes", [Given("INPUT0", "BYTES", [1], region=(lease.name, 8, 0))])
        assert f"expecting string of length {length} but only 4 bytes available" in caught.value.text


def test_string_lengths_in_a_lease_that_change_all_the_time(client, owner):
    """An answer is right, refused, or strings that lie within the lease; never a byte from elsewhere."""
    count, chance = 64, random.Random(3)
    lease = owner.borrow(PAGE, (struct.pack("<I", 4) + b"abcd") * count)

    def lie():
        at = 8 * chance.randrange(count)
        lease.write(struct.pack("<I", chance.choice([0, 3, 5, 12, *LIES])), at)
        lease.write(struct.pack("<I", 4), at)

    with all_the_time(lie):
        for _ in range(300):
            with contextlib.suppress(Refused):
                given = Given("INPUT0", "BYTES", [count], region=(lease.name, 8 * count, 0))
                raw = client.infer("identity_bytes", [given]).outputs["OUTPUT0"].raw
                assert len(raw) == 8 * count and set(raw[4::8]) <= set(b"abcd")


def test_windows_that_do_not_exist(client, owner):
    lease = owner.borrow(PAGE)
    windows = [(4, PAGE), (PAGE + 4, 0), (4, 2**63 - 8), (2**63 - 8, 4), (8, PAGE - 4)]
    for byte_size, offset in windows:
        given = Given("INPUT0", "FP32", [byte_size // 4], region=(lease.name, byte_size, offset))
        with refuses("INVALID_ARG", "") if byte_size < 2**60 else pytest.raises(Refused):
            client.infer("identity_fp32", [given])
        with pytest.raises(Refused):
            through_window(client, lease, byte_size, offset)


def through_window(client, lease, byte_size: int, offset: int) -> None:
    given = Given("INPUT0", "FP32", [1], region=(lease.name, 4, 0))
    client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", (lease.name, byte_size, offset))])


# ---------------------------------------------------------------------------------------------- after the end


def test_memory_that_is_no_lease_any_more(victim, owner):
    """Who keeps its mappings, of returned leases and beyond the end of the session, writes to nobody."""
    path = victim.session
    raw = welcomed(path)
    kept = []
    for number in range(8):
        raw.call(number + 2, borrow={"byte_size": SIZE})
        message, (descriptor,) = raw.receive()
        kept.append((message.lease.name, descriptor, mmap.mmap(descriptor, SIZE)))
    raw.call(20, returned=[name for name, _, _ in kept[::2]])
    assert raw.answer().WhichOneof("answer") == "done"
    raw.close()

    def scribble():
        for _, descriptor, memory in kept:
            memory[:] = b"\xee" * SIZE
            fallocate(descriptor, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 0, SIZE)

    with all_the_time(scribble):
        for _ in range(20):
            lease, target = owner.borrow(SIZE), owner.borrow(SIZE)
            content = random.Random(4).randbytes(SIZE)
            lease.write(content)
            through(owner, lease, target)
            assert target.read(SIZE) == content
            owner.give_back(lease)
            owner.give_back(target)
    for _, descriptor, memory in kept:
        memory.close()
        os.close(descriptor)


def metric(victim, name: str) -> int:
    text = http_call(victim.metrics, "GET", "/metrics").body.decode()
    return sum(int(float(line.split()[-1])) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))


@again_if_too_late
def test_idle_leases_go_back_to_the_system(victim, baseline, owner):
    """What was returned is kept for a few seconds for the session's next request, and no longer."""
    leases = [owner.borrow(SIZE, b"\xdd" * SIZE) for _ in range(SESSION_BYTES_MAX // SIZE)]
    names = {lease.name for lease in leases}
    full = resident(victim.pid)
    for lease, target in zip(leases, leases[1:] + leases[:1]):
        # Memory counts for who touches it: here for the server as well.
        through(owner, lease, target)
    assert resident(victim.pid) >= full + SESSION_BYTES_MAX // 2
    idle = Delay(IDLE_MS)
    for lease in leases:
        owner.give_back(lease)
    kept = owner.used().leases
    if kept != len(leases):
        idle.must_last()
    assert kept == len(leases)
    comes_to(lambda: owner.used().leases, 0)
    falls_to(lambda: resident(victim.pid), baseline.resident + 2 * RESIDENT_SLACK)
    assert names <= set(owner.forgotten)
    for lease in leases:
        assert os.fstat(lease.descriptor).st_blocks == 0, "the pages are gone, although they are mapped here"
        assert lease.read(PAGE) == bytes(PAGE)
    assert mapped_leases(victim.pid) <= 4
