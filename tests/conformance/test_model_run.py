"""Does `nerite model run` run a Python model in the terminal as a server would, and say what is wrong with it?"""

import os
import pathlib
import pty
import subprocess
import sys

import numpy as np
import pytest
import servers

LIMIT_S = 60

CONFIG = """\
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: -1 }, { name: "TEXT" data_type: TYPE_STRING dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: -1 } ]
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }\n"

# The BODY has `request`, its array `values`, and returns a response or None.
MODEL = """\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.factor = 2
        self.family = pb_utils.MetricFamily("runs", "how often", pb_utils.MetricFamily.COUNTER)
        self.runs = self.family.Metric({"model": args["model_name"]})

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        self.runs.increment(1)
BODY

    def finalize(self):
        print("finalized after", self.runs.value())
"""
RETURNS = "        return pb_utils.InferenceResponse([pb_utils.Tensor('OUT', values * self.factor)])"
SENDS = """\
        sender = request.get_response_sender()
        for number in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', values + number)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None"""


@pytest.fixture
def model(tmp_path):
    """Writes a model with this body and returns its directory."""

    def put(body: str = RETURNS, config: str = CONFIG) -> pathlib.Path:
        version = tmp_path / "scale" / "1"
        version.mkdir(parents=True, exist_ok=True)
        source = MODEL.replace("BODY", body)
        if "decoupled: true" in config:
            source = source.replace("return [self.one(request) for request in requests]", "return [self.one(one) for one in requests][0]")
        (version / "model.py").write_text(source)
        (tmp_path / "scale" / "config.pbtxt").write_text(config)
        return tmp_path / "scale"

    return put


def command(folder: pathlib.Path, *words: str) -> list[str]:
    return [str(servers.nerite_binary()), "model", "run", str(folder), f"--python={sys.executable}", *words]


