"""What did a server use: processor time, wake-ups, system calls, memory?

All count the processes of a server together: what it started serves its models.
"""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable

PROC = pathlib.Path("/proc")
EVENTS = {"raw_syscalls:sys_enter": "system_calls", "instructions": "instructions"}


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return found


def cpu_us(pid: int) -> float:
    """Processor time so far, in the kernel's nanoseconds and not its ticks of 10 ms. Threads that have ended are not in it."""
    return sum(int(text.split()[0]) for text in of_threads(pid, "schedstat")) / 1000


def wake_ups(pid: int) -> int:
    """How often a thread slept until something woke it: its voluntary context switches."""
    found = (re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE) for text in of_threads(pid, "status"))
    return sum(int(one[1]) for one in found if one)


def resident_mib(pid: int) -> float:
    total = 0
    for member in family(pid):
        with contextlib.suppress(OSError):
            # A process that has just ended has no such line.
            found = re.search(r"^VmRSS:\s+(\d+)", (PROC / str(member) / "status").read_text(), re.MULTILINE)
            total += int(found[1]) if found else 0
    return total / 1024


def of_threads(pid: int, file: str) -> list[str]:
    """A file of each thread. One that ends meanwhile has none."""
    texts = []
    for member in family(pid):
        for path in PROC.glob(f"{member}/task/*/{file}"):
            with contextlib.suppress(OSError):
                texts.append(path.read_text())
    return texts


def answered(side, model: str) -> int:
    """Requests of a model so far, by the server's own statistics."""
    if side.counter:
        return int.from_bytes(side.counter.read_bytes(), "little")
    with urllib.request.urlopen(f"http://{side.server.http}/v2/models/{model}/stats") as answer:
        return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])


def per_request(side, model: str, run: Callable[[], dict]) -> dict:
    """What `run` finds, and the wake-ups and the processor time of each request that it sent."""
    pid = side.server.pid
    before, slept, used = answered(side, model), wake_ups(pid), cpu_us(pid)
    found = run()
    slept, used = wake_ups(pid) - slept, cpu_us(pid) - used
    count = max(1, answered(side, model) - before)
    return found | {"server_cpu_us": used / count, "wake_ups": slept / count}


def calls_per_request(side, model: str, run: Callable[[list[str]], None]) -> dict:
    """System calls and instructions of each request that `run` sends, as far as the tools of this machine count them. `run`
    gets the words before its command. Counting slows a server down, so nothing else is taken from such a run."""
    before = answered(side, model)
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report"
        totals = by_perf(side.server.pid, run, report) or by_strace(side.server.pid, run, report)
    count = max(1, answered(side, model) - before)
    return {key: value / count for key, value in totals.items()}


def by_perf(pid: int, run: Callable[[list[str]], None], report: pathlib.Path) -> dict[str, int]:
    events = [word for event in EVENTS for word in ("-e", event)]
    words = ["perf", "stat", "-x", ",", "-o", str(report), *events, "-p", ",".join(map(str, family(pid)))]
    if not shutil.which("perf") or subprocess.run([*words, "--", "true"], capture_output=True).returncode != 0:
        return {}
    run([*words, "--"])
    return read_perf(report.read_text())


def read_perf(text: str) -> dict[str, int]:
    """The events that were counted. A virtual machine often has no counter of instructions."""
    fields = [line.split(",") for line in text.splitlines()]
    return {EVENTS[line[2]]: int(line[0]) for line in fields if len(line) > 2 and line[2] in EVENTS and line[0].isdigit()}


def by_strace(pid: int, run: Callable[[list[str]], None], report: pathlib.Path) -> dict[str, int]:
    if not shutil.which("strace"):
        return {}
    processes = [f"--attach={member}" for member in family(pid)]
    tracer = subprocess.Popen(["strace", "-c", "-f", "-o", str(report), *processes], stderr=subprocess.PIPE, text=True)
    attached = tracer.stderr.readline()
    if "attached" in attached:
        run([])
    tracer.send_signal(signal.SIGINT)
    tracer.communicate()
    return read_strace(report.read_text()) if "attached" in attached else {}


def read_strace(text: str) -> dict[str, int]:
    """The last line: share, seconds, time of each call, calls, errors, `total`."""
    lines = [line.split() for line in text.splitlines() if line.endswith(" total")]
    return {"system_calls": int(lines[-1][3])} if lines else {}
