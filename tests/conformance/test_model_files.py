"""Is a model's file read once in a load, and is a file that changes during the load noticed?"""

import contextlib
import errno
import itertools
import os
import pathlib
import threading
import time

import numpy as np
import pytest
import servers
from clients import Refused, fp32, open_client
from onnx import TensorProto, helper, numpy_helper, save

# Weights of 16 MiB.
SIDE = 2048
WEIGHTS_BYTES = SIDE * SIDE * 4
# What else a server reads meanwhile: configurations, and the system's files about itself.
SLACK_BYTES = 1 << 20
ENGINES = {"onnxruntime": servers.onnxruntime_flag, "embedded": lambda: "--onnxruntime-library=none"}
EXTERNAL = "weights.data"


def put(version: pathlib.Path, factor: float, is_external: bool, modified_s: float | None = None) -> None:
    """Puts a model that multiplies by a factor in the place of the one that is there."""
    # Each factor has a time of its own, whatever the steps of the clock are.
    modified_ns = int((factor if modified_s is None else modified_s) * 1e9)
    version.mkdir(parents=True, exist_ok=True)
    weights = numpy_helper.from_array(np.eye(SIDE, dtype=np.float32) * np.float32(factor), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIDE]) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "times", [ports[0]], [ports[1]], [weights]))
    model.ir_version, model.opset_import[0].version = 8, 17
    half = version.parent / f"half_{factor}"
    half.mkdir()
    save(model, half / "model.onnx", save_as_external_data=is_external, location=EXTERNAL, size_threshold=0)
    for file in half.iterdir():
        os.utime(file, ns=(modified_ns, modified_ns))
        file.rename(version / file.name)
    half.rmdir()


@pytest.fixture(params=list(ENGINES))
def server(request, launcher, tmp_path):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("2.51 here has no ONNX backend, and the files are those of a server of its own")
    flags = ["--model-control-mode=explicit", ENGINES[request.param]()]
    with launcher.running(f"files_{request.param}", *flags, repository=tmp_path / "models") as found:
        yield found


@pytest.fixture(autouse=True)
def repository(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def read_bytes(pid: int) -> int:
    """Bytes that the process asked the system to read for it. What it maps is not among them."""
    with open(f"/proc/{pid}/io", encoding="utf-8") as facts:
        return int(dict(line.split(": ") for line in facts)["rchar"])


def product(client) -> float:
    reply = client.infer("times", [fp32("x", np.ones(SIDE), [1, SIDE])])
    return float(np.frombuffer(reply.outputs["y"].raw, np.float32)[0])


@pytest.mark.parametrize("is_external", [False, True], ids=["inline", "external"])
def test_a_load_reads_each_file_once(server, repository, is_external, record_property):
    put(repository / "times" / "1", 2, is_external)
    # Without inputs and outputs: the graph is looked at to complete the configuration, and again to load it.
    (repository / "times" / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 0 instance_group { kind: KIND_CPU count: 2 }'
    )
    with open_client("http", server) as client:
        before = read_bytes(server.pid)
        client.load("times")
        read = read_bytes(server.pid) - before
        assert product(client) == 2
    record_property("read_bytes", read)
    print(f"{read:,} bytes read of {WEIGHTS_BYTES:,} bytes of weights")
    assert read <= WEIGHTS_BYTES + SLACK_BYTES
    assert is_external or read >= WEIGHTS_BYTES, "the count is of this load"


class Gate:
    """A file of labels that a load cannot read before the test lets it: a pipe. Labels are read when all sessions are made."""

    def __init__(self, model: pathlib.Path):
        (model / "config.pbtxt").write_text(
            'backend: "onnxruntime" max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ -1, %d ] } '
            'output { name: "y" data_type: TYPE_FP32 dims: [ -1, %d ] label_filename: "labels.txt" }' % (SIDE, SIDE)
        )
        self.pipe = model / "labels.txt"
        os.mkfifo(self.pipe)
        os.utime(self.pipe, ns=(0, 0))

    def let_pass(self, before) -> None:
        """If a load has come here, does something and lets it go on."""
        try:
            end = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            return time.sleep(0.02)
        before()
        # The load may have read what was written before, and its end.
        with contextlib.suppress(BrokenPipeError):
            os.write(end, b"label\n")
        # That this was written is no change of the model.
        os.utime(self.pipe, ns=(0, 0))
        return os.close(end)


def load(server, gate: Gate, meanwhile) -> Refused | None:
    """Loads the model, and does something each time that its files have been read. What the load was refused with."""
    refused = []

    def infer() -> None:
        with open_client("http", server) as client:
            try:
                client.load("times")
            except Refused as error:
                refused.append(error)

    thread = threading.Thread(target=infer)
    thread.start()
    while thread.is_alive():
        gate.let_pass(meanwhile)
    return refused[0] if refused else None


@pytest.mark.parametrize("is_external", [False, True], ids=["inline", "external"])
def test_a_file_that_is_replaced_during_the_load_is_noticed(server, repository, is_external):
    model = repository / "times"
    put(model / "1", 2, is_external)
    gate = Gate(model)
    assert load(server, gate, lambda: None) is None
    with open_client("http", server) as client:
        assert product(client) == 2
        # Once: the load is repeated.
        changes = iter([4])

        def change_once() -> None:
            # The load may be over when this is called for the last time.
            for factor in changes:
                assert product(client) == 2, "the version before serves meanwhile"
                put(model / "1", factor, is_external)

        put(model / "1", 3, is_external)
        assert load(server, gate, change_once) is None
        assert product(client) == 4
        # Each time: it fails.
        factors = itertools.count(6)
        put(model / "1", 5, is_external)
        refused = load(server, gate, lambda: put(model / "1", next(factors), is_external))
        assert refused is not None and "change" in refused.text, refused
        assert product(client) == 4, "the version before serves on"
        assert load(server, gate, lambda: None) is None
        assert product(client) == next(factors) - 1


@pytest.mark.parametrize("is_external", [False, True], ids=["inline", "external"])
def test_a_replacement_of_the_same_length_and_time_is_noticed_too(server, repository, is_external):
    model = repository / "times"
    put(model / "1", 2, is_external, modified_s=1)
    gate = Gate(model)
    changes = iter([3])

    def change_once() -> None:
        for factor in changes:
            put(model / "1", factor, is_external, modified_s=1)

    assert load(server, gate, change_once) is None
    with open_client("http", server) as client:
        assert product(client) == 3
