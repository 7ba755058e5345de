"""Do frozen graphs of TensorFlow answer as TensorFlow does? And the walk of docs/tensorflow.md: inline, then shared memory."""

import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import servers
import tritonclient.grpc
import tritonclient.utils.shared_memory as system_memory
from clients import Given, RequestedOutput, http_call, open_client, refuses
from regions import registered
from tensorflow_setup import MODELS, array, backend_directory, given, placeholder, put

sys.path.append(str(pathlib.Path(__file__).parents[1] / "perf_analyzer"))
import setup_perf  # noqa: E402

MADE = sorted(folder.name for folder in MODELS.iterdir() if (folder / "answers.npz").exists()) if MODELS.is_dir() else []
WALK = """name: "walk"
platform: "tensorflow_graphdef"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
"""


@pytest.fixture(scope="module")
def tensorflow_server(launcher):
    directory = backend_directory(launcher)
    repository = launcher.scratch / "tensorflow"
    for name in MADE:
        shutil.copytree(MODELS / name / "1", repository / name / "1")
    shutil.copytree(MODELS / "simple" / "1", repository / "walk" / "1")
    (repository / "walk" / "config.pbtxt").write_text(WALK)
    put(repository, "one_output", (MODELS / "simple/1/model.graphdef").read_bytes(),
        WALK.split("output")[0].split("\n", 2)[2] + 'output [ { name: "OUTPUT1:0" data_type: TYPE_INT32 dims: [ 16 ] } ]')  # fmt: skip
    put(repository, "named_rows", (MODELS / "digits/1/model.graphdef").read_bytes(),
        'max_batch_size: 64 input [ { name: "image" data_type: TYPE_FP32 dims: [ 8, 8, 1 ] } ]'
        'output [ { name: "digit" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [] } } ]'
        'dynamic_batching { max_queue_delay_microseconds: 20000 }')  # fmt: skip
    put(repository, "string_rows", (MODELS / "simple_string/1/model.graphdef").read_bytes(),
        "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 2000000 }\n"
        + WALK.split("\n", 2)[2].replace("INT32", "STRING"))  # fmt: skip
    with launcher.running("tensorflow", f"--backend-directory={directory}", "--exit-on-error=false", repository=repository) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def tensorflow_client(request: pytest.FixtureRequest, tensorflow_server):
    with open_client(request.param, tensorflow_server) as found:
        yield found


def stored(name: str) -> tuple[dict, dict]:
    with np.load(MODELS / name / "answers.npz") as found:
        sides = {side: {key[len(side) :]: found[key] for key in found.files if key.startswith(side)} for side in ("in.", "out.")}
    return sides["in."], sides["out."]


def check(output, expected: np.ndarray) -> str:
    """What is wrong with an output; empty if nothing is."""
    found = array(output)
    # A tensor without dimensions, besides that of the rows, has one of one element.
    if list(found.shape) == [*expected.shape, 1] and expected.ndim <= 1:
        found = found.reshape(expected.shape)
    if list(found.shape) != list(expected.shape):
        return f"shape {found.shape}, not {expected.shape}"
    if expected.dtype.kind == "S":
        return "" if found.tolist() == expected.tolist() else f"{found.tolist()} not {expected.tolist()}"
    if found.dtype != expected.dtype:
        return f"{found.dtype}, not {expected.dtype}"
    if expected.dtype.kind == "f":
        return "" if np.allclose(found, expected, rtol=1e-4, atol=1e-5) else f"differs by {np.abs(found - expected).max()}"
    return "" if (found == expected).all() else f"{found} not {expected}"


@pytest.mark.parametrize("name", MADE)
def test_each_graph_answers_as_tensorflow_did(tensorflow_client, name):
    inputs, outputs = stored(name)
    limit = int(tensorflow_client.config(name)["max_batch_size"])
    if limit:
        inputs = {key: values[:limit] for key, values in inputs.items()}
        outputs = {key: values[:limit] for key, values in outputs.items()}
    reply = tensorflow_client.infer(name, [given(key, values) for key, values in inputs.items()])
    wrong = {key: check(reply.outputs[key], values) for key, values in outputs.items()}
    assert {key: what for key, what in wrong.items() if what} == {}
    assert set(reply.outputs) == set(outputs)


