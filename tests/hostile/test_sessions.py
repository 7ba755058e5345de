"""Does a session client that breaks every rule harm anybody but itself?

Most clients here are raw sockets (`packets.py`). During each test three well-behaved clients check every byte of every
answer; after it the server has the descriptors, mappings and memory it had before.
"""

import concurrent.futures
import array
import contextlib
import os
import random
import socket
import time

import pytest
from clients import Given, GrpcClient, Refused, RequestedOutput, fp32, refuses
from server_setup import DELAY_MS, LEASE_BYTES_MAX, SESSION_BYTES_MAX
from meanwhile import Delay, again_if_too_late
from packets import (
    HELLO,
    PACKET_BYTES_MAX,
    ClientMessage,
    Raw,
    encode,
    open_session,
    peer_pid,
    refuses_descriptors,
    welcomed,
)
from witness import ALL_IS_LENT, PROTOCOLS, SETTLE_S, any_client, comes_to, descriptors, lent

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")

PAGE = os.sysconf("SC_PAGESIZE")
SESSIONS_MAX = 256
LEASES_PER_SESSION_MAX = 1024
DESCRIPTORS_WAITING_MAX = 128
INFERENCES_MAX = 256
# What the witnesses have: one session, two leases of a megabyte or so.
WITNESS_SESSIONS = 1


@pytest.fixture
def path(victim):
    assert peer_pid(victim.session) == victim.pid
    return victim.session


def infer_request(model: str, inputs, outputs=None) -> bytes:
    return GrpcClient.request(None, model, inputs, outputs).SerializeToString()


def one_number() -> Given:
    return fp32("INPUT0", [1.5])


def messages() -> list[bytes]:
    """A packet of each kind, as a client might send it."""
    nothing = "lease-" + 32 * "0"
    inline = infer_request("identity_fp32", [fp32("INPUT0", range(50))])
    placed = infer_request(
        "identity_fp32",
        [Given("INPUT0", "FP32", [4], region=(nothing, 16, 0))],
        [RequestedOutput("OUTPUT0", (nothing, 16, 16))],
    )
    calls = [
        {"hello": HELLO},
        {"borrow": {"byte_size": 5000}},
        {"register_system": {"name": "r", "key": "/nothing", "offset": 0, "byte_size": 4096}},
        {"unregister_system": {"name": "r"}},
        {"system_status": {"name": "r"}},
        {"infer": {"request": inline, "leased_outputs": ["OUTPUT0"]}},
        {"infer": {"request": placed}},
        {"cancel": {"id": 9}},
        {"session_status": {}},
    ]
    return [encode(9, [nothing], **call) for call in calls]


# ---------------------------------------------------------------------------------------------- nonsense


def test_random_bytes(path):
    chance = random.Random(1)
    for _ in range(200):
        with Raw(path) if chance.random() < 0.5 else welcomed(path) as raw:
            while raw.send_anyway(chance.randbytes(chance.choice([1, 2, 9, 100, 4096, 60_000]))):
                pass
            assert raw.ended()


def test_messages_with_changed_bytes(path):
    chance, kinds = random.Random(2), messages()
    for _ in range(300):
        with welcomed(path) as raw:
            for _ in range(8):
                packet = bytearray(chance.choice(kinds))
                for _ in range(chance.randrange(1, 5)):
                    at = chance.randrange(len(packet))
                    match chance.randrange(3):
                        case 0:
                            packet[at] ^= 1 << chance.randrange(8)
                        case 1:
                            del packet[max(at, 1) :]
                        case _:
                            packet.insert(at, chance.randrange(256))
                if not raw.send_anyway(bytes(packet)):
                    break


def test_half_messages(path):
    """Each beginning of each message: a message that is none ends its session, which says so first."""
    ends = 0
    for packet in messages():
        raw = welcomed(path)
        for end in range(1, len(packet)):
            try:
                message = ClientMessage.FromString(packet[:end])
            except Exception:  # noqa: BLE001 - however the library says that it is half
                raw.send(packet[:end])
                while (answer := raw.receive()[0]).id:
                    pass
                assert answer.error.message.startswith("packet not understood"), answer
                assert raw.ended()
                ends += 1
                raw.close()
                raw = welcomed(path)
            else:
                raw.send(packet[:end])
                if message.id and message.WhichOneof("call") is None and not message.returned:
                    assert raw.refusal() == "the server does not know this call"
                    continue
                if message.id:
                    for one in raw.receive()[1]:
                        os.close(one)
        raw.close()
    assert ends > 100


