"""Does the generate extension turn flat JSON into tensors and back?"""

import http.client
import json

import pytest
from clients import differs, http_call

SIMPLE = {"INPUT0": 1.5}


def generate(server, model: str, body, headers=None, stream: bool = False):
    what = "generate_stream" if stream else "generate"
    return http_call(server.http, "POST", f"/v2/models/{model}/{what}", body, headers)


def test_a_scalar_in_and_out(server):
    answer = generate(server, "identity_fp32", SIMPLE).ok()
    assert answer.json == {"OUTPUT0": 1.5, "model_name": "identity_fp32", "model_version": "1"}
    assert list(answer.json) == sorted(answer.json)
    assert answer.headers["content-type"] == "application/json"


def test_a_list_and_a_string(server):
    answer = generate(server, "identity_fp32", {"INPUT0": [1, 2, 3]}).ok()
    assert answer.json["OUTPUT0"] == [1, 2, 3]
    assert generate(server, "identity_bytes", {"INPUT0": "grün"}).ok().json["OUTPUT0"] == "grün"


def test_an_id_and_parameters(server):
    body = SIMPLE | {"id": "seven", "mine": 5, "parameters": {"other": "x", "flag": True}, "priority": 3}
    answer = generate(server, "identity_fp32", body).ok().json
    assert (answer["id"], answer["OUTPUT0"]) == ("seven", 1.5)


def test_fixed_dims_divide_the_elements(server):
    answer = generate(server, "fixed_fp32", {"INPUT0": [1, 2, 3, 4, 5, 6]}).ok()
    assert answer.json["OUTPUT0"] == [1, 2, 3, 4, 5, 6]


FAULTS = [
    ("identity_fp32", "", "INTERNAL", "failed to parse the request JSON buffer: The document is empty. at 0"),
    ("identity_fp32", {"x": 1} | SIMPLE | {"y": None}, "INVALID_ARG",
     "parameter 'y' has invalid type. It should be either 'int', 'bool', or 'string'."),
    ("identity_fp32", SIMPLE | {"parameters": 5}, "INTERNAL",
     "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"),
    ("identity_fp32", SIMPLE | {"parameters": {"y": [1]}}, "INVALID_ARG", "Converting keyword: 'parameters': "),
    ("identity_fp32", SIMPLE | {"parameters": {"parameters": {"a": 1}}}, "INVALID_ARG",
     "Converting keyword: 'parameters': parameter 'parameters' has invalid type."),
    ("fixed_fp32", {"INPUT0": [1, 2, 3]}, "INVALID_ARG",
     "The schema can not convert input 'INPUT0' to tensor with proper shape"),
    ("nobody", SIMPLE, "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
    ("identity_fp32", {}, "INVALID_ARG", "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", ['{"INPUT0":1,"INPUT0":2}', '{"parameters":{"INPUT0":5},"INPUT0":1}'])
def test_an_input_given_twice(server, body, stream):
    answer = generate(server, "identity_fp32", body, stream=stream)
    answer.refused("INVALID_ARG", "[request id: <id_unknown>] input 'INPUT0' already exists in request")


@pytest.mark.parametrize(("model", "body", "code", "message"), FAULTS)
def test_faulty_bodies(server, model, body, code, message):
    generate(server, model, body).refused(code, message)


def test_a_compressed_body_is_refused(server):
    answer = generate(server, "identity_fp32", json.dumps(SIMPLE), {"Content-Encoding": "gzip"})
    answer.refused("INVALID_ARG", "Unsupported content-encoding, only 'identity' is supported.")


def events(body: bytes) -> list[dict]:
    return [json.loads(part.removeprefix("data: ")) for part in body.decode().split("\n\n") if part]


def test_a_stream_of_one(server):
    answer = generate(server, "identity_fp32", SIMPLE, stream=True).ok()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [one["OUTPUT0"] for one in events(answer.body)] == [1.5]


def test_a_stream_of_many(server, needs_model):
    needs_model("repeat_int32")
    answer = generate(server, "repeat_int32", {"IN": [4, 5, 6], "DELAY": [0, 0, 0]}, stream=True).ok()
    assert [one["OUT"] for one in events(answer.body)] == [4, 5, 6]


def test_many_answers_do_not_fit_generate(server, needs_model):
    needs_model("repeat_int32")
    answer = generate(server, "repeat_int32", {"IN": [4, 5], "DELAY": [0, 0]})
    assert answer.error.startswith("generate expects model to produce exactly 1 response, use generate stream for model")


def test_events_come_as_they_are_made(server, needs_model):
    needs_model("repeat_int32")
    connection = http.client.HTTPConnection(server.http, timeout=30)
    body = json.dumps({"IN": [1, 2], "DELAY": [0, 1500]})
    connection.request("POST", "/v2/models/repeat_int32/generate_stream", body)
    answer = connection.getresponse()
    assert json.loads(answer.readline().removeprefix(b"data: "))["OUT"] == 1
    connection.close()


@differs("2.51 fits dims around no elements and succeeds")
def test_no_elements_have_no_shape(server):
    generate(server, "identity_fp32", {"INPUT0": []}).refused("INVALID_ARG", "")
