"""Do Python models exchange tensors on a GPU?

The driver of the server, of its models and of this client is the stand-in of crates/cuda/tests/stand_in, which is no CUDA, and models have arrays of
a library of ours. With NERITE_TEST_REAL_GPU=1 they are the real driver and PyTorch, on the first GPU. Then this file needs no other of the tests:

    NERITE_TEST_REAL_GPU=1 NERITE_BIN=… python3 -m pytest --noconftest -c /dev/null tests/gpu/test_python_gpu.py
"""

import contextlib
import http.client
import json
import mmap
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from cuda_client import Device

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARRAYS = ROOT / "tests/gpu/arrays"
IS_REAL = os.environ.get("NERITE_TEST_REAL_GPU") == "1"
START_LIMIT_S = 120
# Larger than a page-locked block of the model's process, and no multiple of one.
LARGE = 3 * (4 << 20) // 4 + 12_345
DTYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
    "BF16": "u2",
}
CONFIG = """\
backend: "python"
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}, {{ name: "T" data_type: TYPE_STRING dims: [ -1 ] optional: true }} ]
output [ {{ name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] }}, {outputs} ]
model_transaction_policy {{ decoupled: {decoupled} }}
instance_group [ {group} ]
"""
OUTPUTS = ", ".join(f'{{ name: "{name}" data_type: TYPE_{name} dims: [ -1 ] }}' for name in DTYPES)
ON_HOST = "{ kind: KIND_CPU }"
ON_GPU = "{ kind: KIND_GPU gpus: [ 0 ] }"
# The parameter that leaves inputs where they are.
ANYWHERE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
MODELS = [
    ("gpu", "false", ON_HOST, ""),
    ("other", "false", ON_HOST, ""),
    ("stream", "true", ON_HOST, ""),
    ("on_gpu", "false", ON_GPU, ANYWHERE),
    ("on_gpu_2", "false", ON_GPU, ANYWHERE),
    ("stream_on_gpu", "true", ON_GPU, ANYWHERE),
    ("forced", "false", ON_GPU, ""),
]
IDENTITY = 'backend: "identity" input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]'


