"""Can trace and log settings be read and changed, and are faulty ones refused?"""

import pytest
from clients import differs, grpc_refuses, http_call, pb

TRACE_KEYS = ["trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"]
LOG_KEYS = ["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"]


@pytest.fixture
def trace(server):
    """Changes the trace settings over HTTP and puts them back."""
    def change(body, path: str = "/v2/trace/setting"):
        return http_call(server.http, "POST", path, body)

    yield change
    # Models first: clearing a model's own setting makes it follow the global one again.
    clear = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
    change(clear, "/v2/models/identity_fp32/trace/setting")
    change(clear)


@pytest.fixture
def log(server):
    def change(body):
        return http_call(server.http, "POST", "/v2/logging", body)

    before = http_call(server.http, "GET", "/v2/logging").json
    yield change
    change({key: before[key] for key in LOG_KEYS if key != "log_file"})


def test_trace_settings_as_they_start(server):
    answer = http_call(server.http, "GET", "/v2/trace/setting").ok()
    assert list(answer.json) == TRACE_KEYS
    assert answer.json == {
        "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": "",
        "trace_mode": "triton",
    }  # fmt: skip
    assert http_call(server.http, "GET", "/v2/models/identity_fp32/trace/setting").ok().json == answer.json


def test_trace_settings_over_grpc(stub):
    found = stub.TraceSetting(pb.TraceSettingRequest()).settings
    assert {key: list(value.value) for key, value in found.items()} == {
        "trace_level": ["OFF"], "trace_rate": ["1000"], "trace_count": ["-1"], "log_frequency": ["0"],
        "trace_file": [""], "trace_mode": ["triton"],
    }  # fmt: skip


def test_a_model_may_differ_from_the_rest(server, trace):
    found = trace({"trace_rate": "7", "trace_count": "5"}, "/v2/models/identity_fp32/trace/setting").ok().json
    assert (found["trace_rate"], found["trace_count"]) == ("7", "5")
    assert http_call(server.http, "GET", "/v2/trace/setting").json["trace_rate"] == "1000"
    assert trace({"trace_rate": "9"}).ok().json["trace_rate"] == "9"
    assert http_call(server.http, "GET", "/v2/models/identity_fp32/trace/setting").json["trace_rate"] == "7"
    cleared = trace({"trace_rate": None}, "/v2/models/identity_fp32/trace/setting").ok().json
    assert cleared["trace_rate"] == "9"


def test_unknown_levels_are_ignored(trace):
    assert trace({"trace_level": ["NO_SUCH_LEVEL"]}).status == 200


