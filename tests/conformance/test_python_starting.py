"""Which interpreter and which settings do Python models get, what is refused, and who says that they are ready?"""

import dataclasses
import os
import pathlib
import struct
import subprocess
import sys
import time

import catalogue
import pytest
import python_catalogue
import servers
import triton
from clients import TIMEOUT_S, Refused, differs, fp32, grpc_channel, http_call, open_client, pb, service_stub
from python_setup import strings

START_S = 200


@pytest.fixture
def run(launcher):
    """Runs a server with one Python model to its end, which must be a refusal to start: what it wrote."""
    repository = launcher.scratch / f"python_flags_{time.monotonic_ns()}"
    repository.mkdir()
    python_catalogue.put(repository, python_catalogue.named("py_identity"))

    def call(*flags: str, environment=None) -> str:
        if launcher.oracle:
            command, found = triton.command(repository, launcher.scratch)
        else:
            command, found = servers.nerite_command(repository)
        # An environment that the caller's shell has activated would be taken before the path.
        found = {key: value for key, value in found.items() if key != "VIRTUAL_ENV"}
        http, grpc, metrics = servers.free_ports(3)
        ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
        done = subprocess.run(
            [*command, *ports, *flags], env=found | (environment or {}), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=START_S,
        )
        assert done.returncode != 0
        return done.stdout.decode(errors="replace")

    return call


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("shm-default-byte-size=1000", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("stub-timeout-seconds=0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        (
            "shm-region-prefix-name=",
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got python,shm-region-prefix-name=",
        ),
        pytest.param(
            "shm-region-prefix-name=a/b", "Invalid shared memory region name: contains invalid characters",
            marks=differs("2.51 takes it, and fails to make its memory"),
        ),
        ("thread-pool-size=0", "thread-pool-size can't be less than 1."),
    ],
)
def test_settings_that_are_refused(run, setting, text):
    assert text in run(f"--backend-config=python,{setting}")


