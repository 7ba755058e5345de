"""Does whoever asks for a model that is not there learn why, and does a failed load keep the server unready only as long as the model is wanted?"""

import hashlib
import os
import shutil
import subprocess

import pytest
import servers
from clients import fp32, http_call, open_client, refuses
from followed_setup import waits_for

MODEL = """max_batch_size: 0
backend: "identity"
input [{{ name: "INPUT0" data_type: {datatype} dims: [ -1 ] }}]
output [{{ name: "OUTPUT0" data_type: {datatype} dims: [ -1 ] }}]
"""
GOOD = MODEL.format(datatype="TYPE_FP32")
TYPO = MODEL.format(datatype="TYPE_FLOAT32")
DID_YOU_MEAN = "did you mean TYPE_FP32?"
# A version of a backend that is not there fails once the load has begun.
BROKEN = 'backend: "nothing_of_that_name"\n'


def put(repository, model: str, config: "str | None", *files: str) -> None:
    folder = repository / model
    (folder / "1").mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / "1" / file).write_bytes(b"")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)


def index(server) -> "dict[str, dict]":
    return {one["name"]: one for one in http_call(server.http, "POST", "/v2/repository/index").ok().json}


def readiness(server) -> str:
    """Why the server is not ready; empty if it is."""
    answer = http_call(server.http, "GET", "/v2/health/ready")
    assert answer.status in (200, 400)
    return "" if answer.status == 200 else answer.error


