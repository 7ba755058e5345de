#!/usr/bin/env python3
"""What does the proxy of a fleet add to a request?

    NERITE_BIN=target/release/nerite .venv/bin/python benches/fleet.py        # needs tests/fleet/setup_fleet.py

Prints the p50 of one client without and with the proxy, for each protocol and size, in microseconds. Both ways are measured by turns.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "fleet"), str(ROOT / "tests" / "conformance")]

import nodes  # noqa: E402
import servers  # noqa: E402
import setup_fleet  # noqa: E402

import nerite  # noqa: E402
from nerite.fleet import _envoy, _spec  # noqa: E402

ROUNDS = 3
SIZES = {"64 B": 16, "64 KiB": 16 << 10, "1 MiB": 256 << 10}
LOOPBACK = "127.0.0.1"


def p50_us(protocol: str, place: str, elements: int) -> float:
    """The median latency of one client."""
    command = [nodes.NERITE, "bench", "-m", "identity_fp32", "-u", place, "-i", protocol, "--shape", f"INPUT0:{elements}", "-p", "1000", "-r", "4", "-s", "0", "--json"]
    # It ends with 2 where windows differ.
    printed = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=False).stdout
    return float(json.loads(printed)["points"][0]["client"]["latency"]["percentiles"]["p50_us"])


def main() -> None:
    models = ROOT / "examples" / "models"
    http_port, grpc_port = servers.free_ports(2)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, nerite.serve(models) as direct, nerite.serve(models, trusted_proxies=[LOOPBACK]) as behind:
        ports = [int(place.rpartition(":")[2]) for place in (behind.http, behind.grpc)]
        for name, content in _envoy.endpoint_files([_envoy.Endpoint(LOOPBACK, *ports)]).items():
            pathlib.Path(folder, name).write_text(content)
        proxy = _spec.Proxy(address=LOOPBACK, http_port=http_port, grpc_port=grpc_port)
        config = pathlib.Path(folder, "bootstrap.json")
        config.write_text(json.dumps(_envoy.bootstrap("bench", proxy, folder, 1)))
        program = next(setup_fleet.place().glob("lib/python*/site-packages/envoy/_bin/envoy"))
        envoy = subprocess.Popen([program, "-c", config, "--use-dynamic-base-id", "-l", "error"])
        try:
            nodes.until("the proxy is ready", lambda: is_ready(f"{LOOPBACK}:{http_port}"))
            print("| protocol, size | direct | by the proxy | adds |\n|---|---|---|---|")
            for protocol, place, by in (("http", direct.http, http_port), ("grpc", direct.grpc, grpc_port)):
                for size, elements in SIZES.items():
                    rows = [(p50_us(protocol, place, elements), p50_us(protocol, f"{LOOPBACK}:{by}", elements)) for _ in range(ROUNDS)]
                    one, two = (statistics.median(column) for column in zip(*rows))
                    print(f"| {protocol}, {size} | {one:.0f} | {two:.0f} | {two - one:.0f} |", flush=True)
        finally:
            envoy.terminate()
            envoy.wait()


def is_ready(place: str) -> bool:
    from nerite import _probe

    try:
        return _probe.get(place, "/v2/health/ready")[0] == 200
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
