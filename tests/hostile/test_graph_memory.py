"""What if small requests make a graph need more memory than there is?

The server runs in a control group of 512 MiB. Its kernel would end it if it used more.
"""

import concurrent.futures
import random

import graphs
import make_models
import numpy as np
import onnx
import pytest
from clients import Given, Refused, fp32, open_client
from confinement import GROUP_BYTES, confined, control_group
from holding import MODEL
from onnx import helper
from server_setup import RESIDENT_SLACK, onnxruntime_library
from witness import falls_to, resident, settled

CLIENTS = 6
REQUESTS = 15
INSTANCES = 3
# Lengths of both vectors. The products need 4 MB, 36 MB, 144 MB, 256 MB and 10 GB, and the graph needs three times as much.
LENGTHS = (1_000, 3_000, 6_000, 8_000, 50_000)
# Bytes of what one round of the loop adds to the list: less than an allocation with pages of its own, and more.
ROUND_BYTES = {"rounds": 100_000, "large_rounds": 300_000}
STRING = b"s" * 100_000
# A run of these needs no memory that others have: the products have 1 MB.
FEW = 500
# The embedded engine does not even try what cost it many threads before.
REFUSED = ("no memory for what the model computes from this request", "ran out of memory")


def outer() -> onnx.ModelProto:
    """The sum over both copies of the outer product of two vectors."""
    nodes = [
        helper.make_node("MatMul", ["LEFT", "RIGHT"], ["product"]),
        helper.make_node("Concat", ["product", "product"], ["both"], axis=0),
        helper.make_node("ReduceMax", ["both"], ["OUTPUT0"], keepdims=0),
    ]
    inputs = [graphs.value("LEFT", "FP32", ["rows", 1]), graphs.value("RIGHT", "FP32", [1, "columns"])]
    return graphs.finish("outer", nodes, inputs, [graphs.value("OUTPUT0", "FP32", [])])


