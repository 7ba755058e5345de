"""Does what CODE says, with metrics of its own, and tells what came of it: the text `out`, or the error."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = {}
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            known = {"self": self, "kept": self.kept, "pb_utils": pb_utils, "Family": pb_utils.MetricFamily, "out": None}
            try:
                exec(code, known)
                said = str(known["out"])
            except BaseException as error:
                said = f"{type(error).__module__}.{type(error).__name__}: {error}"
            known.clear()
            said = np.array([said.encode()], np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)]))
        return responses
