"""Does ``triton_python_backend_utils`` do without a server what Triton's module of that name does?"""

import copy
import gc
import importlib.util
import json
import sys
from functools import partial

import numpy as np
import pytest
import setup_oracle

import nerite.model.utils as pb_utils
from nerite.model import dlpack, tensors

CONFIG = {
    "name": "m",
    "max_batch_size": 2,
    "input": [
        {"name": "A", "data_type": "TYPE_FP32", "dims": [4]},
        {"name": "B", "data_type": "TYPE_INVALID", "dims": [], "optional": True},
    ],
    "output": [{"name": "C", "data_type": "TYPE_STRING", "dims": [-1]}],
}  # fmt: skip


@pytest.fixture(scope="module")
def triton():
    """Triton's own module: its pure part can be imported as it is."""
    packages = setup_oracle.packages(setup_oracle.place("triton"))
    if not packages.exists():
        pytest.skip("Triton is not installed: cargo xtask oracle")
    place = packages / "pytriton" / "tritonserver" / "backends" / "python" / "triton_python_backend_utils.py"
    spec = importlib.util.spec_from_file_location("tritons_utils", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(run):
    """What a call returns, or the error it ends with."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001
        return type(error), str(error)


CALLS = [
    ("set_max_batch_size", 4),
    ("set_max_batch_size", 1),
    ("set_dynamic_batching",),
    ("add_input", {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}),
    ("add_input", {"name": "A", "data_type": "TYPE_INT8", "dims": [4]}),
    ("add_input", {"name": "A", "data_type": "TYPE_FP32", "dims": [5]}),
    ("add_input", {"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": True}),
    ("add_input", {"name": "B", "data_type": "TYPE_INT8", "dims": [1], "optional": False}),
    ("add_input", {"name": "B", "data_type": "TYPE_INT8", "dims": [1], "optional": True}),
    ("add_input", {"name": "N", "data_type": "TYPE_INT8", "dims": [1]}),
    ("add_input", {"name": "N", "data_type": "TYPE_INT8", "dims": [1], "label_filename": "x"}),
    ("add_input", {"data_type": "TYPE_INT8", "dims": [1]}),
    ("add_input", {"name": "N", "dims": [1]}),
    ("add_input", {"name": "N", "data_type": "TYPE_INT8"}),
    ("add_output", {"name": "C", "data_type": "TYPE_STRING", "dims": [-1]}),
    ("add_output", {"name": "C", "data_type": "TYPE_FP32", "dims": [-1]}),
    ("add_output", {"name": "C", "data_type": "TYPE_STRING", "dims": [2]}),
    ("add_output", {"name": "D", "data_type": "TYPE_FP32", "dims": [2]}),
    ("add_output", {"name": "D", "data_type": "TYPE_FP32", "dims": [2], "optional": True}),
    ("add_output", {"name": "D"}),
    ("set_model_transaction_policy", {"decoupled": True}),
    ("set_model_transaction_policy", {"decoupled": False}),
    ("set_model_transaction_policy", {}),
    ("set_model_transaction_policy", {"other": 1}),
]
CONFIGS = [
    {},
    {"dynamic_batching": {}},
    {"sequence_batching": {}},
    {"ensemble_scheduling": {}},
    {"model_transaction_policy": {"decoupled": False}},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_configuration_is_completed_as_triton_completes_it(triton, call):
    for more in CONFIGS:
        results = []
        for module in (triton, pb_utils):
            config = module.ModelConfig(json.dumps({**CONFIG, **more}))
            change = getattr(config, call[0])
            results.append((outcome(partial(change, *copy.deepcopy(call[1:]))), config.as_dict()))
        assert results[0] == results[1]


ARRAYS = [
    np.array([b"a", "é", 5, None], dtype=object),
    np.array([[b"a"], [b"\0b"]], dtype=object),
    np.array([b"ab", b"c"], dtype="S3"),
    np.array([], dtype=object),
    np.arange(3),
    np.array(b"scalar", dtype=object),
]


def test_strings_of_a_matrix_are_its_elements():
    # `ravel` of a matrix is a matrix.
    assert tensors.encoded(np.matrix([["a", "b"]], dtype=object)) == [b"a", b"b"]


def test_pure_functions_do_as_tritons_do(triton):
    for array in ARRAYS:
        assert pb_utils.serialize_byte_tensor(array) == triton.serialize_byte_tensor(array)
    raw = triton.serialize_byte_tensor(ARRAYS[0])
    assert pb_utils.deserialize_bytes_tensor(raw).tolist() == triton.deserialize_bytes_tensor(raw).tolist()
    assert (
        outcome(lambda: pb_utils.deserialize_bytes_tensor(raw[:-1]))[0]
        is outcome(lambda: triton.deserialize_bytes_tensor(raw[:-1]))[0]
    )
    for number in range(-1, 16):
        assert pb_utils.triton_to_numpy_type(number) == triton.triton_to_numpy_type(number)
    for kind in [*triton.TRITON_STRING_TO_NUMPY.values(), np.bytes_, np.dtype("f4"), np.complex64, np.dtype("i8"), np.longlong]:
        assert pb_utils.numpy_to_triton_type(kind) == triton.numpy_to_triton_type(kind)
    assert pb_utils.TRITON_STRING_TO_NUMPY == triton.TRITON_STRING_TO_NUMPY
    for name in ("TYPE_FP32", "TYPE_BF16"):
        ours, theirs = pb_utils.triton_string_to_numpy, triton.triton_string_to_numpy
        assert outcome(partial(ours, name)) == outcome(partial(theirs, name))
    for name in ("A", "C", "none"):
        for function in ("get_input_config_by_name", "get_output_config_by_name"):
            for config in (CONFIG, {}):
                assert getattr(pb_utils, function)(config, name) == getattr(triton, function)(config, name)
    for policy in ({}, {"model_transaction_policy": {"decoupled": True}}):
        assert pb_utils.using_decoupled_model_transaction_policy(policy) == triton.using_decoupled_model_transaction_policy(policy)


def test_every_name_of_tritons_module_is_there(triton):
    names = {name for name in dir(triton) if not name.startswith("_")}
    assert names <= set(dir(pb_utils))


def test_a_model_can_be_tested_without_a_server():
    request = pb_utils.InferenceRequest(
        request_id="r",
        inputs=[pb_utils.Tensor("IN", np.arange(3))],
        requested_output_names=["OUT"],
        model_name="m",
        parameters={"a": 1},
    )
    assert pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist() == [0, 1, 2]
    assert pb_utils.get_input_tensor_by_name(request, "no") is None
    assert (request.request_id(), request.requested_output_names(), request.parameters()) == ("r", {"OUT"}, '{"a":1}')
    assert not request.is_cancelled() and request.trace().get_context() is None
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(2))], parameters={"b": "c"})
    assert pb_utils.get_output_tensor_by_name(response, "OUT").shape() == [2]
    assert not response.has_error() and response.error() is None and response.parameters() == '{"b":"c"}'
    failed = pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
    assert failed.has_error() and failed.error().message() == "no"
    with pytest.raises(pb_utils.TritonModelException):
        request.get_response_sender()


def test_lines_are_printed_without_a_server(capsys):
    pb_utils.Logger.log_warn("careful")
    assert capsys.readouterr().out == "careful\n"


def test_enumerations_look_like_those_of_compiled_code():
    error = pb_utils.TritonError("x").code()
    assert (repr(error), str(error), int(error), error == 1) == ("<__ErrorCode.INTERNAL: 1>", "__ErrorCode.INTERNAL", 1, True)
    assert repr(pb_utils.TRITONSERVER_MEMORY_CPU) == "<MemoryType.TRITONSERVER_MEMORY_CPU: 1>"
    assert repr(pb_utils.Logger.VERBOSE) == "<LogLevel.VERBOSE: 3>"
    assert repr(pb_utils.MetricFamily.COUNTER) == "<MetricKind.COUNTER: 0>"


class Exports:
    """A library's tensor: it gives capsules, and says on which device it is."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize(
    "run, error",
    [
        (lambda: pb_utils.Tensor("a", np.zeros(2, np.complex64)), "NumPy dtype is not supported."),
        (lambda: pb_utils.Tensor("a", np.zeros(2, "U3")), "NumPy dtype is not supported."),
        (lambda: pb_utils.Tensor("a", np.zeros(2, ">f4")), "NumPy dtype is not supported."),
        (lambda: pb_utils.Tensor("a", np.array(["x"], object)).to_dlpack(), "DLPack does not have support for string tensors."),
        (lambda: pb_utils.InferenceResponse([], None, {1: 1}), "Expect parameters keys to have type str, found type <class 'int'>"),
        (
            lambda: pb_utils.InferenceResponse([], None, {"a": 1.5}),
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            lambda: pb_utils.InferenceResponse([], None, {"a": 1 << 63}),
            "Expect parameters values to fit into 64 bits, found 9223372036854775808",
        ),
        (
            lambda: pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=["a"], parameters={"a": float("nan")}),
            "Expect parameters values to be finite numbers, found nan",
        ),
        (
            lambda: pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=["a"], parameters={"a": np.float64("-inf")}),
            "Expect parameters values to be finite numbers, found -inf",
        ),
        (lambda: pb_utils.InferenceResponse([], None, [1]), "Expect N8pybind114dictE, got <class 'list'>"),
        (
            lambda: pb_utils.InferenceRequest(model_name="x", inputs=[None], requested_output_names=["a"]),
            "Input tensor for request with id '' and model name 'x' should not be empty.",
        ),
        (
            lambda: pb_utils.InferenceRequest(model_name="x", inputs=[], requested_output_names=[""]),
            "Requested output name for request with id '' and model name 'x' should not be empty.",
        ),
        (
            lambda: pb_utils.Tensor.from_dlpack("a", 5),
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have "
            "`__dlpack__` and `__dlpack_device__` attributes",
        ),
        (
            lambda: pb_utils.Tensor.from_dlpack("a", np.zeros((2, 3)).T),
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.",
        ),
        (lambda: pb_utils.Tensor.from_dlpack("a", np.array(["x"], object)), "DLPack does not have support for string tensors."),
        (lambda: pb_utils.Tensor.from_dlpack("a", np.zeros(2, np.complex64)), "DLPack tensor type is not supported."),
        (
            lambda: pb_utils.Tensor.from_dlpack("a", Exports(np.zeros((2, 3)).T)),
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.",
        ),
        (lambda: pb_utils.Tensor.from_dlpack("a", Exports(np.zeros(2, np.complex64))), "DLPack tensor type is not supported."),
        (
            lambda: pb_utils.Tensor.from_dlpack("a", Exports(np.zeros(2), (8, 0))),
            "DLDevice type 8 is not supported by Python backend.",
        ),
        (lambda: pb_utils.Tensor.from_dlpack("", np.zeros(2)), "Tensor name cannot be an empty string."),
    ],
)
def test_impossible_arguments_are_refused_with_tritons_text(run, error):
    with pytest.raises(pb_utils.TritonModelException) as raised:
        run()
    assert str(raised.value) == error
    assert not dlpack._lent


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.uint32, np.int64, np.float16, np.float32, np.float64])
def test_dlpack_goes_both_ways_without_a_copy(dtype):
    array = (np.arange(6) % 2).astype(dtype).reshape(2, 3)
    tensor = pb_utils.Tensor("a", array)
    before = sys.getrefcount(array)
    assert tensor.__dlpack_device__() == (1, 0)
    ways = [pb_utils.Tensor.from_dlpack("b", given).as_numpy() for given in (array, Exports(array), tensor, tensor.to_dlpack())]
    ways.append(np.from_dlpack(tensor))
    for one in ways:
        assert one.dtype == array.dtype and (one == array).all() and np.shares_memory(one, array)
    del ways, one
    gc.collect()
    assert sys.getrefcount(array) == before


