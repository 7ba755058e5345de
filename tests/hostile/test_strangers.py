"""What can those do who may use the session socket, but nobody else's sessions?

Other users, sessions that reach for each other's leases, and HTTP and gRPC clients that were told a session's key.
"""

import contextlib
import os
import pathlib
import random
import shutil
import tempfile
import threading
import time

import pytest
from clients import Given, Refused, RequestedOutput, fp32, refuses
from server_setup import DELAY_MS, LEASE_BYTES_MAX, SESSION_BYTES_MAX, put_delayed
from packets import HELLO, Raw, encode, open_session, welcomed
from users import as_user
from witness import any_client, comes_to, descriptors, lent, mapped_leases, warm_up, witnesses

pytestmark = pytest.mark.usefixtures("nobody_else_is_harmed")

PAGE = os.sysconf("SC_PAGESIZE")
NOBODY, SOMEBODY = 65534, 65533
SESSIONS_PER_USER_MAX = 64


@pytest.fixture(scope="module")
def victim(launcher):
    """A server that lets in one user besides its own."""
    if launcher.oracle:
        pytest.skip("2.51 has no sessions")
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    repository = launcher.copy_of("strangers", "identity_fp32", "simple")
    put_delayed(repository, "delayed", DELAY_MS)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-strangers-"))
    folder.chmod(0o755)
    flags = [
        f"--session-socket={folder / 'socket'}",
        f"--session-allow-uid={NOBODY}",
        f"--lease-max-bytes={LEASE_BYTES_MAX}",
        f"--session-max-bytes={SESSION_BYTES_MAX}",
    ]
    try:
        with launcher.running("strangers", *flags, repository=repository) as found:
            found.session = folder / "socket"
            with witnesses(found) as watching:
                warm_up(watching)
            yield found
    finally:
        shutil.rmtree(folder)


# ---------------------------------------------------------------------------------------------- users


def test_users_who_were_not_let_in(victim):
    for _ in range(100):
        with as_user(SOMEBODY, lambda: Raw(victim.session)) as raw:
            raw.send_anyway(encode(1, hello=HELLO))
            assert raw.refusal().startswith(f"user {SOMEBODY} may not open sessions with a server of user 0")
            assert raw.ended()


def test_one_user_cannot_take_all_places(victim):
    with contextlib.ExitStack() as held:
        for _ in range(SESSIONS_PER_USER_MAX):
            held.enter_context(as_user(NOBODY, lambda: welcomed(victim.session)))
        for _ in range(50):
            with as_user(NOBODY, lambda: Raw(victim.session)) as raw:
                assert raw.refusal().startswith(f"user {NOBODY} has {SESSIONS_PER_USER_MAX} sessions open")
        with open_session(victim.session) as client:
            client.borrow(PAGE)


def test_the_operator_says_how_many_sessions_and_how_long_a_hello_may_take(launcher):
    """By flags; 0 seconds are no limit. A connection that has said Hello stays."""
    if launcher.oracle or os.geteuid() != 0:
        pytest.skip("only root can be somebody else, and 2.51 has no sessions")
    repository = launcher.copy_of("few_sessions", "identity_fp32")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-few-sessions-"))
    folder.chmod(0o755)
    socket = folder / "socket"
    allowed = [f"--session-socket={socket}", f"--session-allow-uid={NOBODY}"]
    try:
        with launcher.running("few_sessions", *allowed, "--sessions-per-user-max=2", "--session-hello-timeout=1", repository=repository):
            with Raw(socket) as silent, as_user(NOBODY, lambda: welcomed(socket)), as_user(NOBODY, lambda: welcomed(socket)):
                with as_user(NOBODY, lambda: Raw(socket)) as third:
                    assert third.refusal().startswith(f"user {NOBODY} has 2 sessions open, which is all that one user may have")
                assert silent.ended()
                with open_session(socket) as client:
                    time.sleep(2)
                    client.borrow(PAGE)
    finally:
        shutil.rmtree(folder)


def test_the_operators_calls_are_the_operators(victim):
    calls = [
        {"inspect_regions": {}},
        {"inspect_region": {"name": "a"}},
        {"inspect_pools": {}},
        {"inspect_sessions": {}},
        {"inspect_leases": {"session": 1}},
        {"drop_region": {"name": "a"}},
        {"drop_all_regions": {}},
        {"end_session": {"session": 1}},
    ]
    with as_user(NOBODY, lambda: welcomed(victim.session)) as raw, open_session(victim.session) as client:
        lease = client.borrow(PAGE)
        for number, call in enumerate(calls, 2):
            with contextlib.suppress(ValueError):
                raw.call(number, **call)
                assert "operator" in raw.refusal()
        seen = str(client.call(inspect_sessions={})[0]) + str(client.call(inspect_pools={})[0])
        assert lease.name not in seen, "even the operator is not told how to use a lease"


