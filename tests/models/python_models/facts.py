"""What does a model see of its request and of its place? FACTS is a JSON text that tells."""

import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.facts_of(request)]) for request in requests]

    def facts_of(self, request):
        facts = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "requested": sorted(request.requested_output_names()),
            "cancelled": request.is_cancelled(),
            "inputs": [
                [one.name(), str(one.as_numpy().dtype), list(one.shape()), one.is_cpu()] for one in request.inputs()
            ],
            "args": self.args,
            "model_dir": pb_utils.get_model_dir(),
            "file": __file__,
            "module": __name__,
            "path": sys.path,
            "pid": os.getpid(),
            "parent": os.getppid(),
        }
        return pb_utils.Tensor("FACTS", np.array([json.dumps(facts)], dtype=object))
