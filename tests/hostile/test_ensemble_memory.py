"""Do the steps of an ensemble pass on large tensors without a copy, and does that harm nobody?"""

import concurrent.futures
import contextlib
import itertools
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
import contextlib
import os
import pathlib
import signal
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        with contextlib.suppress(PermissionError):
            pathlib.Path(f"FOLDER/{args['model_instance_name']}").write_text(str(os.getpid()))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value.flat[0] == ENDS_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        made = request.output_array("OUT", value.shape, np.float32)
        np.add(value, 1, out=made)
        if value.flat[-1] == KEEPS_AT:
            self.kept += [(one, one.copy()) for one in (value, made)]
        if any((one != was).any() for one, was in self.kept):
            return pb_utils.InferenceResponse([], pb_utils.TritonError("an array that was kept has changed"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", made)])
"""
# Adds one in the memory of its input, although the array says that this is not allowed.
IN_PLACE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        value.setflags(write=True)
        value += 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value.copy())])
"""
# Returns its strings.
TEXTS = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for value in values]
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
    "several_in_a_row": ("several IN=IN OUT=x", "several IN=x OUT=OUT"),
    "onnx_to_several": ("plus IN=IN OUT=x", "several IN=x OUT=OUT"),
    "two_of_one_model": ("first IN=IN OUT=x", "second IN=x OUT=OUT", "second IN=x OUT=OUT2"),
    "two_of_several": ("first IN=IN OUT=x", "several IN=x OUT=OUT", "several IN=x OUT=OUT2"),
    "shown": ("first IN=IN OUT=OUT2", "second IN=OUT2 OUT=OUT"),
    "onnx_shown": ("plus IN=IN OUT=OUT2", "second IN=OUT2 OUT=OUT"),
    "changed": ("first IN=IN OUT=OUT3", "in_place IN=OUT3 OUT=OUT", "in_place IN=OUT3 OUT=OUT2"),
    "changed_by_two": ("first IN=IN OUT=OUT3", "in_place IN=OUT3 OUT=OUT", "also_in_place IN=OUT3 OUT=OUT2"),
    "changed_by_one": ("first IN=IN OUT=OUT3", "in_place IN=OUT3 OUT=OUT", "second IN=OUT3 OUT=OUT2"),
    "before_a_cache": ("first IN=IN OUT=x", "second IN=x OUT=y", "remembered IN=y OUT=OUT"),
    "before_an_ensemble": ("first IN=IN OUT=x", "third IN=x OUT=y", "python IN=y OUT=OUT"),
    "after_an_ensemble": ("python IN=IN OUT=x", "third IN=x OUT=y", "plus IN=y OUT=OUT"),
    "onnx_two_readers": ("plus IN=IN OUT=x", "second IN=x OUT=OUT", "third IN=x OUT=OUT2"),
    "four_readers": (
        "first IN=IN OUT=x",
        "second IN=x OUT=OUT",
        "third IN=x OUT=OUT2",
        "plus IN=x OUT=OUT3",
        "several IN=x OUT=OUT4",
    ),
    "writer_reads": ("first IN=IN OUT=x", "first IN=x OUT=OUT", "second IN=x OUT=OUT2"),
    "writer_reads_twice": ("first IN=IN OUT=x", "first IN=x OUT=OUT", "first IN=x OUT=OUT2"),
    "read_by_both": ("first IN=IN OUT=x", "second IN=x OUT=OUT", "plus IN=x OUT=OUT2"),
}


def config(name: str, outputs=("OUT",), extra="", datatype="FP32") -> str:
    tensor = f"data_type: TYPE_{datatype} dims: [ -1 ]"
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


def put_onnx(repository: pathlib.Path, name="plus", extra="", shape=("n",)) -> None:
    one = onnx.helper.make_node("Constant", [], ["one"], value_float=1.0)
    plus = onnx.helper.make_node("Add", ["IN", "one"], ["OUT"])
    graph = graphs.finish("plus", [one, plus], [graphs.value("IN", "FP32", [*shape])], [graphs.value("OUT", "FP32", [*shape])])
    text = 'platform: "onnxruntime_onnx"\n' + config(name, extra=f"instance_group {{ count: 1 kind: KIND_CPU }}\n{extra}")
    onnx.save(graph, put(repository, name, text) / "model.onnx")