def test_settings_of_the_pool_are_accepted(launcher):
    flags = [
        "--backend-config=python,shm-default-byte-size=4194304", "--backend-config=python,shm-growth-byte-size=1048576",
        "--backend-config=python,stub-timeout-seconds=60", "--backend-config=python,shm-region-prefix-name=mine_",
        "--backend-config=python,thread-pool-size=4", "--backend-config=python,shm_message_queue_size=10",
    ]  # fmt: skip
    repository = launcher.copy_of("python_settings")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    with launcher.running("python_settings", *flags, repository=repository) as found:
        with open_client("http", found) as client:
            assert client.infer("py_identity", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw


@differs("2.51 brings a stub with an interpreter inside", run=False)
def test_an_interpreter_without_numpy(run, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    path = f"{tmp_path / 'bare' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    found = run(environment={"PATH": path})
    assert "numpy" in found and str(tmp_path / "bare" / "bin" / "python3") in found
    assert "pip install numpy" in found and "Traceback" not in found


DIES = """
import os, sys

for n in range(30):
    print("line", n, file=sys.stderr)
os.write(2, b"the last one has no end")
os.abort()
"""
DIES_LATER = """
import faulthandler, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

print("of the first start" if not os.path.exists({flag!r}) else "of the second start", file=sys.stderr)
if os.path.exists({flag!r}):
    os.abort()
faulthandler.enable(all_threads=False)

class TritonPythonModel:
    def initialize_instance(self, args):
        print("of the instance", file=sys.stderr)

    def execute(self, requests):
        (value,) = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()
        print(f"of request {{int(value)}}", file=sys.stderr)
        if value == 2:
            open({flag!r}, "w").close()
            faulthandler._sigsegv()
        if value == 3:
            os.write(2, b"\\x1b[31m" + b"x" * 9000 + b"\\nthe end of the\\ttext \\xe2\\x82")
            os._exit(7)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], np.float32))])]
"""


def put_dying(launcher, tmp_path, **more):
    """A repository with the model ``py_dies`` of DIES_LATER. After its request 2 no process of it starts any more."""
    repository = launcher.copy_of(f"python_printed_{time.monotonic_ns()}")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    python_catalogue.put(repository, python_catalogue.vector("py_dies", "identity", **more))
    (repository / "py_dies" / "1" / "model.py").write_text(DIES_LATER.format(flag=str(tmp_path / "flag")))
    return repository


def error_of(client, model: str, given) -> str:
    with pytest.raises(Refused) as refused:
        client.infer(model, [given])
    return refused.value.text


@differs("2.51 keeps what it prints to itself", run=False)
def test_the_last_words_of_a_process_that_dies_at_its_start(launcher):
    repository = launcher.copy_of(f"python_last_words_{time.monotonic_ns()}")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    python_catalogue.put(repository, python_catalogue.vector("py_dies", "identity"))
    (repository / "py_dies" / "1" / "model.py").write_text(DIES)
    flags = ["--model-control-mode=explicit", "--load-model=py_identity"]
    with launcher.running(repository.name, *flags, repository=repository) as found, open_client("http", found) as client:
        with pytest.raises(Refused) as refused:
            client.load("py_dies")
        said = refused.value.text
        assert "was ended by signal 6 (SIGABRT)" in said and "line 11\n  line 12\n" in said and "line 10" not in said, said
        assert "line 29\n  the last one has no end" in said, said
        assert "line 0" in found.log_text(), "the operator gets all lines as before"


@differs("2.51 starts a process that died no more", run=False)
@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_error_tells_only_what_was_printed_since_its_request_began(launcher, tmp_path, protocol, shared):
    repository = put_dying(launcher, tmp_path, extra=python_catalogue.parameters(SHARE_INITIALIZE=shared))
    with launcher.running(repository.name, repository=repository) as found, open_client(protocol, found) as client:
        client.infer("py_dies", [fp32("INPUT0", [1])])
        segv = error_of(client, "py_dies", fp32("INPUT0", [2]))
        assert segv.startswith("Stub process 'py_dies_0' is not healthy. (its process was ended by signal 11 (SIGSEGV) while it had this request"), segv
        assert "\n\nIt printed last:\n  of request 2\n  Fatal Python error: Segmentation fault\n" in segv, segv
        assert "model.py" in segv and " in execute" in segv, segv
        assert not any(line in segv for line in ("of the first start", "of the instance", "of request 1")), segv
        if shared == "no":
            anew = error_of(client, "py_dies", fp32("INPUT0", [1]))
            assert "could not be started anew" in anew and "It printed last:\n  of the second start;" in anew, anew
            assert "of request" not in anew and "of the first start" not in anew, anew
        lines = ["of the first start", "of request 1", "of request 2"] + ["of the instance"] * (shared == "yes")
        assert all(line in found.log_text() for line in lines), "the operator gets all lines"


@differs("2.51 starts a process that died no more", run=False)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_process_printed_last_is_bounded_and_escaped(launcher, tmp_path, protocol):
    repository = put_dying(launcher, tmp_path)
    with launcher.running(repository.name, repository=repository) as found, open_client(protocol, found) as client:
        for _ in range(2):
            error = error_of(client, "py_dies", fp32("INPUT0", [3]))
            assert "its process ended with code 7 while it had this request; it is started anew)" in error, error
            colour = "\\u001b[31m"
            cut = colour + "x" * (512 - len(colour))
            lines = f"  of request 3\n  {cut}\n  the end of the\ttext \N{REPLACEMENT CHARACTER}"
            assert error.endswith(f"\n\nIt printed last:\n{lines}"), error


@differs("2.51 starts a process that died no more", run=False)
def test_requests_that_a_process_has_together_are_told_nothing_of_each_other(launcher):
    """Of two requests of a decoupled model that are open at once, nobody knows which one a line belongs to."""
    repository = launcher.copy_of(f"python_printed_{time.monotonic_ns()}")
    python_catalogue.put(repository, python_catalogue.named("py_decoupled"))
    prints = "import sys; print('secret', file=sys.stderr); "

    def errors_of(stub, *codes: str) -> "list[str]":
        """The errors of these requests. Each has begun before the next one is sent."""
        calls = []
        for code in codes:
            request = pb.ModelInferRequest(model_name="py_decoupled")
            request.inputs.add(name="CODE", datatype="BYTES", shape=[1])
            request.raw_input_contents.append(struct.pack("<I", len(code)) + code.encode())
            calls.append(stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S))
            if code != codes[-1]:
                assert not next(calls[-1]).error_message
        return [next(call).error_message for call in calls]

    with launcher.running(repository.name, repository=repository) as found, grpc_channel(found.grpc) as channel:
        stub = service_stub(channel)
        for code, how in [("os._exit(7)", "code 7"), ("later(0.2, lambda: os._exit(8))", "code 8")]:
            (error,) = errors_of(stub, prints + code)
            assert f"ended with {how}" in error and error.endswith("\n\nIt printed last:\n  secret"), error
            # Processes that answer nothing between would be started ever more rarely.
            assert errors_of(stub, "send(text('well'), FINAL)") == [""]
        for error in errors_of(stub, prints + "self.kept.append(sender); send(text('begun'))", prints + "os._exit(9)"):
            assert "ended with code 9" in error and "secret" not in error and "It printed" not in error, error


@differs("2.51 brings a stub with an interpreter inside", run=False)
def test_no_interpreter_at_all(run, tmp_path):
    found = run(environment={"PATH": str(tmp_path)})
    assert "py_identity" in found and "python3" in found


@differs("2.51 wants an interpreter's library and a stub made for it", run=False)
@pytest.mark.parametrize("way", ["whole", "in the model's directory"])
def test_an_environment_of_the_models_own(launcher, tmp_path, way):
    """The path leads to a Python without numpy, the model's own one has it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    repository = launcher.copy_of(f"python_environment_{way[:2]}")
    own = pathlib.Path(sys.executable).parent.parent
    named = str(own) if way == "whole" else "$$TRITON_MODEL_DIRECTORY/own"
    extra = python_catalogue.parameters(EXECUTION_ENV_PATH=named)
    python_catalogue.put(repository, python_catalogue.vector("py_own", "identity", extra=extra))
    if way != "whole":
        (repository / "py_own" / "own").symlink_to(own)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tmp_path / 'bare' / 'bin'}{os.pathsep}{before}"
    try:
        with launcher.running(f"python_environment_{way[:2]}", repository=repository) as found:
            with open_client("http", found) as client:
                assert client.infer("py_own", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
    finally:
        os.environ["PATH"] = before


@differs("2.51 wants an interpreter's library and a stub made for it", run=False)
def test_an_interpreter_by_a_setting(launcher, tmp_path):
    repository = launcher.copy_of("python_interpreter")
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    flag = f"--backend-config=python,interpreter={sys.executable}"
    before = os.environ["PATH"]
    os.environ["PATH"] = str(tmp_path)
    try:
        with launcher.running("python_interpreter", flag, repository=repository) as found:
            with open_client("http", found) as client:
                assert client.infer("py_identity", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw
    finally:
        os.environ["PATH"] = before


# ---------------------------------------------------------------------------------------------- modules

IMPORTS = """\
import numpy as np

import above
import beside
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import get_input_tensor_by_name


class TritonPythonModel:
    def execute(self, requests):
        found = np.array([above.NAME, beside.NAME, beside.tensor().name(), __package__], dtype=object)
        assert get_input_tensor_by_name(requests[0], "INPUT0") is not None
        return [pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", found)]) for _ in requests]
"""
BESIDE = """\
import numpy
import triton_python_backend_utils as pb_utils

NAME = "beside"


def tensor():
    return pb_utils.Tensor("made beside", numpy.zeros(1))
"""


def test_modules_beside_and_above_the_model(launcher):
    repository = launcher.copy_of("python_imports")
    tensors = python_catalogue.tensors
    model = catalogue.Model("py_imports", "python", tensors(INPUT0="FP32"), tensors(FOUND="BYTES"), source=IMPORTS)
    python_catalogue.put(repository, model)
    (repository / "py_imports" / "1" / "beside.py").write_text(BESIDE)
    (repository / "py_imports" / "above.py").write_text("NAME = 'above'\n")
    with launcher.running("python_imports", repository=repository) as found:
        with open_client("http", found) as client:
            raw = client.infer("py_imports", [fp32("INPUT0", [1])]).outputs["FOUND"].raw
            assert strings(raw) == ["above", "beside", "made beside", "1"]


EARLY = "import triton_python_backend_utils as pb_utils\npb_utils.Logger.log_warn('said when it was imported')\n"


@differs("2.51 has no Logger before a model is initialized")
def test_a_model_may_log_when_it_is_imported(launcher):
    repository = launcher.copy_of("python_early")
    model = python_catalogue.vector("py_early", "identity")
    python_catalogue.put(repository, dataclasses.replace(model, source=EARLY + model.source))
    flags = ["--exit-on-error=false"]
    with launcher.running("python_early", *flags, repository=repository) as found:
        assert "said when it was imported" in found.log_text()
        with open_client("http", found) as client:
            assert client.infer("py_early", [fp32("INPUT0", [1])]).outputs["OUTPUT0"].raw == fp32("", [1]).raw


# ---------------------------------------------------------------------------------------------- readiness


def server_ready(server) -> bool:
    return http_call(server.http, "GET", "/v2/health/ready").status == 200


def settles(look) -> None:
    deadline = time.monotonic() + 5
    while not look() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert look()


@differs("2.51 does not ask models", run=False)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_that_says_itself_whether_it_is_ready(launcher, protocol):
    repository = launcher.copy_of(f"python_readiness_{protocol}")
    python_catalogue.put(repository, python_catalogue.vector("py_readiness", "readiness"))
    python_catalogue.put(repository, python_catalogue.named("py_identity"))
    name = f"python_readiness_{protocol}"
    with launcher.running(name, repository=repository) as found:
        with open_client(protocol, found) as client:
            assert client.model_ready("py_readiness") and server_ready(found)
            for answer, ready in ((0, False), (1, True), (2, False), (1, True)):
                client.infer("py_readiness", [fp32("INPUT0", [answer])])
                settles(lambda: client.model_ready("py_readiness") is ready)
                settles(lambda: server_ready(found) is ready)
                assert client.model_ready("py_identity")
