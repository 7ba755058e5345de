"""Does NVIDIA's own load generator run against the server, with and without shared memory?

Skipped until `setup_perf.py` has fetched it. Nothing here asserts speed: that every request was answered, that the
server's statistics add up for the tool, and that the regions it made are gone.
"""

import re
import subprocess

import pytest
import setup_perf
from clients import HttpClient

LIMIT_S = 250
# Short windows and a margin that nothing leaves: a stable figure is not what is asked for, and the machine may be busy.
MEASURE = ["--measurement-interval=300", "--stability-percentage=100000", "--max-trials=10"]

pytestmark = pytest.mark.skipif(setup_perf.tool() is None, reason="perf_analyzer is not installed: setup_perf.py")


def analyze(server, protocol: str, *options: str, concurrency: int = 1) -> str:
    command, environment = setup_perf.tool()
    url = server.http if protocol == "http" else server.grpc
    options = [*options, "-i", protocol, "-u", url, f"--concurrency-range={concurrency}", *MEASURE]
    done = subprocess.run(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, output
    return output


def figure(output: str, pattern: str) -> float:
    found = re.search(pattern, output)
    assert found, output
    return float(found[1])


def check(output: str) -> None:
    """The report has the client's side and the server's side, and both counted something."""
    assert figure(output, r"Throughput: ([0-9.]+) infer/sec") > 0
    assert figure(output, r"Client: \s+Request count: (\d+)") > 0
    assert figure(output, r"Server: \s+Inference count: (\d+)") > 0
    assert figure(output, r"Successful request count: (\d+)") > 0
    assert re.search(r"overhead \d+ usec \+ queue \d+ usec \+ compute", output), output
    assert "error" not in output.lower(), output


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("memory", ["none", "system"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_classic_example(server, protocol, memory, concurrency):
    options = ["-m", "simple", f"--shared-memory={memory}"]
    check(analyze(server, protocol, *options, concurrency=concurrency))
    assert HttpClient(server.http).status("system") == []


CASES = [
    ("http", "-m", "simple", "-b", "4"),
    ("http", "-m", "simple", "--async"),
    ("grpc", "-m", "simple", "--async"),
    ("grpc", "-m", "simple", "--streaming"),
    ("grpc", "-m", "simple", "--streaming", "--shared-memory=system"),
    ("http", "-m", "simple", "--input-tensor-format=json", "--output-tensor-format=json"),
    ("http", "-m", "simple", "--percentile=95"),
    ("grpc", "-m", "simple", "--grpc-compression-algorithm=gzip"),
    ("http", "-m", "digits", "-b", "8", "--shared-memory=system"),
    ("http", "-m", "identity_fp32", "--shape=INPUT0:65536", "--shared-memory=system", "--output-shared-memory-size=262144"),
    ("grpc", "-m", "identity_fp32", "--shape=INPUT0:65536"),
    ("http", "-m", "identity_bytes", "--shape=INPUT0:8", "--string-length=16"),
    ("grpc", "-m", "sequence_int32", "--sequence-length=5"),
    ("http", "-m", "chain", "--shape=INPUT0:16"),
    ("http", "-m", "versioned", "-x", "1", "--shape=INPUT0:4"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case))
def test_other_ways_to_ask(server, case):
    check(analyze(server, *case))


def test_it_reads_our_metrics(server):
    options = ["-m", "simple", "--collect-metrics", f"--metrics-url={server.metrics}/metrics"]
    check(analyze(server, "http", *options))


def test_a_csv_report(server, tmp_path):
    check(analyze(server, "http", "-m", "simple", "-f", str(tmp_path / "report.csv")))
    header, *rows = (tmp_path / "report.csv").read_text().splitlines()
    assert header.startswith("Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,")
    assert rows[0].startswith("1,")
