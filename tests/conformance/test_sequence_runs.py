"""Does a run of a sequence go on when its client has gone, and is the sequence over if such a run is ended?"""

import pathlib
import time

import graphs
import grpc
import numpy as np
import onnx
import pytest
import servers
from batching_setup import metric, pending
from clients import grpc_channel, pb, service_stub
from footprint import wait_until
from python_setup import PATIENT, Gates

# Rounds that take longer than any test waits, and as many as the embedded engine counts.
ENDLESS = (1 << 31) - 1
# As long as a run that goes on takes at least, and as long as the others may.
LONG_S, PATIENCE_S = 1.0, 60
IDLE_US, BRIEF_US = 600_000_000, 300_000

# Adds IN to the state in as many rounds as the request says.
CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}, {{ name: "ROUNDS" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output {{ name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {strategy}
  state {{ input_name: "SO_FAR" output_name: "NEW_SUM" data_type: TYPE_FP32 dims: [ 1 ] }}
}}
"""
TIMED = 'parameters { key: "nerite.timeout_ends_runs" value { string_value: "true" } }\n'
# Keeps the sum itself, and in the state that the server keeps. It ends no run early: where ROUNDS is not 0, it goes on for so many milliseconds after its
# client has gone. GONE: whether it could see that the client has gone.
PYTHON = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.own, self.gone = {}, 0

    def execute(self, requests):
        responses = []
        for request in requests:
            value, rounds, so_far = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "ROUNDS", "SO_FAR"))
            if rounds[0]:
                pass_gate(request.correlation_id(), request.is_cancelled)
                time.sleep(rounds[0] / 1000)
            self.gone += request.is_cancelled()
            key = request.correlation_id()
            self.own[key] = value + (0 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.own[key])
            state = so_far + value
            made = {"SUM": state, "OWN": self.own[key], "GONE": numpy.full_like(value, self.gone), "NEW_SUM": state}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in made.items()]))
        return responses
"""
# Waits at its gate, and passes its input on.
SLOW = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pass_gate("slow")
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for value in values]
"""
ENSEMBLE = """\
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "ROUNDS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "OWN" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "slow" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "passed" }
  }, {
    model_name: "MEMBER" model_version: -1
    input_map { key: "IN" value: "passed" } input_map { key: "ROUNDS" value: "ROUNDS" }
    output_map { key: "SUM" value: "SUM" } output_map { key: "OWN" value: "OWN" }
  } ]
}
"""

# An ensemble of one model, so many levels deep. If each level waited for its part of BRIEF_US, the run would take twenty times as long to end.
LEVELS = 20
LEVEL = """\
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "ROUNDS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "MEMBER" model_version: -1
    input_map { key: "IN" value: "IN" } input_map { key: "ROUNDS" value: "ROUNDS" } output_map { key: "SUM" value: "SUM" }
  } ]
}
"""


def graph(batch: bool) -> onnx.ModelProto:
    shape = ["n", 1] if batch else [1]
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["on"]), onnx.helper.make_node("Add", ["sum", "IN"], ["next"])],
        "round",
        [graphs.value("i", "INT64", []), graphs.value("go", "BOOL", []), graphs.value("sum", "FP32", shape)],
        [graphs.value("on", "BOOL", []), graphs.value("next", "FP32", shape)],
    )
    counting = [onnx.helper.make_node("ReduceMax", ["ROUNDS"], ["rounds"], keepdims=0)] if batch else []
    nodes = [
        *counting,
        onnx.helper.make_node("Loop", ["rounds" if batch else "ROUNDS", "", "SO_FAR"], ["NEW_SUM"], body=body, name="loop"),
        onnx.helper.make_node("Identity", ["NEW_SUM"], ["SUM"]),
    ]
    rounds = graphs.value("ROUNDS", "INT64", shape if batch else [])
    inputs = [graphs.value("IN", "FP32", shape), rounds, graphs.value("SO_FAR", "FP32", shape)]
    return graphs.finish("rounds", nodes, inputs, [graphs.value(name, "FP32", shape) for name in ("SUM", "NEW_SUM")])


def put_rounds(repository: pathlib.Path, name: str, idle_us: int, *, batch: int = 0, strategy: str = "direct { }", more: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    onnx.save(graph(batch > 0), repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(CONFIG.format(batch=batch, idle_us=idle_us, strategy=strategy) + more)


ENGINES = {
    "server": [servers.onnxruntime_flag()],
    "embedded": ["--onnxruntime-library=none"],
    "isolated": [servers.onnxruntime_flag(), "--backend-config=onnxruntime,isolated=true"],
}


@pytest.fixture(scope="module", params=ENGINES)
def server(request, launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 here has no ONNX backend")
    repository = tmp_path_factory.mktemp("rounds")
    put_rounds(repository, "patient", IDLE_US)
    put_rounds(repository, "brief", BRIEF_US)
    put_rounds(repository, "brief_oldest", BRIEF_US, batch=2, strategy="oldest { max_candidate_sequences: 2 }")
    put_rounds(repository, "brief_places", BRIEF_US, batch=2)
    put_rounds(repository, "timed", IDLE_US, more=TIMED)
    for level in range(LEVELS):
        (repository / f"level{level}" / "1").mkdir(parents=True)
        (repository / f"level{level}" / "config.pbtxt").write_text(LEVEL.replace("MEMBER", f"level{level - 1}" if level else "brief"))
    with launcher.running(f"sequence_runs_{request.param}", *ENGINES[request.param], repository=repository) as found:
        yield found


@pytest.fixture(scope="module")
def python_server(launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("the Python backend of 2.51 keeps no state")
    repository = tmp_path_factory.mktemp("python_rounds")
    gates = Gates(tmp_path_factory.mktemp("gates") / "python_rounds")
    outputs = "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 1 ] }}\n' for name in ("OWN", "GONE"))
    for name, idle_us, strategy in (("patient", IDLE_US, "direct { }"), ("brief", BRIEF_US, "direct { }"), ("patient_oldest", IDLE_US, "oldest { }")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(gates.code + PYTHON)
        config = CONFIG.format(batch=0, idle_us=idle_us, strategy=strategy).replace("onnxruntime", "python")
        (repository / name / "config.pbtxt").write_text(config + outputs)
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "1" / "model.py").write_text(gates.code + SLOW)
    tensors = ("input", "IN"), ("output", "OUT")
    slow = "".join(f'{way} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 1 ] }}\n' for way, name in tensors)
    (repository / "slow" / "config.pbtxt").write_text('backend: "python"\n' + slow)
    (repository / "around" / "1").mkdir(parents=True)
    (repository / "around" / "config.pbtxt").write_text(ENSEMBLE.replace("MEMBER", "patient"))
    (repository / "around_around" / "1").mkdir(parents=True)
    (repository / "around_around" / "config.pbtxt").write_text(ENSEMBLE.replace("MEMBER", "around"))
    with launcher.running("sequence_runs_python", PATIENT, repository=repository) as found:
        found.gates = gates
        yield found


def request(model: str, id: int, rounds: int, *flags: str, timeout_us: int = 0) -> pb.ModelInferRequest:
    shape = [1, 1] if model in ("brief_oldest", "brief_places") else [1]
    tensor = pb.ModelInferRequest.InferInputTensor
    message = pb.ModelInferRequest(
        model_name=model,
        inputs=[tensor(name="IN", datatype="FP32", shape=shape), tensor(name="ROUNDS", datatype="INT64", shape=shape)],
        raw_input_contents=[np.array([1], np.float32).tobytes(), np.array([rounds], np.int64).tobytes()],
    )
    message.parameters["sequence_id"].int64_param = id
    for flag in flags:
        message.parameters[f"sequence_{flag}"].bool_param = True
    if timeout_us:
        message.parameters["timeout"].int64_param = timeout_us
    return message


def outputs(answer: pb.ModelInferResponse) -> dict[str, float]:
    return {output.name: np.frombuffer(raw, np.float32)[0] for output, raw in zip(answer.outputs, answer.raw_output_contents)}


def send(stub, *args, **more) -> dict[str, float]:
    return outputs(stub.ModelInfer(request(*args, **more), timeout=PATIENCE_S))


def check_refused(call, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call.result(PATIENCE_S)
    assert (caught.value.code(), text in caught.value.details()) == (code, True), caught.value.details()


def check_needs_start(stub, model: str, id: int) -> None:
    check_refused(stub.ModelInfer.future(request(model, id, 1)), grpc.StatusCode.INVALID_ARGUMENT, "must specify the START flag")


def leave(call, channel, how: str) -> None:
    if how == "cancels":
        call.cancel()
    else:
        channel.close()


def rounds_of(stub, seconds: float) -> int:
    """As many rounds of the model `patient` as take so long at least."""
    rounds = 1000
    while True:
        before = time.monotonic()
        send(stub, "patient", 1, rounds, "start", "end")
        took = time.monotonic() - before
        if took > 0.2:
            return int(rounds * 1.5 * seconds / took)
        rounds *= 4


@pytest.mark.parametrize("how", ["cancels", "disconnects"])
def test_a_run_of_a_sequence_goes_on_without_its_client(server, how):
    with grpc_channel(server.grpc) as channel:
        stub = service_stub(channel)
        least = rounds_of(stub, LONG_S)
        # On a busy machine the rounds may have seemed longer than they are, or the call comes after its client has gone.
        for rounds in (least, 2 * least, 4 * least, 8 * least):
            with grpc_channel(server.grpc) as leaving:
                assert send(stub, "patient", 7, 3, "start") == {"SUM": 3}
                before = time.monotonic()
                call = service_stub(leaving).ModelInfer.future(request("patient", 7, rounds))
                time.sleep(LONG_S / 4)
                was_running = not call.done()
                leave(call, leaving, how)
                found = send(stub, "patient", 7, 2, "end")
            if is_long := was_running and time.monotonic() - before >= LONG_S / 2:
                break
        assert is_long
        assert found == {"SUM": np.float32(3 + rounds + 2)}


@pytest.mark.parametrize("how", ["cancels", "disconnects"])
@pytest.mark.parametrize("model", ["brief", "brief_oldest", "brief_places"])
def test_a_run_that_takes_too_long_without_its_client_ends_with_its_sequence(server, model, how):
    with grpc_channel(server.grpc) as channel, grpc_channel(server.grpc) as leaving:
        stub = service_stub(channel)
        call = service_stub(leaving).ModelInfer.future(request(model, 8, ENDLESS, "start"))
        time.sleep(0.5)
        waiting = stub.ModelInfer.future(request(model, 8, 1))
        wait_until(lambda: pending(server, model) == 1)
        assert not call.done()
        leave(call, leaving, how)
        text = f"sequence 8 of model '{model}' is over, because one of its requests was cancelled or did not run to its end; begin it anew"
        check_refused(waiting, grpc.StatusCode.CANCELLED, text)
        check_needs_start(stub, model, 8)
        assert send(stub, model, 8, 4, "start", "end") == {"SUM": 4}


def test_a_position_without_a_request_does_not_keep_a_run_going(server):
    """The sequence at the first position has no request now, so a copy of the other one's is there."""
    model = "brief_places"
    with grpc_channel(server.grpc) as channel:
        stub = service_stub(channel)
        first = stub.ModelInfer.future(request(model, 21, 1, "start"))
        assert outputs(first.result(PATIENCE_S)) == {"SUM": 1}
        call = stub.ModelInfer.future(request(model, 22, ENDLESS, "start"))
        time.sleep(0.1)
        call.cancel()
        wait_until(lambda: pending(server, model) == 0)
        assert send(stub, model, 23, 2, "start", "end") == {"SUM": 2}
        check_needs_start(stub, model, 22)


