"""Is a Python model ready exactly while it can answer, and does asking for it harm nobody?"""

import os
import pathlib
import signal
import socket
import threading
import time
import urllib.request

import numpy as np
import pytest
import python_catalogue
from clients import Refused, differs, fp32, http_call, open_client, text
from python_setup import Gates, strings

WAIT_S = 60


@pytest.fixture
def repository(launcher):
    dying = python_catalogue.tensors(HOW="BYTES"), python_catalogue.tensors(PID="INT64")
    made = launcher.copy_of(f"python_readiness_{time.monotonic_ns()}")
    python_catalogue.put(made, python_catalogue.vector("py_say", "has_say"))
    python_catalogue.put(made, python_catalogue.named("py_identity"))
    python_catalogue.put(made, python_catalogue.named("py_asking"))
    python_catalogue.put(made, python_catalogue.python("py_dying", "dying", *dying))
    return made


@pytest.fixture
def server(launcher, repository):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    with launcher.running(repository.name, repository=repository) as found:
        yield found


@pytest.fixture
def client(server):
    with open_client("http", server) as found:
        yield found


def status(server, path: str) -> int:
    return http_call(server.http, "GET", path).status


def ready(server, model: str) -> bool:
    return status(server, f"/v2/models/{model}/ready") == 200


def until(look) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def set_answer(client, answer: int, ms: int = 0) -> None:
    client.infer("py_say", [fp32("INPUT0", [answer, ms])])


def counted(client) -> tuple[int, int]:
    """How often `is_ready` was called, and how many of the calls ran at the same time."""
    reply = client.infer("py_say", [fp32("INPUT0", [])])
    calls, most = np.frombuffer(reply.outputs["OUTPUT0"].raw, np.float32)
    return int(calls), int(most)


def metric(server, model: str, family: str = "nerite_model_ready") -> str:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (one for one in lines if one.startswith(f'{family}{{model="{model}"'))
    return line.split()[-1]


def restarts(server, model: str) -> int:
    return int(metric(server, model, "nerite_model_restarts_total"))


def index(client) -> dict:
    return {one["name"]: one for one in client.index() if one["name"].startswith("py_")}


@differs("2.51 does not ask models", run=False)
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (0, "is not ready (user-defined check failed)."),
        (2, "ValueError: cannot tell"),
        (3, "is_ready() must return a boolean value"),
    ],
)
def test_a_readiness_answer_other_than_true_means_not_ready(server, client, answer, why):
    assert ready(server, "py_say") and status(server, "/v2/health/ready") == 200
    set_answer(client, answer)
    assert not ready(server, "py_say") and status(server, "/v2/health/ready") == 400
    assert ready(server, "py_identity") and metric(server, "py_say") == "0" and metric(server, "py_identity") == "1"
    assert why in server.log_text()
    set_answer(client, 1)
    assert ready(server, "py_say") and status(server, "/v2/health/ready") == 200 and metric(server, "py_say") == "1"


@differs("2.51 does not ask models", run=False)
def test_concurrent_readiness_checks_share_one_question_and_block_no_request(server, client):
    host, port = server.http.split(":")
    set_answer(client, 1, 100)
    calls_before, _ = counted(client)
    began, answers, over = time.monotonic(), [], threading.Event()

    def hostile(which: int) -> None:
        while not over.is_set():
            with socket.create_connection((host, int(port))) as link:
                link.sendall(b"GET /v2/models/py_say/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
                # Half of them go without waiting for the answer.
                if which % 2:
                    answers.append(link.recv(100)[:15])
                else:
                    time.sleep(0.05)

    threads = [threading.Thread(target=hostile, args=(which,)) for which in range(20)]
    for one in threads:
        one.start()
    slowest, well = 0.0, 0
    while time.monotonic() < began + 2:
        start = time.monotonic()
        assert status(server, "/v2/health/live") == 200
        slowest, well = max(slowest, time.monotonic() - start), well + 1
        client.infer("py_identity", [fp32("INPUT0", [1])])
        time.sleep(0.01)
    over.set()
    for one in threads:
        one.join()
    spent = time.monotonic() - began
    calls, most = counted(client)
    assert most == 1 and 1 <= calls - calls_before <= spent / 0.1 + 2
    assert len(answers) >= 10 and set(answers) == {b"HTTP/1.1 200 OK"}
    assert slowest < 1 and well > 3, (slowest, well)


@differs("2.51 does not ask models", run=False)
def test_a_model_with_a_late_readiness_answer_is_not_ready_and_still_serves(server, client):
    set_answer(client, 1, 8000)
    start = time.monotonic()
    assert not ready(server, "py_say")
    assert 4.5 < time.monotonic() - start < 8
    start = time.monotonic()
    assert not ready(server, "py_say"), "it has not answered yet, and is not asked again"
    assert time.monotonic() - start < 1
    assert "Timed out waiting for user-defined is_ready() response" in server.log_text()
    set_answer(client, 1)
    until(lambda: ready(server, "py_say"))
    assert counted(client)[1] == 1


def pid_of(client) -> int:
    reply = client.infer("py_dying", [text("HOW", [b"tell"])])
    return int(np.frombuffer(reply.outputs["PID"].raw, np.int64)[0])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not pathlib.Path(f"/proc/{pid}/stat").exists())


@differs("2.51 does not start processes anew", run=False)
def test_a_process_that_died_is_started_anew_before_anybody_asks(server, client):
    first = pid_of(client)
    assert restarts(server, "py_dying") == 0
    kill(first)
    until(lambda: restarts(server, "py_dying") == 1 and metric(server, "py_dying") == "1")
    assert ready(server, "py_dying") and index(client)["py_dying"]["state"] == "READY"
    assert server.log_text().count("starting the process of model instance 'py_dying_0' anew") == 1
    second = pid_of(client)
    assert second != first and server.log_text().count("anew") == 1, "the request took the process that was there"


