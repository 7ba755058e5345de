"""How are figures written: medians, ratios, bounds, tables in Markdown?"""

import dataclasses
import statistics
import sys

# Each figure: its key in a result, and its title. Rows of a table are in this order.
TITLES = {
    "per_second": "infer/s",
    "responses_per_second": "responses/s",
    "p50_us": "p50 µs",
    "over_us": "p50 above the run in process, µs",
    "server_cpu_us": "server CPU µs",
    "cpu_over_us": "server CPU above the run in process, µs",
    "cpu_growth": "server CPU, times that of the first line",
    "wake_ups": "wake-ups",
    "system_calls": "system calls",
    "instructions": "instructions",
    "start_ms": "start to ready, ms",
    "stop_ms": "stop, ms",
    "mib": "resident MiB",
    "idle_wake_ups": "wake-ups a second",
    "idle_cpu_ms": "CPU ms a second",
    "megabytes": "MB",
}
# The roles of what is measured, in the order of the columns. What nothing can go below is the limit.
PEER, OURS, LIMIT = "peer", "nerite", "limit"
ROLES = (PEER, OURS, LIMIT)
# The verdict on a bound that was kept.
MET = "met"

# Figures by role, and of each role by key.
Found = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a figure of nerite is held against: a number, or so many times another role's figure, and so much more."""

    key: str
    most: float | None = None
    least: float | None = None
    of: str | None = None
    plus: float = 0

    def verdict(self, found: Found, names: dict[str, str]) -> str:
        """The bound in words and whether it was kept; nothing where a figure is missing."""
        ours, base = found.get(OURS, {}).get(self.key), 1.0 if self.of is None else found.get(self.of, {}).get(self.key)
        if ours is None or base is None:
            return ""
        factor, sign = (self.most, "≤") if self.most is not None else (self.least, "≥")
        kept = ours <= factor * base + self.plus if self.most is not None else ours >= factor * base + self.plus
        what = f"{sign} {factor:.3g}" + (f" × {names[self.of]}" if self.of else "") + (f" + {self.plus:g}" if self.plus else "")
        return f"{what} · {MET if kept else '**missed**'}"


@dataclasses.dataclass(frozen=True)
class Line:
    """One kind of request, and its figures."""

    what: str
    found: Found
    bounds: tuple[Bound, ...] = ()


@dataclasses.dataclass
class Table:
    """Lines with the same columns. `remark` stands below them."""

    what: str
    lines: list[Line] = dataclasses.field(default_factory=list)
    remark: str = ""

    def add(self, what: str, found: Found, *bounds: Bound) -> None:
        self.lines.append(Line(what, found, bounds))
        ours = found.get(OURS) or {}
        note(f"  {what}: " + ", ".join(f"{title} {number(ours[key])}" for key, title in TITLES.items() if key in ours))

    def markdown(self, names: dict[str, str]) -> list[str]:
        """The table. Columns in which nothing stands are left out."""
        columns = [role for role in ROLES if any(line.found.get(role) for line in self.lines)]
        has_ratio = PEER in columns and OURS in columns
        has_bounds = any(line.bounds for line in self.lines)
        head = [self.what, "figure"]
        for role in columns:
            head += [names[role], *(["ratio"] if role == OURS and has_ratio else [])]
        rule = ["---", "---"] + ["--:"] * (len(head) - 2)
        if has_bounds:
            head, rule = [*head, "target"], [*rule, "---"]
        rows = [head, rule]
        for line in self.lines:
            what = line.what
            for key in (key for key in TITLES if any(key in figures for figures in line.found.values())):
                cells = [what, TITLES[key]]
                for role in columns:
                    cells.append(number(line.found.get(role, {}).get(key)))
                    if role == OURS and has_ratio:
                        cells.append(ratio(*(line.found.get(one, {}).get(key) for one in (OURS, PEER))))
                if has_bounds:
                    cells.append("; ".join(filter(None, (bound.verdict(line.found, names) for bound in line.bounds if bound.key == key))))
                rows.append(cells)
                what = ""
        text = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in rows]
        return text + (["", self.remark] if self.remark else [])


def note(text: str) -> None:
    """Says how far a run is, beside what it prints."""
    print(text, file=sys.stderr, flush=True)


def median(results: list[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)


def medians(results: list[dict]) -> dict[str, float]:
    """The median of each figure that all results have."""
    keys = [key for key in results[0] if key in TITLES and all(key in result for result in results)]
    return {key: median(results, key) for key in keys}


def number(value: float | None) -> str:
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def share(found: Found, key: str, of: str = PEER) -> float | None:
    """nerite's figure divided by another role's, if both are there."""
    ours, theirs = found.get(OURS, {}).get(key), found.get(of, {}).get(key)
    return ours / theirs if ours is not None and theirs else None


def ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if ours is not None and theirs else "–"
