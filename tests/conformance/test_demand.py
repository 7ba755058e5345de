"""Are models loaded by their first request, and do they leave as the rules say (control mode `demand`)?"""

import gzip
import json
import socket
import threading
import time
import urllib.request

import grpc
import pytest
from clients import fp32, grpc_channel, http_call, open_client, pb, refuses, service_stub, text
from meanwhile import TooLate, again_if_too_late
from python_setup import PATIENT, Gates, said
from test_updates import CONFIG, WHO, groups

# The bytes that count for each model, and how many of them there is room for.
MODEL_BYTES = 1 << 20
ROOM = 3
MODELS = [f"on_demand_{at}" for at in range(6)]
IDENTITY = '''\
name: "%s"
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]
parameters { key: "execute_delay_ms" value { string_value: "%d" } }
'''


def put(repository, model: str, size: int = MODEL_BYTES, delay_ms: int = 0) -> None:
    version = repository / model / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "weights").write_bytes(bytes(size))
    (repository / model / "config.pbtxt").write_text(IDENTITY % (model, delay_ms))


def put_chain(repository, model: str, *parts: str) -> None:
    """An ensemble of identities, one after the other."""
    (repository / model / "1").mkdir(parents=True, exist_ok=True)
    names = ["INPUT0", *(f"between_{at}" for at in range(1, len(parts))), "OUTPUT0"]
    steps = [
        f'{{ model_name: "{part}" model_version: -1 input_map {{ key: "INPUT0" value: "{given}" }}'
        f' output_map {{ key: "OUTPUT0" value: "{made}" }} }}'
        for part, given, made in zip(parts, names[:-1], names[1:], strict=True)
    ]
    tensors = "".join(line for line in (IDENTITY % (model, 0)).splitlines(True) if line.startswith(("name", "input", "output")))
    scheduling = f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}"
    (repository / model / "config.pbtxt").write_text(f'{tensors}platform: "ensemble"\n{scheduling}\n')


def put_slow(repository, model: str, gates: Gates) -> None:
    """A Python model that is being loaded until its gate is open."""
    version = repository / model / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(gates.code + WHO.replace("time.sleep(TIME_S)", f"pass_gate({model!r})") % 0)
    (repository / model / "config.pbtxt").write_text(CONFIG % model + groups(1))


@pytest.fixture
def gates(tmp_path_factory) -> Gates:
    return Gates(tmp_path_factory.mktemp("demand") / "gates")


@pytest.fixture
def server(launcher, tmp_path, gates):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no such mode")
    for model in MODELS:
        put(tmp_path, model)
    put(tmp_path, "pinned", size=16)
    put(tmp_path, "huge", size=(ROOM + 1) * MODEL_BYTES)
    put(tmp_path, "busy", delay_ms=3000)
    put(tmp_path, "part")
    put_chain(tmp_path, "chain", "part", "busy")
    put_chain(tmp_path, "outer", "chain")
    put_slow(tmp_path, "slow", gates)
    room = ROOM * MODEL_BYTES + MODEL_BYTES // 2
    with launcher.running(
        "demand", PATIENT, "--model-control-mode=demand", "--load-model=pinned", f"--models-max-bytes={room}", repository=tmp_path
    ) as found:
        yield found
        gates.open("slow")


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    with open_client(request.param, server) as found:
        yield found


def infer(client, model: str) -> None:
    assert client.infer(model, [fp32("INPUT0", [1, 2])]).outputs["OUTPUT0"].raw == fp32("", [1, 2]).raw


def up(client) -> set[str]:
    return {one["name"] for one in client.index(ready=True)}


def metric(server, name: str) -> int:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return int(value)


def test_a_model_is_loaded_by_its_first_request_and_the_oldest_leaves(server, client):
    assert up(client) == {"pinned"}
    assert client.model_ready(MODELS[0]), "who waits for that before the first request waits for ever"
    assert not client.model_ready("nobody")
    for model in MODELS[:ROOM]:
        infer(client, model)
    assert up(client) == {"pinned", *MODELS[:ROOM]}
    # The first is used again, so the second is the oldest.
    infer(client, MODELS[0])
    infer(client, MODELS[3])
    assert up(client) == {"pinned", MODELS[0], MODELS[2], MODELS[3]}
    assert metric(server, "nerite_demand_models") == ROOM + 1
    assert metric(server, "nerite_demand_models_bytes") == ROOM * MODEL_BYTES + 16
    assert metric(server, "nerite_demand_loads_total") == ROOM + 1
    assert metric(server, "nerite_demand_evictions_total") == 1
    infer(client, MODELS[1])
    infer(client, "pinned")


def test_metadata_and_configuration_load_a_model_too(server, client):
    assert client.metadata(MODELS[4])["name"] == MODELS[4]
    assert client.config(MODELS[5])["name"] == MODELS[5]
    assert {MODELS[4], MODELS[5]} <= up(client)


