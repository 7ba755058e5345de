"""Do the statistics say how much memory the models of the server's own runtimes have?"""

import numpy as np
import onnx
import pytest
import servers
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper

ENGINES = {"onnxruntime": servers.onnxruntime_flag, "embedded": lambda: "--onnxruntime-library=none"}
SIDE = 1024
# FP32 numbers of the model's matrix.
WEIGHTS = 4 * SIDE * SIDE
# What an engine may add for one matrix: a copy in the layout that its kernels read.
WEIGHTS_MAX = 2 * WEIGHTS + (1 << 20)
# The bytes that each process of the Python model fills, and what an interpreter with numpy may have beside them.
FILLED = 64 << 20
INTERPRETER_MAX = 200 << 20

PYTHON = f"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.filled = np.ones({FILLED}, np.uint8)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one_of(r))]) for r in requests]

def one_of(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
"""
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 1, -1 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 1, -1 ] }'
CONFIGS = {
    "matrix": 'backend: "onnxruntime" instance_group { kind: KIND_CPU count: 2 }',
    "apart": 'backend: "onnxruntime" instance_group { kind: KIND_CPU count: 2 } parameters { key: "isolated" value { string_value: "true" } }',
    "filled": f'backend: "python" {TENSORS} instance_group {{ kind: KIND_CPU count: 2 }}',
    "same": f'backend: "identity" {TENSORS}',
    "steps": f"""platform: "ensemble" {TENSORS} ensemble_scheduling {{
        step {{ model_name: "same" model_version: -1 input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }} }}""",
}


def product() -> bytes:
    """A vector times a matrix that is a constant."""
    matrix = numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "matrix")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("MatMul", ["IN", "matrix"], ["OUT"])], "g", values[:1], values[1:], [matrix])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


@pytest.fixture(scope="module", params=ENGINES)
def server(request, launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("the models are those of a server of its own")
    repository = tmp_path_factory.mktemp("memory")
    for model, config in CONFIGS.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        if "onnxruntime" in config:
            (version / "model.onnx").write_bytes(product())
    (repository / "filled/1/model.py").write_text(PYTHON)
    with launcher.running(f"memory_{request.param}", ENGINES[request.param](), repository=repository) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def memory(request, server):
    """Asks NVIDIA's client for the memory of a model: type, device and bytes of each kind."""
    if request.param == "http":
        client = tritonclient.http.InferenceServerClient(server.http)
        statistics = client.get_inference_statistics
    else:
        client = tritonclient.grpc.InferenceServerClient(server.grpc)
        statistics = lambda model: client.get_inference_statistics(model, as_json=True)  # noqa: E731

    def read(model: str) -> list[tuple[str, int, int]]:
        found = statistics(model)["model_stats"][0].get("memory_usage", [])
        return [(one["type"], int(one.get("id", 0)), int(one["byte_size"])) for one in found]

    yield read
    client.close()


def only_host(found) -> int:
    assert [one[:2] for one in found] == [("CPU", 0)], found
    return found[0][2]


def test_instances_share_the_constants_of_a_graph(memory):
    assert WEIGHTS <= only_host(memory("matrix")) <= WEIGHTS_MAX


def test_each_process_of_an_isolated_model_has_the_constants_for_itself(memory):
    assert 2 * WEIGHTS <= only_host(memory("apart")) <= 2 * WEIGHTS_MAX


def test_each_process_of_a_python_model_has_what_it_filled(memory):
    assert 2 * FILLED <= only_host(memory("filled")) <= 2 * (FILLED + INTERPRETER_MAX)


@pytest.mark.parametrize("model", ["same", "steps"])
def test_what_keeps_nothing_reports_nothing(memory, model):
    assert memory(model) == []
