"""Does any value that an operator is given end the process, or change what others get?

Every node test of the `onnx` package is loaded with open dimensions, and asked with the largest, the smallest and negative
numbers in each of its integer inputs, and with inputs that have no elements. Each request must be answered, by a result or
an error. The server may use little address space, so sizes that a request asks for are refused by
the system while there is still plenty for others.

    NERITE_OPERAND_PARTS=1 pytest tests/hostile/test_operands.py    all node tests; without it every eighth
"""

import contextlib
import itertools
import json
import os
import warnings

import grpc
import numpy as np
import pytest
import servers
from clients import NUMPY, Given, GrpcClient, Refused, grpc_channel, pb, refuses
from onnx import TensorProto, helper, numpy_helper
from operators import IR_VERSION_MAX, NotServable, array_of, given, wire_tensor
from witness import are_answered, witnesses

ADDRESS_SPACE_BYTES = 3 << 30
# An answer may take long where two cores are shared by many, and a test may not.
ANSWER_LIMIT_S = 60
EMBEDDED = "--onnxruntime-library=none"
# Versions of the standard operators that are tried where an engine does not know the one of the test.
OPSETS = [None, 25, 21, 17, 13, 11]
# What they do takes as long as a number of the request says. That is in the model, and its own instance waits for it.
AS_LONG_AS_REQUESTED = {"Loop", "BlackmanWindow", "HammingWindow", "HannWindow", "Range"}
ROUNDS_MAX = 1 << 16
# Another result each time.
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
NO_RESULT = "the model divided an integer by zero, or the smallest integer by -1, with these inputs"
MODEL = "operand"
# Of so many node tests one is run.
PARTS = int(os.environ.get("NERITE_OPERAND_PARTS", "8"))

pytestmark = pytest.mark.timeout(7200)


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def victim(request, launcher, tmp_path_factory):
    """A server that only these tests may hurt: one engine, two models of others, and little address space."""
    if launcher.oracle:
        pytest.skip("2.51 here has no ONNX backend")
    repository = launcher.copy_of(f"operands_{request.param}", "identity_fp32", "simple")
    command, environment = servers.nerite_command(repository)
    flags = ["--model-control-mode=explicit", "--load-model=identity_fp32", "--load-model=simple", "--session-socket=off"]
    flags.append("--backend-config=onnxruntime,default-max-batch-size=0")
    flags.append(EMBEDDED if request.param == "embedded" else servers.onnxruntime_flag())
    command = ["prlimit", f"--as={ADDRESS_SPACE_BYTES}", *command]
    log = tmp_path_factory.mktemp("operands") / "log"
    server = servers.start(command, environment, flags, log, oracle=False, repository=repository)
    server.engine = request.param
    try:
        yield server
    finally:
        servers.stop(server)


# ---------------------------------------------------------------------------------------------- what is asked


def hostile_numbers(dtype: np.dtype, rounds_max: int | None) -> list[int]:
    info = np.iinfo(dtype)
    wanted = {info.min, info.min + 1, -(1 << 40), -(1 << 31), -2, -1, 0, 1, 3, 1000, 1 << 31, 1 << 33, info.max - 1, info.max}
    found = sorted(number for number in wanted if info.min <= number <= info.max)
    return [number for number in found if rounds_max is None or number <= rounds_max]


def with_numbers(arrays: list[np.ndarray], rounds_max: int | None):
    """Each integer input alone, wholly or in one place, and then all of them."""
    integers = [at for at, array in enumerate(arrays) if array.dtype.kind in "iu"]
    for at in integers:
        for number in hostile_numbers(arrays[at].dtype, rounds_max):
            for place in (slice(None), slice(-1, None)) if arrays[at].size > 1 else (slice(None),):
                changed = arrays[at].copy()
                changed.reshape(-1)[place] = number
                yield f"{number} in input {at}", [*arrays[:at], changed, *arrays[at + 1 :]]
    if len(integers) > 1 and rounds_max is None:
        for first, other in (("min", -1), ("min", 0), ("max", -1), ("max", "max")):
            yield f"{first} and {other}", [
                filled(array, first if at == integers[0] else other) if at in integers else array
                for at, array in enumerate(arrays)
            ]


def filled(array: np.ndarray, number: int | str) -> np.ndarray:
    info = np.iinfo(array.dtype)
    number = {"min": info.min, "max": info.max}.get(number, number)
    return np.full(array.shape, max(info.min, number), array.dtype)


