"""Do models run one after the other, as one model, and is it said what is wrong with an ensemble?"""

import json
import pathlib
import signal
import threading
import time

import graphs
import numpy as np
import onnx
import pytest
import servers
from clients import (
    TIMEOUT_S,
    Given,
    GrpcClient,
    HttpClient,
    Refused,
    RequestedOutput,
    differs,
    fp32,
    grpc_channel,
    http_call,
    open_client,
    refuses,
    service_stub,
)
from footprint import wait_until
from python_setup import Gates
from regions import registered

MODEL = """\
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        BODY
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)]) for value in values]
"""
SLOW_S = 1.0
GATED = 'pass_gate(int(pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0]), requests[0].is_cancelled)'
PARTS = {
    "plus": MODEL,
    "slow": MODEL.replace("BODY", f"time.sleep({SLOW_S})\n        BODY"),
    "slow_too": MODEL.replace("BODY", f"time.sleep({SLOW_S})\n        BODY"),
    "unlucky": MODEL.replace("BODY", 'return [pb_utils.InferenceResponse([], pb_utils.TritonError("no luck")) for _ in requests]'),
    "silent": MODEL.replace("BODY", "return [pb_utils.InferenceResponse([]) for _ in requests]"),
    "broken": MODEL.replace("    def execute", '    def initialize(self, args):\n        raise ValueError("no way")\n\n    def execute'),
}

# Three outputs, each with values of its own.
PAIR = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        makes = {"OUT": lambda value: value + 1, "OUT2": lambda value: value * 10, "OUT3": lambda value: value * 100}
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, make(value)) for name, make in makes.items()]) for value in values]
"""

# Answers with the first input that it ever got.
KEEPS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    kept = None

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        if self.kept is None:
            self.kept = values[0]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.kept.copy())]) for _ in values]
"""
REPEAT = """\
import threading
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().tolist()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), values)).start()

    def answer(self, sender, values):
        for value in values:
            error = pb_utils.TritonError("no luck") if value < 0 else None
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.float32))], error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Answers three times while it runs, so it waits as long as it may not answer, and its instance with it.
THRICE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for _ in range(3):
                request.get_response_sender().send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Answers each number, and says with the last answer that it is the last.
TWICE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            *rest, last = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            for value in rest:
                sender.send(self.answer(value))
            sender.send(self.answer(last), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, value):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value.reshape(1))])
"""
# Answers how many of its instances run now.
COUNT = """
import os, pathlib, time
import numpy as np
import triton_python_backend_utils as pb_utils

RUNNING = pathlib.Path("FOLDER")

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.count()], np.float32))]) for _ in requests]

    def count(self):
        mine = RUNNING / str(os.getpid())
        mine.touch()
        time.sleep(0.03)
        seen = len(list(RUNNING.iterdir()))
        mine.unlink()
        return seen
"""


def config(name: str, outputs: tuple[str, ...] = ("OUT",), *, datatype="FP32", dims="-1", reshape="", extra="") -> str:
    tensor = f"data_type: TYPE_{datatype} dims: [ {dims} ] {reshape}"
    made = "".join(f'output {{ name: "{output}" {tensor} }}\n' for output in outputs)
    return f'name: "{name}"\n{extra}\ninput {{ name: "IN" {tensor} }}\n{made}'


def put_part(repository: pathlib.Path, name: str, source: str, **more) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(source.replace("BODY", "pass"))
    (repository / name / "config.pbtxt").write_text('backend: "python"\n' + config(name, **more))


def scheduling(*steps: str, more="") -> str:
    """Steps are written `model IN=a OUT=b`, with `model:2` for a version."""
    text = ""
    for step in steps:
        model, *maps = step.split()
        model, _, version = model.partition(":")
        text += f'step {{ model_name: "{model}" model_version: {version or -1}\n'
        for key, value in (one.split("=") for one in maps):
            text += f'{"output" if key.startswith(("OUT", "NO_OUT")) else "input"}_map {{ key: "{key}" value: "{value}" }}\n'
        text += "}\n"
    return f"ensemble_scheduling {{\n{text}{more}}}\n"


