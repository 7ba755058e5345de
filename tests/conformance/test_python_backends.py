"""Do backends that are a Python class run their models, as vLLM's does? (Triton's Python-based backends)"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import triton
from clients import fp32, http_call, open_client
from followed_setup import FLAGS, waits_for
from python_setup import PATIENT

# Like vLLM's: the class is the backend's, modules lie beside it, and a file of the model's version says what to do.
BACKEND = """\
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

from scaling.rules import scaled


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for name in ("IN",):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [-1]})
        for name in ("OUT", ):
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "ABOUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
            self.factor = json.load(file)["factor"]
        self.about = json.dumps({
            "name": args["model_name"], "version": args["model_version"], "backend": json.loads(args["model_config"])["backend"],
            "model_dir": pb_utils.get_model_dir(), "repository": args["model_repository"], "file": __file__,
        })

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            about = np.array([self.about.encode()], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", scaled(values, self.factor)), pb_utils.Tensor("ABOUT", about),
            ]))
        return responses
"""
RULES = "def scaled(values, factor):\n    return values * factor\n"


def put_backend(directory: pathlib.Path, name: str, source: str = BACKEND) -> pathlib.Path:
    folder = directory / name
    (folder / "scaling").mkdir(parents=True)
    (folder / "model.py").write_text(source)
    (folder / "scaling" / "__init__.py").write_text("")
    (folder / "scaling" / "rules.py").write_text(RULES)
    return folder


def put_model(repository: pathlib.Path, name: str, factor: float, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.json").write_text(json.dumps({"factor": factor}))
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def backends(launcher):
    """A directory with backends that are classes."""
    directory = launcher.scratch / "class_backends"
    if launcher.oracle:
        shutil.copytree(triton.backend_directory(launcher.scratch / "backends"), directory, symlinks=True)
    put_backend(directory, "scales")
    put_backend(directory, "broken", "raise RuntimeError('the backend is broken')\n")
    return directory


@pytest.fixture(scope="module")
def server(launcher, backends):
    repository = launcher.copy_of("class_backends_models")
    put_model(repository, "twice", 2, 'backend: "scales"\n')
    put_model(repository, "thrice", 3, 'backend: "scales"\nruntime: "model.py"\ninstance_group { count: 2 kind: KIND_CPU }\n')
    put_model(repository, "fails", 1, 'backend: "broken"\n')
    put_model(repository, "absent", 1, 'backend: "nowhere"\n')
    flags = [f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false", PATIENT]
    with launcher.running("class_backends", *flags, repository=repository) as found:
        yield found


def answer(client, model: str, value: float):
    outputs = client.infer(model, [fp32("IN", [value])]).outputs
    about = outputs["ABOUT"].raw[4:]
    return np.frombuffer(outputs["OUT"].raw, np.float32)[0], json.loads(about)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_run_by_the_class_of_their_backend(server, protocol):
    with open_client(protocol, server) as client:
        assert answer(client, "twice", 5)[0] == 10
        assert answer(client, "thrice", 5)[0] == 15


def test_the_class_sees_its_model_and_completes_its_configuration(server, backends):
    with open_client("http", server) as client:
        _, about = answer(client, "twice", 1)
        assert about["name"] == "twice" and about["version"] == "1" and about["backend"] == "scales"
        assert pathlib.Path(about["model_dir"]) == server.repository / "twice" / "1"
        assert pathlib.Path(about["repository"]) == server.repository / "twice"
        assert os.path.samefile(about["file"], backends / "scales" / "model.py")
        found = client.config("twice")
    assert [one["name"] for one in found["output"]] == ["OUT", "ABOUT"]
    assert found["backend"] == "scales"


def test_a_class_that_fails_and_a_backend_that_is_nowhere_are_reported(server):
    index = {entry["name"]: entry for entry in json.loads(http_call(server.http, "POST", "/v2/repository/index", b"{}").body)}
    assert index["fails"]["state"] == "UNAVAILABLE"
    assert "the backend is broken" in index["fails"]["reason"]
    assert index["absent"]["state"] == "UNAVAILABLE"
    assert "unable to find backend library for backend 'nowhere'" in index["absent"]["reason"]


def test_a_changed_class_serves_a_model_that_is_loaded_anew(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 loads nothing whose own files have not changed")
    backends = tmp_path / "backends"
    folder = put_backend(backends, "scales")
    repository = launcher.copy_of("class_backends_changed")
    put_model(repository, "twice", 2, 'backend: "scales"\n')
    flags = [f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=twice", PATIENT]
    with launcher.running("class_backends_changed", *flags, repository=repository) as found, open_client("http", found) as client:
        assert answer(client, "twice", 5)[0] == 10
        (folder / "scaling" / "rules.py").write_text("def scaled(values, factor):\n    return values * factor + 1\n")
        for call in ("unload", "load"):
            assert http_call(found.http, "POST", f"/v2/repository/models/twice/{call}", b"{}").status == 200
        assert answer(client, "twice", 5)[0] == 11


def test_a_changed_module_of_a_class_is_followed_in_mode_poll(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 loads nothing whose own files have not changed")
    backends = tmp_path / "backends"
    folder = put_backend(backends, "scales")
    repository = launcher.copy_of("class_backends_followed")
    put_model(repository, "twice", 2, 'backend: "scales"\n')
    with launcher.running("class_backends_followed", f"--backend-directory={backends}", *FLAGS, repository=repository) as found:
        with open_client("http", found) as client:
            assert answer(client, "twice", 5)[0] == 10
            (folder / "scaling" / "rules.py").write_text("def scaled(values, factor):\n    return values * factor + 1\n")
            waits_for(lambda: answer(client, "twice", 5)[0], 11)
            # The class itself.
            (folder / "model.py").write_text(BACKEND.replace("scaled(values, self.factor)", "scaled(values, self.factor) + 100"))
            waits_for(lambda: answer(client, "twice", 5)[0], 111)


def test_settings_of_python_hold_for_such_a_backend_and_its_own_win(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("the texts are this server's")
    backends = tmp_path / "backends"
    put_backend(backends, "scales")
    put_backend(backends, "others")
    repository = launcher.copy_of("class_backends_settings")
    put_model(repository, "twice", 2, 'backend: "scales"\n')
    put_model(repository, "thrice", 3, 'backend: "others"\n')
    flags = [
        f"--backend-directory={backends}", "--exit-on-error=false", "--strict-readiness=false", PATIENT,
        "--backend-config=python,interpreter=/nowhere/python3", f"--backend-config=others,interpreter={shutil.which('python3')}",
    ]  # fmt: skip
    with launcher.running("class_backends_settings", *flags, repository=repository) as found:
        index = {entry["name"]: entry for entry in json.loads(http_call(found.http, "POST", "/v2/repository/index", b"{}").body)}
        assert "/nowhere/python3" in index["twice"]["reason"]
        assert "/nowhere/python3" not in index["thrice"].get("reason", "")