def run(folder: pathlib.Path, *words: str) -> tuple[int, str]:
    """The exit status, and all that was printed."""
    done = subprocess.run(
        command(folder, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, text=True
    )
    return done.returncode, done.stdout


def test_samples_are_made_and_outputs_and_times_printed(model):
    status, said = run(model(), "--batch=2", "--runs=5")
    assert status == 0, said
    assert "input   IN FP32 [2, 1]" in said
    assert "input   TEXT BYTES [2, 1]" in said and "b'sample'" in said
    assert "output  OUT FP32 [2, 1]" in said
    assert "execute took" in said and "the next 4: median" in said
    assert "finalized after 5.0" in said


def test_a_python_without_numpy_is_named_with_the_cure(model, tmp_path):
    bare = tmp_path / "bare-python3"
    # Without the folders that packages are installed to.
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    status, said = run(model(), f"--python={bare}")
    assert status == 2, said
    assert f"nerite model run: no Python to run the model: '{bare}'" in said and "without a numpy that can be imported" in said, said
    assert "-m pip install numpy" in said and "Traceback" not in said, said


def test_inputs_are_given_as_json_and_as_files(model, tmp_path):
    np.save(tmp_path / "in.npy", np.array([[1, 2, 3]], np.float64))
    for given in ("[[1, 2, 3]]", f"@{tmp_path / 'in.npy'}"):
        status, said = run(model(), "--input", f"IN={given}", "--input", "TEXT=[[\"hello\"]]")
        assert status == 0, said
        assert "input   TEXT BYTES [1, 1]: [[b'hello']]" in said
        assert "output  OUT FP32 [1, 3]: [[2., 4., 6.]]" in said


def test_fractions_are_rounded_and_long_values_taken(model):
    status, said = run(model(), "--input=IN=[[0.1]]")
    assert status == 0 and "output  OUT FP32 [1, 1]: [[0.2]]" in said, said
    # More than one argument of a program may have.
    status, said = run(model(), f"--input=IN=[{[1] * 40_000}]")
    assert status == 0 and "output  OUT FP32 [1, 40000]" in said, said
    status, said = run(model(), "--input=IN=[[1e39]]")
    assert status == 2 and "elements that are no FP32" in said, said


def test_a_decoupled_model_sends_its_responses(model):
    status, said = run(model(SENDS, DECOUPLED), "--input=IN=[[1]]")
    assert status == 0, said
    assert [f"response {number}: OUT FP32 [1, 1]: [[{number}.]]" in said for number in (1, 2, 3)] == [True] * 3


REFUSED = {
    "no such input": (["--input=OTHER=1"], "the model has no input 'OTHER'; it has IN, TEXT"),
    "no array": (["--input=IN=[1"], "input 'IN' is not an array of FP32: "),
    "no file": (["--input=IN=@/nowhere.npy"], "input 'IN' is not an array of FP32: "),
    "lost digits": (["--input=IN=[16777217]"], "input 'IN' has elements that are no FP32: "),
    "no such version": (["--version=7"], "model 'scale' has no version 7 to serve; it has 1"),
    "no such option": (["--fast"], "there is no option '--fast'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_as_asked_is_refused(model, name):
    words, reason = REFUSED[name]
    status, said = run(model(), *words)
    assert status == 2, said
    assert reason in said


FAILED = {
    "raises": ("        raise ValueError('no luck')", CONFIG, "in one\n    raise ValueError('no luck')"),
    "returns nonsense": ("        return 7", CONFIG, "Expected an 'InferenceResponse' object in the execute function return list"),
    "answers with an error": (
        "        return pb_utils.InferenceResponse(error=pb_utils.TritonError('not today'))", CONFIG,
        "the model answered with an error: not today",
    ),
    "sends nothing": ("        return None", CONFIG, "execute returned None, and the model has no thread that could still send"),
    "exits": ("        raise SystemExit(5)", CONFIG, "SystemExit: 5"),
    "asks another model": (
        "        return pb_utils.InferenceRequest(model_name='b', requested_output_names=['X'], inputs=[]).exec()", CONFIG,
        "there is no server here that has model 'b'",
    ),
    "writes to an input": ("        values += 1\n" + RETURNS, CONFIG, "output array is read-only\nan input's array is the client's own memory"),
    "makes another datatype": ("        values = values.astype('f8')\n" + RETURNS, CONFIG, "execute failed: output 'OUT' has datatype FP64, where its configuration says FP32"),
    "makes another shape": ("        values = values[0]\n" + RETURNS, CONFIG, "execute failed: output 'OUT' has shape "),
    "does not compile": ("        return [", CONFIG, "SyntaxError"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_of_the_model_is_printed_with_its_own_lines(model, name):
    body, config, reason = FAILED[name]
    status, said = run(model(body, config))
    assert status == 1, said
    assert reason in said
    assert "nerite_model/" not in said, "frames of this program"


def test_other_backends_and_other_folders_are_refused(model, tmp_path):
    folder = model(config=CONFIG.replace("python", "onnxruntime"))
    assert run(folder) == (2, "nerite model run: model 'scale' has backend 'onnxruntime', and only Python models run in a terminal\n")
    status, said = run(tmp_path / "nowhere")
    assert status == 2 and "cannot open the directory" in said


def test_a_profile_names_the_models_functions(model):
    status, said = run(model(), "--profile", "--runs=20")
    assert status == 0, said
    assert "(one)" in said and "cumulative" in said


def at_a_terminal(command: list[str], typed: str) -> tuple[int, str]:
    """Runs a command at a pseudo-terminal of its own and types that."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    os.write(terminal, typed.encode())
    said = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        said += piece
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said.decode()


def test_the_debugger_has_the_terminal(model):
    body = "        if values.shape[1] == 3:\n            raise ValueError('three')\n" + RETURNS
    folder = model(body)
    # At the beginning of execute, then on.
    status, said = at_a_terminal(command(folder, "--pdb"), "p len(requests) + 40\nc\n")
    assert status == 0, said
    assert "41" in said and "output  OUT FP32" in said
    # Where the model raises.
    status, said = at_a_terminal(command(folder, "--pdb", "--input=IN=[[1, 2, 3]]"), "c\np values.sum() + 30\nq\n")
    assert status == 1, said
    assert "ValueError: three" in said and "36.0" in said
    # A breakpoint needs no option, and who leaves the debugger there ends the run.
    status, said = at_a_terminal(command(model("        breakpoint()\n" + RETURNS)), "p 'here' + '!'\nc\n")
    assert status == 0 and "'here!'" in said, said


def test_ctrl_c_ends_the_model_and_removes_the_files_of_the_run(model, tmp_path):
    folder = model("        import time\n        print('waits')\n        time.sleep(600)\n")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    started = subprocess.Popen(
        command(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        for line in started.stdout:
            if line.startswith("waits"):
                break
        assert list(tmp_path.glob("nerite-model-run-*"))
        os.killpg(started.pid, 2)
        rest = started.stdout.read()
        assert started.wait(LIMIT_S) == 1
        assert "KeyboardInterrupt" in rest
        assert not list(tmp_path.glob("nerite-model-run-*"))
    finally:
        started.kill()
        started.wait()
        started.stdout.close()