def test_configurations_are_completed(tensorflow_client):
    def model_facts(name: str):
        found = tensorflow_client.metadata(name)
        sides = [[(one["name"], one["datatype"], [int(dim) for dim in one["shape"]]) for one in found[side]] for side in ("inputs", "outputs")]
        return int(tensorflow_client.config(name)["max_batch_size"]), *sides, found["platform"]

    pair = [("INPUT0", "INT32", [16]), ("INPUT1", "INT32", [16])], [("OUTPUT0", "INT32", [16]), ("OUTPUT1", "INT32", [16])]
    assert model_facts("simple") == (0, *pair, "tensorflow_graphdef")
    image, outputs = ("image", "FP32", [-1, 8, 8, 1]), [("probabilities", "FP32", [-1, 10]), ("digit", "INT64", [-1, 1])]
    assert model_facts("digits")[:2] == (4, [image]) and sorted(model_facts("digits")[2]) == sorted(outputs)


def test_an_output_may_be_named_as_tensorflow_does(tensorflow_client):
    inputs, outputs = stored("simple")
    reply = tensorflow_client.infer("one_output", [given(key, values) for key, values in inputs.items()])
    assert (list(reply.outputs), check(reply.outputs["OUTPUT1:0"], outputs["OUTPUT1"])) == (["OUTPUT1:0"], "")


def test_requests_run_as_one_batch(tensorflow_server):
    inputs, outputs = stored("digits")
    images = inputs["image"]
    with tritonclient.grpc.InferenceServerClient(tensorflow_server.grpc) as client:
        def image_input(start: int, rows: int):
            image = tritonclient.grpc.InferInput("image", [rows, 8, 8, 1], "FP32")
            image.set_data_from_numpy(images[start : start + rows])
            return image

        answers, requests = queue.Queue(), [(0, 1), (1, 3), (4, 2), (6, 1), (7, 9), (16, 16)]
        for start, rows in requests:
            client.async_infer("named_rows", [image_input(start, rows)], lambda result, error, start=start: answers.put((start, result, error)))
        rows_all = 0
        for start, result, error in (answers.get(timeout=60) for _ in requests):
            assert error is None
            found = result.as_numpy("digit").ravel()
            assert (found == outputs["digit"][start : start + len(found)]).all()
            rows_all += len(found)
        assert rows_all == 32
        stats = client.get_inference_statistics("named_rows").model_stats[0]
        assert (stats.inference_count, stats.execution_count < 6) == (32, True)


def test_strings_that_are_no_numbers_fail_their_request_alone(tensorflow_client):
    good, bad = np.array([[b"7"] * 16], dtype=object), np.array([[b"7"] * 15 + [b"seven"]], dtype=object)
    with refuses("INVALID_ARG", "the graph fails"):
        tensorflow_client.infer("simple_string", [given("INPUT0", good), given("INPUT1", bad)])
    reply = tensorflow_client.infer("simple_string", [given("INPUT0", good), given("INPUT1", good)])
    assert array(reply.outputs["OUTPUT0"]).tolist() == [[b"14"] * 16]


def test_a_bad_string_does_not_fail_the_requests_that_run_with_it(tensorflow_server):
    """Four requests wait for each other and run as one."""
    with tritonclient.grpc.InferenceServerClient(tensorflow_server.grpc) as client:
        found = queue.Queue()
        for index, text in enumerate([b"1", b"no", b"3", b"4"]):
            inputs = [tritonclient.grpc.InferInput(f"INPUT{side}", [1, 16], "BYTES") for side in range(2)]
            for one in inputs:
                one.set_data_from_numpy(np.array([[text] * 16], dtype=object))
            client.async_infer("string_rows", inputs, lambda result, error, index=index: found.put((index, result, error)))
        answers = {index: (result, error) for index, result, error in (found.get(timeout=60) for _ in range(4))}
        assert "could not correctly convert string: no" in str(answers[1][1])
        for index, sum_text in ((0, b"2"), (2, b"6"), (3, b"8")):
            assert answers[index][1] is None and answers[index][0].as_numpy("OUTPUT0").tolist() == [[sum_text] * 16]


def test_tensors_lie_in_regions(tensorflow_client):
    inputs, outputs = stored("simple")
    with registered(tensorflow_client, 256, inputs["INPUT0"].tobytes() + inputs["INPUT1"].tobytes()) as made:
        requested = [RequestedOutput("OUTPUT0", (made.name, 64, 128)), RequestedOutput("OUTPUT1", (made.name, 64, 192))]
        lying = [Given(f"INPUT{index}", "INT32", [16], region=(made.name, 64, 64 * index)) for index in range(2)]
        tensorflow_client.infer("simple", lying, requested)
        assert made.read(128, 128) == outputs["OUTPUT0"].tobytes() + outputs["OUTPUT1"].tobytes()


