"""Is JSON read and written as Triton's own reader and writer do it?"""

import json

import pytest
from clients import http_call, http_infer

PARSE = "failed to parse the request JSON buffer: "

# Every reason the reader can give, with the place where it notices.
SYNTAX = [
    (" ", "The document is empty. at 1"),
    ("{", "Missing a name for object member. at 1"),
    ("{a:1}", "Missing a name for object member. at 1"),
    ('{"a":1,}', "Missing a name for object member. at 7"),
    ('{"a"', "Missing a colon after a name of object member. at 4"),
    ('{"a" 1}', "Missing a colon after a name of object member. at 5"),
    ('{"a":1 "b":2}', "Missing a comma or '}' after an object member. at 7"),
    ('{"a":1', "Missing a comma or '}' after an object member. at 6"),
    ("[1", "Missing a comma or ']' after an array element. at 2"),
    ("[1 2]", "Missing a comma or ']' after an array element. at 3"),
    ("[", "Invalid value. at 1"),
    ("[1,]", "Invalid value. at 3"),
    ("nul", "Invalid value. at 3"),
    ("-", "Invalid value. at 1"),
    ("inf", "Invalid value. at 0"),
    ('"abc', "Missing a closing quotation mark in string. at 4"),
    ('"\\q"', "Invalid escape character in string. at 1"),
    ('"\\ud800"', "The surrogate pair in string is invalid. at 1"),
    ('"\\u12"', "Incorrect hex digit after \\u escape in string. at 1"),
    ('"\x01"', "Invalid escape character in string. at 1"),
    ('{"a":1}x', "The document root must not be followed by other values. at 7"),
    ("01", "The document root must not be followed by other values. at 1"),
    ("1.", "Miss fraction part in number. at 2"),
    ("1e", "Miss exponent in number. at 2"),
    ("1e999", "Number too big to be stored in double. at 0"),
]


@pytest.mark.parametrize(("body", "reason"), SYNTAX)
def test_every_syntax_fault_has_its_reason_and_place(server, body, reason):
    http_call(server.http, "POST", "/v2/repository/index", body).refused("INTERNAL", PARSE + reason)
    if body.strip():
        http_infer(server.http, "identity_fp32", body.encode()).refused("INTERNAL", PARSE + reason)


def infer_text(server, model: str, datatype: str, data: str, count: int) -> str:
    """The `data` list of the answer as it stands in the body."""
    document = f'{{"inputs":[{{"name":"INPUT0","datatype":"{datatype}","shape":[{count}],"data":{data}}}]}}'
    body = http_infer(server.http, model, document.encode()).ok().body.decode()
    return body[body.index('"data":') + len('"data":') : body.rindex("]}]}") + 1]


NUMBERS = [
    ("FP32", "[0.1]", "[0.10000000149011612]"),
    ("FP64", "[0.1]", "[0.1]"),
    ("FP32", "[1]", "[1.0]"),
    ("FP64", "[1e21,1e-7]", "[1e21,1e-7]"),
    ("FP32", "[-0.0]", "[-0.0]"),
    ("FP64", "[1.7976931348623157e308,5e-324]", "[1.7976931348623157e308,5e-324]"),
    ("FP64", "[12345678901234567]", "[12345678901234568.0]"),
    ("FP32", "[NaN]", "[NaN]"),
    ("FP32", "[Infinity]", "[Infinity]"),
    ("FP32", "[-Infinity]", "[-Infinity]"),
    ("FP32", "[Inf]", "[Infinity]"),
    ("FP64", "[-Inf,NaN]", "[-Infinity,NaN]"),
    ("INT64", "[9223372036854775807,-9223372036854775808]", "[9223372036854775807,-9223372036854775808]"),
    ("UINT64", "[18446744073709551615]", "[18446744073709551615]"),
    ("BOOL", "[true,false]", "[true,false]"),
    ("INT8", "[127,-128]", "[127,-128]"),
    # Integers beyond a small type lose their upper bits.
    ("INT8", "[128,257,-129]", "[-128,1,127]"),
    ("UINT8", "[256,511]", "[0,255]"),
    ("UINT16", "[65536,65537]", "[0,1]"),
    ("INT32", "[2147483648]", "[-2147483648]"),
    ("BYTES", '["a","","\\u00e9"]', '["a","","é"]'),
    ("BYTES", '["\\u0000\\n\\t\\"\\\\/"]', '["\\u0000\\n\\t\\"\\\\/"]'),
    ("BYTES", '["\\u001f\\u007f"]', '["\\u001F\x7f"]'),
]


@pytest.mark.parametrize(("datatype", "given", "written"), NUMBERS)
def test_values_as_they_are_written_back(server, datatype, given, written):
    count = len(json.loads(given.replace("Inf,", "1,").replace("Inf]", "1]").replace("Infinity", "1")))
    assert infer_text(server, f"identity_{datatype.lower()}", datatype, given, count) == written


@pytest.mark.parametrize("data", ["[1,2,3,4,5,6]", "[[1,2,3],[4,5,6]]", "[[1,2],[3,4],[5,6]]", "[[[1],[2,3]],4,[5,6]]"])
def test_nesting_is_free(server, data):
    document = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[2,3],"data":{data}}}]}}'
    answer = http_infer(server.http, "fixed_fp32", document.encode()).ok()
    assert answer.json["outputs"][0]["data"] == [1, 2, 3, 4, 5, 6]


def test_the_answer_has_its_keys_in_order(server):
    document = {"id": "x", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    answer = http_infer(server.http, "identity_fp32", document).ok()
    assert answer.body == (
        b'{"id":"x","model_name":"identity_fp32","model_version":"1","outputs":[{"name":"OUTPUT0",'
        b'"datatype":"FP32","shape":[1],"data":[1.0]}]}'
    )
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "text",
    [
        '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}],"inputs":5}',
        '{"unknown":[{}],"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1],"more":null}]}',
        ' \n{"inputs" : [ {"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]} ] }\r\n\t ',
        '{"inputs":[{"name":"INPUT\\u0030","datatype":"FP32","shape":[1],"data":[1],"parameters":null}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[]}',
        '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}],'
        '"outputs":[{"name":"OUTPUT0","parameters":null}]}',
        '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1],"parameters":5}]}',
        '{"parameters":{},"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}',
    ],
)
def test_forms_of_one_request(server, text):
    assert http_infer(server.http, "identity_fp32", text.encode()).ok().json["outputs"][0]["data"] == [1]


def test_an_empty_id_is_left_out(server):
    document = {"id": "", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert "id" not in http_infer(server.http, "identity_fp32", document).ok().json


def test_an_empty_shape_ignores_its_data(server):
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [0], "data": [1, 2]}]}
    found = http_infer(server.http, "identity_fp32", document).ok().json["outputs"][0]
    assert (found["shape"], found["data"]) == ([0], [])
