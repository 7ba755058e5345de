"""What do a linter of Dockerfiles and the schemas of Compose, Kubernetes and KServe say about what users deploy?"""

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest
import setup_linters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGING = ROOT / "packaging"
yaml = pytest.importorskip("yaml", reason="python3 tests/setup_venv.py installs it")

pytestmark = pytest.mark.skipif(not setup_linters.is_there(), reason="python3 tests/packaging/setup_linters.py installs the linters")

# The oldest one that the autoscaler's metrics and probes are written for, and the newest one that the schemas know.
VERSIONS = ("1.27", "1.37")


def linted(dockerfile: pathlib.Path) -> subprocess.CompletedProcess:
    command = [setup_linters.FOLDER / "bin" / "hadolint", "--no-color", "--failure-threshold=style", dockerfile]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_dockerfile_has_no_faults():
    found = linted(PACKAGING / "container" / "Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")


def test_the_linter_would_find_some(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && apt-get install x\n")
    found = linted(tmp_path / "Dockerfile")
    assert found.returncode != 0 and "DL3006" in found.stdout and "DL3003" in found.stdout


# Faults of the file that it is given, by the schema that it is given.
COMPOSE = """
import json, sys, jsonschema
schema, composed = (json.load(open(path)) for path in sys.argv[1:])
for fault in jsonschema.Draft201909Validator(schema).iter_errors(composed):
    print(*fault.absolute_path, sep=".")
"""


def faults_of_composition(composed: dict, folder: pathlib.Path) -> list[str]:
    """The places in a file of `docker compose` that its schema does not allow."""
    place = folder / "compose.json"
    place.write_text(json.dumps(composed))
    schema = setup_linters.READ / "compose" / "config" / "compose_spec.json"
    environment = {**os.environ, "PYTHONPATH": str(setup_linters.FOLDER)}
    command = [sys.executable, "-c", COMPOSE, schema, place]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True).stdout.split()


def test_the_composition_fits_the_schema_of_compose(tmp_path):
    composed = yaml.safe_load((PACKAGING / "container" / "compose.yaml").read_text())
    assert faults_of_composition(composed, tmp_path) == []
    composed["services"]["server"]["healtcheck"] = {}
    composed["services"]["client"]["depends_on"]["server"]["condition"] = "up"
    assert faults_of_composition(composed, tmp_path) == ["services.server", "services.client.depends_on"]


def validated(documents: list[dict], version: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
    """What the schemas of a version of Kubernetes say. Properties that they do not know are faults."""
    place = folder / "documents.yaml"
    place.write_text(yaml.safe_dump_all(documents))
    command = [sys.executable, "-m", "kubernetes_validate", "-k", version, "--strict", "--no-warn", place]
    environment = {**os.environ, "PYTHONPATH": str(setup_linters.FOLDER)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def manifest(name: str) -> list[dict]:
    return list(yaml.safe_load_all((PACKAGING / "kubernetes" / name).read_text()))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_fit_the_schemas_of_kubernetes(version, tmp_path):
    found = validated(manifest("nerite.yaml"), version, tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("fault", ["a property of no schema", "a value of another type"])
def test_the_schemas_would_find_faults(fault, tmp_path):
    documents = manifest("nerite.yaml")
    [deployment] = [one for one in documents if one["kind"] == "Deployment"]
    if fault == "a property of no schema":
        deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    else:
        deployment["spec"]["replicas"] = "one"
    found = validated(documents, VERSIONS[-1], tmp_path)
    assert found.returncode != 0 and "Traceback" not in found.stderr, found.stderr


def properties(model: str) -> dict[str, str]:
    """The properties of an object of KServe by their names in YAML, with their types as its own Python package describes them."""
    tree = ast.parse((setup_linters.READ / "kserve" / "models" / f"{model}.py").read_text())
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in ("openapi_types", "attribute_map"):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return {found["attribute_map"][name]: kind for name, kind in found["openapi_types"].items()}


def is_of(kind: str, value) -> bool:
    """Whether a value is one of the plain types; of others only their shape is looked at."""
    if kind.startswith("list["):
        return isinstance(value, list) and all(is_of(kind[5:-1], one) for one in value)
    if kind.startswith("dict("):
        return isinstance(value, dict) and all(is_of("str", one) for one in value.values())
    known = {"str": str, "bool": bool, "int": int}
    return isinstance(value, known.get(kind, dict)) and (kind == "bool") == isinstance(value, bool)


def faults(value: dict, model: str) -> list[str]:
    known = properties(model)
    return [name for name, one in value.items() if name not in known or not is_of(known[name], one)]


def test_the_serving_runtime_fits_the_schemas_of_kserve_and_kubernetes(tmp_path):
    [runtime] = manifest("serving-runtime.yaml")
    assert faults(runtime, "v1alpha1_serving_runtime") == []
    assert faults(runtime["spec"], "v1alpha1_serving_runtime_spec") == []
    for given in runtime["spec"]["supportedModelFormats"]:
        assert faults(given, "v1alpha1_supported_model_format") == []
    # What KServe makes a pod of, so far as the runtime says it.
    pod = {"containers": runtime["spec"]["containers"], "volumes": runtime["spec"]["volumes"]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    for version in VERSIONS:
        found = validated([document], version, tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr
    assert faults({**runtime["spec"], "multiModel": "no", "containerz": []}, "v1alpha1_serving_runtime_spec") == ["multiModel", "containerz"]
