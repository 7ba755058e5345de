"""How are figures written: medians, ratios, tables in Markdown?"""

import statistics
import sys


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def median(results: list[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "–"
