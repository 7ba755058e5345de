"""Are console, CSV and exported requests of a load generator in perf_analyzer's form, and do they agree?"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import reports
import servers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "perf_analyzer"))

import setup_perf  # noqa: E402

LIMIT_S = 250
# Short windows and a margin that nothing leaves: a stable figure is not what is asked for.
MEASURE = ["-p", "200", "-s", "100000", "-r", "5"]

# perf_analyzer is compared where `setup_perf.py` has installed it.
PROGRAMS = ["nerite", *(["perf_analyzer"] if setup_perf.tool() else [])]


@pytest.fixture(params=PROGRAMS)
def program(request) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a load generator."""
    if request.param == "perf_analyzer":
        return setup_perf.tool()
    return [str(servers.nerite_binary()), "bench"], dict(os.environ)


def run(program, server, folder: pathlib.Path, protocol: str, *options: str) -> str:
    """The console of a run that writes both of its files into this folder."""
    command, environment = program
    files = ["-f", "report.csv", "--profile-export-file", "requests.json"]
    url = server.http if protocol == "http" else server.grpc
    words = [*command, *options, "-i", protocol, "-u", url, *MEASURE, *files]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done
    return done.stdout.decode()


@pytest.fixture(scope="module")
def responses(tmp_path_factory) -> str:
    """Input for a decoupled model, which answers it three times."""
    path = tmp_path_factory.mktemp("input") / "input.json"
    step = {"IN": {"content": [1, 2, 3], "shape": [3]}, "DELAY": {"content": [0, 0, 0], "shape": [3]}}
    path.write_text(json.dumps({"data": [step]}))
    return str(path)


# Protocol, options, what the columns of the CSV file depend on, and the number of levels.
CASES = [
    ("http", ["-m", "simple", "--concurrency-range", "1:3"], {}, 3),
    ("http", ["-m", "simple", "-v", "-b", "2", "--verbose-csv"], {"verbose": True}, 1),
    ("http", ["-m", "simple", "--percentile", "80", "--verbose-csv"], {"percentile": 80, "verbose": True}, 1),
    ("http", ["-m", "simple", "--request-rate-range", "100:200:100"], {}, 2),
    ("http", ["-m", "simple", "--request-rate-range", "1e6"], {}, 1),
    ("http", ["-m", "simple", "--request-count", "30"], {}, 1),
    ("http", ["-m", "simple", "--measurement-mode", "count_windows", "--measurement-request-count", "20"], {}, 1),
    ("http", ["-m", "simple", "--concurrency-range", "1:4", "--binary-search", "-l", "10000"], {}, 2),
    ("http", ["-m", "chain", "--shape", "INPUT0:16"], {}, 1),
    ("grpc", ["-m", "simple", "-v"], {}, 1),
    ("grpc", ["-m", "simple", "--streaming"], {}, 1),
    ("grpc", ["-m", "sequence_int32", "--sequence-length", "5"], {}, 1),
    ("grpc", ["-m", "repeat_int32", "--streaming", "--input-data", "RESPONSES"], {"decoupled": True}, 1),
]


@pytest.mark.parametrize(("protocol", "options", "shape", "levels"), CASES, ids=lambda case: " ".join(case) if isinstance(case, list) else None)
def test_three_reports_agree(program, server, tmp_path, responses, protocol, options, shape, levels):
    words = [responses if word == "RESPONSES" else word for word in options]
    report = reports.read_console(run(program, server, tmp_path, protocol, *words))
    text = (tmp_path / "report.csv").read_text()
    experiments = reports.read_export((tmp_path / "requests.json").read_bytes().decode(errors="replace"))
    assert len(report.levels) == len(report.summary) == len(experiments) == levels
    load = "Request Rate" if "--request-rate-range" in options else "Concurrency"
    assert text.splitlines()[0].split(",") == reports.columns(load, **shape)
    check_rows(report, reports.read_csv(text))
    check_requests(report, experiments)


