"""Is every misuse of shared memory refused, in the words clients know?"""

import json
import mmap

import pytest
from clients import (
    NO_ID, Given, GrpcClient, HttpClient, Refused, RequestedOutput, check_refusal, differs, fp32, grpc_channel, grpc_refuses, http_call,
    http_infer, infer_parameter, pb, refuses, text,
)  # fmt: skip
from regions import fresh_name, region, registered

PAGE = mmap.PAGESIZE
PARSE = "failed to parse the request JSON buffer: "
NOT_STRING = "attempt to access JSON non-string as string"
NOT_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"

# ---------------------------------------------------------------------------------------------- register (system)

REGISTER_BODIES = [
    (None, "INTERNAL", PARSE + "The document is empty. at 0"),
    ("", "INTERNAL", PARSE + "The document is empty. at 0"),
    ("nonsense", "INTERNAL", PARSE + "Invalid value. at 1"),
    ('{"key":"/x"', "INTERNAL", PARSE + "Missing a comma or '}' after an object member. at 11"),
    ("{}", "INVALID_ARG", "Shared memory register request has no 'key' field"),
    ("[]", "INVALID_ARG", "Shared memory register request has no 'key' field"),
    ('{"byte_size":64}', "INVALID_ARG", "Shared memory register request has no 'key' field"),
    ('{"key":5,"byte_size":64}', "INTERNAL", NOT_STRING),
    ('{"key":null,"byte_size":64}', "INTERNAL", NOT_STRING),
    ('{"key":"/x"}', "INVALID_ARG", "Shared memory register request has no 'byte_size' field"),
    ('{"key":"/x","byte_size":-1}', "INTERNAL", NOT_UINT),
    ('{"key":"/x","byte_size":"64"}', "INTERNAL", NOT_UINT),
    ('{"key":"/x","byte_size":64.5}', "INTERNAL", NOT_UINT),
    ('{"key":"/x","byte_size":64,"offset":-1}', "INTERNAL", NOT_UINT),
    ('{"key":"/x","byte_size":64,"offset":"0"}', "INTERNAL", NOT_UINT),
    ('{"key":"/x","offset":0}', "INVALID_ARG", "Shared memory register request has no 'byte_size' field"),
]


@pytest.mark.parametrize(("body", "code", "text"), REGISTER_BODIES)
def test_bodies_of_a_registration(server, body, code, text):
    answer = http_call(server.http, "POST", "/v2/systemsharedmemory/region/r/register", body)
    answer.refused(code, text)
    assert answer.headers["content-type"] == "application/json"


def test_a_registration_without_a_region_name(server):
    for kind in ("system", "cuda"):
        answer = http_call(server.http, "POST", f"/v2/{kind}sharedmemory/register", "{}")
        answer.refused("INVALID_ARG", f"'region name' is necessary to register {kind} shared memory region")


OLD_KEYS = differs("2.51 does not look at the key: 500 `Unable to open shared memory region`")
KEYS = [
    ("/nerite_no_such_object", "INTERNAL", "Unable to open shared memory region: '/nerite_no_such_object'"),
    ("/nerite/with/slashes", "INTERNAL", "Unable to open shared memory region: '/nerite/with/slashes'"),
    pytest.param("/", "INVALID_ARG", "cannot register shared memory region '{name}' - invalid shm key '/'",
                 marks=OLD_KEYS),
    pytest.param("///", "INVALID_ARG", "cannot register shared memory region '{name}' - invalid shm key '///'",
                 marks=OLD_KEYS),
    pytest.param("", "INVALID_ARG", "cannot register shared memory region '{name}' - invalid shm key ''",
                 marks=OLD_KEYS),
    pytest.param(
        "/triton_python_backend_shm_region_1", "INVALID_ARG",
        "cannot register shared memory region '{name}' with key '/triton_python_backend_shm_region_1' as the key "
        "contains the reserved prefix 'triton_python_backend_shm_region_'",
        marks=OLD_KEYS,
    ),
    pytest.param(
        "triton_python_backend_shm_region_", "INVALID_ARG",
        "cannot register shared memory region '{name}' with key 'triton_python_backend_shm_region_' as the key "
        "contains the reserved prefix 'triton_python_backend_shm_region_'",
        marks=OLD_KEYS,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "code", "text"), KEYS)
