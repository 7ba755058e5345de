"""How long did the threads that serve connections not come back?"""

import contextlib
import os
import urllib.request
from dataclasses import dataclass

# Whether the times that are promised count. The machine of a test may be busy, or a virtual one that is paused: then each poll takes
# longer, and its processor time too. Ten times as much always counts.
TIMES_COUNT = os.environ.get("NERITE_ATTACK_TIMES") == "1"
# No poll of a connection may use more processor time than this, in seconds.
CPU_S_MAX = "0.1" if TIMES_COUNT else "1"
# Nor take longer than this by the clock, which a thread that waits for something shows.
WALL_S_MAX = "1" if TIMES_COUNT else "10"
FAMILY = "nerite_front_thread_busy"


@dataclass(frozen=True)
class Polls:
    """Polls of connections so far, and those among them that took too long."""

    all: int
    long_cpu: int
    long_wall: int


def polls(server) -> Polls:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = [line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line.startswith(FAMILY)]
    found = {name: float(count) for name, count in lines}
    count, count_cpu = found[f"{FAMILY}_seconds_count"], found[f"{FAMILY}_cpu_seconds_count"]
    short_cpu = found[f'{FAMILY}_cpu_seconds_bucket{{le="{CPU_S_MAX}"}}']
    short_wall = found[f'{FAMILY}_seconds_bucket{{le="{WALL_S_MAX}"}}']
    return Polls(int(count), int(count_cpu - short_cpu), int(count - short_wall))


@contextlib.contextmanager
def front_threads_come_back(server):
    """Whatever is done in the `with` block, no thread that serves connections is kept from the others' requests."""
    before = polls(server)
    yield
    after = polls(server)
    lines = [line for line in server.log_text().splitlines() if "a front thread" in line]
    assert after.all > before.all, "the block asked the server nothing"
    assert (after.long_cpu, after.long_wall) == (before.long_cpu, before.long_wall), "\n".join(lines[-10:])
