"""Does a client delay others by punching holes into its memory while the server reads and writes it?

Who touches a page of a file in memory while a hole is punched there waits in the kernel until the whole hole is punched. For a hole of some GiB that is
a large part of a second. So once threads waited for a user's memory, the server touches it on other threads only.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from clients import http_call
from witness import SETTLE_S, are_answered, witnesses

NOBODY = 65534
PUNCHING = pathlib.Path(__file__).parent / "punching.py"
# The memory that is punched out. The more, the longer the kernel takes.
GIBIBYTES = 1
CONNECTIONS = 6
HOLES = 5


@pytest.fixture
def server(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 waits for its client's memory on whatever thread it is")
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("no other user to be had: not root")
    if shutil.disk_usage("/dev/shm").free < 2 * GIBIBYTES << 30:
        pytest.skip("/dev/shm has no room for what is punched out")
    repository = launcher.copy_of("punching", "identity_fp32", "identity_bytes", "simple")
    socket = tmp_path / "socket"
    with launcher.running("punching", f"--session-socket={socket}", repository=repository) as found:
        found.session = socket
        yield found


@pytest.mark.parametrize("model", ["identity_fp32", "identity_bytes"])
def test_a_client_that_punches_holes_into_its_memory_has_its_requests_run_on_copies(server, model):
    """Witnesses are another user. The attacker is found out, and its requests are answered all the same. On a busy machine the witnesses may be marked
    as well, and are answered as well."""
    with witnesses(server) as watching, punching(server, model) as lines:
        for _ in until(lambda: metric(server, "nerite_stalling_peers") > 0):
            holes_and_answers(lines, 1)
        assert holes_and_answers(lines, HOLES) > 0, "the attacker is not answered any more"
        are_answered(watching, 20)
        assert metric(server, "nerite_staged_requests_total") > 0
        assert metric(server, 'nerite_copied_bytes_total{reason="staged"}') > 0
    assert f"a request of user {NOBODY} made a thread wait for" in server.log_text()
    # The mark outlives the connections.
    assert metric(server, "nerite_stalling_peers") >= 1


@contextlib.contextmanager
def punching(server, model: str):
    """Another user does it. Gives the lines that it prints."""
    program = [os.path.realpath(sys.executable), "-S", str(PUNCHING), server.http, model, str(GIBIBYTES), str(CONNECTIONS)]
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *program]
    with subprocess.Popen(as_nobody, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout
        finally:
            process.kill()


def holes_and_answers(lines, count: int) -> int:
    """Waits for that many holes. How many requests were answered well between the first of them and the last?"""
    found = [int(lines.readline().split()[1]) for _ in range(count)]
    return found[-1] - found[0]


def until(happened):
    deadline = time.monotonic() + SETTLE_S
    while not happened():
        assert time.monotonic() < deadline, f"not within {SETTLE_S} s"
        yield


def metric(server, name: str) -> int:
    lines = http_call(server.metrics, "GET", "/metrics").body.decode().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{name} ")]
    return int(found.split()[-1])