def test_packets_that_are_too_long_or_empty(path):
    for hello in (False, True):
        with welcomed(path) if hello else Raw(path) as raw:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            raw.send(bytes(PACKET_BYTES_MAX + 1))
            assert raw.refusal().startswith(f"a packet has {PACKET_BYTES_MAX + 1} bytes, at most {PACKET_BYTES_MAX}")
            assert raw.ended()
        with welcomed(path) if hello else Raw(path) as raw:
            raw.send(b"")
            assert raw.ended()


def test_sockets_of_another_type(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as one, pytest.raises(OSError):
            one.connect(str(path))


def test_half_closed_sockets(path):
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        for _ in range(20):
            raw = welcomed(path)
            raw.socket.shutdown(how)
            raw.send_anyway(encode(2, borrow={"byte_size": PAGE}))
            raw.close()


# ---------------------------------------------------------------------------------------------- order


def test_calls_before_hello(path):
    for packet in messages()[1:]:
        with Raw(path) as raw:
            raw.send(packet)
            assert raw.refusal() == "the first message of a session is Hello"
            assert raw.ended()


def test_hello_that_is_wrong(path):
    cases = [
        ({"version_min": 2, "version_max": 9}, "the client speaks versions 2 to 9 of the session protocol, this server 1"),
        ({"version_min": 1, "version_max": 0}, "the client speaks versions 1 to 0 of the session protocol, this server 1"),
        (HELLO | {"headers": {str(n): "" for n in range(65)}}, "Hello brings 65 headers, at most 64 are allowed"),
    ]
    for hello, text in cases:
        with Raw(path) as raw:
            raw.call(1, hello=hello)
            assert raw.refusal() == text
            assert raw.ended()
    with welcomed(path) as raw:
        raw.call(2, hello=HELLO)
        assert raw.refusal() == "Hello was said before"
        raw.call(3, session_status={})
        assert raw.answer().session_report.leases == 0


def test_who_says_nothing_is_closed(path):
    quiet = [Raw(path) for _ in range(20)]
    for raw in quiet:
        assert raw.ended()
        raw.close()


def test_ids_that_are_wrong(path):
    slow = {"request": infer_request("delayed", [one_number()])}
    with welcomed(path) as raw:
        raw.call(0, infer={"request": infer_request("identity_fp32", [one_number()])})
        raw.call(7, infer=slow)
        raw.call(7, infer=slow)
        assert raw.refusal().startswith("an inference of id 7 is in flight")
        # Nobody is in flight by that id, and nobody is told.
        raw.call(8, cancel={"id": 99})
        assert raw.answer().WhichOneof("answer") == "done"
        assert raw.answer().WhichOneof("answer") == "inference"


# ---------------------------------------------------------------------------------------------- descriptors

older_kernel = pytest.mark.skipif(refuses_descriptors(), reason="the kernel refuses them")


@pytest.mark.skipif(not refuses_descriptors(), reason="Linux before 6.16 cannot refuse them")
def test_descriptors_are_refused_and_the_session_goes_on(path):
    with open(os.devnull, "rb") as file, welcomed(path) as raw:
        for count in (1, 253):
            with pytest.raises(PermissionError):
                raw.send(encode(2, session_status={}), [file.fileno()] * count)
        raw.call(3, session_status={})
        assert raw.answer().id == 3


@older_kernel
def test_descriptors_end_the_session_that_brings_them(victim, path):
    """Many of them, and the session's own socket: a circle that only the kernel can cut."""
    with open(os.devnull, "rb") as file:
        for count in (1, 100, 253):
            for _ in range(4):
                with welcomed(path) as raw:
                    raw.send(encode(2, session_status={}), [file.fileno()] * count)
                    assert "SCM_RIGHTS" in raw.refusal()
                    assert raw.ended()
    with welcomed(path) as raw:
        raw.send(encode(6, session_status={}), [raw.socket.fileno()] * 100)
        assert "SCM_RIGHTS" in raw.refusal()
        assert descriptors(victim.pid) < 100
    for _ in range(50):
        with Raw(path) as raw:
            raw.send(encode(1, hello=HELLO), [raw.socket.fileno()] * 253)


def test_a_thousand_descriptors_in_one_message(path):
    """The kernel carries 253 with one message, in however many parts they come; a refused message is none."""
    with open(os.devnull, "rb") as file, welcomed(path) as raw:
        many = array.array("i", [file.fileno()] * 250)
        for parts in ([many * 4], [many] * 4):
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part) for part in parts]
            with pytest.raises(OSError):
                raw.socket.sendmsg([encode(2, session_status={})], control)
        raw.call(3, session_status={})
        assert raw.answer().id == 3


