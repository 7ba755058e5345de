"""How many streams of a client may be open, and do the others get their turn?"""

import asyncio
import threading
import time

import numpy as np
import pytest
from test_call import connected
from test_call_lost import Counts, HangsUp, Holds, in_a_thread, made_server  # noqa: F401
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _client
from nerite._streams import STREAMS_MAX

# Long after all streams should have ended, and long before the test's own limit.
PATIENCE_S = 60


class Streams(Counts):
    """Answers each inference with 1 and 2, and the model ``calls`` with 7."""

    def infer(self, connection, number, model):
        if model == b"calls":
            return self.answer(connection, number, 7)
        self.answer(connection, number, 1, more=True)
        self.answer(connection, number, 2)


@pytest.fixture
def client(made_server):  # noqa: F811
    with nerite.connect(f"unix:{made_server(Streams).path}") as made:
        yield made


async def gathered(model):
    return [int(one.OUT[0]) async for one in model.aio_stream([1])]


def test_any_number_of_streams_for_asyncio_come_to_their_end(client):
    async def many():
        return await asyncio.wait_for(asyncio.gather(*(gathered(client.model("counts")) for _ in range(4 * STREAMS_MAX))), PATIENCE_S)

    assert asyncio.run(many()) == [[1, 2]] * (4 * STREAMS_MAX)
    assert client._streams._taken == 0 and client._open <= STREAMS_MAX


def test_streams_of_asyncio_leave_the_threads_to_calls(made_server):  # noqa: F811
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:

        async def both():
            streams = [asyncio.ensure_future(gathered(made.model("slow"))) for _ in range(2 * STREAMS_MAX)]
            await asyncio.to_thread(server.wait, lambda: server.received.count(b"slow") == STREAMS_MAX)
            future = made.model("quick").submit([1])
            assert (await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE_S)).OUT.tolist() == [7]
            assert (await asyncio.wait_for(made.model("quick").aio([1]), PATIENCE_S)).OUT.tolist() == [7]
            server.go_on.set()
            return await asyncio.wait_for(asyncio.gather(*streams), PATIENCE_S)

        assert asyncio.run(both()) == [[7]] * (2 * STREAMS_MAX)


def test_a_thread_with_all_streams_is_refused_another_and_may_call(client):
    def all_of_them():
        counts = client.model("counts")
        streams = [counts.stream([1]) for _ in range(STREAMS_MAX)]
        assert [int(next(one).OUT[0]) for one in streams] == [1] * STREAMS_MAX
        with pytest.raises(InferenceServerException, match=f"{STREAMS_MAX} streams of this client are open, {STREAMS_MAX} may be, and this thread"):
            next(counts.stream([1]))
        assert client.model("calls")([1]).OUT.tolist() == [7], "streams leave connections to calls"
        assert [int(next(one).OUT[0]) for one in streams] == [2] * STREAMS_MAX
        assert [next(one, None) for one in streams] == [None] * STREAMS_MAX
        return [int(one.OUT[0]) for one in counts.stream([1])]

    assert in_a_thread(all_of_them) == [1, 2]


def test_a_task_with_all_streams_is_refused_another_and_others_wait(client):
    async def all_of_them():
        counts = client.model("counts")
        streams = [counts.aio_stream([1]) for _ in range(STREAMS_MAX)]
        assert [int((await anext(one)).OUT[0]) for one in streams] == [1] * STREAMS_MAX
        with pytest.raises(InferenceServerException, match="and this task reads one of them"):
            await anext(counts.aio_stream([1]))
        waiting, given_up = asyncio.ensure_future(gathered(counts)), asyncio.ensure_future(gathered(counts))
        while len(client._streams._waiting) < 2:
            await asyncio.sleep(0.01)
        given_up.cancel()
        assert not waiting.done()
        for one in streams:
            await one.aclose()
        assert await waiting == [1, 2]
        assert (await asyncio.gather(given_up, return_exceptions=True))[0].__class__ is asyncio.CancelledError

    asyncio.run(asyncio.wait_for(all_of_them(), PATIENCE_S))
    assert client._streams._taken == 0 and not client._streams._waiting


def test_a_thread_without_a_stream_waits_for_one(client):
    counts = client.model("counts")
    streams = [counts.stream([1]) for _ in range(STREAMS_MAX)]
    for one in streams:
        next(one)
    found = []
    other = threading.Thread(target=lambda: found.append([int(one.OUT[0]) for one in counts.stream([1])]))
    other.start()
    deadline = time.monotonic() + PATIENCE_S
    while not client._streams._waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not found
    streams.pop().close()
    other.join(PATIENCE_S)
    assert found == [[1, 2]]
    streams.clear()
    assert client._streams._taken == 0


