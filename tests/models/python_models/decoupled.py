"""Does what its requests say, as a decoupled model: the input CODE is run, and what it sets `returned` to is returned."""

import gc
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text(*words):
    said = np.array([str(word).encode() for word in words], dtype=np.object_)
    return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", said)])


def numbers(*values, said=None):
    outputs = [pb_utils.Tensor("MORE", np.array(values, np.float32))]
    return pb_utils.InferenceResponse(outputs if said is None else [pb_utils.Tensor("SAID", np.array([said], np.object_)), *outputs])


def error(message, *code):
    return pb_utils.InferenceResponse([], pb_utils.TritonError(message, *code))


def refused(call, *given, **named):
    """The text of the error that the call raises."""
    try:
        call(*given, **named)
    except BaseException as caught:
        return text(f"{type(caught).__name__}: {caught}")
    return text("not refused")


def later(seconds, work):
    threading.Timer(seconds, work).start()


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        found = None
        for request in requests:
            found = self.run(request)
        return found

    def run(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
        sender = request.get_response_sender()
        names = {**globals(), "self": self, "request": request, "sender": sender, "send": sender.send}
        # Nothing but the code has the request and its sender.
        del request, sender
        try:
            exec(code, names)
            return names.get("returned")
        finally:
            if "later" not in code:
                names.clear()
