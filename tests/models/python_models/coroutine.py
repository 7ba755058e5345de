"""`execute` is a coroutine: its waits for the requests of a batch run side by side."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(self.one, requests))

    async def one(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        await asyncio.sleep(0.05)
        if (given < 0).any():
            raise ValueError("a number below zero")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given * 2)])
