"""A model that runs what its request's parameter says. ``gpu`` is one of the modules beside this file."""

import json
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
import gpu  # noqa: E402


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        responses = [self.run(request) for request in requests]
        return None if self.is_decoupled else responses

    def run(self, request):
        inputs = {tensor.name(): tensor for tensor in request.inputs()}
        scope = {"np": np, "pb_utils": pb_utils, "gpu": gpu, "model": self, "request": request, "inputs": inputs, "out": []}
        scope["report"] = lambda result: scope["out"].append(text(result))
        outputs = scope["out"]
        try:
            exec(json.loads(request.parameters())["code"], scope)
        finally:
            # It refers to itself, so it would keep the arrays until it is collected.
            scope.clear()
        if not self.is_decoupled:
            return pb_utils.InferenceResponse(outputs)
        sender = request.get_response_sender()
        for tensor in outputs:
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None


def text(result):
    return pb_utils.Tensor("RESULT", np.array([json.dumps(result).encode()], object))
