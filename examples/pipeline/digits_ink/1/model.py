"""How much ink lies in each block of a bitmap?"""

import numpy as np
import triton_python_backend_utils as pb_utils

BLOCKS, BLOCK = 8, 4


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("image", self.ink(request))]) for request in requests]

    def ink(self, request):
        # A view of the client's own memory. Rows are [row of blocks, row, column of blocks, column].
        bitmap = pb_utils.get_input_tensor_by_name(request, "bitmap").as_numpy()
        blocks = bitmap.reshape(-1, BLOCKS, BLOCK, BLOCKS, BLOCK)
        return np.count_nonzero(blocks, axis=(2, 4)).astype(np.float32).reshape(-1, BLOCKS * BLOCKS)
