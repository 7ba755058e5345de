"""Ends its own process as HOW says, or answers with the process's number."""

import ctypes
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0].decode()
            if how == "exit":
                os._exit(3)
            elif how == "segv":
                ctypes.string_at(8)
            elif how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "abort":
                os.abort()
            elif how == "close":  # all that is open, what leads to the server included
                os.closerange(0, 1024)
        pid = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", pid)]) for _ in requests]
