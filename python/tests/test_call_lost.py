"""What becomes of calls, lent buffers and streams when the server goes, is full, or is slow?"""

import asyncio
import collections
import gc
import os
import socket
import sys
import threading

import numpy as np
import pytest
from session_server import SessionServer
from test_call import connected, stopped
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _client, _connection, _messages, _plain_connection, _protobuf


class Counts(SessionServer):
    """A server whose models answer with numbers, in messages. Subclasses say what becomes of an inference."""

    #: The name of the models' output.
    output = "OUT"

    def __init__(self, path):
        super().__init__(path)
        self.received: list[bytes] = []
        # The number of inputs of each request.
        self.inputs: list[int] = []

    def _take(self, connection, packet):
        fields = dict(_protobuf.decode(packet))
        number = fields.get(1, 0)
        if 16 in fields:
            tensor = [(2, "INT32"), (3, _messages.packed([-1]))]
            metadata = [(kind, _protobuf.encode([(1, name), *tensor])) for kind, name in ((4, "IN"), (5, self.output))]
            self.say(connection, number, (15, _protobuf.encode([(1, _protobuf.encode(metadata))])))
        elif 8 in fields:
            parts = list(_protobuf.decode(dict(_protobuf.decode(fields[8]))[1]))
            request = dict(parts)
            self.inputs.append([field for field, _ in parts].count(5))
            with self.changed:
                self.received.append(request[1])
                self.changed.notify_all()
            self.infer(connection, number, request[1])
        else:
            super()._take(connection, packet)

    def infer(self, connection, number, model):
        self.answer(connection, number, 7)

    def answer(self, connection, number, value, more=False):
        output = _protobuf.encode([(1, self.output), (2, "INT32"), (3, _messages.packed([1]))])
        # A response with parameters is not expected again, so no inference is prepared.
        parts = [(1, "counts"), (4, _messages._entry("own", True)), (5, output), (6, np.int32(value).tobytes())]
        self.say(connection, number, *([(3, 1)] if more else []), (9, _protobuf.encode([(1, _protobuf.encode(parts))])))

    @staticmethod
    def say(connection, number, *fields):
        connection.send(_protobuf.encode([(1, number), *fields]))


class HangsUp(Counts):
    """Ends after the first response of a stream."""

    is_up = False

    def infer(self, connection, number, model):
        self.answer(connection, number, 1, more=True)
        if self.is_up:
            self.answer(connection, number, 2)
        else:
            self.hang_up()


