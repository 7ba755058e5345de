"""May an ensemble leave optional inputs of its models out, and have several versions of one model?"""

import pathlib

import pytest
from clients import RequestedOutput, differs, fp32, open_client, refuses
from test_ensembles import numbers, put_ensemble, put_part, scheduling

# Without ADD it adds a hundred.
MAYBE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value, added = (pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "ADD"))
            value = value.as_numpy() + (100 if added is None else added.as_numpy())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        return responses
"""
VERSION = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", WHAT)]) for value in values]
"""
OPTIONAL = 'input { name: "ADD" data_type: TYPE_FP32 dims: [ -1 ] optional: true }'
REQUIRED = OPTIONAL.replace(" optional: true", "")
# Makes only those outputs whose inputs it gets.
PASSES = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor(one.name().replace("IN", "OUT"), one.as_numpy()) for one in request.inputs()]) for request in requests]
"""
PAIR = "max_batch_size: 4\n" + "".join(
    f'input {{ name: "INPUT{at}" data_type: TYPE_FP32 dims: [ 1 ] optional: true }} output {{ name: "OUTPUT{at}" data_type: TYPE_FP32 dims: [ 1 ] }}\n'
    for at in (0, 1)
)


def put_pair(repository: pathlib.Path, name: str, config: str) -> None:
    """A model with two optional inputs, and an output for each."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config + PAIR)


def put_pipeline(repository: pathlib.Path, name: str, *steps: str) -> None:
    put_pair(repository, name, 'platform: "ensemble"\n' + scheduling(*steps))


def put_pipelines(found: pathlib.Path) -> None:
    put_pair(found, "identity_2", 'backend: "identity"\n')
    put_pair(found, "passes", 'backend: "python"\n')
    (found / "passes" / "1" / "model.py").write_text(PASSES)
    put_pipeline(found, "pipeline", "identity_2 INPUT0=INPUT0 INPUT1=INPUT1 OUTPUT0=x", "identity_2 INPUT1=x OUTPUT0=OUTPUT0 OUTPUT1=OUTPUT1")
    both = "passes INPUT0=INPUT0 INPUT1=INPUT1 OUTPUT0=x OUTPUT1=y"
    put_pipeline(found, "connected", both, "passes INPUT0=x INPUT1=y OUTPUT0=OUTPUT0 OUTPUT1=OUTPUT1")
    put_pipeline(found, "crossed", both, "identity_2 INPUT0=y INPUT1=x OUTPUT0=OUTPUT0 OUTPUT1=OUTPUT1")


@pytest.fixture(scope="module")
def ensembles(launcher):
    found: pathlib.Path = launcher.scratch / "ensemble_inputs"
    if not launcher.oracle:
        put_pipelines(found)
    put_part(found, "maybe", MAYBE, extra=OPTIONAL)
    put_part(found, "sum", MAYBE, extra=REQUIRED)
    put_part(found, "versioned", VERSION.replace("WHAT", "value + 1"), extra="version_policy { all { } }")
    (found / "versioned" / "2").mkdir()
    (found / "versioned" / "2" / "model.py").write_text(VERSION.replace("WHAT", "value * 10"))
    put_ensemble(found, "not_fed", "maybe IN=IN OUT=OUT")
    put_ensemble(found, "not_fed_later", "versioned IN=IN OUT=x", "maybe IN=x OUT=OUT")
    put_ensemble(found, "may_be_fed", "maybe IN=IN ADD=ADD OUT=OUT", extra=OPTIONAL)
    put_ensemble(found, "may_be_fed_twice", "maybe IN=IN ADD=ADD OUT=x", "maybe IN=x ADD=ADD OUT=OUT", extra=OPTIONAL)
    put_ensemble(found, "may_be_fed_inside", "may_be_fed IN=IN ADD=ADD OUT=OUT", extra=OPTIONAL)
    put_ensemble(found, "must_be_fed", "maybe IN=IN ADD=ADD OUT=OUT", extra=REQUIRED)
    put_ensemble(found, "needs_it", "sum IN=IN ADD=ADD OUT=OUT", extra=OPTIONAL)
    put_ensemble(found, "one_and_two", "versioned:1 IN=IN OUT=x", "versioned:2 IN=x OUT=OUT")
    put_ensemble(found, "two_and_one", "versioned:2 IN=IN OUT=x", "versioned:1 IN=x OUT=OUT")
    put_ensemble(found, "latest", "versioned IN=IN OUT=OUT")
    put_ensemble(found, "side_by_side", "versioned:1 IN=IN OUT=OUT", "versioned:2 IN=IN OUT=OUT2", outputs=("OUT", "OUT2"))
    with launcher.running("ensemble_inputs", repository=found) as server:
        yield server


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, ensembles):
    with open_client(request.param, ensembles) as found:
        yield found


