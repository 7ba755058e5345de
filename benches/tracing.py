#!/usr/bin/env python3
"""What does tracing cost a request?

    cargo build --release -p nerite-server --bin nerite
    .venv/bin/python benches/tracing.py                     # two minutes; NERITE_BIN names another binary

One server for each way (a file, a collector). Its tracing is switched off and on by turns, so that both sides of a pair meet the same machine. Every request is traced
while it is on. The collector takes posts and reads nothing of them; on a host with few cores it takes processor time from all.
"""

import argparse
import contextlib
import http.server
import os
import pathlib
import statistics
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "conformance"), str(ROOT / "tests" / "models")]
os.environ.setdefault("NERITE_BIN", str(ROOT / "target" / "release" / "nerite"))

import make_models  # noqa: E402
import servers  # noqa: E402
from clients import http_call  # noqa: E402
from comparison.generator import of_size, run_bench  # noqa: E402

CELLS = [("http", 1), ("grpc", 1), ("http", 8)]


class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=2, help="of each side of a pair")
    options.add_argument("--pairs", type=int, default=5)
    options = options.parse_args()
    print(f"medians of {options.pairs} pairs of {options.seconds:g} s; load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores\n")
    print("| traces go to | protocol, clients | p50 off | p50 on | difference | processor time of the server off | on | written | dropped |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, sink() as url:
        folder = pathlib.Path(folder)
        ways = {"a file": [f"--trace-config=triton,file={folder / 'trace.json'}"],
                "a collector": ["--trace-config=mode=opentelemetry", f"--trace-config=opentelemetry,url={url}"]}  # fmt: skip
        for way, flags in ways.items():
            with serving(folder, flags) as server:
                for protocol, clients in CELLS:
                    measure(way, server, protocol, clients, options)


def measure(way: str, server, protocol: str, clients: int, options) -> None:
    sides, before = {"OFF": [], "TIMESTAMPS": []}, outcomes(server)
    for _ in range(options.pairs):
        for level, found in sides.items():
            http_call(server.http, "POST", "/v2/trace/setting", {"trace_level": [level]}).ok()
            address = server.http if protocol == "http" else server.grpc
            cell = (protocol, "inline", "64", str(clients))
            found.append(run_bench(address, server.pid, cell, options.seconds, *of_size(cell)))
    median = lambda level, key: statistics.median(one[key] for one in sides[level])
    pairs = zip(sides["OFF"], sides["TIMESTAMPS"], strict=True)
    difference = statistics.median(on["p50_us"] - off["p50_us"] for off, on in pairs)
    after = outcomes(server)
    written, dropped = (after[name] - before[name] for name in ("written", "dropped"))
    print(
        f"| {way} | {protocol}, {clients} | {median('OFF', 'p50_us'):.1f} us | {median('TIMESTAMPS', 'p50_us'):.1f} us | {difference:+.1f} us | "
        f"{median('OFF', 'server_cpu_us'):.1f} us | {median('TIMESTAMPS', 'server_cpu_us'):.1f} us | {written} | {dropped} |",
        flush=True,
    )


def outcomes(server) -> dict[str, int]:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    found = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("nerite_traces_total")]
    return {name.split('"')[1]: int(float(value)) for name, value in found}


@contextlib.contextmanager
def serving(folder: pathlib.Path, flags: list[str]):
    models = folder / "models"
    if not models.exists():
        make_models.make_conformance(models)
    command, environment = servers.nerite_command(models)
    wanted = ["--model-control-mode=explicit", "--load-model=identity_fp32", "--trace-config=rate=1"]
    server = servers.start(command, environment, [*wanted, *flags], folder / "log")
    try:
        yield server
    finally:
        servers.stop(server)


@contextlib.contextmanager
def sink():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/v1/traces"
        listening.shutdown()


if __name__ == "__main__":
    main()
