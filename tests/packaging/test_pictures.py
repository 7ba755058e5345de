"""Are the pictures of the README and the pages those that `packaging/pictures.py` makes?"""

import pathlib
import sys
from xml.etree import ElementTree

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "packaging"))

import pictures  # noqa: E402
from comparison import latency  # noqa: E402

# What `nerite top` writes: two looks, then it leaves the terminal as it was.
LOOKS = "\x1b[?1049h\x1b[?25l\x1b[Hold\x1b[K\r\n\x1b[K\x1b[J\x1b[Hnerite top\x1b[K\r\n\x1b[K\r\na<b  1\x1b[K\x1b[J\x1b[?25h\x1b[?1049l"


def words(picture: str) -> list[str]:
    return [text for text in (text.strip() for text in ElementTree.fromstring(picture).itertext()) if text]


@pytest.mark.parametrize("name", ["request", "latency"])
def test_a_picture_is_what_the_script_writes(name):
    assert (pictures.PICTURES / f"{name}.svg").read_text() == pictures.MADE[name](), f"python3 packaging/pictures.py {name}"


def test_latencies_are_those_of_the_newest_results():
    page = pictures.newest_results().read_text()
    names, lines = latency.lines_of(page)
    assert names[1] == "nerite" and sorted(lines) == [(0, "inline"), (0, "shm"), (1, "inline"), (1, "shm")]
    for points in lines.values():
        assert (points[0].size, points[-1].size) == (64, 64 << 20)
        for point in points:
            assert f" {point.p50_us:,.0f} " in page or f" {point.p50_us:.3g} " in page
    assert {f"{names[column]}, inline: {latency.duration(lines[column, 'inline'][-1].p50_us)}" for column in (0, 1)} <= set(words(latency.drawing(page)))


def test_a_page_without_the_figures_gives_no_picture():
    assert latency.drawing("# Measured on 2026-01-01\n\n## T9: Size\n\n| program | figure | nerite |\n| --- | --- | --: |\n| file | MB | 29.9 |\n") == ""


def test_a_screen_shows_the_last_look():
    lines = pictures.last_look(LOOKS)
    assert lines == ["nerite top", "", "a<b  1"]
    assert words(pictures.screen(lines, "title")) == ["title", "title", "nerite top", "a<b", "1"]


def test_labels_keep_apart():
    points = {key: [latency.Point(64, 100.0), latency.Point(1 << 26, 1000.0)] for key in ((0, "inline"), (0, "shm"), (1, "inline"), (1, "shm"))}
    found = [float(label.split(' y="')[1].split('"')[0]) for label in latency.labels(("a", "b"), points, (2, 3))]
    assert all(after - before >= latency.LABEL_STEP - 0.5 for before, after in zip(found, found[1:]))
