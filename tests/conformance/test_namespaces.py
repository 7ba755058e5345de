"""May models of two repositories have the same name, and which of them does a request mean?"""

import catalogue
import pytest
from batching_setup import put
from clients import Refused, differs, fp32, http_call, int32, open_client, refuses
from footprint import wait_until

NAMESPACING = "--model-namespacing=true"
AMBIGUOUS = "There are 2 identifiers of model 'same' in global map, model namespace must be provided to resolve ambiguity."

ENSEMBLE = """\
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_%(datatype)s dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_%(datatype)s dims: [ 2 ] } ]
ensemble_scheduling { step [ {
  model_name: "same" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" }
} ] }
"""


def repositories(launcher, name: str):
    """Two of them. Both have the model 'same', of another datatype each, an ensemble of it, and a model that the other has not."""
    found = []
    for part, datatype in (("a", "FP32"), ("b", "INT32")):
        repository = launcher.copy_of(f"{name}_{part}")
        put(launcher, repository, catalogue.identity("same", (datatype, (2,))))
        put(launcher, repository, catalogue.identity(f"only_{part}", (datatype, (2,))))
        folder = repository / f"of_same_{part}"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(ENSEMBLE % {"datatype": datatype})
        found.append(repository)
    return found


@pytest.fixture(scope="module")
def namespaced(launcher):
    first, second = repositories(launcher, "namespaced")
    with launcher.running("namespaced", NAMESPACING, f"--model-repository={second}", repository=first) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def spaced_client(request, namespaced):
    with open_client(request.param, namespaced) as found:
        yield found


def test_the_index_lists_each_of_the_name(spaced_client):
    assert [(one["name"], one["state"]) for one in spaced_client.index() if one["name"] == "same"] == [("same", "READY")] * 2


def test_a_name_of_one_repository_means_its_model(spaced_client):
    assert spaced_client.infer("only_a", [fp32("INPUT0", [1, 2])]).model == "only_a"
    assert spaced_client.infer("only_b", [int32("INPUT0", [1, 2])]).model == "only_b"


def test_a_name_of_two_repositories_is_refused(spaced_client):
    with refuses("INVALID_ARG", AMBIGUOUS):
        spaced_client.infer("same", [fp32("INPUT0", [1, 2])])
    with refuses("INVALID_ARG", AMBIGUOUS):
        spaced_client.metadata("same")
    with refuses("INVALID_ARG", AMBIGUOUS):
        spaced_client.config("same")
    with refuses("INVALID_ARG", "requested model 'same' is not available"):
        spaced_client.statistics("same")
    assert not spaced_client.model_ready("same")


def test_an_ensemble_is_made_of_its_own_repositorys_model(spaced_client):
    assert spaced_client.infer("of_same_a", [fp32("IN", [1, 2])]).outputs["OUT"].datatype == "FP32"
    assert spaced_client.infer("of_same_b", [int32("IN", [1, 2])]).outputs["OUT"].datatype == "INT32"


@differs("2.51 answers 400 `Request for unknown model: '…::of_same_a' is not found`")
def test_statistics_of_all_models_have_both(spaced_client):
    assert [one["name"] for one in spaced_client.statistics()].count("same") == 2


def test_metrics_distinguish_the_repositories(namespaced):
    text = http_call(namespaced.metrics, "GET", "/metrics").ok().body.decode()
    lines = [line for line in text.splitlines() if line.startswith('nv_inference_count{model="same"')]
    first = namespaced.repository
    wanted = [f'nv_inference_count{{model="same",namespace="{first.parent}/namespaced_{part}",version="1"}}' for part in "ab"]
    assert sorted(line.rpartition(" ")[0] for line in lines) == wanted


