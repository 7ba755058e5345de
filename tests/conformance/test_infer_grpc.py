"""Is every faulty gRPC inference refused, and every form of a good one taken?"""

import struct

import numpy as np
import pytest
from clients import differs, grpc_refuses, infer_parameter, pb

CONTENTS = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 2**16 - 1]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [1.5, -0.25]),
    "FP64": ("fp64_contents", [1e300, -0.1]),
    "BYTES": ("bytes_contents", [b"\x00\xff", b""]),
}


def request(model: str, datatype: str, shape=(2,), raw=None, field: str = "", values=()) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name=model)
    tensor = made.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    if field:
        getattr(tensor.contents, field).extend(values)
    if raw is not None:
        made.raw_input_contents.append(raw)
    return made


def expected_raw(datatype: str, values) -> bytes:
    from clients import NUMPY, text

    if datatype == "BYTES":
        return text("", values).raw
    return np.array(values, NUMPY[datatype]).tobytes()


@pytest.mark.parametrize("datatype", CONTENTS)
def test_explicit_contents_of_every_datatype(stub, datatype):
    field, values = CONTENTS[datatype]
    answer = stub.ModelInfer(request(f"identity_{datatype.lower()}", datatype, field=field, values=values))
    assert answer.raw_output_contents[0] == expected_raw(datatype, values)
    assert not answer.outputs[0].HasField("contents")


@pytest.mark.parametrize(
    ("datatype", "field", "values", "kept"),
    [
        ("INT8", "int_contents", [128, -129], [-128, 127]),
        ("INT16", "int_contents", [2**15, 2**16], [-(2**15), 0]),
        ("UINT8", "uint_contents", [256, 257], [0, 1]),
        ("UINT16", "uint_contents", [2**16, 2**16 + 5], [0, 5]),
    ],
)
def test_narrow_types_keep_the_low_bytes(stub, datatype, field, values, kept):
    answer = stub.ModelInfer(request(f"identity_{datatype.lower()}", datatype, field=field, values=values))
    assert answer.raw_output_contents[0] == expected_raw(datatype, kept)


EXPLICIT = "unexpected explicit tensor data for input tensor 'INPUT0' for model '{model}' of type '{given}', expected datatype '{declared}'"
WRONG_FIELD = [
    ("FP32", "int_contents", [1, 2], "INT32"),
    ("FP32", "bool_contents", [True, False], "BOOL"),
    ("INT32", "int64_contents", [1, 2], "INT64"),
    ("INT32", "fp32_contents", [1, 2], "FP32"),
    ("UINT32", "uint64_contents", [1, 2], "UINT64"),
    ("UINT32", "bytes_contents", [b"a", b"b"], "BYTES"),
    ("BYTES", "fp64_contents", [1, 2], "FP64"),
    ("BOOL", "uint_contents", [1, 0], "UINT32"),
]


@pytest.mark.parametrize(("datatype", "field", "values", "given"), WRONG_FIELD)
def test_contents_of_another_type(stub, datatype, field, values, given):
    model = f"identity_{datatype.lower()}"
    with grpc_refuses("INVALID_ARG", EXPLICIT.format(model=model, given=given, declared=datatype)):
        stub.ModelInfer(request(model, datatype, field=field, values=values))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_contents(stub, datatype):
    with grpc_refuses("INVALID_ARG", ""):
        stub.ModelInfer(request(f"identity_{datatype.lower()}", datatype, field="fp32_contents", values=[1, 2]))


def test_two_kinds_of_contents(stub):
    made = request("identity_fp32", "FP32", field="fp32_contents", values=[1, 2])
    made.inputs[0].contents.int_contents.extend([1, 2])
    with grpc_refuses("INVALID_ARG", "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity_fp32'"):
        stub.ModelInfer(made)


def test_contents_beside_raw(stub):
    made = request("identity_fp32", "FP32", raw=bytes(8), field="fp32_contents", values=[1, 2])
    message = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'identity_fp32'"
    with grpc_refuses("INVALID_ARG", message):
        stub.ModelInfer(made)


def test_no_data_at_all(stub):
    message = "unable to find data for input tensor 'INPUT0' for model 'identity_fp32' in request."
    with grpc_refuses("INVALID_ARG", message):
        stub.ModelInfer(request("identity_fp32", "FP32"))


def test_extra_raw_entries_are_ignored(stub):
    made = request("identity_fp32", "FP32", raw=struct.pack("<2f", 1, 2))
    made.raw_input_contents.append(b"more")
    assert stub.ModelInfer(made).raw_output_contents[0] == struct.pack("<2f", 1, 2)


def test_an_empty_raw_entry(stub):
    answer = stub.ModelInfer(request("identity_fp32", "FP32", shape=(0,), raw=b""))
    assert (list(answer.outputs[0].shape), answer.raw_output_contents[0]) == ([0], b"")


