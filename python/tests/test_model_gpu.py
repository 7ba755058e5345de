"""Do tensors on a GPU become outputs where they are to lie, and are inputs and places on a GPU opened and closed?

The driver is the stand-in of crates/cuda/tests/stand_in, which is no CUDA. tests/gpu/test_python_gpu.py asks the same through a server, and of a real GPU.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from model_server import OBEDIENT, Memory, obey, placed, read_text, start  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/gpu"))
from cuda_client import Device  # noqa: E402

ARRAYS = ROOT / "tests/gpu/arrays"
# More than both blocks that copies go through, and no multiple of them.
LARGE = 5 * (1 << 20) + 77


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> pathlib.Path:
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("driver") / "libstand_in_driver.so"
    source = ROOT / "crates/cuda/tests/stand_in/stand_in_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


@pytest.fixture
def model(start, driver):  # noqa: F811
    """A model whose code finds ``gpu``, a library of arrays on a GPU."""
    source = f"import sys; sys.path.insert(0, {str(ARRAYS)!r}); import stand_in as gpu\n"
    source += OBEDIENT.replace('known = {"pb_utils"', 'known = {"gpu": gpu, "pb_utils"')
    return start(source, environment={**os.environ, "NERITE_CUDA_LIBRARY": str(driver)})


TENSOR = "ret = [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack('OUT', gpu.make(np.arange({count}, dtype='f4')))])]"


@pytest.mark.parametrize("count", [0, 1, 1 << 20, LARGE])
def test_an_output_is_copied_to_its_place(model, count):
    """There is a place, or a place that is too small and is exchanged, or none yet."""
    memory = model.memory(4 * count + 128)
    for place in ([memory.segment, 64, 4 * count, True], [memory.segment, 0, 4, False], [None, 0, 0, False]):
        answer = obey(model, TENSOR.format(count=count), outputs=[["OUT", *place]])
        (output,) = answer["responses"][0]["outputs"]
        assert output[:3] == ["OUT", "FP32", [count]]
        if count:
            assert (placed(model, output) == np.arange(count, dtype=np.float32)).all()
        if place[3] and count:
            assert output[3:] == [memory.segment, 64, 4 * count]


def test_a_place_of_a_client_that_is_too_small_stays_as_it_was(model):
    memory = model.memory(4096)
    answer = obey(model, TENSOR.format(count=100), outputs=[["OUT", memory.segment, 0, 64, True]])
    assert answer["responses"][0]["outputs"] == [["OUT", "FP32", [100], None, 0, 400]]
    assert memory.get(0, 4096) == bytes(4096)


def test_what_the_driver_refuses_fails_the_request_alone(model):
    failing = "gpu.driver.standInFail(b'cuMemcpyDtoHAsync_v2'); " + TENSOR.format(count=3)
    error = obey(model, failing)["responses"][0]["error"]
    assert error[0] == "INTERNAL" and "output 'OUT' could not be written: TritonModelException: cuMemcpyDtoHAsync_v2: out of memory" in error[1]
    working = "gpu.driver.standInFail(b''); " + TENSOR.format(count=3)
    assert obey(model, working)["responses"][0]["outputs"][0][2] == [3]


def test_copies_take_two_page_locked_blocks_and_one_context(model):
    for _ in range(3):
        obey(model, TENSOR.format(count=LARGE))
    assert read_text(model, obey(model, "out = gpu.page_locked(), gpu.live()")) == "(2, 0)"


@pytest.fixture(scope="module")
def device(driver) -> Device:
    """The GPU as a client uses it. This process is the client's and the server's."""
    return Device(driver)


class OnGpu(Memory):
    """A client's region on the first GPU, as one segment."""

    def __init__(self, server, handle: bytes, byte_size: int) -> None:
        super().__init__(len(server.segments) + 1, byte_size, is_region=True)
        self.put(base64.b64decode(handle))
        server.segments[self.segment] = self
        server.pending.append(self)

    def entry(self):
        return [*super().entry(), 0]


def given_on_gpu(memory: OnGpu, offset: int, count: int):
    return ["IN", "FP32", [count], memory.segment, offset, 4 * count]


READ = """
given = request.inputs()[0]
told, shape = gpu.read(given)
out = given.is_cpu(), given.shape(), given.__dlpack_device__(), told.view("f4").sum(), gpu.opened()
"""


