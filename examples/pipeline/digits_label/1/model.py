"""What is the most probable digit called?"""

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = np.array("zero one two three four five six seven eight nine".split(), dtype=object)


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("label", self.names(request))]) for request in requests]

    def names(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        return NAMES[rows.argmax(axis=1)].reshape(-1, 1)
