"""Does a client that sends many large messages at once delay the large messages of others?"""

import contextlib
import functools
import json
import os
import statistics
import threading
import time
import uuid

import pytest
from server_times import times_of, tracing
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


@functools.cache
def tensors() -> bytes:
    """An input that is long JSON, and an output that is binary: only the input takes long to read."""
    given = {"name": "INPUT0", "datatype": "FP32", "shape": [ELEMENTS], "data": [0] * ELEMENTS}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True}}
    return json.dumps({"inputs": [given], "outputs": [output]}, separators=(",", ":")).encode()[1:]


def large_message(name: str) -> bytes:
    """An inference over HTTP with this id."""
    body = b'{"id":"%s",' % name.encode() + tensors()
    return b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def send(connection, message: bytes) -> int:
    """Sends the message, and reads the whole answer. Returns when all was sent, by `time.monotonic_ns`."""
    connection.sendall(message)
    sent_ns = time.monotonic_ns()
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
    return sent_ns


class Flood:
    """Connections of this user, each of which sends one large message after the other."""

    def __init__(self, url: str):
        self.is_over, self.failures, self.answered = threading.Event(), [], []
        self.threads = [threading.Thread(target=self.send_on, args=(url,)) for _ in range(FLOOD)]

    def send_on(self, url: str) -> None:
        try:
            with contextlib.closing(connect(url)) as connection:
                while not self.is_over.is_set():
                    name = uuid.uuid4().hex
                    send(connection, large_message(name))
                    self.answered.append(name)
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


def test_another_users_large_message_waits_for_few_of_a_flood(launcher, tmp_path):
    """Each of its messages would wait for all that the flood has sent before, if they went in the order in which they came."""
    repository = launcher.copy_of("large_messages", "identity_fp32")
    with launcher.running("large_messages", *tracing(tmp_path), repository=repository) as server:
        with Flood(server.http) as flood, contextlib.closing(as_user(NOBODY, lambda: connect(server.http))) as other:
            while len(flood.answered) < FLOOD:
                assert flood.failures == []
                time.sleep(0.01)
            sent_ns = {name: send(other, large_message(name)) for name in map(str, range(TRIES))}
        # When the server had read each, by its own clock: this process may be held up.
        read_ns = {name: times["HTTP_RECV_END"] for name, times in times_of(tmp_path, {*sent_ns, *flood.answered}).items()}
        waited_for = [sum(since < read_ns[one] < read_ns[name] for one in flood.answered) for name, since in sent_ns.items()]
        print(f"of {FLOOD} connections' messages {waited_for} were read before the other user's")
        assert statistics.median(waited_for) <= FLOOD / 2
