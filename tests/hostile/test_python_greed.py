"""What if a Python model prints a gigabyte, logs without end, keeps what it should free, or dies right after it logged?"""

import contextlib

import pytest
from clients import Refused, fp32, open_client, text
from python_setup import PATIENT, strings
from test_leases import all_the_time
from witness import comes_to, resident

GIB = 1 << 30
SLACK = 8 << 20
HEAD = """\
import os
import signal
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

CHUNK = "x" * 1023 + "\\n"


def prints(byte_size):
    for _ in range(byte_size // (64 * len(CHUNK))):
        sys.stderr.write(CHUNK * 64)
        sys.stderr.flush()


class TritonPythonModel:
"""
PRINTS_AT_ITS_START = HEAD + f"""
    def initialize(self, args):
        prints({GIB})

    def execute(self, requests):
        return []
"""
RUNS_CODE = HEAD + """
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        for request in requests:
            exec(pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode())
        said = np.array([b"done"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)]) for _ in requests]
"""
CONFIG = """\
backend: "python"
input { name: "CODE" data_type: TYPE_STRING dims: 1 }
output { name: "SAID" data_type: TYPE_STRING dims: 1 }
"""


def put(repository, name: str, source: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (repository / name / "1" / "model.py").write_text(source)


@contextlib.contextmanager
def serving(launcher, name: str, writes_log: bool = True):
    if launcher.oracle:
        pytest.skip("what nerite bounds")
    repository = launcher.copy_of(name, "identity_fp32")
    put(repository, "asked", RUNS_CODE)
    put(repository, "prints", PRINTS_AT_ITS_START)
    if not writes_log:
        (launcher.scratch / f"{name}.log").symlink_to("/dev/null")
    flags = ["--model-control-mode=explicit", "--load-model=identity_fp32", "--load-model=asked"]
    with launcher.running(name, PATIENT, *flags, repository=repository) as found:
        yield found


@pytest.fixture(scope="module")
def quiet(launcher):
    """A server whose log nobody keeps."""
    with serving(launcher, "python_greed_quiet", writes_log=False) as found:
        yield found


@pytest.fixture(scope="module")
def logged(launcher):
    with serving(launcher, "python_greed") as found:
        yield found


def do(client, code: str) -> None:
    assert strings(client.infer("asked", [text("CODE", [code.encode()])]).outputs["SAID"].raw) == ["done"]


@contextlib.contextmanager
def others_go_on(server):
    """Another model is answered all the while, and the server keeps nothing."""
    answers, faults = [], []
    with open_client("http", server) as client:

        def infer() -> None:
            sent = fp32("INPUT0", [len(answers), 0.5])
            try:
                assert client.infer("identity_fp32", [sent]).outputs["OUTPUT0"].raw == sent.raw
                answers.append(1)
            except Exception as fault:  # noqa: BLE001
                faults.append(fault)

        before = resident(server.pid)
        with all_the_time(infer):
            yield
    assert not faults and len(answers) > 10, (faults[:3], len(answers))
    grown = resident(server.pid) - before
    print(f"{len(answers)} answers of another model, {grown:+,} bytes resident")
    assert grown < SLACK


def test_a_gigabyte_that_a_model_prints_while_it_executes(quiet):
    with open_client("grpc", quiet) as client, others_go_on(quiet):
        do(client, f"prints({GIB})")


def test_a_gigabyte_that_a_model_prints_at_its_start(quiet):
    with open_client("grpc", quiet) as client, others_go_on(quiet):
        client.load("prints")
        client.unload("prints")


@pytest.mark.parametrize("log", ["pb_utils.Logger.log_info(CHUNK)", "pb_utils.Logger.log_verbose(CHUNK)"])
def test_a_model_that_logs_without_end(quiet, log):
    with open_client("grpc", quiet) as client, others_go_on(quiet):
        do(client, f"for _ in range(50_000): {log}")


def test_a_model_that_keeps_what_it_should_free(quiet):
    with open_client("grpc", quiet) as client, others_go_on(quiet):
        for _ in range(10):
            do(client, "self.kept.append(np.ones(1 << 22))")
        do(client, "self.kept.clear()")


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "os.abort()"])
@pytest.mark.parametrize("says", ["pb_utils.Logger.log_error(WORDS)", "print(WORDS, file=sys.stderr)", "print(WORDS, flush=True)"])
def test_what_a_model_says_right_before_it_dies_is_in_the_log(logged, says, end):
    with open_client("http", logged) as client:
        for turn in range(3):
            words = f"the end {turn} of {abs(hash((says, end)))}"
            with pytest.raises(Refused) as caught:
                do(client, f"{says.replace('WORDS', repr(words))}; {end}")
            assert caught.value.text.startswith("Stub process 'asked_0' is not healthy."), caught.value.text
            comes_to(lambda: logged.log_text().count(words), 1)
            do(client, "pass")
