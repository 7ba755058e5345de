"""What if the system gives the server no more threads, and how many does a client make it start?

Who may have how many is counted for each user but root, so where the system's limit counts, the server runs as another one; that needs root.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import grpc
import pytest
import servers
from clients import http_call, pb, service_stub
from meters import peak

MODELS = 40
# Calls that read the repository: at a time over each connection, and connections.
INDEXES, CONNECTIONS = 100, 4
# Threads that a server may have while it answers those: its own, and 16 that read the disk, of which one peer gets 4. Before there was such a limit, there were 338.
THREADS_MAX = 64
# Whose threads the system counts: nobody else's, not those of another run of these tests either.
STRANGER = 1_000_000 + os.getpid()
# Threads of a server that has one front thread and no worker: eight that it always has, and at times one that trims the heap or unmaps memory.
OWN_THREADS = 9
AS_STRANGER = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
DOCUMENT = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1.5, 2.5]}]}
CONFIG = """\
name: "NAME"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 4 kind: KIND_CPU } ]
parameters { key: "execute_delay_ms" value { string_value: "1" } }
"""


@pytest.fixture
def few(launcher):
    """Starts servers that may have so many threads; the repository has models m0 to m39, all of four instances."""
    if launcher.oracle:
        pytest.skip("2.51 does not start without its threads")
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("no other user to be had: not root")
    scratch = pathlib.Path(tempfile.mkdtemp())
    repository = scratch / "repository"
    for model in range(MODELS):
        (repository / f"m{model}" / "1").mkdir(parents=True)
        (repository / f"m{model}" / "config.pbtxt").write_text(CONFIG.replace("NAME", f"m{model}"))
    for path in [scratch, *scratch.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    running = []

    def start(threads: int, *flags: str):
        command, environment = servers.nerite_command(repository)
        command = [*AS_STRANGER, "prlimit", f"--nproc={threads}", *command]
        flags = ["--session-socket=off", "--http-thread-count=1", *flags]
        running.append(
            servers.start(command, environment, flags, scratch / "log", oracle=False, repository=repository)
        )
        return running[-1]

    try:
        yield start
    finally:
        for one in running:
            servers.stop(one)
        shutil.rmtree(scratch)


def bound(server, threads: int) -> None:
    """From now on it may have so many, those it has included."""
    command = ["prlimit", f"--pid={server.pid}", f"--nproc={threads}:{MODELS}"]
    subprocess.run([*AS_STRANGER, *command], check=True)


def infer(server, model: str):
    return http_call(server.http, "POST", f"/v2/models/{model}/infer", DOCUMENT)


def test_many_models_at_start(few):
    """There is no thread for each, so they are loaded one after the other, and requests for which there is none are told so."""
    server = few(OWN_THREADS + 1)
    answers = [infer(server, f"m{model}") for model in range(MODELS)]
    assert {answer.status for answer in answers} == {200, 503}
    assert answers[0].status == 200
    for answer in answers:
        assert answer.status == 200 or b"no thread to run model" in answer.body, answer.body
    assert server.process.poll() is None


def test_a_load_without_a_thread(few):
    server = few(MODELS, "--model-control-mode=explicit", "--load-model=m0")
    assert infer(server, "m0").status == 200
    bound(server, 1)
    answer = http_call(server.http, "POST", "/v2/repository/models/m1/load")
    assert answer.status == 503, answer
    assert b"no thread (nerite-load) for model 'm1': " in answer.body
    answer = http_call(server.http, "POST", "/v2/repository/models/m0/unload")
    assert answer.status == 503, answer
    assert infer(server, "m0").status == 200
    bound(server, MODELS)
    assert http_call(server.http, "POST", "/v2/repository/models/m1/load").status == 200
    assert infer(server, "m1").status == 200
    assert server.process.poll() is None


def test_a_client_that_asks_for_many_indexes_at_once_gets_few_threads(launcher):
    repository = launcher.copy_of("indexes", "identity_fp32")
    for model in range(1000):
        shutil.copytree(repository / "identity_fp32", repository / f"m{model}")
    flags = ["--model-control-mode=explicit", "--session-socket=off"]
    with launcher.running("indexes", *flags, repository=repository) as server, contextlib.ExitStack() as open_channels:
        # Channels with the same options would share a connection.
        channels = [grpc.insecure_channel(server.grpc, options=[("grpc.max_receive_message_length", -1), ("own", at)]) for at in range(CONNECTIONS)]
        stubs = [service_stub(open_channels.enter_context(channel)) for channel in channels]
        with peak(lambda: len(os.listdir(f"/proc/{server.pid}/task"))) as most:
            calls = [stub.RepositoryIndex.future(pb.RepositoryIndexRequest(), timeout=60) for stub in stubs for _ in range(INDEXES)]
            found = {len(call.result().models) for call in calls}
        assert found == {1001}
        assert most.most <= THREADS_MAX, most.most