def test_a_timeout_that_ends_a_run_ends_its_sequence(server):
    with grpc_channel(server.grpc) as channel:
        stub = service_stub(channel)
        assert send(stub, "timed", 9, 3, "start", timeout_us=60_000_000) == {"SUM": 3}
        call = stub.ModelInfer.future(request("timed", 9, ENDLESS, timeout_us=500_000))
        check_refused(call, grpc.StatusCode.UNAVAILABLE, "Request timeout expired")
        check_needs_start(stub, "timed", 9)
        assert send(stub, "timed", 9, 5, "start", "end") == {"SUM": 5}


@pytest.mark.parametrize("how", ["cancels", "disconnects"])
@pytest.mark.parametrize("model", ["patient", "brief"])
def test_a_python_model_sees_each_request_of_a_sequence(python_server, model, how):
    """It cannot be ended early, so its sequence goes on however long a run takes. It is told that the client has gone."""
    with grpc_channel(python_server.grpc) as channel, grpc_channel(python_server.grpc) as leaving:
        stub = service_stub(channel)
        gone = send(stub, model, 3, 0, "start", "end")["GONE"]
        python_server.gates.close(7)
        call = service_stub(leaving).ModelInfer.future(request(model, 7, 1000, "start"))
        python_server.gates.wait_for(7)
        waiting = stub.ModelInfer.future(request(model, 7, 0, "end"))
        wait_until(lambda: pending(python_server, model) == 1)
        assert not call.done()
        leave(call, leaving, how)
        assert outputs(waiting.result(PATIENCE_S)) == {"SUM": 2, "OWN": 2, "GONE": gone + 1}


