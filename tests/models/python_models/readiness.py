"""Says itself whether it is ready: what it was last sent."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.answer = True

    def is_ready(self):
        return self.answer

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            self.answer = {0: False, 1: True, 2: "perhaps"}[int(given[0])]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)]))
        return responses
