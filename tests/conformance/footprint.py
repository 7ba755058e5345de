"""What does a process hold: descriptors, mappings, memory, processes that it started?"""

import contextlib
import os
import pathlib
import time


def descriptors(pid: int) -> list[str]:
    """What the open descriptors point to, without sockets and event objects, which come and go."""
    found = []
    for one in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{one}"))
    return [one for one in found if not one.startswith(("socket:", "anon_inode:"))]


def mappings(pid: int, key: str) -> int:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return sum(key.strip("/") in line for line in maps)


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="utf-8") as facts:
        return int(facts.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def children(pid: int) -> set[int]:
    """The processes that it started. A dead one counts until its parent has waited for it."""
    found = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)
