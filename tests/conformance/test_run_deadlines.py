"""Does a run end when nobody waits for it any more, and is what it held free then?"""

import concurrent.futures
import http.client
import json
import pathlib
import shutil
import threading
import time

import grpc
import numpy as np
import onnx
import pytest
import servers
from batching_setup import pending
from clients import Given, fp32, grpc_channel, http_call, open_client, pb, refuses, service_stub
from footprint import wait_until

# Rounds that take longer than any test waits, and as many as the embedded engine counts.
ENDLESS = (1 << 31) - 1
# Products in the model `powers`, of matrices with so many rows. ONNX Runtime ends a run at its next operator, so more of them cost nothing. The embedded
# engine ends it after a stage, which is a 128th of the model. On a slow machine a stage must not take 5 s either: then an isolated process is ended.
# They are 12 and 1 TFLOP.
PRODUCTS, PRODUCTS_EMBEDDED, LONG = 3001, 257, 1280
# A request that has waited for so long waits for another one, and not for the server to take it up.
WAITED_S = 0.3
MODELS = servers.ROOT / "crates" / "onnx" / "tests" / "models"
ENSEMBLE = '''\
platform: "ensemble"
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "rounds" data_type: TYPE_INT64 dims: [ 1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
ensemble_scheduling { step [{
  model_name: "rounds" model_version: -1
  input_map { key: "x" value: "x" } input_map { key: "rounds" value: "rounds" } output_map { key: "y" value: "y" }
}] }
'''
CONFIG = '''\
backend: "onnxruntime"
instance_group [{ kind: KIND_CPU count: 1 }]
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "rounds" data_type: TYPE_INT64 dims: [ 1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
'''
POWERS = '''\
backend: "onnxruntime"
instance_group [{ kind: KIND_CPU count: 1 }]
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }]
'''
# Their authors ask for it: a model, and an ensemble of a model whose author does not.
TIMED = 'parameters { key: "nerite.timeout_ends_runs" value { string_value: "true" } }'


# ONNX Runtime ends a run at its next operator, and the embedded engine after the present round of a loop. Both are told so in a process of their own as
# well.
ENGINES = {
    "server": [servers.onnxruntime_flag()],
    "embedded": ["--onnxruntime-library=none"],
    "isolated": [servers.onnxruntime_flag(), "--backend-config=onnxruntime,isolated=true"],
    "isolated_embedded": ["--onnxruntime-library=none", "--backend-config=onnxruntime,isolated=true"],
}


@pytest.fixture(scope="module", params=ENGINES)
def server(request, launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 here has no ONNX backend")
    repository = tmp_path_factory.mktemp("rounds")
    configs = {"rounds": CONFIG, "around": ENSEMBLE, "timed": CONFIG + TIMED, "around_timed": ENSEMBLE + TIMED}
    for name, config in configs.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if config.startswith(CONFIG):
            shutil.copy(MODELS / "rounds.onnx", repository / name / "1" / "model.onnx")
    (repository / "powers" / "1").mkdir(parents=True)
    (repository / "powers" / "config.pbtxt").write_text(POWERS)
    write_powers(repository / "powers" / "1" / "model.onnx", PRODUCTS_EMBEDDED if "embedded" in request.param else PRODUCTS)
    with launcher.running(f"rounds_{request.param}", *ENGINES[request.param], repository=repository) as found:
        yield found


def request(model: str, rounds: int) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor
    return pb.ModelInferRequest(
        model_name=model,
        inputs=[tensor(name="x", datatype="FP32", shape=[2]), tensor(name="rounds", datatype="INT64", shape=[1])],
        raw_input_contents=[np.array([1, 2], np.float32).tobytes(), np.array([rounds], np.int64).tobytes()],
    )


def check_free(server, model: str) -> None:
    """The only instance answers the next one: it does not run for hours."""
    with grpc_channel(server.grpc) as channel:
        answer = service_stub(channel).ModelInfer(request(model, 3), timeout=60)
    assert answer.raw_output_contents[0] == np.array([4, 8], np.float32).tobytes()



@pytest.mark.parametrize("model", ["rounds", "around"])
def test_a_deadline_ends_a_run(server, model):
    with grpc_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        service_stub(channel).ModelInfer(request(model, ENDLESS), timeout=1)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    check_free(server, model)


@pytest.mark.parametrize("model", ["rounds", "around"])
def test_a_cancelled_call_ends_a_run(server, model):
    with grpc_channel(server.grpc) as channel:
        call = service_stub(channel).ModelInfer.future(request(model, ENDLESS))
        time.sleep(0.5)
        assert not call.done()
        call.cancel()
        check_free(server, model)


@pytest.mark.parametrize("model", ["rounds", "around"])
def test_a_cancelled_stream_ends_its_runs(server, model):
    with grpc_channel(server.grpc) as channel:
        is_over = threading.Event()

        def requests():
            yield request(model, ENDLESS)
            is_over.wait(60)

        stream = service_stub(channel).ModelStreamInfer(requests())
        time.sleep(0.5)
        stream.cancel()
        is_over.set()
        check_free(server, model)


@pytest.mark.parametrize("model", ["rounds", "around"])
def test_a_client_that_goes_ends_a_run(server, model):
    document = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]},
            {"name": "rounds", "datatype": "INT64", "shape": [1], "data": [ENDLESS]},
        ]
    }
    connection = http.client.HTTPConnection(server.http)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document))
    time.sleep(0.5)
    connection.close()
    check_free(server, model)


