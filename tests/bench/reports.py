"""What do the reports of perf_analyzer and of `nerite bench` say?

One reader for both programs. It knows each line of perf_analyzer 2.46 and refuses others, so a report that it reads has
perf_analyzer's layout. What only `nerite bench` writes is the block `Cost:`.
"""

import csv
import io
import json
import re
from dataclasses import dataclass, field

NUMBER = r"(-?[0-9.]+(?:e[+-]\d+)?)"
# The exact text of a settings line, but for numbers and names.
SETTINGS = [
    r"  Batch size: \d+",
    r"  Service Kind: TRITON",
    r'  Using "(?:time|count)_windows" mode for stabilization',
    r"  Stabilizing using (?:average|p\d+) latency",
    r"  Measurement window: \d+ msec",
    r"  Minimum number of samples in each window: \d+",
    r"  Sending a total of \d+ requests",
    r"  Latency limit: \d+ msec",
    r"  Concurrency limit: \d+ concurrent requests",
    rf"  Request Rate limit: {NUMBER} requests per seconds",
    r"  Using (?:uniform|poisson) distribution on request generation",
    r"  Using Binary Search algorithm",
    r"  Using (?:a?synchronous) calls for inference",
    r"  Detected decoupled model, using the first response for measuring latency",
]
# Each line of a block, and the names of its numbers.
CLIENT = [
    (rf"    Request count: {NUMBER}", ["requests"]),
    (rf"    Avg send request rate: {NUMBER} infer/sec", ["send_rate"]),
    (
        r"    \[WARNING\] Perf Analyzer was not able to keep up with the desired request rate. "
        rf"{NUMBER}% of the requests were delayed. ",
        ["late_percent"],
    ),
    (rf"    Sequence count: {NUMBER} \({NUMBER} seq/sec\)", ["sequences", "sequences_per_second"]),
    (rf"    Throughput: {NUMBER} infer/sec", ["throughput"]),
    (rf"    Response Throughput: {NUMBER} infer/sec", ["response_throughput"]),
    (rf"    Avg client overhead: {NUMBER}%", ["overhead_percent"]),
    (rf"    Avg latency: {NUMBER} usec \(standard deviation {NUMBER} usec\)", ["mean_us", "deviation_us"]),
    (rf"    p50 latency: {NUMBER} usec", ["p50_us"]),
    (rf"    p80 latency: {NUMBER} usec", ["p80_us"]),
    (rf"    p90 latency: {NUMBER} usec", ["p90_us"]),
    (rf"    p95 latency: {NUMBER} usec", ["p95_us"]),
    (rf"    p99 latency: {NUMBER} usec", ["p99_us"]),
    (
        rf"    Avg (?:HTTP|session) time: {NUMBER} usec \(send/recv {NUMBER} usec \+ response wait {NUMBER} usec\)",
        ["transfer_us", "exchange_us", "wait_us"],
    ),
    (
        rf"    Avg (?:HTTP|session) time: {NUMBER} usec \(send {NUMBER} usec \+ response wait {NUMBER} usec \+ receive {NUMBER} usec\)",
        ["transfer_us", "send_us", "wait_us", "receive_us"],
    ),
    (
        rf"    Avg gRPC time: {NUMBER} usec \(\(un\)marshal request/response {NUMBER} usec \+ response wait {NUMBER} usec\)",
        ["transfer_us", "exchange_us", "wait_us"],
    ),
    (
        rf"    Avg gRPC time: {NUMBER} usec \(marshal {NUMBER} usec \+ response wait {NUMBER} usec \+ unmarshal {NUMBER} usec\)",
        ["transfer_us", "send_us", "wait_us", "receive_us"],
    ),
    # In place of the last ones, where a request has several responses.
    (r"    ", []),
]
STAGES = rf"compute input {NUMBER} usec \+ compute infer {NUMBER} usec \+ compute output {NUMBER} usec"
STAGE_NAMES = ["input_us", "infer_us", "output_us"]
# Without the indentation, which is checked by itself.
SERVER = [
    (rf"Request count: {NUMBER}", ["requests"]),
    (rf"Inference count: {NUMBER}", ["inferences"]),
    (rf"Execution count: {NUMBER}", ["executions"]),
    (rf"Cache hit count: {NUMBER}", ["hits"]),
    (rf"Cache miss count: {NUMBER}", ["misses"]),
    (rf"Successful request count: {NUMBER}", ["successes"]),
    (
        rf"Avg request latency: {NUMBER} usec \(overhead {NUMBER} usec \+ queue {NUMBER} usec \+ {STAGES}\)",
        ["request_us", "overhead_us", "queue_us", *STAGE_NAMES],
    ),
    (
        rf"Avg request latency: {NUMBER} usec \(overhead {NUMBER} usec \+ queue {NUMBER} usec \+ compute {NUMBER} usec\)",
        ["request_us", "overhead_us", "queue_us", "compute_us"],
    ),
    (
        rf"Avg request latency: {NUMBER} usec \(overhead {NUMBER} usec \+ queue {NUMBER} usec \+ cache hit/miss {NUMBER} usec\)",
        ["request_us", "overhead_us", "queue_us", "cached_us"],
    ),
    (rf"Avg request latency: {NUMBER} usec", ["request_us"]),
]
CACHE = [
    (rf"Average Cache Hit Latency: {NUMBER} usec", ["hit_us"]),
    (
        rf"Average Cache Miss Latency: {NUMBER} usec \(cache lookup/insertion {NUMBER} usec \+ {STAGES}\)",
        ["miss_us", "lookup_us", *STAGE_NAMES],
    ),
    (rf"Average Cache Miss Latency: {NUMBER} usec ", ["miss_us"]),
]
COST = [
    (rf"    Client CPU: {NUMBER} usec/request, {NUMBER} wake-ups/request", ["client_cpu_us", "client_wake_ups"]),
    (rf"    Server CPU: {NUMBER} usec/request, {NUMBER} wake-ups/request", ["server_cpu_us", "server_wake_ups"]),
    (rf"    Server CPU: {NUMBER} usec/request", ["server_cpu_us"]),
    (r"    Server CPU: unknown, because its process is not visible here", []),
    (rf"    Server copies: {NUMBER} bytes/request", ["copied_bytes"]),
    (rf"    Cores asleep: {NUMBER}% of the time", ["idle_percent"]),
    (rf"    Peak memory: client {NUMBER} MiB", ["client_mib"]),
    (rf"    Peak memory: client {NUMBER} MiB, server {NUMBER} MiB", ["client_mib", "server_mib"]),
    (r"    Client and server ran on the same core.", []),
]
PASS = [
    (
        rf"  Pass \[{NUMBER}\] throughput: {NUMBER} infer/sec. Avg latency: {NUMBER} usec \(std {NUMBER} usec\). ",
        ["number", "throughput", "latency_us", "deviation_us"],
    ),
    (rf"  Pass \[{NUMBER}\] throughput: {NUMBER} infer/sec. p\d+ latency: {NUMBER} usec", ["number", "throughput", "latency_us"]),
]
GRAPHICS = [
    "    Avg GPU Utilization:",
    "    Avg GPU Power Usage:",
    "    Max GPU Memory Usage:",
    "    Total GPU Memory:",
]
SUMMARY_HEADING = r"Inferences/Second vs. Client (?:Average|p\d+) Batch Latency"
SUMMARY = rf"(Concurrency|Request Rate): {NUMBER}, throughput: {NUMBER} infer/sec, latency {NUMBER} usec"

