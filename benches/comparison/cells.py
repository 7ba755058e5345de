"""Which requests are measured?"""

SIZES = ("64", "4K", "256K", "4M", "64M")
CONCURRENCY = ("1", "16")
PROTOCOLS = ("http", "grpc")

# A cell is protocol, placement, bytes, concurrency.
Cell = tuple[str, str, str, str]


def byte_count(size: str) -> int:
    return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0)


def spelled(protocol: str) -> str:
    return "gRPC" if protocol == "grpc" else "HTTP"


def title(cell: Cell) -> str:
    protocol, placement, size, concurrency = cell
    return f"{spelled(protocol)} {placement}, {size} B, c{concurrency}"


def cells(options, placement: str, sizes: tuple[str, ...], concurrency: tuple[str, ...] = CONCURRENCY) -> list[Cell]:
    """All combinations of these, or of the sizes and numbers of clients that the command line names."""
    return [
        (protocol, placement, size, many)
        for size in options.bytes or sizes
        for protocol in PROTOCOLS
        for many in options.concurrency or concurrency
    ]
