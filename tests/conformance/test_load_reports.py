"""Does an answer tell a load balancer how busy the host is, if it is asked?"""

import json
import time

import pytest
from clients import http_call, http_infer

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}).encode()
HEADER = "endpoint-load-metrics"


def report(server, format: str | None, call: str = "infer") -> str | None:
    headers = {"endpoint-load-metrics-format": format} if format else {}
    if call == "infer":
        answer = http_infer(server.http, "identity_fp32", BODY, b"", headers)
    else:
        answer = http_call(server.http, "POST", f"/v2/models/identity_fp32/{call}", {"INPUT0": [1.0]}, headers)
    assert answer.status == 200
    return {name.lower(): value for name, value in answer.headers.items()}.get(HEADER)


@pytest.fixture(scope="module")
def reporting(launcher):
    if launcher.oracle:
        pytest.skip("2.51 here has no TensorRT-LLM, of which alone it reports")
    flags = ["--metrics-interval-ms=50"]
    with launcher.running("load_reports", *flags, repository=launcher.copy_of("load_reports", "identity_fp32")) as server:
        deadline = time.monotonic() + 60
        while report(server, "text") is None:
            assert time.monotonic() < deadline, "nobody looked at the host"
            time.sleep(0.05)
        yield server


@pytest.mark.parametrize("call", ["infer", "generate", "generate_stream"])
def test_the_report_has_the_form_that_was_asked_for(reporting, call):
    kind, _, rest = report(reporting, "text", call).partition(" ")
    shares = dict(pair.split("=") for pair in rest.split(", "))
    assert kind == "TEXT" and set(shares) == {"cpu_utilization", "mem_utilization"}
    assert all(0 <= float(share) <= 1 for share in shares.values()) and float(shares["mem_utilization"]) > 0
    kind, _, rest = report(reporting, "json", call).partition(" ")
    assert kind == "JSON" and set(json.loads(rest)) == set(shares)


@pytest.mark.parametrize("format", [None, "xml", ""])
def test_who_does_not_ask_is_told_nothing(reporting, format):
    assert report(reporting, format) is None


def test_without_processor_metrics_there_is_no_report(launcher):
    if launcher.oracle:
        pytest.skip("2.51 here has no TensorRT-LLM, of which alone it reports")
    repository = launcher.copy_of("load_reports_off", "identity_fp32")
    with launcher.running("load_reports_off", "--allow-cpu-metrics=false", repository=repository) as server:
        time.sleep(0.5)
        assert report(server, "text") is None
