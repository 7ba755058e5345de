"""A decoupled model whose execute is a coroutine: WAITS_MS says how long a request waits before each of its responses."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        for wait_ms in pb_utils.get_input_tensor_by_name(request, "WAITS_MS").as_numpy():
            if wait_ms < 0:
                raise ValueError("a negative wait")
            await asyncio.sleep(wait_ms / 1000)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WAITED_MS", np.array([wait_ms], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