@pytest.mark.parametrize("cancelled", [0, 1])
@pytest.mark.parametrize("model", ["patient", "patient_oldest"])
def test_the_waiting_requests_of_a_sequence_are_cancelled_together(python_server, model, cancelled):
    """A request of the sequence runs meanwhile, and gets its answer."""
    key = f'nv_inference_request_failure{{model="{model}",reason="CANCELED",version="1"}}'
    before = metric(python_server, key)
    with grpc_channel(python_server.grpc) as channel:
        stub = service_stub(channel)
        python_server.gates.close(40)
        running = stub.ModelInfer.future(request(model, 40, 1, "start"))
        python_server.gates.wait_for(40)
        waiting = []
        for count in (1, 2):
            waiting.append(stub.ModelInfer.future(request(model, 40, 0)))
            wait_until(lambda: pending(python_server, model) == count)
        waiting[cancelled].cancel()
        text = f"sequence 40 of model '{model}' is over, because one of its requests was cancelled or did not run to its end; begin it anew"
        check_refused(waiting[1 - cancelled], grpc.StatusCode.CANCELLED, text)
        assert waiting[cancelled].code() == grpc.StatusCode.CANCELLED
        assert not running.done()
        check_needs_start(stub, model, 40)
        python_server.gates.open(40)
        assert outputs(running.result(PATIENCE_S))["SUM"] == 1
        wait_until(lambda: metric(python_server, key) == before + 2)


