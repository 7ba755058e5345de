#!/usr/bin/env python3
"""How were the example models `simple` and `identity_fp32` made?

    .venv/bin/python examples/make_simple.py

`simple` has the signature of Triton's first example: two INT32[16] in, their sum and difference out, batches up to 8.
`identity_fp32` needs no model file: the backend `identity` is built into the server.
"""

import pathlib

import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent

SIMPLE = """\
# OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {
    name: "INPUT0"
    data_type: TYPE_INT32
    dims: [ 16 ]
  },
  {
    name: "INPUT1"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_INT32
    dims: [ 16 ]
  },
  {
    name: "OUTPUT1"
    data_type: TYPE_INT32
    dims: [ 16 ]
  }
]
"""

IDENTITY = """\
# OUTPUT0 = INPUT0, any length, no batch dimension: what a request costs without a model.
name: "identity_fp32"
backend: "identity"
max_batch_size: 0
input [
  {
    name: "INPUT0"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_FP32
    dims: [ -1 ]
  }
]
"""


def simple_graph() -> onnx.ModelProto:
    """Sum and difference over ["batch", 16]."""
    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 16])

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        "simple",
        [tensor("INPUT0"), tensor("INPUT1")],
        [tensor("OUTPUT0"), tensor("OUTPUT1")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7, producer_name="nerite-examples"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    models = HERE / "models"
    (models / "simple" / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(simple_graph(), models / "simple" / "1" / "model.onnx")
    (models / "simple" / "config.pbtxt").write_text(SIMPLE)
    # A version directory must exist for a model to have a version; git keeps no empty directory.
    (models / "identity_fp32" / "1").mkdir(parents=True, exist_ok=True)
    (models / "identity_fp32" / "1" / ".gitkeep").touch()
    (models / "identity_fp32" / "config.pbtxt").write_text(IDENTITY)


if __name__ == "__main__":
    main()
