"""What stands on the page of results beside its tables?"""

import dataclasses
import datetime
import os
import pathlib
import platform
import re
import subprocess
import time

from .report import Table
from .repositories import ROOT
from .rows import Row
from .sides import Run

# Above this share, what other programs do may be seen in figures.
OTHERS_MAX = 0.1
OTHERS_S = 2
SUMMARY = ROOT / "docs" / "SUMMARY.md"
# How the line of the summary ends below which pages of results stand.
PROMISES = "](promises.md)"
MADE = re.compile(r"  - \[Measured on [0-9-]+\]\(results/([0-9-]+)\.md\)")

# What the rows found: their tables, or why there are none.
Results = list[tuple[Row, list[Table] | str]]


@dataclasses.dataclass(frozen=True)
class Load:
    """How busy the machine is: load averages before and after, and the share of the cores' time that other programs used before."""

    before: str
    after: str
    others: float


def section(row: Row, found: list[Table] | str, names: dict[str, str]) -> str:
    """A row in Markdown."""
    parts = [f"## {row.name}: {row.title}"]
    for table in found if isinstance(found, list) else []:
        parts.append("\n".join(table.markdown(names)) if table.lines else f"{table.what}: {table.remark}")
    if isinstance(found, str):
        parts.append(f"Not measured: {found}")
    return "\n\n".join(parts) + "\n"


def head(run: Run, load: Load, day: datetime.date, command: str) -> str:
    """Date, machine, versions and load."""
    cores, options = os.cpu_count() or 1, run.options
    facts = {
        "command": f"`{command}`",
        "machine": f"{processor()}, {cores} cores, {memory_gib()} GiB, Linux {platform.release()}; the load generator uses the same cores",
        "versions": f"nerite {nerite_version(run)}, commit {commit()}; {run.peer.name} ({peer_version(run)}; {run.peer.model})",
        "load average": f"{load.before} before, {load.after} after, over 1, 5 and 15 minutes",
        "other programs": f"used {load.others:.0%} of the cores before the first row{'; **read ratios only**' if load.others > OTHERS_MAX else ''}",
        "order": f"{options.runs} × ({run.peer.name}, nerite, nerite, {run.peer.name}), {options.seconds:g} s each; a figure is the median",
    }
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())])
    return (
        f"# Measured on {day}\n\n"
        f"This page is for engineers who compare nerite with {run.peer.name}. The worst and the best of such figures are in\n"
        f"[What is promised](../promises.md#worst-and-best-figures).\n\n{table}\n\n"
        "A figure is that of one request. A ratio is nerite divided by "
        f"{run.peer.name}: below 1 is better, except for infer/s and responses/s. The limit is a bare epoll loop in C that answers with the same\n"
        "bytes, unless the table names another one. A dash: there is no peer, or this machine does not count that.\n"
    )


def load_averages() -> str:
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def busy_share() -> float:
    """The share of the cores' time that other programs use, while none of this run is up. Load averages still have the build that came before."""
    before = core_ticks()
    time.sleep(OTHERS_S)
    idle, everything = (after - earlier for earlier, after in zip(before, core_ticks()))
    return 1 - idle / everything


def core_ticks() -> tuple[int, int]:
    """Idle ticks of all cores, and all ticks. Idle time includes waiting for disks; see proc_stat(5)."""
    ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))


def nerite_version(run: Run) -> str:
    said = subprocess.run([run.ours.command[0], "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1]


def peer_version(run: Run) -> str:
    if run.options.baseline:
        return run.options.baseline.name
    lock = (ROOT / "tests" / "oracle" / "triton.txt").read_text()
    return re.search(r"^nvidia-pytriton==\S+", lock, re.MULTILINE)[0].replace("==", " ")


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def with_page(summary: str, day: datetime.date) -> str:
    """The summary of the site with the page of this day, the newest first."""
    lines = [line for line in summary.splitlines() if not ((found := MADE.fullmatch(line)) and found[1] == str(day))]
    lines.insert(promises_at(lines) + 1, f"  - [Measured on {day}](results/{day}.md)")
    return "\n".join(lines) + "\n"


def promises_at(lines: list[str]) -> int:
    (at,) = (at for at, line in enumerate(lines) if line.endswith(PROMISES))
    return at
