"""What does a server add to a run of an ONNX model: T6, L7?"""

import statistics
import time

import numpy as np
import onnxruntime

from .batch import squeeze_net, write_net
from .cells import CONCURRENCY, PROTOCOLS, spelled
from .generator import measure_cell
from .report import LIMIT, PEER, Bound, Found, Table
from .repositories import ROOT
from .sides import NO_PEER, Bare, Run, digit_sides, measured, moved, running

DIGIT_BYTES = 256
# At most so much of what the peer adds.
SMALL_SHARE, LARGE_SHARE = 1 / 3, 1 / 2


def small_net(run: Run) -> list[Table]:
    """T6."""
    table = Table(f"digit net by shm; nerite: embedded engine, {run.peers_engine}; limit: onnxruntime in process, Python")
    bounds = run.targets(Bound("cpu_over_us", most=SMALL_SHARE, of=PEER))
    alone = in_process((ROOT / "examples" / "models" / "digits" / "1" / "model.onnx").read_bytes(), run.options.seconds)
    pair = digit_sides(run.pair, run.scratch)
    with running(pair, run.scratch, check=False):
        for protocol in PROTOCOLS:
            for many in run.options.concurrency or CONCURRENCY:
                cell = (protocol, "shm", str(DIGIT_BYTES), many)
                found = measured(
                    [*pair, alone],
                    run.options,
                    lambda side, cell=cell: measure_cell(side, cell, run.options.seconds, model="digits", is_fixed=True),
                )
                table.add(f"{spelled(protocol)}, c{many}", above(found, with_p50=many == "1"), *bounds)
    return [table]


def large_net(run: Run) -> list[Table]:
    """L7. Only the same engine on both sides is comparable."""
    table = Table("SqueezeNet by shm, c1, ONNX Runtime on one thread; limit: onnxruntime in process, Python")
    has_peer = run.peer.onnx_backend == "onnxruntime"
    if not has_peer:
        table.remark = NO_PEER
    sides = [run.with_onnxruntime(moved(side, run.scratch, "large")) for side in (run.pair if has_peer else [run.ours])]
    net = squeeze_net()
    for side in sides:
        write_net(side.repository, net, side.onnx_backend)
    alone = in_process(net.graph(), run.options.seconds)
    with running(sides, run.scratch, check=False):
        for protocol in PROTOCOLS:
            cell = (protocol, "shm", str(4 * net.inputs), "1")
            found = measured(
                [*sides, alone],
                run.options,
                lambda side, cell=cell: measure_cell(side, cell, run.options.seconds, model=net.models[0], is_fixed=True),
            )
            table.add(spelled(protocol), above(found), *run.targets(Bound("over_us", most=LARGE_SHARE, of=PEER)))
    return [table]


def in_process(graph: bytes, seconds: float) -> Bare:
    """Runs of a row each, on one thread. The processor time is that of this process."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options)
    (given,) = session.get_inputs()
    feed = {given.name: np.ones([size if isinstance(size, int) else 1 for size in given.shape], np.float32)}
    session.run(None, feed)

    def measure() -> dict[str, float]:
        times, used, end = [], time.process_time_ns(), time.monotonic() + seconds / 2
        while time.monotonic() < end:
            begin = time.perf_counter_ns()
            session.run(None, feed)
            times.append(time.perf_counter_ns() - begin)
        used = time.process_time_ns() - used
        return {"p50_us": statistics.median(times) / 1000, "server_cpu_us": used / 1000 / len(times)}

    return Bare(measure)


def above(found: Found, with_p50: bool = True) -> Found:
    """Adds what the figures are above those of the run in process. With several clients p50 has their wait for each other."""
    alone = found[LIMIT]
    for role, figures in found.items():
        if role == LIMIT:
            continue
        figures["cpu_over_us"] = figures["server_cpu_us"] - alone["server_cpu_us"]
        if with_p50:
            figures["over_us"] = figures["p50_us"] - alone["p50_us"]
    return found