@pytest.mark.parametrize("model", ["around", "around_around"])
def test_an_ensemble_goes_on_with_a_sequence_without_its_client(python_server, model):
    with grpc_channel(python_server.grpc) as channel:
        stub = service_stub(channel)
        python_server.gates.open("slow")
        assert send(stub, model, 5, 0, "start") == {"SUM": 1, "OWN": 1}
        python_server.gates.close("slow")
        call = stub.ModelInfer.future(request(model, 5, 0))
        python_server.gates.wait_for("slow")
        assert not call.done()
        call.cancel()
        # The server hears of it meanwhile. A model is not told, because its run goes on.
        time.sleep(0.3)
        python_server.gates.open("slow")
        assert send(stub, model, 5, 0, "end") == {"SUM": 3, "OWN": 3}


def test_ensembles_around_ensembles_do_not_lengthen_a_run_without_its_client(server):
    model = f"level{LEVELS - 1}"
    with grpc_channel(server.grpc) as channel:
        stub = service_stub(channel)
        call = stub.ModelInfer.future(request(model, 30, ENDLESS, "start"))
        time.sleep(0.5)
        assert not call.done()
        before = time.monotonic()
        call.cancel()
        assert send(stub, "brief", 31, 2, "start", "end") == {"SUM": 2}
        assert time.monotonic() - before < LEVELS * BRIEF_US / 2e6
        check_needs_start(stub, "brief", 30)
