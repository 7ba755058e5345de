"""Can a client silence or flood the log of a server that is not its own?"""

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


def over_grpc(server, uid: int) -> str:
    act = f"import os; os.setgid({uid}); os.setuid({uid})"
    command = [sys.executable, "-c", f"import grpc, tritonclient.grpc\n{act}\n{OVER_GRPC}", server.grpc]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_stranger_may_read_log_settings_and_not_change_them(server):
    refused = as_user(STRANGER, lambda: over_http(server))
    assert refused.status == 403 and f"user {STRANGER}" in refused.body.decode() and b"--http-restricted-api" in refused.body
    told = over_grpc(server, STRANGER)
    assert told.startswith("UNAVAILABLE") and f"user {STRANGER}" in told and "--grpc-restricted-protocol" in told
    seen = as_user(STRANGER, lambda: http_call(server.http, "GET", "/v2/logging"))
    assert seen.status == 200 and seen.json["log_info"] is True


def test_the_operator_may_change_them(server):
    assert over_http(server).status == 200
    assert over_grpc(server, 0).strip() == "OK"
    assert http_call(server.http, "POST", "/v2/logging", {"log_info": True}).status == 200


def test_a_header_lets_a_stranger_in(launcher):
    if launcher.oracle or os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    repository = launcher.copy_of("log_header", "identity_fp32")
    with launcher.running("log_header", "--http-restricted-api=logging:key=sesame", repository=repository) as server:
        assert as_user(STRANGER, lambda: over_http(server)).status == 403
        assert as_user(STRANGER, lambda: over_http(server, {"key": "sesame"})).status == 200
