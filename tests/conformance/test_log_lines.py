"""Can a program read the log, and does a line that repeats leave room for others?"""

import contextlib
import json
import os
import signal
import time

import numpy as np
import pytest
from clients import fp32, http_call, open_client
from footprint import wait_until
from meanwhile import Delay, again_if_too_late
from python_setup import PATIENT

LOADS = 25
WINDOW_S = 10
# A line is written so often before it is counted.
WRITTEN = 5


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such format, and writes every line")
    repository = launcher.copy_of("log_lines", "identity_fp32")
    flags = ["--log-format=json", "--log-verbose=1", "--model-control-mode=explicit", "--load-model=identity_fp32"]
    with launcher.running("log_lines", *flags, repository=repository) as found:
        yield found


def lines(server) -> list[dict]:
    return [json.loads(line) for line in server.log_text().splitlines()]


def test_every_line_is_an_object_with_a_time_a_level_a_place_and_a_message(server):
    found = lines(server)
    assert len(found) >= 8
    for line in found:
        assert {"time", "level", "pid", "place", "message"} <= set(line), line
        assert line["level"] in ("error", "warning", "info", "verbose") and line["pid"] == server.pid
    assert any("Started HTTPService" in line["message"] for line in found)
    # Tables are messages as well.
    assert any("| Model " in line["message"] and "\n" in line["message"] for line in found)


def test_a_line_that_concerns_a_request_names_it(server):
    with open_client("http", server) as client:
        client.infer("identity_fp32", [fp32("INPUT0", np.zeros(2, np.float32))], id='the "first"\nrequest')
    found = [line for line in lines(server) if line.get("request_id")]
    assert found and found[-1]["request_id"] == 'the "first"\nrequest' and found[-1]["level"] == "verbose"


@again_if_too_late
def test_a_line_that_repeats_is_written_a_few_times_and_then_once_with_its_count(server):
    window, name = Delay(1000 * WINDOW_S), f"nobody_{time.monotonic_ns()}"
    for _ in range(LOADS):
        assert http_call(server.http, "POST", f"/v2/repository/models/{name}/load", {}).status == 500
    repeated = [line for line in lines(server) if name in line["message"]]
    window.must_last()
    assert len(repeated) == WRITTEN and all(line["level"] == "error" for line in repeated)
    deadline = time.monotonic() + 6 * WINDOW_S
    summary = f"{LOADS - WRITTEN} times more within {WINDOW_S} s: "
    while not (summaries := [line for line in lines(server) if line["message"].startswith(summary) and name in line["message"]]):
        assert time.monotonic() < deadline, "nothing was told"
        time.sleep(0.2)
    assert len(summaries) == 1
    assert (summaries[0]["level"], summaries[0]["place"]) == ("error", repeated[0]["place"])


def test_the_format_changes_while_the_server_runs(server):
    change = lambda name: http_call(server.http, "POST", "/v2/logging", {"log_format": name})
    assert change("default").ok().json["log_format"] == "default"
    http_call(server.http, "POST", "/v2/repository/models/somebody/load", {})
    assert server.log_text().splitlines()[-1].startswith("E")
    assert change("json").ok().json["log_format"] == "json"


def test_lines_that_differ_by_a_name_only_are_bounded_and_summed_up(server):
    begun = time.monotonic()
    for at in range(400):
        http_call(server.http, "POST", f"/v2/repository/models/{at}{'%01' * 1000}/load", "{}")

    def faults() -> list[str]:
        # The test before has left a line in another format.
        found = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
        return [line["message"] for line in found if line["level"] in ("error", "warning") and "%01%01" in line["message"]]

    def summaries() -> list[str]:
        return [message for message in faults() if "lines like those before are left out" in message]

    windows = 2 + (time.monotonic() - begun) // WINDOW_S
    assert 10 < len(faults()) <= 100 * windows and sum(map(len, faults())) < 150_000 * windows, len(faults())
    deadline = time.monotonic() + 2 * WINDOW_S + 60
    while sum(int(summary.split()[0]) for summary in summaries()) < 200:
        assert time.monotonic() < deadline, summaries()
        time.sleep(0.1)
    assert all(len(summary) < 1000 for summary in summaries()), summaries()