def put_ensemble(repository: pathlib.Path, name: str, *steps: str, datatype="FP32", extra="") -> None:
    """Each step is written `model input=tensor output=tensor`. A tensor whose name begins with OUT is an output of the ensemble."""
    text, outputs = "", []
    for step in steps:
        model, given, made = step.split()
        maps = zip(("input_map", "output_map"), (given.split("="), made.split("=")), strict=True)
        mapped = " ".join(f'{kind} {{ key: "{key}" value: "{tensor}" }}' for kind, (key, tensor) in maps)
        text += f'step {{ model_name: "{model}" model_version: -1 {mapped} }}\n'
        outputs += [tensor for tensor in [made.split("=")[1]] if tensor.startswith("OUT")]
    put(repository, name, 'platform: "ensemble"\n' + config(name, outputs, extra, datatype) + f"ensemble_scheduling {{\n{text}}}\n")


@contextlib.contextmanager
def serving(launcher, name: str, *flags: str):
    repository = launcher.scratch / name / "models"
    for model in ("first", "second", "third"):
        put_python(repository, model)
    put_python(repository, "several", "instance_group { count: 2 kind: KIND_CPU }")
    for model in ("in_place", "also_in_place"):
        (put(repository, model, 'backend: "python"\n' + config(model)) / "model.py").write_text(IN_PLACE)
    for model in ("texts", "more_texts"):
        text = 'backend: "python"\n' + config(model, datatype="STRING")
        (put(repository, model, text) / "model.py").write_text(TEXTS)
    put_ensemble(repository, "strings", "texts IN=IN OUT=OUT", "more_texts IN=OUT OUT=OUT2", datatype="STRING")
    put_onnx(repository)
    for model in ("first", "second"):
        put_python(repository, f"{model}_of_rows", "max_batch_size: 4")
    # It starts when four rows wait.
    batching = "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 30000000 }"
    put_onnx(repository, "rows", f"max_batch_size: 4 {batching}", ("rows", "n"))
    steps = ("first_of_rows IN=IN OUT=x", "rows IN=x OUT=y", "second_of_rows IN=y OUT=OUT")
    put_ensemble(repository, "of_rows", *steps, extra="max_batch_size: 4")
    put_python(repository, "remembered", "response_cache { enable: true }")
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


def memory_files(pid: int) -> list[str]:
    """The memory files of the server that a process has mapped, by inode."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return [line.split()[4] for line in maps.splitlines() if "/memfd:" in line]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("model", "more"), [("python", 2), ("onnx", 3), ("onnx_first", 2)])
def test_a_tensor_between_steps_is_not_copied(server, protocol, model, more):
    with open_client(protocol, server) as client:
        # ONNX Runtime has placed no output of this model before.
        added(client, model)
        with copies(server):
            assert added(client, model) == [more]


def test_rows_of_a_batch_are_written_where_the_next_step_reads_them(server):
    """They are gathered, because the step before wrote each request's row in another place."""

    def send(turn: int) -> None:
        values = VALUES + turn
        with open_client("http", server) as client, registered(client, 2 * BYTES, values.tobytes()) as region:
            given = Given("IN", "FP32", [1, COUNT], region=(region.name, BYTES, 0))
            client.infer("of_rows", [given], [RequestedOutput("OUT", (region.name, BYTES, BYTES))])
            assert (np.frombuffer(region.read(BYTES, BYTES), np.float32) == values + 3).all()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        # ONNX Runtime has placed no output of this model before.
        list(threads.map(send, range(4)))
        with copies(server, batch_gather=4 * BYTES):
            list(threads.map(send, range(4)))