def test_a_call_within_a_stream_for_asyncio_does_not_wait_for_its_connection(made_server):  # noqa: F811
    server = made_server(HangsUp)
    server.is_up = True
    with nerite.connect(f"unix:{server.path}") as made:
        server.rejection = (8, "64 sessions of user 1000 are open")

        async def infer():
            async for _ in made.model("counts").aio_stream([1]):
                await made.model("other").aio([2])

        with pytest.raises(ConnectionError, match="64 sessions of user 1000 are open"):
            asyncio.run(asyncio.wait_for(infer(), PATIENCE_S))
        server.rejection = None
        assert asyncio.run(gathered(made.model("counts"))) == [1, 2]


def test_there_are_connections_for_streams_and_for_calls():
    assert _client.CONNECTIONS_MAX - STREAMS_MAX > _client.THREADS_MAX


@pytest.fixture(params=["threads", "asyncio"])
def read(request):
    """The responses of a stream of either kind."""

    async def heard(model, *given, **named):
        return [one async for one in model.aio_stream(*given, **named)]

    if request.param == "asyncio":
        return lambda *given, **named: asyncio.run(heard(*given, **named))
    return lambda model, *given, **named: list(model.stream(*given, **named))


@pytest.mark.parametrize("way", ["session", "grpc"])
def test_a_stream_takes_what_a_call_takes(launcher, way, read):
    server = launcher.get("nerite")
    with connected(server, "session" if way == "session" else "inline", "grpc") as made:
        identity, counts = made.model("identity_fp32"), made.model("sequence_int32")
        (out,) = read(identity, {"INPUT0": [1.0]}, id="mine", parameters={"priority": 0}, outputs="OUTPUT0", timeout=30)
        assert (out.id, out.OUTPUT0.tolist()) == ("mine", [1])
        one = np.ones((1, 1), np.int32)
        with pytest.raises(InferenceServerException, match="(?i)start"):
            read(counts, one, sequence=81)
        for marks in (("start",), (), ("end",)):
            assert read(counts, one, sequence=(81, *marks))[0].OUTPUT0.tolist() == [[1]]
        with pytest.raises(TypeError, match="the id of a request is a str"):
            read(identity, [1.0], id=7)
        with pytest.raises(ValueError, match="more than 0 seconds"):
            read(identity, [1.0], timeout=0)
        with pytest.raises(TypeError, match="was given twice|has no input 'nope'"):
            read(identity, [1.0], nope=1)


@pytest.mark.parametrize("way", ["session", "grpc"])
def test_a_stream_ends_at_its_timeout(launcher, way, read):
    with connected(launcher.get("nerite"), "session" if way == "session" else "inline", "grpc") as made:
        slow = made.model("slow_fp32")
        read(slow, [0.0])
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer within 0.1 s; the request was given up"):
            read(slow, [1.0], timeout=0.1)
        assert time.monotonic() - started < 3
        assert read(slow, [2.0], timeout=30)[0].OUTPUT0.tolist() == [2]


class Drips(Counts):
    """Answers with a response each 20 ms, for ever."""

    def infer(self, connection, number, model):
        while True:
            self.answer(connection, number, 1, more=True)
            time.sleep(0.02)


def test_a_timeout_is_for_all_responses_together(made_server, read):  # noqa: F811
    with nerite.connect(f"unix:{made_server(Drips).path}") as made:
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="given up"):
            read(made.model("counts"), [1], timeout=0.3)
        assert 0.25 < time.monotonic() - started < 3


def test_waiting_for_a_place_counts(client):
    counts = client.model("counts")
    streams = [counts.stream([1]) for _ in range(STREAMS_MAX)]
    assert [int(next(one).OUT[0]) for one in streams] == [1] * STREAMS_MAX

    def late():
        with pytest.raises(TimeoutError, match="no answer within 0.1 s"):
            next(counts.stream([1], timeout=0.1))

        async def heard():
            async for _ in counts.aio_stream([1], timeout=0.1):
                pass

        with pytest.raises(TimeoutError, match="no answer within 0.1 s"):
            asyncio.run(heard())
        return "late"

    assert in_a_thread(late) == "late"
    streams.clear()
    assert client._streams._taken == 0 and not client._streams._waiting
