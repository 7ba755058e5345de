"""Runs as often as `TIMES` says: asks to be scheduled again until then, and answers what it was told in each run.

`HOW` changes that: `keep` gives a response together with the reschedule, `large` makes long responses, `raise` fails in the second run, `die` ends the process in it.
"""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.runs = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            responses.append(self.run(request, len(requests)))
        return None if self.decoupled else responses

    def run(self, request, together):
        times = int(pb_utils.get_input_tensor_by_name(request, "TIMES").as_numpy().reshape(-1)[0])
        how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy().reshape(-1)[0].decode()
        id = request.correlation_id()
        facts = [
            int(one.as_numpy().reshape(-1)[0])
            for one in (pb_utils.get_input_tensor_by_name(request, name) for name in ("START", "END", "READY", "CORRID"))
            if one is not None
        ]
        runs = self.runs.setdefault(id, [])
        runs.append([request.flags(), *facts[:3]])
        count = len(runs)
        if count == 2 and how == "raise":
            del self.runs[id]
            raise ValueError("the second time is one too many")
        if count == 2 and how == "die":
            os._exit(3)
        said = pb_utils.Tensor("SAID", np.array([[json.dumps([runs, id > 0 if type(id) is int else id])]], np.object_))
        if self.decoupled:
            sender = request.get_response_sender()
            said = pb_utils.Tensor("SAID", np.array([[str(count) + "." * (65536 if how == "large" else 0)]], np.object_))
            if count < times:
                request.set_release_flags(AGAIN)
                sender.send(pb_utils.InferenceResponse([said]))
            else:
                del self.runs[id]
                sender.send(pb_utils.InferenceResponse([said]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
        if count < times:
            request.set_release_flags(AGAIN)
            return pb_utils.InferenceResponse([said]) if how == "keep" else None
        del self.runs[id]
        return pb_utils.InferenceResponse([said])
