"""What does a server do while nobody asks it for anything?"""

import contextlib
import pathlib
import time

import pytest
from clients import fp32, open_client

# What looks after the front threads, and they themselves.
THREADS = ("nerite-watchdog", "nerite-front")
# The watchdog sleeps five seconds after the last poll. Memory is checked each second until nothing is left to return, and then once a minute.
IDLE_WITHIN_S = 45
WINDOW_S = 4
# A server that looks each second has as many in the window, and its watchdog ten times as many.
SWITCHES_MAX = 2
# One look for the session socket, every ten seconds, by a server that could not create it.
RECHECK_SWITCHES_MAX = 6


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> tuple[str, ...]:
    """A command that runs a server whose session socket is in a directory of its own."""
    return ("env", f"XDG_RUNTIME_DIR={tmp_path_factory.mktemp('idle')}")


@pytest.fixture(scope="module")
def server(launcher, environment):
    if launcher.oracle:
        pytest.skip("threads of nerite")
    with launcher.running("idle", repository=launcher.copy_of("idle", "identity_fp32"), before=environment) as found:
        yield found


def switches(server) -> int:
    """How often those threads have waited so far."""
    count = 0
    for thread in pathlib.Path(f"/proc/{server.pid}/task").iterdir():
        # Other threads may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (thread / "comm").read_text().strip() in THREADS:
                lines = (thread / "status").read_text().splitlines()
                count += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return count


def in_window(server) -> int:
    before = switches(server)
    time.sleep(WINDOW_S)
    return switches(server) - before


def becomes_idle(server, switches_max: int = SWITCHES_MAX) -> None:
    until, seen = time.monotonic() + IDLE_WITHIN_S, []
    while time.monotonic() < until:
        seen.append(in_window(server))
        if seen[-1] <= switches_max:
            return
    raise AssertionError(f"switches in each {WINDOW_S} s: {seen}")


def test_a_server_that_has_nothing_to_do_does_nothing(server):
    with open_client("http", server) as client:
        client.infer("identity_fp32", [fp32("INPUT0", [1.0])])
    becomes_idle(server)
    # Not only for a moment.
    assert in_window(server) <= SWITCHES_MAX
    with open_client("http", server) as client:
        client.infer("identity_fp32", [fp32("INPUT0", [1.0])])
    assert in_window(server) > 10, "the watchdog looks again, and so does who returns memory"
    becomes_idle(server)


def test_so_does_a_server_whose_session_socket_belongs_to_another(server, launcher, environment):
    repository = launcher.copy_of("idle_second", "identity_fp32")
    with launcher.running("idle_second", repository=repository, before=environment) as second:
        assert "is in use by another server" in second.log_text()
        becomes_idle(second, RECHECK_SWITCHES_MAX)
        seen = [in_window(second) for _ in range(4)]
        assert max(seen) <= RECHECK_SWITCHES_MAX, f"switches in each {WINDOW_S} s: {seen}"
