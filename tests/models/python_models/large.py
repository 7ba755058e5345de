"""MADE is SIZE bytes of SIZE's lowest byte, made anew for each request."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0])
            made = np.full(size, size % 256, np.uint8)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("MADE", made)]))
        return responses
