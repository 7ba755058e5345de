"""OUTPUT0 is INPUT0 plus one, written straight into the memory that is offered for it."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            made = request.output_array("OUTPUT0", given.shape, given.dtype)
            np.add(given, 1, out=made)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", made)]))
        return responses
