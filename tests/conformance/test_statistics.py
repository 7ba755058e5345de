"""Do statistics and metrics count what happened, and only that?"""

import time

import pytest
from clients import Given, fp32, http_call, int32, refuses

KEYS = [
    "name", "version", "last_inference", "inference_count", "execution_count", "inference_stats", "response_stats",
    "batch_stats", "memory_usage",
]  # fmt: skip
DURATIONS = [
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"
]  # fmt: skip


def counts(client, model: str) -> dict:
    found = client.statistics(model)[0]
    durations = {key: found["inference_stats"][key]["count"] for key in DURATIONS}
    return {key: found[key] for key in ("inference_count", "execution_count")} | durations


def moves(client, model: str, work, **wanted: int) -> None:
    """`work` must move the counts of `model` by what is wanted, and no others. 2.51 counts a moment after the reply."""
    before = counts(client, model)
    work()
    wanted = dict.fromkeys(before, 0) | wanted

    def moved() -> dict:
        after = counts(client, model)
        return {key: after[key] - before[key] for key in after}

    settles(lambda: moved() == wanted)
    assert moved() == wanted


def settles(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_keys_and_their_order(server):
    found = http_call(server.http, "GET", "/v2/models/batched_fp32/stats").ok().json["model_stats"]
    assert len(found) == 1
    assert list(found[0]) == KEYS
    assert list(found[0]["inference_stats"]) == DURATIONS
    assert all(list(one) == ["count", "ns"] for one in found[0]["inference_stats"].values())


def test_all_models_are_listed_without_a_name(client):
    names = {one["name"] for one in client.statistics()}
    assert {"identity_fp32", "simple", "chain"} <= names
    assert [one["version"] for one in client.statistics("versioned")] == ["1", "3"]
    assert [one["version"] for one in client.statistics("versioned", "3")] == ["3"]


def test_a_request_counts_once_and_its_batch_counts_rows(client):
    rows = [fp32("INPUT0", [[1, 2], [3, 4], [5, 6]])]
    moves(
        client, "batched_fp32", lambda: [client.infer("batched_fp32", rows) for _ in range(4)], inference_count=12,
        execution_count=4, success=4, queue=4, compute_input=4, compute_infer=4, compute_output=4,
    )  # fmt: skip
    batches = client.statistics("batched_fp32")[0]["batch_stats"]
    sizes = [one["batch_size"] for one in batches]
    assert 3 in sizes and sizes == sorted(sizes)
    assert set(batches[0]) == {"batch_size", "compute_input", "compute_infer", "compute_output"}


def test_a_refused_request_counts_nowhere(client):
    def work():
        with refuses("INVALID_ARG", ""):
            client.infer("batched_fp32", [Given("INPUT0", "FP32", [9, 1], bytes(36))])

    moves(client, "batched_fp32", work)


def test_an_ensemble_counts_for_itself_and_for_its_steps(client):
    def work():
        client.infer("chain", [fp32("INPUT0", [1, 2])])

    before = client.statistics("identity_fp32")[0]["inference_count"]
    once = dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 1)
    moves(client, "chain", work, success=1, inference_count=1, execution_count=1, **once)
    assert client.statistics("identity_fp32")[0]["inference_count"] - before == 2


@pytest.mark.parametrize(
    ("model", "version", "text"),
    [
        ("nobody", "", "requested model 'nobody' is not available"),
        ("identity_fp32", "9", "requested model version is not available for model 'identity_fp32'"),
    ],
)
def test_statistics_of_nobody(client, model, version, text):
    with refuses("INVALID_ARG", text):
        client.statistics(model, version)


def metrics(server) -> dict[str, float]:
    """Every sample of /metrics by its name and labels."""
    answer = http_call(server.metrics, "GET", "/metrics").ok()
    lines = answer.body.decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line and line[0] != "#"}


def test_metrics_count_requests(server, client):
    labels = '{model="simple",version="1"}'
    before = metrics(server)
    a = int32("INPUT0", [list(range(16))] * 2)
    b = int32("INPUT1", [list(range(16))] * 2)
    client.infer("simple", [a, b])
    wanted = {"nv_inference_request_success": 1, "nv_inference_count": 2, "nv_inference_exec_count": 1}

    def moved() -> dict[str, float]:
        after = metrics(server)
        return {name: after[f"{name}{labels}"] - before[f"{name}{labels}"] for name in wanted}

    settles(lambda: moved() == wanted)
    assert moved() == wanted


def test_every_loaded_model_has_its_series_from_the_start(server):
    found = metrics(server)
    labels = '{model="fixed_fp32",version="1"}'
    for name in (
        "nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count",
        "nv_inference_request_duration_us", "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us", "nv_inference_pending_request_count",
    ):  # fmt: skip
        assert f"{name}{labels}" in found
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        key = f'nv_inference_request_failure{{model="fixed_fp32",reason="{reason}",version="1"}}'
        assert key in found
    for name in ("nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"):
        assert name in found


def test_every_family_has_help_and_type(server):
    answer = http_call(server.metrics, "GET", "/metrics").ok()
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    lines = answer.body.decode().splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    histograms = {line.split()[2] for line in lines if line.startswith("# TYPE") and line.endswith(" histogram")}
    samples = {line.partition("{")[0].split()[0] for line in lines if line and line[0] != "#"}
    parts = {f"{family}_{part}" for family in histograms for part in ("bucket", "sum", "count")}
    assert samples - parts <= helped & typed
    assert parts <= samples


def test_other_paths_of_the_metrics_port(server):
    assert http_call(server.metrics, "GET", "/metrics/").ok().body
    answer = http_call(server.metrics, "GET", "/elsewhere")
    assert (answer.status, answer.body) == (200, b"")
    assert http_call(server.metrics, "POST", "/metrics").status == 405
