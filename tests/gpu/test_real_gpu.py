"""Do Triton's clients, PyTorch and Python models reach the memory of a real GPU through nerite?

    NERITE_BIN=… PYTHONPATH=python python -m pytest --noconftest -s tests/gpu/test_real_gpu.py

It needs a GPU, PyTorch with CUDA, `cuda-python` and `tritonclient`, and is skipped where one of them is missing. It stands apart from the
fixtures of the other tests, because machines with a GPU seldom have all that those need. The tests of batches need ONNX Runtime with its CUDA
provider as well: the package `onnxruntime-gpu`, or the library that ORT_DYLIB_PATH names. Those of compiled backends need a C
compiler.
"""

import base64
import concurrent.futures
import importlib.util
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import time
import urllib.request

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
nerite = pytest.importorskip("nerite")
cuda_shared_memory = pytest.importorskip("tritonclient.utils.cuda_shared_memory", exc_type=RuntimeError)
import tritonclient.grpc  # noqa: E402
import tritonclient.http  # noqa: E402

COUNT = 1 << 20
BYTES = 4 * COUNT
LARGE_BYTES = 64 << 20

TENSORS = """\
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

DOUBLE_BY_NUMPY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        def answer(request):
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * 2)])

        return [answer(request) for request in requests]
"""

# Its instance is on the GPU: the weight lies there, and so do the sums.
SCALE_BY_TORCH = """
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU", args["model_instance_kind"]
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))
        self.weight = torch.full((), 3.0, device=self.device)

    def execute(self, requests):
        def answer(request):
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            on_device = torch.from_dlpack(tensor.to_dlpack()).to(self.device)
            scaled = (on_device * self.weight).cpu()
            return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT0", torch.utils.dlpack.to_dlpack(scaled))])

        return [answer(request) for request in requests]
"""

STEPS = """\
platform: "ensemble"
ensemble_scheduling { step [
  { model_name: "identity" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "double" model_version: -1 input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
] }
"""


ADD_GRAPH = pathlib.Path(__file__).resolve().parents[2] / "examples/models/simple/1/model.onnx"
ROWS, WIDTH = 8, 16
TENSOR_BYTES = 4 * ROWS * WIDTH
BATCHES = 50
# OUTPUT0 is the sum of INPUT0 and INPUT1, OUTPUT1 the difference. A batch begins as soon as two requests of eight rows wait, and not before in these tests.
ADD = f"""\
backend: "onnxruntime"
max_batch_size: {2 * ROWS}
instance_group [ {{ kind: KIND_GPU count: 1 gpus: [ 0 ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 60000000 }}
"""


def write_model(folder: pathlib.Path, name: str, config: str, code: str = "") -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(config)
    if code:
        (version / "model.py").write_text(code)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "identity", 'backend: "identity"\n' + TENSORS)
    write_model(folder, "double", 'backend: "python"\n' + TENSORS, DOUBLE_BY_NUMPY)
    write_model(folder, "scale", 'backend: "python"\ninstance_group [ { kind: KIND_GPU } ]\n' + TENSORS, SCALE_BY_TORCH)
    write_model(folder, "steps", TENSORS + STEPS)
    with nerite.serve(folder, metrics_interval_ms=200) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def protocol(request, server):
    """Triton's client of one protocol, and its module."""
    module = getattr(tritonclient, request.param)
    client = module.InferenceServerClient(getattr(server, request.param))
    yield module, client
    client.unregister_cuda_shared_memory()
    client.close()


@pytest.fixture
def regions():
    """Makes CUDA regions of Triton's client, and frees them."""
    made = []

    def region(name: str, byte_size: int):
        made.append(cuda_shared_memory.create_shared_memory_region(name, byte_size, 0))
        return made[-1]

    yield region
    for each in made:
        cuda_shared_memory.destroy_shared_memory_region(each)


def register(client, name: str, region, byte_size: int) -> None:
    client.register_cuda_shared_memory(name, cuda_shared_memory.get_raw_handle(region), 0, byte_size)


def infer(module, client, model: str, count: int, names: tuple[str, str]):
    """Asks with input and output in the regions of these names."""
    given = module.InferInput("INPUT0", [count], "FP32")
    given.set_shared_memory(names[0], 4 * count)
    wanted = module.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(names[1], 4 * count)
    return client.infer(model, [given], outputs=[wanted])


