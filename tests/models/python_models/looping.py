"""Ignores every signal it may, and never comes back from a request nor from its end."""

import signal

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0] < 0:
            while True:
                pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.inputs()[0].as_numpy())]) for one in requests]

    def finalize(self):
        while True:
            pass
