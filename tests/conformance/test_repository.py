"""Can models be listed, loaded and unloaded, and does a refusal leave things as they were?"""

import json
import shutil

import pytest
from clients import differs, fp32, grpc_channel, grpc_refuses, http_call, int32, open_client, pb, refuses, service_stub


def states(client) -> dict[str, str]:
    return {f"{one['name']}:{one['version']}": one["state"] for one in client.index()}


def reasons(client, model: str) -> list[str]:
    return [one["reason"] for one in client.index() if one["name"] == model]


def test_the_index_lists_every_directory_by_name(explicit_client):
    names = [one["name"] for one in explicit_client.index()]
    assert names == sorted(names)
    assert {"identity_fp32", "identity_int32", "versioned", "simple", "chain"} <= set(names)


def test_a_model_never_loaded_has_only_a_name(explicit):
    shutil.copytree(explicit.repository / "identity_int32", explicit.repository / "never_loaded", dirs_exist_ok=True)
    config = explicit.repository / "never_loaded" / "config.pbtxt"
    config.write_text(config.read_text().replace("identity_int32", "never_loaded"))
    found = http_call(explicit.http, "POST", "/v2/repository/index").ok().json
    assert [one for one in found if one["name"] == "never_loaded"] == [{"name": "never_loaded"}]


def test_only_ready_models_on_request(explicit_client):
    explicit_client.load("identity_fp32")
    found = explicit_client.index(ready=True)
    assert "identity_fp32" in {one["name"] for one in found}
    assert {one["state"] for one in found} == {"READY"}


@pytest.mark.parametrize("body", [None, "", "{}", '{"ready":false}', '{"unknown":1}'])
def test_bodies_of_an_index_call(explicit, body):
    assert http_call(explicit.http, "POST", "/v2/repository/index", body).ok().json


def test_the_repository_name_of_an_index_call(explicit):
    assert http_call(explicit.http, "POST", "/v2/repository/any/index").ok().json
    with grpc_channel(explicit.grpc) as channel, grpc_refuses(
        "UNSUPPORTED", "'repository_name' specification is not supported"
    ):
        service_stub(channel).RepositoryIndex(pb.RepositoryIndexRequest(repository_name="any"))


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        pytest.param(
            '{"ready":1}', "INVALID_ARG", "Invalid value for 'ready': expected a boolean",
            marks=differs("2.51 answers 500 `attempt to access JSON non-boolean as boolean`"),
        ),
        ("{", "INTERNAL", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ],
)  # fmt: skip
def test_faulty_bodies_of_an_index_call(explicit, body, code, text):
    http_call(explicit.http, "POST", "/v2/repository/index", body).refused(code, text)


def test_load_infer_unload(explicit_client):
    explicit_client.load("versioned")
    assert states(explicit_client)["versioned:1"] == states(explicit_client)["versioned:3"] == "READY"
    assert explicit_client.infer("versioned", [fp32("INPUT0", [1])]).version == "3"
    assert explicit_client.infer("versioned", [fp32("INPUT0", [1])], version="1").version == "1"
    explicit_client.unload("versioned")
    wait_for(lambda: reasons(explicit_client, "versioned") == ["unloaded", "unloaded"])
    assert states(explicit_client)["versioned:1"] == states(explicit_client)["versioned:3"] == "UNAVAILABLE"
    assert not explicit_client.model_ready("versioned")
    with refuses("NOT_FOUND", "Request for unknown model: 'versioned' has no available versions"):
        explicit_client.infer("versioned", [fp32("INPUT0", [1])])
    with refuses("UNAVAILABLE", "Request for unknown model: 'versioned' version 3 is not at ready state"):
        explicit_client.infer("versioned", [fp32("INPUT0", [1])], version="3")


def wait_for(condition, seconds: float = 60) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


def test_loading_what_is_loaded_changes_nothing(explicit_client):
    explicit_client.load("identity_int32")
    explicit_client.load("identity_int32")
    assert explicit_client.model_ready("identity_int32")


def test_unloading_an_unknown_model_succeeds(explicit_client):
    explicit_client.unload("nobody")


def test_an_ensemble_brings_its_models_and_takes_them_away(explicit_client):
    explicit_client.unload("identity_fp32")
    explicit_client.load("chain")
    assert explicit_client.model_ready("identity_fp32")
    assert explicit_client.infer("chain", [fp32("INPUT0", [4, 5])]).outputs["OUTPUT0"].raw == fp32("", [4, 5]).raw
    explicit_client.unload("chain", dependents=True)
    wait_for(lambda: not explicit_client.model_ready("identity_fp32"))
    explicit_client.load("identity_fp32")


