"""How long is the round trip that T10 is held against?"""

import statistics

from .generator import bench


def trip_lines(options) -> list[str]:
    trips = [bench("pingpong")[0]["p50_us"] for _ in range(options.runs)]
    return [f"64 bytes over a Unix socket between two processes and back: p50 {statistics.median(trips):.1f} µs."]
