"""What if a configuration that a client sends with a load asks for enormous things, or for work without end?

The load is refused with the numbers, or ends when nobody waits for it. It costs its client, and loads of others go on.
"""

import contextlib
import http.client
import json
import os
import socket
import threading
import time

import pytest
import python_catalogue
from clients import Answer, http_call, open_client
from holding import many, send_unread
from meters import metric, peak
from python_catalogue import tensors
from tritonclient.grpc import service_pb2 as pb
from users import as_user
from witness import falls_to, resident

MIB = 1 << 20
PER_PEER = 64 * MIB
KEPT = PER_PEER // 2
# Pages of metrics of 15 MB that are being made, and what the allocator keeps of those that were freed. 112 MiB were seen with the 64 of the peer.
SLACK = 192 * MIB
GREEDY = 4_000_000 + os.getpid()
MANY_METRICS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(name="many", description="d", kind=pb_utils.MetricFamily.HISTOGRAM)
        buckets = [float(bound) for bound in range(16)]
        self.all = [self.family.Metric(labels={"x": str(at).rjust(800, "_")}, buckets=buckets) for at in range(1000)]

    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 has no such bounds")
    repository = launcher.copy_of("configurations", "identity_fp32", "simple")
    measuring = python_catalogue.python("measuring", "measuring", tensors(IN="FP32"), tensors(OUT="FP32"))
    python_catalogue.put(repository, measuring)
    (repository / "measuring" / "1" / "model.py").write_text(MANY_METRICS)
    flags = [
        f"--memory-budget={3 * PER_PEER}", f"--memory-budget-per-peer={PER_PEER}", "--model-control-mode=explicit", "--model-load-thread-count=1",
        "--load-model=simple",
    ]  # fmt: skip
    with launcher.running("configurations", *flags, repository=repository) as found:
        yield found


@pytest.fixture(autouse=True)
def holds_little(server):
    """The server lives, and held no more than its client may make it hold."""
    before = resident(server.pid)
    with peak(lambda: resident(server.pid)) as most:
        yield
    assert server.process.poll() is None, server.log_text()[-3000:]
    assert most.most - before < PER_PEER + SLACK, f"{(most.most - before) / MIB:.0f} MiB"


def config(more: dict, name: str = "identity_fp32", delay_ms: int = 0) -> dict:
    """The body of a load with a configuration of the identity backend."""
    sent = {
        "name": name,
        "backend": "identity",
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "parameters": {"execute_delay_ms": {"string_value": str(delay_ms)}},
    }
    return {"parameters": {"config": json.dumps(sent | more)}}


def warmup(count: int, elements: int, batch_size: int = 1) -> dict:
    given = {"data_type": "TYPE_FP32", "dims": [elements], "random_data": True}
    return {"model_warmup": [{"name": "w", "batch_size": batch_size, "count": count, "inputs": {"INPUT0": given}}]}


def load(server, body: dict, model: str = "identity_fp32") -> Answer:
    return http_call(server.http, "POST", f"/v2/repository/models/{model}/load", body)


def unload(server, model: str = "identity_fp32") -> Answer:
    return http_call(server.http, "POST", f"/v2/repository/models/{model}/unload", {})


def state(server, model: str = "identity_fp32") -> tuple[str, str]:
    index = http_call(server.http, "POST", "/v2/repository/index", {}).ok().json
    return next((one.get("state", ""), one.get("reason", "")) for one in index if one["name"] == model)


