"""Which server may the hostile tests hurt, and what must it be like after each of them?"""

from dataclasses import dataclass

import pytest
from busy import front_threads_come_back
from server_setup import DELAY_MS, LEASE_BYTES_MAX, RESIDENT_SLACK, SESSION_BYTES_MAX, put_delayed
from witness import (
    MADE,
    any_client,
    are_answered,
    comes_to,
    descriptors,
    falls_to,
    left_alone,
    mapped_leases,
    mapped_objects,
    resident,
    settled,
    warm_up,
    witnesses,
)


@pytest.fixture(scope="module")
def victim(launcher, request: pytest.FixtureRequest, tmp_path_factory):
    """A server that only these tests may hurt. It must be the same process from the first test to the last."""
    if launcher.oracle:
        pytest.skip("a client that truncates its region kills 2.51 (SIGBUS)")
    name = f"hostile_{request.module.__name__}"
    repository = launcher.copy_of(name, "identity_fp32", "identity_bytes", "simple")
    put_delayed(repository, "delayed", DELAY_MS)
    socket = tmp_path_factory.mktemp("session") / "socket"
    flags = [
        f"--session-socket={socket}",
        f"--lease-max-bytes={LEASE_BYTES_MAX}",
        f"--session-max-bytes={SESSION_BYTES_MAX}",
    ]
    with launcher.running(name, *flags, repository=repository) as found:
        found.session = socket
        with witnesses(found) as watching:
            warm_up(watching)
        yield found


@pytest.fixture
def client(request: pytest.FixtureRequest, victim):
    """Over HTTP, unless the test has the mark `with_each_protocol`."""
    with any_client(getattr(request, "param", "http"), victim) as found:
        yield found


@dataclass
class Baseline:
    """What the server has when nobody talks to it."""

    descriptors: int
    resident: int


@pytest.fixture(scope="module")
def baseline(victim):
    left_alone(victim)
    open_ = settled(lambda: descriptors(victim.pid))
    return Baseline(open_, settled(lambda: resident(victim.pid)))


@pytest.fixture
def nobody_else_is_harmed(victim, baseline):
    """The witnesses, who have byte-exact answers before, during and after the test."""
    MADE.clear()
    with front_threads_come_back(victim), witnesses(victim) as found:
        yield found
        # At least one request each that began after all that was done.
        are_answered(found, 3)
    assert victim.process.poll() is None, f"the server died:\n{victim.log_text()[-3000:]}"
    comes_to(lambda: descriptors(victim.pid), baseline.descriptors)
    comes_to(lambda: mapped_objects(victim.pid), 0)
    comes_to(lambda: mapped_leases(victim.pid), 0)
    # Each heap keeps up to 2 MiB at its end, and on a busy machine threads use more heaps.
    left = falls_to(lambda: resident(victim.pid), baseline.resident + 2 * RESIDENT_SLACK)
    print(f"resident: {left - baseline.resident:+,} bytes")
    assert [path for path in MADE if path.exists()] == []
