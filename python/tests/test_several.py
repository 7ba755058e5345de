"""What becomes of prepared calls whose answer is not the expected one: several, none, or an error?"""

import asyncio
import itertools

import numpy as np
import pytest
from test_aio import Notes, of_loop, until
from test_call_lost import made_server  # noqa: F401 - a fixture
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _connection, _messages, _protobuf

SEVERAL = "the model gives several responses; ask it by .stream"
CLIENT_PREPARE, CLIENT_CALL, CLIENT_RELEASE = 13, 14, 15
# What a model may answer other than a number: nothing, or an error. Stale and too small are the server's errors.
NOTHING, FAILED, STALE, SMALL = "nothing", "failed", "stale", "small"
ERRORS = {FAILED: (2, "it failed"), STALE: (9, "the inference is not prepared any more"), SMALL: (3, "the memory is too small to hold the results")}


class Prepares(Notes):
    """Answers each call of a prepared inference with the next of ``values``: a list of responses, or None if the test answers it."""

    def __init__(self, path):
        super().__init__(path)
        self.handles = itertools.count(1)
        # Of each call: its connection, its id and its handle.
        self.called: list[tuple] = []
        self.values: list = []

    def _take(self, connection, packet):
        fields = dict(_protobuf.decode(packet))
        number = fields.get(1, 0)
        if CLIENT_PREPARE in fields:
            self.say(connection, number, (12, _protobuf.encode([(1, next(self.handles))])))
        elif CLIENT_CALL in fields:
            content = dict(_protobuf.decode(fields[CLIENT_CALL]))
            further, at = content.get(2, b""), 0
            handles = [content[1]]
            while at < len(further):
                handle, at = _protobuf.read_varint(further, at)
                handles.append(handle)
            calls = [(connection, number + index, handle) for index, handle in enumerate(handles)]
            with self.changed:
                self.called += calls
                self.changed.notify_all()
            for one, values in [(one, self.values.pop(0)) for one in calls]:
                for index, value in enumerate(values or ()):
                    self.respond(*one[:2], value, more=index + 1 < len(values))
        elif CLIENT_RELEASE not in fields:
            super()._take(connection, packet)

    def infer(self, connection, number, model):
        self.respond(connection, number, 7)

    def respond(self, connection, number, value, more=False):
        output = _protobuf.encode([(1, "OUT"), (2, "INT32"), (3, _messages.packed([1]))])
        answer = (9, b"")
        if value in ERRORS:
            code, text = ERRORS[value]
            answer = (4, _protobuf.encode([(1, code), (2, text)]))
        elif value != NOTHING:
            answer = (9, _protobuf.encode([(1, _protobuf.encode([(1, "counts"), (5, output), (6, np.int32(value).tobytes())]))]))
        self.say(connection, number, *([(3, 1)] if more else []), answer)


@pytest.fixture
def server(made_server):  # noqa: F811
    return made_server(Prepares)


@pytest.fixture
def counts(server):
    with nerite.connect(f"unix:{server.path}") as made:
        yield made.model("counts")


@pytest.mark.parametrize("values, error", [([1, 2], SEVERAL), ([1, NOTHING], SEVERAL), ([FAILED, 2], "it failed"), ([NOTHING], "gave no response")])
def test_the_next_call_does_not_get_what_is_left(server, counts, values, error):
    assert counts(np.array([1], np.int32)).OUT.tolist() == [7]
    for is_quick in (False, True):
        server.values = [[100], values] if is_quick else [values]
        if is_quick:
            assert counts(np.array([1], np.int32)).OUT.tolist() == [100]
        with pytest.raises(InferenceServerException, match=error):
            counts(np.array([1], np.int32))
        if len(values) > 1:
            assert counts(np.array([1], np.int32)).OUT.tolist() == [7], "it is learned anew on another connection"
        server.values = [[101], [102]]
        assert [counts(np.array([1], np.int32)).OUT.tolist() for _ in range(2)] == [[101], [102]]


def test_the_next_batch_does_not_get_what_is_left(server, counts):
    requests = [np.array([at], np.int32) for at in range(3)]
    for is_quick in (False, True):
        server.values = []
        assert [one.OUT.tolist() for one in counts.batch(requests[:1])] == [[7]]
        if is_quick:
            server.values = [[1], [2], [3]]
            assert [one.OUT.tolist() for one in counts.batch(requests)] == [[1], [2], [3]]
        server.values = [[11], [12, 22], [13]]
        found = counts.batch(requests, return_errors=True)
        assert [found[0].OUT.tolist(), found[2].OUT.tolist()] == [[11], [13]]
        with pytest.raises(InferenceServerException, match=SEVERAL):
            raise found[1]
        assert [one.OUT.tolist() for one in counts.batch(requests[:1])] == [[7]], "it is learned anew on another connection"
        server.values = [[21], [22], [23]]
        assert [one.OUT.tolist() for one in counts.batch(requests)] == [[21], [22], [23]]
        counts._client._drop_free()