def test_capsules_are_given_back_once():
    array = np.arange(4)
    tensor = pb_utils.Tensor("a", array)
    before = sys.getrefcount(array)
    capsule = tensor.to_dlpack()
    taken = pb_utils.Tensor.from_dlpack("b", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="consumed already"):
        pb_utils.Tensor.from_dlpack("c", capsule)
    assert sys.getrefcount(array) > before
    del taken
    assert sys.getrefcount(array) == before
    unused = tensor.to_dlpack()
    assert sys.getrefcount(array) > before
    del unused
    assert sys.getrefcount(array) == before
    empty = pb_utils.Tensor.from_dlpack("d", pb_utils.Tensor("a", np.zeros((0, 3), np.float32)))
    assert empty.as_numpy().shape == (0, 3) and empty.as_numpy().dtype == np.float32


def test_an_array_that_is_read_only_is_taken_as_it_is():
    array = np.arange(4)
    array.flags.writeable = False
    assert pb_utils.Tensor.from_dlpack("a", array).as_numpy() is array
    copy = pb_utils.Tensor.from_dlpack("b", pb_utils.Tensor("a", array)).as_numpy()
    assert copy.flags.writeable and not np.shares_memory(copy, array) and (copy == array).all()


def test_bf16_keeps_its_bits():
    bits = np.arange(4, dtype=np.uint16)
    tensor = pb_utils.Tensor.from_dlpack("b", tensors.Tensor._of("a", "BF16", bits).to_dlpack())
    assert tensor.datatype == "BF16" and (tensor.array() == bits).all() and tensor.shape() == [4]
    with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16"):
        tensor.as_numpy()


def test_a_tensor_of_torch_goes_both_ways():
    torch = pytest.importorskip("torch")
    given = torch.arange(4, dtype=torch.bfloat16)
    tensor = pb_utils.Tensor.from_dlpack("a", given)
    assert tensor.datatype == "BF16"
    assert torch.equal(torch.from_dlpack(tensor), given)


def test_a_response_keeps_its_tensors_when_the_model_uses_its_list_again():
    outputs = [pb_utils.Tensor("A", np.zeros(1, np.float32))]
    response = pb_utils.InferenceResponse(outputs)
    outputs[0] = pb_utils.Tensor("B", np.zeros(1, np.float32))
    assert [tensor.name() for tensor in response.output_tensors()] == ["A"]
