"""Are changes of a polled repository served long before the next interval, and is nothing refused meanwhile?"""

import threading
import time

import numpy as np
import pytest
from clients import fp32, http_call, open_client
from python_setup import PATIENT

# No look at an interval happens within this test.
FLAGS = ["--model-control-mode=poll", "--repository-poll-secs=3600", PATIENT]
WAIT_S = 60

CONFIG = """\
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """\
import time

import triton_python_backend_utils as pb_utils

from helper import FACTOR

START_S = %s


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(START_S)

    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * FACTOR)]) for one in found]
"""


def helper(factor: int) -> str:
    """A module. Each has another length, because Python takes a module of the same length and second for the same."""
    return f"FACTOR = {factor}{' ' * factor}\n"


def put(repository, name: str, factor: int, start_s: float = 0) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    # A name that the other models' modules have as well: each process has its own.
    (version / "helper.py").write_text(helper(factor))
    (version / "model.py").write_text(MODEL % start_s)
    (repository / name / "config.pbtxt").write_text(CONFIG)


def answer(client, name: str = "scale") -> float:
    return np.frombuffer(client.infer(name, [fp32("IN", [1])]).outputs["OUT"].raw, np.float32)[0]


def waits_for(found, wanted) -> None:
    deadline = time.monotonic() + WAIT_S
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, last
        time.sleep(0.02)


def is_ready(server, name: str) -> bool:
    return http_call(server.http, "GET", f"/v2/models/{name}/ready").status == 200


@pytest.fixture
def followed(launcher):
    if launcher.oracle:
        pytest.skip("2.51 looks at each interval only")
    repository = launcher.copy_of("followed")
    put(repository, "scale", 2)
    with launcher.running("followed", *FLAGS, repository=repository) as found, open_client("http", found) as client:
        yield found, client


def test_new_code_is_served_soon_and_the_old_code_until_then(followed):
    server, client = followed
    assert answer(client) == 2
    answers, failures, stop = [], [], threading.Event()

    def infer():
        try:
            with open_client("http", server) as own:
                while not stop.is_set():
                    answers.append(answer(own))
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            failures.append(failure)

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        version = server.repository / "scale" / "1"
        # What the model imports, the model itself, and a file that an editor puts in the place of the old one.
        (version / "helper.py").write_text(helper(3))
        waits_for(lambda: answer(client), 3)
        (version / "model.py").write_text((MODEL % 0.3).replace("one * FACTOR", "one * (FACTOR + 1)"))
        waits_for(lambda: answer(client), 4)
        (version / "helper.py~").write_text(helper(4))
        (version / "helper.py~").rename(version / "helper.py")
        waits_for(lambda: answer(client), 5)
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert answers == sorted(answers), "no answer of old code comes after one of new code"
    assert set(answers) == {2, 3, 4, 5}


def test_models_that_come_and_go_are_seen_soon_those_in_new_folders_too(followed):
    server, client = followed
    put(server.repository, "later", 7)
    waits_for(lambda: is_ready(server, "later"), True)
    assert answer(client, "later") == 7
    # A folder that was not there at the start is watched as well.
    (server.repository / "later" / "1" / "helper.py").write_text(helper(8))
    waits_for(lambda: answer(client, "later"), 8)
    (server.repository / "later").rename(server.repository.parent / "followed_gone")
    waits_for(lambda: is_ready(server, "later"), False)


def test_code_that_does_not_load_leaves_the_old_code_up_until_it_is_mended(followed):
    server, client = followed
    module = server.repository / "scale" / "1" / "helper.py"
    module.write_text("FACTOR = \n")
    waits_for(lambda: "SyntaxError" in server.log_text(), True)
    assert answer(client) == 2
    module.write_text(helper(9))
    waits_for(lambda: answer(client), 9)


def test_a_model_that_writes_to_its_own_directory_does_not_keep_the_server_looking(launcher):
    if launcher.oracle:
        pytest.skip("2.51 looks at each interval only")
    repository = launcher.copy_of("restless")
    put(repository, "scale", 2)
    with launcher.running("restless", *FLAGS, "--log-verbose=1", repository=repository) as server:
        notes = repository / "scale" / "1" / "notes"
        begun = time.monotonic()
        for number in range(200):
            notes.write_text(str(number))
            time.sleep(0.01)
        # Each of these loads is one look that found a change. On a busy machine the writes take longer than 2 s.
        assert server.log_text().count("loading: scale:1") <= 3 + (time.monotonic() - begun)
        with open_client("http", server) as client:
            assert answer(client) == 2


def test_a_model_that_is_still_being_copied_is_waited_for(followed):
    server, client = followed
    put(server.repository.parent / "copied_from", "later", 7)
    source, copy = server.repository.parent / "copied_from" / "later", server.repository / "later"
    (copy / "1").mkdir(parents=True)
    with (copy / "1" / "weights").open("wb") as file:
        for _ in range(20):
            file.write(bytes(1000))
            file.flush()
            time.sleep(0.05)
    for name in ("1/helper.py", "1/model.py", "config.pbtxt"):
        (copy / name).write_text((source / name).read_text())
    waits_for(lambda: is_ready(server, "later"), True)
    assert answer(client, "later") == 7
    assert "Poll failed" not in server.log_text() and "failed to load" not in server.log_text()
