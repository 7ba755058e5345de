"""What if a client sends shapes that make the server pad as much as it can?

A request of no bytes becomes one of megabytes where the model's author has buckets of that size. What the server has for it is bounded by what runs at a
time, and others are answered meanwhile.
"""

import concurrent.futures
import contextlib
import threading

import graphs
import numpy as np
import onnx
import pytest
import servers
from busy import front_threads_come_back
from clients import Given, Refused, RequestedOutput, int32, open_client
from meters import peak
from witness import resident, settled

MIB = 1 << 20
ROWS_MAX = 4
# Numbers of the largest bucket: a row of 1 MiB.
LARGEST = 1 << 18
SHAPES = 1500
ATTACKERS = 3
# An input and two outputs of the rows that run at a time, and as much again for what allocators keep.
GROWN_MAX = 2 * 3 * ROWS_MAX * MIB + 32 * MIB
CONFIG = """\
platform: "onnxruntime_onnx"
max_batch_size: %(rows)d
input [ { name: "X" data_type: TYPE_INT32 dims: [ %(dims)s ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ %(dims)s ] }, { name: "WHOLE" data_type: TYPE_INT32 dims: [ %(dims)s ] } ]
batch_output [ { target_name: "Y" source_input: "X" } ]
parameters { key: "nerite.pad" value { string_value: "X: %(pad)s" } }
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""


def put(repository, name: str, pad: str, dims: int = 1) -> None:
    (repository / name / "1").mkdir(parents=True)
    config = CONFIG % {"rows": ROWS_MAX, "dims": ", ".join(["-1"] * dims), "pad": pad}
    (repository / name / "config.pbtxt").write_text(config)
    shape = ["batch", *"nm"[:dims]]
    nodes = [onnx.helper.make_node("Identity", ["X"], [made]) for made in ("Y", "WHOLE")]
    outputs = [graphs.value(made, "INT32", shape) for made in ("Y", "WHOLE")]
    graph = graphs.finish(name, nodes, [graphs.value("X", "INT32", shape)], outputs)
    onnx.save(graph, repository / name / "1" / "model.onnx")


@pytest.fixture(scope="module", params=["embedded", "onnxruntime", "isolated"])
def server(request, launcher):
    if launcher.oracle:
        pytest.skip("2.51 pads nothing")
    name = f"hostile_padding_{request.param}"
    repository = launcher.copy_of(name, "simple")
    put(repository, "padded", f"8, 40, {LARGEST}")
    put(repository, "square", "4, 512 x 4, 512", dims=2)
    # Four bytes for each of 2^62 numbers are more than any address.
    put(repository, "endless", f"4, {1 << 62}")
    flags = ["--onnxruntime-library=none"] if request.param == "embedded" else [servers.onnxruntime_flag()]
    flags += ["--backend-config=onnxruntime,isolated=true"] if request.param == "isolated" else []
    with launcher.running(name, *flags, "--http-thread-count=1", repository=repository) as found:
        yield found


@contextlib.contextmanager
def somebody_is_answered(server):
    """Another client asks another model all the time, and each of its answers is exact."""
    ended, answers = threading.Event(), []

    def infer() -> None:
        with open_client("http", server) as client:
            while not ended.is_set() or not answers:
                left, right = np.full((1, 16), len(answers), np.int32), np.arange(16, dtype=np.int32).reshape(1, 16)
                reply = client.infer("simple", [int32("INPUT0", left), int32("INPUT1", right)])
                assert reply.outputs["OUTPUT0"].raw == (left + right).tobytes()
                answers.append(True)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(infer)
        try:
            yield answers
        finally:
            ended.set()
        running.result()


def numbers(shape) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


def check(client, model: str, shape) -> None:
    """The output that is cut back is the input."""
    sent = numbers(shape)
    made = client.infer(model, [int32("X", sent)], [RequestedOutput("Y")]).outputs["Y"]
    assert made.shape == list(shape) and made.raw == sent.tobytes()


def attack(server, model: str, shapes) -> None:
    """Several connections send these shapes, each its share of them."""
    shapes = list(shapes)

    def send(share: int) -> None:
        with open_client("grpc" if share % 2 else "http", server) as client:
            for shape in shapes[share::ATTACKERS]:
                check(client, model, shape)

    with concurrent.futures.ThreadPoolExecutor(ATTACKERS) as pool:
        for sent in [pool.submit(send, share) for share in range(ATTACKERS)]:
            sent.result()


def harms_nobody(server, model: str, shapes) -> None:
    shapes = list(shapes)
    attack(server, model, shapes[:10])
    before = settled(lambda: resident(server.pid) // MIB) * MIB
    with front_threads_come_back(server), somebody_is_answered(server) as answers, peak(lambda: resident(server.pid)) as most:
        attack(server, model, shapes)
    print(f"{len(shapes)} shapes: {(most.most - before) / MIB:.1f} MiB more, {len(answers)} answers of another client")
    assert most.most - before < GROWN_MAX
    assert len(answers) > 10


def test_thousands_of_shapes_that_are_padded_to_the_largest_bucket(server):
    harms_nobody(server, "padded", [(1, 41 + number) for number in range(SHAPES)])


def test_shapes_on_both_sides_of_a_bucket_within_a_power_of_two(server):
    """Those of 40 numbers are known to be quick when those of 41 come, which become 262,144."""
    harms_nobody(server, "padded", [(1, 40 + number % 2) for number in range(SHAPES)])


def test_inputs_of_no_bytes_that_become_megabytes(server):
    harms_nobody(server, "square", [(ROWS_MAX, 5 + number % 500, 0) for number in range(SHAPES // 4)])


@pytest.mark.parametrize("shape", [(1, 0), (ROWS_MAX, 0)])
def test_inputs_of_no_elements_are_answered_with_none(server, shape):
    with open_client("grpc", server) as client:
        check(client, "padded", shape)
        whole = client.infer("padded", [int32("X", numbers(shape))], [RequestedOutput("WHOLE")]).outputs["WHOLE"]
    assert whole.shape == [shape[0], 8] and not any(whole.raw)


def test_more_rows_than_the_model_takes_are_refused_before_they_are_padded(server):
    with open_client("http", server) as client, pytest.raises(Refused, match="batch-size must be <= 4"):
        client.infer("padded", [int32("X", numbers((1000, 41)))], [RequestedOutput("Y")])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_shape_that_overflows_when_it_is_padded_is_refused_and_others_are_answered(server, protocol):
    with open_client(protocol, server) as client:
        for length in (5, 1000, 65536):
            with pytest.raises(Refused, match="'X', padded: "):
                client.infer("endless", [int32("X", numbers((1, length)))])
            check(client, "endless", (1, 3))


def test_a_shape_that_overflows_fails_no_request_beside_it(server):
    """All are sent at the same time. Those that can be padded never share a run with those that cannot."""
    def infer(length: int):
        with open_client("grpc", server) as client:
            return client.infer("endless", [Given("X", "INT32", [1, length], numbers(length).tobytes())], [RequestedOutput("Y")])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        futures = [(length, pool.submit(infer, length)) for length in (1, 5, 2, 6, 3, 7, 4, 8) * 20]
    for length, one in futures:
        if length > 4:
            with pytest.raises(Refused, match="'X', padded: "):
                one.result()
        else:
            assert one.result().outputs["Y"].raw == numbers(length).tobytes()