STAGE_COLUMNS = [
    "Network+Server Send/Recv",
    "Server Queue",
    "Server Compute Input",
    "Server Compute Infer",
    "Server Compute Output",
]
CACHE_COLUMNS = ["Server Cache Hit", "Server Cache Miss"]
PERCENTILE_COLUMNS = ["p50 latency", "p90 latency", "p95 latency", "p99 latency"]
VERBOSE_COLUMNS = ["Avg latency", "request/response", "response wait"]
GRAPHICS_COLUMNS = ["Avg GPU Utilization", "Avg GPU Power Usage", "Max GPU Memory Usage", "Total GPU Memory"]


@dataclass
class Server:
    """The server's figures of one model, and those of the models it calls, by name and version."""

    figures: dict[str, float] = field(default_factory=dict)
    composing: dict[tuple[str, str], "Server"] = field(default_factory=dict)


@dataclass
class Level:
    """One level of load. `mode` is None where requests are sent at the times of a file."""

    mode: str | None = None
    value: float | None = None
    passes: list[dict[str, float]] = field(default_factory=list)
    client: dict[str, float] = field(default_factory=dict)
    server: Server | None = None
    has_graphics: bool = False
    cost: dict[str, float] | None = None


@dataclass
class Report:
    """What stands on the console. A line of the summary is mode, level, throughput and latency in µs."""

    settings: list[str]
    levels: list[Level]
    summary: list[tuple[str, float, float, float]]


