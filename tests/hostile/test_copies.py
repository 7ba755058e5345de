"""Is anything copied between a client's memory and a model, beyond what the embedded engine must?

Twice asked: by the server's own count, and by a canary that is written after the request was sent. A model that waits before
it reads finds the canary only if there is no copy, counted or not, on the way.
"""

import concurrent.futures
import contextlib
import time

import graphs
import make_models
import numpy as np
import pytest
from clients import Given, RequestedOutput, http_call
from server_setup import DELAY_MS, onnxruntime_library, put_delayed
from meanwhile import TRIES, Delay, again_if_too_late
from onnx import helper
from passages import SIZE, memory_of
from witness import PROTOCOLS, any_client, torn

COUNT = SIZE // 4
REQUESTS = 20
SIDE = 1024
# Enough multiplications that the last input is read long after the request was sent.
STEPS = 24
WRITTEN_AFTER_S = 0.05



def late(steps: int = STEPS) -> "graphs.onnx.ModelProto":
    """LATE goes to OUTPUT0 once a long chain of products over EARLY is done, whose result (0) is added."""
    nodes = [helper.make_node("MatMul", ["EARLY", "EARLY"], ["h0"])]
    nodes += [helper.make_node("MatMul", [f"h{n}", "EARLY"], [f"h{n + 1}"]) for n in range(steps)]
    nodes += [
        helper.make_node("ReduceMax", [f"h{steps}"], ["most"], keepdims=0),
        helper.make_node("Add", ["LATE", "most"], ["OUTPUT0"]),
    ]
    given = [graphs.value("EARLY", "FP32", [SIDE, SIDE]), graphs.value("LATE", "FP32", ["n"])]
    return graphs.finish("late", nodes, given, [graphs.value("OUTPUT0", "FP32", ["n"])])


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def engine(request: pytest.FixtureRequest, launcher, tmp_path_factory):
    """A server whose ONNX models run on one of the two engines."""
    if launcher.oracle:
        pytest.skip("counts its own copies only here")
    library = "none" if request.param == "embedded" else onnxruntime_library()
    name = f"copies_{request.param}"
    repository = launcher.copy_of(name, "identity_fp32")
    make_models.put(repository, "sums", graphs.add_sub("FP32", ["batch", "n"]))
    make_models.put(repository, "late", late())
    put_delayed(repository, "delayed", DELAY_MS)
    socket = tmp_path_factory.mktemp(name) / "socket"
    flags = [f"--onnxruntime-library={library}", f"--session-socket={socket}"]
    with launcher.running(name, *flags, repository=repository) as found:
        found.session = socket
        found.computes_in_place = request.param == "onnxruntime"
        yield found


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, engine):
    with any_client(request.param, engine) as found:
        yield found


@pytest.fixture(params=["region", "lease"])
def memory(request: pytest.FixtureRequest, engine, client):
    with memory_of(request.param, client, engine) as make:
        yield make


def copied(server) -> dict[str, int]:
    """Bytes by reason."""
    lines = http_call(server.metrics, "GET", "/metrics").body.decode().splitlines()
    lines = [line for line in lines if line.startswith("nerite_copied_bytes_total{")]
    assert lines
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines}


@contextlib.contextmanager
def copying(server, **expected: int):
    """The block must copy these bytes, by reason, and no others."""
    before = copied(server)
    yield
    after = copied(server)
    more = {reason: after[reason] - before.get(reason, 0) for reason in after}
    assert {reason: bytes_ for reason, bytes_ in more.items() if bytes_} == expected


def copies(server, read: int, written: int) -> dict[str, int]:
    """What an engine copies of so many bytes. The embedded one may not read memory that others write, and has outputs of its own."""
    return {} if server.computes_in_place else {"slices": read, "output_placement": written}


def test_nothing_is_copied_from_shared_memory_to_an_onnx_model_and_back(engine, client, memory):
    made = {name: memory(SIZE) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}
    left, right = (np.arange(COUNT, dtype=np.float32) % modulus for modulus in (251, 509))
    made["INPUT0"].write(left.tobytes())
    made["INPUT1"].write(right.tobytes())
    given = [Given(name, "FP32", [1, COUNT], region=(made[name].name, SIZE, 0)) for name in ("INPUT0", "INPUT1")]
    outputs = [RequestedOutput(name, (made[name].name, SIZE, 0)) for name in ("OUTPUT0", "OUTPUT1")]
    with copying(engine, **copies(engine, 2 * REQUESTS * SIZE, 2 * REQUESTS * SIZE)):
        for _ in range(REQUESTS):
            client.infer("sums", given, outputs)
    assert made["OUTPUT0"].read(SIZE) == (left + right).tobytes()
    assert made["OUTPUT1"].read(SIZE) == (left - right).tobytes()