def metric(server, family: str, label: str) -> int:
    """The value of the first metric of a family with this label."""
    page = urllib.request.urlopen(f"http://{server.metrics}/metrics").read().decode()
    return int(next(row for row in page.splitlines() if row.startswith(family) and label in row).split()[-1])


def copied(server, reason: str) -> int:
    return metric(server, "nerite_copied_bytes_total", f'reason="{reason}"')


def crossed(server) -> int:
    """Bytes that the server brought to a device or from one."""
    return copied(server, "cross_device")


@pytest.mark.parametrize(("model", "factor"), [("identity", 1), ("double", 2), ("scale", 3), ("steps", 2)])
def test_a_model_reads_and_writes_regions_on_the_device(server, protocol, regions, model, factor):
    module, client = protocol
    into, out = regions("in", BYTES), regions("out", BYTES)
    numbers = np.random.default_rng(7).random(COUNT, np.float32)
    cuda_shared_memory.set_shared_memory_region(into, [numbers])
    register(client, "in", into, BYTES)
    register(client, "out", out, BYTES)
    infer(module, client, model, COUNT, ("in", "out"))
    found = cuda_shared_memory.get_contents_as_numpy(out, np.float32, [COUNT])
    np.testing.assert_array_equal(found, numbers * np.float32(factor))


