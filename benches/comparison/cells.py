"""Which requests are measured, and what is promised of each?"""

import dataclasses

SIZES = ("64", "4K", "256K", "4M", "64M")
CONCURRENCY = ("1", "16")

# A cell is protocol, placement, bytes, concurrency.
Cell = tuple[str, str, str, str]


@dataclasses.dataclass
class Target:
    """What is promised of a cell: at most so much of the peer's CPU and p50, at least so much of its infer/s."""

    name: str
    cpu_max: float | None = None
    p50_max: float | None = None
    rate_min: float | None = None
    # p50 is held against 1.15 times a copy of as many bytes, and this much more, rather than against the peer.
    over_copy_us: float | None = None


def target_of(cell: Cell) -> Target | None:
    _, placement, size, concurrency = cell
    large = byte_count(size) >= 4 << 20
    if placement == "shm" and byte_count(size) <= 256 << 10:
        return Target(
            "T1", cpu_max=1 / 3, p50_max=2 / 3 if concurrency == "1" else None,
            rate_min=1.4 if concurrency == "16" else None,
        )
    if placement == "inline" and byte_count(size) <= 4 << 10:
        return Target("T2", cpu_max=1 / 2)
    if placement == "inline" and large and concurrency == "1":
        return Target("T3", cpu_max=1 / 2)
    if placement == "shm" and large and concurrency == "1":
        return Target("T4", over_copy_us=100)
    return None


def python_target_of(cell: Cell) -> Target | None:
    size = byte_count(cell[2])
    if size <= 64:
        return Target("T5", cpu_max=1 / 2, p50_max=1 / 2)
    return Target("T5", p50_max=1 / 3) if size >= 4 << 20 else None


def byte_count(size: str) -> int:
    return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)


def cells(options) -> list[Cell]:
    """Those with a target, by target; all combinations when sizes or concurrencies were asked for."""
    every = [
        (protocol, placement, size, concurrency)
        for placement in ("shm", "inline")
        for size in options.bytes or SIZES
        for concurrency in options.concurrency or CONCURRENCY
        for protocol in ("grpc", "http")
    ]
    if options.chosen:
        return every
    aimed = [(target.name, cell) for cell in every if (target := target_of(cell))]
    return [cell for _, cell in sorted(aimed, key=lambda pair: pair[0])]