@pytest.fixture
def repository(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 says it in its log alone")
    put(tmp_path / "models", "good", GOOD)
    return tmp_path / "models"


@pytest.fixture
def explicit(launcher, repository):
    with launcher.running("missing", "--model-control-mode=explicit", repository=repository) as server, open_client("http", server) as client:
        yield server, client


def test_a_model_that_failed_makes_the_server_unready_until_it_is_unloaded(explicit, repository):
    server, client = explicit
    put(repository, "bad", BROKEN)
    with refuses("INVALID_ARG", "load failed for model 'bad'"):
        client.load("bad")
    assert readiness(server).startswith("model 'bad' version 1 is not up: ")
    assert 'nerite_model_ready{model="bad",version="1"} 0' in http_call(server.metrics, "GET", "/metrics").body.decode()
    probe = subprocess.run([servers.nerite_binary(), "ready", f"http://{server.http}"], capture_output=True, text=True, timeout=60)
    assert probe.returncode == 1 and "is not ready: model 'bad' version 1 is not up: " in probe.stderr, probe
    shutil.rmtree(repository / "bad")
    client.unload("bad")
    assert readiness(server) == ""
    assert 'model="bad"' not in http_call(server.metrics, "GET", "/metrics").body.decode()


def test_a_model_that_failed_makes_a_polling_server_unready_until_its_files_go(launcher, repository):
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false"]
    put(repository, "bad", BROKEN)
    put(repository, "empty", GOOD)
    (repository / "empty" / "1").rmdir()
    with launcher.running("missing_polled", *flags, repository=repository) as server:
        assert readiness(server).startswith("model 'bad' version 1 is not up (and 1 more versions of models are not): ")
        shutil.rmtree(repository / "bad")
        waits_for(lambda: readiness(server)[:53], "model 'empty' is not up: at least one version must be")
        shutil.rmtree(repository / "empty")
        waits_for(lambda: readiness(server), "")


def test_only_who_may_read_is_told_which_model_is_missing(launcher, repository, tmp_path):
    put(repository, "bad", BROKEN)
    tokens = tmp_path / "tokens.toml"
    digests = {name: hashlib.sha256(f"{name}-secret".encode()).hexdigest() for name in ("read", "infer")}
    tokens.write_text("".join(f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = ["{name}"]\n' for name, digest in digests.items()))
    flags = ["--exit-on-error=false", f"--access-tokens-file={tokens}"]
    with launcher.running("missing_tokens", *flags, repository=repository) as server:
        # A probe shows no token.
        assert readiness(server) == "a model is not ready; the index of the models tells which"
        for scope, is_told in (("read", True), ("infer", False)):
            answer = http_call(server.http, "GET", "/v2/models/bad", headers={"authorization": f"Bearer {scope}-secret"})
            answer.refused("NOT_FOUND", "Request for unknown model: 'bad' has no available versions")
            assert ("; the last load of the model failed: " in answer.error) is is_told


def test_a_configuration_with_a_fault_is_told_to_whoever_asks_for_the_model(explicit, repository):
    server, client = explicit
    put(repository, "typo", TYPO)
    with refuses("INTERNAL", "failed to load 'typo'"):
        client.load("typo")
    entry = index(server)["typo"]
    assert entry["state"] == "UNAVAILABLE" and DID_YOU_MEAN in entry["reason"]
    for protocol in ("http", "grpc"):
        with open_client(protocol, server) as asking:
            with refuses("NOT_FOUND", "Request for unknown model: 'typo' is not found; the last load of the model failed: ") as caught:
                asking.infer("typo", [fp32("INPUT0", [1])])
            assert DID_YOU_MEAN in caught.value.text
    # As in Triton, a model whose directory cannot be read does not count for readiness.
    assert readiness(server) == ""
    put(repository, "typo", GOOD)
    client.load("typo")
    assert index(server)["typo"]["state"] == "READY" and "reason" not in index(server)["typo"]


def test_names_of_models_that_are_in_no_repository_leave_nothing(explicit):
    _, client = explicit
    with refuses("INTERNAL", "failed to load 'nobody'"):
        client.load("nobody")
    with refuses("NOT_FOUND", "Request for unknown model: 'nobody' is not found") as caught:
        client.infer("nobody", [fp32("INPUT0", [1])])
    assert caught.value.text.endswith("is not found")


def test_a_reload_that_failed_is_told_while_the_old_version_serves(explicit, repository):
    server, client = explicit
    client.load("good")
    put(repository, "good", TYPO)
    with refuses("INTERNAL", "failed to load 'good'"):
        client.load("good")
    entry = index(server)["good"]
    assert entry["state"] == "READY" and DID_YOU_MEAN in entry["reason"]
    assert client.infer("good", [fp32("INPUT0", [1])])
    put(repository, "good", GOOD)
    client.load("good")
    assert "reason" not in index(server)["good"]


def test_a_version_that_is_not_there_lists_those_that_are(explicit):
    _, client = explicit
    client.load("good")
    with refuses("NOT_FOUND", "Request for unknown model: 'good' version 7 is not found; versions that take requests: 1"):
        client.infer("good", [fp32("INPUT0", [1])], version="7")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (["mlp.onnx"], "directory 'mlp/1' has mlp.onnx, and was searched for model.savedmodel, model.graphdef, "),
        (["mlp.onnx"], "; rename mlp.onnx to model.onnx"),
        ([], "directory 'mlp/1' has nothing, and was searched for "),
    ],
)
def test_a_misnamed_file_is_told_with_the_names_that_are_looked_for(explicit, repository, files, text):
    server, client = explicit
    put(repository, "mlp", None, *files)
    with refuses("INTERNAL", "failed to load 'mlp', failed to poll from model repository: Invalid model name: Could not determine backend") as caught:
        client.load("mlp")
    assert text in caught.value.text
    assert text in index(server)["mlp"]["reason"]


def test_a_start_that_fails_names_the_models_and_the_flag(launcher, repository, tmp_path):
    put(repository, "typo", TYPO)
    command, environment = servers.nerite_command(repository)
    http, grpc, metrics = servers.free_ports(3)
    flags = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    done = subprocess.run([*command, *flags], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "not loaded: typo; the reasons are above, and with --exit-on-error=false the server starts without them" in done.stdout + done.stderr


ENSEMBLE = """platform: "ensemble"
max_batch_size: 0
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
ensemble_scheduling { step [{ model_name: "good" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }] }
"""


def test_an_ensemble_comes_back_with_the_model_it_is_made_of(launcher, tmp_path):
    repository = tmp_path / "models"
    put(repository, "good", GOOD)
    put(repository, "whole", ENSEMBLE)
    with launcher.running("comes_back", "--model-control-mode=explicit", repository=repository) as server, open_client("http", server) as client:
        client.load("whole")
        client.unload("good")
        assert not client.model_ready("whole")
        client.load("good")
        assert client.model_ready("whole")
        assert client.infer("whole", [fp32("INPUT0", [4])]).outputs["OUTPUT0"].raw == fp32("", [4]).raw
        # An ensemble that was unloaded by its own name stays away.
        client.unload("whole")
        client.unload("good")
        client.load("good")
        assert not client.model_ready("whole")