def test_a_region_on_a_gpu_is_opened_once_and_closed_when_it_is_gone(model, device):
    with device.memory(4096) as (address, handle):
        device.write(address + 256, np.arange(10, dtype=np.float32).tobytes())
        region = OnGpu(model, handle, 4096)
        for _ in range(3):
            answer = obey(model, READ, inputs=[given_on_gpu(region, 256, 10)])
            assert read_text(model, answer) == "(False, [10], (2, 0), np.float32(45.0), 1)"
        kept = obey(model, "self.kept = request.inputs()[0]; out = gpu.opened()", inputs=[given_on_gpu(region, 256, 10)])
        assert read_text(model, kept) == "1"
        model.send({"forget": [region.segment]})
        assert read_text(model, obey(model, "out = gpu.opened(), gpu.read(self.kept)[0].size")) == "(1, 40)"
        assert read_text(model, obey(model, "del self.kept; out = gpu.opened()")) == "0"


ANSWER = "ret = [pb_utils.InferenceResponse([pb_utils.Tensor{}])]"


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize(
    "made, copied",
    [
        (".from_dlpack('OUT', gpu.make(np.arange({count}, dtype='f4')))", ("within",)),
        ("('OUT', np.arange({count}, dtype='f4'))", ("to_device",)),
        ("('OUT', np.arange(2 * {count}, dtype='f4').reshape(-1, 2).T[0] / 2)", ("to_device",)),
    ],
    ids=["on the GPU", "on the host", "not contiguous"],
)
def test_an_output_is_copied_to_a_region_on_a_gpu(model, device, made, copied, count):
    with device.memory(4 * count + 512) as (address, handle):
        region = OnGpu(model, handle, 4 * count + 512)
        place = ["OUT", region.segment, 512, 4 * count, True]
        answer = obey(model, ANSWER.format(made.format(count=count)), outputs=[place])
        assert answer["responses"][0]["outputs"] == [["OUT", "FP32", [count], region.segment, 512, 4 * count]]
        assert device.read(address + 512, 4 * count) == np.arange(count, dtype=np.float32).tobytes()
        assert read_text(model, obey(model, "out = gpu.copied_to_host()")) == "0"


def test_strings_and_inputs_are_answered_in_a_region_on_a_gpu(model, device):
    with device.memory(4096) as (address, handle):
        region = OnGpu(model, handle, 4096)
        place = ["OUT", region.segment, 256, 256, True]
        answer = obey(model, "out = 'abc'", outputs=[place])
        assert answer["responses"][0]["outputs"] == [["OUT", "BYTES", [1], region.segment, 256, 7]]
        assert device.read(address + 256, 7) == b"\x03\0\0\0abc"
        device.write(address, b"12345678")
        passed = ANSWER.format(".from_dlpack('OUT', request.inputs()[0])")
        for offset, expected in [(256, b"12345678"), (0, b"12345678")]:
            place = ["OUT", region.segment, offset, 256, True]
            obey(model, passed, inputs=[given_on_gpu(region, 0, 2)], outputs=[place])
            assert device.read(address + offset, 8) == expected
        in_place = "a = request.output_array('OUT', (2,), 'f4'); a[:] = 5; " + ANSWER.format("('OUT', a)")
        obey(model, in_place, outputs=[["OUT", region.segment, 0, 8, True]])
        assert device.read(address, 8) == np.full(2, 5, np.float32).tobytes()


def test_a_tensor_of_the_models_own_input_waits_for_what_the_model_writes_there(model, device):
    """The model may have changed its input in place, by a library that does not wait."""
    code = "before = gpu.waits(); taken = {}; self.waited = gpu.waits() - before; ret = [pb_utils.InferenceResponse([taken])]"
    with device.memory(4096) as (address, handle):
        region = OnGpu(model, handle, 4096)
        for own in ("request.inputs()[0]", "pb_utils.Tensor.from_dlpack('MADE', gpu.make(np.ones(2, 'f4')))", "request.inputs()[0].to_dlpack()"):
            whole_code = f"own = {own}; " + code.format("pb_utils.Tensor.from_dlpack('OUT', own)")
            for place in (["OUT", region.segment, 0, 8, True], ["OUT", region.segment, 256, 8, True], ["OUT", None, 0, 0, False]):
                answer = obey(model, whole_code, inputs=[given_on_gpu(region, 0, 2)], outputs=[place])
                assert "outputs" in answer["responses"][0]
                assert read_text(model, obey(model, "out = self.waited")) == "1", own