@pytest.fixture
def made_server(tmp_path):
    made = []

    def make(kind):
        made.append(kind(tmp_path / "s"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_lent_buffer_outlives_its_server(launcher):
    import servers

    first = launcher.fresh("nerite")
    with connected(first, "session") as made:
        identity = made.model("identity_fp32")
        buffer = identity.input("INPUT0", [16])
        for number in range(3):
            buffer[:] = number
            assert identity().OUTPUT0.tolist() == [number] * 16
        assert made.copied_bytes == 0
        servers.stop(first.process)
        buffer[:] = 3
        with pytest.raises(ConnectionError, match="no session at"):
            identity()
        launcher.fresh("nerite", f"--session-socket={first.session_socket}")
        assert identity().OUTPUT0.tolist() == [3] * 16, "what was written while there was no server"
        buffer[:] = 4
        assert identity().OUTPUT0.tolist() == [4] * 16
        assert made.copied_bytes == 2 * 64, "its memory is not the new server's, so it was copied, and that was counted"
        identity.input("INPUT0", [16])[:] = 5
        assert [identity().OUTPUT0.tolist() for _ in range(2)] == [[5] * 16] * 2
        assert made.copied_bytes == 2 * 64 and buffer.tolist() == [4] * 16


def test_a_lent_buffer_outlives_a_timeout_and_a_fork(launcher):
    server = launcher.get("nerite")
    with connected(server, "session") as made:
        identity = made.model("identity_fp32")
        buffer = identity.input("INPUT0", [4])
        buffer[:] = 1
        assert identity().OUTPUT0.tolist() == [1] * 4
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if identity().OUTPUT0.tolist() == [1] * 4 else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with stopped(server), pytest.raises(TimeoutError, match="given up"):
            identity(np.ones(3, np.float32), timeout=0.05)
        buffer[:] = 2
        assert identity().OUTPUT0.tolist() == [2] * 4


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("way", ["lease", "region"])
def test_buffers_over_other_protocols_are_made_anew_when_the_server_lost_them(launcher, protocol, way):
    server = launcher.get("nerite")
    options = {"session_socket": server.session_socket} if way == "lease" else {"buffers": "region"}
    # The session for calls is not opened, because another server is named for it.
    made = connected(server, way, protocol) if way == "region" else nerite.connect(f"{protocol}://{server.url(protocol)}", buffers="lease")
    with made:
        made._socket_path = options.get("session_socket")
        made._session_path = None
        identity = made.model("identity_fp32")
        assert identity([1.0, 2.0]).OUTPUT0.tolist() == [1, 2]
        plain = made._plain()
        assert plain.transport == way
        if way == "lease":
            plain.client._buffers._ways[0]._transport._session._socket.shutdown(2)
        else:
            plain.client.unregister_system_shared_memory()
        for number in range(3):
            assert identity([number, 4.0]).OUTPUT0.tolist() == [number, 4]
        for count in range(1, 2 * _plain_connection.HANDLES_MAX):
            identity(np.zeros(count, np.float32))
        assert len(plain._handles) == _plain_connection.HANDLES_MAX


def test_a_stream_that_is_lost_says_so_once_and_is_not_asked_for_again(made_server):
    server = made_server(HangsUp)
    with nerite.connect(f"unix:{server.path}", repeat_lost=True) as made:
        counts = made.model("counts")
        responses = counts.stream([1])
        assert next(responses).OUT.tolist() == [1]
        with pytest.raises(ConnectionError, match="closed the connection before it answered"):
            next(responses)
        assert next(responses, None) is None

        async def heard():
            found = []
            with pytest.raises(ConnectionError, match="closed the connection before it answered"):
                async for one in counts.aio_stream([1]):
                    found.append(int(one.OUT[0]))
            return found

        assert asyncio.run(heard()) == [1]
        assert server.received == [b"counts"] * 2
        server.is_up = True
        assert [int(one.OUT[0]) for one in counts.stream([1])] == [1, 2]
        # A connection that was lost while nobody used it is replaced without an error.
        server.hang_up()
        assert [int(one.OUT[0]) for one in counts.stream([1])] == [1, 2]
        assert server.received == [b"counts"] * 4


def test_a_stream_over_grpc_gives_its_responses_and_says_when_it_is_lost(launcher, monkeypatch):
    # The model runs in this Python, which has numpy.
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.join(sys.prefix, "bin"), os.environ["PATH"]]))
    server = launcher.fresh("nerite", "--session-socket=off")
    with nerite.connect(f"grpc://{server.grpc}") as made:
        repeat = made.model("repeat_int32")
        try:
            repeat.inputs
        except InferenceServerException:
            pytest.skip("this server runs no models in Python")
        values = np.array([4, 5, 6], np.int32)
        for _ in range(2):
            assert [int(one.OUT[0]) for one in repeat.stream(IN=values, DELAY=np.zeros(3, np.uint32))] == [4, 5, 6]
        assert len(made._idle_streams) == 1

        async def gathered(first):
            return [int(one.OUT[0]) async for one in repeat.aio_stream(values + first, np.zeros(3, np.uint32))]

        async def several():
            return await asyncio.gather(*(gathered(first) for first in range(3)))

        assert asyncio.run(several()) == [[4 + first, 5 + first, 6 + first] for first in range(3)]
        assert [int(one.OUT[0]) for one, _ in zip(repeat.stream(values, np.zeros(3, np.uint32)), range(1))] == [4]
        assert made.model("identity_fp32")([2.0]).OUTPUT0.tolist() == [2]
        assert [one.OUTPUT0.tolist() for one in made.model("identity_fp32").stream([3.0])] == [[3]]
        with pytest.raises(InferenceServerException, match="expected 2 inputs"):
            next(repeat.stream(values))

        async def given_up():
            async for _ in repeat.aio_stream(values, np.array([0, 2000, 0], np.uint32)):
                pass

        async def timed():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(given_up(), 0.5)

        asyncio.run(timed())
        responses = repeat.stream(values, np.array([0, 60_000, 0], np.uint32))
        next(responses)
        server.process.process.kill()
        with pytest.raises(ConnectionError, match="closed the stream before its last response"):
            list(responses)
        assert next(responses, None) is None


