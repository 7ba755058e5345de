"""Sleeps for MS milliseconds, a few at a time, until its request is cancelled; WAS says how the one before it ended."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.was = "nothing"

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        before, self.was = self.was, "done"
        end = time.monotonic() + pb_utils.get_input_tensor_by_name(request, "MS").as_numpy()[0] / 1000
        while time.monotonic() < end:
            time.sleep(0.01)
            if request.is_cancelled():
                self.was = "cancelled"
                error = pb_utils.TritonError("the model saw it", pb_utils.TritonError.CANCELLED)
                return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WAS", np.array([before], dtype=object))])
