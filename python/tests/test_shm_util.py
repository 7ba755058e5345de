"""Do the four helpers set up everything, and leave nothing behind when they cannot?"""

import os
import sys
import types

import numpy as np
import pytest
from peers import module

from nerite.testing import shm_util

NAMES = ["in0", "in1", "out0", "out1"]
X, Y = np.arange(16, dtype=np.int32).reshape(1, 16), np.full([1, 16], 3, np.int32)
OUTPUTS = [("OUTPUT0", 64), ("OUTPUT1", 64)]


def objects() -> set[str]:
    """Those of this process: others may be testing, too."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"nerite-test-{os.getpid()}-")}


@pytest.fixture(autouse=True)
def clean():
    before = objects()
    yield
    assert objects() <= before


@pytest.mark.parametrize(
    ("names", "sizes", "places"),
    [
        (NAMES, None, [("in0", 64, 0), ("in1", 64, 0), ("out0", 64, 0), ("out1", 64, 0)]),
        (NAMES, [64, 128, 4096, None], [("in0", 64, 0), ("in1", 64, 0), ("out0", 64, 0), ("out1", 64, 0)]),
        (["ins", "outs"], None, [("ins", 64, 0), ("ins", 64, 64), ("outs", 64, 0), ("outs", 64, 64)]),
        (["ins", "outs"], [256, 256], [("ins", 64, 0), ("ins", 64, 64), ("outs", 64, 0), ("outs", 64, 64)]),
    ],
)
def test_a_model_runs_on_regions_and_all_is_gone_afterwards(server, protocol, names, sizes, places):
    m = module(protocol)
    with server.client(protocol) as client:
        handles, ins, outs = shm_util.create_set_shm_regions([X, Y], OUTPUTS, names, sizes, client, protocol)
        assert ins + outs == places
        assert set(names) <= set(server.regions())
        inputs = [m.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in range(2)]
        outputs = [m.InferRequestedOutput(name) for name, _ in OUTPUTS]
        for tensor, region in zip(inputs + outputs, ins + outs):
            tensor.set_shared_memory(*region)
        client.infer("simple", inputs, outputs=outputs)
        found = {one.name: one for one in handles}
        results = [found[one.name].as_numpy([1, 16], "INT32", one.offset) for one in outs]
        shm_util.unregister_cleanup_shm_regions(handles, client, protocol)
        assert not set(names) & set(server.regions())
        assert results[0].tolist() == (X + Y).tolist()
        assert results[1].tolist() == (X - Y).tolist()


def test_bytes_tensors_are_serialised(server, protocol):
    m, tensor = module(protocol), np.array([b"one", "zwölf", b""], dtype=np.object_)
    with server.client(protocol) as client:
        handles, ins, outs = shm_util.create_set_shm_regions([tensor], [("OUTPUT0", 100)], ["a", "b"], None, client, protocol)
        given, requested = m.InferInput("INPUT0", [3], "BYTES"), m.InferRequestedOutput("OUTPUT0")
        given.set_shared_memory(*ins[0])
        requested.set_shared_memory(*outs[0])
        client.infer("identity_bytes", [given], outputs=[requested])
        assert handles[1].as_numpy([3], "BYTES").tolist() == [b"one", "zwölf".encode(), b""]
        shm_util.unregister_cleanup_shm_regions(handles, client, protocol)


def test_a_name_that_is_taken_leaves_nothing_behind_and_stays_its_owners(server, protocol):
    with server.client(protocol) as client:
        theirs, _, _ = shm_util.create_set_shm_regions([X], [], ["in1"], None, client, protocol)
        with pytest.raises(Exception, match="'in1' already in manager"):
            shm_util.create_set_shm_regions([X, Y], OUTPUTS, NAMES, None, client, protocol)
        assert [name for name in server.regions() if name in NAMES] == ["in1"]
        assert len(objects()) == 1
        shm_util.unregister_cleanup_shm_regions(theirs, client, protocol)


class Client:
    """Registers up to a point."""

    def __init__(self, fails_at=None, forgets_answer=False):
        self.known: dict[str, str] = {}
        self.calls = 0
        self.fails_at = fails_at
        self.forgets_answer = forgets_answer

    def register_system_shared_memory(self, name, key, byte_size):
        self.calls += 1
        if self.calls != self.fails_at or self.forgets_answer:
            self.known[name] = key
        if self.calls == self.fails_at:
            raise ConnectionError("gone")

    def unregister_system_shared_memory(self, name):
        if name == "in0" and self.fails_at == -1:
            raise ConnectionError("gone")
        self.known.pop(name, None)

    def get_system_shared_memory_status(self, name):
        return [{"name": name, "key": self.known[name]}]


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
@pytest.mark.parametrize("forgets_answer", [False, True])
def test_a_failure_at_any_registration_undoes_the_others(fails_at, forgets_answer):
    client = Client(fails_at, forgets_answer)
    with pytest.raises(ConnectionError):
        shm_util.create_set_shm_regions([X, Y], OUTPUTS, NAMES, None, client, "http")
    assert client.known == {}


def test_one_failure_to_unregister_does_not_spare_the_others():
    client = Client(fails_at=-1)
    handles, _, _ = shm_util.create_set_shm_regions([X, Y], OUTPUTS, NAMES, None, client, "http")
    with pytest.raises(ConnectionError):
        shm_util.unregister_cleanup_shm_regions(handles, client, "http")
    assert list(client.known) == ["in0"]
    assert objects() == set()


def test_regions_can_be_cleaned_up_without_a_server():
    handles, _, _ = shm_util.create_set_shm_regions([X], [], ["in0"], None, Client(), "grpc")
    array = handles[0].as_numpy([1, 16], "INT32")
    shm_util.cleanup_shm_regions(handles)
    shm_util.cleanup_shm_regions(handles)
    assert array.tolist() == X.tolist()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([X, Y], OUTPUTS, NAMES[:3], None), "4 tensors need 4 region names, or 2; got 3"),
        (([X, Y], OUTPUTS, ["a", "a", "b", "c"], None), "occurs twice"),
        (([X, Y], OUTPUTS, NAMES, [1, 2]), "4 regions need 4 byte sizes, got 2"),
        (([X, Y], OUTPUTS, NAMES, [63, 64, 64, 64]), "region 'in0' has 63 bytes, its tensors need 64"),
        (([X, Y], OUTPUTS, ["a", "b"], [127, 128]), "region 'a' has 127 bytes, its tensors need 128"),
        (([[1, 2]], [], ["a"], None), "must be a numpy array"),
        (([np.array(["x"])], [], ["a"], None), "no datatype"),
        (([X], ["OUT"], ["a", "b"], None), "pair of its name and its byte size, got 'OUT'"),
        (([X], [("OUT", 2.5)], ["a", "b"], None), r"pair of its name and its byte size, got \('OUT', 2.5\)"),
        (([X], [("OUT", -4)], ["a", "b"], None), "output 'OUT' cannot have -4 bytes"),
        (([X], OUTPUTS[:1], "ab", None), "a list of strings, got the string 'ab'"),
    ],
)
def test_mistakes_are_reported_before_anything_is_made(arguments, text):
    client = Client()
    with pytest.raises(ValueError, match=text):
        shm_util.create_set_shm_regions(*arguments, client, "http")
    assert client.calls == 0
    with pytest.raises(ValueError, match="protocol must be"):
        shm_util.create_set_shm_regions([X], [], ["a"], None, client, "rest")


class Cuda(types.ModuleType):
    """tritonclient's CUDA module over nothing, so that the order of steps can be seen without a GPU."""

    def __init__(self, fails_at=None):
        super().__init__("tritonclient.utils.cuda_shared_memory")
        self.alive: list[str] = []
        self.steps = 0
        self.fails_at = fails_at

    def _step(self):
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("out of memory")

    def create_shared_memory_region(self, name, byte_size, device_id):
        self._step()
        self.alive.append(name)
        return types.SimpleNamespace(_triton_shm_name=name, content=None)

    def set_shared_memory_region(self, handle, values):
        self._step()
        handle.content = b"".join(one.tobytes() for one in values)

    def get_raw_handle(self, handle):
        self._step()
        return b"raw"

    def destroy_shared_memory_region(self, handle):
        self.alive.remove(handle._triton_shm_name)