def test_a_fifo_that_nobody_reads_ends_the_start(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 waits for a reader without a word")
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    with pytest.raises(RuntimeError, match="failed to open log file '.*': it is a FIFO that nobody reads") as caught:
        with launcher.running("unread_fifo", f"--log-file={pipe}"):
            pass
    assert "the server ended" in str(caught.value)


def test_a_log_that_is_renamed_goes_on_in_a_new_file(launcher, tmp_path):
    """What logrotate does, without a signal."""
    if launcher.oracle:
        pytest.skip("2.51 goes on in the old file")
    log, old = tmp_path / "log", tmp_path / "log.1"
    flags = [f"--log-file={log}", "--model-control-mode=explicit"]
    with launcher.running("rotated", *flags, repository=launcher.copy_of("rotated", "identity_fp32")) as server:
        for round in range(2):
            log.rename(old)
            before = old.read_text()
            deadline = time.monotonic() + 60
            number = 0
            while not log.exists():
                assert time.monotonic() < deadline
                number += 1
                http_call(server.http, "POST", f"/v2/repository/models/none_{round}_{number}/load", "{}")
                time.sleep(0.2)
            # The line that was looked up for is in the new file, and nothing is lost.
            text = old.read_text()[len(before) :] + log.read_text()
            assert all(f"none_{round}_{at}" in text for at in range(1, number + 1)), text
            assert f"none_{round}_{number}" in log.read_text()


def wait_for_text(path, text: str) -> str:
    """What the file says once it has this text."""
    wait_until(lambda: path.exists() and text in path.read_text())
    return path.read_text()


@pytest.mark.parametrize("under_nohup", [False, True])
def test_sighup_opens_the_log_file_anew_and_ends_nothing(launcher, tmp_path, under_nohup):
    if launcher.oracle:
        pytest.skip("2.51 ends at once")
    log, old, name = tmp_path / "log", tmp_path / "log.1", f"hangup_log_{under_nohup}"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
    try:
        running = launcher.running(name, f"--log-file={log}", repository=launcher.copy_of(name, "identity_fp32"))
        server = running.__enter__()
    finally:
        signal.signal(signal.SIGHUP, before)
    with contextlib.ExitStack() as ends:
        ends.push(running)
        for _ in range(2):
            log.rename(old)
            server.process.send_signal(signal.SIGHUP)
            text = wait_for_text(log, "\n")
            assert text.count("\n") == 1 and f"Signal (1) received: the log file '{log}' was opened anew." in text
        assert http_call(server.http, "GET", "/v2/health/ready").status == 200


def test_a_log_file_that_cannot_be_opened_anew_is_kept_and_one_line_says_why(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 ends at once")
    log, old = tmp_path / "log", tmp_path / "log.1"
    repository = launcher.copy_of("hangup_kept", "identity_fp32")
    with launcher.running("hangup_kept", f"--log-file={log}", "--model-control-mode=explicit", repository=repository) as server:
        log.rename(old)
        log.mkdir()
        server.process.send_signal(signal.SIGHUP)
        wait_for_text(old, f"Signal (1) received: the log file '{log}' cannot be opened: Is a directory")
        http_call(server.http, "POST", "/v2/repository/models/nobody/load", "{}")
        text = wait_for_text(old, "nobody")
        assert text.count("Signal (1)") == 1 and "; lines go on to the file so far." in text
        log.rmdir()
        server.process.send_signal(signal.SIGHUP)
        wait_for_text(log, "was opened anew")


HANGING_UP = """
import os
import signal
import time


class TritonPythonModel:
    def initialize(self, args):
        os.rename({log!r}, {log!r} + ".1")
        os.kill(os.getppid(), signal.SIGHUP)
        # The server is not ready before the file is there.
        while not os.path.exists({log!r}):
            time.sleep(0.02)
"""


def test_sighup_opens_the_log_file_anew_while_the_models_load(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 ends at once")
    log = tmp_path / "log"
    repository = launcher.copy_of("hangup_loading")
    (repository / "hanging_up" / "1").mkdir(parents=True)
    (repository / "hanging_up" / "1" / "model.py").write_text(HANGING_UP.format(log=str(log)))
    (repository / "hanging_up" / "config.pbtxt").write_text('backend: "python"')
    with launcher.running("hangup_loading", PATIENT, f"--log-file={log}", repository=repository) as server:
        assert http_call(server.http, "GET", "/v2/models/hanging_up/ready").status == 200
        assert f"Signal (1) received: the log file '{log}' was opened anew." in log.read_text()
