"""What if a client has run after run ended by its timeouts?

Each of its requests runs for hours and asks for some milliseconds. Ending a run is work that the client causes: on the thread that has the clock, and where
the run is in a process, by ending that process.
"""

import concurrent.futures
import pathlib
import random
import shutil

import numpy as np
import pytest
import servers
from busy import front_threads_come_back
from clients import Given, fp32, open_client, refuses
from meters import peak
from witness import resident, settled, witnesses

MIB = 1 << 20
ENDLESS = (1 << 31) - 1
ATTACKERS = 4
REQUESTS = 400
GROWN_MAX = 32 * MIB
CONFIG = """\
backend: "onnxruntime"
instance_group [{ kind: KIND_CPU count: 2 }]
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "rounds" data_type: TYPE_INT64 dims: [ 1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
parameters { key: "nerite.timeout_ends_runs" value { string_value: "true" } }
"""
ROUNDS = servers.ROOT / "crates" / "onnx" / "tests" / "models" / "rounds.onnx"


def put(repository: pathlib.Path, name: str, more: str = "") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG + more)
    shutil.copy(ROUNDS, repository / name / "1" / "model.onnx")


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 ends no run")
    repository = launcher.copy_of("hostile_timeouts", "simple", "identity_fp32")
    put(repository, "timed")
    put(repository, "apart", 'parameters { key: "isolated" value { string_value: "true" } }\n')
    flags = [servers.onnxruntime_flag(), "--http-thread-count=1"]
    with launcher.running("hostile_timeouts", *flags, repository=repository) as found:
        yield found


def inputs(rounds: int) -> list[Given]:
    return [fp32("x", [1]), Given("rounds", "INT64", [1], np.array([rounds], np.int64).tobytes())]


def attack(server, model: str) -> None:
    def send(number: int) -> None:
        chance = random.Random(number)
        with open_client("grpc" if number % 2 else "http", server) as client:
            for _ in range(REQUESTS // ATTACKERS):
                with refuses("UNAVAILABLE", "Request timeout expired"):
                    client.infer(model, inputs(ENDLESS), parameters={"timeout": chance.randrange(1, 20_000)})

    with concurrent.futures.ThreadPoolExecutor(ATTACKERS) as pool:
        for sent in [pool.submit(send, number) for number in range(ATTACKERS)]:
            sent.result()


@pytest.mark.parametrize("model", ["timed", "apart"])
def test_runs_that_end_by_their_timeouts_harm_nobody(server, model):
    attack(server, model)
    before = settled(lambda: resident(server.pid) // MIB) * MIB
    with witnesses(server), front_threads_come_back(server), peak(lambda: resident(server.pid)) as most:
        attack(server, model)
    assert most.most - before < GROWN_MAX
    # Both instances are free, and compute what they are asked for.
    with open_client("http", server) as client:
        for rounds in range(4):
            assert client.infer(model, inputs(rounds)).outputs["y"].raw == np.array([1 + rounds], np.float32).tobytes()
