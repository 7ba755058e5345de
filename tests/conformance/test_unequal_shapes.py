"""Do requests of unequal shapes run together, padded or as a list, and does each get its own back?"""

import concurrent.futures

import graphs
import numpy as np
import onnx
import pytest
import servers
from batching_setup import metric
from clients import Given, RequestedOutput, int32, open_client
from regions import registered

# What a model that needs the lengths does with them: Y is X, and each row of SUMS is the sum of the row's own numbers times its length.
PADDED = """\
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [
  { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "WHOLE" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "LENGTH" data_type: TYPE_INT32 dims: [ 1 ] }
]
batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "LENGTHS" data_type: TYPE_INT32 source_input: "X" } ]
batch_output [ { target_name: "Y" source_input: "X" } ]
parameters { key: "nerite.pad" value { string_value: "X: 4, 16" } }
parameters { key: "nerite.pad_value" value { string_value: "X: 7" } }
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 500000 preferred_batch_size: [ 4 ] }
"""

LIST = """\
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "SEEN" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 500000 preferred_batch_size: [ 4 ] }
"""

# Each request is answered the lengths of all that came with it.
LIST_MODEL = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        seen = np.array([[one.shape[1] for one in inputs]], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.repeat(seen, len(one), axis=0))]) for one in inputs]
"""


def padded_graph(numbers: str = "INT32") -> onnx.ModelProto:
    helper = onnx.helper
    nodes = [helper.make_node("Identity", ["X"], ["Y"]), helper.make_node("Identity", ["X"], ["WHOLE"]),
             helper.make_node("Identity", ["LENGTHS"], ["LENGTH"])]  # fmt: skip
    inputs = [graphs.value("X", numbers, ["batch", "n"]), graphs.value("LENGTHS", "INT32", ["batch", 1])]
    outputs = [graphs.value("Y", numbers, ["batch", "n"]), graphs.value("WHOLE", numbers, ["batch", "n"]),
               graphs.value("LENGTH", "INT32", ["batch", 1])]  # fmt: skip
    return graphs.finish("padded", nodes, inputs, outputs)


def put(repository, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module", params=["rten", "ort", "isolated"])
def padding(request, launcher):
    if launcher.oracle:
        pytest.skip("2.51 pads nothing")
    name = f"padding_{request.param}"
    repository = launcher.copy_of(name)
    put(repository, "padded", PADDED)
    onnx.save(padded_graph(), repository / "padded" / "1" / "model.onnx")
    put(repository, "padded_64", PADDED.replace("TYPE_INT32 dims: [ -1 ]", "TYPE_INT64 dims: [ -1 ]"))
    onnx.save(padded_graph("INT64"), repository / "padded_64" / "1" / "model.onnx")
    flags = [servers.onnxruntime_flag()] if request.param != "rten" else ["--onnxruntime-library=none"]
    flags += ["--backend-config=onnxruntime,isolated=true"] if request.param == "isolated" else []
    with launcher.running(name, *flags, repository=repository) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def padding_client(request, padding):
    with open_client(request.param, padding) as found:
        yield found


def numbers(reply, name: str) -> np.ndarray:
    made = reply.outputs[name]
    return np.frombuffer(made.raw, np.int32).reshape(made.shape)


def at_once(client, model: str, arrays) -> list:
    with concurrent.futures.ThreadPoolExecutor(len(arrays)) as pool:
        return list(pool.map(lambda array: client.infer(model, [int32("X", array)]), arrays))


def test_requests_of_unequal_lengths_run_as_one(padding, padding_client):
    arrays = [np.arange(10 * one, 10 * one + length, dtype=np.int32)[None, :] for one, length in enumerate([1, 2, 3, 4])]
    before = padding_client.statistics("padded")[0]["execution_count"]
    gathered = metric(padding, 'nerite_copied_bytes_total{reason="batch_gather"}')
    replies = at_once(padding_client, "padded", arrays)
    assert int(padding_client.statistics("padded")[0]["execution_count"]) == int(before) + 1
    for array, reply in zip(arrays, replies, strict=True):
        np.testing.assert_array_equal(numbers(reply, "Y"), array)
        assert numbers(reply, "LENGTH").tolist() == [[array.shape[1]]]
        assert numbers(reply, "WHOLE").tolist() == [array[0].tolist() + [7] * (4 - array.shape[1])]
    if "isolated" not in padding.log.name:
        # Where a model's own process gathers, its copies are not in the server's metrics.
        assert metric(padding, 'nerite_copied_bytes_total{reason="batch_gather"}') >= gathered + 4 * 4 * 4


@pytest.mark.parametrize(("length", "padded"), [(4, 4), (5, 16), (16, 16), (17, 17)])
def test_a_request_alone_is_padded_as_well_up_to_the_largest_bucket(padding_client, length, padded):
    array = np.arange(2 * length, dtype=np.int32).reshape(2, length)
    reply = padding_client.infer("padded", [int32("X", array)])
    np.testing.assert_array_equal(numbers(reply, "Y"), array)
    assert numbers(reply, "WHOLE").shape == (2, padded)
    assert numbers(reply, "LENGTH").tolist() == [[length]] * 2


@pytest.mark.parametrize("length", [3, 4, 17])
@pytest.mark.parametrize(("model", "numbers"), [("padded", np.int32), ("padded_64", np.int64)])
def test_an_output_that_is_cut_lies_in_its_region(padding_client, model, numbers, length):
    array = np.arange(1, 2 * length + 1, dtype=numbers).reshape(2, length)
    given = Given("X", array.dtype.name.upper(), list(array.shape), array.tobytes())
    # As large as the answer, and with room for the padded one.
    for byte_size in (array.nbytes, 4096):
        with registered(padding_client, byte_size) as target:
            reply = padding_client.infer(model, [given], [RequestedOutput("Y", (target.name, byte_size, 0))])
            assert reply.outputs["Y"].raw is None and reply.outputs["Y"].shape == [2, length]
            assert target.read(array.nbytes) == array.tobytes()
            assert not any(target.read(byte_size - array.nbytes, array.nbytes))


def test_a_faulty_setting_fails_the_load_and_is_said(launcher):
    if launcher.oracle:
        pytest.skip("2.51 pads nothing")
    repository = launcher.copy_of("faulty_padding")
    put(repository, "padded", PADDED.replace("X: 4, 16", "X: 16, 4"))
    onnx.save(padded_graph(), repository / "padded" / "1" / "model.onnx")
    put(repository, "misspelt", PADDED.replace("nerite.pad\"", "nerite.padd\""))
    onnx.save(padded_graph(), repository / "misspelt" / "1" / "model.onnx")
    with launcher.running("faulty_padding", "--exit-on-error=false", repository=repository) as server:
        log = server.log_text()
    assert "parameter 'nerite.pad' of model 'padded' wants sizes that ascend from 1 on for input 'X', got '16, 4'" in log
    assert "parameter 'nerite.padd' of model 'misspelt' is none of the server's" in log


def test_a_python_model_gets_requests_of_unequal_shapes_as_a_list(launcher):
    repository = launcher.copy_of("list_of_requests")
    put(repository, "listed", LIST)
    (repository / "listed" / "1" / "model.py").write_text(LIST_MODEL)
    with launcher.running("list_of_requests", repository=repository) as server:
        with open_client("http", server) as client:
            arrays = [np.zeros((1, length), np.int32) for length in (1, 2, 3, 4)]
            replies = at_once(client, "listed", arrays)
            assert {tuple(sorted(numbers(reply, "SEEN")[0])) for reply in replies} == {(1, 2, 3, 4)}
