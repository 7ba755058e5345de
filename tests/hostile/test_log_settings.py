"""Can a client silence or flood the log or the traces of a server that is not its own?"""

import os
import subprocess
import sys

import pytest
from clients import http_call
from users import as_user

STRANGER = 65103


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 lets every client change log settings")
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with launcher.running("log_settings", repository=launcher.copy_of("log_settings", "identity_fp32")) as found:
        yield found


def over_http(server, headers=None):
    return http_call(server.http, "POST", "/v2/logging", {"log_info": False}, headers=headers or {})


# In a process of its own: the threads on which gRPC connects may be there already, as root's.
OVER_GRPC = """
import sys, grpc
from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc
request = pb.LogSettingsRequest()
request.settings["log_info"].bool_param = False
try:
    service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1])).LogSettings(request, timeout=60)
    print("OK")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


def over_grpc(server, uid: int, call: str = OVER_GRPC) -> str:
    act = f"import os; os.setgid({uid}); os.setuid({uid})"
    command = [sys.executable, "-c", f"import grpc, tritonclient.grpc\n{act}\n{call}", server.grpc]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_stranger_may_read_log_settings_and_not_change_them(server):
    refused = as_user(STRANGER, lambda: over_http(server))
    assert refused.status == 403 and f"user {STRANGER}" in refused.body.decode() and b"--http-restricted-api" in refused.body
    refusal = over_grpc(server, STRANGER)
    assert refusal.startswith("UNAVAILABLE") and f"user {STRANGER}" in refusal and "--grpc-restricted-protocol" in refusal
    seen = as_user(STRANGER, lambda: http_call(server.http, "GET", "/v2/logging"))
    assert seen.status == 200 and seen.json["log_info"] is True


TRACE_PATHS = ["/v2/trace/setting", "/v2/models/identity_fp32/trace/setting"]
LOG_CHANGE, TRACE_CHANGE = 'request.settings["log_info"].bool_param = False', 'request.settings["trace_rate"].value.append("7")'
TRACE_READ_OVER_GRPC = OVER_GRPC.replace("LogSettings", "TraceSetting").replace(LOG_CHANGE, "")
TRACE_OVER_GRPC = OVER_GRPC.replace("LogSettings", "TraceSetting").replace(LOG_CHANGE, TRACE_CHANGE)


@pytest.mark.parametrize("path", TRACE_PATHS)
def test_a_stranger_may_read_trace_settings_and_not_change_them(server, path):
    refused = as_user(STRANGER, lambda: http_call(server.http, "POST", path, {"trace_rate": "7"}))
    text = refused.body.decode()
    assert refused.status == 403 and f"user {STRANGER}" in text and "--http-restricted-api=trace:" in text
    seen = as_user(STRANGER, lambda: http_call(server.http, "GET", path))
    assert seen.status == 200 and seen.json["trace_rate"] == "1000"
    assert http_call(server.http, "POST", path, {"trace_rate": "1000"}).status == 200


def test_trace_settings_over_grpc_are_the_operators(server):
    refusal = over_grpc(server, STRANGER, TRACE_OVER_GRPC)
    assert refusal.startswith("UNAVAILABLE") and "--grpc-restricted-protocol=trace:" in refusal
    assert over_grpc(server, STRANGER, TRACE_READ_OVER_GRPC).strip() == "OK"
    assert over_grpc(server, 0, TRACE_OVER_GRPC).strip() == "OK"
    assert http_call(server.http, "POST", "/v2/trace/setting", {"trace_rate": None}).status == 200


def test_the_operator_may_change_them(server):
    assert over_http(server).status == 200
    assert over_grpc(server, 0).strip() == "OK"
    assert http_call(server.http, "POST", "/v2/logging", {"log_info": True}).status == 200


def test_a_header_lets_a_stranger_in(launcher):
    if launcher.oracle or os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    repository = launcher.copy_of("log_header", "identity_fp32")
    flags = ["--http-restricted-api=logging:key=sesame", "--http-restricted-api=trace:key=sesame"]
    with launcher.running("log_header", *flags, repository=repository) as server:
        assert as_user(STRANGER, lambda: over_http(server)).status == 403
        assert as_user(STRANGER, lambda: over_http(server, {"key": "sesame"})).status == 200
        for headers, status in (({}, 403), ({"key": "sesame"}, 200)):
            change = lambda sent=headers: http_call(server.http, "POST", "/v2/trace/setting", {"trace_rate": "7"}, headers=sent)
            assert as_user(STRANGER, change).status == status
