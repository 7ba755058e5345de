"""Does a request cost the same among many regions, models and earlier requests: T11?"""

import contextlib
import dataclasses
import pathlib
import resource
import shutil
import socket

from .generator import measure_cell
from .memory import resident_mib
from .report import median, ratio
from .sides import Side, running

REGIONS = (1, 100, 10_000)
MODELS = (1, 500)
REQUESTS = 1_000_000
CONNECTIONS = (1, 1_000, 10_000)
# By default one client may have half of the connections.
CONNECTION_LIMITS = ("--connections-max=16000", "--connections-per-peer-max=12000")


def growth_table(sides: list[Side], options) -> list[str]:
    """What a request costs among few and many registered regions."""
    lines = ["| HTTP shm, 64 B, c1 | regions | p50 µs | server CPU µs | CPU against 1 region (target 0.9–1.1) |",
             "|---|--:|--:|--:|--:|"]
    for side in sides:
        found: dict = {}
        for _ in range(options.runs):
            for count in REGIONS:
                cell = measure_cell(side, ("http", "shm", "64", "1"), options, f"--regions={count}")
                found.setdefault(count, []).append(cell)
        first = median(found[REGIONS[0]], "server_cpu_us")
        for count, cells_found in found.items():
            cpu = median(cells_found, "server_cpu_us")
            p50 = median(cells_found, "p50_us")
            lines.append(f"| {side.name} | {count:,} | {p50:.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines


def models_table(sides: list[Side], scratch: pathlib.Path, options) -> list[str]:
    """What a request costs among few and many loaded models."""
    lines = ["| HTTP shm, 64 B, c1 | models | p50 µs | server CPU µs | CPU against 1 model (target 0.9–1.1) |",
             "|---|--:|--:|--:|--:|"]
    for side in sides:
        first = None
        for count in MODELS:
            repository = scratch / f"{side.name}_{count}".replace(" ", "_")
            for name in ["identity_fp32"] + [f"other_{number}" for number in range(1, count)]:
                shutil.copytree(side.repository / "identity_fp32", repository / name)
                config = repository / name / "config.pbtxt"
                config.write_text(config.read_text().replace('"identity_fp32"', f'"{name}"'))
            command = [part.replace(str(side.repository), str(repository)) for part in side.command]
            crowded = dataclasses.replace(side, command=command)
            with running([crowded], scratch):
                found = [measure_cell(crowded, ("http", "shm", "64", "1"), options) for _ in range(options.runs)]
            cpu, p50 = median(found, "server_cpu_us"), median(found, "p50_us")
            first = first or cpu
            lines.append(f"| {side.name} | {count} | {p50:.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines


def requests_table(side: Side, options) -> list[str]:
    """What the last of many requests cost against the first, and what they leave in memory."""
    lines = [f"| HTTP shm, 64 B, c16, {side.name} | requests before | server CPU µs | resident MiB |", "|---|--:|--:|--:|"]
    answered = 0
    while True:
        cell = measure_cell(side, ("http", "shm", "64", "16"), options)
        if answered == 0 or answered >= REQUESTS:
            lines.append(f"| | {answered:,} | {cell['server_cpu_us']:.1f} | {resident_mib(side.server.pid):.0f} |")
        if answered >= REQUESTS:
            return lines
        answered += int(cell["per_second"] * options.seconds)


def connections_table(side: Side, scratch: pathlib.Path, options) -> list[str]:
    """What a request costs beside few and many idle connections."""
    lines = ["| HTTP shm, 64 B, c1 | idle connections | p50 µs | server CPU µs | CPU against 1 connection (target 0.9–1.1) |",
             "|---|--:|--:|--:|--:|"]
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    roomy = dataclasses.replace(side, command=[*side.command, *CONNECTION_LIMITS])
    first = None
    with running([roomy], scratch), contextlib.ExitStack() as idle:
        host, port = roomy.server.http.split(":")
        opened = 0
        for count in CONNECTIONS:
            while opened < count:
                # One request each. A connection that sent none is ended sooner.
                connection = idle.enter_context(socket.create_connection((host, int(port))))
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200"), f"connection {opened} was refused"
                opened += 1
            found = [measure_cell(roomy, ("http", "shm", "64", "1"), options) for _ in range(options.runs)]
            cpu, p50 = median(found, "server_cpu_us"), median(found, "p50_us")
            first = first or cpu
            lines.append(f"| {side.name} | {count:,} | {p50:.0f} | {cpu:.1f} | {ratio(cpu, first)} |")
    return lines