def test_pinned_models_stay_and_what_never_fits_is_refused(server, client):
    for model in MODELS:
        infer(client, model)
    assert "pinned" in up(client)
    with refuses("UNAVAILABLE", f"model 'huge' has {(ROOM + 1) * MODEL_BYTES} bytes, and beside the models that stay there is room for"):
        client.infer("huge", [fp32("INPUT0", [1])])
    with refuses("NOT_FOUND", "Request for unknown model: 'nobody' is not found"):
        client.infer("nobody", [fp32("INPUT0", [1])])


def test_a_model_with_a_configuration_that_was_sent_stays(server, client):
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {"backend": "identity", "input": [{"name": "INPUT0", **tensor}], "output": [{"name": "OUTPUT0", **tensor}]}
    client.load(MODELS[0], {"config": json.dumps(config)})
    for model in MODELS:
        infer(client, model)
    assert up(client) == {"pinned", MODELS[0], *MODELS[-(ROOM - 1) :]}
    # Loaded from its repository, it may leave again.
    client.load(MODELS[0])
    for model in MODELS[1:]:
        infer(client, model)
    assert up(client) == {"pinned", *MODELS[-ROOM:]}


def test_a_model_with_a_request_in_flight_does_not_leave(server, client):
    infer(client, MODELS[0])
    running = threading.Thread(target=infer, args=(client, "busy"))
    running.start()
    while "busy" not in up(client):
        time.sleep(0.01)
    for model in MODELS[:ROOM]:
        infer(client, model)
        ready = up(client)
        if running.is_alive():
            assert "busy" in ready
    running.join()


@pytest.mark.parametrize("ensemble", ["chain", "outer"])
@again_if_too_late
def test_what_a_request_in_flight_is_made_of_does_not_leave(server, client, ensemble):
    expected = {"part", "busy", "chain", ensemble}
    missing = expected - up(client)
    loads = metric(server, "nerite_demand_loads_total")
    running = threading.Thread(target=infer, args=(client, ensemble))
    running.start()
    while ensemble not in up(client):
        time.sleep(0.01)
    assert metric(server, "nerite_demand_loads_total") == loads + len(missing)
    for model in MODELS[:ROOM]:
        infer(client, model)
        ready = up(client)
        if running.is_alive():
            assert expected <= ready
    if not running.is_alive():
        raise TooLate
    running.join()


def test_many_that_ask_at_once_load_a_model_once(server, gates):
    answers = []

    def one(protocol: str) -> None:
        with open_client(protocol, server) as client:
            answers.append(said(client.infer("slow", [text("ASKED", [b"who"])])))

    threads = [threading.Thread(target=one, args=(protocol,)) for protocol in ("http", "grpc") * 4]
    for thread in threads:
        thread.start()
    wait_until(lambda: metric(server, "nerite_demand_waiting_requests") == len(threads))
    with open_client("http", server) as client:
        assert ("slow", "LOADING") in {(entry["name"], entry.get("state")) for entry in client.index()}
        infer(client, "pinned")
    gates.open("slow")
    for thread in threads:
        thread.join()
    assert len(answers) == len(threads) and len(set(answers)) == 1
    assert metric(server, "nerite_demand_loads_total") == 1
    assert metric(server, "nerite_demand_waiting_requests") == 0


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


def test_a_request_waits_for_its_model_until_its_deadline(server, gates):
    with grpc_channel(server.grpc) as channel:
        given = pb.ModelInferRequest.InferInputTensor(name="ASKED", datatype="BYTES", shape=[1])
        request = pb.ModelInferRequest(model_name="slow", inputs=[given], raw_input_contents=[b"\x03\0\0\0who"])
        with pytest.raises(grpc.RpcError) as caught:
            service_stub(channel).ModelInfer(request, timeout=0.5)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: metric(server, "nerite_demand_waiting_requests") == 0)
    # The load goes on, and serves whoever comes next.
    gates.open("slow")
    wait_until(lambda: metric(server, "nerite_demand_loads_total") == 1)
    with open_client("grpc", server) as client:
        said(client.infer("slow", [text("ASKED", [b"who"])]))


@pytest.mark.parametrize("content", ["identity", "gzip"])
def test_a_request_over_http_waits_for_its_model_until_its_timeout(server, gates, content):
    """The timeout is in the body, which may be compressed."""
    body = json.dumps({"inputs": [{"name": "ASKED", "datatype": "BYTES", "shape": [1], "data": ["who"]}], "parameters": {"timeout": 200_000}}).encode()
    headers = {} if content == "identity" else {"Content-Encoding": content}
    began = time.monotonic()
    answer = http_call(server.http, "POST", "/v2/models/slow/infer", gzip.compress(body) if headers else body, headers)
    assert (answer.status, answer.error) == (503, "Request timeout expired") and time.monotonic() - began >= 0.2
    gates.open("slow")
    wait_until(lambda: metric(server, "nerite_demand_loads_total") == 1)
    with open_client("http", server) as client:
        said(client.infer("slow", [text("ASKED", [b"who"])], parameters={"timeout": 60_000_000}))


