"""What does a net look like that has the shapes of SqueezeNet 1.1?

The same layers and channels, so the same 1.2 million weights and 0.7 billion operations of a picture, filled with small numbers; nothing was trained.
A picture comes as one row of numbers, which the first node shapes: the load generator sends rows.
"""

import numpy as np
from onnx import TensorProto, helper
from residual_net import Writer

CHANNELS, SIDE = 3, 224
INPUT_FLOATS = CHANNELS * SIDE * SIDE
CLASSES = 1000
# Between two poolings: the inner channels of each fire module. It gives eight times as many.
STAGES = ((16, 16), (32, 32), (48, 48, 64, 64))
WIDENING = 4


class SqueezeWriter(Writer):
    def pool(self, x: str) -> str:
        return self.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)

    def fire(self, x: str, channels_in: int, inner: int) -> str:
        y = self.node("Relu", self.convolution(x, channels_in, inner, 1))
        parts = [self.node("Relu", self.convolution(y, inner, WIDENING * inner, side)) for side in (1, 3)]
        return self.node("Concat", *parts, axis=1)


def graph() -> bytes:
    """The net as ONNX: `x`, rows of INPUT_FLOATS, to `y`, rows of CLASSES that sum to 1."""
    net = SqueezeWriter(gain=2**0.5)
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [-1, CHANNELS, SIDE, SIDE])
    net.constants.append(shape)
    y = net.node("Relu", net.convolution(net.node("Reshape", "x", "shape"), CHANNELS, 64, 3, 2))
    channels = 64
    for stage in STAGES:
        y = net.pool(y)
        for inner in stage:
            y = net.fire(y, channels, inner)
            channels = 2 * WIDENING * inner
    y = net.node("Relu", net.convolution(y, channels, CLASSES, 1))
    net.node("Softmax", net.node("Flatten", net.node("GlobalAveragePool", y)), axis=1)
    net.nodes[-1].output[0] = "y"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in (("x", INPUT_FLOATS), ("y", CLASSES))
    ]
    made = helper.make_graph(net.nodes, "squeeze", ends[:1], ends[1:], net.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], producer_name="nerite", ir_version=8)
    return model.SerializeToString()


def pictures(count: int) -> np.ndarray:
    """Rows for tests: no two are the same."""
    return np.random.default_rng(2).standard_normal((count, INPUT_FLOATS), dtype=np.float32)
