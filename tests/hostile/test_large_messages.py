"""Does a client that sends many large messages at once delay the large messages of others?"""

import contextlib
import json
import os
import statistics
import threading
import time

import pytest
from strangers import connect
from users import as_user

NOBODY = 65534
# JSON of more than 256 KiB is read on threads that serve no connection: as many at a time as there are cores.
ELEMENTS = 1 << 19
WORKERS = max(os.cpu_count() or 1, 2)
FLOOD = 8 * WORKERS
TRIES = 5


@pytest.fixture(autouse=True)
def only_root_can_be_somebody_else(launcher):
    if launcher.oracle or any(launcher.urls) or os.geteuid() != 0:
        pytest.skip("needs a server of its own, and root")


def large_message() -> bytes:
    """An inference over HTTP whose input is long JSON, and whose output is binary: only the input takes long to read."""
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [ELEMENTS], "data": [0] * ELEMENTS}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    body = json.dumps({"inputs": [given], "outputs": [output]}, separators=(",", ":")).encode()
    return b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def send(connection, message: bytes, is_sent=lambda: None) -> None:
    """Sends the message, and reads the whole answer."""
    connection.sendall(message)
    is_sent()
    found, left = b"", None
    while left is None or left > 0:
        part = connection.recv(1 << 20)
        assert part, "the server closed the connection"
        if left is not None:
            left -= len(part)
            continue
        found += part
        head, end, rest = found.partition(b"\r\n\r\n")
        if end:
            assert head.startswith(b"HTTP/1.1 200"), found[:500]
            (length,) = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            left = int(length) - len(rest)


class Flood:
    """Connections of this user, each of which sends one large message after the other."""

    def __init__(self, url: str, message: bytes):
        self.answered = 0
        self.is_over, self.failures, self.lock = threading.Event(), [], threading.Lock()
        self.threads = [threading.Thread(target=self.send_on, args=(url, message)) for _ in range(FLOOD)]

    def send_on(self, url: str, message: bytes) -> None:
        try:
            with contextlib.closing(connect(url)) as connection:
                while not self.is_over.is_set():
                    send(connection, message)
                    with self.lock:
                        self.answered += 1
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            self.failures.append(failure)

    def __enter__(self):
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for one in self.threads:
            one.join()
        assert self.failures == []


def test_another_users_large_message_waits_for_few_of_a_flood(launcher):
    """Each of its messages would wait for all that the flood has sent before, if they went in the order in which they came."""
    message = large_message()
    with launcher.running("large_messages", repository=launcher.copy_of("large_messages", "identity_fp32")) as server:
        with Flood(server.http, message) as flood, contextlib.closing(as_user(NOBODY, lambda: connect(server.http))) as other:
            while flood.answered < FLOOD:
                assert flood.failures == []
                time.sleep(0.01)
            waited_for = []
            for _ in range(TRIES):
                before = []
                send(other, message, lambda: before.append(flood.answered))
                waited_for.append(flood.answered - before[0])
        print(f"of {FLOOD} connections' messages {waited_for} were answered before the other user's")
        assert statistics.median(waited_for) <= FLOOD / 2
