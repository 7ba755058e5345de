"""What do metrics show of the distribution of latencies, and are they Triton's families?"""

import math
import re

import catalogue
import pytest
from batching_setup import serving
from cache_setup import caching
from clients import fp32, http_call, open_client
from test_statistics import settles

SUMMARIES = [
    "nv_inference_request_summary_us", "nv_inference_queue_summary_us", "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us", "nv_inference_compute_output_summary_us",
]  # fmt: skip
CACHE_SUMMARIES = ["nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"]
HISTOGRAM = "nv_inference_first_response_histogram_ms"
BUCKETS = f"""
model_metrics {{ metric_control [ {{
  metric_identifier {{ family: "{HISTOGRAM}" }} histogram_options {{ buckets: [ 0.5, 60000 ] }}
}} ] }}
metric_tags {{ key: "Team" value: "a b" }}
"""


def samples(server) -> dict[str, float]:
    lines = http_call(server.metrics, "GET", "/metrics").ok().body.decode().splitlines()
    read = (line.rpartition(" ") for line in lines if line and line[0] != "#")
    return {name: math.nan if value.lower() == "nan" else float(value) for name, _, value in read}


def infer(server, model: str, times: int) -> None:
    with open_client("http", server) as client:
        for number in range(times):
            client.infer(model, [fp32("INPUT0", [[number % 2]])])


@pytest.fixture(scope="module")
def measured(launcher):
    plain = catalogue.identity("plain", ("FP32", (-1,)), max_batch=8)
    idle = catalogue.identity("idle", ("FP32", (-1,)), max_batch=8)
    config = ["summary_latencies=true", "summary_quantiles=0.5:0.05,0.9:0.01", "counter_latencies=false"]
    flags = ["--cache-config=local,size=1000000", *[f"--metrics-config={one}" for one in config]]
    with serving(launcher, "latencies", plain, idle, caching("cached"), flags=flags) as server:
        infer(server, "plain", 6)
        infer(server, "cached", 6)
        settles(lambda: samples(server).get('nv_inference_queue_summary_us_count{model="cached",version="1"}') == 6)
        yield server, samples(server)


def test_summaries_count_and_have_the_quantiles_asked_for(measured):
    _, found = measured
    labels = '{model="plain",version="1"}'
    for name in SUMMARIES:
        assert found[f"{name}_count{labels}"] == 6
        middle, high = [found[f'{name}{{model="plain",version="1",quantile="{quantile}"}}'] for quantile in (0.5, 0.9)]
        assert 0 <= middle <= high
        assert found[f"{name}_sum{labels}"] <= 6 * 60e6
    quantiles = {name for name in found if name.startswith(f'{SUMMARIES[0]}{{model="plain"')}
    assert len(quantiles) == 2


def test_a_model_without_requests_has_no_quantiles_yet(measured):
    _, found = measured
    assert found['nv_inference_queue_summary_us_count{model="idle",version="1"}'] == 0
    assert math.isnan(found['nv_inference_queue_summary_us{model="idle",version="1",quantile="0.5"}'])


def test_models_with_a_cache_have_summaries_of_it(measured):
    _, found = measured
    labels = '{model="cached",version="1"}'
    assert f"{SUMMARIES[0]}_count{labels}" not in found
    assert [found[f"{name}_count{labels}"] for name in SUMMARIES[1:]] == [6, 2, 2, 2]
    assert [found[f"{name}_count{labels}"] for name in CACHE_SUMMARIES] == [4, 2]
    assert not any(f'{name}_count{{model="plain",version="1"}}' in found for name in CACHE_SUMMARIES)


def test_counters_of_latencies_can_be_switched_off(measured):
    _, found = measured
    assert not any("_duration_us" in name or "nv_cache_hit_duration" in name for name in found)


def test_families_are_tritons(measured):
    """Those of this server that begin with `nv_` are those of 2.51, and two of newer ones."""
    server, _ = measured
    page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
    found = {(name, kind) for name, kind in re.findall(r"# TYPE (nv_\S+) (\w+)", page)}
    gauges = ["pending_request_count"]
    wanted = {(f"nv_inference_{name}", "gauge") for name in gauges}
    wanted |= {(name, "summary") for name in SUMMARIES + CACHE_SUMMARIES}
    wanted |= {
        (f"nv_inference_{name}", "counter") for name in ("request_success", "request_failure", "count", "exec_count")
    }
    wanted |= {(f"nv_cpu_{name}", "gauge") for name in ("utilization", "memory_total_bytes", "memory_used_bytes")}
    wanted |= {(f"nv_pinned_memory_pool_{name}_bytes", "gauge") for name in ("total", "used")}
    wanted |= {
        (f"nv_cache_{name}", "gauge") for name in (
            "util", "num_entries", "num_hits", "num_misses", "num_lookups", "num_evictions", "lookup_duration",
            "insertion_duration",
        )
    }  # fmt: skip
    if not server.oracle:
        wanted.add(("nv_model_load_duration_secs", "gauge"))
    assert found == wanted


def test_first_responses_are_counted_in_buckets(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such histogram; newer ones have")
    chosen = catalogue.identity("chosen", ("FP32", (-1,)), max_batch=8, extra=BUCKETS)
    plain = catalogue.identity("plain", ("FP32", (-1,)), max_batch=8)
    with serving(launcher, "first", chosen, plain, flags=["--metrics-config=histogram_latencies=true"]) as server:
        infer(server, "chosen", 3)
        found = samples(server)
        labels = '_Team="a b",model="chosen",version="1"'
        assert found[f"{HISTOGRAM}_count{{{labels}}}"] == 3
        assert found[f'{HISTOGRAM}_bucket{{{labels},le="60000"}}'] == 3
        assert found[f'{HISTOGRAM}_bucket{{{labels},le="+Inf"}}'] == 3
        # Whole milliseconds.
        assert 0 <= found[f"{HISTOGRAM}_sum{{{labels}}}"] < 180_000
        bounds = {name.rpartition('le="')[2][:-2] for name in found if name.startswith(f'{HISTOGRAM}_bucket{{model="plain"')}
        assert bounds == {"100", "500", "2000", "5000", "+Inf"}