def test_nothing_is_copied_on_the_way_to_a_lease_of_the_servers_choice(engine):
    with any_client("session", engine) as client:
        lease = client.borrow(2 * SIZE, np.ones(2 * COUNT, np.float32).tobytes())
        given = [Given(f"INPUT{n}", "FP32", [1, COUNT], region=(lease.name, SIZE, n * SIZE)) for n in range(2)]
        with copying(engine, **copies(engine, 2 * REQUESTS * SIZE, 2 * REQUESTS * SIZE)):
            for _ in range(REQUESTS):
                reply = client.infer("sums", given, leased=["OUTPUT0", "OUTPUT1"])
        assert reply.outputs["OUTPUT0"].raw == np.full(COUNT, 2, np.float32).tobytes()
        assert reply.outputs["OUTPUT1"].raw == bytes(SIZE)


def test_the_one_copy_of_the_identity_model_is_its_own(engine, client, memory):
    source, target = memory(SIZE), memory(SIZE)
    given = [Given("INPUT0", "FP32", [COUNT], region=(source.name, SIZE, 0))]
    with copying(engine, model=REQUESTS * SIZE):
        for _ in range(REQUESTS):
            client.infer("identity_fp32", given, [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))])


@again_if_too_late
def test_a_model_that_waits_reads_what_was_written_meanwhile(engine, client, memory):
    source, target = memory(SIZE), memory(SIZE)
    source.write(b"\x66" * SIZE)
    given = [Given("INPUT0", "FP32", [COUNT], region=(source.name, SIZE, 0))]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(DELAY_MS)
        running = pool.submit(client.infer, "delayed", given, [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))])
        delay.wait_for_requests(engine, "delayed")
        source.write(b"\x77" * SIZE)
        delay.must_last()
        running.result()
    assert target.read(SIZE) == b"\x77" * SIZE


# The embedded engine copies its inputs first.
@pytest.mark.parametrize("engine", ["onnxruntime"], indirect=True)
def test_an_engine_reads_what_was_written_while_it_ran(engine, client, memory):
    """The engine itself, in the midst of a graph. How long it takes to the end of it is the machine's affair, and so is when
    this test goes on; but what was copied at the beginning is never the canary, however often one asks."""
    early, source, target = memory(4 * SIDE * SIDE), memory(SIZE), memory(SIZE)
    given = [
        Given("EARLY", "FP32", [SIDE, SIDE], region=(early.name, 4 * SIDE * SIDE, 0)),
        Given("LATE", "FP32", [COUNT], region=(source.name, SIZE, 0)),
    ]
    outputs = [RequestedOutput("OUTPUT0", (target.name, SIZE, 0))]
    before, canary = (np.full(COUNT, value, np.float32).tobytes() for value in (1, 2))
    for _ in range(TRIES):
        source.write(before)
        with copying(engine), concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.infer, "late", given, outputs)
            time.sleep(WRITTEN_AFTER_S)
            source.write(canary)
            running.result()
        if target.read(SIZE) == canary:
            return
        assert set(np.frombuffer(target.read(SIZE), np.float32).tolist()) <= torn(1.0, 2.0)
    pytest.fail("the engine never read what was written after it was asked")


def test_unregistering_all_regions_leaves_leases_alone(engine):
    with any_client("session", engine) as mine:
        lease = mine.borrow(4096, b"\x01\x02\x03\x04")
        given = [Given("INPUT0", "FP32", [1], region=(lease.name, 4, 0))]
        for protocol in PROTOCOLS:
            with any_client(protocol, engine) as client:
                client.unregister("system")
                client.unregister("system", lease.name)
                assert lease.name not in str(client.status("system"))
                assert client.infer("identity_fp32", given).outputs["OUTPUT0"].raw == b"\x01\x02\x03\x04"
