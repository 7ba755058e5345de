"""Are damaged and oversized messages answered, and does the server live on?"""

import contextlib
import http.client
import json
import random

import grpc
import pytest
from clients import TIMEOUT_S, GrpcClient, RequestedOutput, differs, fp32, grpc_channel, http_call, http_infer
from footprint import resident_mib
from half_requests import connected

# ---------------------------------------------------------------------------------------------- malformed bodies


def mutants(good: bytes, count: int, seed: int):
    """The same body damaged in one to four places: bytes changed, cut, doubled or put in."""
    chance = random.Random(seed)
    for _ in range(count):
        made = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(made) + 1)
            match chance.randrange(5):
                case 0 if at < len(made):
                    made[at] = chance.randrange(256)
                case 1:
                    del made[at : at + chance.randint(1, 8)]
                case 2:
                    made[at:at] = made[at : at + chance.randint(1, 16)]
                case 3:
                    made[at:at] = chance.choice([b"{", b"}", b"[", b"]", b'"', b",", b"null", b"-1", b"1e99", b"\\u0000", b"\xff"])
                case _:
                    made = made[: at or 1]
            if not made:
                made = bytearray(b"x")
        yield bytes(made)


def test_damaged_json_is_answered(victim):
    document = json.dumps(
        {
            "id": "x",
            "parameters": {"sequence_id": 0, "mine": 1.5, "binary_data_output": True},
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [[1.5], [2e3]]},
                {"name": "INPUT1", "datatype": "BYTES", "shape": [1], "data": ["text\u00e9"]},
                {"name": "INPUT2", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False, "classification": 1}}],
        }
    ).encode()
    connection = http.client.HTTPConnection(victim.http, timeout=TIMEOUT_S)
    seen = set()
    for body in mutants(document, 1500, 1):
        headers = {"Inference-Header-Content-Length": str(len(body))}
        connection.request("POST", "/v2/models/mixed/infer", body + bytes(4), headers)
        answer = connection.getresponse()
        text = answer.read()
        seen.add(answer.status)
        assert answer.status in (200, 400, 500, 501)
        # A name that is no UTF-8 comes back as it was sent.
        assert answer.status == 200 or json.loads(text.decode(errors="replace"))["error"]
    assert {400, 500} <= seen


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/v2/systemsharedmemory/region/r/register", {"key": "/x", "offset": 0, "byte_size": 64}),
        ("/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "A" * 88}, "device_id": 0, "byte_size": 64}),
        ("/v2/repository/index", {"ready": True}),
        ("/v2/repository/models/nobody/load", {"parameters": {"config": "{}", "file:1/x": "AAAA"}}),
        ("/v2/trace/setting", {"trace_rate": "1000", "trace_level": ["OFF"]}),
        ("/v2/logging", {"log_info": True, "log_verbose_level": 0}),
        ("/v2/models/identity_fp32/generate", {"INPUT0": [1, 2], "parameters": {"x": 1}}),
    ],
)
def test_damaged_bodies_of_other_calls(victim, path, good):
    for body in mutants(json.dumps(good).encode(), 150, 2):
        assert 200 <= http_call(victim.http, "POST", path, body).status < 600
    http_call(victim.http, "POST", "/v2/logging", {"log_info": True, "log_verbose_level": 0, "log_format": "default"})


def test_damaged_messages_are_answered(victim):
    with grpc_channel(victim.grpc) as channel:
        good = GrpcClient(channel).request(
            "identity_fp32", [fp32("INPUT0", [1, 2])], [RequestedOutput("OUTPUT0")], id="x", parameters={"mine": 1}
        )
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for body in mutants(good.SerializeToString(), 1500, 3):
            with contextlib.suppress(grpc.RpcError):
                call(body, timeout=TIMEOUT_S)


# ---------------------------------------------------------------------------------------------- beyond every limit


def one(**changes) -> dict:
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]} | changes]}


ABORTS = differs("a JSON shape of this size ends 2.51 with an uncaught length_error", run=False)
OVERSIZED = [
    one(shape=[1] * 100_000),
    one(name="x" * 10_000_000),
    one(datatype="x" * 10_000_000),
    pytest.param(one(shape=[2**63 - 1]), marks=ABORTS),
    pytest.param(one(shape=[2**64 - 1]), marks=ABORTS),
    one(shape=[2**40, 2**40]),
    {"inputs": one()["inputs"] * 50_000},
    one() | {"outputs": [{"name": f"OUTPUT{number}"} for number in range(50_000)]},
    one() | {"parameters": {f"k{number}": number for number in range(100_000)}},
    one(data=[1] * 2_000_000),
]


@pytest.mark.parametrize("document", OVERSIZED)
def test_oversized_documents_are_answered(victim, document):
    answer = http_infer(victim.http, "identity_fp32", document)
    assert answer.status in (200, 400, 500)
    assert answer.status == 200 or answer.error


@differs("2.51 reads JSON without a bound on its depth", run=False)
@pytest.mark.parametrize("text", ["[" * 5_000_000, '{"a":' * 2_000_000, "[" * 2_000_000 + "]" * 2_000_000])
def test_bottomless_documents_are_answered(victim, text):
    for path in ("/v2/models/identity_fp32/infer", "/v2/models/identity_fp32/generate"):
        assert http_call(victim.http, "POST", path, text).status in (400, 500)
    # A list has no settings to change, however deep it is.
    assert http_call(victim.http, "POST", "/v2/logging", text).status in (200, 400, 500)


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4611686018427387904\r\n\r\n" + b"x" * 4096,
    ],
)
def test_oversized_heads_are_refused_or_dropped(victim, request_head):
    with connected(victim.http) as wire, contextlib.suppress(OSError):
        wire.settimeout(2)
        wire.sendall(request_head)
        wire.recv(4096)


def test_a_body_announced_beyond_an_int_is_refused(victim):
    with connected(victim.http) as wire:
        wire.sendall(
            b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Length: 2147483648\r\n\r\n"
        )
        wire.settimeout(2)
        before = resident_mib(victim.pid)
        with contextlib.suppress(OSError):
            wire.recv(4096)
        # Nothing is set aside for what was only announced.
        assert resident_mib(victim.pid) < before + 256
