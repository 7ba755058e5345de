"""Is every faulty HTTP inference refused, and every form of a good one taken?"""

import json
import struct
import zlib
import gzip

import pytest
from clients import NO_ID, Given, HttpClient, RequestedOutput, differs, fp32, http_call, http_infer, int32, text

NOT_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"


def tensor(**changes) -> dict:
    made = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]} | changes
    return {key: value for key, value in made.items() if value is not ...}


def one(**changes) -> dict:
    return {"inputs": [tensor(**changes)]}


def nested(depth: int) -> str:
    return '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":' + "[" * depth + "1" + "]" * depth + "}]}"


TOO_MANY = "Unable to parse 'data': Shape does not match true shape of 'data' field"
OLD_TOO_FEW = differs("2.51 uses one text for too many and too few")
FAULTS = [
    ({}, "INTERNAL", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ([], "INTERNAL", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ({"inputs": 5}, "INTERNAL", "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ({"inputs": {}}, "INTERNAL", "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    ({"inputs": [5]}, "INVALID_ARG", "Input must set only one of the following fields: "),
    (one(name=...), "INTERNAL", "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    (one(name=5), "INTERNAL", "Unable to parse 'name': attempt to access JSON non-string as string"),
    (one(datatype=...), "INTERNAL",
     "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"),
    (one(datatype=1), "INTERNAL", "Unable to parse 'datatype': attempt to access JSON non-string as string"),
    (one(datatype="FP33"), "INVALID_ARG", "invalid datatype for input INPUT0"),
    (one(datatype="fp32"), "INVALID_ARG", "invalid datatype for input INPUT0"),
    (one(datatype="FP16"), "INVALID_ARG",
     "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0"),
    (one(datatype="BF16"), "INVALID_ARG",
     "receiving BF16 data via JSON is not supported. Please use the binary data format for input INPUT0"),
    (one(shape=...), "INTERNAL", "Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
    (one(shape=5), "INTERNAL", "Unable to parse 'shape': attempt to access JSON non-array as array"),
    (one(shape=["2"]), "INTERNAL", f"Unable to parse 'shape': {NOT_UINT}"),
    (one(shape=[-1]), "INTERNAL", f"Unable to parse 'shape': {NOT_UINT}"),
    (one(shape=[2.0]), "INTERNAL", f"Unable to parse 'shape': {NOT_UINT}"),
    (one(data=5), "INTERNAL", "Unable to parse 'data': attempt to access JSON non-array as array"),
    (one(data={}), "INTERNAL", "Unable to parse 'data': attempt to access JSON non-array as array"),
    (one(data=["1", "2"]), "INTERNAL", "Unable to parse 'data': attempt to access JSON non-number as double"),
    (one(data=[None, 1]), "INTERNAL", "Unable to parse 'data': attempt to access JSON non-number as double"),
    (one(data=[1, 2, 3]), "INTERNAL", TOO_MANY),
    pytest.param(one(data=[1]), "INTERNAL", "Failed to parse 'data' field: shape does not match true shape",
                 marks=OLD_TOO_FEW),
    pytest.param(one(data=[]), "INTERNAL", "Failed to parse 'data' field: shape does not match true shape",
                 marks=OLD_TOO_FEW),
    (one(datatype="INT32", data=[1.5, 2]), "INTERNAL",
     "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    (one(datatype="UINT32", data=[-1, 2]), "INTERNAL", f"Unable to parse 'data': {NOT_UINT}"),
    (one(datatype="BOOL", data=[1, 0]), "INTERNAL",
     "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
    (one(datatype="BYTES", data=[1, 2]), "INTERNAL",
     "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    (one(parameters={"shared_memory_byte_size": "8"}), "INTERNAL", f"Unable to parse 'shared_memory_byte_size': {NOT_UINT}"),
    (one(parameters={"shared_memory_offset": -1}), "INTERNAL", f"Unable to parse 'shared_memory_offset': {NOT_UINT}"),
    (one() | {"id": 5}, "INTERNAL", "Unable to parse 'id': attempt to access JSON non-string as string"),
    (one() | {"id": None}, "INTERNAL", "Unable to parse 'id': attempt to access JSON non-string as string"),
    (one() | {"outputs": 5}, "INTERNAL", "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    (one() | {"outputs": None}, "INTERNAL", "Unable to parse 'outputs': attempt to access JSON non-array as array"),
    (one() | {"outputs": [{}]}, "INTERNAL",
     "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    (one() | {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": 1}}]}, "INTERNAL",
     "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"),
    (one() | {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": "1"}}]}, "INTERNAL",
     f"Unable to set 'classification': {NOT_UINT}"),
    (one() | {"parameters": 5}, "INTERNAL",
     "failed to get request params.: attempt to get members for non-object"),
    (one() | {"parameters": None}, "INTERNAL",
     "failed to get request params.: attempt to get members for non-object"),
    (one() | {"parameters": {"triton_x": 1}}, "INVALID_ARG",
     "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
    (one() | {"parameters": {"triton_enable_empty_final_response": True}}, "INVALID_ARG",
     "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
    (one() | {"parameters": {"x": None}}, "INVALID_ARG",
     "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
    (one() | {"parameters": {"x": [1]}}, "INVALID_ARG",
     "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
    (one() | {"parameters": {"priority": "1"}}, "INTERNAL", "Unable to parse 'priority': "),
    (one() | {"parameters": {"timeout": -1}}, "INTERNAL", "Unable to parse 'timeout': "),
    (one() | {"parameters": {"sequence_start": 1}}, "INTERNAL", "Unable to parse 'sequence_start': "),
    (one() | {"parameters": {"binary_data_output": 1}}, "INTERNAL", "Unable to parse 'binary_data_output': "),
    (one() | {"parameters": {"sequence_id": "x" * 129}}, "UNSUPPORTED",
     "string correlation ID cannot be longer than 128 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "code", "message"), FAULTS)
def test_faulty_documents(server, document, code, message):
    model = "identity_fp32"
    if isinstance(document, dict) and isinstance(document.get("inputs"), list) and document["inputs"] != [5]:
        datatype = document["inputs"][0].get("datatype")
        if datatype in ("INT32", "UINT32", "BOOL", "BYTES", "FP16", "BF16"):
            model = f"identity_{datatype.lower()}"
    http_infer(server.http, model, document).refused(code, message)


@differs("2.51 has no bound of its own on the depth", run=False)
@pytest.mark.parametrize("depth", [102, 10_000, 1_000_000])
def test_nesting_has_a_bound(server, depth):
    message = "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)"
    http_infer(server.http, "identity_fp32", nested(depth).encode()).refused("INVALID_ARG", message)


@pytest.mark.parametrize("depth", [1, 50, 99])
def test_nesting_up_to_the_bound(server, depth):
    http_infer(server.http, "identity_fp32", nested(depth).encode()).ok()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(server, datatype):
    document = one(datatype=datatype, data=..., parameters={"binary_data_size": 4})
    answer = http_infer(server.http, f"identity_{datatype.lower()}", document, b"\x00\x3c\x00\x3c")
    answer.refused("INVALID_ARG", f"sending {datatype} data via JSON is not supported. Please use the binary data format for output")


# ---------------------------------------------------------------------------------------------- the path


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        ("nobody/infer", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        ("nobody/versions/1/infer", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        ("identity_fp32/versions/2/infer", "NOT_FOUND",
         "Request for unknown model: 'identity_fp32' version 2 is not found"),
        ("repeat_int32/infer", "UNSUPPORTED", "HTTP end point doesn't support models with decoupled transaction policy"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_asked(server, needs_model, path, code, message):
    if path.startswith("repeat"):
        needs_model("repeat_int32")
    http_call(server.http, "POST", f"/v2/models/{path}", one()).refused(code, message)


# ---------------------------------------------------------------------------------------------- binary tensors


def binary_document(size: int = 8) -> bytes:
    return json.dumps(one(data=..., parameters={"binary_data_size": size})).encode()


HEADER = "Inference-Header-Content-Length"
LENGTHS = [
    ("-1", "inference header size should be in range (0, "),
    ("100000", "inference header size should be in range (0, "),
    pytest.param("99999999999", "Unable to parse Inference-Header-Content-Length, value is out of range "
                 "[ -2147483648, 2147483647 ], got: 99999999999",
                 marks=differs("2.51 reads a longer number and finds it beyond the body")),
    pytest.param("many", "Unable to parse Inference-Header-Content-Length, got: many",
                 marks=differs("2.51 reads a non-number as 0, which means a raw binary request")),
]  # fmt: skip


@pytest.mark.parametrize(("length", "message"), LENGTHS)
def test_faulty_lengths_of_the_json_part(server, length, message):
    answer = http_infer(server.http, "identity_fp32", binary_document(), bytes(8), {HEADER: length})
    answer.refused("INVALID_ARG", message)


BINARY_FAULTS = [
    (binary_document(8), 4, "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'identity_fp32'"),
    (binary_document(8), 12, "unexpected additional input data for model 'identity_fp32'"),
    (binary_document(12), 12, "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model "
     "'identity_fp32'. Expected 8, got 12"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "count", "message"), BINARY_FAULTS)
def test_binary_tensors_that_do_not_add_up(server, document, count, message):
    http_infer(server.http, "identity_fp32", document, bytes(count)).refused("INVALID_ARG", message)


def test_a_binary_size_without_the_header(server):
    answer = http_infer(server.http, "identity_fp32", binary_document())
    answer.refused("INVALID_ARG", "unexpected size for input 'INPUT0', expecting 8 additional bytes for model ")


@pytest.mark.parametrize("size", ["8", -8, 8.5])
def test_a_binary_size_of_another_type(server, size):
    document = json.dumps(one(data=..., parameters={"binary_data_size": size})).encode()
    answer = http_infer(server.http, "identity_fp32", document, bytes(8))
    answer.refused("INTERNAL", f"Unable to parse 'binary_data_size': {NOT_UINT}")


def test_which_outputs_are_binary(server):
    document = {
        "inputs": [
            tensor(shape=[1], data=[1.5]),
            tensor(name="INPUT1", datatype="BYTES", shape=[1], data=["ab"]),
            tensor(name="INPUT2", datatype="INT32", shape=[1], data=[7]),
        ]
    }
    plain = http_infer(server.http, "mixed", document).ok()
    assert HEADER.lower() not in plain.headers
    assert {out["name"]: out["data"] for out in plain.json["outputs"]} == {
        "OUTPUT0": [1.5], "OUTPUT1": ["ab"], "OUTPUT2": [7]
    }  # fmt: skip

    outputs = [{"name": "OUTPUT0"}, {"name": "OUTPUT2", "parameters": {"binary_data": True}}]
    some = http_infer(server.http, "mixed", document | {"outputs": outputs, "parameters": {"binary_data_output": True}})
    length = int(some.ok().headers[HEADER.lower()])
    found = {out["name"]: out for out in json.loads(some.body[:length])["outputs"]}
    assert set(found) == {"OUTPUT0", "OUTPUT2"}
    assert found["OUTPUT0"]["data"] == [1.5]
    assert found["OUTPUT2"]["parameters"] == {"binary_data_size": 4}
    assert some.body[length:] == struct.pack("<i", 7)
    assert some.headers["content-type"] == "application/octet-stream"

    every = http_infer(server.http, "mixed", document | {"parameters": {"binary_data_output": True}}).ok()
    length = int(every.headers[HEADER.lower()])
    sizes = [out["parameters"]["binary_data_size"] for out in json.loads(every.body[:length])["outputs"]]
    assert sorted(sizes) == [4, 4, 6] and len(every.body) == length + 14


def test_an_empty_binary_output_is_plain_json(server):
    document = json.dumps(one(shape=[0], data=...,parameters={"binary_data_size": 0}) | {"parameters": {"binary_data_output": True}})
    answer = http_infer(server.http, "identity_fp32", document.encode(), headers={HEADER: str(len(document))}).ok()
    assert HEADER.lower() not in answer.headers
    assert answer.json["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_binary_json_and_binary_inputs_in_one_request(server):
    strings = text("INPUT1", [b"\x00\xff", b"xyz"]).raw
    document = {
        "inputs": [
            tensor(name="INPUT2", datatype="INT32", shape=[1], data=..., parameters={"binary_data_size": 4}),
            tensor(name="INPUT0", shape=[2], data=[1, 2]),
            tensor(name="INPUT1", datatype="BYTES", shape=[2], data=..., parameters={"binary_data_size": len(strings)}),
        ],
        "outputs": [{"name": f"OUTPUT{i}", "parameters": {"binary_data": True}} for i in range(3)],
    }
    answer = http_infer(server.http, "mixed", document, struct.pack("<i", -5) + strings).ok()
    from clients import read_http_reply

    reply = read_http_reply(answer)
    assert reply.outputs["OUTPUT0"].raw == struct.pack("<2f", 1, 2)
    assert reply.outputs["OUTPUT1"].raw == strings
    assert reply.outputs["OUTPUT2"].raw == struct.pack("<i", -5)


# ---------------------------------------------------------------------------------------------- raw binary requests


def raw_call(server, model: str, body: bytes):
    return http_call(server.http, "POST", f"/v2/models/{model}/infer", body, {HEADER: "0"})


def test_a_raw_binary_request(server):
    from clients import read_http_reply

    made = read_http_reply(raw_call(server, "identity_fp32", struct.pack("<3f", 1, 2, 3)).ok()).outputs["OUTPUT0"]
    assert (made.shape, made.raw) == ([3], struct.pack("<3f", 1, 2, 3))
    made = read_http_reply(raw_call(server, "batched_fp32", struct.pack("<3f", 1, 2, 3)).ok()).outputs["OUTPUT0"]
    assert made.shape == [1, 3]
    made = read_http_reply(raw_call(server, "fixed_fp32", bytes(24)).ok()).outputs["OUTPUT0"]
    assert made.shape == [2, 3]


RAW_FAULTS = [
    ("simple", 64, NO_ID + "Raw request must only have 1 input (found "),
    ("matrix_fp32", 64, NO_ID + "The shape of the raw input 'INPUT0' can not be deduced because there are more than one "
     "variable-sized dimension"),
    ("identity_bytes", 8, NO_ID + "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]"),
    ("fixed_fp32", 20, NO_ID + "input byte size mismatch for input 'raw_input' for model 'fixed_fp32'. "
     "Expected 24, got 20"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "count", "message"), RAW_FAULTS)
def test_raw_binary_requests_that_cannot_be(server, model, count, message):
    raw_call(server, model, bytes(count)).refused("INVALID_ARG", message)


def test_an_empty_body_counts_as_a_raw_binary_request(server):
    answer = http_call(server.http, "POST", "/v2/models/simple/infer")
    answer.refused("INVALID_ARG", NO_ID + "Raw request must only have 1 input (found ")


# ---------------------------------------------------------------------------------------------- compression

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.mark.parametrize("encoding", PACK)
def test_a_compressed_request(server, encoding):
    document, binary = binary_document(), struct.pack("<2f", 1, 2)
    headers = {HEADER: str(len(document)), "Content-Encoding": encoding}
    body = PACK[encoding](document + binary)
    answer = http_call(server.http, "POST", "/v2/models/identity_fp32/infer", body, headers).ok()
    assert answer.json["outputs"][0]["data"] == [1, 2]


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("identity", None),
        ("deflate;q=0.2, gzip;q=0.7", "gzip"),
        ("gzip;q=0.2, deflate;q=0.7", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("br, gzip", "gzip"),
        ("br", None),
        ("*", None),
    ],
)
def test_a_compressed_answer(server, accept, encoding):
    answer = http_infer(server.http, "identity_fp32", one(), headers={"Accept-Encoding": accept}).ok()
    assert answer.headers.get("content-encoding") == encoding
    body = UNPACK[encoding](answer.body) if encoding else answer.body
    assert json.loads(body)["outputs"][0]["data"] == [1, 2]


def test_only_inference_is_compressed(server):
    answer = http_call(server.http, "GET", "/v2", headers={"Accept-Encoding": "gzip"}).ok()
    assert "content-encoding" not in answer.headers
    answer = http_infer(server.http, "identity_fp32", {}, headers={"Accept-Encoding": "gzip"})
    assert answer.status == 500 and "content-encoding" not in answer.headers


def test_an_unknown_compression(server):
    answer = http_call(
        server.http, "POST", "/v2/models/identity_fp32/infer", json.dumps(one()), {"Content-Encoding": "br"}
    )
    answer.refused("UNSUPPORTED", "Unsupported compression type")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("encoding", PACK)
def test_a_stream_that_is_not_what_it_claims(server, encoding):
    """Triton does not notice and goes on with nothing; any refusal will do, as long as it is one."""
    answer = http_call(
        server.http, "POST", "/v2/models/simple/infer", b"not compressed at all", {"Content-Encoding": encoding}
    )
    assert answer.status in (400, 500) and answer.error


# ---------------------------------------------------------------------------------------------- parameters


def test_parameters_that_any_model_takes(server):
    parameters = {"a": 1, "b": True, "c": "text", "d": 1.5, "e": -(2**63), "f": 2**64, "priority": 3, "timeout": 10**9}
    http_infer(server.http, "identity_fp32", one() | {"parameters": parameters}).ok()


def test_the_request_id_comes_back(client):
    for made in ("x", "täglich", "a" * 1000):
        assert client.infer("identity_fp32", [fp32("INPUT0", [1])], id=made).id == made


def test_the_request_id_is_in_the_error(client):
    from clients import refuses

    with refuses("INVALID_ARG", "[request id: seven] input byte size mismatch for input 'INPUT0'"):
        client.infer("identity_fp32", [Given("INPUT0", "FP32", [2], bytes(4))], id="seven")


def test_the_asked_version_answers(client):
    for version in ("", "1", "3"):
        assert client.infer("versioned", [fp32("INPUT0", [1])], version=version).version == (version or "3")


def test_only_the_asked_outputs_come(server):
    client = HttpClient(server.http)
    inputs = [int32("INPUT0", [range(16)]), int32("INPUT1", [range(16)])]
    assert set(client.infer("simple", inputs, [RequestedOutput("OUTPUT1")]).outputs) == {"OUTPUT1"}
    assert set(client.infer("simple", inputs).outputs) == {"OUTPUT0", "OUTPUT1"}