def test_loads_and_unloads_act_on_all_of_the_name(launcher):
    first, second = repositories(launcher, "namespaced_loads")
    flags = [NAMESPACING, f"--model-repository={second}", "--model-control-mode=explicit"]
    with launcher.running("namespaced_loads", *flags, repository=first) as server, open_client("http", server) as client:
        client.load("same")
        assert [one["state"] for one in client.index() if one["name"] == "same"] == ["READY"] * 2
        with refuses("INVALID_ARG", AMBIGUOUS):
            client.infer("same", [fp32("INPUT0", [1, 2])])
        client.unload("same")
        assert {one.get("state") for one in client.index() if one["name"] == "same"} <= {"UNAVAILABLE", "UNLOADING"}
        with refuses("NOT_FOUND", "Identifier of model 'same' is not found in global map"):
            client.infer("same", [fp32("INPUT0", [1, 2])])
        client.load("same")
        assert [one["state"] for one in client.index(ready=True) if one["name"] == "same"] == ["READY"] * 2


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_an_ensemble_is_made_of_the_nearest_model_that_there_is(launcher, tmp_path, mode):
    """Its own repository's model goes and comes back while the other one's stays."""
    first, second = (launcher.copy_of(f"nearest_{mode}_{part}") for part in "ab")
    # They differ in what they take.
    put(launcher, first, catalogue.identity("same", ("FP32", (2,))))
    put(launcher, second, catalogue.identity("same", ("FP32", (-1,))))
    (first / "of_same" / "1").mkdir(parents=True)
    (first / "of_same" / "config.pbtxt").write_text((ENSEMBLE % {"datatype": "FP32"}).replace("dims: [ 2 ]", "dims: [ -1 ]"))
    flags = [NAMESPACING, f"--model-repository={second}", f"--model-control-mode={mode}", "--repository-poll-secs=1"]
    flags += ["--load-model=of_same"] if mode == "explicit" else []

    with launcher.running(f"nearest_{mode}", *flags, repository=first) as server, open_client("http", server) as client:

        def is_made_of(part: str) -> bool:
            if mode == "explicit":
                client.load("of_same")
            try:
                client.infer("of_same", [fp32("IN", [1, 2, 3])])
                return part == "b"
            except Refused as refused:
                return part == "a" and "unexpected shape" in refused.text

        assert is_made_of("a")
        (first / "same").rename(tmp_path / "same")
        wait_until(lambda: is_made_of("b"))
        (tmp_path / "same").rename(first / "same")
        wait_until(lambda: is_made_of("a"))


@differs("2.51 knows models by their names alone")
def test_a_request_may_name_the_repository_as_well(namespaced):
    first = namespaced.repository
    with open_client("grpc", namespaced) as client:
        datatypes = [client.metadata(f"{first.parent}/namespaced_{part}::same")["inputs"][0]["datatype"] for part in "ab"]
        assert datatypes == ["FP32", "INT32"]
        assert client.infer(f"{first}::same", [fp32("INPUT0", [1, 2])]).outputs["OUTPUT0"].datatype == "FP32"
        with refuses("NOT_FOUND", "Request for unknown model: '/etc::same' is not found"):
            client.infer("/etc::same", [fp32("INPUT0", [1, 2])])


def test_without_namespaces_the_name_is_refused_and_the_others_are_up(launcher):
    first, second = repositories(launcher, "not_namespaced")
    for repository in (first, second):
        for folder in repository.glob("of_same_*"):
            (folder / "config.pbtxt").unlink()
            (folder / "1").rmdir()
            folder.rmdir()
    flags = [f"--model-repository={second}", "--exit-on-error=false"]
    with launcher.running("not_namespaced", *flags, repository=first) as server, open_client("http", server) as client:
        listed = [(one["state"], one["reason"]) for one in client.index() if one["name"] == "same"]
        assert listed == [("UNAVAILABLE", "model appears in two or more repositories")]
        assert client.infer("only_b", [int32("INPUT0", [1, 2])]).model == "only_b"
        with refuses("NOT_FOUND", "Request for unknown model: 'same' is not found"):
            client.infer("same", [fp32("INPUT0", [1, 2])])
