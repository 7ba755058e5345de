"""What do the errors of a batch tell of what their process wrote before it died?"""

import threading
import time

import python_catalogue
import pytest
from clients import Refused, differs, fp32, open_client

REQUESTS = 3
MODEL = """
import os, signal, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        values = [float(pb_utils.get_input_tensor_by_name(one, "INPUT0").as_numpy()[0, 0]) for one in requests]
        print("by print", len(values), values[0], file=sys.stderr if values[0] == 3 else sys.stdout)
        pb_utils.Logger.log_warn(f"by the logger {values[0]}")
        if values[0] == 2:
            print("on standard error", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGKILL)
        if values[0] == 3:
            os.write(1, b"x" * 200_000 + b"\\n" + b"much\\n" * 50)
            os._exit(7)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([[value]], np.float32))]) for value in values]
"""
# A batch starts when all its requests are there.
CONFIG = f"""
name: "py_batch_dies"
backend: "python"
max_batch_size: {REQUESTS}
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
dynamic_batching {{ preferred_batch_size: [ {REQUESTS} ] max_queue_delay_microseconds: 60000000 }}
"""


def errors_of_batch(server, protocol: str, value: float) -> "list[str]":
    """The errors of the requests of one batch."""
    found = []

    def call() -> None:
        with open_client(protocol, server) as client:
            try:
                client.infer("py_batch_dies", [fp32("INPUT0", [value], [1, 1])])
            except Refused as refused:
                found.append(refused.text)

    threads = [threading.Thread(target=call) for _ in range(REQUESTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@differs("2.51 starts a process that died no more", run=False)
@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_each_request_of_a_batch_is_told_what_its_process_wrote(launcher, protocol, shared):
    repository = launcher.copy_of(f"python_last_lines_{time.monotonic_ns()}")
    folder = repository / "py_batch_dies" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL)
    (folder.parent / "config.pbtxt").write_text(CONFIG + python_catalogue.parameters(SHARE_INITIALIZE=shared))
    with launcher.running(repository.name, repository=repository) as server:
        assert errors_of_batch(server, protocol, 1) == []
        errors = errors_of_batch(server, protocol, 2)
        assert len(errors) == REQUESTS and len(set(errors)) == 1, errors
        assert "its process was ended by signal 9 (SIGKILL) while it had this request" in errors[0], errors
        lines = ["by print 3 2.0", "by the logger 2.0", "on standard error"]
        assert errors[0].endswith("\n\nIt printed last:\n" + "\n".join(f"  {line}" for line in lines)), errors
        # The lines are bounded, and what a process prints much of leaves room for its standard error.
        errors = errors_of_batch(server, protocol, 3)
        assert len(errors) == REQUESTS and len(set(errors)) == 1, errors
        lines_got = errors[0].split("\n\nIt printed last:\n")[1].splitlines()
        assert lines_got == ["  much"] * 18 + ["  by the logger 3.0", "  by print 3 3.0"], errors
        assert errors_of_batch(server, protocol, 1) == []
        # The operator gets all lines. A thread of the server copies them.
        expected = ["by print 3 1.0", "by the logger 1.0", *lines]
        until = time.monotonic() + 30
        while [line for line in expected if line not in server.log_text()] or server.log_text().count("much") != 50:
            assert time.monotonic() < until, server.log_text()[-5000:]
            time.sleep(0.1)
