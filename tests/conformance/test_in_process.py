"""Does a program in C, written for Triton's in-process library, find the same in this server's library, and does Python?"""

import ctypes
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import triton
from compiled_setup import compiled, put
from python_catalogue import parameters, python, tensors
from python_catalogue import put as put_python
from python_setup import kernel_refuses
from servers import DEVELOPMENT_BUILD, ROOT, nerite_binary

PROGRAM = ROOT / "tests" / "programs" / "in_process.c"
FLAGS = ["-O1", "-Wall", "-Wextra", "-Werror"]
# What a call that may fail gives.
WELL = "well"


class Program:
    """The program in C with one library, and what it serves."""

    def __init__(self, scratch: pathlib.Path, is_oracle: bool) -> None:
        self.is_oracle, self.scratch = is_oracle, scratch
        self.backends, self.repository = scratch / "backends", scratch / "models"
        self.environment = dict(os.environ)
        if is_oracle:
            self.environment = triton.environment()
            library = next((triton.site_packages() / "nvidia_pytriton.libs").glob("libtritonserver-*.so"))
        else:
            library = own_library()
            self.environment["NERITE_PROGRAM"] = str(nerite_binary())
        self.library, self.path = library, scratch / "in_process"
        link = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
        subprocess.run(["cc", *FLAGS, str(PROGRAM), "-o", str(self.path), *link, "-lpthread"], check=True)
        compiled(self.backends / "sample" / "libtriton_sample.so")
        # A library that is loaded once has its variables once: that of the second server is another file.
        compiled(self.backends / "sample2" / "libtriton_sample2.so")
        put(self.repository, "add", "add_sub", pairs=2)
        put(self.repository, "fail", "fail")
        put(self.repository, "slow", "read_long", delay_ms="1500")

    def run(self, what: str, repository: pathlib.Path | None = None, seconds: int = 120) -> list[str]:
        """The lines that it prints. What it and the library write besides is shown where it fails."""
        command = [str(self.path), what, str(repository or self.repository), str(self.backends)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=self.environment)
        assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()


def own_library() -> pathlib.Path:
    """NERITE_LIBRARY, or else the development build."""
    named = os.environ.get("NERITE_LIBRARY")
    return pathlib.Path(named).resolve() if named else DEVELOPMENT_BUILD / "libtritonserver.so"


@pytest.fixture(scope="module")
def program(request, tmp_path_factory) -> Program:
    return Program(tmp_path_factory.mktemp("in_process"), request.config.getoption("--oracle"))