def slots_of(connection) -> list[_connection.Slot]:
    """The free slots."""
    (plan,) = connection.plans.values()
    return list(plan.free)


@pytest.mark.parametrize("first, error", [(1, SEVERAL), (FAILED, "it failed")])
def test_a_slot_is_used_again_after_the_last_answer_only(server, counts, first, error):
    async def infer():
        assert (await counts.aio([1])).OUT.tolist() == [7]
        server.values = [None]
        waiting = asyncio.ensure_future(counts.aio([1]))
        await asyncio.to_thread(server.wait, lambda: server.called)
        connection, number, handle = server.called[0]
        server.respond(connection, number, first, more=True)
        with pytest.raises(InferenceServerException, match=error):
            await waiting
        await asyncio.to_thread(server.wait, lambda: server.cancelled == [(0, number)])
        server.values = [[5]]
        assert (await counts.aio([1])).OUT.tolist() == [5]
        assert server.called[1][2] != handle, "the model may still write to its memory"
        server.respond(connection, number, 2, more=True)
        server.respond(connection, number, 3)
        await until(lambda: not of_loop(counts._client)._awaited, "the rest is not read")
        free = slots_of(of_loop(counts._client))
        assert sorted(one.handle for one in free) == [1, 2], "each once"
        server.values = [[8], [9]]
        found = await asyncio.gather(counts.aio([1]), counts.aio([1]))
        assert [one.OUT.tolist() for one in found] == [[8], [9]]
        assert sorted(handle for _, _, handle in server.called[2:]) == [1, 2]

    asyncio.run(infer())


def test_a_call_that_is_cancelled_after_its_first_answer_keeps_its_slot_until_the_last(server, counts):
    async def infer():
        assert (await counts.aio([1])).OUT.tolist() == [7]
        server.values = [None]
        waiting = asyncio.ensure_future(counts.aio([1]))
        await asyncio.to_thread(server.wait, lambda: server.called)
        own = of_loop(counts._client)
        connection, number, _ = server.called[0]
        # The answer comes, and the call is cancelled before it goes on.
        own._heard({1: number, 3: 1, 9: b""}, [])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not slots_of(own), "the model may still write to its memory"
        await asyncio.to_thread(server.wait, lambda: server.cancelled == [(0, number)])
        server.respond(connection, number, 2)
        await until(lambda: not own._awaited, "the rest is not read")
        assert [one.handle for one in slots_of(own)] == [1]

    asyncio.run(infer())


def test_a_model_that_gives_no_response_keeps_its_slot(server, counts):
    async def infer():
        assert (await counts.aio([1])).OUT.tolist() == [7]
        server.values = [[NOTHING], [3]]
        with pytest.raises(InferenceServerException, match="the model gave no response; ask it by .stream"):
            await counts.aio([1])
        assert (await counts.aio([1])).OUT.tolist() == [3]
        assert not server.cancelled and [handle for _, _, handle in server.called] == [1, 1]

    asyncio.run(infer())


@pytest.mark.parametrize("is_learned_anew", [False, True])
def test_a_plan_may_be_gone_when_its_output_turns_out_too_large(server, counts, is_learned_anew):
    async def infer():
        assert (await counts.aio([1])).OUT.tolist() == [7]
        server.values = [None, None]
        stale, small = [asyncio.ensure_future(counts.aio([1])) for _ in range(2)]
        await asyncio.to_thread(server.wait, lambda: len(server.called) == 2)
        (stale_connection, stale_number, _), (connection, number, _) = server.called
        server.respond(stale_connection, stale_number, STALE)
        if is_learned_anew:
            assert (await stale).OUT.tolist() == [7]
        server.respond(connection, number, SMALL)
        assert [one.OUT.tolist() for one in await asyncio.gather(stale, small)] == [[7], [7]]
        own = of_loop(counts._client)
        (plan,) = own.plans.values()
        assert plan.answer is not None, "it is another plan, which says nothing of the old one"
        server.values = [[4]]
        assert (await counts.aio([1])).OUT.tolist() == [4]
        assert own.slots == len(plan.slots) == 1

    asyncio.run(infer())


def test_a_plan_whose_output_is_too_large_is_not_prepared_again(server, counts):
    async def infer():
        assert (await counts.aio([1])).OUT.tolist() == [7]
        server.values = [None, None]
        both = [asyncio.ensure_future(counts.aio([1])) for _ in range(2)]
        await asyncio.to_thread(server.wait, lambda: len(server.called) == 2)
        for connection, number, _ in server.called:
            server.respond(connection, number, SMALL)
        assert [one.OUT.tolist() for one in await asyncio.gather(*both)] == [[7], [7]]
        assert (await counts.aio([1])).OUT.tolist() == [7]
        assert len(server.called) == 2 and of_loop(counts._client).slots == 0

    asyncio.run(infer())