def test_the_walk_inline_then_shared_memory(tensorflow_server):
    """What a user does, with the published client: no change on the model's side in between."""
    first, second = np.arange(16, dtype=np.int32), np.ones(16, dtype=np.int32)
    client = tritonclient.grpc.InferenceServerClient(tensorflow_server.grpc)
    inputs = [tritonclient.grpc.InferInput(f"INPUT{index}", [16], "INT32") for index in range(2)]
    outputs = [tritonclient.grpc.InferRequestedOutput(f"OUTPUT{index}") for index in range(2)]
    inputs[0].set_data_from_numpy(first)
    inputs[1].set_data_from_numpy(second)
    result = client.infer("walk", inputs, outputs=outputs)
    assert (result.as_numpy("OUTPUT0") == first + second).all() and (result.as_numpy("OUTPUT1") == first - second).all()

    client.unregister_system_shared_memory()
    size = first.nbytes
    output_handle = system_memory.create_shared_memory_region("output_data", "/nerite_walk_output", size * 2)
    input_handle = system_memory.create_shared_memory_region("input_data", "/nerite_walk_input", size * 2)
    try:
        client.register_system_shared_memory("output_data", "/nerite_walk_output", size * 2)
        client.register_system_shared_memory("input_data", "/nerite_walk_input", size * 2)
        system_memory.set_shared_memory_region(input_handle, [first])
        system_memory.set_shared_memory_region(input_handle, [second], offset=size)
        for index in range(2):
            inputs[index].set_shared_memory("input_data", size, offset=size * index)
            outputs[index].set_shared_memory("output_data", size, offset=size * index)
        before = copied(tensorflow_server)
        client.infer("walk", inputs, outputs=outputs)
        assert copied(tensorflow_server) == before
        found = [system_memory.get_contents_as_numpy(output_handle, np.int32, [16], offset=size * index) for index in range(2)]
        assert (found[0] == first + second).all() and (found[1] == first - second).all()
        assert len(client.get_system_shared_memory_status().regions) == 2
        client.unregister_system_shared_memory()
        assert len(client.get_system_shared_memory_status().regions) == 0
    finally:
        system_memory.destroy_shared_memory_region(input_handle)
        system_memory.destroy_shared_memory_region(output_handle)
        client.close()


def copied(server) -> int:
    lines = http_call(server.metrics, "GET", "/metrics").body.decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith("nerite_copied_bytes_total{"))


def test_the_programs_of_the_page_take_the_walk(tensorflow_server):
    """As docs/tensorflow.md has them. The first one makes the graph, and needs TensorFlow, which made it before."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "tensorflow.md").read_text()
    making, *asking = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert "import tensorflow" in making and len(asking) == 2
    # Objects of its own, because tests of several checkouts may run on one host.
    program = "".join(asking).replace("localhost:8001", tensorflow_server.grpc).replace("put_simple", f"put_simple_{os.getpid()}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{np.arange(16) + 1}\n" * 2


def test_a_load_generator_says_whether_shared_memory_pays_off(tensorflow_server):
    """The last step of the walk. What it measures is not asserted: the machine may be busy."""
    found = setup_perf.tool()
    if found is None:
        pytest.skip("perf_analyzer is not installed: tests/perf_analyzer/setup_perf.py")
    command, environment = found
    quick = ["--measurement-interval=300", "--stability-percentage=100000", "--max-trials=10"]
    for memory in ("none", "system"):
        command_line = [*command, "-m", "walk", "-i", "grpc", "-u", tensorflow_server.grpc, f"--shared-memory={memory}", *quick]
        done = subprocess.run(command_line, env=environment, capture_output=True, text=True, timeout=250)
        report = done.stdout + done.stderr
        throughput = re.search(r"Throughput: ([0-9.]+) infer/sec", report)
        assert done.returncode == 0 and throughput and float(throughput[1]) > 0, report
        print(f"--shared-memory={memory}: {throughput[1]} infer/s")


def test_a_server_without_the_backend_says_what_builds_it(launcher, monkeypatch, tmp_path):
    if launcher.oracle:
        pytest.skip("Triton 2.51 has no such backend, and says so in its own words")
    # Nothing lies beside this one.
    program, empty = shutil.copy(servers.nerite_binary(), tmp_path), tmp_path / "no_backends"
    monkeypatch.setenv("NERITE_BIN", program)
    empty.mkdir()
    put(tmp_path / "models", "simple", placeholder("x", 1))
    flags = [f"--backend-directory={empty}", "--exit-on-error=false"]
    with launcher.running("lacking", *flags, repository=tmp_path / "models") as server, open_client("http", server) as client:
        (only,) = client.index()
    assert only["state"] == "UNAVAILABLE" and "cargo xtask tensorflow" in only["reason"]