def write_powers(place: pathlib.Path, products: int) -> None:
    """A graph without loops, with as much to compute as a request says: each product is with x again."""
    steps = [f"p{at}" for at in range(products - 1)]
    nodes = [onnx.helper.make_node("MatMul", [before, "x"], [after]) for before, after in zip(["x", *steps], [*steps, "y"])]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "n"]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, "powers", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), place)


def power(channel, side: int) -> grpc.Future:
    """Asks for an even power of a matrix that changes the places of two numbers, which changes none."""
    swapping = np.eye(side, dtype=np.float32)
    swapping[[0, 1]] = swapping[[1, 0]]
    x = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[side, side])
    message = pb.ModelInferRequest(model_name="powers", inputs=[x], raw_input_contents=[swapping.tobytes()])
    return service_stub(channel).ModelInfer.future(message, timeout=60)


def check_changes_none(answer: grpc.Future, side: int) -> None:
    y = np.frombuffer(answer.result().raw_output_contents[0], np.float32)
    assert (y.reshape(side, side) == np.eye(side, dtype=np.float32)).all()


def wait_until_one_runs(server, going: list[grpc.Future]) -> None:
    """Of two requests that take long: until the other one has waited for a while, because the only instance is busy."""
    since = time.monotonic()
    while time.monotonic() < since + WAITED_S:
        assert not any(one.done() for one in going), "it takes longer"
        if pending(server, "powers") != 1:
            since = time.monotonic()
        time.sleep(0.02)


def test_a_long_run_of_a_graph_without_loops_ends_too(server):
    """The embedded engine does it in stages. Runs that are quick stay whole."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options) as channel:
        for side in (2, 5, 2):
            check_changes_none(power(channel, side), side)
        for ended in (1, 2):
            going = [power(channel, LONG) for _ in range(2)]
            wait_until_one_runs(server, going)
            for one in going:
                one.cancel()
            check_changes_none(power(channel, 3), 3)
            failed = f'nv_inference_request_failure{{model="powers",reason="CANCELED",version="1"}} {2 * ended}'
            wait_until(lambda: failed in http_call(server.metrics, "GET", "/metrics").body.decode().splitlines())


@pytest.mark.parametrize("parameters", [None, {"timeout": 1}])
def test_a_run_that_is_waited_for_goes_on(server, parameters):
    """A timeout is of the queue, unless the model's author says otherwise."""
    with open_client("http", server) as client:
        rounds = 200_000
        reply = client.infer("rounds", inputs(rounds), parameters=parameters)
        assert np.frombuffer(reply.outputs["y"].raw, np.float32)[0] == rounds + 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["timed", "around_timed"])
def test_a_timeout_ends_a_run_where_the_author_asks_for_it(server, protocol, model):
    with open_client(protocol, server) as client:
        failed = failures(client, model)
        with refuses("UNAVAILABLE", "Request timeout expired"):
            client.infer(model, inputs(ENDLESS), parameters={"timeout": 300_000})
        assert failures(client, model) == failed + 1
    check_free(server, model)


def test_a_request_behind_a_run_is_refused_at_its_time(server):
    with open_client("http", server) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = time.monotonic()
        runs = pool.submit(client.infer, "timed", inputs(ENDLESS), parameters={"timeout": 3_000_000})
        time.sleep(0.3)
        with refuses("UNAVAILABLE", "Request timeout expired"):
            client.infer("timed", inputs(3), parameters={"timeout": 100_000})
        assert not runs.done() and time.monotonic() - before < 3
        with refuses("UNAVAILABLE", "Request timeout expired"):
            runs.result()
    check_free(server, "timed")


def test_a_request_that_ends_in_its_time_is_answered(server):
    with open_client("grpc", server) as client:
        for timeout_us in (60_000_000, (1 << 63) - 1):
            reply = client.infer("timed", inputs(3), parameters={"timeout": timeout_us})
            assert reply.outputs["y"].raw == np.array([4], np.float32).tobytes()


def failures(client, model: str) -> int:
    return client.statistics(model)[0]["inference_stats"]["fail"]["count"]


def inputs(rounds: int) -> list[Given]:
    return [fp32("x", [1]), Given("rounds", "INT64", [1], np.array([rounds], np.int64).tobytes())]