def check_rows(report: reports.Report, rows: list[dict]) -> None:
    """The file has the figures of the console, by throughput."""
    levels = sorted(report.levels, key=lambda level: level.client["throughput"])
    for level, row in zip(levels, rows, strict=True):
        client = level.client
        assert next(iter(row.values())) == level.value
        # The console has two digits after the point where requests were late.
        assert row["Inferences/Second"] == pytest.approx(client["throughput"], abs=0.01)
        for percentile in ("p50", "p90", "p95", "p99"):
            assert row[f"{percentile} latency"] == client[f"{percentile}_us"]
        if not level.server.composing:
            assert row["Server Queue"] == level.server.figures["queue_us"]


def check_requests(report: reports.Report, experiments: list[reports.Experiment]) -> None:
    """There are at least the requests of the windows that the console tells of, and each has its responses."""
    for level, experiment in zip(report.levels, experiments, strict=True):
        assert (experiment.mode, experiment.value) == (level.mode, level.value)
        assert len(experiment.windows_ns) >= 2
        assert len(experiment.requests) >= level.client["requests"]
        assert all(request.responses_ns for request in experiment.requests)
        assert any(request.sequence_id for request in experiment.requests) == ("sequences" in level.client)


REPORT = """\
*** Measurement Settings ***
  Batch size: 1
  Service Kind: TRITON
  Using "time_windows" mode for stabilization
  Stabilizing using average latency
  Measurement window: 200 msec
  Using synchronous calls for inference

Request concurrency: 1
  Client: 
    Request count: 1051
    Throughput: 1446.15 infer/sec
    Avg latency: 688 usec (standard deviation 104 usec)
    p50 latency: 675 usec
    p90 latency: 723 usec
    p95 latency: 741 usec
    p99 latency: 804 usec
    Avg HTTP time: 683 usec (send/recv 67 usec + response wait 616 usec)
  Server: 
    Inference count: 1051
    Execution count: 1051
    Successful request count: 1051
    Avg request latency: 337 usec (overhead 305 usec + queue 23 usec + compute 9 usec)

  Composing models: 
  identity_fp32, version: 1
      Inference count: 2103
      Execution count: 2103
      Successful request count: 2103
      Avg request latency: 40 usec (overhead 8 usec + queue 23 usec + compute input 0 usec + compute infer 9 usec + compute output 0 usec)

  Cost: 
    Client CPU: 12.3 usec/request, 1.00 wake-ups/request
    Server CPU: 45.7 usec/request, 2.50 wake-ups/request
    Server copies: 128 bytes/request
    Cores asleep: 25.0% of the time
    Peak memory: client 9.0 MiB, server 80.0 MiB

Inferences/Second vs. Client Average Batch Latency
Concurrency: 1, throughput: 1446.15 infer/sec, latency 688 usec
"""  # noqa: W291


def test_a_report_with_its_cost_is_read():
    report = reports.read_console(REPORT)
    [level] = report.levels
    assert (level.client["p99_us"], level.server.figures["compute_us"]) == (804, 9)
    assert level.server.composing["identity_fp32", "1"].figures["infer_us"] == 9
    assert (level.cost["server_cpu_us"], level.cost["client_mib"]) == (45.7, 9)
    assert report.summary == [("Concurrency", 1, 1446.15, 688)]


DAMAGES = [
    ("  Batch size", " Batch size"),
    ("  Client: \n", "  Client:\n"),
    ("    p90 latency", "    p91 latency"),
    ("    p90 latency", "    p50 latency"),
    (" (overhead 305 usec", " (overheads 305 usec"),
    ("      Execution count: 2103", "    Execution count: 2103"),
    ("  Composing models: \n", ""),
    ("usec/request", "msec/request"),
    ("Concurrency: 1, throughput", "Clients: 1, throughput"),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage[1].strip() or "no line")
def test_another_layout_is_refused(damage):
    assert damage[0] in REPORT
    with pytest.raises(AssertionError):
        reports.read_console(REPORT.replace(*damage))
