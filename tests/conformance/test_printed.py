"""Does what a Python model prints get into the log, with the name of the model?"""

import json
import re
import subprocess
import time

import numpy as np
import pytest
import servers
from clients import fp32, open_client
from footprint import wait_until
from python_setup import PATIENT

MODEL = """
import ctypes
import os
import sys

import triton_python_backend_utils as pb_utils

print("imported")


class TritonPythonModel:
    def initialize(self, args):
        print('{"at": "start", "path": "a\\\\b"}')
        print("beware", file=sys.stderr)

    def execute(self, requests):
        what = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy()[0]
        if what == 1:
            print("two\\nlines\\tof \\x1b[31mred", file=sys.stderr)
            libc = ctypes.CDLL(None)
            libc.puts(b"by a library in C")
            libc.fflush(None)
            os.write(1, b"in ")
            os.write(1, b"parts and not utf-8: \\xff\\r\\n")
            os.write(2, b"long " + b"x" * 40_000 + b" end\\n")
        if what == 2:
            os.write(1, b"the last words")
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(one, "INPUT0").as_numpy())]) for one in requests]

    def finalize(self):
        print("finalized")
"""
CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@pytest.fixture
def printing(launcher):
    """Starts a server with such a model."""
    if launcher.oracle or any(launcher.urls):
        pytest.skip("in 2.51 what models print is no part of the log")

    def running(*flags: str):
        name = f"printed_{time.monotonic_ns()}"
        repository = launcher.copy_of(name)
        (repository / "talks" / "1").mkdir(parents=True)
        (repository / "talks" / "1" / "model.py").write_text(MODEL)
        (repository / "talks" / "config.pbtxt").write_text(CONFIG)
        return launcher.running(name, PATIENT, *flags, repository=repository)

    return running


def call(server, what: float) -> None:
    with open_client("http", server) as client:
        client.infer("talks", [fp32("INPUT0", np.array([what], np.float32))])


def wait_for(server, text: str) -> None:
    wait_until(lambda: text in server.log_text())


def test_each_line_is_found_as_it_was_printed_with_the_name_of_its_model(printing):
    # As in Triton, the level of the log does not hide what models print.
    with printing("--log-info=false", "--log-warning=false") as server:
        call(server, 1)
        wait_for(server, " end\n")
        wait_for(server, "not utf-8")
        printed = re.findall(r"^I\d{4} \S+ \d+ printed\.rs:\d+\] model 'talks' instance 0: (.*)$", server.log_text(), re.M)
        expected = ["imported", "beware", '{"at": "start", "path": "a\\b"}', "two", "lines\tof \\u001B[31mred", "by a library in C", "in parts and not utf-8: \ufffd"]
        assert sorted(line for line in printed if "xxx" not in line) == sorted(expected)
        # A line that is too long is divided.
        long = [line for line in printed if "xxx" in line]
        assert "".join(long) == "long " + "x" * 40_000 + " end" and max(map(len, long)) <= 16384


def test_a_printed_line_is_an_object_of_json(printing):
    with printing("--log-format=json") as server:
        call(server, 1)
        wait_for(server, "by a library in C")
        wait_for(server, " end")
        with pytest.raises(Exception, match="the last words"):
            call(server, 2)
        wait_for(server, '"the last words"')
        lines = [json.loads(line) for line in server.log_text().splitlines()]
        found = {line["message"]: line for line in lines if "stream" in line}
        for text, stream in [("imported", "stdout"), ('{"at": "start", "path": "a\\b"}', "stdout"), ("two", "stderr"), ("the last words", "stdout")]:
            line = found[text]
            assert (line["model"], line["instance"], line["stream"], line["level"], line["pid"]) == ("talks", 0, stream, "info", server.pid)


def test_printed_lines_go_to_the_log_file_to_the_last(printing, tmp_path):
    log = tmp_path / "log"
    with printing(f"--log-file={log}") as server:
        call(server, 1)
    text = log.read_text()
    assert "model 'talks' instance 0: by a library in C\n" in text and text.count("model 'talks' instance 0: finalized\n") == 1
    assert "finalized" not in server.log_text() and "imported" not in server.log_text()


def test_printed_lines_go_to_the_stream_that_they_were_printed_to(tmp_path, printing):
    with printing() as running:
        repository = running.repository
    command, environment = servers.nerite_command(repository)
    out, err = tmp_path / "out", tmp_path / "err"
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), servers.free_ports(3))]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen([*command, *ports, PATIENT, "--session-socket=off"], env=environment, stdout=stdout, stderr=stderr)
        try:
            wait_until(lambda: "instance 0: imported\n" in out.read_text() and "instance 0: beware\n" in err.read_text(), 120)
        finally:
            process.terminate()
            process.wait(60)
    assert "imported" not in err.read_text() and "beware" not in out.read_text()
