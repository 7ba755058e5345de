"""What is left of the log and of traces when their disk is full or a limit of file sizes is reached, and does the server go on?

For a full disk the server gets a mount namespace of its own, with a file system of 1 MiB; that needs root.
"""

import contextlib
import json
import pathlib
import re
import time

import pytest
import servers
from clients import http_call, http_infer
from test_shortages import can_unshare
from test_tokens import ONE, bearer, put, token

ROOM = 1 << 20
LINES = 40
FILE_BYTES_MAX = 64 << 10
# The unit of POSIX is 512 bytes.
LIMIT = f'ulimit -f {FILE_BYTES_MAX // 512} && exec "$@"'
FURNISH = 'mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@"'


@contextlib.contextmanager
def cramped(launcher, folder: pathlib.Path, *flags: str):
    """A server for which this folder is a small disk; `server.disk` is where others find it."""
    if launcher.oracle:
        pytest.skip("2.51 has no tokens, and leaves parts of lines")
    if not can_unshare():
        pytest.skip("no mount namespace to be had: not root")
    disk = folder / "disk"
    disk.mkdir()
    repository = launcher.copy_of(folder.name, "identity_fp32")
    command, environment = servers.nerite_command(repository)
    furnished = ["unshare", "-m", "--propagation", "private", "sh", "-c", FURNISH, "sh", str(disk), *command]
    flags = ["--session-socket=off", "--model-control-mode=explicit", "--load-model=*", *flags]
    server = servers.start(furnished, environment, flags, folder / "stderr", oracle=False, repository=repository)
    server.disk = pathlib.Path(f"/proc/{server.pid}/root{disk}")
    try:
        yield server
        assert servers.stop(server) == 0
    finally:
        servers.stop(server)


def fill(disk: pathlib.Path) -> pathlib.Path:
    """A file that takes all the space that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as out:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    assert out.write(b"x" * size) == size
    return filler


def lost_lines(server, reason: str) -> int:
    page = http_call(server.metrics, "GET", "/metrics", headers=bearer("all")).ok().body.decode()
    return int(re.search(rf'^nerite_log_lines_lost_total{{reason="{reason}"}} (\d+)$', page, re.M)[1])


def change(server) -> None:
    """A call with an audit line, whatever becomes of the line."""
    http_call(server.http, "POST", "/v2/repository/models/identity_fp32/load", "{}", bearer("all")).ok()


def test_a_full_disk_loses_whole_lines_of_the_log_and_says_how_many(launcher, tmp_path):
    tokens = tmp_path / "tokens.toml"
    put(tokens, token("all"))
    log = tmp_path / "disk" / "log"
    flags = [f"--log-file={log}", "--log-format=json", f"--access-tokens-file={tokens}", "--log-access=true"]
    with cramped(launcher, tmp_path, *flags) as server:
        change(server)
        filler = fill(server.disk)
        for _ in range(LINES):
            change(server)
            assert http_infer(server.http, "identity_fp32", ONE, headers=bearer("all")).status == 200
        deadline = time.monotonic() + 60
        while lost_lines(server, "write_failed") < LINES:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "lines are lost: the log cannot be written: No space left on device" in server.log_text()
        assert server.log_text().count("lines are lost") == 1, "stderr says it once a minute"
        filler.unlink()
        change(server)
        assert http_infer(server.http, "identity_fp32", ONE, headers=bearer("all")).status == 200
        lost = lost_lines(server, "write_failed")
        text = (server.disk / "log").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    notices = [re.match(r"(\d+) lines were lost: the log could not be written: No space left", line.get("message", "")) for line in found]
    assert sum(int(notice[1]) for notice in notices if notice) == lost >= LINES
    at = max(at for at, notice in enumerate(notices) if notice)
    assert any("audit: token all" in line.get("message", "") for line in found[at:])


def test_a_full_disk_leaves_traces_that_are_json_and_a_removed_file_comes_again(launcher, tmp_path):
    file = tmp_path / "disk" / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with cramped(launcher, tmp_path, *flags) as server:
        seen = server.disk / "trace.json"

        def traced(count: int) -> int:
            """Requests, and how many objects are in the file when all of them were written or dropped."""
            before = sum(traces(server).values())
            for _ in range(count):
                assert http_infer(server.http, "identity_fp32", ONE).status == 200
            deadline = time.monotonic() + 60
            while sum(traces(server).values()) < before + count:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            return len(json.loads(seen.read_text()))

        first = traced(3)
        filler = fill(server.disk)
        assert first <= traced(LINES) and traces(server)["dropped"] > 0
        assert "failed writing to trace file" in server.log_text() and "No space left" in server.log_text()
        filler.unlink()
        dropped = traces(server)["dropped"]
        assert traced(3) > first and traces(server)["dropped"] == dropped
        seen.unlink()
        assert traced(1) > 0


def test_a_limit_of_file_sizes_loses_what_does_not_fit_and_the_server_goes_on(launcher, tmp_path):
    """`ulimit -f`, or LimitFSIZE of systemd. The kernel sends a signal with the error, which ends a process that does not handle it."""
    if launcher.oracle:
        pytest.skip("2.51 ends by SIGXFSZ")
    log, file = tmp_path / "log", tmp_path / "trace.json"
    before = "x" * (FILE_BYTES_MAX - 8000) + "\n"
    log.write_text(before)
    command, environment = servers.nerite_command(launcher.copy_of(tmp_path.name, "identity_fp32"))
    flags = [f"--log-file={log}", "--log-format=json", "--log-access=true", "--session-socket=off", "--trace-config=rate=1"]
    flags += [f"--trace-config=triton,file={file}", "--trace-config=level=TIMESTAMPS"]
    limited = ["sh", "-c", LIMIT, "sh", *command]
    server = servers.start(limited, environment, flags, tmp_path / "stderr", oracle=False)
    try:
        deadline = time.monotonic() + 60
        while lost_lines(server, "write_failed") == 0 or traces(server)["dropped"] == 0:
            assert time.monotonic() < deadline
            assert http_infer(server.http, "identity_fp32", ONE).status == 200
        # While the server runs, the part of a line that fitted may be in the file for a moment.
        assert servers.stop(server) == 0
        text = log.read_text()
        assert text.startswith(before) and len(text) <= FILE_BYTES_MAX
        assert all(json.loads(line) for line in text[len(before) :].splitlines()) and text.endswith("\n")
        assert "lines are lost: the log cannot be written: File too large" in server.log_text()
        assert 0 < len(json.loads(file.read_text())) and file.stat().st_size <= FILE_BYTES_MAX
    finally:
        servers.stop(server)


def traces(server) -> dict[str, int]:
    """What became of traces, apart from those that were shortened, which were written as well."""
    page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
    found = dict(re.findall(r'^nerite_traces_total{outcome="(written|dropped)"} (\d+)$', page, re.M))
    return {outcome: int(count) for outcome, count in found.items()}