def numbers(line: str, forms: list[tuple[str, list[str]]]) -> dict[str, float] | None:
    """The numbers of a line by their names, or None if it has none of these forms."""
    for form, names in forms:
        if found := re.fullmatch(form, line):
            return dict(zip(names, map(float, found.groups()), strict=True))
    return None


class Lines:
    """The lines of a report, one after the other."""

    def __init__(self, text: str):
        # Such a line is written before the settings where input comes from files.
        self.rest = [line for line in text.splitlines() if not line.startswith(" Successfully read data for ")]

    def peek(self) -> str | None:
        return self.rest[0] if self.rest else None

    def take(self, line: str) -> bool:
        """Whether the next line is this one, which is then behind us."""
        if self.peek() != line:
            return False
        del self.rest[0]
        return True

    def block(self, forms: list[tuple[str, list[str]]]) -> dict[str, float]:
        """The numbers of all lines that have these forms."""
        found = {}
        while self.rest and (more := numbers(self.rest[0], forms)) is not None:
            twice = found.keys() & more.keys()
            assert not twice, f"{twice} stand twice: {self.rest[0]}"
            found |= more
            del self.rest[0]
        return found


def read_console(text: str) -> Report:
    """Reads the standard output of a run. An unknown line is an error."""
    lines = Lines(text)
    assert lines.take("*** Measurement Settings ***"), text
    settings = []
    while not lines.take(""):
        line = lines.rest.pop(0)
        assert any(re.fullmatch(form, line) for form in SETTINGS), f"no setting: {line!r}"
        settings.append(line.strip())
    levels, summary = [], []
    while lines.rest:
        if re.fullmatch(SUMMARY_HEADING, lines.peek()):
            del lines.rest[0]
            summary = read_summary(lines)
            break
        levels.append(read_level(lines))
    assert not lines.rest, f"unknown line: {lines.peek()!r}"
    return Report(settings, levels, summary)


def read_level(lines: Lines) -> Level:
    level = Level()
    if found := re.fullmatch(r"Request concurrency: (\d+)", lines.peek()):
        level.mode, level.value = "concurrency", float(found[1])
        del lines.rest[0]
    elif found := re.fullmatch(rf"Request Rate: {NUMBER} inference requests per seconds", lines.peek()):
        level.mode, level.value = "request_rate", float(found[1])
        del lines.rest[0]
    while lines.rest and (found := numbers(lines.peek(), PASS)) is not None:
        level.passes.append(found)
        del lines.rest[0]
    if lines.take("  Client: "):
        level.client = lines.block(CLIENT)
        assert level.client["requests"] > 0, level.client
    elif level.mode is None:
        raise AssertionError(f"unknown line: {lines.peek()!r}")
    if lines.take("  Server: "):
        level.server = read_server(lines, 4)
    if lines.take("  Server Prometheus Metrics: "):
        level.has_graphics = True
        read_graphics(lines)
    if lines.take("  Cost: "):
        level.cost = lines.block(COST)
        assert lines.take(""), f"no empty line after the cost: {lines.peek()!r}"
    return level


