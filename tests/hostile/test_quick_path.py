"""What if a model was quick a few hundred times, and then a client sends what is not?

Requests that are known to be quick run on the thread that serves the connection, and everybody else on that thread waits meanwhile.
"""

import contextlib
import http.client
import threading
import time

import graphs
import make_models
import numpy as np
import onnx
import pytest
from busy import front_threads_come_back, polls
from clients import Given, Refused, fp32, open_client
from server_setup import onnxruntime_library

QUICK_TIMES = 300
# How long the slow request is to last. Health must be answered many times meanwhile.
SLOW_S = 6.0
# What one answer about the server's health may take on a machine that is busy with other things.
HEALTH_S_MAX = 3.0
# Bytes of both sides of the product: 16 KiB, as in [1,2048] by [2048,1].
LONG = 2048
WIDE = 8192
# As many as are done in a fraction of a millisecond if they have results, and in a third of a second if not.
DIVISIONS = 20_000


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def server(request, launcher):
    if launcher.oracle:
        pytest.skip("2.51 here has no ONNX backend")
    name = f"quick_path_{request.param}"
    repository = launcher.copy_of(name, "identity_fp32")
    make_models.put(repository, "counted_loop", graphs.counted_loop())
    make_models.put(repository, "product_sum", graphs.product_sum())
    put_remainders(repository)
    library = "none" if request.param == "embedded" else onnxruntime_library()
    # One thread for all connections, as on a machine with two cores.
    flags = [f"--onnxruntime-library={library}", "--http-thread-count=1", "--exit-timeout-secs=1"]
    with launcher.running(name, *flags, repository=repository) as found:
        yield found


def put_remainders(repository) -> None:
    node = onnx.helper.make_node("Mod", ["LEFT", "RIGHT"], ["REST"])
    inputs = [graphs.value(name, "INT32", [DIVISIONS]) for name in ("LEFT", "RIGHT")]
    make_models.put(repository, "remainders", graphs.finish("remainders", [node], inputs, [graphs.value("REST", "INT32", [DIVISIONS])]))


class Health(threading.Thread):
    """Asks on a connection of its own whether the server is live, all the time, and notes how long each answer took."""

    def __init__(self, server):
        super().__init__()
        self.server, self.ended, self.seconds = server, threading.Event(), []

    def run(self) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.server.http, timeout=60)) as connection:
            while not self.ended.is_set():
                began = time.monotonic()
                connection.request("GET", "/v2/health/live")
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                self.seconds.append(time.monotonic() - began)
                time.sleep(0.01)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def trips(client, count: int, elements: int = 4) -> float:
    """Seconds that so many rounds of the loop took."""
    began = time.monotonic()
    given = [Given("TRIPS", "INT64", [1], np.int64(count).tobytes()), fp32("INPUT0", np.zeros(elements, np.float32))]
    answer = client.infer("counted_loop", given)
    assert (np.frombuffer(answer.outputs["OUTPUT0"].raw, np.float32) == min(count, 1 << 24)).all()
    return time.monotonic() - began


def product(client, rows: int, inner: int, columns: int) -> None:
    given = [fp32("LEFT", np.ones((rows, inner), np.float32)), fp32("RIGHT", np.ones((inner, columns), np.float32))]
    answer = client.infer("product_sum", given)
    assert np.frombuffer(answer.outputs["OUTPUT0"].raw, np.float32) == pytest.approx(rows * inner * columns, rel=1e-3)


def rounds_for(client, seconds: float) -> int:
    """How many rounds last about so long here. It is tried with more elements than the test uses: what is slow may be remembered of a
    size and of larger ones."""
    count = 1000
    while (took := trips(client, count, elements=1024)) < 0.2:
        count *= 4
    return int(count * seconds / took)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_loop_whose_end_the_client_chooses_keeps_nobody_waiting(server, protocol):
    with open_client(protocol, server) as client, front_threads_come_back(server), Health(server) as health:
        count = rounds_for(client, SLOW_S)
        for _ in range(QUICK_TIMES):
            trips(client, 1)
        before = len(health.seconds)
        # Beside others it may have looked slower than it is.
        while trips(client, count) < SLOW_S / 3:
            count *= 3
        answers = health.seconds[before:]
    assert len(answers) > 10 and max(answers) < HEALTH_S_MAX, f"{len(answers)} answers, the longest took {max(answers)} s"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_as_many_bytes_that_make_a_product_a_million_times_as_large_keep_nobody_waiting(server, protocol):
    with open_client(protocol, server) as client, front_threads_come_back(server), Health(server) as health:
        for _ in range(QUICK_TIMES):
            product(client, 1, LONG, 1)
        for wide in (LONG, LONG, WIDE, WIDE, WIDE):
            product(client, wide, 1, wide)
        for _ in range(20):
            product(client, 1, LONG, 1)
    assert max(health.seconds) < HEALTH_S_MAX


def test_sizes_that_grow_keep_nobody_waiting(server):
    with open_client("http", server) as client, front_threads_come_back(server), Health(server) as health:
        for side in (1, 2, 4, 8, 16, 32, 64, 128, 200, 256, 300, 350):
            for _ in range(20):
                product(client, side, side, side)
    assert max(health.seconds) < HEALTH_S_MAX


def test_what_runs_on_a_front_thread_is_measured(server):
    before = polls(server)
    with open_client("http", server) as client:
        for _ in range(50):
            client.infer("identity_fp32", [fp32("INPUT0", np.zeros(4, np.float32))])
    assert polls(server).all >= before.all + 50


def test_divisions_without_a_result_keep_no_thread_of_others(server):
    """Each is a fault of the processor. A request of the same sizes was quick, whose divisions all have results."""

    def infer(client, divisor: int):
        values = ((name, np.full(DIVISIONS, value, np.int32)) for name, value in (("LEFT", np.iinfo(np.int32).min), ("RIGHT", divisor)))
        return client.infer("remainders", [Given(name, "INT32", [DIVISIONS], value.tobytes()) for name, value in values])

    with open_client("http", server) as client, Health(server) as health:
        for _ in range(QUICK_TIMES):
            assert np.frombuffer(infer(client, 7).outputs["REST"].raw, np.int32)[0] == -(1 << 31) % 7
        before = len(health.seconds)
        begun = time.monotonic()
        with front_threads_come_back(server):
            for _ in range(5):
                # Other processors than x86-64 do not trap, and answer.
                with contextlib.suppress(Refused):
                    infer(client, -1)
        print(f"5 requests took {time.monotonic() - begun:.2f} s, health at most {1000 * max(health.seconds[before:], default=0):.0f} ms")
        assert np.frombuffer(infer(client, 7).outputs["REST"].raw, np.int32)[-1] == -(1 << 31) % 7
