"""Which of ONNX's own operator tests can be asked of the runtimes, and what are their answers?

The package `onnx` brings a model, inputs and expected outputs per operator. This writes them in a form that needs no
protobuf to read, for `cargo run -p nerite-onnx --example onnx_oracle`:

    python tests/models/export_node_tests.py FOLDER

FOLDER/cases.txt has one line per tensor: case, `in` or `out`, name, datatype, dims (`2x3`, `-` for a scalar), data file.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

DATATYPES = {
    TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8", TensorProto.UINT16: "UINT16", TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64", TensorProto.INT8: "INT8", TensorProto.INT16: "INT16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.FLOAT16: "FP16", TensorProto.FLOAT: "FP32", TensorProto.DOUBLE: "FP64",
    TensorProto.BFLOAT16: "BF16",
}


def tensor(path):
    """The tensor in a file, or None for sequences, strings and other things."""
    proto = TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception:
        return None
    if proto.data_type not in DATATYPES:
        return None
    try:
        return DATATYPES[proto.data_type], numpy_helper.to_array(proto)
    except Exception:
        return None


def export(case, into):
    """Lines for one case, or none if it has anything but tensors."""
    model = onnx.load(case / "model.onnx")
    lines = []
    initial = {constant.name for constant in model.graph.initializer}
    sides = [("in", "input", [v for v in model.graph.input if v.name not in initial]), ("out", "output", model.graph.output)]
    for side, stem, values in sides:
        for index, value in enumerate(values):
            path = case / "test_data_set_0" / f"{stem}_{index}.pb"
            if not path.exists() or not value.type.HasField("tensor_type") or (found := tensor(path)) is None:
                return []
            datatype, array = found
            data = into / f"{case.name}.{stem}_{index}"
            data.write_bytes(np.ascontiguousarray(array).tobytes())
            dims = "x".join(map(str, array.shape)) or "-"
            lines.append(f"{case.name}\t{side}\t{value.name}\t{datatype}\t{dims}\t{data.name}")
    (into / f"{case.name}.onnx").write_bytes((case / "model.onnx").read_bytes())
    return lines


def main(into):
    into.mkdir(parents=True, exist_ok=True)
    root = Path(onnx.__file__).parent / "backend/test/data"
    lines = []
    for case in sorted(root.glob("*/*/model.onnx")):
        lines += export(case.parent, into)
    (into / "cases.txt").write_text("\n".join(lines) + "\n")
    print(len({line.split("\t")[0] for line in lines}), "cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