# ---------------------------------------------------------------------------------------------- keys and tags


@pytest.fixture
def owner(victim):
    with open_session(victim.session) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def other(request: pytest.FixtureRequest, victim):
    with any_client(request.param, victim) as found:
        yield found


def placed(client, key: str, count: int = 256, model: str = "identity_fp32"):
    """Asks for an output of so many numbers in a lease of the session of that key."""
    given = fp32("INPUT0", range(count))
    client.infer(model, [given], [RequestedOutput("OUTPUT0", (key, 0, 0))])


def flood(client, key: str, count: int, requests: int) -> None:
    for _ in range(requests):
        with contextlib.suppress(Refused, AssertionError, KeyError):
            placed(client, key, count)


def test_a_session_whose_key_others_know_loses_its_quota_and_nothing_else(victim, owner, other):
    """They fill it; after that outputs travel inline. The descriptors that nobody fetches are bounded and come back."""
    key = owner.welcome.session_key
    assert key.startswith("session-")
    mine = owner.borrow(PAGE, b"\x01\x02\x03\x04")
    before = descriptors(victim.pid)
    flood(other, key, 256, 1200)
    assert owner.used().leases <= 1024
    assert descriptors(victim.pid) <= before + 1024 + 50
    given = Given("INPUT0", "FP32", [1], region=(mine.name, 4, 0))
    assert owner.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == b"\x01\x02\x03\x04"
    with refuses("UNAVAILABLE", ""):
        owner.borrow(PAGE)
    owner.call(abandon={"tag": 1})


def test_keys_that_mean_nobody(other):
    chance = random.Random(1)
    guesses = [f"session-{chance.getrandbits(128):032x}" for _ in range(50)]
    for key in [*guesses, "session-", "session-" + 32 * "g", guesses[0] + "-0", guesses[0] + "-01", guesses[0] + "-" + 30 * "9"]:
        with pytest.raises(Refused) as caught:
            other.infer("identity_fp32", [fp32("INPUT0", [1])], [RequestedOutput("OUTPUT0", (key, 0, 0))])
        assert "Unable to find shared memory region" in caught.value.text


def test_nobody_fetches_anothers_lease(victim, owner):
    lease = owner.borrow(PAGE, b"\x01\x02\x03\x04")
    with open_session(victim.session) as other:
        for names in ([lease.name], [lease.name] * 128, [lease.name] * 1000, ["lease-" + 32 * "0"], [""]):
            with pytest.raises(Refused):
                other.call(fetch={"names": names})
    # Its own client has the descriptor already, and gets no second one.
    message, found = owner.call(fetch={"names": [lease.name]})
    assert found == []


def test_abandoning_without_end(owner):
    for tag in range(1, 3000):
        owner.call(abandon={"tag": tag, "kept": ["lease-" + 32 * "0", ""] if tag % 100 == 0 else []})
    lease = owner.borrow(PAGE, b"\x01\x02\x03\x04")
    given = Given("INPUT0", "FP32", [1], region=(lease.name, 4, 0))
    assert owner.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == b"\x01\x02\x03\x04"


def test_a_session_that_ends_while_others_fill_it(victim, other):
    """By its key, in requests that run on: they are refused, or their leases go with it."""
    for round in range(10):
        raw = Raw(victim.session)
        raw.call(1, hello=HELLO)
        key = raw.answer().welcome.session_key
        threads = [threading.Thread(target=flood, args=(other, key, 4096, 20)) for _ in range(2)]
        threads.append(threading.Thread(target=run_on, args=(other, key)))
        for one in threads:
            one.start()
        time.sleep(0.01 * round)
        raw.close()
        for one in threads:
            one.join()
    comes_to(lambda: mapped_leases(victim.pid) < 5, True)


def run_on(client, key: str) -> None:
    with contextlib.suppress(Refused, AssertionError, KeyError):
        placed(client, key, model="delayed")


def test_regions_of_a_session_are_not_reached_by_its_key(owner, other):
    with lent(owner, PAGE, b"\x01\x02\x03\x04") as made:
        for name in (owner.welcome.session_key, f"{owner.welcome.session_key}-{made.name}"):
            with pytest.raises(Refused):
                other.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=(name, 4, 0))])
