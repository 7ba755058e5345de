"""Does the server say that it lives, and refuse paths and methods it does not have?"""

import contextlib
import http.client

import grpc
import pytest
from clients import TIMEOUT_S, http_call, pb


def test_live_and_ready_have_an_empty_body(server):
    for path in ("/v2/health/live", "/v2/health/ready"):
        answer = http_call(server.http, "GET", path)
        assert answer.body == b""
        assert answer.status in ((200,) if path.endswith("live") else (200, 400))


def test_the_server_is_ready_exactly_when_every_model_is(server, stub, client):
    every = all(one["state"] == "READY" for one in client.index())
    assert (http_call(server.http, "GET", "/v2/health/ready").status == 200) == every
    assert stub.ServerReady(pb.ServerReadyRequest()).ready == every
    assert stub.ServerLive(pb.ServerLiveRequest()).live


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [
        ("identity_fp32", "", True),
        ("identity_fp32", "1", True),
        ("versioned", "1", True),
        ("versioned", "3", True),
        ("versioned", "2", False),
        ("nobody", "", False),
    ],
)
def test_model_readiness(client, model, version, ready):
    assert client.model_ready(model, version) is ready


def test_a_model_that_is_not_ready_says_so_in_json(server):
    answer = http_call(server.http, "GET", "/v2/models/nobody/ready")
    answer.refused("INVALID_ARG", "Model version not ready")


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "nobody"])
def test_the_standard_health_check_ignores_the_service_name(server, service):
    from clients import grpc_channel

    with grpc_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        request = b"" if not service else b"\x0a" + bytes([len(service)]) + service.encode()
        answer = check(request, timeout=TIMEOUT_S)
        assert answer in (b"\x08\x01", b"\x08\x02")


def test_an_unknown_method_is_unimplemented(server):
    from clients import grpc_channel

    with grpc_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/NoSuchCall")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=TIMEOUT_S)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "/v2/health",
        "/v2/health/",
        "/v2/health/live/",
        "/v1",
        "/v2/models",
        "/v2/models/",
        "/v2/models/identity_fp32/",
        "/v2/models/identity_fp32/versions/",
        "/v2/models/identity_fp32/versions/one",
        "/v2/models/identity_fp32/versions/-1",
        "/v2/models/identity_fp32/nothing",
        "/v2/models/identity_fp32/versions/1/trace/setting",
        "/v2/repository",
        "/v2/systemsharedmemory",
        "/metrics",
    ],
)
def test_an_unknown_path_is_not_found(server, path):
    answer = http_call(server.http, "GET", path)
    assert (answer.status, answer.error) == (404, "Not Found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/health/live"),
        ("POST", "/v2"),
        ("POST", "/v2/models/identity_fp32"),
        ("POST", "/v2/models/identity_fp32/config"),
        ("POST", "/v2/models/identity_fp32/stats"),
        ("POST", "/v2/models/stats"),
        ("GET", "/v2/models/identity_fp32/infer"),
        ("PUT", "/v2/models/identity_fp32/infer"),
        ("GET", "/v2/models/identity_fp32/generate"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/repository/models/identity_fp32/load"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/systemsharedmemory/unregister"),
        ("GET", "/v2/systemsharedmemory/region/x/register"),
        ("GET", "/v2/cudasharedmemory/region/x/register"),
        ("DELETE", "/v2/logging"),
        ("PUT", "/v2/trace/setting"),
    ],
)
def test_a_wrong_method_is_not_allowed(server, method, path):
    answer = http_call(server.http, method, path)
    assert (answer.status, answer.error) == (405, "Method Not Allowed")


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/identity_fp32/ready", "/v2/models/nobody/ready"])
def test_head_on_health_is_get_without_a_body(server, path):
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)) as connection:
        for _ in range(2):
            connection.request("HEAD", path)
            answer = connection.getresponse()
            # The connection goes on: nothing followed the head of the answer.
            assert (answer.status, answer.read()) == (405 if server.oracle else http_call(server.http, "GET", path).status, b"")


def test_query_strings_are_ignored(server):
    assert http_call(server.http, "GET", "/v2/health/live?probe=1").status == 200
    assert http_call(server.http, "GET", "/v2/models/identity_fp32?x=/y").json["name"] == "identity_fp32"


def test_an_unknown_name_is_told_as_it_was_written(server):
    answer = http_call(server.http, "GET", "/v2/models/no%5fbody")
    answer.refused("NOT_FOUND", "Request for unknown model: 'no%5fbody' is not found")
