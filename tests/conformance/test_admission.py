"""Is what the model cannot take refused before it runs, alike over both protocols?"""

import concurrent.futures
import math

import catalogue
import pytest
from batching_setup import put
from clients import NO_ID, Given, RequestedOutput, differs, fp32, grpc_refuses, http_infer, int32, open_client, pb, refuses, text
from meanwhile import TooLate, again_if_too_late

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
SIXTEEN = list(range(16))


def simple(*shapes) -> list[Given]:
    return [
        Given(f"INPUT{i}", "INT32", list(shape), bytes(4 * max(1, math.prod(shape))))
        for i, shape in enumerate(shapes)
    ]


REFUSALS = [
    # model, inputs, text
    ("identity_fp32", [fp32("INPUT9", [1])], "unexpected inference input 'INPUT9' for model 'identity_fp32'"),
    ("identity_fp32", [], NO_ID + "expected 1 inputs but got 0 inputs for model 'identity_fp32'. Got input(s) [], but "
     "missing required input(s) ['INPUT0']. Please provide all required input(s)."),
    ("simple", [int32("INPUT1", [SIXTEEN])], NO_ID + "expected 2 inputs but got 1 inputs for model 'simple'. Got "
     "input(s) ['INPUT1'], but missing required input(s) ['INPUT0']. Please provide all required input(s)."),
    ("identity_fp32", [fp32("INPUT0", [1]), fp32("INPUT1", [1])],
     NO_ID + "expected 1 inputs but got 2 inputs for model 'identity_fp32'. Got input(s) ["),
    ("optional_pair", [], NO_ID + "expected number of inputs between 1 and 2 but got 0 inputs for model 'optional_pair'. "
     "Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s)."),
    ("batched_fp32", [Given("INPUT0", "FP32", [], bytes(4))],
     NO_ID + "input 'INPUT0' has no shape but model requires batch dimension for 'batched_fp32'"),
    ("simple", simple((1, 16), (2, 16)), NO_ID + "input 'INPUT"),
    ("simple", simple((9, 16), (9, 16)), NO_ID + "inference request batch-size must be <= 8 for 'simple'"),
    ("identity_fp32", [int32("INPUT0", [1])],
     NO_ID + "inference input 'INPUT0' data-type is 'INT32', but model 'identity_fp32' expects 'FP32'"),
    ("fixed_fp32", [fp32("INPUT0", [1, 2, 3])],
     NO_ID + "unexpected shape for input 'INPUT0' for model 'fixed_fp32'. Expected [2,3], got [3]. "),
    ("fixed_fp32", [fp32("INPUT0", [1, 2, 3, 4, 5, 6], [3, 2])],
     NO_ID + "unexpected shape for input 'INPUT0' for model 'fixed_fp32'. Expected [2,3], got [3,2]. "),
    ("matrix_fp32", [fp32("INPUT0", [1])],
     NO_ID + "unexpected shape for input 'INPUT0' for model 'matrix_fp32'. Expected [-1,-1], got [1]. "),
    ("simple", simple((16,), (16,)), NO_ID),
    ("simple", simple((1, 15), (1, 15)), NO_ID + "unexpected shape for input 'INPUT"),
    ("simple", simple((2, 2, 16), (2, 2, 16)), NO_ID + "unexpected shape for input 'INPUT"),
    ("identity_fp32", [Given("INPUT0", "FP32", [2], bytes(4))],
     NO_ID + "input byte size mismatch for input 'INPUT0' for model 'identity_fp32'. Expected 8, got 4"),
    ("identity_fp32", [Given("INPUT0", "FP32", [2], bytes(12))],
     NO_ID + "input byte size mismatch for input 'INPUT0' for model 'identity_fp32'. Expected 8, got 12"),
    ("batched_fp32", [Given("INPUT0", "FP32", [0, 3], b"")],
     NO_ID + "input byte size mismatch for input 'INPUT0' for model 'batched_fp32'. Expected 12, got 0"),
    ("identity_bytes", [Given("INPUT0", "BYTES", [1], b"\x01\x00")],
     NO_ID + "incomplete string length indicator for inference input 'INPUT0' for model 'identity_bytes', expecting 4 "
     "bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."),
    ("identity_bytes", [text("INPUT0", [b"a", b"b"], [1])],
     NO_ID + "unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_bytes', expecting 1"),
    ("identity_bytes", [text("INPUT0", [b"a"], [2])],
     NO_ID + "expected 2 string elements for inference input 'INPUT0' for model 'identity_bytes', got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "inputs", "message"), REFUSALS)
def test_inputs_the_model_cannot_take(client, model, inputs, message):
    with refuses("INVALID_ARG", message):
        client.infer(model, inputs)


@pytest.fixture(scope="module")
def two_strings(launcher):
    """A server with a model of two inputs of strings."""
    repository = launcher.copy_of("two_strings")
    put(launcher, repository, catalogue.identity("two_strings", ("BYTES", (-1,)), ("BYTES", (-1,))))
    with launcher.running("two_strings", repository=repository) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("count", "says"), [(2, "unexpected number of string elements 2 for"), (0, "expected 1 string elements for")])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_count_of_strings_is_told_of_the_input_that_has_it(two_strings, protocol, wrong, count, says):
    given = [text(f"INPUT{number}", [b"a"] * (count if number == wrong else 1), [1]) for number in range(2)]
    with open_client(protocol, two_strings) as client, refuses("INVALID_ARG", f"{NO_ID}{says} inference input 'INPUT{wrong}'"):
        client.infer("two_strings", given)


@differs("2.51 only counts: an optional input makes up for a required one")
def test_a_required_input_is_required_beside_an_optional_one(client):
    with refuses("INVALID_ARG", ""):
        client.infer("optional_pair", [fp32("INPUT1", [1])])


def test_an_optional_input_may_be_missing(client):
    assert client.infer("optional_pair", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw


def test_the_shape_error_of_a_batching_model_explains_the_batch(client):
    with pytest.raises(Exception) as caught:
        client.infer("simple", simple((1, 15), (1, 15)))
    assert caught.value.text.endswith(NOTE) or NOTE in caught.value.text


def test_unequal_batches_are_distinguished_from_other_shapes(client):
    with pytest.raises(Exception) as caught:
        client.infer("simple", simple((1, 16), (2, 16)))
    assert "batch size does not match other inputs for 'simple'" in caught.value.text


@pytest.mark.parametrize("shape", [[-1], [2, -1], [-(2**63)]])
def test_a_negative_dimension_over_grpc(stub, shape):
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[bytes(8)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    with grpc_refuses("INVALID_ARG", ""):
        stub.ModelInfer(request)


# What is wrong beside the second INPUT1, with the error that it has alone.
FORMS = [
    (pb.ModelInferRequest.InferInputTensor(
        datatype="INT32", shape=[1, 16], parameters={"shared_memory_region": pb.InferParameter(string_param="r")}),
     "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT1'"),
    (pb.ModelInferRequest.InferInputTensor(datatype="INT32", shape=[1, 16]),
     "unable to find data for input tensor 'INPUT1' for model 'simple' in request."),
]  # fmt: skip


@pytest.mark.parametrize(("form", "alone"), FORMS)
def test_an_input_that_comes_twice_is_the_error_whatever_its_form_over_grpc(stub, form, alone):
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(SIXTEEN)
    request.inputs.add(name="INPUT1").MergeFrom(form)
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0]):
        twice = pb.ModelInferRequest(model_name="simple", inputs=[request.inputs[at] for at in order])
        with grpc_refuses("INVALID_ARG", NO_ID + "input 'INPUT1' already exists in request"):
            stub.ModelInfer(twice)
    once = pb.ModelInferRequest(model_name="simple", inputs=[request.inputs[0], request.inputs[2]])
    with grpc_refuses("INVALID_ARG", alone):
        stub.ModelInfer(once)


def test_an_input_that_comes_twice_is_the_error_whatever_the_form_of_an_output_over_grpc(stub):
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16]).contents.int_contents.extend(SIXTEEN)
    request.outputs.add(name="OUTPUT0").parameters["shared_memory_region"].string_param = "r"
    with grpc_refuses("INVALID_ARG", NO_ID + "input 'INPUT1' already exists in request"):
        stub.ModelInfer(request)