def test_tensors_of_torch_go_in_and_come_out_on_the_device(server, protocol, regions):
    module, client = protocol
    into, out = regions("in", BYTES), regions("out", BYTES)
    numbers = torch.rand(COUNT, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    cuda_shared_memory.set_shared_memory_region_from_dlpack(into, [numbers])
    register(client, "in", into, BYTES)
    register(client, "out", out, BYTES)
    before = crossed(server)
    infer(module, client, "identity", COUNT, ("in", "out"))
    found = torch.from_dlpack(cuda_shared_memory.as_shared_memory_tensor(out, "FP32", [COUNT]))
    assert found.is_cuda
    assert torch.equal(found, numbers)
    assert crossed(server) - before == 2 * BYTES


@pytest.mark.parametrize("url", [None, "http", "grpc"])
def test_the_python_client_takes_tensors_on_the_device(server, url):
    numbers = torch.arange(1000, dtype=torch.float32, device="cuda")
    with server.connect(url) as client:
        out = client.model("scale")(INPUT0=numbers)
        np.testing.assert_array_equal(np.asarray(out["OUTPUT0"]), numbers.cpu().numpy() * 3)


def register_and_wait(url: str, handle_sent) -> None:
    """Lends memory of a process of its own, and lives until it is killed."""
    region = cuda_shared_memory.create_shared_memory_region("theirs", BYTES, 0)
    cuda_shared_memory.set_shared_memory_region(region, [np.ones(COUNT, np.float32)])
    with tritonclient.http.InferenceServerClient(url) as client:
        register(client, "theirs", region, BYTES)
    handle_sent.set()
    time.sleep(600)


def test_a_client_that_is_killed_takes_nobody_with_it(server, regions):
    context = multiprocessing.get_context("spawn")
    registered = context.Event()
    other = context.Process(target=register_and_wait, args=(server.http, registered), daemon=True)
    other.start()
    assert registered.wait(60)
    own = regions("own", BYTES)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        register(client, "own", own, BYTES)
        infer(tritonclient.http, client, "identity", COUNT, ("theirs", "own"))
        assert cuda_shared_memory.get_contents_as_numpy(own, np.float32, [COUNT]).min() == 1
        other.kill()
        other.join()
        # The driver decides whether the memory is still there. Whatever it decides, the server and its other clients go on.
        for _ in range(20):
            try:
                infer(tritonclient.http, client, "identity", COUNT, ("theirs", "own"))
            except tritonclient.utils.InferenceServerException as error:
                print(f"\nafter its owner was killed: {error}")
                break
        cuda_shared_memory.set_shared_memory_region(own, [np.full(COUNT, 5, np.float32)])
        out = regions("out", BYTES)
        register(client, "out", out, BYTES)
        infer(tritonclient.http, client, "double", COUNT, ("own", "out"))
        assert (cuda_shared_memory.get_contents_as_numpy(out, np.float32, [COUNT]) == 10).all()
        client.unregister_cuda_shared_memory()


def test_metrics_show_what_the_driver_shows(server):
    assert shutil.which("nvidia-smi")
    held = torch.ones(1 << 28, device="cuda")  # 1 GiB, so that something is used
    time.sleep(1)
    page = urllib.request.urlopen(f"http://{server.metrics}/metrics").read().decode()
    values = {row.split("{")[0]: float(row.split()[-1]) for row in page.splitlines() if row.startswith("nv_gpu_")}
    print("\n" + "\n".join(row for row in page.splitlines() if row.startswith(("nv_gpu_", "nv_energy", "nerite_gpu"))))
    assert values["nv_gpu_memory_used_bytes"] >= held.numel() * 4
    assert values["nv_gpu_memory_used_bytes"] < values["nv_gpu_memory_total_bytes"]
    assert values["nv_gpu_power_usage"] > 0


@pytest.mark.parametrize("byte_size", [64, BYTES, LARGE_BYTES])
def test_what_a_request_takes(server, protocol, regions, byte_size):
    """Prints times beside those of the same tensors in the request. It asserts none."""
    module, client = protocol
    count = byte_size // 4
    into, out = regions("in", byte_size), regions("out", byte_size)
    register(client, "in", into, byte_size)
    register(client, "out", out, byte_size)
    times, inline = [], []
    array = np.zeros(count, np.float32)
    for _ in range(15 if byte_size == LARGE_BYTES else 100):
        begun = time.perf_counter()
        infer(module, client, "identity", count, ("in", "out"))
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        given = module.InferInput("INPUT0", [count], "FP32")
        given.set_data_from_numpy(array)
        client.infer("identity", [given]).as_numpy("OUTPUT0")
        inline.append(time.perf_counter() - begun)
    micros = [round(statistics.median(of) * 1e6) for of in (times, inline)]
    print(f"\n{module.__name__}, {byte_size} bytes: CUDA regions {micros[0]} µs, in the request {micros[1]} µs (p50)")


BACKEND_SOURCE = pathlib.Path(__file__).resolve().parents[1] / "backends/device.c"
DEVICE_TENSORS = """\
backend: "device"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


@pytest.fixture(scope="module")
def backend_server(tmp_path_factory):
    """A server with a compiled backend, which copies IN to OUT by the driver. Its models are on the GPU and on the host."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    backends, models = (
        tmp_path_factory.mktemp("backends"),
        tmp_path_factory.mktemp("models"),
    )
    library = backends / "device/libtriton_device.so"
    library.parent.mkdir()
    subprocess.run(
        [
            compiler,
            "-O1",
            "-fPIC",
            "-shared",
            BACKEND_SOURCE,
            "-o",
            library,
            "-lpthread",
        ],
        check=True,
    )
    for name, kind in (("on_gpu", "KIND_GPU"), ("on_host", "KIND_CPU")):
        write_model(
            models,
            name,
            DEVICE_TENSORS + f"instance_group [ {{ kind: {kind} count: 2 }} ]\n",
        )
    options = {
        "backend_directory": backends,
        "metrics_config": "summary_latencies=true",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_CUDA_LIBRARY", "libcuda.so.1")
        with nerite.serve(models, **options) as running:
            yield running


@pytest.fixture(params=["http", "grpc"])
def backend_client(request, backend_server):
    """Triton's client of one protocol, and its module."""
    module = getattr(tritonclient, request.param)
    client = module.InferenceServerClient(getattr(backend_server, request.param))
    yield module, client
    client.unregister_cuda_shared_memory()
    client.close()


def infer_by_backend(module, client, model: str, count: int, given_at: int | None, wanted_at: int | None):
    """Asks with tensors at these offsets of the region `both`, or in the messages where there is no offset."""
    given = module.InferInput("IN", [count], "FP32")
    if given_at is None:
        given.set_data_from_numpy(np.full(count, 7, np.float32))
    else:
        given.set_shared_memory("both", 4 * count, given_at)
    wanted = module.InferRequestedOutput("OUT")
    if wanted_at is not None:
        wanted.set_shared_memory("both", 4 * count, wanted_at)
    return client.infer(model, [given], outputs=[wanted])


def parameters_of(module, reply) -> dict:
    if module is tritonclient.http:
        return reply.get_response()["parameters"]
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in reply.get_response().parameters.items()}


# What lies in the region, and the bytes that the server brings over the bus for each of a request's tensors there.
BACKEND_CASES = [
    ("on_gpu", True, True, 0, 0),
    ("on_gpu", True, False, 0, 0),
    ("on_gpu", False, True, 0, 0),
    ("on_gpu", True, True, 4, 2),
    ("on_host", True, True, 0, 2),
]