def test_keys_of_a_registration(client, key, code, text):
    name = fresh_name()
    with refuses(code, text.format(name=name)):
        client.register_system(name, key, 64)


BOUNDS = "failed to register shared memory region '{name}': invalid args"
ADDRESS = "failed to register shared memory region '{name}': unable to process address space"
WINDOWS = [
    # offset, byte size of an object of two pages
    (0, 2 * PAGE + 1, BOUNDS),
    (PAGE, PAGE + 1, BOUNDS),
    (2 * PAGE, 1, BOUNDS),
    (2 * PAGE + 1, 0, BOUNDS),
    (2**63, 64, BOUNDS),
    (0, 0, ADDRESS + "Invalid argument"),
    (2 * PAGE, 0, ADDRESS + "Invalid argument"),
    (1, 64, ADDRESS + "Invalid argument"),
    (64, 64, ADDRESS + "Invalid argument"),
]


@pytest.mark.parametrize(("offset", "byte_size", "text"), WINDOWS)
def test_windows_of_a_registration(client, offset, byte_size, text):
    name = fresh_name()
    with region(2 * PAGE) as made, refuses("INVALID_ARG", text.format(name=name)):
        client.register_system(name, made.key, byte_size, offset)


@pytest.mark.parametrize(("offset", "byte_size"), [(2**64 - PAGE, PAGE), (PAGE, 2**64 - PAGE), (2**64 - 1, 2**64 - 1)])
def test_a_window_whose_end_wraps_is_refused(client, offset, byte_size):
    name = fresh_name()
    with region(2 * PAGE) as made, refuses("INVALID_ARG", f"failed to register shared memory region '{name}': "):
        client.register_system(name, made.key, byte_size, offset)


def test_a_name_is_taken_once_whatever_the_key(client):
    with registered(client, 64) as made, region(64) as other:
        for key in (made.key, other.key, "/nerite_no_such_object"):
            with refuses("ALREADY_EXISTS", f"shared memory region '{made.name}' already in manager"):
                client.register_system(made.name, key, 64)


@differs("2.51 reuses a closed descriptor: the second registration of a key fails with `Invalid shared memory region`")
def test_one_key_under_many_names(client):
    with registered(client, 2 * PAGE) as made:
        names = [fresh_name() for _ in range(3)]
        for number, name in enumerate(names[:2]):
            client.register_system(name, made.key, PAGE, offset=number * PAGE)
        client.register_system(names[2], made.key, 64)
        for name in names:
            client.unregister("system", name)


# ---------------------------------------------------------------------------------------------- CUDA without a GPU


def gpu_missing(name: str) -> str:
    return f"failed to register CUDA shared memory region: '{name}', GPUs not supported"


def test_a_cuda_registration_that_cannot_be(client):
    """On a host without a GPU the handle opens nothing; a build without GPU support says so."""
    name = fresh_name()
    with pytest.raises(Exception) as caught:
        client.register_cuda(name, bytes(64), 0, 64)
    message = caught.value.text
    assert message.startswith(gpu_missing(name)) or message.startswith("failed to register shared memory region")
    with refuses("NOT_FOUND", f"Unable to find cuda shared memory region: '{name}'"):
        client.status("cuda", name)


def cuda_body(**changes) -> str:
    body = {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 64} | changes
    return json.dumps({key: value for key, value in body.items() if value is not ...})


