"""Does `nerite bench` measure what it says it does, in each of its ways?

Nothing here asserts speed: that every request was answered, that both sides counted the same requests, and that nothing stays behind.
"""

import json
import pathlib
import signal
import subprocess
import tempfile

import gpus
import numpy as np
import pytest
import servers
import tritonclient.http
import trustme
from clients import HttpClient
from certificates import HOST, Certificates

REQUESTS = 60
LIMIT_S = 120


def run(server, *options: str, protocol: str = "http") -> subprocess.CompletedProcess:
    """Measures a fixed number of requests. A second `-u` among the options replaces the first."""
    url = server.grpc if protocol == "grpc" else server.http
    words = [str(servers.nerite_binary()), "bench", "-u", url, "-i", protocol, f"--request-count={REQUESTS}", "--json", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)


def bench(server, *options: str, protocol: str = "http") -> dict:
    """The first point of the measurement of a fixed number of requests."""
    done = run(server, *options, protocol=protocol)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["points"]
    assert point["client"]["requests"] == REQUESTS
    assert point["server"]["failures"] == 0
    return point


WAYS = [
    ("http", "-m", "simple", "-b", "4"),
    ("http", "-m", "simple", "--shared-memory=system", "--concurrency-range=4"),
    ("http", "-m", "simple", "--input-tensor-format=json", "--output-tensor-format=json"),
    ("http", "-m", "identity_bytes", "--shape=INPUT0:8", "--string-length=16"),
    ("http", "-m", "versioned", "-x", "1", "--shape=INPUT0:4"),
    ("http", "-m", "simple", "--request-rate-range=500"),
    ("http", "-m", "simple", "--request-rate-range=500", "--request-distribution=poisson"),
    ("grpc", "-m", "simple", "--concurrency-range=4"),
    ("grpc", "-m", "simple", "--shared-memory=system"),
    ("grpc", "-m", "simple", "--streaming"),
    ("grpc", "-m", "simple", "--streaming", "--shared-memory=system", "--concurrency-range=2"),
    ("grpc", "-m", "simple", "--grpc-compression-algorithm=gzip"),
    ("grpc", "-m", "simple", "--grpc-compression-algorithm=deflate"),
    ("grpc", "-m", "simple", "--request-rate-range=500", "--request-distribution=poisson"),
    # Larger than the window that a client of HTTP/2 has at first.
    ("grpc", "-m", "identity_fp32", "--shape=INPUT0:1048576"),
]


def is_counted_by_both_sides(server, protocol: str, *options: str) -> None:
    point = bench(server, *options, protocol=protocol)
    rows = 4 if "-b" in options else 1
    # One more was sent before the load, to learn of a refusal with its reason.
    assert point["server"]["successes"] == REQUESTS
    assert point["server"]["inferences"] == REQUESTS * rows
    assert point["client"]["latency"]["min_us"] > 0
    assert [HttpClient(server.http).status(kind) for kind in ("system", "cuda")] == [[], []]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(way))
def test_each_request_is_counted_by_both_sides(server, way):
    is_counted_by_both_sides(server, *way)


SLEEP_MS = 20
SLOW = f"""\
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: 16 kind: KIND_CPU }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{SLEEP_MS}" }} }}
"""


@pytest.fixture(scope="module")
def own(launcher, server):
    """A server whose models can be loaded, and which has sessions, Unix sockets and a stand-in for the CUDA driver. `server` is started before, without
    the variables of this one."""
    repository = launcher.copy_of("bench", "simple", "identity_fp32")
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(SLOW)
    loaded = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in ("simple", "identity_fp32", "slow"))]
    with tempfile.TemporaryDirectory() as folder, gpus.stand_ins(pathlib.Path(folder), nvml=False), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_SESSION_SOCKET", f"{folder}/session")
        sockets = [f"--{name}-socket={folder}/{name}" for name in ("session", "http", "grpc")]
        with launcher.running("bench", *loaded, *sockets, repository=repository) as server:
            server.folder = folder
            yield server


# {folder} is that of the server's sockets.
PLACES = [
    ("http", "-u", "unix:{folder}/http"),
    ("http", "-u", "unix:{folder}/http", "--shared-memory=system"),
    ("grpc", "-u", "unix:{folder}/grpc"),
    ("grpc", "-u", "unix:{folder}/grpc", "--shared-memory=system"),
    ("grpc", "-u", "unix:{folder}/grpc", "--streaming"),
    ("http", "--shared-memory=cuda", "--concurrency-range=4"),
    ("grpc", "--shared-memory=cuda"),
    ("grpc", "--shared-memory=cuda", "--streaming"),
    ("http", "--load-url=unix:{folder}/http"),
    ("grpc", "--load-url=unix:{folder}/grpc", "--shared-memory=system"),
    ("http", "--request-intervals={folder}/intervals"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))