def test_a_stream_over_http_says_where_streams_go(launcher):
    with connected(launcher.get("nerite"), "inline") as made, pytest.raises(InferenceServerException, match="connect to grpc://"):
        next(made.model("identity_fp32").stream([1.0]))


def test_a_stream_for_asyncio_reads_the_buffers_of_the_thread_that_asked(made_server):
    server = made_server(HangsUp)
    server.is_up = True
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        counts.input("IN", [4])[:] = 5

        async def gathered():
            return [int(one.OUT[0]) async for one in counts.aio_stream()]

        assert asyncio.run(gathered()) == [1, 2]
        assert [int(one.OUT[0]) for one in counts.stream()] == [1, 2]
    assert server.inputs == [1, 1] and made.copied_bytes == 0


class Silent(Counts):
    """Answers no inference."""

    def infer(self, connection, number, model):
        pass


def test_a_stream_that_is_cancelled_ends_its_request_and_frees_its_thread(made_server):
    server = made_server(Silent)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")

        async def wait():
            async for _ in counts.aio_stream([1]):
                pass

        async def cancelled():
            waiting = asyncio.ensure_future(wait())
            await asyncio.get_running_loop().run_in_executor(None, server.wait, lambda: server.received)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return waiting.cancelled()

        assert asyncio.run(cancelled())
        server.wait(lambda: server.ended == 1)


class Holds(Counts):
    """Does not answer for the model ``slow`` until it is told to."""

    def __init__(self, path):
        super().__init__(path)
        self.go_on = threading.Event()

    def infer(self, connection, number, model):
        if model == b"slow":
            self.go_on.wait(60)
        super().infer(connection, number, model)


def test_slow_calls_do_not_delay_quick_ones_of_other_threads(made_server):
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, quick = made.model("slow"), made.model("quick")
        waiting = [slow.submit([1]) for _ in range(2 * _client.THREADS_MAX)]
        server.wait(lambda: server.received.count(b"slow") == _client.THREADS_MAX)
        # All threads for asynchronous calls wait now.
        found = []
        others = [threading.Thread(target=lambda: found.append(quick([2]).OUT.tolist())) for _ in range(8)]
        for one in others:
            one.start()
        for one in others:
            one.join(30)
        assert found == [[7]] * 8 and not any(one.done() for one in waiting)
        server.go_on.set()
        assert [one.result(30).OUT.tolist() for one in waiting] == [[7]] * len(waiting)
        assert made._open <= _client.CONNECTIONS_MAX


def test_a_server_without_room_for_more_sessions_serves_threads_one_after_the_other(made_server):
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        slow = made.model("slow")
        first = slow.submit([1])
        server.wait(lambda: server.received == [b"slow"])
        server.rejection = (8, "64 sessions of user 1000 are open")
        rest = [slow.submit([1]) for _ in range(3)]
        server.go_on.set()
        assert [one.result(30).OUT.tolist() for one in (first, *rest)] == [[7]] * 4
        assert made._open == 1