TRACE_FAULTS = [
    ({"trace_file": "/tmp/x"}, "UNSUPPORTED", "trace file location can not be updated through network protocol"),
    ({"trace_file": None}, "UNSUPPORTED", "trace file location can not be updated through network protocol"),
    ({"trace_file": 5}, "UNSUPPORTED", "trace file location can not be updated through network protocol"),
    ({"trace_level": ["OFF", "TIMESTAMPS"]}, "INVALID_ARG", "Expect only one trace level 'OFF' is specified"),
    ({"trace_rate": "x"}, "INVALID_ARG", "Unable to parse 'trace_rate', got: x"),
    ({"trace_rate": "99999999999999999999"}, "INVALID_ARG",
     "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999999999999"),
    ({"trace_count": "-2"}, "INVALID_ARG", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    ({"trace_count": "99999999999"}, "INVALID_ARG",
     "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999"),
    ({"trace_rate": 5}, "INTERNAL", "attempt to access JSON non-string as string"),
    ("", "INTERNAL", "failed to parse the request JSON buffer: The document is empty. at 0"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code", "message"), TRACE_FAULTS)
def test_faulty_trace_settings(trace, body, code, message):
    trace(body).refused(code, message)


@differs("2.51 answers INVALID_ARG `Request for unknown model : nobody`")
def test_trace_settings_of_nobody(server):
    answer = http_call(server.http, "GET", "/v2/models/nobody/trace/setting")
    answer.refused("NOT_FOUND", "Request for unknown model: 'nobody' is not found")


GRPC_TRACE_FAULTS = [
    ("trace_rate", ["1", "2"], "expect only 1 value for 'trace_rate'"),
    ("trace_count", ["-99999999999"],
     "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -99999999999"),
    ("trace_count", ["-2"], "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
    ("trace_rate", ["x"], "Unable to parse 'trace_rate', got: x"),
]


@pytest.mark.parametrize(("key", "values", "message"), GRPC_TRACE_FAULTS)
def test_faulty_trace_settings_over_grpc(stub, key, values, message):
    request = pb.TraceSettingRequest()
    request.settings[key].value.extend(values)
    with grpc_refuses("INVALID_ARG", message):
        stub.TraceSetting(request)


def test_the_trace_file_stays_where_it_is_over_grpc(stub):
    request = pb.TraceSettingRequest()
    request.settings["trace_file"].value.extend([])
    with grpc_refuses("UNSUPPORTED", "trace file location can not be updated through network protocol"):
        stub.TraceSetting(request)


def test_log_settings_as_they_start(server):
    answer = http_call(server.http, "GET", "/v2/logging").ok()
    assert list(answer.json) == LOG_KEYS
    assert answer.json == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "default",
    }  # fmt: skip


def test_log_settings_change_and_null_changes_nothing(log):
    found = log({"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601", "log_error": None}).ok().json
    assert (found["log_info"], found["log_verbose_level"], found["log_format"]) == (False, 1, "ISO8601")
    assert found["log_error"] is True


def test_log_settings_over_grpc(stub, log):
    request = pb.LogSettingsRequest()
    request.settings["log_warning"].bool_param = False
    request.settings["log_verbose_level"].uint32_param = 2
    found = stub.LogSettings(request).settings
    assert found["log_warning"].bool_param is False
    assert found["log_verbose_level"].uint32_param == 2
    assert found["log_format"].string_param == "default"


LOG_FAULTS = [
    ({"log_file": "/tmp/x"}, "UNSUPPORTED", "log file location can not be updated through network protocol"),
    ({"log_file": 5}, "UNSUPPORTED", "log file location can not be updated through network protocol"),
    ({"log_format": "x"}, "UNAVAILABLE", "invalid argument for --log_format, got: x"),
    ({"log_info": 1}, "INTERNAL", ""),
    ({"log_verbose_level": -1}, "INTERNAL", ""),
    ({"log_verbose_level": "1"}, "INTERNAL", ""),
    ("", "INTERNAL", "failed to parse the request JSON buffer: The document is empty. at 0"),
]


@pytest.mark.parametrize(("body", "code", "message"), LOG_FAULTS)
def test_faulty_log_settings(log, body, code, message):
    log(body).refused(code, message)


GRPC_LOG_FAULTS = [
    ("log_info", {"uint32_param": 1}, "INVALID_ARG", "expect boolean for 'log_info'"),
    ("log_verbose_level", {"bool_param": True}, "INVALID_ARG", "expect int32 for 'log_verbose_level'"),
    ("log_format", {"bool_param": True}, "INVALID_ARG", "expect string for 'log_format'"),
    ("log_format", {"string_param": "x"}, "INVALID_ARG", "invalid argument for log_format, got: x"),
    ("log_file", {"string_param": "/tmp/x"}, "UNSUPPORTED", "log file location can not be updated through network protocol"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "choice", "code", "message"), GRPC_LOG_FAULTS)
def test_faulty_log_settings_over_grpc(stub, key, choice, code, message):
    request = pb.LogSettingsRequest()
    request.settings[key].CopyFrom(pb.LogSettingsRequest.SettingValue(**choice))
    with grpc_refuses(code, message):
        stub.LogSettings(request)
