"""Which pictures show the results at a glance?"""

import pathlib

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot  # noqa: E402

from .page import Results  # noqa: E402
from .report import LIMIT, OURS, PEER, Line, share  # noqa: E402

COLOURS = {PEER: "#9aa0a6", OURS: "#1a73e8", LIMIT: "#34a853"}
# The rows whose ratios are drawn.
RATIO_ROWS = ("L1", "L4", "T2", "L3", "T4", "T5", "L14", "L15")
RATIO_KEYS = {"p50_us": "p50", "server_cpu_us": "server CPU"}
# Text stays text, and equal results give equal files.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "nerite", "font.size": 9}


def draw(results: Results, names: dict[str, str], folder: pathlib.Path, day: str) -> dict[str, str]:
    """Writes the pictures for which there are results, and gives their names and what they show. Each day has its own."""
    made = {}
    with pyplot.rc_context(STYLE):
        if small := lines_of(results, ("L1",)):
            made[f"{day}-cpu.svg"] = "Server CPU of a small request"
            save(small_requests(small, names), folder / f"{day}-cpu.svg")
        if compared := [line for line in lines_of(results, RATIO_ROWS) if line.found.get(PEER)]:
            made[f"{day}-ratios.svg"] = f"Ratios of {names[OURS]} to {names[PEER]}: p50 and server CPU"
            save(ratios(compared, names), folder / f"{day}-ratios.svg")
    return made


def lines_of(results: Results, rows: tuple[str, ...]) -> list[Line]:
    measured = [(row.name, table) for row, found in results if row.name in rows and isinstance(found, list) for table in found]
    return [Line(f"{name}: {line.what}", line.found) for name, table in measured for line in table.lines]


def small_requests(lines: list[Line], names: dict[str, str]):
    """Bars of the processor time of a request."""
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.55 * len(lines)), layout="constrained")
    height = 0.26
    for at, role in enumerate((LIMIT, OURS, PEER)):
        values = [line.found.get(role, {}).get("server_cpu_us", 0) for line in lines]
        places = [place + (1 - at) * height for place in range(len(lines))]
        axes.bar_label(axes.barh(places, values, height, label=names[role], color=COLOURS[role]), fmt="%.1f", padding=2)
    axes.set_yticks(range(len(lines)), [line.what for line in lines])
    axes.invert_yaxis()
    # Room for the numbers.
    axes.margins(x=0.09)
    axes.set_xlabel("server CPU of a request, µs")
    axes.legend(frameon=False)
    return figure


def ratios(lines: list[Line], names: dict[str, str]):
    """A dot for each ratio, on a logarithmic scale. Left of the line nerite is better."""
    figure, axes = pyplot.subplots(figsize=(7, 0.9 + 0.2 * len(lines)), layout="constrained")
    for key, marker in zip(RATIO_KEYS, "os"):
        pairs = [(value, at) for at, line in enumerate(lines) if (value := share(line.found, key))]
        axes.scatter([value for value, _ in pairs], [at for _, at in pairs], s=22, marker=marker, label=RATIO_KEYS[key])
    axes.grid(axis="y", color="#e8eaed")
    axes.set_axisbelow(True)
    axes.axvline(1, color="#5f6368", linewidth=1)
    axes.set_xscale("log")
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [line.what for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel(f"{names[OURS]} / {names[PEER]}")
    axes.legend(frameon=False)
    return figure


def save(figure, path: pathlib.Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