def until(check) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STATES = {"sequence_batching": {"state": [{"input_name": "S", "output_name": "T", "data_type": "TYPE_FP32", "dims": [-1, 1 << 40]}]}}
BUCKETS = {"metric_identifier": {"family": "nv_inference_first_response_histogram_ms"}, "histogram_options": {"buckets": list(range(257))}}
REFUSED = {
    "runs": (warmup((1 << 32) - 1, 1), "has count 4294967295, which makes 4294967295 runs on 1 instances"),
    "bytes": (warmup(1, 1 << 40), "warmup input 'INPUT0' of sample 'w' takes 4398046511104 bytes"),
    "kept bytes": (warmup(1, KEPT // 4), f"takes {KEPT} bytes: memory budget of a client"),
    "rows": ({"max_batch_size": (1 << 31) - 1} | warmup(1, 1, (1 << 31) - 1), "the batch of 2147483647 requests of warmup sample 'w' takes"),
    "states": (STATES, "state 'S' takes 4398046511104 bytes"),
    "buckets": ({"model_metrics": {"metric_control": [BUCKETS]}}, "has 257 buckets, at most 256 are possible"),
    "tags": ({"metric_tags": {f"t{at}": "" for at in range(65)}}, "has 65 metric_tags, at most 64 are possible"),
    "tag": ({"metric_tags": {'x="1"} 1\nnv_inference_count{y': "v"}}, "which Prometheus does not accept"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_configuration_with_enormous_numbers_is_refused_with_the_numbers(server, what):
    more, text = REFUSED[what]
    refused = load(server, config(more))
    assert refused.status in (400, 500, 503), refused.body
    reason = state(server)[1] + refused.error
    assert text in reason, reason
    assert load(server, {}).status == 200 and unload(server).status == 200


def test_tensors_of_a_warmup_are_charged_while_it_lasts(server):
    used = 'nerite_memory_budget_bytes{state="used"}'
    before = metric(server, used)
    thread = threading.Thread(target=lambda: load(server, config(warmup(20, 4 * MIB), delay_ms=100)))
    thread.start()
    until(lambda: metric(server, used) - before >= 16 * MIB)
    thread.join()
    falls_to(lambda: metric(server, used), before + MIB)
    assert unload(server).status == 200


ENDLESS = config(warmup(50_000, 1), delay_ms=200)


@contextlib.contextmanager
def endless_load(server, protocol: str):
    """A load that takes hours, and whose client goes at the end."""
    with contextlib.ExitStack() as held:
        if protocol == "http":
            body = json.dumps(ENDLESS).encode()
            host, port = server.http.split(":")
            connection = held.enter_context(contextlib.closing(socket.create_connection((host, int(port)))))
            head = f"POST /v2/repository/models/identity_fp32/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
        else:
            client = held.enter_context(open_client("grpc", server))
            request = pb.RepositoryModelLoadRequest(model_name="identity_fp32")
            request.parameters["config"].string_param = ENDLESS["parameters"]["config"]
            call = client.stub.RepositoryModelLoad.future(request)
            held.callback(call.cancel)
        until(lambda: state(server)[0] == "LOADING")
        yield


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_goes_ends_the_warmup_that_it_sent(server, protocol):
    with endless_load(server, protocol):
        pass
    until(lambda: "the client that sent the configuration has gone" in state(server)[1])
    # Its place is free.
    assert load(server, {}).status == 200 and unload(server).status == 200


def test_an_unload_ends_a_warmup(server):
    with endless_load(server, "http"):
        assert unload(server).status == 200
        assert "the model is unloaded" in server.log_text()
        assert load(server, {}).status == 200 and unload(server).status == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_a_client_with_all_places_for_loads_leaves_one_for_another(server):
    with endless_load(server, "http"):
        for _ in range(3):
            assert as_user(GREEDY, lambda: http_call(server.http, "POST", "/v2/repository/models/simple/load", {})).status == 200


def test_a_request_starts_no_endless_number_of_steps_through_ensembles(server):
    """Eight levels of sixteen steps would be four billion runs."""

    def ensemble(model: str) -> dict:
        tensor = lambda at: {0: "A", 16: "B"}.get(at, f"t{at}")  # noqa: E731
        ins, outs = ("INPUT0", "OUTPUT0") if model == "identity_fp32" else ("A", "B")
        steps = [{"model_name": model, "model_version": -1, "input_map": {ins: tensor(at)}, "output_map": {outs: tensor(at + 1)}} for at in range(16)]
        return {
            "platform": "ensemble",
            "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [-1]}],
            "ensemble_scheduling": {"step": steps},
        }

    def load_level(level: int) -> Answer:
        below = f"level{level - 1}" if level else "identity_fp32"
        # Files make it a model that no repository has.
        body = {"parameters": {"config": json.dumps(ensemble(below)), "file:1/none": ""}}
        return load(server, body, f"level{level}")

    assert load(server, {}).status == 200
    assert load_level(0).ok() and load_level(1).ok()
    refused = load_level(2)
    assert refused.status == 400 and "would start 4368 steps, with those of the ensembles in it; at most 4096 are possible" in refused.error, refused.body
    for model in ("level1", "level0", "identity_fp32"):
        assert unload(server, model).status == 200


def test_pages_of_metrics_that_nobody_reads(server):
    """A page has some 15 MB. 32 of them, 480 MB, are more than one user may make the server hold."""
    assert load(server, {}, "measuring").status == 200

    def shed() -> int:
        """The page is read by the user that holds too much. So this connection may be the one that is ended, or that is told so instead of the page."""
        reasons = ("connection", "peer", "all", "stalled")
        deadline = time.monotonic() + 60
        while True:
            try:
                return sum(metric(server, f'nerite_shed_connections_total{{reason="{reason}"}}') for reason in reasons)
            except (OSError, http.client.HTTPException, TypeError):
                assert time.monotonic() < deadline

    try:
        connection = http.client.HTTPConnection(server.metrics)
        connection.request("GET", "/metrics")
        assert len(connection.getresponse().read()) > 12 * MIB
        before = shed()

        class At:
            http = server.metrics

        with many(32, lambda: send_unread(At, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")):
            falls_to(lambda: before - shed(), -1)
    finally:
        assert unload(server, "measuring").status == 200