@older_kernel
def test_descriptors_without_a_message(path):
    """A packet of no bytes ends the session as any other that brings some, also if its sender has closed them."""
    for _ in range(20):
        raw = Raw(path)
        raw.send(b"", [raw.socket.fileno()] * 253)
        raw.close()
        with welcomed(path) as raw:
            made = os.memfd_create("gone")
            raw.send(encode(2, session_status={}), [made] * 200)
            os.close(made)
            assert "SCM_RIGHTS" in raw.refusal()


def test_leases_whose_descriptor_is_never_received(path):
    """The client goes, or asks with no room for it, between Borrow and Lease."""
    for _ in range(100):
        raw = welcomed(path)
        raw.call(2, borrow={"byte_size": 1 << 20})
        raw.close()
    with welcomed(path) as raw:
        for number in range(100):
            raw.call(number + 2, borrow={"byte_size": PAGE})
            assert raw.socket.recv(PACKET_BYTES_MAX)


# ---------------------------------------------------------------------------------------------- floods


def test_borrowing_without_end(path):
    sizes = [0, SESSION_BYTES_MAX + 1, 1 << 46, 2**63, 2**64 - 1]
    for size, rest in ((PAGE, LEASES_PER_SESSION_MAX), (1 << 20, SESSION_BYTES_MAX >> 20)):
        with open_session(path) as client:
            for wrong in sizes:
                with refuses("INVALID_ARG", ""):
                    client.borrow(wrong)
            for _ in range(rest):
                client.borrow(size).close()
            for _ in range(200):
                with refuses("UNAVAILABLE", ""):
                    client.borrow(size)
            assert client.used().leases == rest


