"""Does a client that is killed at any point, under load, leave anything behind?

    pytest tests/hostile/test_kills.py                     1,000 kills
    NERITE_KILLS=10000 pytest -s tests/hostile/test_kills.py     as many as that, and how long it took to clean up
"""

import contextlib
import os
import random
import subprocess
import sys
import time

import pytest
from clients import open_client
from server_setup import put_delayed
from killed import KINDS, SIZE, object_path, region_name
from witness import SETTLE_S, descriptors, warm_up, witnesses

pytestmark = [pytest.mark.usefixtures("nobody_else_is_harmed"), pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("NERITE_KILLS", "1000"))
AT_A_TIME = 5
LONGEST_LIFE_S = 0.1
SEED = int(os.environ.get("NERITE_SEED", "1"))


class Nursery:
    """Makes clients and kills them."""

    def __init__(self, server):
        command = [sys.executable, killed_py(), server.http, server.grpc, str(server.session)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def command(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def start(self, kind: str, seed: int) -> int:
        return int(self.command(f"start {kind} {seed}"))

    def kill(self, pid: int) -> str:
        return self.command(f"kill {pid}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(SETTLE_S)
        self.process.stdout.close()


def killed_py() -> str:
    return os.path.join(os.path.dirname(__file__), "killed.py")


def held(pid: int) -> tuple[int, int]:
    """Mappings of killed clients' objects, and of leases that are larger than the witness's outputs but not its own."""
    objects = leases = 0
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            objects += "nerite_test_killed_" in line
            if "memfd:nerite-lease" in line:
                start, end = (int(number, 16) for number in line.split()[0].split("-"))
                leases += SIZE // 4 < end - start < 1 << 20
    return objects, leases


def most_descriptors(pid: int) -> int:
    """As many as there are with the witnesses alone, whose connections come and go."""
    end, most = time.monotonic() + 1, 0
    while time.monotonic() < end:
        most = max(most, descriptors(pid))
    return most


def test_clients_that_are_killed_leave_nothing_behind(victim, nobody_else_is_harmed):
    chance = random.Random(SEED)
    most, cleaned, ended = most_descriptors(victim.pid), [], 0
    kinds = list(KINDS)
    with contextlib.closing(Nursery(victim)) as nursery, open_client("http", victim) as client:
        for round in range(0, KILLS, AT_A_TIME):
            pids = [nursery.start(kinds[(round + n) % len(kinds)], chance.randrange(1 << 30)) for n in range(AT_A_TIME)]
            for pid in chance.sample(pids, len(pids)):
                time.sleep(chance.uniform(0, 2 * LONGEST_LIFE_S / AT_A_TIME))
                ended += nursery.kill(pid) != "killed"
            since = time.monotonic()
            for pid in pids:
                client.unregister("system", region_name(pid))
                object_path(pid).unlink(missing_ok=True)
            while held(victim.pid) != (0, 0) or descriptors(victim.pid) > most:
                assert time.monotonic() < since + SETTLE_S, (held(victim.pid), descriptors(victim.pid), most)
                time.sleep(0.001)
            cleaned.append(time.monotonic() - since)
            assert all(one.is_alive() for one in nobody_else_is_harmed), "a witness was harmed"
    cleaned.sort()
    p50, p99, longest = (cleaned[int(part * (len(cleaned) - 1))] * 1000 for part in (0.5, 0.99, 1))
    answers = sum(one.answers for one in nobody_else_is_harmed)
    print(
        f"{KILLS} clients killed, {AT_A_TIME} at a time; everything back after {p50:.0f} ms (half), {p99:.0f} ms (99 of 100), "
        f"{longest:.0f} ms (all); {answers} answers of the witnesses compared"
    )
    # Who ends by itself was refused something: that would be a fault of the server's.
    assert ended == 0


@pytest.fixture(scope="module")
def victim(launcher, tmp_path_factory):
    """A server whose slow model is not so slow that its requests outlive their clients for long."""
    if launcher.oracle:
        pytest.skip("regions of killed clients stay for ever in 2.51")
    repository = launcher.copy_of("kills", "identity_fp32", "simple")
    put_delayed(repository, "brief", 5)
    socket = tmp_path_factory.mktemp("kills") / "socket"
    with launcher.running("kills", f"--session-socket={socket}", repository=repository) as found:
        found.session = socket
        with witnesses(found) as watching:
            warm_up(watching)
        yield found
