"""What does the server tell a backend in C of itself and its models, and what does it ask the backend?"""

import concurrent.futures
import json
import time

import pytest
from clients import fp32, http_call, open_client
from compiled_setup import put, serving


def server_of(launcher, name: str, *flags: str):
    repository = launcher.scratch / name
    put(repository, "asking", backend="asking")
    put(repository, "asking_too", backend="asking")
    put(repository, "c_identity")
    return serving(launcher, name, repository, *flags, sources=("sample", "asking"))


@pytest.fixture(scope="module")
def reporting(launcher):
    with server_of(launcher, "reporting") as found:
        yield found


def control(client, what: str, target: str, model: str = "asking") -> dict:
    return dict(client.infer(model, [fp32("IN", [0])], parameters={"control": what, "target": target}).parameters)


def test_a_backend_gets_the_reports_of_the_server(reporting):
    with open_client("http", reporting) as client:
        client.infer("c_identity", [fp32("IN", [1])])
        reported = control(client, "reports", "c_identity")
    assert reported["is_ready"] is True
    # Extensions may have the server's own mark.
    assert {"name", "version", "extensions"} <= set(json.loads(reported["server"]))
    assert json.loads(reported["model"])["name"] == "c_identity"
    (statistics,) = json.loads(reported["statistics"])["model_stats"]
    assert (statistics["name"], int(statistics["inference_count"]) > 0) == ("c_identity", True)
    assert {one["name"] for one in json.loads(reported["index"])} == {"asking", "asking_too", "c_identity"}
    assert json.loads(reported["config"])["backend"] == "sample"
    assert 'nv_inference_count{model="c_identity",version="1"}' in reported["metrics"]


def test_what_is_unknown_is_refused(reporting):
    with open_client("http", reporting) as client, pytest.raises(Exception, match="nobody"):
        control(client, "reports", "nobody")


def test_the_reports_are_those_of_http(reporting):
    if reporting.oracle:
        pytest.skip("writes them otherwise over HTTP")
    with open_client("http", reporting) as client:
        reported = control(client, "reports", "c_identity")
    assert json.loads(reported["server"]) == http_call(reporting.http, "GET", "/v2").json
    assert json.loads(reported["model"]) == http_call(reporting.http, "GET", "/v2/models/c_identity").json
    assert json.loads(reported["index"]) == http_call(reporting.http, "POST", "/v2/repository/index", {"ready": True}).json


def test_a_backend_in_a_process_of_its_own_hears_why_there_are_none(launcher):
    if launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    with server_of(launcher, "isolated_reporting", "--backend-config=asking,isolated=true") as server, open_client("http", server) as client:
        with pytest.raises(Exception, match="TRITONSERVER_ServerIsReady is not supported for 'asking' here"):
            control(client, "reports", "c_identity")


def test_an_instance_says_whether_it_is_ready(reporting):
    if reporting.oracle:
        pytest.skip("2.51 does not ask")

    def are_ready(client) -> tuple[bool, bool, bool]:
        is_server = http_call(reporting.http, "GET", "/v2/health/ready").status == 200
        return client.model_ready("asking"), client.model_ready("asking_too"), is_server

    with open_client("http", reporting) as http, open_client("grpc", reporting) as grpc:
        for client in (http, grpc):
            assert are_ready(client) == (True, True, True)
            control(client, "readiness", "u")
            assert are_ready(client) == (False, True, False)
            # Requests are taken all the same, as in Triton: the clients decide.
            control(client, "readiness", "hangs")
            began = time.monotonic()
            assert are_ready(client) == (True, True, True)
            assert time.monotonic() - began > 0.9
            control(client, "readiness", "r")
    assert "model 'asking' is not ready: the instance is not ready on purpose" in reporting.log_text()


def test_a_model_is_unloaded_while_its_instance_is_asked(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not ask")
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with server_of(launcher, "unready", *flags) as server, open_client("http", server) as client, open_client("grpc", server) as other:
        control(client, "readiness", "hangs")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(other.model_ready, "asking")
            time.sleep(0.1)
            client.unload("asking")
            answer.result()
        client.load("asking")
        assert client.model_ready("asking")
