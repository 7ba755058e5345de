"""Which models count their runs, also those that a killed server did?"""

import contextlib
import os
import pathlib
import sys

import peers
import pytest

import nerite

HEAD = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

def note(number):
    # A line is written by one call, so lines of several processes do not mix.
    file = os.open(RUNS, os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{number}\\n".encode())
    os.close(file)

def response(*numbers):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers, np.int64))])

def given(request):
    return int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
"""
# Each run notes the number that it was given. The answer has the model's process too, which shows the replica.
COUNTS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            note(given(request))
        return [response(given(request), os.getpid()) for request in requests]
"""
# Two responses. After the first one to a negative number, it waits until it is killed.
STREAMS = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            number, sender = given(request), request.get_response_sender()
            note(number)
            sender.send(response(number))
            if number < 0:
                threading.Event().wait()
            sender.send(response(number + 1), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# The sum of the sequence.
SUMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            number = request.correlation_id()
            before = 0 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.sums[number]
            self.sums[number] = before + given(request)
            responses.append(response(self.sums[number]))
        return responses
"""
TENSORS = """
backend: "python"
input [{ name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }]
"""
MODELS = {
    "counts": (COUNTS, ""),
    "streams": (STREAMS, "model_transaction_policy { decoupled: true }"),
    "sums": (SUMS, "sequence_batching { }"),
}
IDENTITY = """
backend: "identity"
input [{{ name: "INPUT0" data_type: {0} dims: [ -1 ] }}]
output [{{ name: "OUTPUT0" data_type: {0} dims: [ -1 ] }}]
"""


def make(folder: pathlib.Path, *names: str, datatype: str = "TYPE_FP32") -> pathlib.Path:
    """A repository with the model `identity`, and the models of these names. Their runs are lines of the file `runs` in the folder above it."""
    runs = folder.parent / "runs"
    runs.touch()
    (folder / "identity" / "1").mkdir(parents=True)
    (folder / "identity" / "config.pbtxt").write_text(IDENTITY.format(datatype))
    for name in names:
        source, more = MODELS[name]
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(TENSORS + more)
        (folder / name / "1" / "model.py").write_text(f"RUNS = {str(runs)!r}\n{HEAD}{source}")
    return folder


@contextlib.contextmanager
def served(folder: pathlib.Path, **flags):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NERITE_BIN", str(peers.servers.nerite_binary()))
        # The models run in this Python, which has numpy.
        patch.setenv("PATH", os.path.join(sys.prefix, "bin"), prepend=os.pathsep)
        with nerite.serve(str(folder), **flags) as server:
            yield server
