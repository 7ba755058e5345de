"""Does a timeout hold for all that a call waits for?"""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import weakref

import numpy as np
import pytest
from test_call import connected
from test_call_lost import Counts, Holds, made_server  # noqa: F401

import nerite
from nerite import _client, _protobuf

SHORT_S = 0.2
# More than a busy machine adds, and less than what these waits took before: 5 s and more.
SOON_S = 3.0


@contextlib.contextmanager
def late():
    """Expects a TimeoutError, soon."""
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=f"no answer within {SHORT_S} s; the request was given up"):
        yield
    assert time.monotonic() - started < SOON_S


def test_waiting_for_a_connection_counts(made_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_client, "CONNECTIONS_MAX", 2)
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, quick = made.model("slow"), made.model("quick")
        waiting = [slow.submit([1]) for _ in range(2)]
        server.wait(lambda: server.received.count(b"slow") == 2)
        with late():
            quick([1], timeout=SHORT_S)
        with late():
            quick.batch([[1], [2]], timeout=SHORT_S)
        server.go_on.set()
        assert [one.result(30).OUT.tolist() for one in waiting] == [[7]] * 2
        assert quick([1], timeout=30).OUT.tolist() == [7]


class Deaf(Counts):
    """Accepts connections, and from a time on hears nothing that is said there."""

    is_deaf = False

    def _take(self, connection, packet):
        if not self.is_deaf:
            super()._take(connection, packet)


def test_connecting_counts(made_server):  # noqa: F811
    server = made_server(Deaf)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        counts([1])
        used = made._free.pop()
        server.is_deaf = True
        with late():
            counts([1], timeout=SHORT_S)
        server.is_deaf = False
        made._free.append(used)


class Chatters(Counts):
    """Says again and again what is no answer to an inference."""

    def infer(self, connection, number, model):
        for _ in range(200):
            connection.send(_protobuf.encode([(1, 0), (5, b"")]))
            time.sleep(SHORT_S / 10)


def test_messages_about_something_else_do_not_prolong_it(made_server):  # noqa: F811
    with nerite.connect(f"unix:{made_server(Chatters).path}") as made, late():
        made.model("counts")([1], timeout=SHORT_S)


def test_the_queue_of_the_threads_counts(made_server):  # noqa: F811
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        waiting = [made.model("slow").submit([1]) for _ in range(_client.THREADS_MAX)]
        server.wait(lambda: server.received.count(b"slow") == _client.THREADS_MAX)
        buffer = made.model("quick").input("IN", [4])
        queued = made.model("quick")
        futures = [queued.submit([1], timeout=SHORT_S) for _ in range(3)]
        given_up = queued.submit([1], timeout=60)
        assert given_up.cancel() and given_up.cancelled()
        for one in futures:
            with late():
                one.result(30)
        assert buffer.flags.writeable
        server.go_on.set()
        assert [one.result(30).OUT.tolist() for one in waiting] == [[7]] * len(waiting)
        assert queued.submit([1], timeout=30).result(30).OUT.tolist() == [7]
        assert server.received.count(b"quick") == 1, "what was given up in the queue is not run"


def test_a_call_in_time_is_not_kept_until_its_deadline(made_server):  # noqa: F811
    with nerite.connect(f"unix:{made_server(Counts).path}") as made:
        future = made.model("counts").submit([1], timeout=3600)
        response = weakref.ref(future.result(30)["OUT"])
        del future
        deadline = time.monotonic() + 30
        while response() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert response() is None


@pytest.mark.parametrize("way", ["session", "http", "grpc"])
@pytest.mark.parametrize("timeout", [float("inf"), np.float32("inf"), 1e300, None])
def test_an_infinite_timeout_is_none(launcher, way, timeout):
    with connected(launcher.get("nerite"), "session" if way == "session" else "inline", way) as made:
        identity = made.model("identity_fp32")
        assert identity([1.0], timeout=timeout).OUTPUT0.tolist() == [1]
        assert identity.batch([[1.0]], timeout=timeout)[0].OUTPUT0.tolist() == [1]
        assert identity.submit([1.0], timeout=timeout).result(30).OUTPUT0.tolist() == [1]
        assert asyncio.run(identity.aio([1.0], timeout=timeout)).OUTPUT0.tolist() == [1]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_never_speaks_is_given_up(protocol, monkeypatch):
    monkeypatch.setattr(_client, "ANSWER_S", SHORT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{protocol}://127.0.0.1:{silent.getsockname()[1]}"
        made = nerite.connect(url, buffers="inline")
        model = made.model("counts")
        with late():
            model([1], timeout=SHORT_S)
        with late():
            model.submit([1], timeout=SHORT_S).result(30)
        made.close()


def test_many_threads_on_few_connections_all_end_in_time(made_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_client, "CONNECTIONS_MAX", 3)
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, ended = made.model("slow"), []

        def infer():
            try:
                slow([1], timeout=SHORT_S)
            except TimeoutError:
                ended.append(time.monotonic())

        started = time.monotonic()
        threads = [threading.Thread(target=infer) for _ in range(32)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
        server.go_on.set()
        assert len(ended) == 32 and max(ended) - started < SOON_S