@pytest.mark.parametrize(("model", "given", "wanted", "shift", "crossings"), BACKEND_CASES)
def test_a_compiled_backend_reads_and_writes_regions_on_the_device(backend_server, backend_client, regions, model, given, wanted, shift, crossings):
    module, client = backend_client
    region = regions("both", 3 * BYTES)
    numbers = np.random.default_rng(11).random(COUNT, np.float32)
    padding = [np.zeros(shift // 4, np.float32)] if shift else []
    cuda_shared_memory.set_shared_memory_region(region, [*padding, numbers])
    register(client, "both", region, 3 * BYTES)
    before = crossed(backend_server)
    reply = infer_by_backend(
        module,
        client,
        model,
        COUNT,
        shift if given else None,
        BYTES + shift if wanted else None,
    )
    if wanted:
        whole = cuda_shared_memory.get_contents_as_numpy(region, np.float32, [3 * COUNT])
        found = whole[COUNT + shift // 4 :][:COUNT]
    else:
        found = reply.as_numpy("OUT")
    np.testing.assert_array_equal(found, numbers if given else np.full(COUNT, 7, np.float32))
    assert crossed(backend_server) - before == crossings * BYTES
    reported = parameters_of(module, reply)
    handle = bytes(base64.b64decode(cuda_shared_memory.get_raw_handle(region))).hex()
    for side, in_region in (("in", given), ("out", wanted)):
        is_used_there = in_region and crossings == 0
        assert (reported[f"{side}_kind"] == "GPU", reported[f"{side}_handle"]) == (
            is_used_there,
            handle if is_used_there else "",
        )


def test_clients_of_a_compiled_backend_at_once_get_their_own_answers(backend_server, regions):
    def check(at: int) -> None:
        with tritonclient.http.InferenceServerClient(backend_server.http) as client:
            name = f"of_{at}"
            register(client, name, made[at], 2 * BYTES)
            for turn in range(50):
                value = np.full(COUNT, 100 * at + turn, np.float32)
                cuda_shared_memory.set_shared_memory_region(made[at], [value])
                given = tritonclient.http.InferInput("IN", [COUNT], "FP32")
                given.set_shared_memory(name, BYTES)
                wanted = tritonclient.http.InferRequestedOutput("OUT")
                wanted.set_shared_memory(name, BYTES, BYTES)
                client.infer("on_gpu", [given], outputs=[wanted])
                found = cuda_shared_memory.get_contents_as_numpy(made[at], np.float32, [2 * COUNT])
                np.testing.assert_array_equal(found[COUNT:], value)
            client.unregister_cuda_shared_memory(name)

    made = [regions(f"of_{at}", 2 * BYTES) for at in range(4)]
    before = crossed(backend_server)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(4)))
    assert crossed(backend_server) == before


@pytest.mark.parametrize("byte_size", [64, BYTES, LARGE_BYTES])
def test_what_a_request_of_a_compiled_backend_takes(backend_server, backend_client, regions, byte_size):
    """Prints times where the instance is on the GPU, and where it is on the host. It asserts none."""
    module, client = backend_client
    region = regions("both", 2 * byte_size)
    register(client, "both", region, 2 * byte_size)
    times = {"on_gpu": [], "on_host": []}
    for _ in range(15 if byte_size == LARGE_BYTES else 200):
        for model, of in times.items():
            begun = time.perf_counter()
            infer_by_backend(module, client, model, byte_size // 4, 0, byte_size)
            of.append(time.perf_counter() - begun)
    micros = {model: round(statistics.median(of) * 1e6) for model, of in times.items()}
    print(f"\n{module.__name__}, {byte_size} bytes in CUDA regions: instance on the GPU {micros['on_gpu']} µs, on the host {micros['on_host']} µs (p50)")


def test_latencies_of_a_model_on_one_gpu_have_its_uuid(backend_server, backend_client, regions):
    module, client = backend_client
    region = regions("both", 2 * BYTES)
    register(client, "both", region, 2 * BYTES)
    infer_by_backend(module, client, "on_gpu", COUNT, 0, BYTES)
    infer_by_backend(module, client, "on_host", COUNT, 0, BYTES)
    uuid = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()[0]
    page = urllib.request.urlopen(f"http://{backend_server.metrics}/metrics").read().decode()
    rows = [row for row in page.splitlines() if row.startswith("nv_inference_compute_infer_summary_us_count")]
    print("\n" + "\n".join(rows))
    (on_gpu,) = (row for row in rows if 'model="on_gpu"' in row)
    (on_host,) = (row for row in rows if 'model="on_host"' in row)
    assert f'gpu_uuid="{uuid}"' in on_gpu and "gpu_uuid" not in on_host
    assert all(int(row.split()[-1]) > 0 for row in (on_gpu, on_host))


@pytest.fixture(scope="module")
def add_server(tmp_path_factory):
    """A server whose model `add` runs on the GPU."""
    library = os.environ.get("ORT_DYLIB_PATH")
    if not library:
        package = importlib.util.find_spec("onnxruntime") or pytest.skip("there is no ONNX Runtime")
        folder = pathlib.Path(package.origin).parent / "capi"
        if not (folder / "libonnxruntime_providers_cuda.so").exists():
            pytest.skip("ONNX Runtime has no CUDA provider")
        library = next(folder.glob("libonnxruntime.so*"))
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "add", ADD)
    shutil.copy(ADD_GRAPH, folder / "add/1/model.onnx")
    with nerite.serve(folder, onnxruntime_library=library) as running:
        yield running


class Adding:
    """A client with a region of its own for both inputs and both outputs."""

    def __init__(self, server, regions, name: str, seed: int):
        self.client = tritonclient.grpc.InferenceServerClient(server.grpc)
        self.name, self.numbers = name, np.random.default_rng(seed)
        self.region = regions(name, 4 * TENSOR_BYTES)
        register(self.client, name, self.region, 4 * TENSOR_BYTES)

    def infer(self) -> None:
        inputs = [self.numbers.integers(-(1 << 30), 1 << 30, (ROWS, WIDTH), np.int32) for _ in range(2)]
        # What an earlier run left must not pass for the answer.
        cuda_shared_memory.set_shared_memory_region(self.region, [*inputs, np.zeros((2, ROWS, WIDTH), np.int32)])
        given = [tritonclient.grpc.InferInput(f"INPUT{at}", [ROWS, WIDTH], "INT32") for at in range(2)]
        wanted = [tritonclient.grpc.InferRequestedOutput(f"OUTPUT{at}") for at in range(2)]
        for at, tensor in enumerate([*given, *wanted]):
            tensor.set_shared_memory(self.name, TENSOR_BYTES, at * TENSOR_BYTES)
        self.client.infer("add", given, outputs=wanted)
        found = cuda_shared_memory.get_contents_as_numpy(self.region, np.int32, [4, ROWS, WIDTH])
        np.testing.assert_array_equal(found, [*inputs, inputs[0] + inputs[1], inputs[0] - inputs[1]])

    def executions(self) -> int:
        return self.client.get_inference_statistics("add").model_stats[0].execution_count


@pytest.fixture
def two(add_server, regions):
    both = [Adding(add_server, regions, "one", 1), Adding(add_server, regions, "other", 2)]
    yield both
    both[0].client.unregister_cuda_shared_memory()
    for each in both:
        each.client.close()


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield pool


def test_requests_with_regions_of_their_own_run_in_one_batch(add_server, two, threads):
    def counts() -> list[int]:
        return [*(copied(add_server, reason) for reason in ("batch_gather", "batch_scatter", "cross_device")), two[0].executions()]

    before = counts()
    for _ in range(BATCHES):
        for running in [threads.submit(client.infer) for client in two]:
            running.result(60)
    tensors = BATCHES * 2 * 2 * TENSOR_BYTES
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [tensors, tensors, 0, BATCHES]


def test_a_region_that_is_unregistered_while_its_request_waits_changes_no_answer(add_server, two, threads):
    one, other = two
    waiting = threads.submit(one.infer)
    while metric(add_server, "nv_inference_pending_request_count", 'model="add"') != 1:
        assert not waiting.done(), waiting.exception()
        time.sleep(0.01)
    other.client.unregister_cuda_shared_memory("one")
    other.infer()
    waiting.result(60)
    with pytest.raises(tritonclient.utils.InferenceServerException, match="'one'"):
        one.infer()
    # The next batch is complete without it.
    register(one.client, "one", one.region, 4 * TENSOR_BYTES)
    for running in [threads.submit(client.infer) for client in two]:
        running.result(60)