def test_an_ensemble_goes_with_a_model_it_needs(explicit_client):
    explicit_client.load("chain")
    explicit_client.unload("identity_fp32")
    wait_for(lambda: not explicit_client.model_ready("chain"))
    explicit_client.load("chain")
    assert explicit_client.model_ready("identity_fp32")
    explicit_client.unload("chain")
    explicit_client.load("identity_fp32")


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [
        ("nobody", "INTERNAL", "failed to load 'nobody', failed to poll from model repository"),
        ("...", "INTERNAL", "failed to load '...', failed to poll from model repository"),
        ("a..b", "INTERNAL", "failed to load 'a..b', failed to poll from model repository"),
        pytest.param(
            "..", "INVALID_ARG", "invalid model name '..', model name must not contain path traversal characters",
            marks=differs("2.51 does not look at the name; the poll fails"),
        ),
    ],
)  # fmt: skip
def test_models_that_cannot_be_loaded(explicit_client, model, code, text):
    with refuses(code, text):
        explicit_client.load(model)


@differs("2.51 looks for a model of that name")
def test_a_blank_name_is_none(explicit):
    with open_client("grpc", explicit) as client, refuses("INVALID_ARG", "Model name cannot be empty. Please enter a valid name to deploy."):
        client.load(" ")


def test_the_repository_name_of_load_and_unload(explicit):
    for what in ("load", "unload"):
        answer = http_call(explicit.http, "POST", f"/v2/repository/any/models/simple/{what}")
        answer.refused("UNSUPPORTED", "'repository_name' specification is not supported")


def test_a_bad_config_file_leaves_the_loaded_model(explicit, explicit_client):
    explicit_client.load("identity_fp32")
    config = explicit.repository / "identity_fp32" / "config.pbtxt"
    good = config.read_text()
    config.write_text("max_batch_size: [")
    try:
        with refuses("INTERNAL", "failed to load 'identity_fp32', failed to poll from model repository"):
            explicit_client.load("identity_fp32")
        assert explicit_client.infer("identity_fp32", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].shape == [1]
    finally:
        config.write_text(good)
    explicit_client.load("identity_fp32")


