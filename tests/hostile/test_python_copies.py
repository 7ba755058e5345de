"""Is anything copied between a client's memory and a Python model?

Asked as in test_copies.py: by the server's own count, and by canaries that are written after the request was sent.
"""

import concurrent.futures
import time

import numpy as np
import pytest
from clients import Given, RequestedOutput
from meanwhile import Delay, again_if_too_late
from passages import SIZE, memory_of
from python_setup import SANDBOX, kernel_refuses
from pythons import WAIT_MS, serving
from test_copies import copying
from witness import PROTOCOLS, any_client

COUNT = SIZE // 4
REQUESTS = 20


@pytest.fixture(scope="module", params=["", "sandbox"])
def engine(request: pytest.FixtureRequest, launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("counts its own copies only here")
    if request.param and (why := kernel_refuses()):
        pytest.skip(why)
    flags = SANDBOX if request.param else ()
    name = f"python_copies{request.param}"
    with serving(launcher, name, tmp_path_factory.mktemp("copies") / "socket", more=flags) as found:
        yield found


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, engine):
    with any_client(request.param, engine) as found:
        yield found


@pytest.fixture(params=["region", "lease"])
def memory(request: pytest.FixtureRequest, engine, client):
    with memory_of(request.param, client, engine) as make:
        yield make


def pair(source, target, byte_size: int = SIZE):
    given = Given("INPUT0", "FP32", [byte_size // 4], region=(source.name, byte_size, 0))
    return [given], [RequestedOutput("OUTPUT0", (target.name, byte_size, 0))]


@pytest.mark.parametrize("model", ["py_identity", "py_copies", "py_in_place"])
def test_nothing_is_copied_from_shared_memory_to_a_python_model_and_back(engine, client, memory, model):
    source, target = memory(SIZE), memory(SIZE)
    numbers = np.arange(COUNT, dtype=np.float32) % 251
    source.write(numbers.tobytes())
    given, outputs = pair(source, target)
    with copying(engine):
        for _ in range(REQUESTS):
            client.infer(model, given, outputs)
    assert target.read(SIZE) == (numbers + (model == "py_in_place")).tobytes()


def test_small_tensors_are_not_copied_either(engine, client, memory):
    both = memory(4096)
    both.write(b"\x01\x02\x03\x04" * 16)
    given = Given("INPUT0", "FP32", [16], region=(both.name, 64, 0))
    with copying(engine):
        for _ in range(REQUESTS):
            client.infer("py_identity", [given], [RequestedOutput("OUTPUT0", (both.name, 64, 1024))])
    assert both.read(64, 1024) == both.read(64)


def test_strings_are_not_copied_by_the_server(engine, client, memory):
    both, word = memory(2 * SIZE), b"\x04\0\0\0abcd"
    both.write(word * (SIZE // 8))
    given = Given("INPUT0", "BYTES", [SIZE // 8], region=(both.name, SIZE, 0))
    with copying(engine):
        for _ in range(3):
            client.infer("py_strings", [given], [RequestedOutput("OUTPUT0", (both.name, SIZE, SIZE))])
    assert both.read(SIZE, SIZE) == word * (SIZE // 8)


def test_nothing_is_copied_on_the_way_to_a_lease_of_the_servers_choice(engine):
    with any_client("session", engine) as client:
        lease = client.borrow(SIZE, np.ones(COUNT, np.float32).tobytes())
        given = [Given("INPUT0", "FP32", [COUNT], region=(lease.name, SIZE, 0))]
        with copying(engine):
            for _ in range(REQUESTS):
                reply = client.infer("py_in_place", given, leased=["OUTPUT0"])
        assert reply.outputs["OUTPUT0"].raw == np.full(COUNT, 2, np.float32).tobytes()


@again_if_too_late
def test_a_model_that_waits_reads_what_was_written_meanwhile(client, memory):
    source, target = memory(SIZE), memory(SIZE)
    source.write(b"\x66" * SIZE)
    given, outputs = pair(source, target)
    client.infer("py_waits", given, outputs)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(WAIT_MS)
        running = pool.submit(client.infer, "py_waits", given, outputs)
        time.sleep(WAIT_MS / 4000)
        source.write(b"\x77" * SIZE)
        delay.must_last()
        running.result()
    assert target.read(SIZE) == b"\x77" * SIZE


def test_an_output_lands_in_the_clients_memory_and_nowhere_else(client, memory):
    source, target = memory(SIZE), memory(2 * SIZE)
    target.write(b"\x55" * (2 * SIZE))
    source.write(np.zeros(COUNT, np.float32).tobytes())
    given = Given("INPUT0", "FP32", [COUNT - 16], region=(source.name, SIZE - 64, 0))
    client.infer("py_in_place", [given], [RequestedOutput("OUTPUT0", (target.name, SIZE, 4096))])
    ones = np.ones(COUNT - 16, np.float32).tobytes()
    assert target.read(2 * SIZE) == b"\x55" * 4096 + ones + b"\x55" * (2 * SIZE - 4096 - len(ones))