HUGE = [
    [2**62, 4],
    [2**62, 2],
    [2**32, 2**32],
    [2**21, 2**21, 2**21],
    [2**61],
]


@pytest.mark.parametrize("shape", HUGE)
def test_a_shape_whose_product_overflows(client, shape):
    model = {1: "identity_fp32", 2: "matrix_fp32"}.get(len(shape), "matrix_fp32")
    with refuses("INVALID_ARG", ""):
        client.infer(model, [Given("INPUT0", "FP32", shape, bytes(8))])


def test_outputs_nobody_makes(client):
    with refuses("INVALID_ARG", "unexpected inference output 'OUTPUT9' for model 'identity_fp32'"):
        client.infer("identity_fp32", [fp32("INPUT0", [1])], [RequestedOutput("OUTPUT9")])


def test_an_input_given_twice(client):
    with refuses("INVALID_ARG", NO_ID + "input 'INPUT0' already exists in request"):
        client.infer("identity_fp32", [fp32("INPUT0", [1]), fp32("INPUT0", [1])])


@differs("2.51 takes the last of them")
def test_an_output_asked_twice(client):
    with refuses("INVALID_ARG", NO_ID + "output 'OUTPUT0' already exists in request"):
        client.infer("identity_fp32", [fp32("INPUT0", [1])], [RequestedOutput("OUTPUT0"), RequestedOutput("OUTPUT0")])


