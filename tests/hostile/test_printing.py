"""Does a Python model that prints without end cost anybody but itself anything?"""

import os
import re
import time

import numpy as np
import pytest
from clients import fp32, http_call, open_client
from python_setup import PATIENT
from witness import comes_to

# It prints from its load on: empty lines, which cost the log most, or a line without an end.
MODEL = """
import os
import threading


def print_on():
    while True:
        os.write({stream}, {text} * 65536)


class TritonPythonModel:
    def initialize(self, args):
        threading.Thread(target=print_on, daemon=True).start()
"""
REQUESTS = 50
# A printed byte counts with its line. The log has the time and the name of the model with each line.
LOGGED_BYTES_PER_S_MAX = 4 << 20


def put_noisy(launcher, name: str, stream: int, text: bytes):
    """A repository with that model and one of others."""
    repository = launcher.copy_of(name, "identity_fp32")
    (repository / "noisy" / "1").mkdir(parents=True)
    (repository / "noisy" / "1" / "model.py").write_text(MODEL.format(stream=stream, text=text))
    (repository / "noisy" / "config.pbtxt").write_text('backend: "python"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n')
    return repository


@pytest.mark.parametrize(("stream", "text"), [(1, b"\n"), (2, b"x")])
def test_a_model_that_prints_without_end_waits_and_others_do_not(launcher, tmp_path, stream, text):
    if launcher.oracle:
        pytest.skip("2.51 lets it write what it likes")
    name, log = f"printing_{stream}", tmp_path / "log"
    repository = put_noisy(launcher, name, stream, text)
    with launcher.running(name, PATIENT, f"--log-file={log}", "--log-access=true", repository=repository) as server:
        # Many short lines take this server longer than their rate, where it is slow.
        waits = "model 'noisy' instance 0 prints more than 1048576 bytes in a second, and has to wait"
        comes_to(lambda: waits in log.read_text() or (text == b"\n" and log.stat().st_size > 1 << 20), True)
        before, began = log.stat().st_size, time.monotonic()
        with open_client("http", server) as client:
            for at in range(REQUESTS):
                sent = fp32("INPUT0", np.array([at], np.float32))
                assert client.infer("identity_fp32", [sent], id=f"other_{at}").outputs["OUTPUT0"].raw == sent.raw
        # No line of others is lost.
        comes_to(lambda: sum(f"request_id=other_{at} " in log.read_text() for at in range(REQUESTS)), REQUESTS)
        written, took_s = os.stat(log).st_size - before, time.monotonic() - began
        assert written < (took_s + 2) * LOGGED_BYTES_PER_S_MAX, (written, took_s)


def lost_lines(server) -> int:
    page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
    return int(re.search(r'^nerite_log_lines_lost_total{reason="queue_full"} (\d+)$', page, re.M)[1])


def test_lines_of_a_model_leave_room_for_others_in_a_log_that_nobody_reads(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 waits for the reader")
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        repository = put_noisy(launcher, "printing_unread", 1, b"\n")
        with launcher.running("printing_unread", PATIENT, f"--log-file={pipe}", "--log-access=true", repository=repository) as server:
            with open_client("http", server) as client:
                comes_to(lambda: lost_lines(server) > 0, True)
                for at in range(REQUESTS):
                    sent = fp32("INPUT0", np.array([at], np.float32))
                    assert client.infer("identity_fp32", [sent], id=f"other_{at}").outputs["OUTPUT0"].raw == sent.raw
            text = b""

            def has_all() -> bool:
                nonlocal text
                try:
                    text += os.read(reader, 1 << 16)
                except BlockingIOError:
                    pass
                return all(b"request_id=other_%d " % at in text for at in range(REQUESTS))

            comes_to(has_all, True)
    finally:
        os.close(reader)
