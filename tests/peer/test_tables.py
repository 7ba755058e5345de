"""Are figures put into tables, bounds and pages as they were measured?"""

import argparse
import datetime
import types
from xml.etree import ElementTree

import pytest
from comparison import counters, page
from comparison.calls import read_latencies
from comparison.plots import draw
from comparison.report import LIMIT, OURS, PEER, Bound, Table, medians, number, ratio
from comparison.rows import ROWS, Row, chosen
from comparison.sides import measured

NAMES = {PEER: "Triton", OURS: "nerite", LIMIT: "limit"}
FOUND = {PEER: {"p50_us": 100, "server_cpu_us": 40}, OURS: {"p50_us": 50, "server_cpu_us": 10, "wake_ups": 1.5}, LIMIT: {"server_cpu_us": 5}}


def test_a_table_has_a_column_for_each_role_and_a_line_for_each_figure():
    table = Table("request", remark="Quickly.")
    table.add("HTTP", FOUND, Bound("server_cpu_us", most=1.6, of=LIMIT), Bound("server_cpu_us", most=0.25, of=PEER))
    assert table.markdown(NAMES) == [
        "| request | figure | Triton | nerite | ratio | limit | target |",
        "| --- | --- | --: | --: | --: | --: | --- |",
        "| HTTP | p50 µs | 100 | 50.0 | 0.50 | – | |",
        "| | server CPU µs | 40.0 | 10.0 | 0.25 | 5.00 | ≤ 1.6 × limit · **missed**; ≤ 0.25 × Triton · met |",
        "| | wake-ups | – | 1.50 | – | – | |",
        "",
        "Quickly.",
    ]


def test_columns_in_which_nothing_stands_are_left_out():
    table = Table("request")
    table.add("HTTP", {OURS: {"p50_us": 7}})
    assert table.markdown(NAMES) == ["| request | figure | nerite |", "| --- | --- | --: |", "| HTTP | p50 µs | 7.00 |"]


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        (Bound("p50_us", most=0.5, of=PEER), "≤ 0.5 × Triton · met"),
        (Bound("p50_us", most=0.49, of=PEER), "≤ 0.49 × Triton · **missed**"),
        (Bound("p50_us", most=49), "≤ 49 · **missed**"),
        (Bound("p50_us", least=50), "≥ 50 · met"),
        (Bound("p50_us", least=0.6, of=PEER), "≥ 0.6 × Triton · **missed**"),
        (Bound("server_cpu_us", most=1, of=LIMIT, plus=5), "≤ 1 × limit + 5 · met"),
        (Bound("server_cpu_us", most=1, of=LIMIT, plus=4), "≤ 1 × limit + 4 · **missed**"),
        (Bound("wake_ups", most=2, of=PEER), ""),
        (Bound("mib", most=15), ""),
    ],
)
def test_a_bound_is_met_or_missed_or_says_nothing_without_a_figure(bound, verdict):
    assert bound.verdict(FOUND, NAMES) == verdict


def test_numbers_and_ratios():
    assert [number(value) for value in (None, 0.123, 9.99, 10, 99.94, 1234.5, -1234.5)] == ["–", "0.12", "9.99", "10.0", "99.9", "1,234", "-1,234"]
    assert [ratio(1, 4), ratio(1, 0), ratio(None, 1), ratio(0, 1)] == ["0.25", "–", "–", "0.00"]


def test_medians_are_of_figures_that_all_results_have():
    results = [{"p50_us": 3, "wake_ups": 1}, {"p50_us": 1, "bytes": 64}, {"p50_us": 2, "wake_ups": 2}]
    assert medians(results) == {"p50_us": 2}


def test_the_order_is_a_b_b_a():
    order = []

    def measure(side):
        order.append(side.role)
        return {"p50_us": len(order)}

    sides = [types.SimpleNamespace(role=role) for role in ("a", "b", "c")]
    found = measured(sides, argparse.Namespace(runs=2), measure)
    assert "".join(order) == "abccba" * 2
    assert {role: figures["p50_us"] for role, figures in found.items()} == {"a": 6.5, "b": 6.5, "c": 6.5}


def test_rows_are_chosen_by_name():
    assert chosen([]) == list(ROWS)
    assert [row.name for row in chosen(["t7", "L1"])] == ["L1", "T7"]
    with pytest.raises(ValueError, match="no row L99: there are L1, inline, L2"):
        chosen(["L1", "L99"])


def test_reports_of_tools_are_read():
    perf = "# started\n\n2860,,raw_syscalls:sys_enter,1486787,100.00,,\n<not supported>,,instructions,0,100.00,,\n"
    assert counters.read_perf(perf) == {"system_calls": 2860}
    assert counters.read_perf("7,,instructions,1,100.00,,\n") == {"instructions": 7}
    strace = "% time     seconds  usecs/call     calls    errors syscall\n100.00    0.000646           4       143        18 total\n"
    assert counters.read_strace(strace) == {"system_calls": 143}
    latencies = "bare ping-pong     3.1µs p50     9.0µs p99\n32 in a packet   900.0ns p50     1.2ms p99\n"
    assert read_latencies(latencies) == {"bare ping-pong": 3.1, "32 in a packet": 0.9}


def test_without_tools_nothing_is_counted(monkeypatch):
    monkeypatch.setattr(counters.shutil, "which", lambda _: None)
    monkeypatch.setattr(counters, "answered", lambda *_: 0)
    side = types.SimpleNamespace(server=types.SimpleNamespace(pid=1))
    assert counters.calls_per_request(side, "m", lambda _: pytest.fail("nothing is to be run")) == {}


def test_the_summary_has_each_page_once_and_the_newest_first():
    day, later = datetime.date(2026, 11, 29), datetime.date(2026, 11, 30)
    summary = page.SUMMARY.read_text()
    once = page.with_page(summary, day)
    assert page.with_page(once, day) == once
    lines = page.with_page(once, later).splitlines()
    at = page.promises_at(lines)
    assert lines[at + 1 : at + 3] == ["  - [Measured on 2026-11-30](results/2026-11-30.md)", "  - [Measured on 2026-11-29](results/2026-11-29.md)"]


def test_a_row_that_failed_says_so():
    row = Row("T9", "Size", lambda _: [])
    assert page.section(row, "OSError: no file", NAMES) == "## T9: Size\n\nNot measured: OSError: no file\n"
    assert page.section(row, [Table("net", remark="no peer")], NAMES) == "## T9: Size\n\nnet: no peer\n"


def test_pictures_are_drawn_of_what_there_is(tmp_path):
    table = Table("request")
    table.add("HTTP shm, 64 B, c1", FOUND)
    (row,) = chosen(["L1"])
    assert list(draw([(row, [table])], NAMES, tmp_path, "today")) == ["today-cpu.svg", "today-ratios.svg"]
    cpu, ratios = ("".join(ElementTree.parse(tmp_path / f"today-{name}.svg").getroot().itertext()) for name in ("cpu", "ratios"))
    assert "40.0" in cpu and "L1: HTTP shm, 64 B, c1" in ratios and "nerite / Triton" in ratios
    assert draw([(row, "failed")], NAMES, tmp_path, "today") == {}
