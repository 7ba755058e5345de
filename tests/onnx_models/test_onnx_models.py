"""Does every ONNX model give the numbers that ONNX Runtime gives in process, on either engine?

A model that the embedded engine says it cannot serve is skipped with its reason; that a model loads and answers wrongly
is a failure, and so is any that ONNX Runtime does not load, or a net from PyTorch that the embedded engine does not.
"""

import make_models
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import servers
from catalogue import DATATYPES
from clients import Given, GrpcClient, Refused, grpc_channel, open_client, text
from operators import WIRE_TYPES

NUMPY_OF = {
    "tensor(bool)": np.bool_, "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64, "tensor(int8)": np.int8, "tensor(int16)": np.int16, "tensor(int32)": np.int32,
    "tensor(int64)": np.int64, "tensor(float16)": np.float16, "tensor(float)": np.float32,
    "tensor(double)": np.float64, "tensor(string)": np.object_, "tensor(bfloat16)": ml_dtypes.bfloat16,
}  # fmt: skip
# By dtype, not by type: numpy has two types of 64-bit integers.
WIRE_OF = {np.dtype(kind): name for kind, name in {
    np.bool_: "BOOL", np.uint8: "UINT8", np.uint16: "UINT16", np.uint32: "UINT32", np.uint64: "UINT64",
    np.int8: "INT8", np.int16: "INT16", np.int32: "INT32", np.int64: "INT64", np.float16: "FP16",
    np.float32: "FP32", np.float64: "FP64", np.object_: "BYTES", ml_dtypes.bfloat16: "BF16",
}.items()}  # fmt: skip
assert set(WIRE_OF.values()) == set(DATATYPES) == set(WIRE_TYPES.values())

EMBEDDED = "--onnxruntime-library=none"
ROWS, LENGTH = 3, 5
LIGHT_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def repositories(launcher):
    make_models.make(launcher.generated, ["onnx", "light"])
    return launcher.generated


@pytest.fixture(scope="module", params=["embedded", "onnxruntime"])
def engine(request):
    return servers.onnxruntime_flag() if request.param == "onnxruntime" else EMBEDDED


@pytest.fixture(scope="module", params=["onnx", "light"])
def served(request, launcher, repositories, engine):
    """A server over one of the repositories, in which some models may not have loaded."""
    if launcher.oracle:
        pytest.skip("2.51 here has no ONNX backend")
    repository = repositories / request.param
    with launcher.running(request.param, "--exit-on-error=false", engine, repository=repository) as found:
        yield found


def feed_of(session: onnxruntime.InferenceSession, name: str) -> dict[str, np.ndarray]:
    """Inputs that any of the models takes: open dims are 3, 5, 5, and numbers stay small."""
    rng = np.random.default_rng(3)
    found = {}
    for one in session.get_inputs():
        kind = NUMPY_OF[one.type]
        shape = [size if isinstance(size, int) else (ROWS if at == 0 else LENGTH) for at, size in enumerate(one.shape)]
        numbers = rng.integers(0, 2 if kind is np.bool_ or one.name == "attention_mask" else 17, shape)
        if one.name == "attention_mask":
            numbers[..., 0] = 1
        array = np.asarray(numbers).astype(kind) if kind is not np.object_ else np.array(
            [f"s{number}" for number in np.asarray(numbers).reshape(-1)], dtype=object).reshape(shape)  # fmt: skip
        found[one.name] = array
    if name == "wrong_rank":
        found["SHAPE"] = np.array([ROWS, 1])
    return found


def given(name: str, array: np.ndarray) -> Given:
    shape = list(array.shape) or [1]
    if array.dtype == object:
        return text(name, [one.encode() for one in array.reshape(-1)], shape)
    return Given(name, WIRE_OF[array.dtype], shape, array.tobytes())


def reference(repositories, name: str):
    graph = next(repositories.glob(f"*/{name}/1/model.onnx"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(graph), options)
    feed = feed_of(session, name)
    if any(array.dtype == ml_dtypes.bfloat16 for array in feed.values()):
        # The runtime's Python face has no such type; these models are identities.
        return feed, {"OUTPUT0": feed["INPUT0"]}
    return feed, dict(zip([one.name for one in session.get_outputs()], session.run(None, feed)))


def same(name: str, made, wanted: np.ndarray) -> None:
    assert made.shape in (list(wanted.shape), list(wanted.shape) or [1])
    if wanted.dtype == object:
        assert made.raw == text("", [one.encode() for one in wanted.reshape(-1)]).raw
        return
    assert made.datatype == WIRE_OF[wanted.dtype]
    found = np.frombuffer(made.raw, wanted.dtype).reshape(wanted.shape)
    tolerance = LIGHT_TOLERANCE if name.startswith("light_") else 1e-4
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=1e-5)


def test_every_model_that_loads_is_right(served, engine, repositories, subtests):
    with open_client("grpc", served) as client:
        assert isinstance(client, GrpcClient)
        index = {one["name"]: one for one in client.index()}
        assert any(one["state"] == "READY" for one in index.values())
        for name, entry in index.items():
            with subtests.test(name):
                if entry["state"] != "READY" and engine == EMBEDDED and not name.startswith("torch_"):
                    assert "on the embedded engine" in entry["reason"]
                    continue
                assert entry["state"] == "READY", entry["reason"]
                feed, wanted = reference(repositories, name)
                reply = client.infer(name, [given(*pair) for pair in feed.items()])
                assert set(reply.outputs) == set(wanted)
                for output, array in wanted.items():
                    same(name, reply.outputs[output], array)


@pytest.mark.parametrize("served", ["onnx"], indirect=True)
def test_a_rank_that_was_not_declared_is_refused_or_returned(served):
    """The reply has the shape that came out, or an error names the output; it never has the declared one."""
    with grpc_channel(served.grpc) as channel:
        client = GrpcClient(channel)
        if not client.model_ready("wrong_rank"):
            pytest.skip("not in this repository, or not loaded")
        inputs = [given("INPUT0", np.ones(4, np.float32)), given("SHAPE", np.array([4]))]
        try:
            assert client.infer("wrong_rank", inputs).outputs["OUTPUT0"].shape == [4]
        except Refused as refusal:
            assert "OUTPUT0" in refusal.text
