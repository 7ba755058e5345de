"""What do the tests of the process run? SUM = A + B and DIFFERENCE = A - B; some numbers in A mean something else."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Adds and subtracts INT32 tensors of one shape."""

    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.kept = []

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
        b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
        first = int(a.flat[0]) if a.size else 0
        if first == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("A begins with -1", pb_utils.TritonError.INVALID_ARG))
        if first == -2:
            os.kill(os.getpid(), signal.SIGKILL)
        if first == -3:
            raise ValueError("A begins with -3")
        if first == -5:
            time.sleep(0.1)
        if first == -6:
            os.closerange(3, 100)
            time.sleep(3)
        if first == -7:
            a = np.full_like(a, subprocess.Popen(["sleep", "1000"]).pid)
        if first == -8:
            self.kept.append(a)
        if first == -10:
            # As a process does that is killed when it has asked for room.
            frame = sys._getframe()
            while "channel" not in frame.f_locals:
                frame = frame.f_back
            frame.f_locals["channel"].send({"need": [0, "SUM", 1 << 20]})
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        if first == -9:
            b = np.full_like(b, sum(int(kept[1]) for kept in self.kept))
            self.kept.clear()
        if first == -4:
            a = np.full_like(a, os.getpid())
            b = np.zeros_like(b)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)])