def facts(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.partition(": ")
        found.setdefault(name, []).append(rest)
    return found


def test_a_program_serves_models_itself(program):
    found = facts(program.run("serve"))
    assert found["version"] == ["1.34"]
    metadata = json.loads(found["metadata"][0])
    assert metadata["name"] == "inside" and {"statistics", "parameters", "binary_tensor_data"} <= set(metadata["extensions"])
    model = json.loads(found["model"][0])
    assert (model["name"], model["versions"], model["platform"]) == ("add", ["1"], "sample")
    assert model["inputs"] == [{"name": name, "datatype": "FP32", "shape": [-1]} for name in ("IN", "IN1")]
    config = json.loads(found["config"][0])
    assert config["parameters"] == {"mode": {"string_value": "add_sub"}} and config["instance_group"][0]["kind"] == "KIND_CPU"
    assert found["config 2"] == ["Invalid argument: model configuration version 2 not supported, supported versions are: 1"]
    index = json.loads(found["index"][0])
    assert index == [{"name": name, "version": "1", "state": "READY"} for name in ("add", "fail", "slow")]
    assert (found["batches"], found["transactions"], found["is asked"]) == (["1"], ["1"], [WELL, WELL])


def test_outputs_lie_where_the_program_wants_them(program):
    found = facts(program.run("serve"))
    sums = "add 1 '7' OUT FP32[4] ours 11 22 33 44 OUT1 FP32[4] ours -9 -18 -27 -36; 1 responses, 2 places, 2 freed, 1 released"
    missing = "Invalid argument: [request id: 7] expected 2 inputs but got 1 inputs for model 'add'. Got input(s) ['IN'], " \
              "but missing required input(s) ['IN1']. Please provide all required input(s)."  # fmt: skip
    failed = "Invalid argument: fails on purpose; 1 responses, 0 places, 0 freed, 1 released"
    unknown = "Not found: Request for unknown model: 'none' is not found"
    assert found["infer"] == [sums, sums, missing, failed, unknown]
    [statistics] = json.loads(found["statistics"][0])["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (2, 2)
    assert statistics["inference_stats"]["success"]["count"] == 2
    assert found["metric"] == ['nv_inference_request_success{model="add",version="1"} 2']


def test_models_are_loaded_and_unloaded(program):
    lines = program.run("control")
    line = "is asked: well"
    assert lines[:7] == [line, "add is ready", line, "fail is not ready", "load: well", line, "fail is ready"]
    assert lines[7].startswith("load none: Internal: failed to load 'none', failed to poll from model repository")
    assert lines[8:] == ["unload: well", line, "fail is not ready", "load changed: well", "batches: 2"]
    found = facts(program.run("serve"))
    assert found["load"][0].startswith("Unavailable: explicit model load / unload is not allowed if polling is enabled")
    assert found["poll"] == ["Unavailable: polling is disabled"]


def test_repositories_come_and_go(program, tmp_path):
    repository = tmp_path / "models"
    put(repository, "add", "add_sub", pairs=2)
    put(tmp_path / "models_more", "later", "add_sub", pairs=2)
    lines = [line for line in program.run("register", repository) if not line.startswith("is asked")]
    more, nowhere = tmp_path / "models_more", tmp_path / "models_nowhere"
    unknown = "Internal: failed to load 'later', failed to poll from model repository"
    expected = {
        "load before": unknown, "register": WELL, "load": WELL, "register again": f"Already exists: model repository '{more}' has already been registered",
        "register nowhere": f"Invalid argument: failed to register '{nowhere}', repository not found", "unload": WELL, "unregister": WELL,
        "unregister again": f"Invalid argument: failed to unregister '{more}', repository not found", "load after": unknown, "register renamed": WELL,
        "load by its directory": unknown, "load by its name": WELL,
        "register in mode none": "Unsupported: repository registration is not allowed if model control mode is not EXPLICIT",
        "unregister in mode none": "Unsupported: repository unregistration is not allowed if model control mode is not EXPLICIT",
    }  # fmt: skip
    found = facts(lines)
    for what, text in expected.items():
        assert found[what][0].startswith(text), (what, found[what])
    assert "later is ready" in lines and "renamed is ready" in lines


def test_a_program_that_says_nothing_polls_when_it_likes(program, tmp_path):
    repository = tmp_path / "models"
    put(repository, "add", "add_sub", pairs=2)
    line, lines = "is asked: well", program.run("poll", repository)
    assert lines[:-1] == [line, "add is ready", "poll: well", line, "add is not ready", "poll: well", line, "add is ready"]
    assert lines[-1].startswith("load: Unavailable: explicit model load / unload is not allowed if polling is enabled")


def test_a_server_that_stops_ends_what_is_under_way(program):
    assert program.run("stop") == [
        "stop: well", "under way: 1 responses, 1 released, final 1", "live: Unavailable: Server exiting", "is not live",
        "after that: refused", "delete: well",
    ]  # fmt: skip


def test_a_server_that_stops_waits_no_longer_than_its_program_says(program, tmp_path):
    put(tmp_path, "slower", "read_long", delay_ms="4000")
    assert program.run("hurry", tmp_path) == [
        "timeout: well", "stop: Internal: Exit timeout expired. Exiting immediately.", "under way: 0 responses, final 0",
        "at last: 1 responses, final 1", "delete: well",
    ]  # fmt: skip


def test_a_start_that_fails_says_why(program, tmp_path):
    repository = tmp_path / "models"
    put(repository, "broken", "refuse_model")
    assert program.run("refuse", repository) == [
        "a model that fails: Internal: failed to load all models",
        "no repository: Invalid argument: --model-repository must be specified",
    ]


@pytest.mark.triton_differs("2.51 takes pointers at their word: a server without options ends the process", run=False)
def test_calls_that_break_the_rules_are_refused(program):
    refused = {
        "no place": "a place for a result is NULL", "no options": "the server options object is NULL",
        "a server that is options": "is no server", "control mode 9": "unknown control mode '9'", "no text": "a text is NULL",
        "no place for metadata": "a place for a result is NULL", "no name": "a text is NULL",
        "options that are a server": "is no server options object", "metadata": "deleted before",
    }  # fmt: skip
    found = facts(program.run("misuse"))
    for what, why in refused.items():
        assert found[what][0].startswith("Invalid argument: ") and why in found[what][0], what
    assert found["host policy"][0].startswith("Unsupported: Unsupported host policy setting 'bogus' is specified")
    assert found["stop"] == [WELL, WELL]
    for what in ("delete", "delete options"):
        assert found[what][0] == WELL and "deleted before" in found[what][1]


@pytest.mark.triton_differs("30 starts and ends of 2.51 did not come to an end within 30 s", run=False)
def test_servers_one_after_the_other_leave_nothing_behind(program, tmp_path):
    repository = tmp_path / "models"
    put(repository, "add", "add_sub", pairs=2)
    left = program.run("again", repository)[-1]
    threads, descriptors, kib = map(int, re.fullmatch(r"left: (-?\d+) threads, (-?\d+) descriptors, (-?\d+) KiB", left).groups())
    # The last thread of a server may take a moment to go.
    assert threads <= 2 and descriptors <= 0 and kib < 8192, left


def test_two_servers_are_in_one_process(program, tmp_path):
    repository = tmp_path / "models"
    put(repository, "add", "add_sub", pairs=2)
    put(repository, "other", "add_sub", pairs=2, backend="sample2")
    lines = program.run("two", repository)
    assert lines[:5] == ["is asked: well", "add is ready", "is asked: well", "add is not ready", "load: well"]
    assert [line.split()[1] for line in lines[5:]] == ["add", "other"] and all("ours 11 22 33 44" in line for line in lines[5:])


class Library:
    """The library as ctypes has it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("ErrorMessage", "ErrorCodeString"):
            getattr(self.c, f"TRITONSERVER_{name}").restype = ctypes.c_char_p

    def call(self, name: str, *words) -> None:
        function = getattr(self.c, f"TRITONSERVER_{name}")
        function.restype = ctypes.c_void_p
        error = function(*words)
        if error:
            raise RuntimeError(self.c.TRITONSERVER_ErrorMessage(ctypes.c_void_p(error)).decode())


def python_serves(library: str, repository: str, backends: str) -> None:
    """In a process of its own: makes a server, asks for the index, runs a model, and ends it."""
    own, options, server, message = Library(pathlib.Path(library)), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    own.call("ServerOptionsNew", ctypes.byref(options))
    own.call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
    own.call("ServerOptionsSetBackendDirectory", options, backends.encode())
    own.call("ServerOptionsSetLogInfo", options, ctypes.c_bool(False))
    own.call("ServerOptionsSetGpuMetrics", options, ctypes.c_bool(False))
    own.call("ServerNew", ctypes.byref(server), options)
    own.call("ServerOptionsDelete", options)
    own.call("ServerModelIndex", server, ctypes.c_uint32(1), ctypes.byref(message))
    base, size = ctypes.c_char_p(), ctypes.c_size_t()
    own.call("MessageSerializeToJson", message, ctypes.byref(base), ctypes.byref(size))
    print(json.dumps(json.loads(ctypes.string_at(base, size.value))))
    own.call("MessageDelete", message)
    print(python_infers(own, server))
    try:
        own.call("ServerLoadModel", server, b"add")
    except RuntimeError as refused:
        print(refused)
    own.call("ServerDelete", server)


def python_infers(own: "Library", server: ctypes.c_void_p) -> str:
    """Runs the model `add` on numpy arrays. Its outputs are written into arrays as well."""
    pointer, number, kind = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    to = ctypes.POINTER
    allocate_type = ctypes.CFUNCTYPE(pointer, pointer, ctypes.c_char_p, ctypes.c_size_t, kind, number, pointer, to(pointer), to(pointer), to(kind), to(number))
    free_type = ctypes.CFUNCTYPE(pointer, pointer, pointer, pointer, ctypes.c_size_t, kind, number)
    callback_type = ctypes.CFUNCTYPE(None, pointer, kind, pointer)
    inputs = {b"IN": np.array([1, 2, 3, 4], np.float32), b"IN1": np.array([10, 20, 30, 40], np.float32)}
    outputs, responses, released = {}, queue.SimpleQueue(), threading.Event()

    @allocate_type
    def allocate(allocator, name, size, memory, device, userp, buffer, buffer_userp, actual_memory, actual_device):
        outputs[name] = np.zeros(size, np.uint8)
        buffer[0], buffer_userp[0], actual_memory[0], actual_device[0] = outputs[name].ctypes.data, None, 0, 0

    @free_type
    def free(allocator, buffer, buffer_userp, size, memory, device):
        return None

    @callback_type
    def respond(response, flags, userp):
        responses.put((pointer(response), flags))

    @callback_type
    def release(request, flags, userp):
        released.set()

    allocator, request, shape = pointer(), pointer(), (number * 1)(4)
    own.call("ResponseAllocatorNew", ctypes.byref(allocator), allocate, free, None)
    own.call("InferenceRequestNew", ctypes.byref(request), server, b"add", number(-1))
    own.call("InferenceRequestSetReleaseCallback", request, release, None)
    for name, array in inputs.items():
        own.call("InferenceRequestAddInput", request, name, kind(11), shape, ctypes.c_uint64(1))
        own.call("InferenceRequestAppendInputData", request, name, pointer(array.ctypes.data), ctypes.c_size_t(array.nbytes), kind(0), number(0))
    own.call("InferenceRequestSetResponseCallback", request, allocator, None, respond, None)
    own.call("ServerInferAsync", server, request, None)
    response, flags = responses.get(timeout=60)
    assert flags == 1 and released.wait(60)
    own.call("InferenceResponseError", response)
    own.call("InferenceResponseDelete", response)
    own.call("InferenceRequestDelete", request)
    own.call("ResponseAllocatorDelete", allocator)
    return " ".join(f"{name.decode()} {output.view(np.float32).tolist()}" for name, output in sorted(outputs.items()))


def python_confines(library: str, repository: str) -> None:
    """In a process of its own: says of each model whether it is up, and why not."""
    own, options, server, message = Library(pathlib.Path(library)), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    own.call("ServerOptionsNew", ctypes.byref(options))
    own.call("ServerOptionsSetModelRepositoryPath", options, repository.encode())
    own.call("ServerOptionsSetExitOnError", options, ctypes.c_bool(False))
    own.call("ServerOptionsSetGpuMetrics", options, ctypes.c_bool(False))
    own.call("ServerNew", ctypes.byref(server), options)
    own.call("ServerModelIndex", server, ctypes.c_uint32(0), ctypes.byref(message))
    base, size = ctypes.c_char_p(), ctypes.c_size_t()
    own.call("MessageSerializeToJson", message, ctypes.byref(base), ctypes.byref(size))
    print(json.dumps(json.loads(ctypes.string_at(base, size.value))))
    own.call("MessageDelete", message)
    own.call("ServerDelete", server)


@pytest.mark.parametrize("is_own", [True, False], ids=["by nerite", "not by another program"])
def test_a_model_in_a_sandbox_is_confined(program, tmp_path, is_own):
    """What runs is the host, Python here, which must not be started in the place of nerite."""
    if program.is_oracle:
        pytest.skip("2.51 has no sandbox")
    if why := kernel_refuses():
        pytest.skip(why)
    model = python("own", "asking", tensors(CODE="BYTES"), tensors(SAID="BYTES"), extra=parameters(SANDBOX="on"))
    put_python(tmp_path / "models", model)
    script = f"import test_in_process as t; t.python_confines({str(program.library)!r}, {str(tmp_path / 'models')!r})"
    here = str(pathlib.Path(__file__).parent)
    environment = program.environment | {"PATH": os.environ["PATH"]}
    environment["PYTHONPATH"] = os.pathsep.join([here, str(ROOT / "tests"), str(ROOT / "tests" / "models")])
    if not is_own:
        environment["NERITE_PROGRAM"] = sys.executable
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)
    if is_own:
        assert found["state"] == "READY" and "model 'own' is confined: files and tracing" in done.stderr, done.stderr
    else:
        assert found["state"] == "UNAVAILABLE" and "which is to confine processes, has to be nerite " in found["reason"], found


@pytest.mark.triton_differs("in the Python of the tests the library of 2.51 did not end within 120 s; why is not known", run=False)
def test_python_has_a_server_by_ctypes(program):
    script = f"import test_in_process as t; t.python_serves({str(program.library)!r}, {str(program.repository)!r}, {str(program.backends)!r})"
    here = str(pathlib.Path(__file__).parent)
    environment = program.environment | {"PYTHONPATH": os.pathsep.join([here, str(ROOT / "tests"), str(ROOT / "tests" / "models")])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    index, inferred, refused = done.stdout.splitlines()
    assert [model["state"] for model in json.loads(index)] == ["READY"] * 3
    assert inferred == "OUT [11.0, 22.0, 33.0, 44.0] OUT1 [-9.0, -18.0, -27.0, -36.0]"
    assert refused.startswith("explicit model load / unload is not allowed if polling is enabled")