def compiled(folder: pathlib.Path) -> pathlib.Path:
    """The stand-in driver."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    library = folder / "libstand_in_driver.so"
    source = ROOT / "crates/cuda/tests/stand_in/stand_in_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


def repository(folder: pathlib.Path) -> pathlib.Path:
    models = folder / "models"
    for name, decoupled, group, more in MODELS:
        version = models / name / "1"
        version.mkdir(parents=True)
        shutil.copy(ARRAYS / "model.py", version / "model.py")
        shutil.copy(ARRAYS / ("torch_arrays.py" if IS_REAL else "stand_in.py"), version / "gpu.py")
        (models / name / "config.pbtxt").write_text(CONFIG.format(outputs=OUTPUTS, decoupled=decoupled, group=group) + more)
    (models / "identity" / "1").mkdir(parents=True)
    (models / "identity" / "config.pbtxt").write_text(IDENTITY)
    return models


class Server:
    """A server, and requests to it over HTTP."""

    def __init__(self, process: subprocess.Popen, port: int, metrics_port: int, log: pathlib.Path) -> None:
        self.process, self.port, self.metrics_port, self.log = process, port, metrics_port, log

    def call(
        self, method: str, path: str, body: bytes = b"", headers: dict = {}, port: int = 0
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=120)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def post(self, path: str, **fields) -> dict:
        status, _, body = self.call("POST", path, json.dumps(fields).encode())
        assert status == 200, body
        return json.loads(body or b"{}")

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.call("GET", "/v2/health/ready")[0] == 200
        return False

    def infer(self, code: str, model: str = "gpu", inputs: list = [], binary: bytes = b"", outputs: list | None = None) -> dict:
        """Runs the code in the model. The outputs by their names: an array of bytes and a shape, or None for those in shared memory."""
        request = {"parameters": {"code": code, "binary_data_output": True}, "inputs": inputs}
        if outputs is not None:
            request["outputs"] = outputs
        head = json.dumps(request).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, headers, body = self.call("POST", f"/v2/models/{model}/infer", head + binary, headers)
        if status != 200:
            raise Failed(json.loads(body)["error"])
        length = int(headers.get("Inference-Header-Content-Length", len(body)))
        at, found = length, {}
        for output in json.loads(body[:length])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            content = None if size is None else np.frombuffer(body[at : at + size], np.uint8)
            at += size or 0
            found[output["name"]] = (output["datatype"], output["shape"], content)
        return found

    def result_of(self, code: str, **more):
        """What the code passes to `report`."""
        _, _, content = self.infer(code, **more)["RESULT"]
        return json.loads(content.tobytes()[4:])


    def carried(self) -> int:
        """Bytes that the server copied between host and GPU."""
        name = b'nerite_copied_bytes_total{reason="cross_device"} '
        _, _, page = self.call("GET", "/metrics", port=self.metrics_port)
        return next(int(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


class Failed(Exception):
    """The error of a request."""


@contextlib.contextmanager
def running(models: pathlib.Path, log: pathlib.Path, environment: dict):
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        port, metrics_port = one.getsockname()[1], two.getsockname()[1]
    binary = pathlib.Path(os.environ.get("NERITE_BIN", ROOT / "target/release/nerite"))
    if not binary.exists():
        pytest.skip(f"{binary} is not built")
    flags = [f"--model-repository={models}", f"--http-port={port}", f"--metrics-port={metrics_port}", "--allow-grpc=false"]
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, "serve", *flags], stdout=output, stderr=output, env={**os.environ, "PATH": path, **environment}
        )
    try:
        server, deadline = Server(process, port, metrics_port, log), time.monotonic() + START_LIMIT_S
        while not server.is_ready():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> pathlib.Path:
    return pathlib.Path("libcuda.so.1") if IS_REAL else compiled(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def device(driver) -> Device:
    return Device(driver)


@pytest.fixture(scope="module")
def server(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running(repository(folder), folder / "log", {} if IS_REAL else {"NERITE_CUDA_LIBRARY": str(driver)}) as found:
        yield found


def elements(datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """As the models make them."""
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(DTYPES[datatype])


def made(datatype: str, shape: tuple[int, ...], more: str = "") -> str:
    """Code for these elements on the GPU."""
    bf16 = ", 'BF16'" if datatype == "BF16" else ""
    return f"gpu.make(np.arange({int(np.prod(shape, dtype=int))}).reshape({shape}).astype('{DTYPES[datatype]}'){bf16}{more})"


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (7,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("datatype", DTYPES)
def test_a_tensor_on_a_gpu_is_an_output(server, datatype, shape):
    found = server.infer(f"out.append(pb_utils.Tensor.from_dlpack('{datatype}', {made(datatype, shape)}))")
    assert found[datatype][:2] == (datatype, list(shape))
    assert found[datatype][2].tobytes() == elements(datatype, shape).tobytes()


@pytest.mark.parametrize("form", ["{0}", "gpu.capsule({0})"], ids=["object", "capsule"])
@pytest.mark.parametrize("count", [1, LARGE])
def test_it_is_copied_after_it_was_written(server, form, count):
    code = f"before = gpu.waits(); array = {made('FP32', (count,))}; taken = {form.format('array')}"
    code += "; out.append(pb_utils.Tensor.from_dlpack('FP32', taken)); report([before, gpu.waits()])"
    found = server.infer(code)
    assert found["FP32"][2].tobytes() == elements("FP32", (count,)).tobytes()
    before, after = json.loads(found["RESULT"][2].tobytes()[4:])
    if not IS_REAL:
        # An object makes our stream wait. A capsule cannot.
        assert after - before == (0 if form == "{0}" else 1)


def test_it_is_a_tensor_of_tritons_contract(server):
    code = f"""
