"""Does `nerite top` show a running server on a terminal?"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import numpy as np
import pytest
import servers
from clients import int32, open_client
from packets import open_session
from regions import registered

BOB = 65102


def top(*words: str, **how) -> subprocess.CompletedProcess:
    return subprocess.run([servers.nerite_binary(), "top", *words], capture_output=True, text=True, timeout=60, **how)


@contextlib.contextmanager
def under_load(server):
    """Somebody asks `simple` all the time."""
    ended = threading.Event()

    def infer() -> None:
        ones = np.ones((1, 16), np.int32)
        with open_client("http", server) as client:
            while not ended.wait(0.002):
                client.infer("simple", [int32("INPUT0", ones), int32("INPUT1", ones)])

    thread = threading.Thread(target=infer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_one_look_tells_rates_holders_and_states(shown):
    with under_load(shown), open_client("http", shown) as client, open_session(shown.session) as session:
        with registered(client, 4096, name="top_region"):
            session.borrow(1 << 20)
            found = top("--once", "--url", f"http://{shown.metrics}")
    assert found.returncode == 0, found
    lines = [line.split() for line in found.stdout.splitlines()]
    simple = next(line for line in lines if line[:3] == ["simple", "1", "ready"])
    assert float(simple[3]) > 0 and simple[7] != "-", simple
    assert next(line for line in lines if line[:1] == ["top_region"])[-1] == "good"
    assert any(str(os.getpid()) in line for line in lines), found.stdout
    assert "you are user 0" in found.stdout or os.geteuid() != 0


def test_models_of_two_repositories_have_a_row_each(namespaced):
    found = top("--once", "--interval=0.1", f"http://{namespaced.metrics}")
    rows = [line.split() for line in found.stdout.splitlines() if "::same" in line]
    assert sorted(row[0].rpartition("/")[2] for row in rows) == ["first::same", "second::same"], found.stdout
    assert all(row[1:3] == ["1", "ready"] for row in rows), found.stdout


def test_a_stranger_is_shown_no_holders(shown):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with open_client("http", shown) as client, registered(client, 4096, name="not_for_bob"):
        found = top("--once", "--interval=0.1", f"http://{shown.metrics}", user=BOB, group=BOB, extra_groups=[])
    assert f"you are user {BOB}" in found.stdout and "simple" in found.stdout
    assert "not_for_bob" not in found.stdout


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["--once", "--url", "http://127.0.0.1:1"], 1, "is a server running? --url names another"),
        (["--url", "nonsense"], 1, "no port"),
        (["--sometimes"], 2, "there is no option '--sometimes'"),
        ([], 1, "this is no terminal; --once prints one look"),
    ],
)
def test_what_cannot_be_shown_is_said(shown, words, status, reason):
    at = [] if "--url" in words else [f"http://{shown.metrics}"]
    found = top(*words, *at)
    assert found.returncode == status and reason in found.stderr, found


def test_the_http_port_is_distinguished_from_that_of_the_metrics(shown):
    found = top("--once", f"http://{shown.http}")
    assert found.returncode == 1 and "give the metrics port" in found.stderr, found


def test_a_terminal_is_drawn_anew_until_q_and_left_as_it_was(shown):
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(side)
    command = [servers.nerite_binary(), "top", "--interval=0.2", f"http://{shown.metrics}"]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side)
    try:
        drawn = read_until(main, lambda text: text.count("nerite top") >= 3)
        assert drawn.startswith("\x1b[?1049h") and "simple" in drawn
        # No look is higher or wider than the terminal.
        for look in drawn.split("\x1b[H")[1:-1]:
            lines = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", look).replace("\r", "").split("\n")
            assert len(lines) <= 24 and max(map(len, lines)) < 80, look
        # In the middle of a name is no place to stop: a paused process goes on.
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)
        os.write(main, b"xq")
        rest = read_until(main, lambda text: "\x1b[?1049l" in text)
        assert rest.endswith("\x1b[?1049l") and process.wait(20) == 0
        assert termios.tcgetattr(side) == before
    finally:
        process.kill()
        process.wait()
        os.close(main)
        os.close(side)


def read_until(terminal: int, holds) -> str:
    text, deadline = "", time.monotonic() + 30
    while not holds(text):
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode()
    return text
