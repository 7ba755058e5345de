"""What becomes of an ensemble when a model that it is made of is reloaded as another one?"""

import concurrent.futures
import shutil
import threading
import time

import pytest
from clients import differs, fp32, http_call, int32, open_client, refuses

PART = """\
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_%(datatype)s dims: [ %(dims)s ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%(datatype)s dims: [ %(dims)s ] } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
ENSEMBLE = """\
platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling { step [ {
  model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""
MISFIT = "in ensemble inner, ensemble tensor INPUT0: inconsistent "
TYPES = MISFIT + "data type: TYPE_FP32 is inferred from model inner while TYPE_INT32 is inferred from model part"
SHAPES = MISFIT + "shape: [2] is inferred from model inner while [3] is inferred from model part"


def part(datatype: str = "FP32", dims: str = "2", more: str = "") -> str:
    return PART % {"datatype": datatype, "dims": dims} + more


def put(repository, model: str, config: str, versions: tuple[int, ...] = (1,)) -> None:
    for version in versions:
        (repository / model / str(version)).mkdir(parents=True, exist_ok=True)
    (repository / model / "config.pbtxt").write_text(config)
    for other in (repository / model).iterdir():
        if other.is_dir() and other.name not in map(str, versions):
            shutil.rmtree(other)


class Changing:
    """A server with a model, an ensemble of it, and an ensemble of that one."""

    def __init__(self, server, client, repository, explicit: bool):
        self.server, self.client, self.repository, self.explicit = server, client, repository, explicit

    def ready(self) -> bool:
        return http_call(self.server.http, "GET", "/v2/health/ready").status == 200

    def change(self, config: str, versions: tuple[int, ...] = (1,)) -> None:
        """Has the part reloaded. Polling takes a moment."""
        put(self.repository, "part", config, versions)
        if self.explicit:
            self.client.load("part")

    def states(self) -> dict:
        """Of a model with several versions one that is ready, if there is one."""
        of_all = [(one["name"], one.get("state", ""), one.get("reason", "")) for one in self.client.index()]
        return {name: (state, reason) for name, state, reason in sorted(of_all, key=lambda one: one[1] == "READY")}

    def until(self, condition) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, self.states()
            time.sleep(0.02)

    def serves(self, *failed: str) -> None:
        """All models serve. Only those that failed have a reason."""
        self.until(lambda: all(state == "READY" and (reason == "" or model in failed) for model, (state, reason) in self.states().items()))
        for ensemble in ("inner", "outer"):
            assert self.client.infer(ensemble, [fp32("INPUT0", [1, 2])]).outputs["OUTPUT0"].raw == fp32("", [1, 2]).raw
        assert self.ready()

    def check_unavailable(self, reason: str) -> None:
        self.until(lambda: self.states()["inner"] == ("UNAVAILABLE", f"Invalid argument: {reason}"))
        self.until(lambda: self.states()["outer"][0] == "UNAVAILABLE")
        assert "ensemble 'outer' depends on 'inner' which has no loaded version" in self.states()["outer"][1]
        assert self.states()["part"] == ("READY", "")
        for ensemble in ("inner", "outer"):
            with refuses("NOT_FOUND", f"Request for unknown model: '{ensemble}' has no available versions"):
                self.client.infer(ensemble, [fp32("INPUT0", [1, 2])])
        assert not self.ready()


@pytest.fixture(params=["explicit", "poll"])
def changing(request, launcher):
    repository = launcher.copy_of(f"changing_{request.param}")
    put(repository, "part", part())
    put(repository, "inner", ENSEMBLE % "part")
    put(repository, "outer", ENSEMBLE % "inner")
    flags = {
        "explicit": ["--model-control-mode=explicit", "--load-model=*"],
        "poll": ["--model-control-mode=poll", "--repository-poll-secs=1"],
    }[request.param]
    with launcher.running(f"changing_{request.param}", *flags, repository=repository) as server:
        with open_client("http", server) as client:
            yield Changing(server, client, repository, request.param == "explicit")


@differs("2.51 says `unloaded`, and the reason in the log alone", run=False)
def test_an_ensemble_that_fits_no_more_says_why_and_comes_back(changing):
    changing.serves()
    changing.change(part(datatype="INT32"))
    changing.check_unavailable(TYPES)
    # The ensembles go before their part changes.
    changing.until(lambda: changing.client.config("part")["input"][0]["data_type"] == "TYPE_INT32")
    assert changing.client.infer("part", [int32("INPUT0", [1, 2])]).model == "part"
    changing.change(part(dims="3"))
    changing.check_unavailable(SHAPES)
    changing.change(part())
    changing.serves()


@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_requests_during_a_change_are_answered_or_find_no_ensemble(changing):
    """An ensemble that will not fit goes before its part changes, so no request fails in the middle."""
    if changing.server.oracle:
        pytest.skip("2.51 swaps first")
    changing.serves()
    faults = faults_during(changing, lambda: (changing.change(part(datatype="INT32")), changing.change(part())))
    assert not faults, faults[:3]
    changing.serves()


def faults_during(changing, change) -> list[str]:
    """What clients of the outer ensemble are told while a part changes ten times, but that it is away."""
    is_over, faults = threading.Event(), []

    def infer() -> None:
        with open_client("http", changing.server) as client:
            while not is_over.is_set():
                try:
                    client.infer("outer", [fp32("INPUT0", [1, 2])])
                except Exception as error:  # noqa: BLE001
                    faults.append(str(error))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(infer) for _ in range(4)]
        try:
            for _ in range(10):
                change()
        finally:
            is_over.set()
        for one in running:
            one.result()
    return [fault for fault in faults if "has no available versions" not in fault]


@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_an_ensemble_goes_before_its_part_becomes_a_lower_version_that_it_does_not_fit(changing):
    if changing.server.oracle:
        pytest.skip("2.51 swaps first")
    changing.change(part(), versions=(2,))
    changing.serves()
    faults = faults_during(
        changing, lambda: (changing.change(part(datatype="INT32"), versions=(1,)), changing.change(part(), versions=(2,)))
    )
    assert not faults, faults[:3]
    changing.change(part(datatype="INT32"), versions=(1,))
    changing.check_unavailable(TYPES)
    changing.change(part(), versions=(2,))
    changing.serves()


@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_an_ensemble_goes_before_the_version_that_its_step_names(changing):
    """The part stays as it is in its other version: nothing is loaded, and one version goes."""
    if changing.server.oracle:
        pytest.skip("2.51 swaps first")
    both = part(more="version_policy { all { } }\n")
    changing.change(both, versions=(1, 2))
    put(changing.repository, "inner", (ENSEMBLE % "part").replace("model_version: -1", "model_version: 2"))
    changing.client.load("inner")
    changing.serves()
    faults = faults_during(changing, lambda: (changing.change(both, versions=(1,)), changing.change(both, versions=(1, 2))))
    assert not faults, faults[:3]
    changing.serves()
    changing.change(both, versions=(1,))
    changing.check_unavailable("ensemble 'inner' depends on 'part' whose required version 2 is not loaded.")


def test_an_ensemble_is_decoupled_as_soon_as_its_part_is(changing):
    changing.serves()
    decoupled = lambda model: changing.client.config(model)["model_transaction_policy"]["decoupled"]  # noqa: E731
    assert not decoupled("outer")
    changing.change(part(more=DECOUPLED))
    changing.until(lambda: decoupled("inner") and decoupled("outer"))
    with refuses("UNSUPPORTED", "HTTP end point doesn't support models with decoupled transaction policy"):
        changing.client.infer("outer", [fp32("INPUT0", [1, 2])])
    changing.change(part())
    changing.until(lambda: not decoupled("inner") and not decoupled("outer"))
    changing.serves()


@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_a_part_that_changes_brings_no_edits_of_its_ensembles(changing):
    changing.serves()
    put(changing.repository, "inner", ENSEMBLE % "part" + 'metric_tags { key: "edited" value: "yes" }\n')
    changing.change(part(more=DECOUPLED))
    changing.until(lambda: changing.client.config("outer")["model_transaction_policy"]["decoupled"])
    assert "edited" not in changing.client.config("inner").get("metric_tags", {})
    changing.change(part())
    changing.client.load("inner")
    assert changing.client.config("inner")["metric_tags"] == {"edited": "yes"}
    changing.serves()


@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_a_reload_that_fails_leaves_the_ensembles(changing):
    changing.serves()
    with refuses("INVALID_ARG", "load failed for model 'part'"):
        changing.change(part(datatype="INT32").replace("identity", "nobody"))
    changing.serves("part")


@differs("2.51 says `unloaded`, and the reason in the log alone", run=False)
@pytest.mark.parametrize("changing", ["explicit"], indirect=True)
def test_an_ensemble_that_was_unloaded_stays_away(changing):
    changing.change(part(datatype="INT32"))
    changing.check_unavailable(TYPES)
    changing.client.unload("inner")
    changing.until(changing.ready)
    changing.change(part())
    assert changing.states()["inner"][0] == changing.states()["outer"][0] == "UNAVAILABLE"
    changing.client.load("outer")
    changing.serves()


@differs("2.51 says `unloaded`, and the reason in the log alone", run=False)
@pytest.mark.parametrize("changing", ["poll"], indirect=True)
def test_an_ensemble_that_fits_no_more_goes_with_its_directory(changing):
    changing.serves()
    changing.change(part(datatype="INT32"))
    changing.check_unavailable(TYPES)
    for ensemble in ("outer", "inner"):
        shutil.rmtree(changing.repository / ensemble)
    changing.until(changing.ready)
    assert changing.states() == {"part": ("READY", "")}
