"""Does a request cost the same among many regions, models, connections and earlier requests: T11?"""

import contextlib
import dataclasses
import os
import resource
import shutil
import socket

from clients import HttpClient
from regions import SHM

from .cells import Cell
from .counters import resident_mib
from .generator import measure_cell
from .report import OURS, Bound, Found, Table
from .sides import Run, Side, measured, running, with_flags

REGIONS = (1, 100, 10_000)
REGION_BYTES = 4096
MODELS = (1, 500)
REQUESTS = 1_000_000
CONNECTIONS = (1, 1_000, 10_000)
# By default one client may have half of the connections.
CONNECTION_LIMITS = ("--connections-max=16000", "--connections-per-peer-max=12000")
CELL: Cell = ("http", "shm", "64", "1")
# The cost that grows, against that of the first line.
FLAT = (Bound("cpu_growth", most=1.1),)


def growth(run: Run) -> list[Table]:
    return [regions(run), models(run), connections(run), *([] if run.options.quick else [requests(run)])]


def regions(run: Run) -> Table:
    """What a request costs beside few and many registered regions that no request uses. Each has its own object, because Triton 2.51 fails if a key is
    registered twice."""
    found, made = {}, 0
    with running(run.pair, run.scratch), contextlib.ExitStack() as held:
        for count in REGIONS[:2] if run.options.quick else REGIONS:
            for number in range(made, count):
                for side in run.pair:
                    # Only the server opens it: this process may not have so many files open.
                    other = SHM / f"nerite_growth_{os.getpid()}_{side.role}_{number}"
                    held.callback(other.unlink, missing_ok=True)
                    other.write_bytes(bytes(REGION_BYTES))
                    HttpClient(side.server.http).register_system(other.name, f"/{other.name}", REGION_BYTES)
            made = count
            found[count] = measured(run.pair, run.options, lambda side: measure_cell(side, CELL, run.options.seconds))
    return with_growth(Table("registered regions, HTTP shm, 64 B, c1"), found)


def models(run: Run) -> Table:
    """What a request costs among few and many loaded models."""
    found = {}
    for count in (1, 50) if run.options.quick else MODELS:
        crowded = [crowd(side, run, count) for side in run.pair]
        with running(crowded, run.scratch):
            found[count] = measured(crowded, run.options, lambda side: measure_cell(side, CELL, run.options.seconds))
    return with_growth(Table("loaded models, HTTP shm, 64 B, c1"), found)


def crowd(side: Side, run: Run, count: int) -> Side:
    repository = run.scratch / f"models_{count}_{side.repository.name}"
    for name in ["identity_fp32"] + [f"other_{number}" for number in range(1, count)]:
        shutil.copytree(side.repository / "identity_fp32", repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace('"identity_fp32"', f'"{name}"'))
    command = [part.replace(str(side.repository), str(repository)) for part in side.command]
    return dataclasses.replace(side, command=command, repository=repository)


def requests(run: Run) -> Table:
    """What the last of many requests cost against the first, and what they leave in memory."""
    table = Table("requests before, HTTP shm, 64 B, c16")
    side, found, answered = run.ours, {}, 0
    with running([side], run.scratch):
        while True:
            one = measure_cell(side, ("http", "shm", "64", "16"), run.options.seconds)
            if not found or answered >= REQUESTS:
                found[answered] = {OURS: {"server_cpu_us": one["server_cpu_us"], "mib": resident_mib(side.server.pid)}}
            if answered >= REQUESTS:
                return with_growth(table, found)
            answered += int(one["per_second"] * run.options.seconds)


def connections(run: Run) -> Table:
    """What a request costs beside few and many idle connections."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    roomy = with_flags(run.ours, *CONNECTION_LIMITS)
    found, opened = {}, 0
    with running([roomy], run.scratch), contextlib.ExitStack() as idle:
        host, port = roomy.server.http.split(":")
        for count in CONNECTIONS[:2] if run.options.quick else CONNECTIONS:
            while opened < count:
                # One request each. A connection that sent none is ended sooner.
                connection = idle.enter_context(socket.create_connection((host, int(port))))
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200"), f"connection {opened} was refused"
                opened += 1
            found[count] = measured([roomy], run.options, lambda side: measure_cell(side, CELL, run.options.seconds))
    return with_growth(Table("idle connections, HTTP shm, 64 B, c1"), found)


def with_growth(table: Table, found: dict[int, Found]) -> Table:
    first = next(iter(found.values()))
    for count, roles in found.items():
        for role, figures in roles.items():
            figures["cpu_growth"] = figures["server_cpu_us"] / max(0.1, first[role]["server_cpu_us"])
        table.add(f"{count:,}", roles, *([] if roles is first else FLAT))
    return table
