"""Does what its request says, and asks other models: the input CODE is run, and what it sets `out` to is answered as text."""

import asyncio
import json
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def fp32(*values, name="INPUT0"):
    return pb_utils.Tensor(name, np.array(values, np.float32))


def texts(*values, name="CODE"):
    return pb_utils.Tensor(name, np.array([value.encode() for value in values], np.object_))


def request_of(model, *inputs, outputs=("OUTPUT0",), **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=list(inputs), requested_output_names=list(outputs), **more)


def said(response):
    """What a response says: values by the names of outputs, or its error."""
    if response.has_error():
        return f"error: {response.error().message()}"
    return str({tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()})


def refused(call, *given, **named):
    try:
        call(*given, **named)
    except BaseException as caught:
        return f"{type(caught).__name__}: {caught}"
    return "not refused"


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        self.early = refused(request_of("py_identity", fp32(1)).exec)

    def execute(self, requests):
        return [self.run(request) for request in requests]

    def run(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        names = {**globals(), "self": self, "request": request}
        exec(code, names)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([str(names.get("out")).encode()], np.object_))])