CUDA_BODIES = [
    ("", "INTERNAL", PARSE + "The document is empty. at 0"),
    (cuda_body(raw_handle=...), "INVALID_ARG", "Shared memory register request has no 'raw_handle' field"),
    (cuda_body(raw_handle={}), "INTERNAL", "attempt to access non-existing object member 'b64'"),
    (cuda_body(raw_handle={"b64": 1}), "INTERNAL", NOT_STRING),
    (cuda_body(byte_size=...), "INTERNAL", "attempt to access non-existing object member 'byte_size'"),
    (cuda_body(byte_size=-1), "INTERNAL", NOT_UINT),
    (cuda_body(device_id=...), "INTERNAL", "attempt to access non-existing object member 'device_id'"),
    (cuda_body(device_id="0"), "INTERNAL", NOT_UINT),
    (cuda_body(raw_handle={"b64": "AAAA"}), "INVALID_ARG",
     "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code", "text"), CUDA_BODIES)
def test_bodies_of_a_cuda_registration(server, body, code, text):
    answer = http_call(server.http, "POST", "/v2/cudasharedmemory/region/r/register", body)
    # A build or host without a GPU says so before it looks at the body.
    if answer.error.startswith(gpu_missing("r")):
        answer.refused("INVALID_ARG", gpu_missing("r"))
    else:
        answer.refused(code, text)


# ---------------------------------------------------------------------------------------------- use in a request

OFFSET = "Invalid offset for shared memory region: '{name}'"
END = "Invalid offset + byte size for shared memory region: '{name}'"
USES = [
    # byte size, offset into a region of 64 bytes
    (4, 64, OFFSET),
    (4, 65, OFFSET),
    (4, 2**62, OFFSET),
    (64, 4, END),
    (65, 0, END),
    (2**62, 4, END),
]


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(("byte_size", "offset", "text"), USES)
def test_a_window_beyond_the_region(client, side, byte_size, offset, text):
    with registered(client, 64) as made, refuses("INVALID_ARG", text.format(name=made.name)):
        use(client, side, (made.name, byte_size, offset))


def use(client, side: str, where):
    if side == "input":
        return client.infer("identity_fp32", [Given("INPUT0", "FP32", [1], region=where)])
    return client.infer("identity_fp32", [fp32("INPUT0", [1])], [RequestedOutput("OUTPUT0", where)])


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_region_nobody_registered(client, side):
    with refuses("NOT_FOUND", "Unable to find shared memory region: 'nobody'"):
        use(client, side, ("nobody", 4, 0))


@differs("2.51 has no overflow check of its own and says `Invalid offset + byte size`")
def test_a_size_that_wraps_over_http(server):
    with registered(HttpClient(server.http), 64) as made:
        text = (
            f"Integer overflow detected: byte_size ({2**64 - 2}) + offset (4) exceeds maximum value "
            f"(18446744073709551615) for region '{made.name}'"
        )
        with refuses("INVALID_ARG", text):
            use(HttpClient(server.http), "input", (made.name, 2**64 - 2, 4))


@pytest.fixture(scope="module")
def grpc_client(server):
    with grpc_channel(server.grpc) as channel:
        yield GrpcClient(channel)


def test_a_negative_offset_over_grpc(grpc_client):
    with registered(grpc_client, 64) as made, refuses("INVALID_ARG", OFFSET.format(name=made.name)):
        use(grpc_client, "input", (made.name, 4, -1))


@differs("2.51 adds without looking: the window wraps into the region and only the tensor's size is found wrong")
def test_a_negative_size_over_grpc(grpc_client):
    with registered(grpc_client, 64) as made, refuses("INVALID_ARG", "Integer overflow detected: byte_size ("):
        use(grpc_client, "input", (made.name, -1, 4))


@differs("2.51 refuses size 0 at offset 0")
def test_an_empty_tensor_in_a_region(client):
    with registered(client, 64) as made:
        given = Given("INPUT0", "FP32", [0], region=(made.name, 0, 0))
        reply = client.infer("identity_fp32", [given], [RequestedOutput("OUTPUT0", (made.name, 0, 0))])
        assert reply.outputs["OUTPUT0"].shape == [0]