class CudaClient:
    def __init__(self):
        self.known: list[str] = []

    def register_cuda_shared_memory(self, name, raw_handle, device_id, byte_size):
        self.known.append(name)

    def unregister_cuda_shared_memory(self, name):
        self.known.remove(name)


@pytest.mark.parametrize("fails_at", [None, *range(1, 11)])
def test_cuda_regions_are_undone_at_every_step(monkeypatch, fails_at):
    import tritonclient.utils

    cuda, client = Cuda(fails_at), CudaClient()
    monkeypatch.setitem(sys.modules, cuda.__name__, cuda)
    monkeypatch.setattr(tritonclient.utils, "cuda_shared_memory", cuda, raising=False)
    arguments = ([X, np.array([b"ab"], dtype=object)], OUTPUTS, NAMES, None, client, "grpc")
    if fails_at is not None:
        with pytest.raises(RuntimeError, match="out of memory"):
            shm_util.create_set_cuda_shm_regions(*arguments)
    else:
        handles, ins, _ = shm_util.create_set_cuda_shm_regions(*arguments)
        assert handles[1].content == b"\2\0\0\0ab"
        assert ins == [("in0", 64, 0), ("in1", 6, 0)]
        assert client.known == cuda.alive == NAMES
        shm_util.unregister_cleanup_shm_regions(handles, client, "grpc")
    assert client.known == cuda.alive == []
