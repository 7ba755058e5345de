"""Says itself whether it is ready, and how often it was asked: `INPUT0` tells it what to say, and how long that is to take in ms."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.answer, self.ms = 1, 0
        self.questions = self.inside = self.most = 0
        self.lock = threading.Lock()

    async def is_ready(self):
        with self.lock:
            self.questions += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.ms / 1000)
        with self.lock:
            self.inside -= 1
        if self.answer == 2:
            raise ValueError("cannot tell")
        return {0: False, 1: True, 3: None}[self.answer]

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if len(given):
                self.answer, self.ms = (int(one) for one in given)
            counted = np.array([self.questions, self.most], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", counted)]))
        return responses