@pytest.mark.parametrize(
    ("model", "left_out", "given"),
    [
        ("not_fed", 101, None),
        ("not_fed_later", 110, None),
        ("may_be_fed", 101, 6),
        ("may_be_fed_twice", 201, 11),
        ("may_be_fed_inside", 101, 6),
        ("must_be_fed", None, 6),
    ],
)
def test_an_optional_input_may_be_left_out(client, model, left_out, given):
    if left_out is not None:
        assert numbers(client.infer(model, [fp32("IN", [1])])) == [left_out]
    else:
        with refuses("INVALID_ARG", f"[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model '{model}'."):
            client.infer(model, [fp32("IN", [1])])
    if given is not None:
        assert numbers(client.infer(model, [fp32("IN", [1]), fp32("ADD", [5])])) == [given]


def test_an_optional_input_whose_model_needs_it(client):
    assert numbers(client.infer("needs_it", [fp32("IN", [1]), fp32("ADD", [5])])) == [6]
    with refuses("INVALID_ARG", "in ensemble 'needs_it', "):
        client.infer("needs_it", [fp32("IN", [1])])
    assert numbers(client.infer("needs_it", [fp32("IN", [2]), fp32("ADD", [5])])) == [7]


@differs("2.51 here has no backend identity", run=False)
@pytest.mark.parametrize(
    ("model", "given", "expect"),
    [
        # The first input of the second step is not connected, so the built-in identity answers zeros for it.
        ("pipeline", ("INPUT0", "INPUT1"), {"OUTPUT0": [0], "OUTPUT1": [3]}),
        # The first step does not make `y`, which is connected to an optional input.
        ("crossed", ("INPUT0",), {"OUTPUT0": [0], "OUTPUT1": [3]}),
        ("crossed", ("INPUT0", "INPUT1"), {"OUTPUT0": [3], "OUTPUT1": [3]}),
        # Nothing is made of an input that was left out. The response is without the output.
        ("connected", ("INPUT0",), {"OUTPUT0": [3]}),
        ("connected", ("INPUT1",), {"OUTPUT1": [3]}),
    ],
)
def test_what_a_step_did_not_make_may_be_an_optional_input(client, model, given, expect):
    reply = client.infer(model, [fp32(name, [[3]]) for name in given], [RequestedOutput("OUTPUT0"), RequestedOutput("OUTPUT1")])
    assert {name: (numbers(reply, name), reply.outputs[name].shape) for name in reply.outputs} == {name: (values, [1, 1]) for name, values in expect.items()}


@pytest.mark.parametrize(
    ("model", "expect"),
    [("one_and_two", {"OUT": [40]}), ("two_and_one", {"OUT": [31]}), ("latest", {"OUT": [30]}), ("side_by_side", {"OUT": [4], "OUT2": [30]})],
)
def test_steps_have_the_versions_that_they_name(client, model, expect):
    def ran() -> dict[str, int]:
        return {one["version"]: one["inference_count"] for one in client.statistics("versioned")}

    before = ran()
    reply = client.infer(model, [fp32("IN", [3])])
    assert {name: numbers(reply, name) for name in expect} == expect
    counts = {version: after - before[version] for version, after in ran().items()}
    assert counts == ({"1": 0, "2": 1} if model == "latest" else {"1": 1, "2": 1})
