"""What do a linter of Dockerfiles and the schemas of Compose, Kubernetes and KServe say about what users deploy?"""

import ast
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import manifests
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("patches", [(), manifests.PATCHES], ids="-".join)
def test_the_manifests_fit_the_schemas_of_kubernetes(version, patches, tmp_path):
    found = [one for name in ("nerite.yaml", "envoy.yaml") for one in manifests.documents(name)]
    found = [manifests.deployment(*patches) if (one["kind"], one["metadata"]["name"]) == ("Deployment", "nerite") else one for one in found]
    done = validated(found, version, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["a property of no schema", "a value of another type"])
def test_the_schemas_would_find_faults(fault, tmp_path):
    deployment = manifests.deployment()
    if fault == "a property of no schema":
        deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    else:
        deployment["spec"]["replicas"] = "one"
    found = validated([deployment], VERSIONS[-1], tmp_path)
    assert found.returncode != 0 and "Traceback" not in found.stderr, found.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("patches", [(), *((one,) for one in manifests.PATCHES), manifests.PATCHES], ids="-".join)
def test_kustomize_makes_the_deployment_that_the_tests_look_at(patches, tmp_path):
    text = (manifests.FOLDER / "kustomization.yaml").read_text()
    for name in manifests.FOLDER.glob("*.yaml"):
        shutil.copy(name, tmp_path)
    for one in patches:
        text = text.replace(f"# - path: {one}.yaml", f"- path: {one}.yaml")
    (tmp_path / "kustomization.yaml").write_text(text)
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    [deployment] = [one for one in made if (one["kind"], one["metadata"]["name"]) == ("Deployment", "nerite")]
    assert in_order(deployment) == in_order(manifests.deployment(*patches))
    assert len(made) == sum(len(manifests.documents(name)) for name in ("nerite.yaml", "envoy.yaml"))


def in_order(value):
    """The same with lists in one order, because a merge has no order for what it adds."""
    if isinstance(value, dict):
        return {name: in_order(one) for name, one in value.items()}
    if isinstance(value, list):
        return sorted((in_order(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


def test_the_pod_monitor_fits_the_description_of_prometheus_operator():
    monitor = manifests.of_kind("pod-monitor.yaml", "PodMonitor")
    assert set(monitor["spec"]) <= fields_of_operator("PodMonitorSpec")
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert set(endpoint) <= fields_of_operator("PodMetricsEndpoint")
    assert "podMetricEndpoints" not in fields_of_operator("PodMonitorSpec")


def fields_of_operator(model: str) -> set[str]:
    """The properties of an object of Prometheus' operator by their names in YAML."""
    text = (setup_linters.READ / "cloudcoil" / "models" / "prometheus_operator" / "v1.py").read_text()
    own = text.partition(f"\nclass {model}(BaseModel):")[2].partition("\nclass ")[0]
    # Fields, below the classes that build one.
    fields = re.findall(r"^    (\w+): ((?:Annotated\[)?.*?)(?=^    \w+: |\Z)", own, re.M | re.S)
    aliases = {name: re.search(r'alias="(\w+)"', kind) for name, kind in fields}
    return {alias[1] if alias else name for name, alias in aliases.items()}


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
    runtime = manifests.of_kind("serving-runtime.yaml", "ServingRuntime")
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


def test_the_inference_service_fits_the_schemas_of_kserve():
    service = manifests.of_kind("inference-service.yaml", "InferenceService")
    predictor = service["spec"]["predictor"]
    assert faults(service, "v1beta1_inference_service") == [] and faults(service["spec"], "v1beta1_inference_service_spec") == []
    assert faults(predictor, "v1beta1_predictor_spec") == [] and faults(predictor["model"], "v1beta1_model_spec") == []
    assert faults({**predictor, "minReplicas": "2"}, "v1beta1_predictor_spec") == ["minReplicas"]
