"""Does one rule hold for all who load models: clients, and models in a sandbox and without one?

What protects the server may be added by a load, and not be taken away.
"""

import json
import os

import pytest
from clients import Answer, http_call, open_client, text
from python_catalogue import python, put, tensors
from python_setup import SANDBOX, kernel_refuses, strings
from users import as_user

STRANGER = 4_100_000 + os.getpid()
IDENTITY = {
    "backend": "identity",
    "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def asking(name: str):
    return python(name, "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES"))


def run_code(server, model: str, code: str) -> str:
    with open_client("http", server) as client:
        return strings(client.infer(model, [text("CODE", [code.encode()])]).outputs["SAID"].raw)[0]


def load(server, model: str, config: dict | None = None, files: dict | None = None) -> Answer:
    parameters = {f"file:{path}": content for path, content in (files or {}).items()}
    if config is not None:
        parameters["config"] = json.dumps(config)
    return http_call(server.http, "POST", f"/v2/repository/models/{model}/load", {"parameters": parameters})


@pytest.fixture(scope="module")
def confined(launcher):
    """A server whose Python models are in a sandbox that lets them load one model. Clients may send files."""
    if launcher.oracle:
        pytest.skip("2.51 has no sandbox")
    if why := kernel_refuses():
        pytest.skip(why)
    repository = launcher.copy_of("load_rights_confined", "simple", "identity_fp32")
    put(repository, asking("py_asking"))
    put(repository, asking("py_other"))
    flags = [*SANDBOX, "--backend-config=python,sandbox-models=identity_fp32, more", "--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("load_rights_confined", *flags, repository=repository) as server:
        yield server


REFUSED = {
    "loads another": ("load_model('py_other')", "does not let it load model 'py_other'; list that name in the setting sandbox-models"),
    "unloads another": ("unload_model('simple')", "does not let it unload model 'simple'"),
    "sends files": (
        "load_model('identity_fp32', config='{}', files={'file:1/model.py': b''})",
        "so its load of model 'identity_fp32' must not bring files",
    ),
    "sends a configuration": ("load_model('identity_fp32', config='{}')", "must not bring a configuration"),
    "loads itself without a sandbox": ("load_model('py_asking', config='{}')", "must not bring a configuration"),
    "unloads what a listed one is made of": ("unload_model('identity_fp32', True)", "must not unload what that model is made of"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_in_a_sandbox_does_not(confined, what):
    call, expected = REFUSED[what]
    said = run_code(confined, "py_asking", f"out = refused(lambda: pb_utils.{call})")
    assert expected in said, said
    index = http_call(confined.http, "POST", "/v2/repository/index", {}).ok().json
    assert {one["name"]: one.get("state") for one in index} == dict.fromkeys(("identity_fp32", "py_asking", "py_other", "simple"), "READY")


def test_a_model_in_a_sandbox_loads_and_unloads_what_the_operator_lists(confined):
    code = "pb_utils.unload_model('identity_fp32'); pb_utils.load_model('identity_fp32'); out = pb_utils.is_model_ready('identity_fp32')"
    assert run_code(confined, "py_asking", code) == "True"


@pytest.fixture(scope="module")
def server(launcher):
    """A server that takes no files from clients. The models of each client have at most three instances."""
    if launcher.oracle:
        pytest.skip("2.51 has no such rules")
    repository = launcher.copy_of("load_rights", "simple", "identity_fp32")
    put(repository, asking("py_asking"))
    flags = ["--model-control-mode=explicit", "--load-model=*", "--allow-model-upload=false", "--client-instances-max=3"]
    with launcher.running("load_rights", *flags, repository=repository) as found:
        yield found


def test_a_model_sends_no_files_where_clients_may_not(server):
    said = run_code(server, "py_asking", "out = refused(pb_utils.load_model, 'new', config='{}', files={'file:1/model.py': b''})")
    assert "brings 1 files, and this server takes none from clients; put the model into the repository" in said, said
    assert load(server, "new", {}, {"1/model.py": ""}).status >= 400


def test_a_model_changes_no_protection_either(server):
    config = json.dumps(IDENTITY | {"parameters": {"isolated": {"string_value": "false"}}})
    said = run_code(server, "py_asking", f"out = refused(pb_utils.load_model, 'identity_fp32', config={config!r})")
    assert "sets isolated to 'false', which the model's own configuration does not" in said, said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"backend": "onnxruntime"}, "sets backend to 'onnxruntime', which the model's own configuration sets to 'identity'; it chooses the code"),
        ({"runtime": "libtriton_other.so"}, "sets runtime to 'libtriton_other.so'"),
        ({"model_operations": {"op_library_filename": ["evil.so"]}}, "sets model_operations.op_library_filename to 'evil.so'"),
        ({"parameters": {"EXECUTE_TIMEOUT_SECONDS": {"string_value": "0"}}}, "sets EXECUTE_TIMEOUT_SECONDS to '0'"),
    ],
)
def test_a_configuration_takes_no_protection_away_and_chooses_no_code(server, change, expected):
    refused = load(server, "identity_fp32", IDENTITY | change)
    assert refused.status >= 400 and expected in refused.error, refused
    assert http_call(server.http, "GET", "/v2/models/identity_fp32/ready").status == 200


def test_a_sent_library_of_operators_is_opened_by_nobody(confined):
    config = IDENTITY | {"backend": "onnxruntime", "model_operations": {"op_library_filename": ["evil.so"]}}
    refused = load(confined, "sent", config, {"1/model.onnx": "", "evil.so": ""})
    assert refused.status >= 400 and "sets model_operations.op_library_filename to 'evil.so'" in refused.error, refused


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_configurations_of_one_client_have_so_many_instances_together(server):
    def of(count: int) -> dict:
        return IDENTITY | {"instance_group": [{"count": count, "kind": "KIND_CPU"}]}

    def as_stranger(model: str, count: int) -> Answer:
        return as_user(STRANGER, lambda: load(server, model, of(count)))

    refused = as_stranger("identity_fp32", 4)
    assert refused.status >= 400 and "--client-instances-max=4" in refused.error, refused
    assert as_stranger("identity_fp32", 3).status == 200
    # The version that is replaced does not count.
    assert as_stranger("identity_fp32", 2).status == 200
    assert as_stranger("identity_fp32", 3).status == 200
    # The operator's own configurations have no such limit, and those of the repository count for nobody.
    assert load(server, "identity_fp32", of(4)).status == 200
    assert load(server, "identity_fp32").status == 200
    assert as_stranger("identity_fp32", 3).status == 200
    assert load(server, "identity_fp32").status == 200