def read_server(lines: Lines, indent: int) -> Server:
    server = Server()
    server.figures = lines.block([(" " * indent + form, names) for form, names in SERVER])
    assert server.figures, f"unknown line: {lines.peek()!r}"
    if server.figures.keys() == {"requests"}:
        return server
    server.figures |= lines.block([(" " * (2 * indent - 2) + form, names) for form, names in CACHE])
    assert lines.take(""), f"no empty line after the server's times: {lines.peek()!r}"
    outer = " " * (indent - 2)
    if lines.take(f"{outer}Composing models: "):
        while found := re.fullmatch(rf"{outer}(\S+), version: (\d+)", lines.peek() or ""):
            del lines.rest[0]
            server.composing[found[1], found[2]] = read_server(lines, indent + 2)
    return server


def read_graphics(lines: Lines) -> None:
    for heading in GRAPHICS:
        assert lines.take(heading), f"no {heading!r}: {lines.peek()!r}"
        while re.fullmatch(rf"      \S+ : {NUMBER}(?:%| watts| bytes)", lines.peek() or ""):
            del lines.rest[0]


def read_summary(lines: Lines) -> list[tuple[str, float, float, float]]:
    summary = []
    while found := re.fullmatch(SUMMARY, lines.peek() or ""):
        summary.append((found[1], *map(float, found.groups()[1:])))
        del lines.rest[0]
    return summary


def columns(load: str, *, decoupled=False, server=True, cached=False, percentile=None, verbose=False, graphics=False) -> list[str]:
    """The header of a CSV file, in perf_analyzer's order."""
    percentiles = sorted({*PERCENTILE_COLUMNS, *([f"p{percentile} latency"] if percentile else [])})
    more = [name for name in VERBOSE_COLUMNS if name != "Avg latency" or percentile is None] if verbose else []
    return [
        load,
        "Inferences/Second",
        *(["Response Throughput"] if decoupled else []),
        "Client Send",
        *(STAGE_COLUMNS if server else []),
        *(CACHE_COLUMNS if server and cached else []),
        "Client Recv",
        *percentiles,
        *more,
        *(GRAPHICS_COLUMNS if verbose and graphics else []),
    ]


def read_csv(text: str) -> list[dict[str, float]]:
    """The rows by their columns. Those of graphics cards stay text."""
    header, *rows = csv.reader(io.StringIO(text))
    numeric = [name not in GRAPHICS_COLUMNS for name in header]
    assert all(len(row) == len(header) for row in rows), text
    return [
        {name: float(cell) if is_number else cell for name, cell, is_number in zip(header, row, numeric, strict=True)} for row in rows
    ]


@dataclass
class Request:
    """A request of an exported file, with times in ns since 1970."""

    start_ns: int
    sequence_id: int
    responses_ns: list[int]


@dataclass
class Experiment:
    """The requests of one level."""

    mode: str
    value: float
    requests: list[Request]
    windows_ns: list[int]


def read_export(text: str) -> list[Experiment]:
    """Reads a file of `--profile-export-file`."""
    # Contents of tensors are bytes, which perf_analyzer writes as if they were text.
    document = json.loads(text)
    assert document.keys() == {"experiments", "version", "service_kind", "endpoint"}, document.keys()
    assert (document["service_kind"], document["endpoint"]) == ("triton", ""), document
    return [read_experiment(one) for one in document["experiments"]]


def read_experiment(one: dict) -> Experiment:
    assert one.keys() == {"experiment", "requests", "window_boundaries"}, one.keys()
    assert one["experiment"]["mode"] in ("concurrency", "request_rate"), one["experiment"]
    requests = []
    for request in one["requests"]:
        keys = {"timestamp", "request_inputs", "response_timestamps", "response_outputs"}
        assert request.keys() - {"sequence_id"} == keys, request.keys()
        responses = request["response_timestamps"]
        assert len(request["response_outputs"]) == len(responses), request
        assert [request["timestamp"], *responses] == sorted([request["timestamp"], *responses]), request
        requests.append(Request(request["timestamp"], request.get("sequence_id", 0), responses))
    windows = one["window_boundaries"]
    assert windows == sorted(windows), windows
    return Experiment(one["experiment"]["mode"], one["experiment"]["value"], requests, windows)
