"""Does a compiled backend whose instance is on a GPU read and write tensors there where they lie?

The driver of the server, of the backend and of this client is the stand-in of crates/cuda/tests/stand_in, which is no CUDA. Its device memory cannot be
read by an address.
"""

import base64

import numpy as np
import pytest
from clients import Given, RequestedOutput, fp32, open_client
from compiled_setup import compiled, put, serving
from cuda_client import Device
from gpus import stand_ins
from test_cuda import carried, comes, imports

COUNT = 64
SIZE = 4 * COUNT
NUMBERS = np.arange(COUNT, dtype=np.float32).tobytes()
MODELS = {
    "on_gpu": "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
    "on_other_gpu": "instance_group { kind: KIND_GPU gpus: [ 1 ] }",
    "on_host": "instance_group { kind: KIND_CPU }",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled_gpu")


@pytest.fixture(scope="module")
def compiled_gpu(launcher, folder):
    if launcher.oracle:
        pytest.skip("2.51 here is built without GPUs")
    repository = launcher.scratch / "compiled_gpu"
    for name, group in MODELS.items():
        put(repository, name, more=group, backend="device")
    put(repository, "forced_on_gpu", more=MODELS["on_gpu"], backend="device", FORCE_CPU_ONLY_INPUT_TENSORS="yes")
    put(repository, "strings_on_gpu", datatype="STRING", more=MODELS["on_gpu"], backend="device")
    put(repository, "of_host_backend", more=MODELS["on_gpu"], backend="device_host")
    library = launcher.scratch / "compiled_gpu_backends" / "device_host" / "libtriton_device_host.so"
    compiled(library, source="device", flags=("-DPREFERS_HOST",))
    with stand_ins(folder, nvml=False), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAND_IN_COUNTS", str(folder / "counts"))
        with serving(launcher, "compiled_gpu", repository, sources=("device",)) as found:
            found.counts = folder / "counts"
            yield found


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, compiled_gpu):
    with open_client(request.param, compiled_gpu) as found:
        yield found


@pytest.fixture
def region(compiled_gpu, client, folder):
    """A region on device 0: its memory, its handle as digits, and how it is read and written."""
    device = Device(folder / "libstand_in_driver.so")
    with device.memory(4096) as (address, encoded):
        handle = base64.b64decode(encoded)
        client.register_cuda("gpu", handle, 0, 4096)
        device.write(address, NUMBERS)
        yield device, address, handle.hex()
        client.unregister("cuda", "gpu")
        comes(lambda: imports(compiled_gpu) == 0)


def memory_of(reply, side: str) -> tuple[str, int, str]:
    return tuple(reply.parameters[f"{side}_{what}"] for what in ("kind", "device", "handle"))


def test_a_tensor_on_the_device_of_the_instance_is_used_where_it_lies(compiled_gpu, client, region):
    device, address, handle = region
    before = carried(compiled_gpu)
    reply = client.infer("on_gpu", [Given("IN", "FP32", [COUNT], region=("gpu", SIZE, 0))], [RequestedOutput("OUT", ("gpu", SIZE, 512))])
    assert (memory_of(reply, "in"), memory_of(reply, "out")) == (("GPU", 0, handle), ("GPU", 0, handle))
    assert (device.read(address + 512, SIZE), carried(compiled_gpu) - before) == (NUMBERS, 0)


def test_one_side_may_lie_on_the_host(compiled_gpu, client, region):
    device, address, handle = region
    before = carried(compiled_gpu)
    reply = client.infer("on_gpu", [Given("IN", "FP32", [COUNT], region=("gpu", SIZE, 0))])
    assert (memory_of(reply, "in"), memory_of(reply, "out")[0], reply.outputs["OUT"].raw) == (("GPU", 0, handle), "CPU", NUMBERS)
    reply = client.infer("on_gpu", [fp32("IN", [5] * COUNT)], [RequestedOutput("OUT", ("gpu", SIZE, 1024))])
    assert (memory_of(reply, "in"), memory_of(reply, "out")) == (("CPU", 0, ""), ("GPU", 0, handle))
    assert device.read(address + 1024, SIZE) == np.full(COUNT, 5, np.float32).tobytes()
    assert carried(compiled_gpu) == before


CARRIED = [("on_host", 0, 512), ("on_other_gpu", 0, 512), ("forced_on_gpu", 0, 512), ("of_host_backend", 0, 512), ("on_gpu", 4, 516)]


@pytest.mark.parametrize(("model", "given_at", "wanted_at"), CARRIED)
def test_tensors_elsewhere_are_carried_by_the_server(compiled_gpu, client, region, model, given_at, wanted_at):
    """Those of instances on the host and on another device, those whose author or backend wants that, and those at addresses that are no multiple of 256."""
    device, address, _ = region
    device.write(address + given_at, NUMBERS)
    before = carried(compiled_gpu)
    given, outputs = [Given("IN", "FP32", [COUNT], region=("gpu", SIZE, given_at))], [RequestedOutput("OUT", ("gpu", SIZE, wanted_at))]
    reply = client.infer(model, given, outputs)
    for side in ("in", "out"):
        kind, number, handle = memory_of(reply, side)
        assert kind in ("CPU", "CPU_PINNED") and (number, handle) == (0, "")
    assert (device.read(address + wanted_at, SIZE), carried(compiled_gpu) - before) == (NUMBERS, 2 * SIZE)


def test_strings_are_on_the_host(compiled_gpu, client, region):
    device, address, _ = region
    content = b"\x03\0\0\0abc\x01\0\0\0d"
    device.write(address, content)
    given = [Given("IN", "BYTES", [2], region=("gpu", len(content), 0))]
    reply = client.infer("strings_on_gpu", given, [RequestedOutput("OUT", ("gpu", len(content), 512))])
    assert memory_of(reply, "in")[0] != "GPU" and memory_of(reply, "out")[0] != "GPU"
    assert device.read(address + 512, len(content)) == content
