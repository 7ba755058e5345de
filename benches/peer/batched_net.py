"""Runs model.onnx in onnxruntime, all requests that came together at once.

It is the peer's model in the row L12 of `cargo xtask peer`: the peer's wheel has no backend for ONNX.
"""

import os

import numpy
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        graph = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(graph, options)

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        (found,) = self.session.run(["y"], {"x": given[0] if len(given) == 1 else numpy.concatenate(given)})
        ends = numpy.cumsum([len(rows) for rows in given])[:-1]
        parts = numpy.split(found, ends)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", part)]) for part in parts]