def without_elements(arrays: list[np.ndarray]):
    """Each dimension of each input alone, and then the same dimension of all."""
    for at, array in enumerate(arrays):
        for axis in range(array.ndim):
            yield f"input {at} without {axis}", [*arrays[:at], emptied(array, axis), *arrays[at + 1 :]]
    for axis in range(max((array.ndim for array in arrays), default=0)):
        yield f"all without {axis}", [emptied(array, axis) for array in arrays]


def emptied(array: np.ndarray, axis: int) -> np.ndarray:
    return np.take(array, [], axis) if axis < array.ndim else array


def numeric_cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in collect_testcases(None) if "_expanded" not in case.name]
    for case in cases:
        with contextlib.suppress(NotServable):
            graph = case.model.graph
            inputs = [(one.name, wire_tensor(one)[0]) for one in graph.input]
            for one in graph.output:
                wire_tensor(one)
            arrays = [array_of(value) for value in case.data_sets[0][0]]
            if inputs and len(arrays) == len(inputs) and all(kind in NUMPY for _, kind in inputs):
                yield case, inputs, [np.asarray(array, NUMPY[kind]) for array, (_, kind) in zip(arrays, inputs)]


def opened(case, opset: int | None) -> bytes:
    """The model with open dimensions, in another version of the operators."""
    model = case.model
    model.ir_version = min(model.ir_version, IR_VERSION_MAX)
    for one in [*model.graph.input, *model.graph.output]:
        for dim in one.type.tensor_type.shape.dim:
            dim.Clear()
    for one in model.opset_import:
        if one.domain == "" and opset:
            one.version = opset
    return model.SerializeToString()


class Prober:
    """One client. It never waits for ever."""

    def __init__(self, server, channel):
        self.server, self.client = server, GrpcClient(channel)

    def load(self, case) -> bool:
        for opset in OPSETS:
            files = {"config": CONFIG, "file:1/model.onnx": opened(case, opset)}
            with contextlib.suppress(Refused):
                self.client.load(MODEL, files)
                return True
            self.lives(f"loading {case.name}")
        return False

    def infer(self, inputs, arrays) -> list[np.ndarray] | None:
        """The outputs, or None where the request was refused."""
        tensors = [given(name, kind, array) for (name, kind), array in zip(inputs, arrays)]
        shapes = [[*array.shape] for array in arrays]
        tensors = [Given(one.name, one.datatype, shape or [1], one.raw) for one, shape in zip(tensors, shapes)]
        request = self.client.request(MODEL, tensors)
        try:
            answer: pb.ModelInferResponse = self.client.stub.ModelInfer(request, timeout=ANSWER_LIMIT_S)
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, "no answer"
            return None
        kinds = [NUMPY.get(one.datatype, np.uint8) for one in answer.outputs]
        return [np.frombuffer(raw, kind) for raw, kind in zip(answer.raw_output_contents, kinds)]

    def lives(self, what: str) -> None:
        # A process that was ended by a signal may still be on its way out.
        with contextlib.suppress(grpc.RpcError):
            self.client.stub.ServerLive(pb.ServerLiveRequest(), timeout=ANSWER_LIMIT_S)
            return
        status = self.server.process.wait(ANSWER_LIMIT_S)
        pytest.fail(f"{what} ended the server: {status}\n{self.server.log_text()[-2000:]}")


def same(found: list[np.ndarray] | None, wanted: list[np.ndarray] | None) -> bool:
    """Sums of floats depend on where the numbers lie, which is another place each time."""
    if found is None or wanted is None:
        return found is wanted
    pairs = list(zip(found, wanted, strict=True))
    if any(one.shape != other.shape for one, other in pairs):
        return False
    floats = [(one.astype(np.float64), other.astype(np.float64)) for one, other in pairs if one.dtype.kind not in "iub"]
    rest = [(one, other) for one, other in pairs if one.dtype.kind in "iub"]
    close = all(np.allclose(*pair, rtol=1e-2, atol=1e-3, equal_nan=True) for pair in floats)
    return close and all(np.array_equal(*pair) for pair in rest)


CONFIG = json.dumps({"name": MODEL, "platform": "onnxruntime_onnx", "max_batch_size": 0})