def test_an_isolated_onnx_model_is_passed_tensors_as_a_python_model_is(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = [servers.onnxruntime_flag(), "--backend-config=onnxruntime,isolated=true"]
    with serving(launcher, "ensemble_memory_isolated", *flags) as server, open_client("http", server) as client:
        added(client, "onnx")
        with copies(server):
            assert added(client, "onnx") == [3]


@pytest.mark.parametrize(("model", "more"), [("before_a_cache", 3), ("before_an_ensemble", 4), ("after_an_ensemble", 4)])
def test_a_cache_or_an_ensemble_among_the_steps_costs_copies_of_its_own_tensors_alone(launcher, model, more):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = [servers.onnxruntime_flag(), "--cache-config=local,size=67108864"]
    with serving(launcher, f"ensemble_memory_{model}", *flags) as server, open_client("http", server) as client:
        added(client, model)
        # One tensor between steps: out of the process that writes it, and into the one that reads it.
        with copies(server, inline_response=BYTES, model_process=BYTES):
            assert added(client, model, VALUES + 1) == [more]


def test_the_embedded_engine_copies_what_it_reads_and_what_it_makes(launcher):
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = "--onnxruntime-library=none"
    with serving(launcher, "ensemble_memory_embedded", flags) as server, open_client("http", server) as client:
        with copies(server, slices=BYTES, model_process=BYTES):
            assert added(client, "onnx") == [3]
        with copies(server):
            assert added(client, "python") == [2]


@pytest.mark.parametrize("model", ["to_several", "several_in_a_row", "onnx_to_several"])
def test_an_idle_instance_of_several_gets_no_copy(server, model):
    """Each request goes to the instance in whose memory its input was placed."""
    with open_client("http", server) as client:
        added(client, model)
        with copies(server):
            for turn in range(8):
                assert added(client, model, VALUES + turn) == [2]


def test_an_instance_gets_a_copy_while_the_chosen_one_is_busy(server):
    """Memory of one instance is not for the others."""

    def send(turn: int) -> None:
        with open_client("http", server) as client:
            assert added(client, "to_several", VALUES + turn) == [2]

    before = copied(server)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(send, range(64)))
    more = {reason: now - before[reason] for reason, now in copied(server).items() if now != before[reason]}
    print(f"64 requests by 8 clients: {more.get('model_process', 0) // BYTES} copies of 1 MiB")
    assert set(more) <= {"model_process"} and more.get("model_process", 0) <= 64 * BYTES


def test_several_readers_read_a_tensor_where_it_lies(server):
    """Their processes map it privately."""
    with open_client("http", server) as client:
        for model in ("two_readers", "two_of_one_model", "two_of_several", "onnx_two_readers"):
            added(client, model, outputs=("OUT", "OUT2"))
            with copies(server):
                for turn in range(4):
                    assert added(client, model, VALUES + turn, outputs=("OUT", "OUT2")) == [2, 2]
        added(client, "four_readers", outputs=("OUT", "OUT2", "OUT3", "OUT4"))
        with copies(server):
            assert added(client, "four_readers", outputs=("OUT", "OUT2", "OUT3", "OUT4")) == [2, 2, 2, 2]
        # The other step does not run.
        with copies(server):
            assert added(client, "two_readers", outputs=("OUT2",)) == [2]


def test_a_reader_that_has_written_the_tensor_gets_a_copy(server):
    """Its process has mapped the tensor to write to it, so it could change what the others read."""
    with open_client("http", server) as client:
        for model in ("writer_reads", "writer_reads_twice"):
            added(client, model, outputs=("OUT", "OUT2"))
            with copies(server, model_process=BYTES):
                assert added(client, model, outputs=("OUT", "OUT2")) == [2, 2]


def test_a_process_and_the_server_read_a_tensor_where_it_lies(server):
    with open_client("http", server) as client:
        added(client, "read_by_both", outputs=("OUT", "OUT2"))
        with copies(server):
            assert added(client, "read_by_both", outputs=("OUT", "OUT2")) == [2, 2]


def test_a_reader_in_a_sandbox_gets_a_copy(launcher):
    """With the descriptor that it was sent, it could map the tensor to write to it."""
    if launcher.oracle:
        pytest.skip("2.51 does not say what it copies")
    flags = [servers.onnxruntime_flag(), "--backend-config=python,sandbox=best-effort"]
    with serving(launcher, "ensemble_memory_sandbox", *flags) as server, open_client("http", server) as client:
        added(client, "two_readers", outputs=("OUT", "OUT2"))
        with copies(server, model_process=BYTES):
            assert added(client, "two_readers", outputs=("OUT", "OUT2")) == [2, 2]


@pytest.mark.parametrize("model", ["shown", "onnx_shown"])
def test_what_the_client_gets_too_is_copied_for_the_client_alone(server, model):
    given = lambda region: [Given("IN", "FP32", [COUNT], region=(region.name, BYTES, 0))]  # noqa: E731
    with open_client("http", server) as client, registered(client, BYTES, VALUES.tobytes()) as region:
        client.infer(model, given(region))
        with copies(server, inline_response=2 * BYTES):
            reply = client.infer(model, given(region))
        assert reply.outputs["OUT2"].raw == (VALUES + 1).tobytes() and reply.outputs["OUT"].raw == (VALUES + 2).tobytes()
        # In the client's region it is read where it lies.
        with copies(server):
            assert added(client, model, outputs=("OUT", "OUT2")) == [2, 1]


