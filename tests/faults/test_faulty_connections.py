"""Does the server outlive clients that vanish, stall or never end, and does it give back all they took?"""

import contextlib
import http.client
import json
import os
import socket
import struct
import time

from clients import TIMEOUT_S, grpc_channel, http_infer, pb
from footprint import resident_mib, wait_until
from half_requests import BODY, LARGE, connected, head

def test_a_client_that_vanishes_in_the_middle_of_a_large_body(victim):
    lines, document = head(LARGE, LARGE)
    before = len(os.listdir(f"/proc/{victim.pid}/fd"))
    for part in (0, 1, 1000, LARGE // 4, LARGE // 2, LARGE - 1):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(part))
            if part % 2:
                # An abrupt end, without the farewell.
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: len(os.listdir(f"/proc/{victim.pid}/fd")) <= before + 2)


def test_large_bodies_that_never_end_do_not_pile_up(victim):
    """Twenty times 16 MiB of half a request, one after the other: nothing of it may stay."""
    lines, document = head(LARGE, LARGE)
    for _ in range(3):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(LARGE // 4))
    before = resident_mib(victim.pid)
    for _ in range(20):
        with connected(victim.http) as gone:
            gone.sendall(lines + document + bytes(LARGE // 4))
    # The server hears of the last of them when it gets round to it.
    wait_until(lambda: resident_mib(victim.pid) < before + 128)


def test_grpc_calls_cancelled_in_the_middle_of_a_large_message(victim):
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[bytes(LARGE)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[LARGE // 4])
    for pause in (0.0, 0.005, 0.02):
        with grpc_channel(victim.grpc) as channel:
            future = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer", request_serializer=pb.ModelInferRequest.SerializeToString
            ).future(request)
            time.sleep(pause)
            future.cancel()


def test_a_client_that_never_reads_its_answer(victim):
    document = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [LARGE // 8], "parameters": {
        "binary_data_size": LARGE // 2}}], "parameters": {"binary_data_output": True}}).encode()  # fmt: skip
    lines = (
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n"
        b"Content-Length: %d\r\n\r\n" % (len(document), len(document) + LARGE // 2)
    )
    with connected(victim.http) as lazy:
        lazy.sendall(lines + document + bytes(LARGE // 2))
        http_infer(victim.http, "identity_fp32", BODY).ok()


def test_slow_clients_do_not_keep_others_out(victim):
    with contextlib.ExitStack() as held:
        for _ in range(200):
            slow = held.enter_context(connected(victim.http))
            slow.sendall(b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nContent-Le")
        for _ in range(20):
            http_infer(victim.http, "identity_fp32", BODY).ok()


def test_many_requests_on_one_connection_leave_nothing_behind(victim):
    connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)

    def infer(count: int):
        for _ in range(count):
            connection.request("POST", "/v2/models/nobody/infer", BODY)
            connection.getresponse().read()

    infer(500)
    before, held = resident_mib(victim.pid), len(os.listdir(f"/proc/{victim.pid}/fd"))
    infer(5000)
    wait_until(lambda: resident_mib(victim.pid) < before + 16)
    wait_until(lambda: len(os.listdir(f"/proc/{victim.pid}/fd")) <= held + 2)
