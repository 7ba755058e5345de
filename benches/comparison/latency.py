"""How does the latency of a request grow with the size of its tensor, beside Triton?

A page of results gives the points. No library is needed, so that a test can compare the picture with the newest page.
"""

import dataclasses
import itertools
import math
import re
from xml.sax.saxutils import escape

from .cells import byte_count

# The sections with requests of one client that `nerite bench` sends, and the one of another load generator, for the sizes between.
SECTIONS, OTHER = ("L1", "inline", "L3", "L4", "T4"), "T2"
PLACEMENTS = {"inline": "in the message", "shm": "in shared memory"}
COLOURS = {0: "#6b7177", 1: "#1a66d6"}
WIDTH, HEIGHT = 800, 430
LEFT, RIGHT, TOP, BOTTOM = 76, 536, 66, 356
SIZES = (6, 26)
LABEL_STEP = 19


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    size: int
    p50_us: float
    is_other: bool = False


# By the column of a server and the placement of the tensor.
Lines = dict[tuple[int, str], list[Point]]


def lines_of(page: str) -> tuple[tuple[str, str], Lines]:
    """The names of the peer and of nerite, and the points of each line: requests of one client over HTTP."""
    names, found = ("", ""), {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        row = section.partition(":")[0]
        if row not in (*SECTIONS, OTHER):
            continue
        cell = None
        for fields in ([field.strip() for field in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")):
            if fields[1] == "figure":
                names = (fields[2], fields[3])
            if fields[0]:
                cell = re.fullmatch(r"HTTP (inline|shm), (\w+) B, c1", fields[0])
            if cell and fields[1] == "p50 µs":
                for column in (0, 1):
                    point = Point(byte_count(cell[2]), float(fields[2 + column].replace(",", "")), row == OTHER)
                    found.setdefault((column, cell[1], point.size), []).append(point)
    lines: Lines = {}
    for (column, placement, _), points in sorted(found.items()):
        # `nerite bench` wins where both generators measured a size.
        lines.setdefault((column, placement), []).append(min(points, key=lambda point: point.is_other))
    return names, lines


def drawing(page: str) -> str:
    """The picture of a page of results as SVG, or nothing if the page lacks the figures."""
    names, lines = lines_of(page)
    if len(lines) < 4:
        return ""
    decades = decades_of(point.p50_us for points in lines.values() for point in points)
    machine = re.search(r"^\| machine \| ([^;|]*?), \d+ GiB", page, re.M)
    day = re.search(r"^# Measured on (\S+)", page, re.M)
    about = "; ".join(["HTTP, one client, a model that returns its input", *(found[1] for found in (machine, day) if found)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="14" fill="#222">',
        "  <title>p50 latency of a request by the size of its tensor</title>",
        f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        text(24, 30, "p50 latency of a request by the size of its tensor", 'font-size="17" font-weight="bold"'),
        text(24, 50, about, 'font-size="13" fill="#555"'),
        *grid(decades),
        *itertools.chain.from_iterable(line(points, key, decades) for key, points in lines.items()),
        *labels(names, lines, decades),
        *notes(lines),
        "</svg>\n",
    ]
    return "\n".join(parts)


def decades_of(values) -> tuple[int, int]:
    values = list(values)
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def place(point: Point, decades: tuple[int, int]) -> tuple[float, float]:
    first, last = SIZES
    x = LEFT + (math.log2(point.size) - first) / (last - first) * (RIGHT - LEFT)
    low, high = decades
    y = BOTTOM - (math.log10(point.p50_us) - low) / (high - low) * (BOTTOM - TOP)
    return round(x, 1), round(y, 1)


def grid(decades: tuple[int, int]):
    for power in range(decades[0], decades[1] + 1):
        _, y = place(Point(1, 10.0**power), decades)
        yield f'  <path d="M{LEFT} {y}H{RIGHT}" stroke="#e3e6eb"/>'
        yield text(LEFT - 8, y + 5, duration(10.0**power), 'text-anchor="end" font-size="13" fill="#555"')
    for power in range(SIZES[0], SIZES[1] + 1, 4):
        x, _ = place(Point(1 << power, 10.0 ** decades[0]), decades)
        yield f'  <path d="M{x} {BOTTOM}v5" stroke="#888"/>'
        yield text(x, BOTTOM + 21, size_name(1 << power), 'text-anchor="middle" font-size="13" fill="#555"')


def line(points: list[Point], key: tuple[int, str], decades: tuple[int, int]):
    column, placement = key
    places = [place(point, decades) for point in points]
    dashes = ' stroke-dasharray="7 5"' if placement == "inline" else ""
    yield f'  <path d="M{" L".join(f"{x} {y}" for x, y in places)}" fill="none" stroke="{COLOURS[column]}" stroke-width="2.5"{dashes}/>'
    for point, (x, y) in zip(points, places, strict=True):
        fill = "#fff" if point.is_other else COLOURS[column]
        yield f'  <circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{COLOURS[column]}" stroke-width="2"/>'


def labels(names: tuple[str, str], lines: Lines, decades: tuple[int, int]):
    """A label at the end of each line. Labels of lines that end side by side are moved apart."""
    ends = sorted((place(points[-1], decades)[1], key, points[-1].p50_us) for key, points in lines.items())
    at = [end[0] for end in ends]
    for _ in range(len(at) * len(at)):
        for one in range(len(at) - 1):
            if (lack := LABEL_STEP - (at[one + 1] - at[one])) > 0:
                at[one], at[one + 1] = at[one] - lack / 2, at[one + 1] + lack / 2
    for y, (_, (column, placement), p50_us) in zip(at, ends, strict=True):
        words = f"{names[column]}, {placement.replace('shm', 'shared memory')}: {duration(p50_us)}"
        yield text(RIGHT + 12, round(y + 5, 1), words, f'font-size="13" fill="{COLOURS[column]}"')


def notes(lines: Lines):
    yield text((LEFT + RIGHT) / 2, BOTTOM + 42, "bytes of the tensor (log scale)", 'text-anchor="middle" font-size="13" fill="#555"')
    dots = "● nerite bench" + ("   ○ perf_analyzer" if any(point.is_other for points in lines.values() for point in points) else "")
    yield text(24, HEIGHT - 12, f"Dashed: {PLACEMENTS['inline']}.  Solid: {PLACEMENTS['shm']}.  Load generator: {dots}.", 'font-size="12" fill="#555"')


def duration(us: float) -> str:
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us:.3g} µs"


def size_name(size: int) -> str:
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size >> power} {unit}"
    return f"{size} B"


def text(x: float, y: float, words: str, attributes: str) -> str:
    return f'  <text x="{x}" y="{y}" {attributes}>{escape(words)}</text>'