def test_strings_between_steps_are_copied_for_the_client_alone(server):
    texts = [f"text {number}".encode() for number in range(1 << 14)]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    with open_client("http", server) as client, registered(client, len(raw), raw) as region:
        given = [Given("IN", "BYTES", [len(texts)], region=(region.name, len(raw), 0))]
        client.infer("strings", given)
        before = copied(server)
        reply = client.infer("strings", given)
        assert reply.outputs["OUT"].raw == raw and reply.outputs["OUT2"].raw == raw
        after = copied(server)
        # Each model makes its strings in one piece, which it writes to its output.
        more = {reason: after[reason] - before[reason] for reason in after if after[reason] != before[reason] and reason != "strings"}
        assert more == {"inline_response": 2 * len(raw)}


def test_a_step_that_changes_its_input_changes_it_for_nobody_else(server):
    """Two steps read what the client gets as well."""
    with open_client("http", server) as client:
        for model, turn in itertools.product(("changed", "changed_by_two", "changed_by_one"), range(4)):
            reply = client.infer(model, [Given("IN", "FP32", [COUNT], raw=(VALUES + turn).tobytes())])
            found = {name: set((np.frombuffer(reply.outputs[name].raw, np.float32) - VALUES - turn).tolist()) for name in ("OUT", "OUT2", "OUT3")}
            assert found == {"OUT": {2}, "OUT2": {2}, "OUT3": {1}}, model


def test_a_process_maps_no_memory_of_steps_that_it_has_no_part_in(server):
    before = memory_files(pid_of(server, "third_0"))
    with open_client("http", server) as client:
        for model in ("python", "onnx"):
            added(client, model)
    # Memory of requests before may be unmapped meanwhile.
    assert set(memory_files(pid_of(server, "third_0"))) <= set(before)


@pytest.mark.parametrize(("model", "outputs"), [("python", ["OUT"]), ("onnx_first", ["OUT"]), ("two_readers", ["OUT", "OUT2"])])
def test_arrays_that_models_keep_do_not_change(server, model, outputs):
    with open_client("http", server) as client:
        kept = VALUES.copy()
        kept[-1] = KEEPS_AT["first"]
        added(client, model, kept, outputs)
        for turn in range(20):
            assert added(client, model, VALUES + turn, outputs) == [2] * len(outputs)


@pytest.mark.parametrize(("model", "outputs"), [("python", ["OUT"]), ("onnx", ["OUT"]), ("two_readers", ["OUT", "OUT2"])])
def test_memory_and_descriptors_are_used_again(server, model, outputs):
    instances = [server.pid, pid_of(server, "first_0"), pid_of(server, "second_0")]
    used = lambda: [(descriptors(pid), len(memory_files(pid))) for pid in instances]  # noqa: E731
    with open_client("http", server) as client:
        for _ in range(20):
            added(client, model, outputs=outputs)
        before = used()
        for turn in range(200):
            added(client, model, VALUES + turn, outputs)
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
        before = [len(memory_files(pid)) for pid in instances]
        done = client.statistics(model)[0]["inference_count"]
        for _ in range(32):
            open_sockets.enter_context(never_reading(server, model))
        while client.statistics(model)[0]["inference_count"] < done + 32:
            time.sleep(0.01)
        assert added(client, model) == [3 if model == "onnx" else 2]
        # Requests that ran at the same time needed more at once. What is idle goes back to the system after some seconds.
        deadline = time.monotonic() + TIMEOUT_S
        while any(len(memory_files(pid)) > then + 4 for pid, then in zip(instances, before, strict=True)):
            assert time.monotonic() < deadline, ([len(memory_files(pid)) for pid in instances], before)
            time.sleep(0.1)


def never_reading(server, model: str) -> socket.socket:
    """A request with an answer of 1 MiB in the message, which nobody reads."""
    given = {"name": "IN", "datatype": "FP32", "shape": [COUNT], "parameters": {"binary_data_size": BYTES}}
    head = json.dumps({"inputs": [given], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    host, _, port = server.http.rpartition(":")
    made = socket.create_connection((host, int(port)))
    fields = f"Host: localhost\r\nContent-Length: {len(head) + BYTES}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    made.sendall(f"POST /v2/models/{model}/infer HTTP/1.1\r\n{fields}".encode() + head + VALUES.tobytes())
    return made