@pytest.mark.parametrize("byte_size", [4, 12, 64])
def test_an_input_window_has_exactly_the_tensors_size(client, byte_size):
    message = f"{NO_ID}input byte size mismatch for input 'INPUT0' for model 'identity_fp32'. Expected 8, got {byte_size}"
    with registered(client, 64) as made, refuses("INVALID_ARG", message):
        client.infer("identity_fp32", [Given("INPUT0", "FP32", [2], region=(made.name, byte_size, 0))])


def test_an_output_window_too_small_for_the_result(client):
    message = (
        "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes to "
        "hold the results"
    )
    with registered(client, 64) as made, refuses("INTERNAL", message):
        client.infer("identity_fp32", [fp32("INPUT0", range(4))], [RequestedOutput("OUTPUT0", (made.name, 8, 0))])


BYTES_FAULTS = [
    # content, window, shape
    (b"\x01\x00", 2, [1],
     "incomplete string length indicator for inference input 'INPUT0' for model 'identity_bytes', expecting 4 bytes "
     "but only 2 bytes available. Please make sure the string length indicator is in one buffer."),
    (text("", [b"ab", b"c"]).raw, 11, [3],
     "expected 3 string elements for inference input 'INPUT0' for model 'identity_bytes', got 2"),
    (text("", [b"ab", b"c"]).raw, 11, [1],
     "unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_bytes', expecting 1"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "window", "shape", "message"), BYTES_FAULTS)
def test_strings_that_do_not_add_up(client, content, window, shape, message):
    with registered(client, 64, content) as made, refuses("INVALID_ARG", NO_ID + message):
        client.infer("identity_bytes", [Given("INPUT0", "BYTES", shape, region=(made.name, window, 0))])


@pytest.mark.parametrize("length", [5, 60, 2**31, 2**32 - 1])
def test_a_string_longer_than_its_window(client, length):
    content = length.to_bytes(4, "little") + b"abcd"
    message = f"incomplete string data for inference input 'INPUT0', expecting string of length {length} but only 4 "
    with registered(client, 64, content) as made, pytest.raises(Refused) as caught:
        client.infer("identity_bytes", [Given("INPUT0", "BYTES", [1], region=(made.name, 8, 0))])
    # 2.51's backend finds it and says so bare; found at admission it has the prefix of its neighbours.
    check_refusal(caught.value.status, caught.value.text.removeprefix(NO_ID), "INVALID_ARG", message)


# ---------------------------------------------------------------------------------------------- HTTP parameters


def one_input(**changes) -> dict:
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], **changes}]}


def one_output(**parameters) -> dict:
    return one_input(data=[1.0]) | {"outputs": [{"name": "OUTPUT0", "parameters": parameters}]}


