"""How is a small text encoder made?

    python examples/python/make_text_encoder.py models      # needs: pip install onnx
    nerite serve --model-repository models

Each token has a random vector; the embedding of a text is the sum of its tokens' vectors, with length 1. Nothing was trained: texts
are alike if they have many tokens in common. A net from a library goes to the same place.
"""

import pathlib
import sys

import numpy as np
import onnx

TOKENS, WIDTH = 512, 64
table = np.random.default_rng(0).standard_normal((TOKENS, WIDTH)).astype(np.float32)
table[0] = 0  # token 0 fills short texts up
model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    encoder (int64[texts, tokens] tokens) => (float[texts, 64] embedding) {
        vectors = Gather (table, tokens)
        axis = Constant <value_ints = [1]> ()
        sum = ReduceSum <keepdims = 0> (vectors, axis)
        embedding = LpNormalization <axis = 1, p = 2> (sum)
    }""")
model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
onnx.checker.check_model(model)
folder = pathlib.Path(sys.argv[1]) / "text_encoder" / "1"
folder.mkdir(parents=True)
onnx.save(model, folder / "model.onnx")
(folder.parent / "config.pbtxt").write_text('platform: "onnxruntime_onnx"\nmax_batch_size: 64\ndynamic_batching { }\n')
print(f"{folder.parent} is written")
