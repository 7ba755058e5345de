"""What does the server tell about itself and its models?"""

import pytest
from catalogue import DATATYPES
from clients import grpc_refuses, http_call, pb, refuses

EXTENSIONS = [
    "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
    "statistics", "trace", "logging",
]  # fmt: skip


# What needs a GPU is not listed without one.
WITHOUT_EFFECT = {"cuda_shared_memory"}


def known(extensions, server) -> bool:
    """Whether Triton's extensions stand in its order, those without effect left out. Extensions of our own may follow."""
    expected = EXTENSIONS if server.oracle else [name for name in EXTENSIONS if name not in WITHOUT_EFFECT]
    return list(extensions)[: len(expected)] == expected


def test_server_metadata_over_http(server):
    answer = http_call(server.http, "GET", "/v2").ok()
    assert list(answer.json) == ["name", "version", "extensions"]
    assert answer.json["name"] == "triton"
    assert known(answer.json["extensions"], server)
    assert answer.headers["content-type"] == "application/json"


def test_server_metadata_over_grpc(stub, server):
    answer = stub.ServerMetadata(pb.ServerMetadataRequest())
    assert answer.name == "triton" and answer.version
    assert known(answer.extensions, server)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_model_metadata_of_every_datatype(client, datatype):
    found = client.metadata(f"identity_{datatype.lower()}")
    assert found["name"] == f"identity_{datatype.lower()}"
    assert found["versions"] == ["1"]
    assert found["inputs"] == [{"name": "INPUT0", "datatype": datatype, "shape": [-1]}]
    assert found["outputs"] == [{"name": "OUTPUT0", "datatype": datatype, "shape": [-1]}]


def test_metadata_keys_are_in_order(server):
    answer = http_call(server.http, "GET", "/v2/models/simple").ok()
    assert list(answer.json) == ["name", "versions", "platform", "inputs", "outputs"]
    assert [list(one) for one in answer.json["inputs"]] == [["name", "datatype", "shape"]] * 2


def test_a_batching_model_shows_its_batch_dimension(client):
    found = client.metadata("simple")
    assert [one["shape"] for one in found["inputs"] + found["outputs"]] == [[-1, 16]] * 4


def test_the_platform_is_the_backend_where_there_is_no_platform(server, client):
    assert client.metadata("identity_fp32")["platform"] == ("python" if server.oracle else "identity")
    assert client.metadata("simple")["platform"] == ("python" if server.oracle else "onnxruntime_onnx")


def test_versions_are_listed_in_order_or_alone(client):
    assert client.metadata("versioned")["versions"] == ["1", "3"]
    assert client.metadata("versioned", "3")["versions"] == ["3"]


UNKNOWN = [
    ("nobody", "", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
    ("nobody", "1", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
    ("identity_fp32", "2", "NOT_FOUND", "Request for unknown model: 'identity_fp32' version 2 is not found"),
    ("identity_fp32", "0", "NOT_FOUND", "Request for unknown model: 'identity_fp32' version 0 is not found"),
]


@pytest.mark.parametrize("call", ["metadata", "config"])
@pytest.mark.parametrize(("model", "version", "code", "text"), UNKNOWN)
def test_unknown_models_and_versions(client, call, model, version, code, text):
    with refuses(code, text):
        getattr(client, call)(model, version)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (
            "one",
            "failed to get model version from specified version string 'one' (details: stol), "
            "version should be an integral value > 0",
        ),
        ("-5", "invalid model version specified '-5' , version should be an integral value > 0"),
    ],
)
def test_a_version_that_is_no_number(stub, version, text):
    for call, request in (
        (stub.ModelMetadata, pb.ModelMetadataRequest(name="identity_fp32", version=version)),
        (stub.ModelConfig, pb.ModelConfigRequest(name="identity_fp32", version=version)),
        (stub.ModelReady, pb.ModelReadyRequest(name="identity_fp32", version=version)),
        (stub.ModelInfer, pb.ModelInferRequest(model_name="identity_fp32", model_version=version)),
    ):
        with grpc_refuses("INVALID_ARG", text):
            call(request)


def test_config_has_the_key_order_of_the_message(server):
    answer = http_call(server.http, "GET", "/v2/models/batched_fp32/config").ok()
    keys = [
        "name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input", "output",
        "batch_input", "batch_output", "optimization", "instance_group", "default_model_filename",
        "cc_model_filenames", "metric_tags", "parameters", "model_warmup",
    ]  # fmt: skip
    found = [key for key in answer.json if key in keys]
    assert found == keys
    assert list(answer.json["input"][0]) == [
        "name", "data_type", "format", "dims", "is_shape_tensor", "allow_ragged_batch", "optional",
        "is_non_linear_format_io",
    ]  # fmt: skip


def test_config_is_complete_after_normalisation(client):
    config = client.config("batched_fp32")
    assert config["max_batch_size"] == 8
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["dims"] == [-1]
    assert config["input"][0]["format"] == "FORMAT_NONE"
    assert config["optimization"]["input_pinned_memory"] == {"enable": True}
    assert config["optimization"]["output_pinned_memory"] == {"enable": True}
    group = config["instance_group"][0]
    assert (group["name"], group["kind"]) == ("batched_fp32", "KIND_CPU") or group["name"] == "batched_fp32_0"
    assert group["count"] >= 1
    assert "dynamic_batching" not in config


def test_config_of_policies(client):
    assert client.config("versioned")["version_policy"] == {"all": {}}
    assert client.config("optional_pair")["input"][1]["optional"] is True
    queue = client.config("queue_of_one")["dynamic_batching"]
    assert queue["preferred_batch_size"] == [1]
    assert queue["default_queue_policy"]["max_queue_size"] == 1
    assert client.config("sequence_int32")["sequence_batching"]["max_sequence_idle_microseconds"] == 1000000
    assert client.config("classes")["output"][0]["label_filename"] == "labels.txt"


def test_config_of_an_ensemble(server):
    config = http_call(server.http, "GET", "/v2/models/chain/config").ok().json
    assert config["platform"] == "ensemble"
    assert config["instance_group"] == []
    assert "optimization" not in config
    assert config["model_transaction_policy"] == {"decoupled": False}
    steps = config["ensemble_scheduling"]["step"]
    assert [step["model_name"] for step in steps] == ["identity_fp32"] * 2
    assert steps[0]["model_version"] == -1
    assert steps[0]["output_map"] == {"OUTPUT0": "between"}
