"""Does the process start, refuse to start, and end as operators expect?"""

import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
import servers
import triton
import tritonclient.grpc as tritongrpc
from catalogue import SLOW_MS
from clients import differs, fp32, http_call, http_infer, open_client, refuses
from meanwhile import Delay, again_if_too_late
from python_setup import PATIENT
from tritonclient.utils import InferenceServerException

START_S = 200


def under_tritons_name(command: list[str], folder: pathlib.Path) -> list[str]:
    """The same command line by a link that is called tritonserver: without `serve`."""
    name = folder / "tritonserver"
    if not name.exists():
        name.symlink_to(pathlib.Path(command[0]).resolve())
    return [str(name), *command[2:]]


@pytest.fixture
def run(launcher, tmp_path):
    """Runs the server to its end and returns (exit status, everything it wrote)."""
    if any(launcher.urls):
        pytest.skip("needs a server of its own")

    def call(*flags: str, repository=None, as_triton=False):
        if launcher.oracle:
            command, environment = triton.command(repository or launcher.catalogue, launcher.scratch)
        else:
            command, environment = servers.nerite_command(repository or launcher.catalogue)
            if as_triton:
                command = under_tritons_name(command, tmp_path)
        if repository is False:
            command = [one for one in command if not one.startswith("--model-repository")]
        done = subprocess.run(
            [*command, *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=START_S
        )
        return done.returncode, done.stdout.decode(errors="replace")

    return call


def ports() -> list[str]:
    http, grpc, metrics = servers.free_ports(3)
    return [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]


BAD_FLAGS = [
    (["--no-such-flag"], "unrecognized option '--no-such-flag'"),
    (["--http-port=many"], 'Bad option: "--http-port".'),
    (["--http-port=99999999999999"], 'Bad option: "--http-port".'),
    (["--log-info=perhaps"], "invalid value for bool option: perhaps"),
    (["--model-control-mode=sometimes"], "invalid argument for --model-control-mode"),
    (["--load-model=x"], "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
    (["--http-restricted-api=nothing:k=v"], "unknown restricted api 'nothing'"),
    (["--http-restricted-api=health"], "option format is '<config name>:<setting>=<value>'. Got health"),
    (["--log-format=x"], "invalid argument for --log-format"),
    (["--backend-config=nothing"], "option format is '<backend name>,<setting>=<value>'. Got nothing"),
    (["leftover"], "Unexpected argument: leftover"),
    (["--", "leftover"], "Unexpected argument: leftover"),
    # A variable of the shell that is not set must not leave a restriction that everybody meets.
    (["--http-restricted-api=health:k="], "option format is '<config name>:<setting>=<value>'. Got health:k="),
    (["--grpc-restricted-protocol=health:=v"], "option format is '<config name>:<setting>=<value>'. Got health:=v"),
    (["--backend-config=python,key="], "option format is '<backend name>,<setting>=<value>'. Got python,key="),
    (["--backend-config=,key=value"], "No backend specified. --backend-config option format is "),
    (["--metrics-config==x"], 'Bad option: "--metrics-config".'),
    (["--host-policy=,cpu-cores=0"], "option format is '<policy name>,<setting>=<value>'. Got ,cpu-cores=0"),
    (["--cache-config=,size=1"], "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got ,size=1"),
    (["--model-config-name="], 'Bad option: "--model-config-name".'),
    (["--allow-gpu-metrics=x"], "invalid value for bool option: x"),
    (["--strict-model-config=x"], "invalid value for bool option: x"),
    (["--cuda-memory-pool-byte-size=0:x"], "Invalid option value. Got x"),
    (["--metrics-port=8000"], "The server cannot listen to HTTP requests and metrics requests at the same address and port 0.0.0.0:8000"),
    (["--grpc-port=8002"], "The server cannot listen to GRPC requests and metrics requests at the same address and port 0.0.0.0:8002"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS)
def test_bad_flags_end_with_usage_and_status_one(run, flags, message):
    status, output = run(*flags, as_triton=True)
    assert status == 1
    assert message in output
    assert "Usage: tritonserver [options]" in output


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS)
def test_under_its_own_name_nerite_says_what_is_wrong_and_no_more(launcher, run, flags, message):
    if launcher.oracle:
        pytest.skip("Triton prints its usage with every error")
    status, output = run(*flags)
    assert status == 1
    assert message in output
    assert output.count("\n") <= 3
    assert output.endswith("`nerite serve --help` lists the flags.\n")


def test_whoever_asks_for_help_gets_it_where_a_pager_reads(launcher):
    if launcher.oracle:
        pytest.skip("Triton prints its usage as a fault")
    done = subprocess.run([servers.nerite_binary(), "serve", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: nerite serve [options]")


def test_a_failed_start_shows_which_models_failed(launcher, run, tmp_path):
    config = tmp_path / "models" / "broken" / "config.pbtxt"
    (config.parent / "1").mkdir(parents=True)
    config.write_text('backend: "nothing_of_that_name"')
    status, output = run(*ports(), repository=tmp_path / "models", as_triton=True)
    assert status == 1
    assert re.search(r"^\| broken +\| .*UNAVAILABLE: ", output, re.MULTILINE), output
    assert output.rstrip().endswith("creating server: Internal - failed to load all models")


def test_a_mistyped_flag_is_told_the_nearest(launcher, run):
    if launcher.oracle:
        pytest.skip("Triton does not guess")
    status, output = run("--http-prot=8000")
    assert status == 1
    assert "unrecognized option '--http-prot'; did you mean '--http-port'?" in output


def test_no_repository(run):
    status, output = run(*ports(), repository=False)
    assert status == 1
    assert "--model-repository must be specified" in output


def test_a_repository_that_is_not_there(run, tmp_path):
    status, output = run(*ports(), repository=tmp_path / "nothing")
    assert status == 1
    assert f"failed to stat file {tmp_path / 'nothing'}" in output


@pytest.fixture
def broken(launcher):
    """A repository with one good model and one that cannot be loaded."""
    name = f"with_broken_{time.monotonic_ns()}"
    repository = launcher.copy_of(name, "identity_fp32", "simple")
    shutil.move(repository / "simple", repository / "broken")
    config = repository / "broken" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "simple"', 'name: "broken"'))
    for path in (repository / "broken" / "1").glob("model.*"):
        path.write_bytes(b"this is no model\x00\xff")
    return repository


def test_a_broken_model_ends_the_start(run, broken):
    status, output = run(*ports(), repository=broken)
    assert status == 1
    assert "error: creating server: Internal - failed to load all models" in output


def test_a_broken_model_beside_a_good_one(launcher, broken):
    with launcher.running("broken", "--exit-on-error=false", repository=broken) as server:
        assert http_call(server.http, "GET", "/v2/health/live").status == 200
        assert http_call(server.http, "GET", "/v2/health/ready").status == 400
        index = {one["name"]: one for one in http_call(server.http, "POST", "/v2/repository/index").json}
        assert index["identity_fp32"]["state"] == "READY"
        assert index["broken"]["state"] == "UNAVAILABLE"
        assert index["broken"]["reason"]
        for protocol in ("http", "grpc"):
            with open_client(protocol, server) as client:
                assert not client.model_ready("broken")
                assert client.infer("identity_fp32", [fp32("INPUT0", [1])])
                with refuses("NOT_FOUND", "Request for unknown model: 'broken' has no available versions"):
                    client.infer("broken", [fp32("INPUT0", [1])])


def test_a_repository_that_is_not_there_leaves_a_server_that_is_not_ready(launcher, tmp_path):
    with launcher.running("nowhere", "--exit-on-error=false", repository=tmp_path / "nowhere") as server:
        for question in ("live", "ready"):
            assert http_call(server.http, "GET", f"/v2/health/{question}").status == 400
        http_call(server.http, "POST", "/v2/repository/index").refused("UNAVAILABLE", "Server not ready")
        http_call(server.http, "GET", "/v2/models/any/ready").refused("UNAVAILABLE", "Server not ready")
        assert {"name", "version"} <= http_call(server.http, "GET", "/v2").ok().json.keys()
        with tritongrpc.InferenceServerClient(server.grpc) as client:
            assert client.get_server_metadata().name
        for protocol in ("http", "grpc"):
            with open_client(protocol, server) as client:
                with refuses("UNAVAILABLE", "Server not ready"):
                    client.infer("any", [fp32("INPUT0", [1])])


def test_strict_readiness_can_be_switched_off(launcher, broken):
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    with launcher.running("lenient", *flags, repository=broken) as server:
        assert http_call(server.http, "GET", "/v2/health/ready").status == 200


def test_every_broken_model_says_why(launcher):
    if launcher.oracle:
        pytest.skip("these are ONNX models, and 2.51 here has no ONNX backend")
    import make_models

    make_models.make(launcher.generated, ["broken"])
    repository = launcher.generated / "broken"
    reasons = json.loads((repository / "reasons.json").read_text())
    with launcher.running("reasons", "--exit-on-error=false", repository=repository) as server:
        index = {one["name"]: one for one in http_call(server.http, "POST", "/v2/repository/index").json}
        for name, words in reasons.items():
            assert index[name]["state"] == "UNAVAILABLE"
            for word in words:
                assert word in index[name]["reason"]


def test_a_port_that_is_taken(launcher, run, server):
    port = server.http.rpartition(":")[2]
    flags = [*ports()[1:], f"--http-port={port}", "--http-address=127.0.0.1", "--model-control-mode=explicit"]
    status, output = run(*flags)
    assert status == 1
    assert f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use" in output


def test_every_command_says_how_it_is_used_by_either_order_of_words(launcher):
    if launcher.oracle:
        pytest.skip("asks the program nerite")

    def said(*words: str) -> str:
        return subprocess.run([servers.nerite_binary(), *words], check=True, capture_output=True, text=True).stdout

    for command in ("serve", "shm", "doctor", "demo", "config", "ready", "top", "model", "completions", "man"):
        usage = said(command, "--help")
        assert usage.startswith(f"Usage: nerite {command}"), usage
        assert said("help", command) == usage
    assert said("help", "help") == said("help")


def test_an_error_that_ends_the_start_is_a_line_of_a_log_of_json(launcher, run, server, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no such format")
    port = server.http.rpartition(":")[2]
    flags = [*ports()[1:], f"--http-port={port}", "--http-address=127.0.0.1", "--model-control-mode=explicit", "--log-format=json"]
    status, output = run(*flags)
    lines = [json.loads(line) for line in output.splitlines()]
    assert status == 1 and lines[-1]["level"] == "error"
    assert lines[-1]["message"].startswith("failed to start HTTP service: Unavailable - ")
    # A person looks at stderr, which is not the log here.
    status, output = run(*flags, f"--log-file={tmp_path / 'log'}")
    assert status == 1 and output.startswith("error: failed to start HTTP service: ")
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["message"] == lines[-1]["message"]


def test_the_lines_that_scripts_look_for(launcher):
    repository = launcher.copy_of("lines", "identity_fp32")
    with launcher.running("lines", repository=repository) as server:
        # The last of them may come a moment after the server is live.
        last = f"Started Metrics Service at {server.metrics}"
        deadline = time.monotonic() + START_S
        while last not in server.log_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        log = server.log_text()
        for line in (
            f"Started GRPCInferenceService at {server.grpc}", f"Started HTTPService at {server.http}", last,
            "successfully loaded 'identity_fp32'",
        ):  # fmt: skip
            assert line in log
        if not launcher.oracle:
            page = f"Started the page for browsers of this host at http://{server.metrics}/"
            assert page in log and log.index(page) < log.index(last)


def test_a_load_is_one_line_whatever_versions_it_has(launcher):
    repository = launcher.copy_of("versions", "identity_fp32")
    (repository / "identity_fp32" / "2").mkdir()
    config = repository / "identity_fp32" / "config.pbtxt"
    config.write_text(config.read_text() + "\nversion_policy { all { } }\n")
    with launcher.running("versions", repository=repository) as server:
        assert http_call(server.http, "GET", "/v2/models/identity_fp32/versions/2/ready").status == 200
        assert server.log_text().count("successfully loaded 'identity_fp32'") == 1


def test_with_port_0_the_log_says_which_ports_the_system_chose(launcher, tmp_path):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 writes port 0; and it needs a server of its own")
    command, environment = servers.nerite_command(launcher.copy_of("any_port", "identity_fp32"))
    flags = [f"--{one}-port=0" for one in ("http", "grpc", "metrics")]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *flags, "--http-address=127.0.0.1"], env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while "Started Metrics Service" not in log.read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        places = dict(re.findall(r"Started (\w+)[\w ]* at (\S+)\"", log.read_text()))
        for service in ("GRPCInferenceService", "HTTPService", "Metrics"):
            host, _, port = places[service].rpartition(":")
            socket.create_connection((host, int(port))).close()
    finally:
        process.kill()
        process.wait()


def test_who_is_told_that_it_is_live_finds_all_ports_open(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 opens them one after the other, and has no sessions")
    path = tmp_path / "sessions"
    repository = launcher.copy_of(f"ports_{time.monotonic_ns()}", "identity_fp32")
    with launcher.running("clients", f"--session-socket={path}", repository=repository) as server:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as session:
            session.connect(str(path))
        for url in (server.grpc, server.metrics):
            host, port = url.split(":")
            socket.create_connection((host, int(port))).close()


SLOW = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
SEEN_MS = 4000
BUSY_MS = 10_000


@contextlib.contextmanager
def with_a_slow_model(launcher, name: str, *flags: str, delay_ms: int = SLOW_MS):
    """A server whose model takes so long."""
    name = f"{name}_{time.monotonic_ns()}"
    repository = launcher.copy_of(name, "slow_fp32")
    config = repository / "slow_fp32" / "config.pbtxt"
    text = config.read_text()
    assert f'"{SLOW_MS}"' in text
    config.write_text(text.replace(f'"{SLOW_MS}"', f'"{delay_ms}"'))
    with launcher.running(name, *flags, repository=repository) as server:
        yield server


@contextlib.contextmanager
def slow_request(server, delay_ms: int = SLOW_MS):
    """A request in flight, whose answer must come. A block that takes longer than the request is done again."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        delay = Delay(delay_ms)
        running = pool.submit(http_infer, server.http, "slow_fp32", SLOW)
        delay.wait_for_requests(server, "slow_fp32")
        try:
            yield
        except (OSError, http.client.HTTPException, AssertionError):
            delay.must_last()
            raise
        delay.must_last()
        assert running.result().status == 200


def test_onnx_runtime_reports_nothing_to_its_makers(launcher, tmp_path):
    """Its official builds would leave the identifier of the machine and what they are about to send."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    repository = launcher.copy_of("unreported", "digits")
    command, environment = servers.nerite_command(repository)
    # The library does not report from tests that it recognises.
    environment = {name: value for name, value in environment.items() if not name.startswith(("PYTEST", "CI"))}
    environment |= {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    flags = ["--session-socket=off", servers.onnxruntime_flag()]
    server = launcher.start(command, environment, flags, launcher.scratch / "unreported.log", repository)
    assert "ONNX Runtime" in server.log_text()
    assert servers.stop(server) == 0
    assert list(tmp_path.rglob("*")) == []


@again_if_too_late
def test_a_polite_end_lets_requests_finish(launcher):
    with with_a_slow_model(launcher, "polite") as server:
        with slow_request(server):
            server.process.terminate()
        assert server.process.wait(START_S) == 0


@differs("2.51 closes its ports at once; what it answers while it exits is seen on open connections only")
@again_if_too_late
def test_while_requests_are_in_flight_everybody_sees_that_the_server_exits(launcher):
    with with_a_slow_model(launcher, "exiting", delay_ms=SEEN_MS) as server, tritongrpc.InferenceServerClient(
        server.grpc
    ) as grpc:
        assert grpc.is_server_ready()
        with slow_request(server, SEEN_MS):
            server.process.terminate()
            while http_call(server.http, "GET", "/v2/health/ready").status == 200:
                time.sleep(0.01)
            for probe in ("ready", "live"):
                answer = http_call(server.http, "GET", f"/v2/health/{probe}")
                assert (answer.status, b"Server exiting" in answer.body) == (503, True)
            assert not grpc.is_server_ready() and not grpc.is_server_live()
            refused = http_infer(server.http, "slow_fp32", SLOW)
            assert (refused.status, "Server is stopping" in refused.json["error"]) == (503, True)
            with pytest.raises(InferenceServerException, match="GRPC server is shutting down") as refusal:
                grpc.infer("slow_fp32", [tritongrpc.InferInput("INPUT0", [1], "FP32")])
            assert refusal.value.status() == "StatusCode.UNAVAILABLE"
            http_call(server.http, "GET", "/v2/models/slow_fp32/ready").refused("UNAVAILABLE", "Server not ready")
            with pytest.raises(InferenceServerException, match="Server not ready"):
                grpc.is_model_ready("slow_fp32")
            assert http_call(server.http, "GET", "/v2").ok().json["name"] == grpc.get_server_metadata().name
            assert b"\nnerite_ready 0\n" in http_call(server.metrics, "GET", "/metrics").ok().body
        # The connections that are open and idle do not keep it.
        assert server.process.wait(START_S) == 0


@pytest.mark.parametrize("busy", [False, True])
@again_if_too_late
def test_the_log_tells_what_the_end_waits_for(launcher, busy):
    with with_a_slow_model(launcher, f"told_{busy}", delay_ms=SEEN_MS) as server:
        if busy:
            delay = Delay(SEEN_MS)
            threading.Thread(target=lambda: lost(server)).start()
            if launcher.oracle:
                time.sleep(1)
            else:
                delay.wait_for_requests(server, "slow_fp32")
        server.process.terminate()
        if busy:
            delay.must_last()
        assert server.process.wait(START_S) == 0
        log = server.log_text()
    lines = [
        r"Signal \(15\) received", "Waiting for in-flight requests to complete",
        r"Timeout \d+: Found 0 model versions that have in-flight inferences", "All models are stopped, unloading models",
        r"Timeout \d+: Found 0 live models and 0 in-flight non-inference requests",
    ]  # fmt: skip
    assert re.search(".*".join(lines), log, re.DOTALL), log[-3000:]
    assert "successfully unloaded 'slow_fp32' version 1" in log
    if busy and not launcher.oracle:
        # 2.51 waits for connections before, and tells of those.
        assert re.search(r"Timeout (30|29): Found 1 model versions that have in-flight inferences", log)
        assert "Model 'slow_fp32' (version 1) has 1 in-flight inferences" in log


@differs("2.51 ends at once, without a word")
@again_if_too_late
def test_a_server_whose_terminal_has_gone_lets_requests_finish(launcher):
    with with_a_slow_model(launcher, "hangup") as server:
        with slow_request(server):
            server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(START_S) == 0
        assert "Signal (1) received." in server.log_text()


@differs("2.51 ends at once, without a word")
def test_a_signal_that_means_nothing_is_logged_and_nobody_else_learns_of_it(launcher):
    with launcher.running("user_signals", repository=launcher.copy_of("user_signals", "identity_fp32")) as server:
        server.process.send_signal(signal.SIGUSR2)
        with open_client("http", server) as client:
            client.infer("identity_fp32", [fp32("INPUT0", [1.0])])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and "means nothing to this server" not in server.log_text():
            time.sleep(0.02)
        assert f"Signal ({signal.SIGUSR2.value}) received. It means nothing to this server, which goes on." in server.log_text()
        assert servers.stop(server) == 0


SIGNALLING = '''
import os
import signal


class TritonPythonModel:
    def initialize(self, args):
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getppid(), number)
'''


@pytest.mark.parametrize("has_log_file", [False, True])
def test_user_signals_do_not_end_a_server_that_loads_its_models(launcher, tmp_path, has_log_file):
    if launcher.oracle:
        pytest.skip("2.51 ends at once")
    repository = launcher.copy_of(f"early_signals_{has_log_file}")
    (repository / "signalling" / "1").mkdir(parents=True)
    (repository / "signalling" / "1" / "model.py").write_text(SIGNALLING)
    (repository / "signalling" / "config.pbtxt").write_text('backend: "python"')
    flags = [f"--log-file={tmp_path / 'log'}"] if has_log_file else []
    with launcher.running("early_signals", PATIENT, *flags, repository=repository) as server:
        # It drains once it serves, as it was told by SIGUSR1.
        while http_call(server.http, "GET", "/v2/models/signalling/ready").status != 503:
            assert server.process.poll() is None
        answer = http_call(server.http, "GET", "/v2/health/ready")
        assert answer.status == 503 and b"draining" in answer.body
        assert servers.stop(server) == 0


def test_a_server_under_nohup_outlives_its_terminal(launcher):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = launcher.running("nohup", repository=launcher.copy_of("nohup", "identity_fp32"))
        server = running.__enter__()
    finally:
        signal.signal(signal.SIGHUP, before)
    with contextlib.ExitStack() as ends:
        ends.push(running)
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert http_call(server.http, "GET", "/v2/health/ready").status == 200
        assert servers.stop(server) == 0


@again_if_too_late
def test_two_signals_at_once_are_one(launcher):
    with with_a_slow_model(launcher, "twice") as server:
        with slow_request(server):
            server.process.terminate()
            time.sleep(0.05)
            server.process.terminate()
        assert server.process.wait(START_S) == 0


@pytest.mark.parametrize("busy", [False, True])
@differs("2.51 waits a second at least")
@again_if_too_late
def test_no_time_to_exit_is_enough_if_nothing_is_in_flight(launcher, busy):
    with with_a_slow_model(launcher, f"hasty_{busy}", "--exit-timeout-secs=0", delay_ms=BUSY_MS) as server:
        if busy:
            delay = Delay(BUSY_MS)
            threading.Thread(target=lambda: lost(server)).start()
            delay.wait_for_requests(server, "slow_fp32")
        server.process.terminate()
        assert server.process.wait(START_S) == (1 if busy else 0)
        assert ("Exit timeout expired" in server.log_text()) == busy


def lost(server) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        http_infer(server.http, "slow_fp32", SLOW)


def test_services_can_be_switched_off(launcher):
    repository = launcher.copy_of("quiet", "identity_fp32")
    with launcher.running("quiet", "--allow-grpc=false", "--allow-metrics=false", repository=repository) as server:
        for url in (server.grpc, server.metrics):
            host, _, port = url.rpartition(":")
            with socket.socket() as probe:
                assert probe.connect_ex((host, int(port))) != 0


def test_polling_brings_and_takes_models(launcher):
    repository = launcher.copy_of("polled", "identity_fp32")
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with launcher.running("polled", *flags, repository=repository) as server:
        shutil.copytree(launcher.catalogue / "identity_int32", repository / "identity_int32")
        wait_ready(server, "identity_int32", True)
        shutil.rmtree(repository / "identity_int32")
        wait_ready(server, "identity_int32", False)


def test_polling_takes_what_changed_and_keeps_what_does_not_load(launcher):
    repository = launcher.copy_of("polled_changes", "identity_fp32")
    config = repository / "identity_fp32" / "config.pbtxt"
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with launcher.running("polled_changes", *flags, repository=repository) as server, open_client("http", server) as client:
        good = config.read_text()
        config.write_text(good + 'parameters { key: "changed" value { string_value: "yes" } }\n')
        deadline = time.monotonic() + 60
        while "changed" not in client.config("identity_fp32").get("parameters", {}):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        config.write_text("this is no configuration")
        time.sleep(3)
        assert client.infer("identity_fp32", [fp32("INPUT0", [1])])
        assert server.log_text().count("Poll failed for model directory 'identity_fp32'") <= 2


def wait_ready(server, model: str, wanted: bool) -> None:
    deadline = time.monotonic() + 60
    while (http_call(server.http, "GET", f"/v2/models/{model}/ready").status == 200) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_server_name(launcher):
    repository = launcher.copy_of("named", "identity_fp32")
    with launcher.running("named", "--id=tablet", repository=repository) as server:
        with urllib.request.urlopen(f"http://{server.http}/v2") as answer:
            assert json.load(answer)["name"] == "tablet"


@differs("2.51 writes all of its log to stderr")
def test_information_goes_to_stdout_and_faults_to_stderr(launcher, tmp_path):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    command, environment = servers.nerite_command(launcher.copy_of("streams", "identity_fp32"))
    if launcher.oracle:
        command, environment = triton.command(launcher.scratch / "streams", launcher.scratch)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen([*command, *ports()], env=environment, stdout=out, stderr=err)
        deadline = time.monotonic() + START_S
        while "Started Metrics" not in (tmp_path / "out").read_text() + (tmp_path / "err").read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.terminate()
        process.wait()
    assert "Started HTTPService" in (tmp_path / "out").read_text()
    assert "Started HTTPService" not in (tmp_path / "err").read_text()