def put_ensemble(repository: pathlib.Path, name: str, *steps: str, outputs=("OUT",), settings="", **more) -> None:
    (repository / name / "1").mkdir(parents=True)
    head = 'platform: "ensemble"\n' + config(name, outputs, **more)
    (repository / name / "config.pbtxt").write_text(head + scheduling(*steps, more=settings))


@pytest.fixture(scope="module")
def gates(launcher) -> Gates:
    return Gates(launcher.scratch / "ensemble_gates")


@pytest.fixture(scope="module")
def repository(launcher, gates) -> pathlib.Path:
    found = launcher.scratch / "ensembles"
    for name, source in PARTS.items():
        put_part(found, name, source)
    # A request stays in its step until the gate that its number names is open, or the step hears that the client has gone.
    put_part(found, "gated", gates.code + MODEL.replace("BODY", GATED))
    put_ensemble(found, "gated_then_plus", "gated IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_part(found, "whole", MODEL, datatype="INT32")
    put_part(found, "keeps", KEEPS)
    put_ensemble(found, "kept", "plus IN=IN OUT=x", "keeps IN=x OUT=OUT")
    put_part(found, "repeat", REPEAT, extra=DECOUPLED)
    put_ensemble(found, "many", "repeat IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_ensemble(found, "many_of_many", "repeat IN=IN OUT=x", "repeat IN=x OUT=y", "plus IN=y OUT=OUT")
    put_part(found, "twice", TWICE, extra=DECOUPLED)
    put_ensemble(found, "of_twice", "twice IN=IN OUT=OUT")
    put_ensemble(found, "of_twice_plus", "twice IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_ensemble(found, "many_inside", "many IN=IN OUT=x", "plus IN=x OUT=OUT")
    (launcher.scratch / "running").mkdir()
    put_part(found, "count", COUNT.replace("FOLDER", str(launcher.scratch / "running")), extra="instance_group { count: 4 kind: KIND_CPU }")
    put_ensemble(found, "many_counted", "repeat IN=IN OUT=x", "count IN=x OUT=OUT")
    # 2.51 does not know this setting.
    limit = "" if launcher.oracle else "max_inflight_requests: 2\n"
    put_ensemble(found, "two_in_flight", "repeat IN=IN OUT=x", "count IN=x OUT=OUT", settings=limit)
    one = "" if launcher.oracle else "max_inflight_requests: 1\n"
    put_part(found, "thrice", THRICE, extra=DECOUPLED)
    put_ensemble(found, "many_thrice", "repeat IN=IN OUT=x", "thrice IN=x OUT=OUT")
    put_ensemble(found, "many_thrice_one", "repeat IN=IN OUT=x", "thrice IN=x OUT=OUT", settings=one)
    # What the second step answers is waited for by the third, and by the client.
    put_part(found, "same", MODEL.replace("value + 1", "value"))
    steps = ("repeat IN=IN OUT=x", "thrice IN=x OUT=OUT2", "same IN=OUT2 OUT=OUT")
    put_ensemble(found, "many_six", *steps, outputs=("OUT", "OUT2"), settings=one)
    put_part(found, "thrice_too", THRICE, extra=DECOUPLED)
    steps = ("repeat IN=IN OUT=x", "thrice IN=x OUT=OUT2", "thrice_too IN=OUT2 OUT=OUT")
    put_ensemble(found, "joined_at_the_end", *steps, outputs=("OUT", "OUT2"))
    put_ensemble(found, "many_thrice_inside", "many_thrice_one IN=IN OUT=x", "thrice_too IN=x OUT=OUT", settings=one)
    put_part(found, "plus_rows", MODEL, dims="-1, -1")
    put_part(found, "sum_of_two", MODEL, extra='input { name: "IN2" data_type: TYPE_FP32 dims: [ -1 ] }')
    put_part(found, "batching", MODEL, extra="max_batch_size: 4")
    put_ensemble(found, "two", "plus IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_ensemble(found, "long", *(f"plus IN={'IN' if n == 0 else f'x{n}'} OUT={'OUT' if n == 19 else f'x{n + 1}'}" for n in range(20)))
    put_ensemble(found, "side_by_side", "slow IN=IN OUT=OUT", "slow_too IN=IN OUT=OUT2", outputs=("OUT", "OUT2"))
    put_ensemble(found, "both", "plus IN=IN OUT=OUT", "plus IN=OUT OUT=OUT2", outputs=("OUT", "OUT2"))
    put_ensemble(found, "nested", "two IN=IN OUT=x", "two IN=x OUT=OUT")
    put_ensemble(found, "batched", "batching IN=IN OUT=OUT", extra="max_batch_size: 4")
    put_ensemble(found, "slow_then_plus", "slow IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_ensemble(found, "fails", "plus IN=IN OUT=x", "unlucky IN=x OUT=OUT")
    put_ensemble(found, "fails_inside", "fails IN=IN OUT=OUT")
    put_ensemble(found, "says_nothing", "silent IN=IN OUT=OUT")
    put_ensemble(found, "lacks_input", "silent IN=IN OUT=x", "plus IN=x OUT=OUT")
    put_ensemble(found, "of_nobody", "nobody IN=IN OUT=OUT")
    put_ensemble(found, "of_broken", "broken IN=IN OUT=OUT")
    put_ensemble(found, "of_version", "plus:7 IN=IN OUT=OUT")
    put_ensemble(found, "of_version_0", "plus:0 IN=IN OUT=OUT")
    put_ensemble(found, "no_input", "plus INPUT=IN OUT=OUT")
    put_ensemble(found, "no_output", "plus IN=IN NO_OUT=OUT")
    put_ensemble(found, "other_type", "plus IN=IN OUT=x", "whole IN=x OUT=OUT")
    # Only the ensemble batches; the model has the rows as a dimension of its own.
    put_ensemble(found, "batched_by_one_that_does_not", "plus_rows IN=IN OUT=OUT", extra="max_batch_size: 4")
    put_ensemble(found, "other_shape", "plus_rows IN=IN OUT=OUT")
    put_ensemble(found, "not_mapped", "sum_of_two IN=IN OUT=OUT")
    put_ensemble(found, "joined", "repeat IN=IN OUT=x", "sum_of_two IN=IN IN2=x OUT=OUT")
    put_ensemble(found, "joined_inside", "repeat IN=IN OUT=x", "sum_of_two IN=IN IN2=x OUT=y", "plus IN=y OUT=OUT")
    put_ensemble(found, "larger_batch", "batching IN=IN OUT=OUT", extra="max_batch_size: 8")
    put_ensemble(found, "round_a", "round_b IN=IN OUT=OUT")
    put_ensemble(found, "round_b", "round_a IN=IN OUT=OUT")
    return found


@pytest.fixture(scope="module")
def ensembles(launcher, repository):
    works = [
        "two", "long", "side_by_side", "both", "nested", "batched", "batched_by_one_that_does_not", "slow_then_plus",
        "gated_then_plus", "fails", "fails_inside", "says_nothing",
        "kept", "lacks_input", "many", "many_of_many", "many_inside", "many_counted", "two_in_flight",
        "of_twice", "of_twice_plus", "many_thrice", "many_thrice_one", "many_six", "many_thrice_inside",
    ]  # fmt: skip
    flags = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in works)]
    with launcher.running("ensembles", *flags, repository=repository) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, ensembles):
    with open_client(request.param, ensembles) as found:
        yield found


def row(*values: float, shape=None):
    return fp32("IN", list(values), shape)


def numbers(reply, name: str = "OUT") -> list[float]:
    return np.frombuffer(reply.outputs[name].raw, np.float32).tolist()


@pytest.mark.parametrize(("model", "steps"), [("two", 2), ("long", 20), ("nested", 4), ("slow_then_plus", 2)])
def test_steps_run_one_after_the_other(client, model, steps):
    assert numbers(client.infer(model, [row(1, 2, 3)])) == [1 + steps, 2 + steps, 3 + steps]


@pytest.mark.parametrize("model", ["batched", "batched_by_one_that_does_not"])
def test_a_batch_goes_through_the_steps(client, model):
    assert numbers(client.infer(model, [row(1, 2, 3, 4, shape=[2, 2])])) == [2, 3, 4, 5]


def test_steps_that_do_not_depend_on_each_other_run_side_by_side(client):
    for _ in range(3):
        begun = time.monotonic()
        reply = client.infer("side_by_side", [row(1)])
        took = time.monotonic() - begun
        assert numbers(reply) == numbers(reply, "OUT2") == [2]
        if took < 1.8 * SLOW_S:
            return
    pytest.fail(f"two steps of {SLOW_S} s took {took:.1f} s")


def test_a_tensor_between_steps_may_be_an_output_as_well(client):
    reply = client.infer("both", [row(1)])
    assert (numbers(reply), numbers(reply, "OUT2")) == ([2], [3])


@differs("2.51 finds a deadlock where not all outputs are wanted")
def test_only_the_steps_of_the_outputs_wanted_run(client):
    before = client.statistics("plus")[0]["execution_count"]
    reply = client.infer("both", [row(1)], [RequestedOutput("OUT")])
    assert list(reply.outputs) == ["OUT"] and numbers(reply) == [2]
    assert client.statistics("plus")[0]["execution_count"] == before + 1


def infer_in_region(client, model: str) -> np.ndarray:
    """What the model makes of 65,536 numbers in a region, behind them in the same region, less those numbers."""
    count = 1 << 16
    values = np.arange(count, dtype=np.float32)
    with registered(client, 8 * count, values.tobytes()) as region:
        given = Given("IN", "FP32", [count], region=(region.name, 4 * count, 0))
        client.infer(model, [given], [RequestedOutput("OUT", (region.name, 4 * count, 4 * count))])
        return np.frombuffer(region.read(4 * count, 4 * count), np.float32) - values


def test_the_last_step_writes_into_the_clients_region(client):
    assert (infer_in_region(client, "two") == 2).all()


def put_onnx_steps(repository: pathlib.Path) -> None:
    """An ONNX model that adds one, and the ensemble `three`, which runs it three times."""
    (repository / "plus" / "1").mkdir(parents=True)
    one = onnx.helper.make_node("Constant", [], ["one"], value_float=1.0)
    plus = onnx.helper.make_node("Add", ["IN", "one"], ["OUT"])
    graph = graphs.finish("plus", [one, plus], [graphs.value("IN", "FP32", ["n"])], [graphs.value("OUT", "FP32", ["n"])])
    onnx.save(graph, repository / "plus" / "1" / "model.onnx")
    (repository / "plus" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"\n' + config("plus"))
    put_ensemble(repository, "three", "plus IN=IN OUT=x", "plus IN=x OUT=y", "plus IN=y OUT=OUT")


def test_steps_of_onnx_models_copy_nothing(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies, and has no ONNX here")
    repository = launcher.scratch / "ensembles_onnx"
    put_onnx_steps(repository)
    with launcher.running("ensembles_onnx", servers.onnxruntime_flag(), repository=repository) as server:
        with open_client("grpc", server) as client:
            before = copied(server)
            assert (infer_in_region(client, "three") == 3).all()
            assert copied(server) == before


def copied_by_reason(server) -> dict[str, int]:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("nerite_copied_bytes_total{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def test_steps_of_python_models_pass_on_tensors_where_they_are(launcher, ensembles, client):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    infer_in_region(client, "long")
    before = copied_by_reason(ensembles)
    assert (infer_in_region(client, "long") == 20).all()
    after = copied_by_reason(ensembles)
    # Each model makes an array of its own, and that is copied to the output's place. Nothing is copied from a process or to one.
    assert {reason: after[reason] - before[reason] for reason in ("model_process", "inline_response", "output_placement")} == {
        "model_process": 0,
        "inline_response": 0,
        "output_placement": 0,
    }


def test_a_step_may_keep_an_input_that_another_step_wrote(client):
    """The memory is not reused while the model has an array over it."""
    for turn in range(8):
        reply = client.infer("kept", [row(*[turn] * (1 << 14))])
        assert set(numbers(reply)) == {1}, turn


def test_a_small_tensor_is_copied_to_the_next_step(launcher, ensembles, client):
    """The copies are counted: the test above counts those that are spared."""
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    before = copied_by_reason(ensembles)
    assert numbers(client.infer("two", [row(1, 2, 3)])) == [3, 4, 5]
    assert copied_by_reason(ensembles)["model_process"] > before["model_process"]


def copied(server) -> int:
    """Bytes copied so far, for whatever reason."""
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    found = [int(float(line.split()[-1])) for line in page.splitlines() if line.startswith("nerite_copied_bytes_total{")]
    assert found
    return sum(found)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("fails", "in ensemble 'fails', no luck"),
        ("fails_inside", "in ensemble 'fails_inside', in ensemble 'fails', no luck"),
    ],
)
def test_a_failing_step_fails_the_request_with_its_name(client, model, text):
    with refuses("INTERNAL", text):
        client.infer(model, [row(1)])
    assert numbers(client.infer("two", [row(1)])) == [3]


def test_an_output_that_its_model_left_out(client):
    assert client.infer("says_nothing", [row(1)]).outputs == {}
    text = "in ensemble 'lacks_input', [request id: 7] expected 1 inputs but got 0 inputs for model 'plus'"
    with refuses("INVALID_ARG", text):
        client.infer("lacks_input", [row(1)], id="7")


BATCH = "ensemble larger_batch allows maximum batch size 8, but it contains model batching which only allows maximum batch size to be 4"
JOINED = "in ensemble {}, step of model '{}' receives inputs originated from different decoupled models"
REFUSED = {
    "of_nobody": "ensemble of_nobody contains models that are not available or ambiguous: nobody",
    "of_broken": "ensemble 'of_broken' depends on 'broken' which has no loaded version. Model 'broken' loading failed with error: "
    "version 1 is at UNAVAILABLE state: Internal: ValueError: no way",
    "of_version": "ensemble 'of_version' depends on 'plus' whose required version 7 is not loaded.",
    "of_version_0": "ensemble 'of_version_0' depends on 'plus' whose required version 0 is not loaded.",
    "no_input": "in ensemble no_input, ensemble tensor IN is mapping to non-existing input INPUT in model plus",
    "no_output": "in ensemble no_output, ensemble tensor OUT is mapped from non-existing output NO_OUT in model plus",
    "other_type": "in ensemble other_type, ensemble tensor x: inconsistent data type: TYPE_FP32 is inferred from model plus while "
    "TYPE_INT32 is inferred from model whole",
    "other_shape": "in ensemble other_shape, ensemble tensor IN: inconsistent shape: [-1] is inferred from model other_shape while [-1,-1] is "
    "inferred from model plus_rows",
    "not_mapped": "in ensemble not_mapped, input IN2 in model sum_of_two is not mapped to any ensemble tensors",
    "joined": JOINED.format("joined", "joined"),
    "joined_at_the_end": JOINED.format("joined_at_the_end", "joined_at_the_end"),
    "joined_inside": JOINED.format("joined_inside", "sum_of_two"),
    "larger_batch": BATCH,
    "round_a": "circular dependency between ensembles: round_a -> ... -> round_b -> round_a",
}


# Once each: 2.51 has no reason for a second load.
@pytest.mark.parametrize("model", REFUSED)
def test_an_ensemble_that_does_not_fit_its_models_is_refused(ensembles, model):
    with open_client("http", ensembles) as client:
        with refuses("INVALID_ARG", f"load failed for model '{model}': {REFUSED[model]}"):
            client.load(model)
        # No version was tried.
        (entry,) = [one for one in client.index() if one["name"] == model]
        assert entry["version"] == ""
        # 2.51 shows it by its name alone.
        assert ensembles.oracle or entry["state"] == "UNAVAILABLE" and entry["reason"].startswith(REFUSED[model].rstrip("\n"))


def json_config(name: str, part: str) -> str:
    """What a client sends with a load to have `name` made of `part` alone."""
    step = {"model_name": part, "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    return json.dumps({
        "platform": "ensemble", "input": [{"name": "IN", **tensor}], "output": [{"name": "OUT", **tensor}],
        "ensemble_scheduling": {"step": [step]},
    })  # fmt: skip


@pytest.fixture
def own_ensembles(launcher, tmp_path):
    """A server that a test may load ensembles into: `plus`, `first` over it and `second` over `first`."""
    put_part(tmp_path, "plus", PARTS["plus"])
    put_ensemble(tmp_path, "first", "plus IN=IN OUT=OUT")
    put_ensemble(tmp_path, "second", "first IN=IN OUT=OUT")
    flags = ["--model-control-mode=explicit", "--load-model=second"]
    with launcher.running("own_ensembles", *flags, repository=tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("model", "part", "last"), [("first", "first", "first"), ("first", "second", "second"), ("plus", "second", "first")]
)
def test_a_load_cannot_make_an_ensemble_of_itself(own_ensembles, model, part, last):
    """Such an ensemble ran until the stack was full, which ended the server."""
    text = f"load failed for model '{model}': circular dependency between ensembles: {model} -> ... -> {last} -> {model}"
    with open_client("http", own_ensembles) as client:
        with refuses("INVALID_ARG", text):
            client.load(model, {"config": json_config(model, part)})


@differs("2.51 takes the ensembles out of service")
def test_ensembles_stay_up_when_one_cannot_be_made_of_itself(own_ensembles):
    with open_client("http", own_ensembles) as client:
        with refuses("INVALID_ARG", "load failed for model 'plus': circular dependency between ensembles: "):
            client.load("plus", {"config": json_config("plus", "second")})
        assert numbers(client.infer("second", [row(1)])) == [2]


def test_outputs_of_a_step_are_found_whatever_their_order(own_ensembles):
    """The model lists its outputs in one order, and after a load in another. The ensemble does not use the first of them."""
    pair, tensor = own_ensembles.repository, {"data_type": "TYPE_FP32", "dims": [-1]}
    names = ("OUT3", "OUT2", "OUT")
    put_part(pair, "pair", PAIR, outputs=names)
    put_ensemble(pair, "paired", "pair IN=IN OUT=x OUT2=OUT2", "plus IN=x OUT=OUT", outputs=("OUT2", "OUT"))
    outputs = [{"name": name, **tensor} for name in reversed(names)]
    reordered = {"backend": "python", "input": [{"name": "IN", **tensor}], "output": outputs}
    with open_client("http", own_ensembles) as client:
        client.load("paired")
        for config_of_pair in (None, json.dumps(reordered)):
            if config_of_pair is not None:
                client.load("pair", {"config": config_of_pair})
            reply = client.infer("paired", [row(1)])
            assert (numbers(reply), numbers(reply, "OUT2")) == ([3], [10])
            reply = client.infer("paired", [row(1)], [RequestedOutput("OUT2")])
            assert numbers(reply, "OUT2") == [10]


@differs("2.51 has no bound", run=False)
def test_ensembles_nest_up_to_a_bound(own_ensembles):
    """`second` stands on `first`, so 30 more may stand on it."""
    deep = own_ensembles.repository
    with open_client("http", own_ensembles) as client:
        below = "second"
        for at in range(30):
            put_ensemble(deep, f"deep_{at}", f"{below} IN=IN OUT=OUT")
            below = f"deep_{at}"
            client.load(below)
        assert numbers(client.infer(below, [row(1)])) == [2]
        put_ensemble(deep, "too_deep", f"{below} IN=IN OUT=OUT")
        with refuses("INVALID_ARG", "load failed for model 'too_deep': ensemble 'too_deep' would stand in a row of 33 ensembles"):
            client.load("too_deep")
        # Nor by a longer way at the bottom.
        put_ensemble(deep, "beside", "plus IN=IN OUT=OUT")
        client.load("beside")
        with refuses("INVALID_ARG", "load failed for model 'first': ensemble 'first' would stand in a row of 33 ensembles"):
            client.load("first", {"config": json_config("first", "beside")})
        assert numbers(client.infer(below, [row(1)])) == [2]


@differs("2.51 goes on with the steps")
def test_a_cancelled_request_starts_no_more_steps(ensembles, gates):
    with open_client("grpc", ensembles) as client:
        before = client.statistics("plus")[0]["execution_count"]
        import tritonclient.grpc as triton_grpc

        with triton_grpc.InferenceServerClient(ensembles.grpc) as cancelling:
            given = triton_grpc.InferInput("IN", [1], "FP32")
            given.set_data_from_numpy(np.ones(1, np.float32))
            call = cancelling.async_infer("gated_then_plus", [given], lambda result, error: None)
            gates.wait_for(1)
            call.cancel()
            wait_until(lambda: client.statistics("gated")[0]["execution_count"] == 1)
            time.sleep(SLOW_S / 2)
        assert client.statistics("plus")[0]["execution_count"] == before


def test_a_stop_answers_the_ensembles_under_way(launcher, repository, gates):
    flags = ["--model-control-mode=explicit", "--load-model=gated_then_plus"]
    with launcher.running("ensemble_stop", *flags, repository=repository) as server:
        with open_client("http", server) as client:
            answers = []
            thread = threading.Thread(target=lambda: answers.append(numbers(client.infer("gated_then_plus", [row(2)]))))
            thread.start()
            gates.wait_for(2)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "Signal (15) received." in server.log_text())
            gates.open(2)
            thread.join(60)
        assert answers == [[4]]


def test_ensembles_that_need_each_other_at_the_start_are_named(launcher, tmp_path):
    put_part(tmp_path, "plus", PARTS["plus"])
    for name, part in (("ring_a", "ring_b"), ("ring_b", "ring_c"), ("ring_c", "ring_a")):
        put_ensemble(tmp_path, name, f"{part} IN=IN OUT=OUT")
    with launcher.running("ensemble_ring", "--exit-on-error=false", repository=tmp_path) as server, open_client("http", server) as client:
        assert numbers(client.infer("plus", [row(1)])) == [2]
        for name, last in (("ring_a", "ring_c"), ("ring_b", "ring_a"), ("ring_c", "ring_b")):
            assert f"circular dependency between ensembles: {name} -> ... -> {last} -> {name}" in server.log_text()


def test_all_models_of_a_repository_start_with_their_ensembles(launcher):
    repository = launcher.scratch / "ensembles_at_start"
    # Their names sort the ensembles before what they are made of.
    put_part(repository, "part", MODEL)
    put_ensemble(repository, "an_outer", "another IN=IN OUT=OUT")
    put_ensemble(repository, "another", "part IN=IN OUT=OUT")
    with launcher.running("ensembles_at_start", repository=repository) as server:
        with open_client("http", server) as client:
            assert numbers(client.infer("an_outer", [row(1)])) == [2]
            assert {one["name"]: one["state"] for one in client.index()} == dict.fromkeys(("part", "another", "an_outer"), "READY")


# ------------------------------------------------------------------------------------------------- decoupled steps


def stream_of(server, model: str, values, empty_final=True) -> list:
    """What an ensemble answers to one request: numbers, texts of errors, and `|` where nothing follows."""
    with grpc_channel(server.grpc) as channel:
        parameters = {"triton_enable_empty_final_response": empty_final}
        request = GrpcClient(channel).request(model, [row(*values)], id="r", parameters=parameters)
        found = []
        for answer in service_stub(channel).ModelStreamInfer(iter([request]), timeout=TIMEOUT_S):
            response = answer.infer_response
            found += [answer.error_message] if answer.error_message else []
            found += np.frombuffer(b"".join(response.raw_output_contents), np.float32).tolist()
            found += ["|"] * response.parameters["triton_final_response"].bool_param
        return found


DECOUPLED_ANSWERS = [
    ("many", [1, 2, 3], [2.0, 3.0, 4.0, "|"]),
    ("many", [], ["|"]),
    ("many", [5], [6.0, "|"]),
    ("many", range(500), [value + 1.0 for value in range(500)] + ["|"]),
    ("many_of_many", [1, 2, 3], [2.0, 3.0, 4.0, "|"]),
    ("many_inside", [1, 2, 3], [3.0, 4.0, 5.0, "|"]),
]


@pytest.mark.parametrize(("model", "values", "expected"), DECOUPLED_ANSWERS)
def test_each_answer_of_a_decoupled_step_goes_through_the_others(ensembles, model, values, expected):
    found = stream_of(ensembles, model, values)
    # Answers of several branches come in any order.
    assert (sorted(found[:-1]), found[-1]) == (sorted(expected[:-1]), expected[-1])


@pytest.mark.parametrize(
    ("model", "times"), [("many_thrice", 3), ("many_thrice_one", 3), ("many_six", 2 * 3), ("many_thrice_inside", 9)]
)
def test_a_decoupled_step_does_not_wait_for_the_one_before_it(ensembles, model, times):
    # More answers of the first step than may wait.
    values = range(500 if times == 3 else 200)
    found = stream_of(ensembles, model, values)
    assert found[-1] == "|" and sorted(found[:-1]) == sorted(list(map(float, values)) * times)


def test_a_step_is_in_flight_as_often_as_the_ensemble_says(ensembles):
    if ensembles.oracle:
        pytest.skip("2.51 does not know max_inflight_requests")
    without = stream_of(ensembles, "many_counted", range(16))
    assert without[-1] == "|" and max(without[:-1]) > 2, without
    found = stream_of(ensembles, "two_in_flight", range(16))
    assert (len(found), found[-1]) == (17, "|") and max(found[:-1]) <= 2, found


@pytest.mark.parametrize("empty_final", [True, False])
@pytest.mark.parametrize(("model", "expected"), [("of_twice", [1.0, 2.0, "|"]), ("of_twice_plus", [2.0, 3.0, "|"])])
def test_the_last_response_says_that_it_is_the_last(ensembles, model, expected, empty_final):
    """Also to a client that did not ask for an empty last response."""
    found = stream_of(ensembles, model, [1, 2], empty_final)
    assert (sorted(found[:-1]), found[-1]) == (expected[:-1], "|")


@pytest.mark.parametrize(("model", "text"), [("fails", "no luck"), ("lacks_input", "expected 1 inputs")])
def test_a_failure_of_a_step_counts_for_the_ensemble_as_one_of_another_model(ensembles, model, text):
    def counts() -> dict[str, int]:
        page = http_call(ensembles.metrics, "GET", "/metrics").body.decode()
        lines = [line for line in page.splitlines() if line.startswith(f'nv_inference_request_failure{{model="{model}"')]
        return {line.split('reason="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines}

    before = counts()
    with open_client("grpc", ensembles) as client, pytest.raises(Refused, match=text):
        client.infer(model, [row(1)])
    assert {reason: count - before[reason] for reason, count in counts().items()} == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 1}


def test_an_output_that_no_step_made_is_in_the_log(launcher, ensembles, repository):
    flags = ["--model-control-mode=explicit", "--load-model=says_nothing", "--log-verbose=1"]
    with launcher.running("ensemble_log", *flags, repository=repository) as server, open_client("grpc", server) as client:
        assert client.infer("says_nothing", [row(1)]).outputs == {}
        assert "Composing models did not output tensor OUT" in server.log_text()


def test_an_error_of_a_decoupled_step_ends_the_ensemble(ensembles):
    found = stream_of(ensembles, "many", [1, -1, 2])
    assert found[-2:] == ["in ensemble 'many', no luck", "|"], found


def counts(server, *models: str) -> list[list[int]]:
    client = HttpClient(server.http)
    found = []
    for model in models:
        (one,) = client.statistics(model)
        found.append([one["inference_count"], one["execution_count"], one["inference_stats"]["success"]["count"]])
    return found


@differs("2.51 counts the responses of no ensemble one by one")
def test_each_response_of_a_decoupled_ensemble_is_counted(ensembles):
    client = HttpClient(ensembles.http)

    def each() -> dict[str, list[int]]:
        found = client.statistics("of_twice")[0]["response_stats"]
        return {index: [one["success"]["count"], one["empty_response"]["count"]] for index, one in found.items()}

    before = each()
    assert len(stream_of(ensembles, "of_twice", [1, 2, 3])) == 4
    expected = {"0": [1, 0], "1": [1, 0], "2": [1, 0]}
    after = each()
    assert {index: [now - then for now, then in zip(after[index], before.get(index, [0, 0]))] for index in after} == expected


def test_what_decoupled_steps_count(ensembles):
    names = ("many", "repeat", "plus")
    before = counts(ensembles, *names)
    assert len(stream_of(ensembles, "many", [1, 2, 3])) == 4
    expected = [[1, 1, 1], [1, 1, 1], [3, 3, 3]]
    deadline = time.monotonic() + TIMEOUT_S

    def grown():
        return [[now - then for now, then in zip(*pair)] for pair in zip(counts(ensembles, *names), before)]

    while (found := grown()) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == expected
