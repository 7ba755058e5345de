#!/usr/bin/env python3
"""How were the example model `digits` and its held-out samples made?

    .venv/bin/python examples/train_digits.py

A multi-layer perceptron (64 -> 32 -> 10) on scikit-learn's 8x8 handwritten digits, fixed seed. It writes

* examples/models/digits/1/model.onnx, its config.pbtxt and labels.txt
* examples/digits/samples.bin: digits the training never saw

samples.bin, all integers little-endian, no padding:

    u32          count
    count times  64 x u8  pixels, row by row, 0 (paper) to 16 (ink)
                 1 x u8   the digit, 0 to 9
"""

import pathlib
import struct

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = pathlib.Path(__file__).resolve().parent
SEED = 7
HELD_OUT = 200
INK_MAX = 16.0
# The oldest pair that has every operator used here, so that any runtime reads the file.
OPSET, IR_VERSION = 13, 7

CONFIG = """\
# An 8x8 grey digit in, ten probabilities out.
name: "digits"
platform: "onnxruntime_onnx"
max_batch_size: 64
input [
  {
    name: "image"
    data_type: TYPE_FP32
    dims: [ 64 ]
  }
]
output [
  {
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ 10 ]
    label_filename: "labels.txt"
  }
]
dynamic_batching { }
"""

LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def to_onnx(net: MLPClassifier) -> onnx.ModelProto:
    """The trained network as a graph: scale, two dense layers, softmax."""
    weights = {"ink_max": np.float32(INK_MAX)}
    for layer, (matrix, bias) in enumerate(zip(net.coefs_, net.intercepts_)):
        weights[f"w{layer}"] = matrix.astype(np.float32)
        weights[f"b{layer}"] = bias.astype(np.float32)
    nodes = [
        helper.make_node("Div", ["image", "ink_max"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "w0", "b0"], ["dense0"]),
        helper.make_node("Relu", ["dense0"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "w1", "b1"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="nerite-examples"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write_samples(path: pathlib.Path, images: np.ndarray, digits: np.ndarray) -> None:
    """Writes the format that the first lines of this file describe."""
    with path.open("wb") as out:
        out.write(struct.pack("<I", len(images)))
        for image, digit in zip(images, digits):
            out.write(image.astype(np.uint8).tobytes() + bytes([digit]))


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits, test_size=HELD_OUT, random_state=SEED, stratify=digits
    )
    net = MLPClassifier(hidden_layer_sizes=(32,), max_iter=400, random_state=SEED)
    net.fit(train_x / INK_MAX, train_y)
    accuracy = net.score(test_x / INK_MAX, test_y)

    folder = HERE / "models" / "digits"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(net), folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (HERE / "digits").mkdir(exist_ok=True)
    write_samples(HERE / "digits" / "samples.bin", test_x, test_y)
    print(f"{len(train_x)} digits trained on, accuracy on {len(test_x)} held out: {accuracy:.3f}")


if __name__ == "__main__":
    main()
