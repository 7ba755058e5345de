"""Do the steps of an ensemble pass on large tensors without a copy, and does that harm nobody?"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import socket
import time

import graphs
import numpy as np
import onnx
import pytest
import servers
from clients import TIMEOUT_S, Given, RequestedOutput, http_call, open_client, refuses
from regions import registered

COUNT = 1 << 18
BYTES = 4 * COUNT
VALUES = np.arange(COUNT, dtype=np.float32)
# Adds one in the memory of the output. One last number makes the model keep its arrays, and one first number ends its process.
PLUS = """\
import os
import pathlib
import signal
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        pathlib.Path(f"FOLDER/{args['model_instance_name']}").write_text(str(os.getpid()))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value[0] == ENDS_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        made = request.output_array("OUT", value.shape, np.float32)
        np.add(value, 1, out=made)
        if value[-1] == KEEPS_AT:
            self.kept += [(one, one.copy()) for one in (value, made)]
        if any((one != was).any() for one, was in self.kept):
            return pb_utils.InferenceResponse([], pb_utils.TritonError("an array that was kept has changed"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", made)])
"""
# The number at which the model ends its process, and the one at which it keeps its arrays.
ENDS_AT = {"first": -10, "second": -100}
KEEPS_AT = {"first": -1000, "second": -999}
ENSEMBLES = {
    "python": ("first IN=IN OUT=x", "second IN=x OUT=OUT"),
    "onnx": ("first IN=IN OUT=x", "plus IN=x OUT=y", "second IN=y OUT=OUT"),
    "onnx_first": ("plus IN=IN OUT=x", "second IN=x OUT=OUT"),
    "two_readers": ("first IN=IN OUT=x", "second IN=x OUT=OUT", "third IN=x OUT=OUT2"),
    "to_several": ("first IN=IN OUT=x", "several IN=x OUT=OUT"),
    "onnx_to_several": ("plus IN=IN OUT=x", "several IN=x OUT=OUT"),
    "shown": ("first IN=IN OUT=OUT2", "second IN=OUT2 OUT=OUT"),
}


def config(name: str, outputs=("OUT",), extra="") -> str:
    tensor = "data_type: TYPE_FP32 dims: [ -1 ]"
    made = "".join(f'output {{ name: "{output}" {tensor} }}\n' for output in outputs)
    return f'name: "{name}"\n{extra}\ninput {{ name: "IN" {tensor} }}\n{made}'


def put(repository: pathlib.Path, name: str, text: str) -> pathlib.Path:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text)
    return repository / name / "1"


def put_python(repository: pathlib.Path, name: str, extra="") -> None:
    source = PLUS.replace("FOLDER", str(repository.parent))
    source = source.replace("ENDS_AT", str(ENDS_AT.get(name))).replace("KEEPS_AT", str(KEEPS_AT.get(name)))
    (put(repository, name, 'backend: "python"\n' + config(name, extra=extra)) / "model.py").write_text(source)


def put_onnx(repository: pathlib.Path) -> None:
    one = onnx.helper.make_node("Constant", [], ["one"], value_float=1.0)
    plus = onnx.helper.make_node("Add", ["IN", "one"], ["OUT"])
    graph = graphs.finish("plus", [one, plus], [graphs.value("IN", "FP32", ["n"])], [graphs.value("OUT", "FP32", ["n"])])
    # By default an ONNX model has two instances. In processes of their own they would get copies.
    text = 'platform: "onnxruntime_onnx"\n' + config("plus", extra="instance_group { count: 1 kind: KIND_CPU }")
    onnx.save(graph, put(repository, "plus", text) / "model.onnx")


def put_ensemble(repository: pathlib.Path, name: str, *steps: str) -> None:
    """Each step is written `model input=tensor output=tensor`. A tensor OUT or OUT2 is an output of the ensemble."""
    text, outputs = "", []
    for step in steps:
        model, given, made = step.split()
        maps = zip(("input_map", "output_map"), (given.split("="), made.split("=")), strict=True)
        mapped = " ".join(f'{kind} {{ key: "{key}" value: "{tensor}" }}' for kind, (key, tensor) in maps)
        text += f'step {{ model_name: "{model}" model_version: -1 {mapped} }}\n'
        outputs += [tensor for tensor in [made.split("=")[1]] if tensor.startswith("OUT")]
    put(repository, name, 'platform: "ensemble"\n' + config(name, outputs) + f"ensemble_scheduling {{\n{text}}}\n")


@contextlib.contextmanager
def serving(launcher, name: str, *flags: str):
    repository = launcher.scratch / name / "models"
    for model in ("first", "second", "third"):
        put_python(repository, model)
    put_python(repository, "several", "instance_group { count: 2 kind: KIND_CPU }")
    put_onnx(repository)
    for ensemble, steps in ENSEMBLES.items():
        put_ensemble(repository, ensemble, *steps)
    with launcher.running(name, *flags, repository=repository) as found:
        yield found


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    with serving(launcher, "ensemble_memory", servers.onnxruntime_flag()) as found:
        yield found


def copied(server) -> dict[str, int]:
    page = http_call(server.metrics, "GET", "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("nerite_copied_bytes_total{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def added(client, model: str, values=VALUES, outputs=("OUT",)) -> list[int]:
    """What the ensemble adds to these numbers in a region, in other parts of the same region, for each output."""
    size = values.nbytes
    with registered(client, size * (1 + len(outputs)), values.tobytes()) as region:
        given = Given("IN", "FP32", [len(values)], region=(region.name, size, 0))
        places = [RequestedOutput(name, (region.name, size, size * (1 + at))) for at, name in enumerate(outputs)]
        client.infer(model, [given], places)
        more = [np.frombuffer(region.read(size, place.region[2]), np.float32) - values for place in places]
    found = [set(one.tolist()) for one in more]
    assert all(len(one) == 1 for one in found), found
    return [int(one.pop()) for one in found]


@contextlib.contextmanager
def copies(server, **expected: int):
    """Exactly these bytes are copied meanwhile, by reason."""
    before = copied(server)
    yield
    after = copied(server)
    assert {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason]} == expected


def pid_of(server, instance: str) -> int:
    return int((server.repository.parent / instance).read_text())


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_files(pid: int) -> int:
    """How many memory files of the server a process has mapped."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return sum("/memfd:" in line for line in maps.splitlines())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("model", "more"), [("python", 2), ("onnx", 3), ("onnx_first", 2)])
def test_a_tensor_between_steps_is_not_copied(server, protocol, model, more):
    with open_client(protocol, server) as client:
        # ONNX Runtime has placed no output of this model before.
        added(client, model)
        with copies(server):
            assert added(client, model) == [more]


def test_an_isolated_onnx_model_is_passed_tensors_as_a_python_model_is(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = [servers.onnxruntime_flag(), "--backend-config=onnxruntime,isolated=true"]
    with serving(launcher, "ensemble_memory_isolated", *flags) as server, open_client("http", server) as client:
        added(client, "onnx")
        with copies(server):
            assert added(client, "onnx") == [3]


def test_the_embedded_engine_copies_what_it_reads_and_what_it_makes(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = "--onnxruntime-library=none"
    with serving(launcher, "ensemble_memory_embedded", flags) as server, open_client("http", server) as client:
        with copies(server, slices=BYTES, model_process=BYTES):
            assert added(client, "onnx") == [3]
        with copies(server):
            assert added(client, "python") == [2]


@pytest.mark.parametrize("model", ["to_several", "onnx_to_several"])
def test_a_model_with_several_instances_gets_a_copy(server, model):
    """Which of them gets the request is decided later, and memory of one is not for the others."""
    with open_client("http", server) as client:
        added(client, model)
        with copies(server, model_process=BYTES):
            assert added(client, model) == [2]


def test_each_of_two_readers_gets_a_copy(server):
    """Otherwise each could change what the other one reads."""
    with open_client("http", server) as client:
        with copies(server, model_process=2 * BYTES):
            assert added(client, "two_readers", outputs=("OUT", "OUT2")) == [2, 2]
        # The other step does not run.
        with copies(server):
            assert added(client, "two_readers", outputs=("OUT2",)) == [2]


def test_what_the_client_gets_too_is_copied_to_the_next_step(server):
    with open_client("http", server) as client:
        with registered(client, BYTES, VALUES.tobytes()) as region, copies(server, model_process=BYTES, inline_response=2 * BYTES):
            reply = client.infer("shown", [Given("IN", "FP32", [COUNT], region=(region.name, BYTES, 0))])
        assert reply.outputs["OUT2"].raw == (VALUES + 1).tobytes() and reply.outputs["OUT"].raw == (VALUES + 2).tobytes()


def test_a_process_maps_no_memory_of_steps_that_it_has_no_part_in(server):
    before = memory_files(pid_of(server, "third_0"))
    with open_client("http", server) as client:
        for model in ("python", "onnx"):
            added(client, model)
    assert memory_files(pid_of(server, "third_0")) == before


@pytest.mark.parametrize("model", ["python", "onnx_first"])
def test_arrays_that_models_keep_do_not_change(server, model):
    with open_client("http", server) as client:
        kept = VALUES.copy()
        kept[-1] = KEEPS_AT["first"]
        added(client, model, kept)
        for turn in range(20):
            assert added(client, model, VALUES + turn) == [2]


@pytest.mark.parametrize("model", ["python", "onnx"])
def test_memory_and_descriptors_are_used_again(server, model):
    instances = [server.pid, pid_of(server, "first_0"), pid_of(server, "second_0")]
    used = lambda: [(descriptors(pid), memory_files(pid)) for pid in instances]  # noqa: E731
    with open_client("http", server) as client:
        for _ in range(20):
            added(client, model)
        before = used()
        for turn in range(200):
            added(client, model, VALUES + turn)
        for (now, mapped), (then, mapped_then) in zip(used(), before, strict=True):
            assert now <= then + 4 and mapped <= mapped_then + 4, (used(), before)


@pytest.mark.parametrize(("model", "ends", "more"), [("python", "first", 0), ("python", "second", 1), ("onnx", "second", 2)])
def test_a_process_that_is_killed_fails_its_own_request_alone(server, model, ends, more):
    fatal = VALUES.copy()
    fatal[0] = ENDS_AT[ends] - more

    def send(turn: int) -> None:
        with open_client("http", server) as client:
            if turn % 4 == 0:
                with refuses("INTERNAL", f"in ensemble '{model}', Stub process '{ends}_0' is not healthy"):
                    added(client, model, fatal)
            else:
                assert added(client, model, VALUES + turn) == [3 if model == "onnx" else 2]

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(16)))
    with open_client("http", server) as client, copies(server):
        assert added(client, model) == [3 if model == "onnx" else 2]


@pytest.mark.parametrize("model", ["python", "onnx"])
def test_clients_that_never_read_hold_no_memory_between_steps(server, model):
    instances = [server.pid, pid_of(server, "first_0"), pid_of(server, "second_0")]
    with open_client("http", server) as client, contextlib.ExitStack() as open_sockets:
        for _ in range(20):
            added(client, model)
        before = [memory_files(pid) for pid in instances]
        done = client.statistics(model)[0]["inference_count"]
        for _ in range(32):
            open_sockets.enter_context(never_reading(server, model))
        while client.statistics(model)[0]["inference_count"] < done + 32:
            time.sleep(0.01)
        assert added(client, model) == [3 if model == "onnx" else 2]
        # Requests that ran at the same time needed more at once. What is idle goes back to the system after some seconds.
        deadline = time.monotonic() + TIMEOUT_S
        while any(memory_files(pid) > then + 4 for pid, then in zip(instances, before, strict=True)):
            assert time.monotonic() < deadline, ([memory_files(pid) for pid in instances], before)
            time.sleep(0.1)


def never_reading(server, model: str) -> socket.socket:
    """A request with an answer of 1 MiB in the message, which nobody reads."""
    given = {"name": "IN", "datatype": "FP32", "shape": [COUNT], "parameters": {"binary_data_size": BYTES}}
    head = json.dumps({"inputs": [given], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    host, _, port = server.http.rpartition(":")
    made = socket.create_connection((host, int(port)))
    fields = f"Host: x\r\nContent-Length: {len(head) + BYTES}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    made.sendall(f"POST /v2/models/{model}/infer HTTP/1.1\r\n{fields}".encode() + head + VALUES.tobytes())
    return made
