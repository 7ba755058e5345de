"""What does a small network cost: T6, as far as the peer's Python backend lets it be compared?"""

import importlib.util

from .cells import CONCURRENCY
from .generator import measure_cell
from .report import median, ratio
from .sides import Side

DIGITS = ("--model=digits", "--input=image", "--output=probabilities", "--output-bytes=40", "--batch")


def network_table(sides: list[Side], options) -> list[str]:
    if not importlib.util.find_spec("onnxruntime"):
        return ["pending: this Python has no onnxruntime for the peer's model"]
    ours, theirs = (side.name for side in sides)
    lines = [f"| digit net by shm | p50 µs {ours} | {theirs} (onnxruntime in Python) | ratio "
             f"| server CPU µs {ours} | {theirs} | ratio |", "|---|--:|--:|--:|--:|--:|--:|"]
    for concurrency in options.concurrency or CONCURRENCY:
        for protocol in ("grpc", "http"):
            cell = (protocol, "shm", "256", concurrency)
            found = [[measure_cell(side, cell, options, *DIGITS) for side in sides] for _ in range(options.runs)]
            columns = []
            for key in ("p50_us", "server_cpu_us"):
                pair = [median([run[at] for run in found], key) for at in range(len(sides))]
                columns += [f"{value:,.0f}" for value in pair] + [ratio(*pair)]
            lines.append(f"| {'gRPC' if protocol == 'grpc' else 'HTTP'}, c{concurrency} | {' | '.join(columns)} |")
    return lines