def rounds(name: str) -> onnx.ModelProto:
    """The greatest number of a list to which each round of a loop adds many bytes."""
    numbers = ROUND_BYTES[name] // 4
    kept = onnx.numpy_helper.from_array(np.ones(numbers, np.float32), "kept")
    body = helper.make_graph(
        [helper.make_node("Identity", ["goes"], ["goes_on"]), helper.make_node("Add", ["kept", "one"], ["row"])],
        "body",
        [graphs.value("at", "INT64", []), graphs.value("goes", "BOOL", [])],
        [graphs.value("goes_on", "BOOL", []), graphs.value("row", "FP32", [numbers])],
        [kept, onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    nodes = [
        helper.make_node("Squeeze", ["ROUNDS"], ["count"]),
        helper.make_node("Loop", ["count", ""], ["rows"], body=body),
        helper.make_node("ReduceMax", ["rows"], ["OUTPUT0"], keepdims=0),
    ]
    return graphs.finish(name, nodes, [graphs.value("ROUNDS", "INT64", [1])], [graphs.value("OUTPUT0", "FP32", [])])


def places() -> onnx.ModelProto:
    """The greatest place of an element that is not zero, in a matrix of ones. The list of places is no tensor until it is complete."""
    nodes = [
        helper.make_node("ConstantOfShape", ["SHAPE"], ["ones"], value=onnx.numpy_helper.from_array(np.ones(1, np.bool_))),
        helper.make_node("NonZero", ["ones"], ["places"]),
        helper.make_node("ReduceMax", ["places"], ["OUTPUT0"], keepdims=0),
    ]
    return graphs.finish("places", nodes, [graphs.value("SHAPE", "INT64", [2])], [graphs.value("OUTPUT0", "INT64", [])])


def copies() -> onnx.ModelProto:
    """The last of many copies of a string."""
    nodes = [
        helper.make_node("Expand", ["STRING", "COUNT"], ["copies"]),
        helper.make_node("Gather", ["copies", "last"], ["OUTPUT0"], axis=0),
    ]
    inputs = [graphs.value("STRING", "BYTES", [1]), graphs.value("COUNT", "INT64", [1])]
    outputs = [graphs.value("OUTPUT0", "BYTES", [1])]
    return graphs.finish("copies", nodes, inputs, outputs, {"last": np.array([-1])})


@pytest.fixture(params=["embedded", "onnxruntime"])
def server(request: pytest.FixtureRequest, launcher, tmp_path):
    repository = launcher.copy_of(f"graph_memory_{request.param}", MODEL)
    graphs_of_both = {"outer": outer(), **{name: rounds(name) for name in ROUND_BYTES}}
    only_onnxruntime = {"places": places(), "copies": copies()} if request.param == "onnxruntime" else {}
    for name, graph in (graphs_of_both | only_onnxruntime).items():
        make_models.put(repository, name, graph)
        (repository / name / "config.pbtxt").write_text(f"instance_group [{{ count: {INSTANCES} }}]")
    library = "none" if request.param == "embedded" else onnxruntime_library()
    flags = ["--session-socket=off", f"--onnxruntime-library={library}"]
    with control_group() as into, confined(launcher, tmp_path, *into, repository=repository, flags=flags) as found:
        yield found


def computed(client, model: str, inputs: list[Given], expected: bytes) -> bool:
    """Whether the model computed what was expected. Otherwise it was refused for its memory."""
    try:
        answer = client.infer(model, inputs)
    except Refused as refused:
        assert any(text in str(refused) for text in REFUSED), refused
        return False
    assert answer.outputs["OUTPUT0"].raw == expected
    return True


def product(client, length: int) -> bool:
    left, right = np.arange(1, length + 1, dtype=np.float32), np.full(length, 2, np.float32)
    inputs = [fp32("LEFT", left.reshape(-1, 1)), fp32("RIGHT", right.reshape(1, -1))]
    return computed(client, "outer", inputs, np.float32(2 * length).tobytes())


def loop(client, model: str, count: int) -> bool:
    return computed(client, model, [Given("ROUNDS", "INT64", [1], np.int64(count).tobytes())], np.float32(2).tobytes())


def test_only_requests_that_need_too_much_fail(server):
    before = settled(lambda: resident(server.pid))

    def client_of(number: int) -> list[tuple[int, bool]]:
        order = random.Random(number)
        with open_client("http" if number % 2 else "grpc", server) as client:
            return [(length, product(client, length)) for length in order.choices(LENGTHS, k=REQUESTS)]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool, open_client("http", server) as other:
        attacks = [pool.submit(client_of, number) for number in range(CLIENTS)]
        values = np.arange(100, dtype=np.float32)
        while not all(attack.done() for attack in attacks):
            assert other.infer(MODEL, [fp32("INPUT0", values)]).outputs["OUTPUT0"].raw == values.tobytes()
            # It needs memory beside its inputs, and waits for its turn among the attacks.
            assert product(other, FEW)
        answers = [answer for attack in attacks for answer in attack.result()]
    assert all(not computed for length, computed in answers if length == LENGTHS[-1])
    assert any(computed for _, computed in answers)
    falls_to(lambda: resident(server.pid), before + 4 * RESIDENT_SLACK)
    with open_client("http", server) as client:
        # A model that lost many threads of the embedded engine still answers small requests.
        assert product(client, LENGTHS[0] // 10)


@pytest.mark.parametrize("model", ROUND_BYTES)
def test_a_list_that_grows_in_a_loop_is_bounded(server, model):
    before = settled(lambda: resident(server.pid))
    # The list has three fifths of what a run may have. Joined, it would need as much again.
    list_too_long_to_join = GROUP_BYTES // 2 * 3 // 5 // ROUND_BYTES[model]
    with open_client("http", server) as client:
        assert loop(client, model, 10)
        for count in (1_000_000, *[list_too_long_to_join] * 8, 1_000_000):
            assert not loop(client, model, count)
        assert loop(client, model, 100)
    falls_to(lambda: resident(server.pid), before + 4 * RESIDENT_SLACK)


def places_of(client, rows: int) -> bool:
    shape = np.array([rows, 1_000])
    return computed(client, "places", [Given("SHAPE", "INT64", [2], shape.tobytes())], np.int64(max(rows, 1_000) - 1).tobytes())


def copies_of(client, count: int) -> bool:
    string = len(STRING).to_bytes(4, "little") + STRING
    inputs = [Given("STRING", "BYTES", [1], string), Given("COUNT", "INT64", [1], np.int64(count).tobytes())]
    return computed(client, "copies", inputs, string)


@pytest.mark.parametrize("server", ["onnxruntime"], indirect=True)
@pytest.mark.parametrize(
    ("compute", "few", "many"),
    # The list has 16 bytes for each element: 160 kB and 480 MB. The copies have 1 MB and 1 GB.
    [(places_of, 10, 30_000), (copies_of, 10, 10_000)],
)
def test_what_the_cpp_library_allocates_is_bounded_too(server, compute, few, many):
    before = settled(lambda: resident(server.pid))

    def attack(_: int) -> list[bool]:
        with open_client("http", server) as client:
            return [compute(client, many) for _ in range(5)]

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool, open_client("grpc", server) as other:
        attacks = [pool.submit(attack, number) for number in range(CLIENTS)]
        while not all(done.done() for done in attacks):
            assert compute(other, few)
        assert not any(answer for done in attacks for answer in done.result())
    falls_to(lambda: resident(server.pid), before + 4 * RESIDENT_SLACK)