def test_a_lost_server_is_described_anew(made_server):
    server = made_server(Counts)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        assert counts([1]).OUT.tolist() == [7]
        before = counts._metadata
        counts._described_by = "the server before"
        assert counts([1]).OUT.tolist() == [7]
        assert counts._metadata is not before
        server.hang_up()
        # Asking for metadata and memory is not an inference: it is done again on a new connection.
        assert counts.input("IN", [4]).shape == (4,)
        assert counts([1]).OUT.tolist() == [7]


class GoesAfter(Counts):
    """Closes a connection for what its client sends, just before it answers the last of ``left`` requests."""

    left = 0

    def infer(self, connection, number, model):
        self.left -= 1
        if self.left == 0:
            # The client gets the answer all the same. What it sends then fails.
            connection.shutdown(socket.SHUT_RD)
        self.answer(connection, number, 7)


def test_a_batch_whose_server_goes_after_some_answers_is_not_run_again(made_server):
    server = made_server(GoesAfter)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        counts([1])
        server.left = 3
        with pytest.raises(ConnectionError, match="the server has gone"):
            counts.batch([[one] for one in range(5)])
        assert len(server.received) == 1 + 3
        # Nothing of this batch was sent when the connection was found to be lost.
        server.hang_up()
        assert [one.OUT.tolist() for one in counts.batch([[one] for one in range(5)])] == [[7]] * 5
        assert len(server.received) == 1 + 3 + 5


def test_a_call_whose_server_goes_after_the_answer_is_not_run_again(made_server, monkeypatch):
    monkeypatch.setattr(_connection, "PLANS_MAX", 1)
    server = made_server(GoesAfter)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        counts([1])
        (plan,) = made._free[0].plans.values()
        prepared = _connection.Slot()
        prepared.handle, prepared.byte_size = 1, 0
        plan.slots.append(prepared)
        server.left = 1
        # The new plan takes the place of the first one, whose handle cannot be released any more.
        assert counts([1, 2]).OUT.tolist() == [7]
        assert len(server.received) == 2
        assert counts([1]).OUT.tolist() == [7]


def in_a_thread(call):
    """What ``call`` returns or raises. Fails if it waits for ever."""
    found = []

    def run():
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    one = threading.Thread(target=run, daemon=True)
    one.start()
    one.join(30)
    assert not one.is_alive(), "it waits for ever"
    return found[0]


def test_a_call_within_a_stream_does_not_wait_for_the_streams_connection(made_server):
    server = made_server(HangsUp)
    server.is_up = True
    with nerite.connect(f"unix:{server.path}") as made:
        counts, other = made.model("counts"), made.model("other")
        server.rejection = (8, "64 sessions of user 1000 are open")

        def infer():
            for _ in counts.stream([1]):
                other([2])

        found = in_a_thread(infer)
        assert isinstance(found, ConnectionError) and "64 sessions of user 1000 are open" in str(found), found
        assert not made._streams.is_held_here() and made._streams._taken == 0
        server.rejection = None
        assert [int(one.OUT[0]) for one in counts.stream([1])] == [1, 2]


def test_a_stream_that_the_garbage_collector_ends_takes_no_lock_twice(made_server):
    server = made_server(HangsUp)
    server.is_up = True
    with nerite.connect(f"unix:{server.path}") as made:
        cycle = [made.model("counts").stream([1])]
        next(cycle[0])
        cycle.append(cycle)
        del cycle

        def collect():
            with made._lock:
                return gc.collect()

        gc.disable()
        try:
            assert in_a_thread(collect) > 0
        finally:
            gc.enable()
        assert made._open == 0


def test_an_answer_is_returned_although_another_thread_takes_its_connection(made_server):
    class Shared(collections.deque):
        def append(self, one):
            super().append(one)
            # As another thread would.
            super().pop()

    server = made_server(Counts)
    with nerite.connect(f"unix:{server.path}") as made:
        (connection,) = made._free
        connection.quick = lambda *given: "the answer"
        made._free = Shared([connection])
        made._waiting = 1
        assert made._quick("key", [], None) == "the answer"
        made._waiting = 0