def test_no_operand_ends_the_process(victim):
    requests, right, failures = 0, 0, []
    with witnesses(victim) as watching, grpc_channel(victim.grpc) as channel:
        prober = Prober(victim, channel)
        for case, inputs, arrays in itertools.islice(numeric_cases(), 0, None, PARTS):
            if not prober.load(case):
                continue
            operators = {node.op_type for node in case.model.graph.node}
            rounds_max = ROUNDS_MAX if operators & AS_LONG_AS_REQUESTED else None
            honest = prober.infer(inputs, arrays)
            right += honest is not None
            for what, hostile in [*with_numbers(arrays, rounds_max), *without_elements(arrays)]:
                try:
                    prober.infer(inputs, hostile)
                except AssertionError as failure:
                    failures.append(f"{case.name}, {what}: {failure}")
                    break
                prober.lives(f"{case.name}, {what},")
                requests += 1
            again = prober.infer(inputs, arrays)
            # A model on the embedded engine may lose a few threads to requests that want too much memory.
            lost = again is None and victim.engine == "embedded"
            if not (operators & RANDOM or lost or same(again, honest)):
                failures.append(f"{case.name}: another result than before")
            prober.client.unload(MODEL)
        are_answered(watching, 3)
    assert victim.process.poll() is None
    assert failures == []
    print(f"{requests} requests to models, {right} of which answer those that are right")
    assert requests > 1000 // PARTS and right > 100 // PARTS


# ---------------------------------------------------------------------------------------------- divisions


def division(op: str, element_type: int) -> bytes:
    values = [helper.make_tensor_value_info(name, element_type, [None]) for name in "aby"]
    graph = helper.make_graph([helper.make_node(op, ["a", "b"], ["y"])], op, values[:2], values[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("kind", ["INT32", "INT64"])
def test_a_division_without_a_result_fails_its_request_alone(victim, op, kind):
    if victim.engine == "embedded" and kind == "INT64" and op == "Div":
        pytest.skip("the embedded engine refuses to divide INT64")
    dtype = NUMPY[kind]
    smallest = np.iinfo(dtype).min

    def of(*pairs: tuple[int, int]) -> list[Given]:
        a, b = (np.array(column, dtype) for column in zip(*pairs))
        return [Given("a", kind, [len(a)], a.tobytes()), Given("b", kind, [len(b)], b.tobytes())]

    with witnesses(victim), grpc_channel(victim.grpc) as channel:
        client = GrpcClient(channel)
        client.load(MODEL, {"config": CONFIG, "file:1/model.onnx": division(op, getattr(TensorProto, kind))})
        for _ in range(100):
            with pytest.raises(Refused):
                client.infer(MODEL, of((7, 0)))
            if victim.engine == "onnxruntime":
                with refuses("INVALID_ARG", NO_RESULT):
                    client.infer(MODEL, of((7, 2), (smallest, -1)))
            else:
                with contextlib.suppress(Refused):
                    client.infer(MODEL, of((7, 2), (smallest, -1)))
            found = np.frombuffer(client.infer(MODEL, of((7, 2), (9, -1))).outputs["y"].raw, dtype)
            assert found.tolist() == ([3, -9] if op == "Div" else [1, 0])
        client.unload(MODEL)
    assert victim.process.poll() is None


# ---------------------------------------------------------------------------------------------- elements lost on the way


def cut_gru(steps: int = 4, width: int = 3, hidden: int = 2) -> bytes:
    """A GRU over the steps of `x` that `from` and `to` leave."""
    rng = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array(rng.random((1, 3 * hidden, of), np.float32), name) for name, of in (("w", width), ("r", hidden))
    ]
    weights.append(numpy_helper.from_array(np.array([0], np.int64), "axis"))
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "axis"], ["cut"]),
        helper.make_node("GRU", ["cut", "w", "r"], ["", "y"], hidden_size=hidden, linear_before_reset=1),
    ]
    bounds = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in ("from", "to")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, width]), *bounds]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, hidden])]
    graph = helper.make_graph(nodes, "cut_gru", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_elements_that_are_lost_inside_a_graph_cost_the_request_alone(victim):
    x = np.random.default_rng(2).random((4, 1, 3), np.float32)

    def of(start: int, end: int) -> list[Given]:
        bounds = [Given(name, "INT64", [1], np.array([at], np.int64).tobytes()) for name, at in (("from", start), ("to", end))]
        return [Given("x", "FP32", [4, 1, 3], x.tobytes()), *bounds]

    with witnesses(victim) as watching, grpc_channel(victim.grpc) as channel:
        client = GrpcClient(channel)
        client.load(MODEL, {"config": CONFIG, "file:1/model.onnx": cut_gru()})
        honest = client.infer(MODEL, of(0, 4)).outputs["y"].raw
        for _ in range(5):
            if victim.engine == "onnxruntime":
                with pytest.raises(Refused, match="ended by signal 6"):
                    client.infer(MODEL, of(2, 2))
            else:
                with contextlib.suppress(Refused):
                    client.infer(MODEL, of(2, 2))
            assert client.infer(MODEL, of(0, 4)).outputs["y"].raw == honest
        client.unload(MODEL)
        are_answered(watching, 3)
    assert victim.process.poll() is None
