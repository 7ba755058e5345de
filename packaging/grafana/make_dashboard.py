#!/usr/bin/env python3
"""Which panels does the Grafana dashboard have, and which metrics do they show?

    python3 packaging/grafana/make_dashboard.py        # writes packaging/grafana/nerite.json

Each panel is a row of a table here. `tests/packaging/test_monitoring.py` compares the metrics in it with those that the server shows, and asks a
Prometheus server each query while the server is under load.
"""

import dataclasses
import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
DASHBOARD = HERE / "nerite.json"

WIDTH = 24
HEIGHT = 8

# Prometheus metrics of the server that have no panel.
NOT_SHOWN = {
    "nv_cache_hit_duration_per_model": "the hit ratio tells more; durations are sums",
    "nv_cache_hit_summary_per_model": "summaries of Triton, shown on request only",
    "nv_cache_insertion_duration": "as nv_cache_hit_duration_per_model",
    "nv_cache_lookup_duration": "as nv_cache_hit_duration_per_model",
    "nv_cache_miss_duration_per_model": "as nv_cache_hit_duration_per_model",
    "nv_cache_miss_summary_per_model": "summaries of Triton, shown on request only",
    "nv_cache_num_hits": "shown by model",
    "nv_cache_num_lookups": "hits and misses together",
    "nv_cache_num_misses": "shown by model",
    "nv_inference_compute_infer_summary_us": "summaries of Triton, shown on request only",
    "nv_inference_compute_input_summary_us": "summaries of Triton, shown on request only",
    "nv_inference_compute_output_summary_us": "summaries of Triton, shown on request only",
    "nv_inference_queue_summary_us": "summaries of Triton, shown on request only",
    "nv_inference_request_summary_us": "summaries of Triton, shown on request only",
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel: its queries by legend. `{rate}` stands for the interval of rates, `{of}` for the chosen models, `{at}` for the chosen servers."""

    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 8
    stacked: bool = False
    # Only with a flag of the server; a query without data is no fault.
    needs: str = ""
    needs_gpu: bool = False


def mean_us(name: str) -> str:
    return f"sum by (model) (rate({name}{{of}}[{{rate}}])) / sum by (model) (rate(nv_inference_request_success{{of}}[{{rate}}]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Models": (
        Panel("Inferences", "Elements of batches that models computed", "reqps", (("{{model}}", "sum by (model) (rate(nv_inference_count{of}[{rate}]))"),)),
        Panel(
            "Failed requests", "By reason", "reqps",
            (("{{model}} {{reason}}", "sum by (model, reason) (rate(nv_inference_request_failure{of}[{rate}]))"),),
        ),
        Panel("Mean time of a request", "From its arrival at the server's core to its answer", "µs", (("{{model}}", mean_us("nv_inference_request_duration_us")),)),
        Panel("Requests that wait", "In the queues of models", "short", (("{{model}}", "sum by (model) (nv_inference_pending_request_count{of})"),)),
        Panel(
            "Mean batch", "Elements of a batch in one run of a model", "short",
            (("{{model}}", "sum by (model) (rate(nerite_model_run_rows_total{of}[{rate}])) / sum by (model) (rate(nv_inference_exec_count{of}[{rate}]))"),),
        ),
        Panel(
            "Where the time of a request goes", "Mean of all models", "µs",
            tuple(
                (part, f"sum(rate(nv_inference_{name}_duration_us{{of}}[{{rate}}])) / sum(rate(nv_inference_request_success{{of}}[{{rate}}]))")
                for part, name in (("queue", "queue"), ("inputs", "compute_input"), ("model", "compute_infer"), ("outputs", "compute_output"))
            ),
            stacked=True,
        ),
        Panel("Ready", "1: the model's instances could take requests when last looked at", "short", (("{{model}} {{version}}", "nerite_model_ready{of}"),)),
        Panel(
            "Restarts of processes", "Of Python models and isolated models, after a process has ended", "short",
            (("{{model}} {{version}}", "increase(nerite_model_restarts_total{of}[{rate}])"),),
        ),
        Panel(
            "Loads", "By outcome; failed reloads: 1 while an older version serves on", "short",
            (
                ("{{model}} {{outcome}}", "increase(nerite_model_loads_total{of}[{rate}])"),
                ("{{model}} {{version}} failed reload", "nerite_model_reload_failed{of}"),
            ),
        ),
        Panel("Load time", "Of the loaded version", "s", (("{{model}} {{version}}", "nv_model_load_duration_secs{of}"),)),
        Panel(
            "Time to the first response, 95 %", "From the arrival of a request", "ms",
            (("{{model}}", "histogram_quantile(0.95, sum by (model, le) (rate(nv_inference_first_response_histogram_ms_bucket{of}[{rate}])))"),),
            needs="--metrics-config=histogram_latencies=true",
        ),
    ),
    "Server": (
        Panel("Ready", "1: /v2/health/ready says yes", "short", (("{{instance}}", "nerite_ready{at}"),)),
        Panel("Version", "Of each server", "short", (("{{instance}} {{version}}", "nerite_build_info{at}"),)),
        Panel("Time since the start", "Of the server's process", "s", (("{{instance}}", "time() - process_start_time_seconds{at}"),)),
        Panel("Refused requests", "Before a model saw them, by reason", "ops", (("{{reason}}", "sum by (reason) (rate(nerite_requests_refused_total{at}[{rate}]))"),), width=12),
        Panel(
            "Certificates", "Time until the first of a port's chain ends", "s", (("{{instance}} {{port}}", "nerite_certificate_not_after_seconds{at} - time()"),),
            width=12, needs="TLS",
        ),
    ),
    "Shared memory": (
        Panel("Copied bytes", "Tensor bytes that the server copied, by reason; 0 on paths without copies", "Bps", (("{{reason}}", "sum by (reason) (rate(nerite_copied_bytes_total{at}[{rate}]))"),), stacked=True),
        Panel("Regions", "Registered by clients", "short", (("{{kind}}", "sum by (kind) (nerite_shm_regions{at})"),)),
        Panel("Mapped bytes", "Of other processes' memory", "bytes", (("{{instance}}", "nerite_shm_mapped_bytes{at}"),)),
        Panel("Leases", "Memory that the server lent to sessions", "bytes", (("{{state}}", "sum by (state) (nerite_lease_bytes{at})"),), stacked=True),
        Panel("Sessions", "Open ones", "short", (("{{instance}}", "nerite_sessions{at}"),)),
        Panel(
            "Session socket", "1: clients can open sessions; and how often the socket was made anew", "short",
            (("{{instance}} up", "nerite_session_socket_up{at}"), ("{{instance}} reopened", "nerite_session_socket_reopened_total{at}")),
        ),
    ),
    "Clients": (
        Panel("Connections", "Of HTTP, gRPC and metrics", "short", (("{{instance}} connections", "nerite_connections{at}"), ("{{instance}} peers", "nerite_connection_peers{at}"))),
        Panel(
            "Connections refused and ended", "By reason", "ops",
            (
                ("refused: {{reason}}", "sum by (reason) (rate(nerite_connections_refused_total{at}[{rate}]))"),
                ("ended: {{reason}}", "sum by (reason) (rate(nerite_connections_ended_total{at}[{rate}]))"),
                ("shed: {{reason}}", "sum by (reason) (rate(nerite_shed_connections_total{at}[{rate}]))"),
            ),
        ),
        Panel(
            "Tokens", "Calls and bytes of tensors by token, and calls without a known one", "short",
            (
                ("{{token}} {{outcome}}", "sum by (token, outcome) (rate(nerite_token_requests_total{at}[{rate}]))"),
                ("refused: {{reason}}", "sum by (reason) (rate(nerite_token_refused_total{at}[{rate}]))"),
                ("{{token}} bytes {{direction}}", "sum by (token, direction) (rate(nerite_token_bytes_total{at}[{rate}]))"),
            ),
            needs="--access-tokens-file",
        ),
        Panel(
            "File of tokens", "1: in force as it is; and how often it had a fault", "short",
            (("{{instance}} current", "nerite_token_file_current{at}"), ("{{instance}} faults", "nerite_token_file_faults_total{at}")),
            needs="--access-tokens-file",
        ),
        Panel("Memory held for clients", "Beside the most that is allowed", "bytes", (("{{instance}} {{state}}", "nerite_memory_budget_bytes{at}"),)),
        Panel(
            "Front threads busy, 99.9 %", "How long a thread that serves connections did not come back to the others", "s",
            (
                ("by the clock", "histogram_quantile(0.999, sum by (le) (rate(nerite_front_thread_busy_seconds_bucket{at}[{rate}])))"),
                ("processor time", "histogram_quantile(0.999, sum by (le) (rate(nerite_front_thread_busy_cpu_seconds_bucket{at}[{rate}])))"),
            ),
            width=12,
        ),
        Panel(
            "Traces", "Traced requests by what became of their traces, and bytes in memory", "short",
            (("{{outcome}}", "sum by (outcome) (rate(nerite_traces_total{at}[{rate}]))"), ("{{instance}} bytes", "nerite_trace_bytes{at}")),
            width=12,
        ),
        Panel(
            "Clients whose memory makes threads wait", "Users and addresses that are marked so, and their requests that ran on copies", "short",
            (("{{instance}} clients", "nerite_stalling_peers{at}"), ("{{instance}} requests/s", "rate(nerite_staged_requests_total{at}[{rate}])")),
            width=12,
        ),
        Panel(
            "Lost lines of the log", "By reason", "short", (("{{reason}}", "sum by (reason) (increase(nerite_log_lines_lost_total{at}[{rate}]))"),), width=12,
        ),
    ),
    "Cache and models loaded on demand": (
        Panel(
            "Cache hits", "Share of the lookups that found a response", "percentunit",
            (("{{model}}", "rate(nv_cache_num_hits_per_model{of}[{rate}]) / (rate(nv_cache_num_hits_per_model{of}[{rate}]) + rate(nv_cache_num_misses_per_model{of}[{rate}]))"),),
            needs="--cache-config",
        ),
        Panel(
            "Cache use", "Share of its memory, entries, and entries that left to make room", "short",
            (("{{instance}} used", "nv_cache_util{at}"), ("{{instance}} entries", "nv_cache_num_entries{at}"), ("{{instance}} evictions", "rate(nv_cache_num_evictions{at}[{rate}])")),
            needs="--cache-config",
        ),
        Panel(
            "Models on demand", "Loaded, and requests that wait for one", "short",
            (("{{instance}} loaded", "nerite_demand_models{at}"), ("{{instance}} waiting", "nerite_demand_waiting_requests{at}")),
            needs="--model-control-mode=demand",
        ),
        Panel("Files of models on demand", "Of the loaded ones", "bytes", (("{{instance}}", "nerite_demand_models_bytes{at}"),), width=12, needs="--model-control-mode=demand"),
        Panel(
            "Loads and evictions on demand", "Models", "ops",
            (("{{instance}} loads", "rate(nerite_demand_loads_total{at}[{rate}])"), ("{{instance}} evictions", "rate(nerite_demand_evictions_total{at}[{rate}])")),
            width=12,
            needs="--model-control-mode=demand",
        ),
    ),
    "Host": (
        Panel("Processors", "Share in use", "percentunit", (("{{instance}}", "nv_cpu_utilization{at}"),)),
        Panel("Memory", "In use, and all", "bytes", (("{{instance}} used", "nv_cpu_memory_used_bytes{at}"), ("{{instance}} all", "nv_cpu_memory_total_bytes{at}"))),
        Panel("Pinned memory", "In use, and all", "bytes", (("{{instance}} used", "nv_pinned_memory_pool_used_bytes{at}"), ("{{instance}} all", "nv_pinned_memory_pool_total_bytes{at}"))),
    ),
    "GPUs": (
        Panel("GPU processors", "Share in use", "percentunit", (("{{gpu_uuid}}", "nv_gpu_utilization{at}"),), needs_gpu=True),
        Panel("GPU memory", "In use, and all", "bytes", (("{{gpu_uuid}} used", "nv_gpu_memory_used_bytes{at}"), ("{{gpu_uuid}} all", "nv_gpu_memory_total_bytes{at}")), needs_gpu=True),
        Panel("GPU power", "Drawn, and the limit", "watt", (("{{gpu_uuid}} drawn", "nv_gpu_power_usage{at}"), ("{{gpu_uuid}} limit", "nv_gpu_power_limit{at}")), needs_gpu=True),
        Panel("GPU energy", "Joules in a second: the mean power", "watt", (("{{gpu_uuid}}", "rate(nv_energy_consumption{at}[{rate}])"),), width=12, needs_gpu=True),
        Panel("Age of these figures", "Grows while the driver does not return", "s", (("{{gpu_uuid}}", "nerite_gpu_metrics_age_seconds{at}"),), width=12, needs_gpu=True),
    ),
}


def expression(template: str) -> str:
    """A query of the table with Grafana's variables in it."""
    at = 'job=~"$job", instance=~"$instance"'
    return template.replace("{of}", f'{{{at}, model=~"$model"}}').replace("{at}", f"{{{at}}}").replace("{rate}", "$__rate_interval")


def panel(found: Panel, number: int, x: int, y: int) -> dict:
    targets = [
        {"refId": chr(ord("A") + at), "expr": expression(query), "legendFormat": legend, "datasource": {"type": "prometheus", "uid": "${datasource}"}}
        for at, (legend, query) in enumerate(found.queries)
    ]
    custom = {"fillOpacity": 20 if found.stacked else 0, "stacking": {"mode": "normal" if found.stacked else "none"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": found.title,
        "description": found.about + (f". Only with `{found.needs}`." if found.needs else ". Only with a GPU." if found.needs_gpu else "."),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": found.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": found.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def panels() -> list[dict]:
    made: list[dict] = []
    y = 0
    for row, found in ROWS.items():
        made.append({"id": len(made) + 1, "type": "row", "title": row, "collapsed": False, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}, "panels": []})
        y, x = y + 1, 0
        for one in found:
            if x + one.width > WIDTH:
                x, y = 0, y + HEIGHT
            made.append(panel(one, len(made) + 1, x, y))
            x += one.width
        y += HEIGHT
    return made


def variable(name: str, label: str, query: str) -> dict:
    return {
        "name": name, "label": label, "type": "query", "query": {"query": query, "refId": name}, "definition": query,
        "datasource": {"type": "prometheus", "uid": "${datasource}"}, "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
    }  # fmt: skip


def dashboard() -> dict:
    return {
        "uid": "nerite",
        "title": "nerite",
        "description": "Models, shared memory and clients of nerite servers.",
        "tags": ["nerite", "inference"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("job", "Job", "label_values(nerite_sessions, job)"),
                variable("instance", "Instance", 'label_values(nerite_sessions{job=~"$job"}, instance)'),
                variable("model", "Model", 'label_values(nv_inference_count{job=~"$job", instance=~"$instance"}, model)'),
            ]
        },
        "panels": panels(),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text())