ONLY_ONE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
HTTP_USES = [
    (one_input(parameters={"shared_memory_region": 5}), "INTERNAL",
     f"Unable to parse 'shared_memory_region': {NOT_STRING}"),
    (one_input(parameters={"shared_memory_region": "r", "shared_memory_byte_size": "4"}), "INTERNAL",
     f"Unable to parse 'shared_memory_byte_size': {NOT_UINT}"),
    (one_input(parameters={"shared_memory_region": "r", "shared_memory_byte_size": -4}), "INTERNAL",
     f"Unable to parse 'shared_memory_byte_size': {NOT_UINT}"),
    (one_input(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": -1}),
     "INTERNAL", f"Unable to parse 'shared_memory_offset': {NOT_UINT}"),
    (one_input(parameters={"shared_memory_byte_size": 4}), "INVALID_ARG", ONLY_ONE + "no field is set"),
    (one_input(), "INVALID_ARG", ONLY_ONE + "no field is set"),
    (one_input(parameters={}), "INVALID_ARG", ONLY_ONE + "no field is set"),
    (one_input(data=[1.0], parameters={"shared_memory_region": "r", "shared_memory_byte_size": 4}), "INVALID_ARG",
     ONLY_ONE + "set 'data' 'shared_memory_region'"),
    (one_input(data=[1.0], parameters={"binary_data_size": 4}), "INVALID_ARG",
     ONLY_ONE + "set 'data' 'binary_data_size'"),
    (one_input(parameters={"binary_data_size": 4, "shared_memory_region": "r"}), "INVALID_ARG",
     ONLY_ONE + "set 'binary_data_size' 'shared_memory_region'"),
    (one_input(data=[1.0], parameters={"binary_data_size": 4, "shared_memory_region": "r"}), "INVALID_ARG",
     ONLY_ONE + "set 'data' 'binary_data_size' 'shared_memory_region'"),
    (one_output(shared_memory_region=5), "INTERNAL", f"Unable to parse 'shared_memory_region': {NOT_STRING}"),
    (one_output(shared_memory_region="r", shared_memory_offset="x"), "INTERNAL",
     f"Unable to parse 'shared_memory_offset': {NOT_UINT}"),
    (one_output(shared_memory_region="r", shared_memory_byte_size=-1), "INTERNAL",
     f"Unable to parse 'shared_memory_byte_size': {NOT_UINT}"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "code", "message"), HTTP_USES)
def test_parameters_of_http_tensors(server, document, code, message):
    http_infer(server.http, "identity_fp32", document).refused(code, message)


def test_binary_data_together_with_a_region(server):
    with registered(HttpClient(server.http), 64) as made:
        where = {"shared_memory_region": made.name, "shared_memory_byte_size": 64}
        answer = http_infer(server.http, "identity_fp32", one_output(**where, binary_data=True))
        answer.refused("INVALID_ARG", "Output can't set both 'shared_memory_region' and 'binary_data'")
        http_infer(server.http, "identity_fp32", one_output(**where, binary_data=False)).ok()


def test_offset_and_size_without_a_region_do_nothing_on_an_output(server):
    document = one_output(shared_memory_offset=4, shared_memory_byte_size=4)
    assert http_infer(server.http, "identity_fp32", document).ok().json["outputs"][0]["data"] == [1.0]


# ---------------------------------------------------------------------------------------------- gRPC parameters

WITHOUT = "'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
GRPC_USES = [
    ({"shared_memory_region": 5}, "invalid value type for 'shared_memory_region' parameter for tensor '{tensor}', "
     "expected string_param."),
    ({"shared_memory_offset": 5}, WITHOUT.replace("{key}", "shared_memory_offset")),
    ({"shared_memory_byte_size": 5}, WITHOUT.replace("{key}", "shared_memory_byte_size")),
    ({"shared_memory_region": "r"}, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
     "parameter for tensor '{tensor}'"),
    ({"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": "0"},
     "invalid value type for 'shared_memory_offset' parameter for tensor '{tensor}', expected int64_param."),
    ({"shared_memory_region": "r", "shared_memory_byte_size": "4"},
     "invalid value type for 'shared_memory_byte_size' parameter for tensor '{tensor}', expected int64_param."),
]  # fmt: skip


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(("parameters", "message"), GRPC_USES)
def test_parameters_of_grpc_tensors(stub, side, parameters, message):
    request = pb.ModelInferRequest(model_name="identity_fp32")
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    if side == "output":
        request.raw_input_contents.append(bytes(4))
        tensor = request.outputs.add(name="OUTPUT0")
    for key, value in parameters.items():
        tensor.parameters[key].CopyFrom(infer_parameter(value))
    with grpc_refuses("INVALID_ARG", message.format(tensor=tensor.name)):
        stub.ModelInfer(request)


def test_contents_beside_a_region(stub, server):
    with registered(HttpClient(server.http), 64) as made:
        request = pb.ModelInferRequest(model_name="identity_fp32")
        tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
        tensor.parameters["shared_memory_region"].string_param = made.name
        tensor.parameters["shared_memory_byte_size"].int64_param = 4
        tensor.contents.fp32_contents.append(1.0)
        message = (
            "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'identity_fp32'"
        )
        with grpc_refuses("INVALID_ARG", message):
            stub.ModelInfer(request)