def test_a_request_over_grpc_waits_for_its_model_until_its_timeout(server):
    given = pb.ModelInferRequest.InferInputTensor(name="ASKED", datatype="BYTES", shape=[1])
    request = pb.ModelInferRequest(model_name="slow", inputs=[given], raw_input_contents=[b"\x03\0\0\0who"])
    request.parameters["timeout"].int64_param = 200_000
    with grpc_channel(server.grpc) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            service_stub(channel).ModelInfer(request)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "Request timeout expired")
        answers = list(service_stub(channel).ModelStreamInfer(iter([request])))
        assert [answer.error_message for answer in answers] == ["Request timeout expired"]


def test_a_stream_waits_for_its_model(server):
    with grpc_channel(server.grpc) as channel:
        def requests():
            for model in (MODELS[0], "nobody", MODELS[1], MODELS[0]):
                given = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1])
                yield pb.ModelInferRequest(model_name=model, inputs=[given], raw_input_contents=[bytes(4)])

        answers = list(service_stub(channel).ModelStreamInfer(requests()))
    errors = [answer.error_message for answer in answers]
    assert [bool(error) for error in errors] == [False, True, False, False], errors


def test_a_client_may_wait_for_so_many_models_only(server, gates):
    refused, others = [], []

    def one() -> None:
        try:
            with open_client("http", server) as client:
                others.append(client.infer("slow", [text("ASKED", [b"who"])]))
        except Exception as fault:  # noqa: BLE001
            refused.append(str(fault))

    threads = [threading.Thread(target=one) for _ in range(80)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(refused) == 80 - 64)
    gates.open("slow")
    for thread in threads:
        thread.join()
    assert (len(others), len(refused)) == (64, 80 - 64)
    assert all("requests of this client wait for models already; at most 64 may" in fault for fault in refused), refused[:2]
    assert metric(server, "nerite_demand_waiting_requests") == 0


@pytest.mark.parametrize("call", ["infer", "generate"])
def test_a_model_that_leaves_while_a_body_comes_is_loaded_again(server, call):
    tensor = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'
    body = tensor if call == "infer" else b'{"INPUT0":1}'
    head = f"POST /v2/models/{MODELS[0]}/{call} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as slow, open_client("grpc", server) as other:
        slow.sendall(head.encode() + body[:5])
        wait_until(lambda: MODELS[0] in up(other))
        for model in MODELS[1 : ROOM + 1]:
            infer(other, model)
        assert MODELS[0] not in up(other)
        slow.sendall(body[5:])
        with slow.makefile("rb") as answer:
            status = answer.readline()
            assert b" 200 " in status, status + answer.read()


def test_a_broken_model_fails_its_request_alone(server, client):
    (server.repository / "broken" / "1").mkdir(parents=True, exist_ok=True)
    (server.repository / "broken" / "config.pbtxt").write_text(CONFIG % "broken")
    with refuses("INVALID_ARG", "load failed for model 'broken': version 1 is at UNAVAILABLE state"):
        client.infer("broken", [text("ASKED", [b"who"])])
    infer(client, MODELS[0])
    with open_client("http", server) as other:
        assert other.call("GET", "/v2/health/ready").status == 200


LARGE = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = numpy.ones(50 << 20, numpy.uint8)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", pb_utils.get_input_tensor_by_name(one, "ASKED").as_numpy())]) for one in requests]
"""


def test_what_models_were_measured_to_need_counts(launcher, tmp_path):
    """Four Python models whose files have a few hundred bytes, and whose processes have more than 50 MiB each."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no such mode")
    large = [f"large_{at}" for at in range(4)]
    for model in large:
        (tmp_path / model / "1").mkdir(parents=True)
        (tmp_path / model / "1" / "model.py").write_text(LARGE)
        (tmp_path / model / "config.pbtxt").write_text(CONFIG % model + groups(1))
    room = 140 << 20
    with launcher.running("demand_measured", PATIENT, "--model-control-mode=demand", f"--models-max-bytes={room}", repository=tmp_path) as server:
        with open_client("http", server) as client:
            for model in large:
                assert said(client.infer(model, [text("ASKED", [b"who"])])) == "who"
            # Their files would all fit. When the last one came, the others left until two of them fitted at most.
            assert large[-1] in up(client) and len(up(client)) <= 3
            assert metric(server, "nerite_demand_evictions_total") >= 1
            assert metric(server, "nerite_demand_models_bytes") > 50 << 20