def test_a_model_without_a_version(explicit, explicit_client):
    folder = explicit.repository / "no_version"
    folder.mkdir(exist_ok=True)
    config = (explicit.repository / "identity_int32" / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(config.replace("identity_int32", "no_version"))
    text = "load failed for model 'no_version': at least one version must be available under the version policy of "
    with refuses("INVALID_ARG", text):
        explicit_client.load("no_version")


def test_a_config_override_lasts_until_the_directory_changes_or_the_model_goes(explicit, explicit_client):
    config = explicit_client_config(explicit_client, "identity_int32")
    config["max_batch_size"] = 3
    explicit_client.load("identity_int32", {"config": json.dumps(config)})
    assert explicit_client.config("identity_int32")["max_batch_size"] == 3
    explicit_client.load("identity_int32")
    assert explicit_client.config("identity_int32")["max_batch_size"] == 3
    (explicit.repository / "identity_int32" / "new_file").touch()
    explicit_client.load("identity_int32")
    assert explicit_client.config("identity_int32")["max_batch_size"] == 0
    explicit_client.load("identity_int32", {"config": json.dumps(config)})
    explicit_client.unload("identity_int32")
    explicit_client.load("identity_int32")
    assert explicit_client.config("identity_int32")["max_batch_size"] == 0


def explicit_client_config(client, model: str) -> dict:
    client.load(model)
    config = client.config(model)
    return {key: config[key] for key in ("name", "platform", "backend", "max_batch_size", "input", "output")}


@pytest.mark.parametrize("config", ["{", '{"no_such_field":1}', '{"max_batch_size":"many"}', "[]"])
def test_a_bad_override_leaves_the_loaded_model(explicit_client, config):
    explicit_client.load("identity_int32")
    with refuses("INTERNAL", "failed to load 'identity_int32', failed to poll from model repository"):
        explicit_client.load("identity_int32", {"config": config})
    assert explicit_client.model_ready("identity_int32")


def test_a_model_can_be_made_of_file_parameters(explicit, explicit_client):
    source = explicit.repository / "simple" / "1"
    name = f"sent_by_{explicit_client.protocol}"
    config = explicit_client_config(explicit_client, "simple")
    config["name"] = name
    files = {f"file:1/{path.name}": path.read_bytes() for path in source.iterdir() if path.is_file()}
    explicit_client.load(name, {"config": json.dumps(config), **files})
    assert explicit_client.model_ready(name)
    # Served, but no directory of the repository: not listed.
    assert name not in {one["name"] for one in explicit_client.index()}
    explicit_client.unload(name)


@differs("2.51 finds nothing changed when only the files sent differ, and keeps the old model")
def test_files_sent_again_replace_the_model(explicit, explicit_client):
    import onnx

    name = f"sent_again_by_{explicit_client.protocol}"
    config = explicit_client_config(explicit_client, "simple") | {"name": name}
    files = {f"file:1/{path.name}": path.read_bytes() for path in (explicit.repository / "simple" / "1").glob("model.*")}
    inputs = [int32("INPUT0", [[7] * 16]), int32("INPUT1", [[2] * 16])]
    explicit_client.load(name, {"config": json.dumps(config), **files})
    assert explicit_client.infer(name, inputs).outputs["OUTPUT0"].raw == int32("", [9] * 16).raw
    graph = onnx.load_from_string(files["file:1/model.onnx"])
    for node in graph.graph.node:
        node.op_type = "Sub" if node.op_type == "Add" else "Add"
    files["file:1/model.onnx"] = graph.SerializeToString()
    explicit_client.load(name, {"config": json.dumps(config), **files})
    assert explicit_client.infer(name, inputs).outputs["OUTPUT0"].raw == int32("", [5] * 16).raw
    explicit_client.unload(name)


@pytest.mark.parametrize("path", ["../escape", "1/../../escape"])
def test_a_file_parameter_stays_inside_the_model(explicit_client, path):
    with refuses("INTERNAL", "failed to load 'escape', failed to poll from model repository"):
        explicit_client.load("escape", {"config": '{"backend":"python"}', f"file:{path}": b"x"})


def test_a_file_without_a_config(explicit_client):
    with refuses("INTERNAL", "failed to load 'bare', failed to poll from model repository"):
        explicit_client.load("bare", {"file:1/model.onnx": b"x"})


@differs("2.51 opens whatever library a client names", run=False)
def test_a_model_with_a_batching_strategy_in_a_library_is_refused(explicit_client):
    config = explicit_client_config(explicit_client, "simple")
    config["parameters"] = {"TRITON_BATCH_STRATEGY_PATH": {"string_value": "/tmp/strategy.so"}}
    text = "batching strategies in libraries are not supported; remove the parameter 'TRITON_BATCH_STRATEGY_PATH' of model 'simple'"
    with refuses("INTERNAL", f"failed to load 'simple', failed to poll from model repository: {text}"):
        explicit_client.load("simple", {"config": json.dumps(config)})


HTTP_LOAD_FAULTS = [
    ("load", '{"parameters":{"other":"x"}}', "INTERNAL", "unexpected error on creating Triton parameter"),
    ("load", '{"parameters":{"config":1}}', "INTERNAL", ""),
    ("load", "{", "INTERNAL", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ("load", "[1", "INTERNAL", "failed to parse the request JSON buffer: "),
]


@pytest.mark.parametrize(("what", "body", "code", "text"), HTTP_LOAD_FAULTS)
def test_faulty_bodies_of_a_load(explicit, what, body, code, text):
    http_call(explicit.http, "POST", f"/v2/repository/models/identity_fp32/{what}", body).refused(code, text)


@pytest.mark.parametrize("body", ['{"parameters":{"unload_dependents":"yes"}}', '{"parameters":{"other":1}}', "{}"])
def test_unload_over_http_ignores_what_it_does_not_know(explicit, body):
    assert http_call(explicit.http, "POST", "/v2/repository/models/nobody/unload", body).ok().body == b""


GRPC_LOAD_FAULTS = [
    ("other", {"string_param": "x"}, "unrecognized load parameter 'other'."),
    ("config", {"bool_param": True}, "invalid value type for load parameter 'config', expected string_param."),
    ("file:1/x", {"string_param": "x"}, "invalid value type for load parameter 'file:1/x', expected bytes_param."),
]


@pytest.mark.parametrize(("key", "choice", "text"), GRPC_LOAD_FAULTS)
def test_faulty_parameters_of_a_load(explicit, key, choice, text):
    request = pb.RepositoryModelLoadRequest(model_name="identity_fp32")
    request.parameters[key].CopyFrom(pb.ModelRepositoryParameter(**choice))
    with grpc_channel(explicit.grpc) as channel, grpc_refuses("INVALID_ARG", text):
        service_stub(channel).RepositoryModelLoad(request)


def test_a_faulty_parameter_of_an_unload(explicit):
    request = pb.RepositoryModelUnloadRequest(model_name="nobody")
    request.parameters["unload_dependents"].string_param = "yes"
    text = "invalid value type for 'unload_dependents' parameter, expected bool_param."
    with grpc_channel(explicit.grpc) as channel, grpc_refuses("INVALID_ARG", text):
        service_stub(channel).RepositoryModelUnload(request)


@pytest.mark.parametrize("call", ["load", "unload"])
def test_no_loading_outside_explicit_mode(client, call):
    with refuses("UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled"):
        getattr(client, call)("identity_fp32")
