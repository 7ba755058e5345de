"""Do nerite and Triton read each form of a configuration alike, in `config.pbtxt` and in the JSON that comes with a load?"""

import itertools
import json

import pytest
from clients import http_call
from conftest import both_servers, check_same

MODEL = '''
class TritonPythonModel:
    def execute(self, requests):
        return [None for _ in requests]
'''
IDENTITY = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 3 }
output { name: "OUT" data_type: TYPE_FP32 dims: 3 }
"""
# An ensemble starts no process, so it loads at once.
ENSEMBLE = {
    "head": 'platform: "ensemble"',
    "input": 'input { name: "IN" data_type: TYPE_FP32 dims: 3 }',
    "output": 'output { name: "OUT" data_type: TYPE_FP32 dims: 3 }',
    "steps": 'ensemble_scheduling { step { model_name: "step" model_version: -1 '
    'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }',
    "more": "",
}
STRINGS = (
    '"a"', "'a'", '"a" "b"', "\"a\" 'b'", '"a"\n  "b"', '""', "''", 'a', "1", '"a', '"it\'s"', "'say \"x\"'", '"say "x""', '"a\nb"',
    r'"\n\t\r"', r'"\""', r"'\''", r'"\\"', r'"\101"', r'"\0"', r'"\7"', r'"\377"', r'"\400"', r'"\x41"', r'"\x4"', r'"\xff"', r'"\x"',
    r'"\u0041"', r'"\u00e9"', r'"\U0001F600"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00"', r'"\U00110000"', r'"\u12"',
    r'"\q"', r'"\?"', r'"\a\b\f\v"', '"é"', '"😀"', '"a" # more', '"a",', '"a";', '["a"]', '{ }', '"#"',
)  # fmt: skip
INTEGERS = (
    "0", "1", "-1", "+1", "3", "010", "08", "0x10", "0X1f", "0x", "-0x1", "1.0", "1.5", "1e1", "1f", "1u", "1L", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "4294967295", "4294967296", "18446744073709551615", "18446744073709551616", '"1"', "true", "nan", "- 1", "-\n1",
    "1,", "1;", "1#c", "[1]", "[ ]", "[1, 2]",
)  # fmt: skip
BOOLEANS = ("true", "false", "True", "False", "t", "f", "T", "1", "0", "2", "-1", "01", "0x1", "00", "TRUE", "yes", '"true"', "1.0", "", "nan")
ENUMERATIONS = ("TYPE_FP32", "11", "0xb", "FP32", "type_fp32", '"TYPE_FP32"', "99", "-1", "TYPE_FP32,", "1.0", "TYPE_", "true", "[TYPE_FP32]")
LISTS = (
    "dims: 3", "dims: [3]", "dims [3]", "dims: [ 3 ]", "dims: [3,]", "dims: [,3]", "dims: [3 4]", "dims: [3,4]", "dims: 3 dims: 4", "dims: [3] dims: 4",
    "dims: [3], dims: [4]", "dims: 3; dims: 4;", "dims: []", "dims: [] dims: 3", "dims 3", "dims: -1", "dims: [-1, -1]", "dims: 0", "dims: -2",
    "dims: [[3]]", "dims: (3)", "dims: {3}", "dims: 3,", "dims: 3,,", "dims: 3;;", "DIMS: 3", "dims : 3", "dims:3", "dims: /* c */ 3", "dims: 3 // c",
    "dims: # c\n 3", "dims: 1e0", "dims: 9223372036854775807", "dims: 9223372036854775808", "5: 3", "dims: 3 dims: \"3\"", "[dims]: 3",
    "dims: 3 reshape { shape: 3 }", "dims: 3 reshape { shape: [1, 3] }", "dims: 3 reshape { }", "dims: 1 reshape { }", "dims: 3 reshape { shape: 4 }",
    "dims: -1 reshape { shape: [-1, 1] }", "dims: 3 reshape: { shape: 3 }", "dims: 3 reshape < shape: 3 >", "dims: 3 reshape: < shape: 3 >",
    "dims: 3 reshape { shape: 3 >", "dims: 3 is_shape_tensor: true", "dims: 3 allow_ragged_batch: true", "dims: 3 optional: true", "dims: 3 format: FORMAT_NCHW",
    "dims: 3 format: FORMAT_NONE", "dims: 3 format: 0", "dims: 3 format: 7", "dims: 3 unknown: 1", "dims: 3 label_filename: \"x\"",
)  # fmt: skip
WHOLE = (
    "version_policy { }", "version_policy: { latest { } }", "version_policy { latest { num_versions: 0 } }", "version_policy { latest { num_versions: 2 } }",
    "version_policy { all { } }", "version_policy { all: { } }", "version_policy { specific { } }", "version_policy { specific { versions: 1 } }",
    "version_policy { specific { versions: [1] } }", "version_policy { specific { versions: [2] } }", "version_policy { all { } latest { } }",
    "version_policy { all { } } version_policy { latest { num_versions: 3 } }", "version_policy: all", "version_policy { latest { num_versions: -1 } }",
    "max_batch_size: 0", "max_batch_size: -1", "max_batch_size: 4 max_batch_size: 0", "name: \"form\"", "name: \"other\"", "name: \"\"", "backend: \"python\"",
    "backend: \"\"", "platform: \"\"", "platform: \"other\"", "# nothing", "#", ";", ",", "}", "{", "unknown: 1", "unknown { x: 1 }", "instance_group { }",
    "instance_group { count: 2 }", "instance_group { kind: KIND_CPU }", "dynamic_batching { }", "sequence_batching { }", "parameters { }",
    "parameters { key: \"a\" }", "parameters { value { string_value: \"x\" } }", "parameters { key: \"a\" value { } }",
    "parameters [ { key: \"a\" value { string_value: \"1\" } }, { key: \"b\" value { string_value: \"2\" } } ]",
    "parameters: [ { key: \"a\" value: { string_value: \"1\" } } ]", "parameters { key: \"a\" value: { string_value: \"1\" }, }",
    "parameters { key: \"a\" value { string_value: \"1\" } } parameters { key: \"a\" value { string_value: \"2\" } }",
    "parameters { \"a\": { string_value: \"1\" } }", "parameters { key: 1 }", "metric_tags { key: \"a\" value: \"b\" }", "metric_tags { key: \"a\" }",
    "response_cache { enable: true }", "response_cache { enable: false }", "model_transaction_policy { decoupled: true }", "model_transaction_policy { }",
    "optimization { }", "optimization { priority: PRIORITY_MAX }", "optimization { graph { level: 1 } }", "optimization { eager_batching: true }",
    "default_model_filename: \"x\"", "cc_model_filenames { key: \"7.5\" value: \"x\" }", "model_warmup { }", "model_operations { }", "runtime: \"x\"",
    "ensemble_scheduling { }", "input { name: \"IN2\" data_type: TYPE_FP32 dims: 3 }", "input [ ]", "output [ ]", "input { }",
    "parameters < key: \"a\" value < string_value: \"1\" > >", "parameters { key: \"a\" value < string_value: \"1\" > }", "batch_input { }",
    "model_metrics { }", "\ufeffmax_batch_size: 0", "max_batch_size : 0\r\n", "max_batch_size:\t0\v", "google.protobuf.Any { }",
)  # fmt: skip


def written(**parts: str) -> str:
    return "\n".join((ENSEMBLE | parts).values()) + "\n"


def texts() -> dict[str, str]:
    made = {}
    for value in STRINGS:
        made[f"string {value}"] = written(more=f'parameters {{ key: "k" value {{ string_value: {value} }} }}')
    for value in INTEGERS:
        made[f"int32 {value}"] = written(more=f"max_batch_size: {value}")
        made[f"int64 {value}"] = written(more="", steps=ENSEMBLE["steps"].replace("-1", value, 1))
        made[f"uint32 {value}"] = written(more=f"version_policy {{ latest {{ num_versions: {value} }} }}")
        made[f"uint64 {value}"] = written(more=f"instance_group {{ count: 1 rate_limiter {{ priority: {value} }} }}")
    for value in BOOLEANS:
        made[f"bool {value}"] = written(more=f"model_transaction_policy {{ decoupled: {value} }}")
        made[f"bool of an input {value}"] = written(input=f'input {{ name: "IN" data_type: TYPE_FP32 dims: 3 optional: {value} }}')
    for value in ENUMERATIONS:
        made[f"enumeration {value}"] = written(input=f'input {{ name: "IN" data_type: {value} dims: 3 }}')
    for value in LISTS:
        made[f"tensor {value}"] = written(input=f'input {{ name: "IN" data_type: TYPE_FP32 {value} }}')
        made[f"tensors in a list {value}"] = written(output=f'output: [ {{ name: "OUT", data_type: TYPE_FP32, {value} }} ]')
    for value in WHOLE:
        made[f"whole {value}"] = written(more=value)
        made[f"whole, first {value}"] = value + "\n" + written()
    return made


BASE = {
    "platform": "ensemble",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [3]}],
    "ensemble_scheduling": {"step": [{"model_name": "step", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}]},
}
JSON_VALUES = (
    "1", '"1"', "1.0", "1.5", "1e0", '"1.0"', '"1e0"', '""', '" 1"', "-1", '"-1"', "null", "true", "false", '"true"', "0", '"0"', "[]", "{}", "[1]", "2147483648",
    "4294967296", "18446744073709551615", '"18446744073709551615"', "1e30", "NaN", '"NaN"', "01", "0x1", "+1", ".5", "1.", "'1'", "'it\\'s'", '"\\u0041"',
    '"\\ud83d\\ude00"', '"\\ud83d"', '"\\x41"', '"\\/"', '"a\nb"', '"TYPE_FP32"', '"TYPE_INT8"', '"fp32"', '"11"', "11", "11.0", "99", '"é"', "abc", "[1,]", "[1,,2]",
    '["1", 2]', "[null]", '{"a": 1}', "{a: 1}", "{'a': 1}", '{"a": "1",}', "/* c */ 1", "1 // c",
    '"TRUE"', '"t"', '"Yes"', '"y"', '"f"', '"NO"', '"n"', '"on"', '"2"', '"a\tb"', '"\\0"', '"\\v"', "'\\\"'", "1.e3", "-1.", ".",
)  # fmt: skip
JSON_PLACES = {
    "int32": '"max_batch_size": {}',
    "int32 in camel case": '"maxBatchSize": {}',
    "uint32": '"version_policy": {{"latest": {{"num_versions": {}}}}}',
    "bool": '"model_transaction_policy": {{"decoupled": {}}}',
    "string": '"parameters": {{"k": {{"string_value": {}}}}}',
    "string in camel case": '"parameters": {{"k": {{"stringValue": {}}}}}',
    "map": '"metric_tags": {{"a": {}}}',
    "message": '"response_cache": {}',
    "messages": '"instance_group": {}',
    "enumeration": '"optimization": {{"priority": {}}}',
    "unknown": '"unknown": {}',
    "bare": "max_batch_size: {}",
    "quoted singly": "'max_batch_size': {}",
}
JSON_WHOLE = (
    "{}", "", " ", "[]", "null", "1", '"x"', "{", "}", "{,}", '{"max_batch_size": 0,}', '{,"max_batch_size": 0}', '{"max_batch_size" 0}', '{"max_batch_size": 0} x',
    '{"max_batch_size": 0}{}', '{"max_batch_size": 0, "max_batch_size": 1}', '{"max_batch_size": 0, "maxBatchSize": 1}', "{'max_batch_size': 0}", "{max_batch_size: 0}",
    '{"version_policy": {}}', '{"version_policy": {"all": {}}}', '{"version_policy": {"all": {}, "latest": {}}}', '{"version_policy": {"specific": {"versions": ["1"]}}}',
    '{"version_policy": {"specific": {"versions": "1"}}}', '{"name": "form"}', '{"name": "other"}', '{"@type": "x"}', '{"max_batch_size": 0 "name": "form"}',
)  # fmt: skip


def documents() -> dict[str, str]:
    rest = json.dumps(BASE)[1:]
    made = {f"{place}: {value}": "{" + shape.format(value) + ", " + rest for (place, shape), value in itertools.product(JSON_PLACES.items(), JSON_VALUES)}
    for whole in JSON_WHOLE:
        made[f"whole {whole}"] = whole
        if whole.startswith("{") and whole.rstrip().endswith("}") and len(whole) > 3:
            made[f"with the rest: {whole}"] = whole.rstrip()[:-1].rstrip() + (", " if not whole.rstrip()[:-1].rstrip().endswith(",") else " ") + rest
    return made


@pytest.fixture(scope="module")
def pair(launcher, tmp_path_factory):
    repository = tmp_path_factory.mktemp("configurations") / "forms"
    (repository / "step" / "1").mkdir(parents=True)
    (repository / "step" / "1" / "model.py").write_text(MODEL)
    (repository / "step" / "config.pbtxt").write_text(IDENTITY)
    (repository / "form" / "1").mkdir(parents=True)
    with both_servers(launcher, repository, "--model-control-mode=explicit", "--load-model=step") as found:
        yield found


def loaded(server, body=None):
    """The configuration as the server gives it, or that the load is refused."""
    answer = http_call(server.http, "POST", "/v2/repository/models/form/load", body)
    if answer.status != 200:
        return "refused"
    found = http_call(server.http, "GET", "/v2/models/form/config").json
    # A setting that is newer than 2.51.
    found["ensemble_scheduling"].pop("max_inflight_requests", None)
    http_call(server.http, "POST", "/v2/repository/models/form/unload")
    return found


def load_text(server, text: str):
    (server.repository / "form" / "config.pbtxt").write_text(text)
    return loaded(server)


def load_document(server, document: str):
    (server.repository / "form" / "config.pbtxt").write_text(written())
    return loaded(server, {"parameters": {"config": document}})


# Forms that begin so are answered differently, for these reasons.
TEXTS_DIFFER: dict[str, str] = {
    r'string "\377"': "text is UTF-8. Triton answers with other bytes",
    r'string "\xff"': "as above",
    r'string "\ud83d"': "half of a pair is no character",
    r'string "\ude00"': "as above",
    r'string "\U00110000"': "no character has this number",
    "whole model_metrics": "a setting that is newer than 2.51",
    "whole, first model_metrics": "as above",
    "whole, first \ufeff": "editors of Windows begin files so",
}
DOCUMENTS_DIFFER: dict[str, str] = {
    'with the rest: {"max_batch_size": 0, "maxBatchSize": 1}': "a field that is set twice has either value",
}


def test_configurations_in_text(pair):
    check_same(texts(), load_text, pair, TEXTS_DIFFER)


def test_configurations_in_json(pair):
    check_same(documents(), load_document, pair, DOCUMENTS_DIFFER)
