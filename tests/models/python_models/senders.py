"""Answers by a response sender, as ACTION says; what a wrong use of the sender raises is the answer."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([text], dtype=object))])


def raised(call):
    try:
        call()
    except Exception as error:  # all of them are to be told
        return str(error)
    return "nothing was raised"


class TritonPythonModel:
    def execute(self, requests):
        return [self.do(request) for request in requests]

    def do(self, request):
        action = pb_utils.get_input_tensor_by_name(request, "ACTION").as_numpy()[0].decode()
        sender = request.get_response_sender()
        if action == "return":
            return response("returned")
        return getattr(self, action)(sender)

    def at_once(self, sender):
        sender.send(response("at once"), flags=FINAL)

    def in_two(self, sender):
        sender.send(response("in two"))
        sender.send(flags=FINAL)

    def error(self, sender):
        error = pb_utils.TritonError("refused by the sender", pb_utils.TritonError.UNAVAILABLE)
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def later(self, sender):
        def send():
            time.sleep(0.2)
            sender.send(response(f"later, by {threading.current_thread().name}"), flags=FINAL)

        threading.Thread(target=send, name="another thread").start()

    def unsupported_flag(self, sender):
        said = raised(lambda: sender.send(response("never"), flags=7))
        sender.send(response(said), flags=FINAL)

    def no_response(self, sender):
        said = raised(lambda: sender.send(flags=0))
        sender.send(response(said), flags=FINAL)

    def final_first(self, sender):
        said = raised(lambda: sender.send(flags=FINAL))
        sender.send(response(said), flags=FINAL)

    def twice(self, sender):
        sender.send(response("the first"))
        self.said = raised(lambda: sender.send(response("the second")))
        sender.send(flags=FINAL)

    def after_final(self, sender):
        sender.send(response("the only one"), flags=FINAL)
        self.said = raised(lambda: sender.send(response("too late")))

    def what_was_raised(self, sender):
        return response(self.said)

    def cancelled(self, sender):
        return response(f"cancelled: {sender.is_cancelled()}")

    def never(self, sender):
        return None
