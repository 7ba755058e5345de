"""Do the limits and restrictions that flags set hold, on servers started for them?"""

import contextlib
import gzip
import json

import grpc
import pytest
from clients import (
    Refused, differs, fp32, grpc_channel, grpc_refuses, http_call, http_infer, infer_parameter, open_client, pb, refuses,
    service_stub,
)  # fmt: skip
from regions import fresh_name, region

LIMIT = 4096


@pytest.fixture(scope="module")
def limited(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no --http-max-input-size")
    repository = launcher.copy_of("limited", "identity_fp32", "identity_bytes")
    with launcher.running("limited", f"--http-max-input-size={LIMIT}", repository=repository) as found:
        yield found


def document(count: int) -> bytes:
    return json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [count], "data": [1] * count}]}).encode()


def test_json_within_the_limit(limited):
    http_infer(limited.http, "identity_fp32", document(900)).ok()


def test_json_beyond_the_limit(limited):
    body = document(LIMIT)
    text = (
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    http_infer(limited.http, "identity_fp32", body).refused("INVALID_ARG", text)


def test_a_json_input_beyond_the_limit(limited):
    """The text is small, the tensor it claims is not."""
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2000],"data":[1]}]}'
    text = (
        f"JSON input 'INPUT0' has a byte_size (8000 bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    http_infer(limited.http, "identity_fp32", body).refused("INVALID_ARG", text)


def test_a_raw_body_beyond_the_limit(limited):
    headers = {"Inference-Header-Content-Length": "0"}
    answer = http_call(limited.http, "POST", "/v2/models/identity_fp32/infer", bytes(LIMIT + 4), headers)
    text = (
        f"Raw input has a byte_size ({LIMIT + 4} bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    answer.refused("INVALID_ARG", text)


def test_a_compressed_body_that_grows_beyond_the_limit(limited):
    body = gzip.compress(b" " * (4 * LIMIT) + document(2))
    answer = http_call(limited.http, "POST", "/v2/models/identity_fp32/infer", body, {"Content-Encoding": "gzip"})
    text = (
        f"Decompressed data size exceeds the maximum allowed value of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    answer.refused("INVALID_ARG", text)


def test_binary_tensors_have_no_such_limit(limited):
    with open_client("http", limited) as client:
        given = fp32("INPUT0", range(8 * LIMIT))
        assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == given.raw


def test_grpc_has_no_such_limit(limited):
    with open_client("grpc", limited) as client:
        given = fp32("INPUT0", range(8 * LIMIT))
        assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == given.raw


@pytest.mark.parametrize("megabytes", [1, 48])
def test_large_inline_tensors(client, megabytes):
    given = fp32("INPUT0", range(megabytes << 18))
    assert client.infer("identity_fp32", [given]).outputs["OUTPUT0"].raw == given.raw


@differs("2.51 has no bound on chunks", run=False)
def test_chunks_are_counted(server):
    import socket

    host, _, port = server.http.rpartition(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as wire:
        wire.sendall(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            wire.sendall(b"1\r\n \r\n" * 65_600 + b"0\r\n\r\n")
        found = wire.recv(4096)
        assert b" 400 " in found.splitlines()[0]
        assert b"Chunked request body exceeds maximum of 65536 non-empty chunks." in found


# ---------------------------------------------------------------------------------------------- restricted calls

KEY, VALUE = "client-key", "sesame"


@pytest.fixture(scope="module")
def restricted(launcher):
    repository = launcher.copy_of("restricted", "identity_fp32")
    flags = [
        f"--http-restricted-api=inference,shared-memory:{KEY}={VALUE}",
        f"--http-restricted-api=logging:log-key={VALUE}",
        f"--grpc-restricted-protocol=inference,shared-memory:{KEY}={VALUE}",
        f"--grpc-restricted-protocol=health:health-key={VALUE}",
    ]
    with launcher.running("restricted", *flags, repository=repository) as found:
        yield found


ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
GUARDED = [
    ("POST", "/v2/models/identity_fp32/infer", KEY),
    ("POST", "/v2/models/identity_fp32/generate", KEY),
    ("POST", "/v2/models/nobody/infer", KEY),
    ("GET", "/v2/systemsharedmemory/status", KEY),
    ("POST", "/v2/systemsharedmemory/region/r/register", KEY),
    ("POST", "/v2/cudasharedmemory/unregister", KEY),
    ("GET", "/v2/logging", "log-key"),
]


@pytest.mark.parametrize(("method", "path", "key"), GUARDED)
@pytest.mark.parametrize("sent", [None, "", "wrong", VALUE.upper(), VALUE + " x"])
def test_restricted_http_calls(restricted, method, path, key, sent):
    headers = {} if sent is None else {key: sent}
    answer = http_call(restricted.http, method, path, json.dumps(ONE) if method == "POST" else None, headers)
    assert answer.status == 403
    assert answer.error.startswith(f"This API is restricted, expecting header '{key}'")


def test_restricted_http_calls_with_the_key(restricted):
    assert http_infer(restricted.http, "identity_fp32", ONE, headers={KEY: VALUE}).ok()
    assert http_infer(restricted.http, "identity_fp32", ONE, headers={KEY.upper(): VALUE}).ok()
    assert http_call(restricted.http, "GET", "/v2/systemsharedmemory/status", headers={KEY: VALUE}).ok()


def test_what_is_not_restricted_stays_open(restricted):
    assert http_call(restricted.http, "GET", "/v2").ok()
    assert http_call(restricted.http, "GET", "/v2/models/identity_fp32").ok()
    assert http_call(restricted.http, "GET", "/v2/health/ready").ok()


CALLS = [
    ("ModelInfer", pb.ModelInferRequest(model_name="identity_fp32"), KEY),
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(), KEY),
    ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(), KEY),
    ("ServerLive", pb.ServerLiveRequest(), "health-key"),
    ("ModelReady", pb.ModelReadyRequest(name="identity_fp32"), "health-key"),
]


@pytest.mark.parametrize(("rpc", "request_message", "key"), CALLS)
def test_restricted_grpc_calls(restricted, rpc, request_message, key):
    text = f"This protocol is restricted, expecting header 'triton-grpc-protocol-{key}'"
    with grpc_channel(restricted.grpc) as channel:
        call = getattr(service_stub(channel), rpc)
        with grpc_refuses("UNAVAILABLE", text):
            call(request_message)
        with grpc_refuses("UNAVAILABLE", text):
            call(request_message, metadata=((f"triton-grpc-protocol-{key}", "wrong"),))
        with grpc_refuses("UNAVAILABLE", text):
            call(request_message, metadata=((key, VALUE),))
        try:
            call(request_message, metadata=((f"triton-grpc-protocol-{key}", VALUE),))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_restricted_stream(restricted):
    text = f"This protocol is restricted, expecting header 'triton-grpc-protocol-{KEY}'"
    with grpc_channel(restricted.grpc) as channel, grpc_refuses("UNAVAILABLE", text):
        list(service_stub(channel).ModelStreamInfer(iter([pb.ModelInferRequest(model_name="identity_fp32")])))


def test_no_second_way_to_restricted_health(restricted):
    with grpc_channel(restricted.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as caught:
            check(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


# ---------------------------------------------------------------------------------------------- client shm off


@pytest.fixture(scope="module")
def without_shm(launcher):
    if launcher.oracle:
        pytest.skip("2.51 cannot switch client shared memory off")
    repository = launcher.copy_of("without_shm", "identity_fp32")
    with launcher.running("without_shm", "--allow-client-shm=false", repository=repository) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_client_shared_memory_can_be_switched_off(without_shm, protocol):
    text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    with open_client(protocol, without_shm) as client, region(64) as made:
        with refuses("UNSUPPORTED", text):
            client.register_system(fresh_name(), made.key, 64)
        with refuses("UNSUPPORTED", text):
            client.unregister("system")
        with refuses("UNSUPPORTED", text):
            client.unregister("system", fresh_name())
        assert client.status("system") == []
        with pytest.raises(Refused):
            client.register_cuda(fresh_name(), bytes(64), 0, 64)
        assert "system_shared_memory" not in http_call(without_shm.http, "GET", "/v2").json["extensions"]


# ---------------------------------------------------------------------------------------------- header forwarding


def test_any_parameter_may_ride_along(server, stub):
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[bytes(4)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    for key, value in {"text": "x" * 5000, "täglich": 1, "": True}.items():
        request.parameters[key].CopyFrom(infer_parameter(value))
    stub.ModelInfer(request)