def test_sessions_that_borrow_all_there_is(path):
    """Others keep what they have, and get more as soon as there is some."""
    ALL_IS_LENT.set()
    try:
        with contextlib.ExitStack() as held:
            clients = [held.enter_context(open_session(path)) for _ in range(4)]
            for client in clients:
                with pytest.raises(Refused):
                    while True:
                        client.borrow(PAGE << 6).close()
            refused = 0
            for client in clients[-1:]:
                for _ in range(100):
                    with contextlib.suppress(Refused):
                        client.borrow(LEASE_BYTES_MAX // 4)
                        continue
                    refused += 1
            assert refused == 100
        with open_session(path) as client:
            deadline = time.monotonic() + SETTLE_S
            while True:
                with contextlib.suppress(Refused):
                    client.borrow(SESSION_BYTES_MAX)
                    break
                assert time.monotonic() < deadline
                time.sleep(0.01)
    finally:
        ALL_IS_LENT.clear()


def test_more_sessions_than_there_are_places(path):
    """Those who come too late are told; who has a session keeps it, and places are free again a moment later."""
    for _ in range(2):
        with contextlib.ExitStack() as held:
            # The operator's are not for everything that the operator's user runs, as these tests are.
            fill_places(path, held, SESSIONS_MAX - WITNESS_SESSIONS)
            with Raw(path) as operator:
                operator.call(1, hello=HELLO | {"operator": True})
                assert operator.answer().WhichOneof("answer") == "welcome"
                operator.call(2, borrow={"byte_size": PAGE})
                assert operator.refusal().startswith(f"all {SESSIONS_MAX} places are taken")
            for _ in range(100):
                with Raw(path) as raw:
                    raw.send_anyway(encode(1, hello=HELLO))
                    assert raw.refusal() == f"{SESSIONS_MAX} sessions are open; try again later"
                    assert raw.ended()
        comes_to(lambda: can_open(path), True)


def fill_places(path, held, places: int) -> None:
    """Opens sessions until there is no place: as many as there must be, once those that ended have left theirs."""
    opened, deadline = 0, time.monotonic() + SETTLE_S
    while opened <= places:
        raw = Raw(path)
        raw.send_anyway(encode(1, hello=HELLO))
        answer = raw.answer()
        if answer is not None and answer.WhichOneof("answer") == "welcome":
            held.enter_context(raw)
            opened += 1
            continue
        raw.close()
        if opened == places:
            return
        assert time.monotonic() < deadline, f"{opened} of {places} places"
        time.sleep(0.01)
    pytest.fail(f"more than {places} places")


def can_open(path) -> bool:
    """Whether there is a place for a session that may do everything."""
    with Raw(path) as raw:
        raw.send_anyway(encode(1, hello=HELLO))
        if raw.answer().WhichOneof("answer") == "error":
            return False
        raw.call(2, borrow={"byte_size": PAGE})
        message, found = raw.receive()
        for one in found:
            os.close(one)
        return message.WhichOneof("answer") == "lease"


def test_connections_in_a_storm(path):
    for number in range(2000):
        raw = Raw(path)
        # Where the server is behind with those that have closed, it turns newcomers away.
        if number % 2:
            raw.send_anyway(encode(1, hello=HELLO))
        if number % 4 == 1:
            raw.send_anyway(encode(2, borrow={"byte_size": 1 << 16}))
        raw.close()


def test_more_inferences_than_may_be_in_flight(path):
    slow = {"request": infer_request("delayed", [one_number()]), "leased_outputs": ["OUTPUT0"]}
    with welcomed(path) as raw:
        for id in range(1, INFERENCES_MAX + 1):
            raw.call(id, infer=slow)
        raw.call(1000, infer=slow)
        assert raw.refusal().startswith(f"{INFERENCES_MAX} inferences of this session are in flight")
        raw.call(1001, infer=slow | {"leased_outputs": ["OUTPUT0"] * 1000})
        assert raw.refusal().startswith("1000 outputs are to be placed in leases, at most 128")
        for id in range(1, INFERENCES_MAX + 1, 2):
            raw.call(0, cancel={"id": id})
        # The others are left to the end of the session.


@pytest.mark.parametrize("what", ["answers", "leases", "outputs", "inferences"])
def test_who_does_not_read_is_cut_off(victim, path, what):
    packet = {
        "answers": encode(2, session_status={}),
        "leases": encode(2, borrow={"byte_size": PAGE}),
        "outputs": encode(
            2,
            infer={"request": infer_request("identity_fp32", [one_number()]), "leased_outputs": ["OUTPUT0"]},
        ),
        "inferences": encode(2, infer={"request": infer_request("identity_fp32", [fp32("INPUT0", range(20_000))])}),
    }[what]
    before = descriptors(victim.pid)
    with welcomed(path) as raw:
        while raw.send_anyway(packet):
            # Each of its leases keeps one, and some wait with another to be sent.
            assert descriptors(victim.pid) < before + LEASES_PER_SESSION_MAX + DESCRIPTORS_WAITING_MAX
        raw.ended()


def test_names_of_leases_without_end(path):
    """2,000 names that mean nothing with each packet, and guesses."""
    chance = random.Random(3)
    with open_session(path) as client:
        for _ in range(20):
            names = [f"lease-{chance.getrandbits(128):032x}" for _ in range(2000)]
            with refuses("NOT_FOUND", "2000 of 2000 names are no leases of this session"):
                client.call(returned=names)
        for name in names[:50] + ["lease-", "", "lease-" + 32 * "g", 4097 * "x"]:
            with pytest.raises(Refused):
                client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(name, 4, 0))])


# ---------------------------------------------------------------------------------------------- what is whose


@pytest.fixture(params=PROTOCOLS)
def other(request: pytest.FixtureRequest, victim):
    """Another client than the one whose memory it is about."""
    with any_client(request.param, victim) as found:
        yield found


def uses(client, name: str) -> Given:
    """Whether the server answers a request whose input lies there."""
    given = Given("INPUT0", "FP32", [1], region=(name, 4, 0))
    return client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw


def test_regions_of_another_session_do_not_exist(path, other):
    with open_session(path) as mine, lent(mine, PAGE, b"\x01\x02\x03\x04") as made:
        assert uses(mine, made.name) == b"\x01\x02\x03\x04"
        unknown(other, made.name)
        assert made.name not in str(other.status("system"))
        with contextlib.suppress(Refused):
            other.unregister("system", made.name)
        if other.protocol == "session":
            other.unregister("system")
        assert uses(mine, made.name) == b"\x01\x02\x03\x04"


