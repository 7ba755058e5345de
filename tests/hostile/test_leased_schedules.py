"""Do a batch and an ensemble read inputs that lie in a lease without a copy, and do their outputs get there?"""

import concurrent.futures
import time

import numpy as np
import pytest
from batching_setup import metric, runs, serving
from clients import Given, RequestedOutput, open_client
from test_copies import copying
from test_ensembles import put_onnx_steps
from servers import onnxruntime_flag
from witness import any_client

ROW_BYTES = 16 * 4
ROWS = 4
COUNT = 1 << 16


@pytest.fixture(autouse=True)
def only_here(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no leases")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_rows_that_lie_end_to_end_in_a_lease_are_one_batch(launcher, monkeypatch, tmp_path, order):
    """Each of four requests has two inputs and two outputs in one lease. Nothing is copied, in whatever order the requests come."""
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(ROWS))
    name = f"leased_batch_{''.join(map(str, order))}"
    flags = [f"--session-socket={tmp_path / 'socket'}", onnxruntime_flag()]
    with serving(launcher, name, sums=[("sums", "")], flags=flags) as server:
        server.session = tmp_path / "socket"
        with any_client("session", server) as client, open_client("http", server) as looking:
            content = np.arange(2 * ROWS * 16, dtype=np.int32).reshape(2, ROWS, 16)
            lease = client.borrow(4 * ROWS * ROW_BYTES, content.tobytes())

            def infer(number: int) -> None:
                at = lambda which: (ROWS * which + number) * ROW_BYTES
                given = [Given(f"INPUT{which}", "INT32", [1, 16], region=(lease.name, ROW_BYTES, at(which))) for which in range(2)]
                outputs = [RequestedOutput(f"OUTPUT{which}", (lease.name, ROW_BYTES, at(2 + which))) for which in range(2)]
                client.infer("sums", given, outputs)

            with copying(server), runs(looking, "sums", _4=1), concurrent.futures.ThreadPoolExecutor(ROWS) as pool:
                running = []
                for waiting, number in enumerate(order):
                    running.append(pool.submit(infer, number))
                    while waiting < ROWS - 1 and metric(server, 'nv_inference_pending_request_count{model="sums"') <= waiting:
                        time.sleep(0.005)
                for one in running:
                    one.result()
            outputs = np.frombuffer(lease.read(2 * ROWS * ROW_BYTES, 2 * ROWS * ROW_BYTES), np.int32).reshape(2, ROWS, 16)
            assert (outputs[0] == content[0] + content[1]).all() and (outputs[1] == content[0] - content[1]).all()


@pytest.mark.parametrize("chosen_by", ["client", "server"])
def test_the_last_step_of_an_ensemble_writes_into_a_lease(launcher, tmp_path, chosen_by):
    repository = launcher.copy_of(f"leased_ensemble_{chosen_by}")
    put_onnx_steps(repository)
    flags = [f"--session-socket={tmp_path / 'socket'}", onnxruntime_flag()]
    with launcher.running(f"leased_ensemble_{chosen_by}", *flags, repository=repository) as server:
        server.session = tmp_path / "socket"
        with any_client("session", server) as client:
            numbers = np.arange(COUNT, dtype=np.float32)
            lease = client.borrow(8 * COUNT, numbers.tobytes())
            given = [Given("IN", "FP32", [COUNT], region=(lease.name, 4 * COUNT, 0))]
            with copying(server):
                if chosen_by == "client":
                    client.infer("three", given, [RequestedOutput("OUT", (lease.name, 4 * COUNT, 4 * COUNT))])
                    raw = lease.read(4 * COUNT, 4 * COUNT)
                else:
                    raw = client.infer("three", given, leased=["OUT"]).outputs["OUT"].raw
            assert raw == (numbers + 3).tobytes()
