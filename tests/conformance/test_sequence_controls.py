"""Does a model get the controls of a sequence in their types, and do its responses keep their order where it asks for that?"""

import pathlib
import queue

import graphs
import numpy as np
import onnx
import pytest
import servers
from batching_setup import DELAY_MS, check_third_overtakes_second, put_gated
from clients import fp32, open_client
from python_setup import PATIENT, Gates

# Values of false and true that no other part of the server knows.
FP32 = {"START": (-1.5, 2.5), "END": (7.0, 0.0), "READY": (0.25, 4.0)}
BOOL = {"START": (False, True), "END": (False, True), "READY": (False, True)}
# Answers with each control, and with the sum of READY over the batch.
PYTHON = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        def control(request, name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        ready = sum(control(request, "READY").astype(numpy.float32) for request in requests)
        responses = []
        for request in requests:
            seen = [pb_utils.Tensor(f"{name}_SEEN", control(request, name)) for name in ("START", "END", "READY")]
            responses.append(pb_utils.InferenceResponse([*seen, pb_utils.Tensor("ALL", ready)]))
        return responses
"""


def graph(datatype: str, batch: bool) -> onnx.ModelProto:
    shape = ["n", 1] if batch else [1]
    node = onnx.helper.make_node
    nodes = [
        *(node("Identity", [name], [f"{name}_SEEN"]) for name in FP32),
        node("Cast", ["READY"], ["ready"], to=onnx.TensorProto.FLOAT),
        node("ReduceSum", ["ready"], ["sum"], keepdims=0),
        node("Mul", ["IN", "zero"], ["none"]),
        node("Add", ["none", "sum"], ["ALL"]),
    ]
    inputs = [graphs.value("IN", "FP32", shape), *(graphs.value(name, datatype, shape) for name in FP32)]
    outputs = [*(graphs.value(f"{name}_SEEN", datatype, shape) for name in FP32), graphs.value("ALL", "FP32", shape)]
    return graphs.finish("controls", nodes, inputs, outputs, {"zero": np.zeros(1, np.float32)})


def put(repository: pathlib.Path, name: str, backend: str, datatype: str, batch: int, strategy: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    if backend == "python":
        (repository / name / "1" / "model.py").write_text(PYTHON)
    else:
        onnx.save(graph(datatype, batch > 0), repository / name / "1" / "model.onnx")
    values = FP32 if datatype == "FP32" else BOOL
    setting = f"{datatype.lower()}_false_true"
    controls = "".join(
        f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} {setting}: [ {str(no).lower()}, {str(yes).lower()} ] }} }}\n'
        for kind, (no, yes) in values.items()
    )
    outputs = "".join(f'output {{ name: "{kind}_SEEN" data_type: TYPE_{datatype} dims: [ 1 ] }}\n' for kind in values)
    (repository / name / "config.pbtxt").write_text(f"""\
backend: "{backend}"
max_batch_size: {batch}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}
{outputs}output {{ name: "ALL" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  {strategy}
  {controls}
}}
""")


BACKENDS = {"onnx": ("onnxruntime", servers.onnxruntime_flag()), "embedded": ("onnxruntime", "--onnxruntime-library=none"), "python": ("python", None)}


@pytest.fixture(scope="module", params=BACKENDS)
def server(request, launcher):
    if launcher.oracle and request.param != "python":
        pytest.skip("2.51 has no ONNX here")
    backend, flag = BACKENDS[request.param]
    repository = launcher.scratch / f"controls_{request.param}"
    for datatype in ("FP32", "BOOL"):
        put(repository, f"{datatype}_alone", backend, datatype, 0, "direct { }")
        put(repository, f"{datatype}_direct", backend, datatype, 2, "direct { }")
        put(repository, f"{datatype}_oldest", backend, datatype, 2, "oldest { max_candidate_sequences: 2 }")
    with launcher.running(f"controls_{request.param}", *([flag] if flag else []), repository=repository) as found:
        yield found


def step(client, model: str, id: int, *flags: str):
    given = fp32("IN", [1] if model.endswith("alone") else [[1]])
    return client.infer(model, [given], parameters={"sequence_id": id} | {f"sequence_{flag}": True for flag in flags})


def seen(reply, datatype: str) -> list:
    dtype = {"FP32": np.float32, "BOOL": np.bool_}[datatype]
    assert all(reply.outputs[f"{name}_SEEN"].datatype == datatype for name in FP32)
    return [np.frombuffer(reply.outputs[f"{name}_SEEN"].raw, dtype).tolist() for name in FP32]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("strategy", ["alone", "direct", "oldest"])
@pytest.mark.parametrize("datatype", ["FP32", "BOOL"])
def test_a_model_gets_each_control_in_its_type(server, protocol, strategy, datatype):
    model, values = f"{datatype}_{strategy}", FP32 if datatype == "FP32" else BOOL
    with open_client(protocol, server) as client:
        for flags in (["start"], [], ["end"], ["start", "end"]):
            reply = step(client, model, 11, *flags)
            expect = [values["START"]["start" in flags], values["END"]["end" in flags], values["READY"][True]]
            assert seen(reply, datatype) == [[value] for value in expect], flags


@pytest.mark.parametrize("datatype", ["FP32", "BOOL"])
def test_a_position_without_a_request_is_not_ready_in_its_type(server, datatype):
    model, values = f"{datatype}_direct", FP32 if datatype == "FP32" else BOOL
    with open_client("grpc", server) as client:
        for id in (21, 22):
            step(client, model, id, "start")
        # The sequence at the second position: that at the first one has no request.
        reply = step(client, model, 22)
        assert seen(reply, datatype)[2] == [values["READY"][True]]
        assert np.frombuffer(reply.outputs["ALL"].raw, np.float32).tolist() == [float(sum(values["READY"]))]
        for id in (21, 22):
            step(client, model, id, "end")


# ---------------------------------------------------------------------------------------------- the order of responses

STRATEGY = """\
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: 4 {more} }}
}}
"""
# The second instance takes four times as long as the first.
ORDERED = """\
backend: "identity"
max_batch_size: 1
input {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
parameters {{ key: "instance_wise_delay_multiplier" value {{ string_value: "4" }} }}
""" + STRATEGY


@pytest.fixture(scope="module")
def ordered(launcher):
    if launcher.oracle:
        pytest.skip("2.51 orders the responses of each instance by themselves")
    repository, gates = launcher.scratch / "ordered_sequences", {}
    for name, more in (("kept", "preserve_ordering: true"), ("not_kept", "")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(ORDERED.format(delay_ms=DELAY_MS // 2, more=more))
        gates[f"{name}_gated"] = Gates(launcher.scratch / f"{name}_gates")
        put_gated(repository, f"{name}_gated", gates[f"{name}_gated"], STRATEGY.format(more=more))
    with launcher.running("ordered_sequences", PATIENT, repository=repository) as found:
        found.gates = gates
        yield found


@pytest.mark.parametrize("model", ["kept_gated", "not_kept_gated"])
def test_responses_of_the_oldest_keep_the_order_of_requests_if_asked_to(ordered, model):
    with open_client("grpc", ordered) as client:

        def infer(number: int) -> None:
            parameters = {"sequence_id": 100 + number, "sequence_start": True, "sequence_end": True}
            client.infer(model, [fp32("INPUT0", [[number]])], parameters=parameters)

        check_third_overtakes_second(ordered.gates[model], infer, model == "not_kept_gated")


def test_sequences_on_two_instances_are_answered_in_the_order_of_their_requests(ordered):
    import tritonclient.grpc as triton_grpc

    answers, count = queue.Queue(), 12
    with triton_grpc.InferenceServerClient(ordered.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(count):
            given = triton_grpc.InferInput("IN", [1, 1], "FP32")
            given.set_data_from_numpy(np.array([[number]], np.float32))
            flags = {"sequence_start": number < 3, "sequence_end": number >= count - 3}
            client.async_stream_infer("kept", [given], request_id=str(number), sequence_id=200 + number % 3, **flags)
        found = []
        for _ in range(count):
            result, error = answers.get(timeout=60)
            assert error is None, error
            found.append((result.get_response().id, result.as_numpy("OUT").reshape(-1).tolist()))
    assert found == [(str(number), [number]) for number in range(count)]