array = {made("FP32", (2, 3))}
tensor = pb_utils.Tensor.from_dlpack("FP32", array)
errors = []
for refused in (tensor.as_numpy, lambda: tensor.__dlpack__(copy=True), lambda: tensor.__dlpack__(dl_device=(2, 7))):
    try:
        refused()
    except Exception as error:
        errors.append([type(error).__name__, str(error)])
again = pb_utils.Tensor.from_dlpack("FP32", tensor.to_dlpack())
bytes_, shape = gpu.read(again)
host = pb_utils.Tensor.from_dlpack("FP32", tensor.__dlpack__(dl_device=(1, 0))).as_numpy()
report({{
    "facts": [tensor.name(), tensor.is_cpu(), tensor.shape(), tensor.triton_dtype(), list(tensor.__dlpack_device__())],
    "class": [type(tensor).__name__, isinstance(tensor, pb_utils.Tensor)],
    "errors": errors,
    "again": [again.is_cpu(), bytes_.view("f4").tolist(), shape, gpu.address(again) == gpu.address(tensor)],
    "host": host.tolist(),
}})
"""
    result = server.result_of(code)
    assert result["facts"] == ["FP32", False, [2, 3], 11, [2, 0]] and result["class"] == ["Tensor", True]
    assert result["errors"][0] == ["TritonModelException", "Tensor is stored in GPU and cannot be converted to NumPy."]
    assert [kind for kind, _ in result["errors"][1:]] == ["BufferError", "BufferError"]
    assert result["again"] == [False, list(range(6)), [2, 3], True]
    assert result["host"] == [[0, 1, 2], [3, 4, 5]]


def test_the_memory_is_given_back(server):
    code = f"before = gpu.live(); out.append(pb_utils.Tensor.from_dlpack('FP32', {made('FP32', (LARGE,))})); report([before, gpu.page_locked()])"
    results = [server.result_of(code) for _ in range(8)]
    assert len({before for before, _ in results[1:]}) == 1
    if not IS_REAL:
        assert results[-1][1] == 2, "two blocks, however much is copied"


@contextlib.contextmanager
def system_region(server, name: str, byte_size: int):
    """A region of this client's, as a map of its bytes and the file behind it."""
    key = f"/nerite-test-gpu-{os.getpid()}"
    path = pathlib.Path("/dev/shm") / key[1:]
    with path.open("w+b") as file:
        file.truncate(byte_size)
        with mmap.mmap(file.fileno(), byte_size) as memory:
            server.post(f"/v2/systemsharedmemory/region/{name}/register", key=key, offset=0, byte_size=byte_size)
            try:
                yield memory, file
            finally:
                server.post(f"/v2/systemsharedmemory/region/{name}/unregister")
                path.unlink()


@contextlib.contextmanager
def cuda_region(server, device, name: str, byte_size: int):
    """A region on the GPU."""
    with device.memory(byte_size) as (address, handle):
        fields = {"raw_handle": {"b64": handle.decode()}, "device_id": 0, "byte_size": byte_size}
        server.post(f"/v2/cudasharedmemory/region/{name}/register", **fields)
        try:
            yield address
        finally:
            server.post(f"/v2/cudasharedmemory/region/{name}/unregister")