@pytest.mark.parametrize(
    ("version", "code", "message"),
    [
        ("2", "NOT_FOUND", "Request for unknown model: 'identity_fp32' version 2 is not found"),
        ("0", "NOT_FOUND", "Request for unknown model: 'identity_fp32' version 0 is not found"),
    ],
)
def test_versions_nobody_serves(client, version, code, message):
    with refuses(code, message):
        client.infer("identity_fp32", [fp32("INPUT0", [1])], version=version)


# ---------------------------------------------------------------------------------------------- two faults

UNKNOWN = "Request for unknown model: 'nothing' is not found"


@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_over_http_an_unknown_model_is_refused_before_its_body_is_read(server, path):
    http_infer(server.http, "nothing", b'{"inputs": [', path=path).refused("NOT_FOUND", UNKNOWN)


def unreadable(model: str, version: str = ""):
    """A request whose input has a datatype that does not exist, and no contents."""
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    request.inputs.add(name="INPUT0", datatype="FP31", shape=[2])
    return request


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (unreadable("nothing"), UNKNOWN),
        (unreadable("identity_fp32", "7"), "Request for unknown model: 'identity_fp32' version 7 is not found"),
    ],
)
def test_over_grpc_and_in_a_stream_an_unknown_model_is_refused_before_what_is_wrong_with_its_tensors(stub, request_, message):
    with grpc_refuses("NOT_FOUND", message):
        stub.ModelInfer(request_)
    (answer,) = stub.ModelStreamInfer(iter([request_]))
    assert answer.error_message.startswith(message), answer.error_message


# ---------------------------------------------------------------------------------------------- sequences


def step(client, value: int, **parameters):
    return client.infer("sequence_int32", [int32("INPUT0", [[value]])], parameters=parameters)


def test_a_sequence_from_start_to_end(client):
    step(client, 1, sequence_id=77, sequence_start=True, sequence_end=False)
    step(client, 2, sequence_id=77)
    assert step(client, 3, sequence_id=77, sequence_end=True).outputs["OUTPUT0"].raw == int32("", [3]).raw
    step(client, 1, sequence_id="seventy-seven", sequence_start=True, sequence_end=True)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "inference request to model 'sequence_int32' must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 0}, "inference request to model 'sequence_int32' must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": ""}, "inference request to model 'sequence_int32' must specify a non-zero or non-empty correlation ID"),
        ({"sequence_id": 991}, "inference request for sequence 991 to model 'sequence_int32' must specify the START flag "
         "on the first request of the sequence"),
        ({"sequence_id": "nine"}, "inference request for sequence nine to model 'sequence_int32' must specify the START "
         "flag on the first request of the sequence"),
    ],
)  # fmt: skip
def test_sequences_that_are_none(client, parameters, message):
    with refuses("INVALID_ARG", message):
        step(client, 1, **parameters)


def test_a_sequence_takes_one_row_at_a_time(client):
    message = (
        "inference request to model 'sequence_int32' must specify batch-size 1 due to requirements of sequence batcher"
    )
    with refuses("INVALID_ARG", message):
        client.infer("sequence_int32", [int32("INPUT0", [[1], [2]])], parameters={"sequence_id": 5, "sequence_start": True})


def test_a_long_string_id(client):
    with refuses("UNSUPPORTED", "string correlation ID cannot be longer than 128 characters"):
        step(client, 1, sequence_id="x" * 129, sequence_start=True)


# ---------------------------------------------------------------------------------------------- queues


@again_if_too_late
def test_a_full_queue_refuses_at_once(client):
    given = [fp32("INPUT0", [[1, 2]])]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(client.infer, "queue_of_one", given) for _ in range(6)]
        errors = [future.exception() for future in futures]
    refused = [error for error in errors if error is not None]
    if not refused:
        # Each came when the ones before it were answered.
        raise TooLate
    assert len(refused) <= 5
    for error in refused:
        assert error.text.startswith(NO_ID + "Exceeds maximum queue size")


# ---------------------------------------------------------------------------------------------- ensembles


def test_an_ensemble_answers_with_its_sequence_parameters(client):
    reply = client.infer("chain", [fp32("INPUT0", [1, 2])])
    assert reply.outputs["OUTPUT0"].raw == fp32("", [1, 2]).raw
    assert reply.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert (reply.model, reply.version) == ("chain", "1")