@differs("2.51 does not start processes anew", run=False)
def test_a_readiness_check_waits_for_the_next_process(server, client):
    kill(pid_of(client))
    assert ready(server, "py_dying") and restarts(server, "py_dying") == 1


@differs("2.51 does not start processes anew", run=False)
def test_requests_that_end_its_process_let_others_wait_for_starts_only(server, client):
    def poison() -> str:
        try:
            client.infer("py_dying", [text("HOW", [b"exit"])])
        except Refused as refused:
            return str(refused)
        raise AssertionError("it was answered")

    # Ever longer pauses would come to 31 s for six, and requests would fail meanwhile.
    for _ in range(6):
        assert "while it had this request; it is started anew" in poison()
    with open_client("http", server) as other:
        pid_of(other)
    assert restarts(server, "py_dying") == 6
    until(lambda: metric(server, "py_dying") == "1")
    assert ready(server, "py_dying") and ready(server, "py_identity")
    # Many in a row would keep others waiting. So they fail while a pause lasts.
    until(lambda: "had answered no request; the next one is started in" in poison())
    until(lambda: metric(server, "py_dying") == "1")
    pid_of(client)


@differs("2.51 does not start processes anew", run=False)
def test_a_model_whose_process_cannot_come_back_is_not_ready(server, client, repository):
    code = repository / "py_dying" / "1" / "model.py"
    source = code.read_text()
    pid = pid_of(client)
    code.write_text("raise ValueError('not today')\n")
    kill(pid)
    # Nobody has asked whether it is ready.
    until(lambda: metric(server, "py_dying") == "0")
    until(lambda: "ValueError: not today" in index(client)["py_dying"].get("reason", ""))
    assert not ready(server, "py_dying") and status(server, "/v2/health/ready") == 400
    with open_client("grpc", server) as grpc_client:
        assert not grpc_client.model_ready("py_dying")
    entry = index(client)["py_dying"]
    assert entry["state"] == "UNAVAILABLE" and "ValueError: not today" in entry["reason"]
    assert index(client)["py_identity"]["state"] == "READY" and metric(server, "py_dying") == "0"
    with pytest.raises(Refused, match="could not be started anew"):
        pid_of(client)
    code.write_text(source)
    until(lambda: metric(server, "py_dying") == "1")
    assert ready(server, "py_dying")
    assert index(client)["py_dying"]["state"] == "READY" and metric(server, "py_dying") == "1"
    assert pid_of(client) != pid


@differs("2.51 has no is_ready")
def test_a_model_hears_what_another_says_of_its_readiness(client):
    def ready_by_model(model: str, version: str = "") -> str:
        code = f"out = refused(pb_utils.is_model_ready, {model!r}, {version!r}) if {version!r} == 'x' else pb_utils.is_model_ready({model!r}, {version!r})"
        return strings(client.infer("py_asking", [text("CODE", [code.encode()])]).outputs["SAID"].raw)[0]

    assert (ready_by_model("py_say"), ready_by_model("py_say", "1"), ready_by_model("py_say", "2"), ready_by_model("nobody")) == ("True", "True", "False", "False")
    set_answer(client, 0)
    assert (ready_by_model("py_say"), ready_by_model("py_say", "1"), ready_by_model("py_identity")) == ("False", "False", "True")
    set_answer(client, 1)
    assert ready_by_model("py_say") == "True"
    # It is asked while it executes.
    assert ready_by_model("py_asking") == "True"
    refused = "TritonModelException: Failed to check model readiness: failed to get model version from specified version string 'x' (details: stol)"
    assert ready_by_model("py_say", "x").startswith(refused)


DIES_EARLY = """
import os, signal, threading, time

def die():
    pass_gate("loaded")
    # Its start was reported meanwhile.
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)

class TritonPythonModel:
    def initialize(self, args):
        with open({starts!r}, "a") as file:
            file.write("started\\n")
        threading.Thread(target=die).start()

    def execute(self, requests):
        return None
"""


@differs("2.51 starts a process that died no more", run=False)
def test_a_process_that_dies_at_each_start_is_started_ever_more_rarely(launcher, tmp_path):
    if any(launcher.urls):
        pytest.skip("needs a server of its own")
    starts, gates = tmp_path / "starts", Gates(tmp_path / "gates")
    repository = launcher.copy_of(f"python_dies_early_{time.monotonic_ns()}")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    python_catalogue.put(repository, python_catalogue.vector("py_dies_early", "identity"))
    (repository / "py_dies_early" / "1" / "model.py").write_text(gates.code + DIES_EARLY.format(starts=str(starts)))
    with launcher.running(repository.name, repository=repository) as server, open_client("http", server) as client:
        began = time.monotonic()
        gates.open("loaded")

        def count():
            return len(starts.read_text().splitlines())

        until(lambda: count() >= 4)
        # The load, the first start after an early death, and two with pauses of 1 s and 2 s. What is late makes them fewer.
        assert count() <= 4 or time.monotonic() - began >= 7
        assert time.monotonic() - began >= 3
        until(lambda: not ready(server, "py_dies_early"))
        with pytest.raises(Refused, match="its process ended early, as the one before, and had answered no request; the next one is started in"):
            client.infer("py_dies_early", [fp32("INPUT0", [1])])
        assert ready(server, "py_identity")
