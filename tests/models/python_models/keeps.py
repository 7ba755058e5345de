"""Keeps every input for ever, and looks through all of them again and again in a thread of its own. OUTPUT0 is INPUT0; a first
number of -1 makes it forget the others, one of -2 makes it do so when it has answered."""

import threading
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept, self.total = [], 0.0
        threading.Thread(target=self.look, daemon=True).start()

    def look(self):
        while True:
            self.total = sum(float(one.sum()) for one in list(self.kept))
            time.sleep(0.001)

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if given[0] == -1:
                self.kept.clear()
            elif given[0] == -2:
                threading.Timer(0.3, self.kept.clear).start()
            else:
                self.kept.append(given)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)]))
        return responses