@pytest.mark.parametrize("is_exported", [False, True], ids=["not exported", "exported"])
def test_what_a_library_writes_to_an_input_is_waited_for_when_it_is_handed_on(model, device, is_exported):
    """As an output, at its own place, at another one and on the host; and to another library, on the GPU and on the host."""
    export = "own.to_dlpack(); " if is_exported else ""
    code = "own = request.inputs()[0]; {}before = gpu.waits(); self.count = lambda: gpu.waits() - before; {}; ret = [pb_utils.InferenceResponse([own])]"
    with device.memory(4096) as (address, handle):
        region = OnGpu(model, handle, 4096)
        inputs = [given_on_gpu(region, 0, 2)]
        for place in (["IN", region.segment, 0, 8, True], ["IN", region.segment, 256, 8, True], ["IN", None, 0, 0, False]):
            answer = obey(model, code.format(export, "pass"), inputs=inputs, outputs=[place])
            assert "outputs" in answer["responses"][0]
            assert read_text(model, obey(model, "out = self.count()")) == str(int(is_exported)), place
        for handed in ("own.to_dlpack()", "own.__dlpack__(dl_device=(1, 0))"):
            obey(model, code.format(export, handed), inputs=inputs, outputs=[])
            assert read_text(model, obey(model, "out = self.count()")) == str(int(is_exported)), handed


@pytest.mark.parametrize("is_exported", [False, True], ids=["not exported", "exported"])
def test_what_a_library_writes_to_an_input_is_waited_for_before_another_model_reads_it(model, device, is_exported):
    code = "own = request.inputs()[0]; " + ("own.to_dlpack(); " if is_exported else "")
    code += "before = gpu.waits(); pb_utils.InferenceRequest(model_name='m', requested_output_names=[], inputs=[own]).exec(); out = gpu.waits() - before"
    with device.memory(4096) as (address, handle):
        region = OnGpu(model, handle, 4096)
        given = given_on_gpu(region, 0, 2)
        mapping, descriptors = model.mapping()
        request = model.request([given], [["OUT", None, 0, 0, False]], parameters={"code": code})
        model.send({"do": "execute", "requests": [request], "map": mapping, "forget": []}, descriptors)
        call = model.receive(model.calls)
        assert call["infer"]["inputs"] == [given]
        model.calls.send(json.dumps({"call": call["call"], "final": True, "response": {"outputs": [], "parameters": {}}}).encode())
        index, name, byte_size = model.receive()["need"]
        answer = model.on_need(index, name, byte_size)
        mapping, descriptors = model.mapping()
        model.send({**answer, "map": mapping}, descriptors)
        assert read_text(model, model.receive()) == str(int(is_exported))


def test_a_region_that_cannot_be_opened_fails_its_requests_alone(model, device):
    with device.memory(4096) as (_, freed):
        gone = OnGpu(model, freed, 4096)
    with device.memory(4096) as (address, handle):
        device.write(address, np.ones(2, np.float32).tobytes())
        region = OnGpu(model, handle, 4096)
        code = "ret = [text(gpu.read(one.inputs()[0])[0].view('f4').sum()) for one in requests]"
        requests = [
            model.request([given_on_gpu(one, 0, 2)], [["OUT", None, 0, 0, False]], parameters={"code": code})
            for one in (region, gone, region)
        ]
        answer = model.execute(*requests)["responses"]
        assert [list(one)[0] for one in answer] == ["outputs", "error", "outputs"]
        code, text = answer[1]["error"]
        opening = "cuIpcOpenMemHandle_v2: invalid argument (CUDA_ERROR_INVALID_VALUE, 1); it must still be allocated"
        assert code == "INTERNAL"
        assert text == f"[request id: <id_unknown>] input 'IN': the client's region on GPU 0 cannot be opened in the model's process: {opening}"
        output = ["OUT", gone.segment, 0, 64, True]
        (refused,) = obey(model, "out = 1", outputs=[output])["responses"]
        assert "output 'OUT' could not be written: TritonModelException: the client's region on GPU 0" in refused["error"][1]
