"""Asks py_waits and py_identity side by side, from a coroutine, and adds up what they answer."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        pending = [
            pb_utils.InferenceRequest(model_name="py_identity", inputs=[tensor], requested_output_names=["OUTPUT0"]).async_exec()
            for _ in range(3)
        ]
        values = [pb_utils.get_output_tensor_by_name(one, "OUTPUT0").as_numpy() for one in await asyncio.gather(*pending)]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.sum(values, axis=0, dtype=np.float32))])
