"""What of a model changes without a reload, and what if it changes while it is loaded?"""

import json
import threading
import time
import uuid

import pytest
from batching_setup import pending
from clients import differs, open_client, refuses, text
from footprint import wait_until
from python_setup import PATIENT, Gates, said

# Says who it is: an instance that was reloaded is somebody else.
WHO = '''\
import os
import time
import uuid

import numpy
import triton_python_backend_utils as pb_utils

TIME_S = %s


class TritonPythonModel:
    def initialize(self, args):
        self.who = uuid.uuid4().hex
        time.sleep(TIME_S)

    def execute(self, requests):
        time.sleep(0.05)
        said = numpy.array([self.who.encode()], dtype=numpy.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)]) for _ in requests]
'''
CONFIG = '''\
name: "%s"
backend: "python"
input [{ name: "ASKED" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }]
'''


class Models:
    """Models that say who they are, in a repository of a server that loads what it is told."""

    def __init__(self, server):
        self.server = server

    def put(self, name: str, more: str = "", versions=(1,), time_s: float = 0) -> None:
        for version in versions:
            folder = self.server.repository / name / str(version)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.py").write_text(WHO % time_s)
        self.configure(name, more)

    def configure(self, name: str, more: str) -> None:
        (self.server.repository / name / "config.pbtxt").write_text(CONFIG % name + more)

    def who(self, client, name: str, version: str = "", requests: int = 12, least: int = 1) -> set[str]:
        """The instances that answer when so many ask at once. They ask again as long as these are fewer than `least`."""
        answers: list[str] = []
        deadline = time.monotonic() + 60

        def infer() -> None:
            with open_client("http", self.server) as one:
                answers.append(said(one.infer(name, [text("ASKED", [b"who"])], version=version)))

        rounds = 0
        while not rounds or (len(set(answers)) < least and time.monotonic() < deadline):
            threads = [threading.Thread(target=infer) for _ in range(requests)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rounds += 1
            assert len(answers) == rounds * requests
        return set(answers)


@pytest.fixture(scope="module")
def models(launcher):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    repository = launcher.copy_of("updates", "identity_fp32")
    with launcher.running(
        "updates", PATIENT, "--model-control-mode=explicit", "--load-model=identity_fp32", repository=repository
    ) as server:
        yield Models(server)


@pytest.fixture(params=["http", "grpc"])
def client(request, models):
    with open_client(request.param, models.server) as found:
        yield found


def groups(count: int) -> str:
    return f"instance_group [{{ count: {count} kind: KIND_CPU }}]\n"


def name() -> str:
    return f"who_{uuid.uuid4().hex[:8]}"


@differs("2.51 reloads a Python model whose configuration was written again")
def test_instances_come_and_go_without_a_reload(models, client):
    model = name()
    models.put(model, groups(1))
    client.load(model)
    (first,) = models.who(client, model)
    models.configure(model, groups(3))
    client.load(model)
    three = models.who(client, model, least=3)
    assert first in three and len(three) == 3
    assert client.config(model)["instance_group"][0]["count"] == 3
    models.configure(model, groups(1))
    client.load(model)
    assert models.who(client, model) == {first}
    client.unload(model)


def test_requests_go_on_while_instances_change(models, client):
    model = name()
    models.put(model, groups(2))
    client.load(model)
    faults: list[Exception] = []
    is_over = threading.Event()

    def infer() -> None:
        with open_client("grpc", models.server) as one:
            while not is_over.is_set():
                try:
                    one.infer(model, [text("ASKED", [b"who"])])
                except Exception as fault:  # noqa: BLE001
                    faults.append(fault)

    threads = [threading.Thread(target=infer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for count in (3, 1, 4, 2):
        models.configure(model, groups(count))
        client.load(model)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(models.who(client, model, least=2)) == 2
    client.unload(model)


@differs("2.51 reloads a Python model whose configuration was written again")
def test_a_configuration_that_says_the_same_is_no_reload(models, client):
    model = name()
    models.put(model, groups(1))
    client.load(model)
    before = models.who(client, model)
    models.configure(model, groups(1))
    client.load(model)
    assert models.who(client, model) == before
    models.configure(model, groups(1) + 'parameters { key: "new" value { string_value: "1" } }\n')
    client.load(model)
    assert models.who(client, model).isdisjoint(before)
    client.unload(model)


@differs("2.51 reloads a Python model whose configuration was written again")
def test_a_version_comes_and_goes_alone(models, client):
    model = name()
    models.put(model, groups(1), versions=(1, 2))
    client.load(model)
    second = models.who(client, model)
    with refuses("NOT_FOUND", f"Request for unknown model: '{model}' version 1 is not found"):
        client.infer(model, [text("ASKED", [b"who"])], version="1")
    models.configure(model, groups(1) + "version_policy { all { } }\n")
    client.load(model)
    assert models.who(client, model, version="2") == second
    assert models.who(client, model, version="1").isdisjoint(second)
    models.configure(model, groups(1) + "version_policy { specific { versions: [ 2 ] } }\n")
    client.load(model)
    assert models.who(client, model) == second
    client.unload(model)


def test_a_failed_load_says_why_and_leaves_what_serves(models, client):
    model = name()
    models.put(model, groups(1))
    client.load(model)
    before = models.who(client, model)
    (models.server.repository / model / "1" / "model.py").write_text("this is no Python\n")
    with refuses("INVALID_ARG", f"load failed for model '{model}': version 1 is at UNAVAILABLE state"):
        client.load(model)
    assert models.who(client, model) == before
    client.unload(model)


def test_instances_start_side_by_side(models, client):
    model = name()
    models.put(model, groups(4), time_s=2)
    begun = time.monotonic()
    client.load(model)
    took = time.monotonic() - begun
    assert len(models.who(client, model, requests=24, least=4)) == 4
    assert took < 7.5, "four that take two seconds each, one after the other, take eight"
    client.unload(model)


@differs("2.51 loads models that calls name one after the other")
def test_models_load_side_by_side(models, client):
    names = [name() for _ in range(3)]
    for model in names:
        models.put(model, groups(1), time_s=2)

    def load(model: str) -> None:
        with open_client("http", models.server) as one:
            one.load(model)

    threads = [threading.Thread(target=load, args=(model,)) for model in names]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    assert all(client.model_ready(model) for model in names)
    assert took < 5.5, "three that take two seconds each, one after the other, take six"
    for model in names:
        client.unload(model)


def test_a_long_load_shows_in_the_index(models, client):
    model = name()
    models.put(model, groups(1), time_s=3)
    loading = threading.Thread(target=client.load, args=(model,))
    loading.start()
    seen = []
    while loading.is_alive():
        with open_client("http", models.server) as other:
            seen += [(one["state"], one["reason"]) for one in other.index() if one["name"] == model and "state" in one]
            assert other.model_ready("identity_fp32"), "others serve meanwhile"
        time.sleep(0.05)
    loading.join()
    assert "LOADING" in {state for state, _ in seen}
    if not models.server.oracle:
        assert ("LOADING", "0 of 1 instances") in seen
    client.unload(model)


def test_files_that_change_during_a_load_are_noticed(models, client, tmp_path):
    if models.server.oracle:
        pytest.skip("2.51 does not look")
    model, gates = name(), Gates(tmp_path / "gates")
    models.put(model, groups(1))
    gated = WHO.replace("time.sleep(TIME_S)", 'pass_gate("load")') % 0
    (models.server.repository / model / "1" / "model.py").write_text(gates.code + gated)
    loading = threading.Thread(target=client.load, args=(model,))
    loading.start()
    gates.wait_for("load")
    (models.server.repository / model / "labels.txt").write_text("late\n")
    gates.open("load")
    loading.join()
    assert client.model_ready(model)
    assert f"the files of model '{model}' changed while it was loaded; loading it again" in models.server.log_text()
    client.unload(model)


# Does as it is told by the input: it waits, has its model loaded with one instance, or asks its own model.
ACTS = '''\
import pathlib
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.folder = pathlib.Path(args["model_repository"])

    def act(self, asked):
        if asked == "load":
            time.sleep(0.5)
            pb_utils.load_model(self.name)
        elif asked.startswith("wait"):
            time.sleep(float(asked.split()[1]))
        elif asked == "itself":
            time.sleep(0.3)
            given = pb_utils.Tensor("ASKED", numpy.array([b"wait 0"], dtype=numpy.object_))
            answer = pb_utils.InferenceRequest(model_name=self.name, requested_output_names=["SAID"], inputs=[given]).exec()
            return answer.error().message() if answer.has_error() else "answered"
        return "done"

    def execute(self, requests):
        answers = []
        for request in requests:
            asked = pb_utils.get_input_tensor_by_name(request, "ASKED").as_numpy()[0].decode()
            said = numpy.array([self.act(asked).encode()], dtype=numpy.object_)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)]))
        return answers
'''


def acting(models, client) -> str:
    """A model with two instances that acts as it is told."""
    model = name()
    models.put(model, groups(2))
    (models.server.repository / model / "1" / "model.py").write_text(ACTS)
    client.load(model)
    return model


def begun(models, model: str, code: str, answers: list) -> threading.Thread:
    def infer() -> None:
        with open_client("http", models.server) as one:
            answers.append(said(one.infer(model, [text("ASKED", [code.encode()])])))

    thread = threading.Thread(target=infer, daemon=True)
    thread.start()
    return thread


def ended(threads: list) -> bool:
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


@differs("2.51 waits for ever: a model cannot load itself while it runs", run=False)
def test_an_instance_that_leaves_may_load_its_own_model(models, client):
    model, answers = acting(models, client), []
    models.configure(model, groups(1))
    # One of them runs in the instance that leaves.
    assert ended([begun(models, model, "load", answers) for _ in range(2)])
    assert answers == ["done", "done"]
    assert ended([begun(models, model, "wait 0", answers)])
    client.unload(model)


@differs("2.51 waits for ever: a model cannot ask itself while no instance is free", run=False)
def test_a_model_does_not_wait_for_an_instance_that_left(models, client):
    model, answers = acting(models, client), []
    models.configure(model, groups(1))
    # One of them asks its own model, which the other one keeps busy until it leaves. Which of the two leaves is open.
    threads = [begun(models, model, "itself", answers), begun(models, model, "wait 3", answers)]
    time.sleep(1)
    client.load(model)
    assert ended(threads)
    assert len(answers) == 2 and "done" in answers
    assert ended([begun(models, model, "wait 0", answers)])
    client.unload(model)


# Leaves a file when it has ended.
LEAVES = WHO + '''
    def finalize(self):
        time.sleep(0.3)
        open(os.path.join("%s", self.who), "w").close()
'''


@differs("2.51 reloads a Python model whose configuration was written again")
def test_a_load_that_takes_instances_away_returns_when_they_are_gone(models, client, tmp_path):
    model = name()
    models.put(model, groups(3))
    (models.server.repository / model / "1" / "model.py").write_text(LEAVES % (0, tmp_path))
    client.load(model)
    # While an instance is added, none ends.
    for count, gone in ((4, 0), (2, 2), (3, 2), (1, 4)):
        models.configure(model, groups(count))
        client.load(model)
        assert len(list(tmp_path.iterdir())) == gone, count
    client.unload(model)


# Longer than any test takes.
IDLE = "max_sequence_idle_microseconds: 600000000"
STRATEGIES = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])


def step(client, model: str, sequence: int, start: bool = False, end: bool = False) -> str:
    """Sends a request of a sequence. Returns the instance that it ran on."""
    parameters = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
    return said(client.infer(model, [text("ASKED", [b"who"])], parameters=parameters))


@differs("2.51 reloads a Python model whose configuration was written again")
@STRATEGIES
def test_a_removed_instance_lives_until_its_sequences_are_over(models, client, tmp_path, strategy):
    model, batching = name(), f"sequence_batching {{ {strategy} {IDLE} }}\n"
    models.put(model, groups(3) + batching)
    (models.server.repository / model / "1" / "model.py").write_text(LEAVES % (0, tmp_path))

    def gone() -> set[str]:
        return {file.name for file in tmp_path.iterdir()}

    client.load(model)
    first, second = (step(client, model, sequence, start=True) for sequence in (1, 2))
    assert first != second
    # The new instance is of another kind than the three.
    other = "instance_group [{ count: 1 kind: KIND_CPU rate_limiter { priority: 2 } }]\n"
    models.configure(model, other + batching)
    client.load(model)
    (unused,) = gone()
    assert unused not in (first, second)
    assert [step(client, model, sequence) for sequence in (1, 2)] == [first, second]
    third = step(client, model, 3, start=True)
    assert third not in (first, second, unused)
    assert step(client, model, 1, end=True) == first
    wait_until(lambda: gone() == {unused, first})
    assert step(client, model, 2, end=True) == second
    wait_until(lambda: gone() == {unused, first, second})
    assert step(client, model, 3, end=True) == third
    client.unload(model)


@differs("2.51 reloads a Python model whose configuration was written again")
@STRATEGIES
def test_a_sequence_that_waits_runs_on_an_added_instance(models, client, strategy):
    model, batching = name(), f"sequence_batching {{ {strategy} {IDLE} }}\n"
    models.put(model, groups(1) + batching)
    client.load(model)
    first = step(client, model, 1, start=True)
    answers: list[str] = []

    def start() -> None:
        with open_client("http", models.server) as one:
            answers.append(step(one, model, 2, start=True))

    waits = threading.Thread(target=start, daemon=True)
    waits.start()
    wait_until(lambda: pending(models.server, model) == 1)
    models.configure(model, groups(2) + batching)
    client.load(model)
    assert ended([waits])
    (second,) = answers
    assert second != first
    assert [step(client, model, sequence, end=True) for sequence in (1, 2)] == [first, second]
    client.unload(model)


def test_sequences_hold_a_limited_number_of_removed_instances(models, client):
    if models.server.oracle:
        pytest.skip("2.51 has no such limit")
    model, sequences = name(), range(1, 19)
    models.put(model)

    def configure(count: int) -> None:
        config = CONFIG.replace("python", "identity") % model + groups(count) + f"sequence_batching {{ {IDLE} }}\n"
        (models.server.repository / model / "config.pbtxt").write_text(config)
        client.load(model)

    configure(18)
    for sequence in sequences:
        step(client, model, sequence, start=True)
    configure(1)
    words = f"17 instances of model '{model}' that were taken away still run or have sequences, at most 16 may while others come"
    with refuses("UNAVAILABLE", words):
        configure(2)
    # The model serves on, and each sequence that ends lets its instance go.
    for sequence in sequences:
        assert step(client, model, sequence, end=True) == "who"
    configure(2)
    client.unload(model)


def test_a_load_with_the_completed_configuration_and_one_more_instance_starts_one(models, client):
    model = name()
    models.put(model, "")
    client.load(model)
    (first,) = models.who(client, model)
    config = client.config(model)
    config["instance_group"][0]["count"] = 2
    client.load(model, {"config": json.dumps(config)})
    both = models.who(client, model, least=2)
    assert first in both and len(both) == 2
    client.unload(model)
