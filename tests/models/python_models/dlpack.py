"""OUTPUT0 is INPUT0, through a DLPack capsule; OUTPUT1 was read by numpy by the protocol of objects. A first number below
zero asks for a tensor made of numpy's own object."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            capsule = pb_utils.Tensor.from_dlpack("OUTPUT0", given.to_dlpack())
            array = np.from_dlpack(given)
            assert given.__dlpack_device__() == (1, 0)
            if array.flat[0] < 0:
                whole = pb_utils.Tensor.from_dlpack("OUTPUT1", np.array(array, copy=True))
            else:
                whole = pb_utils.Tensor("OUTPUT1", np.array(array, copy=True))
            responses.append(pb_utils.InferenceResponse([capsule, whole]))
        return responses
