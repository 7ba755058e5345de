"""Are changes of a polled repository served long before the next interval, and is nothing refused meanwhile?"""

import threading
import time

import pytest
from clients import http_call, open_client
from followed_setup import CONFIG, FLAGS, answer, module, waits_for
from meanwhile import Delay, again_if_too_late

# Where nothing is written for so long, the server takes a copy for complete.
QUIET_MS = 200

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


def put(repository, name: str, factor: int, start_s: float = 0) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    # A name that the other models' modules have as well: each process has its own.
    (version / "helper.py").write_text(module(factor))
    (version / "model.py").write_text(MODEL % start_s)
    (repository / name / "config.pbtxt").write_text(CONFIG)


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
    assert answer(client, "scale") == 2
    answers, failures, stop = [], [], threading.Event()

    def infer():
        try:
            with open_client("http", server) as own:
                while not stop.is_set():
                    answers.append(answer(own, "scale"))
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            failures.append(failure)

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        version = server.repository / "scale" / "1"
        # What the model imports, the model itself, and a file that an editor puts in the place of the old one.
        (version / "helper.py").write_text(module(3))
        waits_for(lambda: answer(client, "scale"), 3)
        (version / "model.py").write_text((MODEL % 0.3).replace("one * FACTOR", "one * (FACTOR + 1)"))
        waits_for(lambda: answer(client, "scale"), 4)
        (version / "helper.py~").write_text(module(4))
        (version / "helper.py~").rename(version / "helper.py")
        waits_for(lambda: answer(client, "scale"), 5)
        waits_for(lambda: answers[-1:], [5])
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
    (server.repository / "later" / "1" / "helper.py").write_text(module(8))
    waits_for(lambda: answer(client, "later"), 8)
    (server.repository / "later").rename(server.repository.parent / "followed_gone")
    waits_for(lambda: is_ready(server, "later"), False)


def test_code_that_does_not_load_leaves_the_old_code_up_until_it_is_fixed(followed):
    server, client = followed
    path = server.repository / "scale" / "1" / "helper.py"
    path.write_text("FACTOR = \n")
    waits_for(lambda: "SyntaxError" in server.log_text(), True)
    assert answer(client, "scale") == 2
    path.write_text(module(9))
    waits_for(lambda: answer(client, "scale"), 9)


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
            assert answer(client, "scale") == 2


@again_if_too_late
def test_a_model_that_is_still_being_copied_is_waited_for(followed):
    server, client = followed
    name = f"later_{time.monotonic_ns()}"
    put(server.repository.parent / "copied_from", name, 7)
    source, copy = server.repository.parent / "copied_from" / name, server.repository / name
    (copy / "1").mkdir(parents=True)
    pause = Delay(QUIET_MS)
    with (copy / "1" / "weights").open("wb") as file:
        for _ in range(20):
            file.write(bytes(1000))
            file.flush()
            pause.must_last()
            pause = Delay(QUIET_MS)
            time.sleep(0.05)
    for part in ("1/helper.py", "1/model.py", "config.pbtxt"):
        (copy / part).write_text((source / part).read_text())
    pause.must_last()
    waits_for(lambda: is_ready(server, name), True)
    assert answer(client, name) == 7
    faults = [line for line in server.log_text().splitlines() if "Poll failed" in line or "failed to load" in line]
    assert not any(name in line for line in faults), faults
