"""What does a net look like that is as large as ResNet-50?

The same blocks and channels, so the same 94 MB of weights, filled with small numbers; nothing was trained. The pictures are smaller, so that a run
on a busy machine takes a moment.
"""

import pathlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

# Blocks of each stage, and its inner channels. A block gives four times as many.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
WIDENING = 4
CLASSES = 1000
SIDE = 32


class Writer:
    def __init__(self, gain: float = 1.0):
        """`gain` is the size of weights. With the root of 2, what comes out of a layer is as large as what went in, although Relu drops half of it."""
        self.gain = gain
        self.nodes, self.constants = [], []
        self.random = np.random.default_rng(1)

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        values = self.random.standard_normal(shape, dtype=np.float32) * np.float32(self.gain * np.prod(shape[1:]) ** -0.5)
        self.constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(self, op: str, *inputs: str, **attributes) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def convolution(self, x: str, channels_in: int, channels: int, side: int, stride: int = 1) -> str:
        pads = [side // 2] * 4
        return self.node("Conv", x, self.constant(channels, channels_in, side, side), pads=pads, strides=[stride] * 2, dilations=[1, 1])

    def block(self, x: str, channels_in: int, inner: int, stride: int) -> str:
        y = self.node("Relu", self.convolution(x, channels_in, inner, 1))
        y = self.node("Relu", self.convolution(y, inner, inner, 3, stride))
        y = self.convolution(y, inner, WIDENING * inner, 1)
        if channels_in != WIDENING * inner or stride != 1:
            x = self.convolution(x, channels_in, WIDENING * inner, 1, stride)
        return self.node("Relu", self.node("Add", x, y))


def write(path: pathlib.Path) -> int:
    """Writes the net and says how many bytes of weights it has."""
    net = Writer()
    y = net.node("Relu", net.convolution("INPUT0", 3, 64, 7, 2))
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (blocks, inner) in enumerate(STAGES):
        for block in range(blocks):
            y = net.block(y, channels, inner, 2 if stage > 0 and block == 0 else 1)
            channels = WIDENING * inner
    y = net.node("Flatten", net.node("GlobalAveragePool", y))
    y = net.node("MatMul", y, net.constant(channels, CLASSES))
    net.nodes[-1].output[0] = "OUTPUT0"
    graph = helper.make_graph(
        net.nodes, "residual",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, [1, CLASSES])],
        net.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="nerite", ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(model, path)
    return sum(len(constant.raw_data) for constant in net.constants)
