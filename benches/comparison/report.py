"""How are figures written: medians, ratios, tables in Markdown?"""

import statistics
import sys


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def median(results: list[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)


def table_head(what: str, ours: str, theirs: str) -> list[str]:
    """The first two lines of a table whose rows compare throughput, latency and processor time with a target."""
    return [
        f"| {what} | infer/s {ours} | {theirs} | ratio | p50 µs {ours} | {theirs} | ratio | server CPU µs {ours} | {theirs} | ratio | target |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "–"