def unknown(client, name: str) -> None:
    with pytest.raises(Refused) as caught:
        uses(client, name)
    assert f"Unable to find shared memory region: '{name}'" in caught.value.text


def is_unknown(client, name: str) -> bool:
    with contextlib.suppress(Refused):
        uses(client, name)
        return False
    return True


def test_a_lease_ends_with_its_return_and_with_its_session(path, other):
    with open_session(path) as mine:
        lease = mine.borrow(PAGE, b"\x01\x02\x03\x04")
        assert uses(other, lease.name) == b"\x01\x02\x03\x04", "who knows the name may use it"
        assert lease.name not in str(other.status("system"))
        mine.give_back(lease)
        unknown(mine, lease.name)
        unknown(other, lease.name)
        with refuses("NOT_FOUND", "1 of 1 names are no leases of this session"):
            mine.give_back(lease)
        assert mine.borrow(PAGE).name == lease.name
        assert uses(other, lease.name) == b"\x01\x02\x03\x04"
    comes_to(lambda: is_unknown(other, lease.name), True)


def test_unregistering_everything_leaves_leases_alone(path, other):
    with open_session(path) as mine:
        lease = mine.borrow(PAGE, b"\x01\x02\x03\x04")
        mine.unregister("system")
        mine.unregister("system", lease.name)
        if other.protocol == "session":
            other.unregister("system", lease.name)
        assert uses(other, lease.name) == b"\x01\x02\x03\x04"


def test_nobody_returns_anothers_lease(path):
    with open_session(path) as mine, open_session(path) as other:
        lease = mine.borrow(PAGE, b"\x01\x02\x03\x04")
        with refuses("NOT_FOUND", "1 of 1 names are no leases of this session"):
            other.give_back(lease)
        assert uses(mine, lease.name) == b"\x01\x02\x03\x04"


def test_nobody_reads_what_another_session_wrote(path):
    """Returned or not, kept mapped or not: memory that another session had is never lent again."""
    sizes = [PAGE, 3 * PAGE, 1 << 20, 5 << 20]
    for round in range(20):
        size = sizes[round % len(sizes)]
        with open_session(path) as first:
            kept = [first.borrow(size, b"\xaa" * size) for _ in range(4)]
            for lease in kept[: round % 5]:
                first.give_back(lease)
            with open_session(path) as second:
                got = [second.borrow(size) for _ in range(2)]
                assert all(lease.read(size) == bytes(size) for lease in got)
                for lease in got:
                    lease.write(b"\xbb" * size)
                for lease in kept[: round % 5]:
                    lease.write(b"\xcc" * size)
                assert all(lease.read(size) == b"\xbb" * size for lease in got)
                assert all(b"\xbb" not in lease.read(size) for lease in kept)


@again_if_too_late
def test_an_inference_outlives_the_return_of_its_lease(victim, path):
    with open_session(path) as client:
        lease = client.borrow(2 * PAGE, b"\x01\x02\x03\x04" * (PAGE // 4))
        given = Given("INPUT0", "FP32", [PAGE // 4], region=(lease.name, PAGE, 0))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            delay = Delay(DELAY_MS)
            running = pool.submit(client.infer, "delayed", [given], [RequestedOutput("OUTPUT0", (lease.name, PAGE, PAGE))])
            delay.wait_for_requests(victim, "delayed")
            client.give_back(lease)
            another = client.borrow(2 * PAGE)
            delay.must_last()
            # It is in use, so another one is lent.
            assert another.name != lease.name
            running.result()
        assert lease.read(PAGE, PAGE) == b"\x01\x02\x03\x04" * (PAGE // 4)


@again_if_too_late
def test_requests_of_others_outlive_the_session_of_their_lease(victim, path, other):
    """A lease was passed on by name; its session ends while the other's request runs."""
    with welcomed(path) as mine, concurrent.futures.ThreadPoolExecutor(1) as pool:
        mine.call(2, borrow={"byte_size": PAGE})
        message, found = mine.receive()
        os.close(found[0])
        given = Given("INPUT0", "FP32", [4], region=(message.lease.name, 16, 0))
        delay = Delay(DELAY_MS)
        running = pool.submit(other.infer, "delayed", [given])
        delay.wait_for_requests(victim, "delayed")
        mine.close()
        delay.must_last()
        assert running.result().outputs["OUTPUT0"].raw == bytes(16)