def test_each_request_is_counted_at_sockets_and_with_device_memory(own, place):
    pathlib.Path(own.folder, "intervals").write_text("500\n1000\n0\n")
    is_counted_by_both_sides(own, *(word.format(folder=own.folder) for word in place), "-m", "simple")


def test_the_server_of_load_url_alone_gets_the_load(own, server):
    def successes(at) -> int:
        (report,) = HttpClient(at.http).statistics("simple")
        return report["inference_stats"]["success"]["count"]

    before = successes(own), successes(server)
    point = bench(own, "-m", "simple", f"--load-url={server.http}")
    # The request that is sent before the load goes to the server that describes the model.
    assert (successes(own) - before[0], successes(server) - before[1]) == (1, REQUESTS)
    assert point["server"]["successes"] == 0


def test_the_latency_of_a_request_begins_when_it_was_due(own):
    interval_ms = SLEEP_MS // 2
    rate = ["-m", "slow", f"--request-rate-range={1000 // interval_ms}"]
    one, many = (bench(own, *rate, f"--max-threads={connections}")["client"] for connections in (1, 64))
    assert one["late_requests"] == REQUESTS - 1
    # Request n is due at n intervals. It begins when those before it have slept, so it ends n intervals late.
    assert one["latency"]["percentiles"]["p50_us"] >= (REQUESTS // 2 * interval_ms + SLEEP_MS - interval_ms) * 1000
    assert one["latency"]["percentiles"]["p50_us"] > many["latency"]["percentiles"]["p50_us"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates of server and client, and `other.pem` of an authority that signed neither."""
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    trustme.CA().cert_pem.write_to_path(made.path("other.pem"))
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["tls", "mutual"])
def secured(request, launcher, certificates):
    """A server with TLS at both ports. With the second, clients present a certificate."""
    flags = [flag for protocol in ("http", "grpc") for flag in certificates.flags(protocol, mutual=request.param)]
    with launcher.running("bench_tls", *flags, "--session-socket=off", repository=launcher.copy_of("bench_tls", "simple")) as server:
        server.is_mutual = request.param
        yield server


def tls_words(server, certificates, protocol: str, root: str = "root.pem", has_certificate: bool = True) -> list[str]:
    """The address and the certificates, as perf_analyzer's options have them."""
    address = f"{HOST}:{getattr(server, protocol).rpartition(':')[2]}"
    names = {
        "http": ("ssl-https-ca-certificates-file", "ssl-https-client-certificate-file", "ssl-https-private-key-file"),
        "grpc": ("ssl-grpc-root-certifications-file", "ssl-grpc-certificate-chain-file", "ssl-grpc-private-key-file"),
    }[protocol]
    files = (root, *(("client.pem", "client.key") if has_certificate else ()))
    where = [f"https://{address}"] if protocol == "http" else [address, "--ssl-grpc-use-ssl"]
    return [*where, *(f"--{name}={certificates.path(file)}" for name, file in zip(names, files))]


# {url} is the address of -u.
THROUGH_TLS = [
    ("http", "--concurrency-range=4"),
    ("http", "--load-url={url}"),
    ("grpc", "--concurrency-range=4"),
    ("grpc", "--streaming"),
    ("grpc", "--load-url={url}"),
]


@pytest.mark.parametrize("way", THROUGH_TLS, ids=lambda way: " ".join(way))
def test_each_request_is_counted_through_tls(secured, certificates, way):
    protocol, option = way
    url, *words = tls_words(secured, certificates, protocol, has_certificate=secured.is_mutual)
    point = bench(secured, "-m", "simple", "-u", url, *words, option.format(url=url), protocol=protocol)
    assert point["server"]["successes"] == REQUESTS


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_is_wrong_with_certificates_is_named(secured, certificates, protocol):
    cases = [({"root": "other.pem"}, "no trusted authority signed the server's certificate")]
    if secured.is_mutual:
        cases.append(({"has_certificate": False}, "the server requires a certificate of its clients"))
    for change, reason in cases:
        done = run(secured, "-m", "simple", "-u", *tls_words(secured, certificates, protocol, **change), protocol=protocol)
        assert (done.returncode, done.stdout) == (99, "") and reason in done.stderr, done.stderr


# An inference is prepared with its tensors in memory.
@pytest.mark.parametrize(
    ("calls", "memory"),
    [("plain", "none"), ("plain", "system"), ("plain", "lease"), ("prepared", "system"), ("prepared", "lease")],
)
def test_a_session_counts_each_request(own, calls, memory):
    point = bench(own, "-m", "simple", f"--session-calls={calls}", f"--shared-memory={memory}", "--concurrency-range=2", protocol="session")
    assert point["server"]["successes"] == REQUESTS
    assert HttpClient(own.http).status("system") == []


def test_calls_of_a_packet_are_requests_each(own):
    words = ["-m", "simple", "-i", "session", "-u", own.http, "--session-calls=batched:8", "--shared-memory=lease", "--request-count=5", "--json"]
    done = subprocess.run([str(servers.nerite_binary()), "bench", *words], capture_output=True, text=True, timeout=LIMIT_S)
    (point,) = json.loads(done.stdout)["points"]
    assert point["client"]["requests"] == point["server"]["successes"] == 5 * 8


SWEEP = ["-p", "50", "-s", "100000", "--json"]


def test_sizes_are_measured_inline_and_in_regions(own):
    words = ["-m", "identity_fp32", "-u", own.http, "--sweep=sizes", "--sizes=64,64K", "--shared-memory=system", *SWEEP]
    done = subprocess.run([str(servers.nerite_binary()), "bench", *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    (sweep,) = json.loads(done.stdout)["sizes"]
    assert [point["bytes"] for point in sweep["points"]] == [64, 64 << 10]
    assert HttpClient(own.http).status("system") == []


def test_the_model_has_its_configuration_again_after_a_sweep(own):
    before = HttpClient(own.http).config("simple")
    words = ["-m", "simple", "-u", own.http, "--sweep=config", "-l", "1000", *SWEEP[:-1]]
    done = subprocess.run([str(servers.nerite_binary()), "bench", *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("  best\n") == 1 and "max_batch_size: " in done.stdout
    assert HttpClient(own.http).config("simple") == before


def test_a_decoupled_model_has_responses_without_number(server, tmp_path):
    steps = [{"IN": [7, 8, 9], "DELAY": [0, 0, 0]}]
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": steps}))
    point = bench(server, "-m", "repeat_int32", "--streaming", "--shape=IN:3", "--shape=DELAY:3", "--input-data", str(data), protocol="grpc")
    client = point["client"]
    assert round(client["responses_per_second"] * client["seconds"]) == 3 * REQUESTS


def test_sequences_start_and_end(server):
    """The server would refuse a request of a sequence that has not started."""
    options = ["--sequence-length=5", "--sequence-length-variation=0", "--concurrency-range=2"]
    point = bench(server, "-m", "sequence_int32", *options, protocol="grpc")
    assert point["client"]["sequences"] >= REQUESTS // 5 - 2


def test_input_data_is_read_from_a_folder(server, tmp_path):
    (tmp_path / "INPUT0").write_text("first\nsecond\n")
    bench(server, "-m", "identity_bytes", "--shape=INPUT0:2", f"--input-data={tmp_path}")


def test_the_steps_of_an_ensemble_are_listed(server):
    point = bench(server, "-m", "chain", "--shape=INPUT0:16")
    steps = point["server"]["composing_models"]
    assert steps and all(step["inferences"] >= REQUESTS for step in steps)


def test_regions_of_others_stay(server):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        path = pathlib.Path("/dev/shm/nerite_test_bench_other")
        path.write_bytes(np.ones(4, np.float32).tobytes())
        try:
            client.register_system_shared_memory("other", path.name, 16)
            bench(server, "-m", "simple", "--shared-memory=system")
            assert [region["name"] for region in HttpClient(server.http).status("system")] == ["other"]
        finally:
            client.unregister_system_shared_memory("other")
            path.unlink()


def test_ctrl_c_ends_with_a_report_and_leaves_nothing(server):
    words = [str(servers.nerite_binary()), "bench", "-m", "simple", "-u", server.http, "--shared-memory=system", "-v", "-s", "0", "-r", "100000", "-p", "50"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in running.stdout:
            if "Pass [" in line:
                break
        running.send_signal(signal.SIGINT)
        rest, _ = running.communicate(timeout=LIMIT_S)
    finally:
        running.kill()
    assert "Throughput:" in rest and running.returncode == 2
    assert HttpClient(server.http).status("system") == []
    assert not list(pathlib.Path("/dev/shm").glob(f"nerite_bench_{running.pid}*"))


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["-m", "nope"], 99, "'nope'"),
        (["-m", "identity_fp32"], 99, "--shape INPUT0:d1,d2"),
        (["-m", "simple", "-b", "1000"], 99, "batch-size must be <="),
        ([], 3, "no model; name one with -m"),
        (["-m", "simple", "--fast"], 3, "there is no option '--fast'"),
        (["-m", "simple", "--concurrency-range=1:0"], 3, "-l MS"),
        (["-m", "simple", "--service-kind=openai"], 3, "--service-kind is triton"),
    ],
)
def test_what_is_wrong_is_named(server, options, code, text):
    words = [str(servers.nerite_binary()), "bench", "-u", server.http, *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code and text in done.stderr, done.stderr
