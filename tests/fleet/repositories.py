"""Which models do the replicas of a fleet serve in the tests?

* `release`: adds the number of its release to its input, so that an answer says which release made it
* `slow`: takes a fifth of a second, so that a replica has requests whenever it is killed
* `sequence`: wants the requests of a sequence in one replica
* `stream`: sends each value after a pause
"""

import pathlib
import sys

import numpy as np
import onnx
from onnx import helper

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "models"))

import catalogue  # noqa: E402
import graphs  # noqa: E402
import make_models  # noqa: E402

SLOW_MS = 200
VECTOR = (("INPUT0", "FP32", (-1,)),), (("OUTPUT0", "FP32", (-1,)),)
# Slots for all sequences of the tests, also if one replica gets them all.
SEQUENCE = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"
STREAM = 'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'


def make(repository: pathlib.Path, release: int) -> pathlib.Path:
    """The repository of a release. Returns its folder."""
    graph = graphs.finish(
        "release",
        [helper.make_node("Add", ["INPUT0", "release"], ["OUTPUT0"])],
        [graphs.value("INPUT0", "FP32", [None])],
        [graphs.value("OUTPUT0", "FP32", [None])],
        {"release": np.array([release], np.float32)},
    )
    make_models.put(repository, "release", graph, make_models.onnx_config("release", *VECTOR))
    identity(repository, catalogue.identity("slow", ("FP32", (-1,)), delay_ms=SLOW_MS))
    identity(repository, catalogue.identity("sequence", ("INT32", (1,)), max_batch=16, extra=SEQUENCE))
    folder = repository / "stream" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(catalogue.REPEAT_SOURCE)
    tensors = [catalogue.Tensor(name, datatype, (-1,)) for name, datatype in (("IN", "INT32"), ("DELAY", "FP32"))]
    stream = catalogue.Model("stream", "python", tuple(tensors), (catalogue.Tensor("OUT", "INT32", (1,)),))
    (folder.parent / "config.pbtxt").write_text(catalogue.config_text(stream, STREAM))
    return repository


def identity(repository: pathlib.Path, model: catalogue.Model) -> None:
    folder = repository / model.name
    (folder / "1").mkdir(parents=True)
    # A bucket has no empty folders.
    (folder / "1" / "README").write_text("nothing\n")
    parameters = {"execute_delay_ms": str(model.delay_ms)} if model.delay_ms else {}
    (folder / "config.pbtxt").write_text(catalogue.config_text(model, 'backend: "identity"', parameters))


def broken(repository: pathlib.Path) -> pathlib.Path:
    """A repository whose model does not load. Returns its folder."""
    folder = repository / "release" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(onnx.TensorProto().SerializeToString() + b"no graph")
    (folder.parent / "config.pbtxt").write_text(make_models.onnx_config("release", *VECTOR))
    return repository