def test_every_output_has_its_entry(stub):
    made = pb.ModelInferRequest(model_name="simple", raw_input_contents=[bytes(64), bytes(64)])
    for number in range(2):
        made.inputs.add(name=f"INPUT{number}", datatype="INT32", shape=[1, 16])
    made.outputs.add(name="OUTPUT1")
    answer = stub.ModelInfer(made)
    assert [one.name for one in answer.outputs] == ["OUTPUT1"]
    assert (answer.model_name, answer.model_version, answer.id) == ("simple", "1", "")


def test_the_datatype_must_be_known(stub):
    with grpc_refuses("INVALID_ARG", ""):
        stub.ModelInfer(request("identity_fp32", "FP33", raw=bytes(8)))


PARAMETERS = [
    ("sequence_id", pb.InferParameter(bool_param=True),
     "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    ("sequence_start", pb.InferParameter(int64_param=1),
     "invalid value type for 'sequence_start' parameter, expected bool_param."),
    ("sequence_end", pb.InferParameter(int64_param=1),
     "invalid value type for 'sequence_end' parameter, expected bool_param."),
    ("priority", pb.InferParameter(int64_param=-1), "invalid value for 'priority', expected value >= 0."),
    ("priority", pb.InferParameter(string_param="1"),
     "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
    ("timeout", pb.InferParameter(string_param="1"), "invalid value type for 'timeout' parameter, expected int64_param."),
    ("triton_x", pb.InferParameter(string_param="1"),
     "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
     "'triton_' are allowed: triton_enable_empty_final_response"),
    ("x", pb.InferParameter(), "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param."),
    ("x", pb.InferParameter(uint64_param=1),
     "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param."),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), PARAMETERS)
def test_faulty_request_parameters(stub, key, value, message):
    made = request("identity_fp32", "FP32", raw=bytes(8))
    made.parameters[key].CopyFrom(value)
    with grpc_refuses("INVALID_ARG", message):
        stub.ModelInfer(made)


@pytest.mark.parametrize("value", [1, -1, True, "text", 1.5])
def test_parameters_that_any_model_takes(stub, value):
    made = request("identity_fp32", "FP32", raw=bytes(8))
    made.parameters["mine"].CopyFrom(infer_parameter(value))
    made.parameters["priority"].uint64_param = 2
    made.parameters["timeout"].int64_param = 10**9
    stub.ModelInfer(made)


CLASSIFICATIONS = [
    (pb.InferParameter(string_param="1"), "invalid value type for 'classification' parameter, expected int64_param"),
    (pb.InferParameter(int64_param=0), "invalid value for 'classification' parameter, expected >= 0"),
    (pb.InferParameter(int64_param=-1), "invalid value for 'classification' parameter, expected >= 0"),
]


@pytest.mark.parametrize(("value", "message"), CLASSIFICATIONS)
def test_faulty_classification_parameters(stub, value, message):
    made = pb.ModelInferRequest(model_name="classes", raw_input_contents=[bytes(16)])
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    made.outputs.add(name="OUTPUT0").parameters["classification"].CopyFrom(value)
    with grpc_refuses("INVALID_ARG", message):
        stub.ModelInfer(made)


def test_a_decoupled_model_needs_a_stream(stub, needs_model):
    needs_model("repeat_int32")
    message = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    with grpc_refuses("UNSUPPORTED", message):
        stub.ModelInfer(pb.ModelInferRequest(model_name="repeat_int32"))


def test_an_unknown_model(stub):
    with grpc_refuses("NOT_FOUND", "Request for unknown model: 'nobody' is not found"):
        stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"))


OVERFLOWS = [
    ([2**62, 4], "element count for tensor 'INPUT0' exceeds maximum size of 9223372036854775807"),
    ([2**62, 1], "byte size for tensor 'INPUT0' exceeds maximum size of 9223372036854775807"),
    ([-2, 1], "tensor 'INPUT0' contains an invalid dimension [-2,1]"),
]


@differs("2.51 computes with wrapped numbers and refuses for another reason")
@pytest.mark.parametrize(("shape", "message"), OVERFLOWS)
def test_shapes_beyond_every_number(stub, shape, message):
    with grpc_refuses("INVALID_ARG", message):
        stub.ModelInfer(request("matrix_fp32", "FP32", shape=shape, raw=bytes(8)))


def test_a_compressed_request(stub):
    import grpc

    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        made = request("identity_fp32", "FP32", shape=(4096,), raw=bytes(4 * 4096))
        answer = stub.ModelInfer(made, compression=compression)
        assert answer.raw_output_contents[0] == bytes(4 * 4096)