def at(region: str, byte_size: int, offset: int = 0, **more) -> dict:
    """A tensor in a region."""
    place = {"shared_memory_region": region, "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}
    return {**more, "parameters": place}


@pytest.mark.parametrize("count", [5, LARGE])
def test_it_goes_to_a_region_of_the_client(server, device, count):
    code = f"out.append(pb_utils.Tensor.from_dlpack('FP32', {made('FP32', (count,))}))"
    size, expected = 4 * count, elements("FP32", (count,)).tobytes()
    with system_region(server, "system", size + 64) as (memory, _):
        # The process keeps what equal requests share.
        for _ in range(4):
            memory[64:] = bytes(size)
            found = server.infer(code, outputs=[at("system", size, 64, name="FP32")])
            assert found["FP32"] == ("FP32", [count], None) and memory[64:] == expected
    with cuda_region(server, device, "cuda", size + 64) as address:
        found = server.infer(code, outputs=[at("cuda", size, 64, name="FP32")])
        assert found["FP32"] == ("FP32", [count], None) and device.read(address + 64, size) == expected


def test_a_region_that_is_too_small_or_was_cut_fails_its_request_alone(server):
    code = f"out.append(pb_utils.Tensor.from_dlpack('FP32', {made('FP32', (LARGE,))}))"
    with system_region(server, "system", 4 * LARGE) as (_, file):
        with pytest.raises(Failed, match=f"should be at least {4 * LARGE} bytes"):
            server.infer(code, outputs=[at("system", 64, name="FP32")])
        pid = server.result_of("import os; report(os.getpid())")
        # The server and the model's process have mapped it.
        server.infer(code, outputs=[at("system", 4 * LARGE, name="FP32")])
        file.truncate(4096)
        with pytest.raises(Failed, match="region 'system'"):
            server.infer(code, outputs=[at("system", 4 * LARGE, name="FP32")])
        assert server.result_of("import os; report(os.getpid())") == pid
    assert server.infer(code)["FP32"][2].tobytes() == elements("FP32", (LARGE,)).tobytes()


def test_other_models_are_asked_with_it(server):
    code = f"""
nested = pb_utils.InferenceRequest(model_name="identity", requested_output_names=["OUT"], inputs=[
    pb_utils.Tensor.from_dlpack("IN", {made("FP32", (LARGE,))})])
nested = nested.exec()
assert not nested.has_error(), nested.error().message()
found = pb_utils.get_output_tensor_by_name(nested, "OUT")
report([found.is_cpu(), bool((found.as_numpy() == np.arange({LARGE}).astype("f4")).all())])
"""
    assert server.result_of(code) == [True, True]


def test_another_python_model_answers_with_it(server):
    inner = f"out.append(pb_utils.Tensor.from_dlpack('FP32', {made('FP32', (LARGE,))}))"
    code = f"""
memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
nested = pb_utils.InferenceRequest(model_name="other", requested_output_names=["FP32"], inputs=[], parameters={{"code": {inner!r}}},
    preferred_memory=memory).exec()
assert not nested.has_error(), nested.error().message()
(found,) = nested.output_tensors()
report([found.is_cpu(), bool((found.as_numpy() == np.arange({LARGE}).astype("f4")).all())])
"""
    assert server.result_of(code) == [True, True]


def test_a_decoupled_model_sends_many(server):
    inner = "out += [pb_utils.Tensor.from_dlpack('FP32', gpu.make(np.full(1000, number, 'f4'))) for number in range(20)]"
    code = f"""
nested = pb_utils.InferenceRequest(model_name="stream", requested_output_names=["FP32"], inputs=[], parameters={{"code": {inner!r}}})
found = []
for response in nested.exec(decoupled=True):
    assert not response.has_error(), response.error().message()
    found += [tensor.as_numpy() for tensor in response.output_tensors()]
report([len(found), all((one == number).all() and one.size == 1000 for number, one in enumerate(found))])
"""
    assert server.result_of(code) == [20, True]


def test_threads_of_a_model_copy_at_the_same_time(server):
    code = f"""
import concurrent.futures
def infer(number):
    tensor = pb_utils.Tensor.from_dlpack("IN", gpu.make(np.full({LARGE}, number, "f4")))
    nested = pb_utils.InferenceRequest(model_name="identity", requested_output_names=["OUT"], inputs=[tensor]).exec()
    return bool((nested.output_tensors()[0].as_numpy() == number).all())
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    report(list(pool.map(infer, range(12))))
"""
    assert server.result_of(code) == [True] * 12


def test_a_device_that_is_not_there_is_an_error(server):
    code = f"""
class Elsewhere:
    def __dlpack_device__(self):
        return (2, 99)
    def __dlpack__(self, **_):
        raise AssertionError("never asked")
out.append(pb_utils.Tensor.from_dlpack("FP32", Elsewhere()))
"""
    with pytest.raises(Failed, match="the memory of GPU 99 cannot be reached: cuDeviceGet: invalid device ordinal"):
        server.infer(code)


@pytest.mark.skipif(IS_REAL, reason="there is a driver")
def test_without_a_driver_the_error_says_so(tmp_path):
    models = tmp_path / "models"
    version = models / "gpu" / "1"
    version.mkdir(parents=True)
    shutil.copy(ARRAYS / "model.py", version / "model.py")
    (version / "gpu.py").write_text("class Array:\n    __dlpack__ = None\n    def __dlpack_device__(self): return (2, 0)\n")
    (models / "gpu" / "config.pbtxt").write_text(CONFIG.format(outputs=OUTPUTS, decoupled="false", group=ON_HOST))
    with running(models, tmp_path / "log", {"NERITE_CUDA_LIBRARY": ""}) as server:
        with pytest.raises(Failed, match="the CUDA driver cannot be loaded: libcuda.so.1: .*; bring the tensor to the host first"):
            server.infer("out.append(pb_utils.Tensor.from_dlpack('FP32', gpu.Array()))")


ABOUT = "x = inputs['X']; report([x.is_cpu(), list(x.__dlpack_device__()), gpu.read(x)[0].view('f4').tolist() if not x.is_cpu() else x.as_numpy().tolist()])"
NUMBERS = np.arange(1000, dtype=np.float32)


def in_region(offset: int, region: str = "cuda") -> list:
    return [at(region, NUMBERS.nbytes, offset, name="X", datatype="FP32", shape=[1000])]


@pytest.mark.parametrize(
    "model, offset, on_gpu",
    [("on_gpu", 0, True), ("on_gpu", 512, True), ("on_gpu", 4, False), ("forced", 0, False), ("gpu", 0, False)],
)
def test_an_input_in_a_region_on_the_gpu_stays_there_if_the_author_wants_it(server, device, model, offset, on_gpu):
    with cuda_region(server, device, "cuda", 8192) as address:
        device.write(address + offset, NUMBERS.tobytes())
        before = server.carried()
        result = server.result_of(ABOUT, model=model, inputs=in_region(offset))
        assert result == [not on_gpu, [2, 0] if on_gpu else [1, 0], NUMBERS.tolist()]
        assert server.carried() - before == (0 if on_gpu else NUMBERS.nbytes)


def test_an_input_that_lies_elsewhere_is_on_the_host(server):
    given = [{"name": "X", "datatype": "FP32", "shape": [1000], "parameters": {"binary_data_size": NUMBERS.nbytes}}]
    assert server.result_of(ABOUT, model="on_gpu", inputs=given, binary=NUMBERS.tobytes()) == [True, [1, 0], NUMBERS.tolist()]


def test_an_input_on_the_gpu_is_no_array_of_numpys(server, device):
    with cuda_region(server, device, "cuda", 8192), pytest.raises(Failed, match="Tensor is stored in GPU and cannot be converted to NumPy"):
        server.infer("inputs['X'].as_numpy()", model="on_gpu", inputs=in_region(0))


@pytest.mark.parametrize(
    "answer",
    [
        "out.append(pb_utils.Tensor.from_dlpack('FP32', inputs['X']))",
        "out.append(pb_utils.Tensor.from_dlpack('FP32', gpu.make(np.arange(1000, dtype='f4'))))",
        "out.append(pb_utils.Tensor('FP32', np.arange(1000, dtype='f4')))",
    ],
    ids=["its input", "a tensor on the GPU", "an array on the host"],
)
def test_the_models_process_writes_to_the_region_itself(server, device, answer):
    with cuda_region(server, device, "cuda", 1 << 16) as address:
        device.write(address, NUMBERS.tobytes())
        before = server.carried()
        found = server.infer(answer, model="on_gpu", inputs=in_region(0), outputs=[at("cuda", 4000, 8192, name="FP32")])
        assert found["FP32"] == ("FP32", [1000], None) and device.read(address + 8192, 4000) == NUMBERS.tobytes()
        assert server.carried() == before
        with pytest.raises(Failed, match="should be at least 4000 bytes"):
            server.infer(answer, model="on_gpu", inputs=in_region(0), outputs=[at("cuda", 100, 8192, name="FP32")])


def test_a_region_is_opened_once_and_closed_when_it_is_unregistered(server, device):
    with cuda_region(server, device, "one", 8192) as address:
        device.write(address, NUMBERS.tobytes())
        opened = [server.result_of("gpu.read(inputs['X']); report(gpu.opened())", model="on_gpu", inputs=in_region(0, "one")) for _ in range(5)]
        assert opened == [None if IS_REAL else 1] * 5
    assert server.result_of("report(gpu.opened())", model="on_gpu") == (None if IS_REAL else 0)


def test_an_input_on_the_gpu_is_passed_on(server, device):
    code = """
answers = []
for model, name in [("on_gpu_2", "FP32"), ("forced", "FP32"), ("identity", "OUT")]:
    given = pb_utils.Tensor.from_dlpack("X" if name == "FP32" else "IN", inputs["X"])
    inner = "x = inputs['X']; out.append(pb_utils.Tensor.from_dlpack('FP32', x)); report(x.is_cpu())"
    wanted = [name] + (["RESULT"] if name == "FP32" else [])
    nested = pb_utils.InferenceRequest(model_name=model, requested_output_names=wanted, inputs=[given], parameters={"code": inner}).exec()
    assert not nested.has_error(), nested.error().message()
    found = pb_utils.get_output_tensor_by_name(nested, name)
    assert (found.as_numpy() == np.arange(1000)).all()
    result = pb_utils.get_output_tensor_by_name(nested, "RESULT")
    answers.append(result.as_numpy()[0].decode() if result else None)
report(answers)
"""
    with cuda_region(server, device, "cuda", 8192) as address:
        device.write(address, NUMBERS.tobytes())
        # Inputs are noted for that from the first request to another model on.
        server.result_of(code, model="on_gpu", inputs=in_region(0))
        before = server.carried()
        assert server.result_of(code, model="on_gpu", inputs=in_region(0)) == ["false", "true", None]
        assert server.carried() - before == 2 * NUMBERS.nbytes, "for the two models on the host"


def test_a_decoupled_model_reads_its_input_on_the_gpu(server, device):
    inner = "out += [pb_utils.Tensor.from_dlpack('FP32', inputs['X']) for _ in range(3)]"
    code = f"""
given = pb_utils.Tensor.from_dlpack("X", inputs["X"])
nested = pb_utils.InferenceRequest(model_name="stream_on_gpu", requested_output_names=["FP32"], inputs=[given], parameters={{"code": {inner!r}}})
found = []
for response in nested.exec(decoupled=True):
    assert not response.has_error(), response.error().message()
    found += [bool((tensor.as_numpy() == np.arange(1000)).all()) for tensor in response.output_tensors()]
report(found)
"""
    with cuda_region(server, device, "cuda", 8192) as address:
        device.write(address, NUMBERS.tobytes())
        assert server.result_of(code, model="on_gpu", inputs=in_region(0)) == [True] * 3


def test_memory_that_its_client_has_freed_fails_its_requests_alone(server, device):
    with contextlib.ExitStack() as gone, cuda_region(server, device, "cuda", 8192) as address:
        device.write(address, NUMBERS.tobytes())
        gone.callback(server.post, "/v2/cudasharedmemory/region/freed/unregister")
        with device.memory(8192) as (_, handle):
            fields = {"raw_handle": {"b64": handle.decode()}, "device_id": 0, "byte_size": 8192}
            server.post("/v2/cudasharedmemory/region/freed/register", **fields)
        # A real driver may open what another process has open.
        refused = pytest.raises(Failed, match="input 'X': the client's region on GPU 0 cannot be opened in the model's process")
        with contextlib.suppress(Failed) if IS_REAL else refused:
            server.infer(ABOUT, model="on_gpu", inputs=in_region(0, "freed"))
        assert server.result_of(ABOUT, model="on_gpu", inputs=in_region(0))[0] is False
