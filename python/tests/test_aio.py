"""Do calls for asyncio need no threads, and does a cancelled one leave nothing behind?"""

import asyncio
import gc
import os
import threading
import time

import numpy as np
import pytest
from test_call import connected, held, stopped  # noqa: F401 - held is a fixture
from test_call_lost import Counts, Holds, made_server  # noqa: F401 - a fixture
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _client, _connection, _loop_connection, _plain_loop_connection, _protobuf

CLIENT_CANCEL, SESSION_STATUS, SESSION_REPORT = 9, 10, 10
# Of the model slow_fp32.
SLOW_S = 0.8


@pytest.fixture
def client(launcher):
    with connected(launcher.get("nerite"), "session") as made:
        yield made


def of_loop(client) -> _loop_connection.LoopConnection:
    (connection,) = client._loops.values()
    return connection


async def report(client) -> dict:
    """What the server counts for the session of the running loop: leases and bytes, lent and idle, and inferences in flight."""
    answer, _ = await of_loop(client)._answered(SESSION_STATUS, b"", SESSION_REPORT, lambda *_: None)
    fields = dict(_protobuf.decode(answer))
    return {"leases": fields.get(1, 0), "bytes": fields.get(2, 0), "inferences": fields.get(4, 0)}


async def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def settled(client) -> dict:
    """The report, once every inference has been answered."""
    await until(lambda: not of_loop(client)._awaited, "inferences are never answered")
    gc.collect()
    # The garbage collector's returns go with the next request.
    of_loop(client)._return_held()
    return await report(client)


def test_hundreds_of_calls_wait_without_threads(client):
    identity, text = client.model("identity_fp32"), client.model("identity_bytes")

    async def one(number):
        out = await identity.aio(np.full(1 + number % 5, number, np.float32))
        word = await text.aio([f"{number}"])
        return out.OUTPUT0.tolist() == [number] * (1 + number % 5) and word.OUTPUT0.tolist() == [str(number).encode()]

    async def all_of_them():
        assert await one(0)
        threads = threading.active_count()
        most = [0]

        async def watched(number):
            fine = await one(number)
            most[0] = max(most[0], threading.active_count())
            return fine

        assert all(await asyncio.gather(*(watched(number) for number in range(600))))
        # Threads of earlier tests may end meanwhile, and close what they had.
        assert most[0] <= threads
        assert of_loop(client).slots <= _connection.SLOTS_MAX

    asyncio.run(all_of_them())


def test_a_thousand_cancelled_calls_leave_no_threads_slots_and_leases(client):
    slow, identity, text = client.model("slow_fp32"), client.model("identity_fp32"), client.model("identity_bytes")
    given = np.ones(8, np.float32)

    async def given_up(model, value, seconds):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.aio(value), seconds)

    async def all_of_them():
        for model, value in ((slow, given), (identity, given), (identity, given), (text, ["a"])):
            await model.aio(value)
        await asyncio.gather(*(given_up(slow, given, 0.001) for _ in range(50)))
        before, threads, descriptors = await settled(client), threading.active_count(), len(os.listdir("/proc/self/fd"))
        slots = of_loop(client).slots
        lent = of_loop(client).pool.census()
        for _ in range(20):
            await asyncio.gather(*(given_up(slow, given, 0.001) for _ in range(50)))
            # Others are served meanwhile.
            assert (await identity.aio(given)).OUTPUT0.tolist() == [1] * 8
        after = await settled(client)
        assert after["inferences"] == 0 and after["leases"] <= before["leases"] and after["bytes"] <= before["bytes"], (before, after)
        assert threading.active_count() <= threads
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert of_loop(client).slots <= slots + _loop_connection.IN_FLIGHT_MAX
        assert of_loop(client).pool.census()["slabs"] == lent["slabs"]
        assert all(one.is_idle() for plan in of_loop(client).plans.values() for one in plan.free)
        assert (await slow.aio(given)).OUTPUT0.tolist() == [1] * 8

    started = time.monotonic()
    asyncio.run(all_of_them())
    # Were the cancelled ones run all the same, that would take 1,050 times as long as one.
    assert time.monotonic() - started < 300 * SLOW_S


@pytest.mark.parametrize("model", ["identity_fp32", "identity_bytes"])
def test_a_call_may_be_cancelled_at_any_step(launcher, model):
    value = ["a text"] * 40 if model == "identity_bytes" else np.ones(40, np.float32)
    expected = [b"a text"] * 40 if model == "identity_bytes" else [1] * 40

    async def cancelled_after(called, steps):
        task = asyncio.ensure_future(called.aio(value))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    async def all_steps():
        counts = []
        for steps in range(60):
            # All steps of a first call: to connect, to describe the model, to borrow, to ask, and to prepare.
            with connected(launcher.get("nerite"), "session") as made:
                called = made.model(model)
                counts.append([await cancelled_after(called, steps) for _ in range(4)])
                assert (await called.aio(value)).OUTPUT0.tolist() == expected
                assert (await called.aio(value)).OUTPUT0.tolist() == expected
                found = await settled(made)
                assert found["inferences"] == 0 and found["leases"] <= 6, found
                assert of_loop(made).slots == sum(len(plan.slots) for plan in of_loop(made).plans.values())
        assert any(any(one) for one in counts)

    asyncio.run(all_steps())


def test_outputs_that_were_placed_for_a_cancelled_call_come_back(client):
    text = client.model("identity_bytes")
    words = ["a longer text " * 50] * 100

    async def infer():
        kept = (await text.aio(words)).OUTPUT0
        for _ in range(200):
            task = asyncio.ensure_future(text.aio(words))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        deadline = time.monotonic() + 30
        # The server keeps what came back for three seconds.
        while (found := await settled(client))["leases"] > (own := of_loop(client).pool.census()["slabs"] + len(of_loop(client)._spares)):
            assert time.monotonic() < deadline, (found, own)
            await asyncio.sleep(0.2)
        assert own <= 2 * _loop_connection.READS_MAX, "as many as were in flight at a time, for their inputs"
        assert kept.tolist() == [word.encode() for word in words]

    asyncio.run(infer())


def test_arguments_are_those_of_a_call(client, launcher):
    identity, simple = client.model("identity_fp32"), client.model("simple")
    pair = np.full((1, 16), 2, np.int32)

    async def infer():
        assert (await simple.aio(pair, pair, outputs=["OUTPUT0"])).keys() == {"OUTPUT0"}
        assert (await simple.aio({"INPUT0": pair, "INPUT1": pair})).OUTPUT1.tolist() == [[0] * 16]
        assert (await identity.aio([1.0], id="7", parameters={"a": 1})).id == "7"
        with pytest.raises(InferenceServerException, match="unexpected datatype"):
            await identity.aio(np.ones(3))
        with pytest.raises(TypeError, match="has no input 'nothing'"):
            await identity.aio(nothing=[1.0])
        with pytest.raises(InferenceServerException, match="nobody"):
            await client.model("nobody").aio([1.0])
        with stopped(launcher.get("nerite")), pytest.raises(TimeoutError, match="no answer within 0.05 s; the request was given up"):
            await identity.aio([1.0], timeout=0.05)
        single = client.model("simple", batch=False)
        assert (await single.aio(pair[0], pair[0])).OUTPUT0.shape == (16,)

    asyncio.run(infer())


def test_a_lent_buffer_is_read_only_until_a_cancelled_call_is_answered(client, launcher):
    identity = client.model("identity_fp32")

    async def infer():
        await identity.aio([1.0])
        mine = identity.input("INPUT0", [4])
        mine[:] = 5
        before = client.copied_bytes
        for number in range(3):
            mine[:] = number
            assert (await identity.aio()).OUTPUT0.tolist() == [number] * 4
        assert client.copied_bytes == before
        with stopped(launcher.get("nerite")):
            waiting = asyncio.ensure_future(identity.aio())
            await until(lambda: not mine.flags.writeable, "it is never sent")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert waiting.cancelled() and not mine.flags.writeable, "the model may read it"
        await until(lambda: mine.flags.writeable, "it stays read-only")
        mine[:] = 7
        assert (await identity.aio()).OUTPUT0.tolist() == [7] * 4

    asyncio.run(infer())


def test_each_loop_has_its_own_session_and_ended_loops_leave_none(client):
    identity = client.model("identity_fp32")

    async def infer(number):
        return (await identity.aio([number])).OUTPUT0.tolist()

    for number in range(10):
        assert asyncio.run(infer(number)) == [number]
        assert not client._loops and len(client._all) == 1, "its session ends with its loop"
    # A loop that is closed without a runner leaves its session until the next call.
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(infer(8)) == [8]
    loop.close()
    assert len(client._loops) == 1
    found = []
    threads = [threading.Thread(target=lambda at=at: found.append(asyncio.run(infer(at)))) for at in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert sorted(found) == [[at] for at in range(4)]
    assert asyncio.run(infer(9)) == [9] and not client._loops


def test_a_model_that_is_loaded_anew_is_prepared_anew(launcher):
    import nerite.http

    server = launcher.fresh("nerite", "--model-control-mode=explicit", "--load-model=identity_fp32")
    with connected(server, "session") as made, nerite.http.InferenceServerClient(server.http) as control:
        identity = made.model("identity_fp32")

        async def infer():
            for number in range(4):
                assert (await identity.aio([number])).OUTPUT0.tolist() == [number]
            await asyncio.to_thread(control.unload_model, "identity_fp32")
            with pytest.raises(InferenceServerException):
                await identity.aio([1.0])
            await asyncio.to_thread(control.load_model, "identity_fp32")
            for number in range(4):
                assert (await identity.aio([number])).OUTPUT0.tolist() == [number]

        # The client for HTTP is for the thread that made it, so loads are asked for from another one.
        control = _Elsewhere(server.http)
        asyncio.run(infer())


class _Elsewhere:
    """Loads and unloads models from any thread."""

    def __init__(self, url):
        self._url = url

    def _control(self, name, model):
        import nerite.http

        with nerite.http.InferenceServerClient(self._url) as control:
            getattr(control, name)(model)

    def load_model(self, model):
        self._control("load_model", model)

    def unload_model(self, model):
        self._control("unload_model", model)


def test_a_lost_server_fails_what_it_may_have_run_and_is_found_again(launcher, held):  # noqa: F811
    import servers

    first = launcher.fresh("nerite", held.flag)
    with connected(first, "session") as made:
        identity, model = made.model("identity_fp32"), made.model("held")

        async def infer():
            assert (await identity.aio([1.0])).OUTPUT0.tolist() == [1]
            held.hold()
            waiting = [asyncio.ensure_future(model.aio([1.0])) for _ in range(3)]
            deadline = time.monotonic() + 60
            while (await report(made))["inferences"] < 3:
                assert time.monotonic() < deadline, "the server never has them"
                await asyncio.sleep(0.01)
            first.process.process.kill()
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, ConnectionError) and "before it answered" in str(one) for one in outcomes), outcomes
            servers.stop(first.process)
            with pytest.raises(ConnectionError, match="no session at"):
                await identity.aio([2.0])
            launcher.fresh("nerite", f"--session-socket={first.session_socket}")
            assert (await identity.aio([3.0])).OUTPUT0.tolist() == [3]

        asyncio.run(infer())


def test_a_client_that_is_closed_ends_the_calls_of_its_loops(made_server):  # noqa: F811
    server = made_server(Notes)
    with nerite.connect(f"unix:{server.path}") as made:
        slow = made.model("slow")

        async def infer():
            await made.model("quick").aio([0])
            waiting = asyncio.ensure_future(slow.aio([1]))
            await asyncio.to_thread(server.wait, lambda: b"slow" in server.received)
            await asyncio.to_thread(made.close)
            with pytest.raises(ConnectionError):
                await waiting
            with pytest.raises(InferenceServerException, match="the client is closed"):
                await slow.aio([0])

        asyncio.run(infer())


@pytest.mark.parametrize("way", ["lease", "inline"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_other_protocols_need_no_threads_either(launcher, protocol, way, caplog, monkeypatch):
    # As in a process that had no other loop.
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    server = launcher.get("nerite")
    with nerite.connect(f"{protocol}://{server.url(protocol)}", buffers=way) as made:
        made._session_path, made._socket_path = None, server.session_socket if way == "lease" else None
        identity, text, slow = (made.model(name) for name in ("identity_fp32", "identity_bytes", "slow_fp32"))

        async def one(number):
            out = await identity.aio(np.full(1 + number % 5, number, np.float32), id=str(number))
            word = await text.aio([f"{number}"])
            return out.id == str(number) and out.OUTPUT0.tolist() == [number] * (1 + number % 5) and word.OUTPUT0.tolist() == [str(number).encode()]

        async def given_up():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(slow.aio([1.0]), 0.02)

        async def all_of_them():
            assert all(await asyncio.gather(*(one(number) for number in range(20))))
            threads = threading.active_count()
            assert all(await asyncio.gather(*(one(number) for number in range(100))))
            assert made.copied_bytes > 0
            assert (await made.model("identity_fp32").aio([1.0], timeout=30)).OUTPUT0.tolist() == [1]
            for _ in range(10):
                await asyncio.gather(*(given_up() for _ in range(10)))
            started = time.monotonic()
            assert (await slow.aio([2.0])).OUTPUT0.tolist() == [2]
            assert time.monotonic() - started < 30 * SLOW_S, "the server ran what nobody waited for"
            # Memory is borrowed in a thread of the loop's own, one at a time for each kind.
            assert threading.active_count() <= threads + (8 if way == "lease" else 1)
            with pytest.raises(InferenceServerException, match="nobody"):
                await made.model("nobody").aio([1.0])

        asyncio.run(all_of_them())
        assert not made._loops and made._executor is None
    assert not [one for one in caplog.records if "Unclosed" in one.getMessage()], "the client of the loop is closed with it"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_other_protocols_find_a_server_that_was_started_anew(launcher, protocol, monkeypatch):
    import servers

    # As in a process that had no other loop.
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    first = launcher.fresh("nerite", "--session-socket=off")
    ports = [int(first.url(one).rsplit(":", 1)[1]) for one in ("http", "grpc")]
    free_ports = servers.free_ports
    with nerite.connect(f"{protocol}://{first.url(protocol)}", buffers="inline") as made:
        identity = made.model("identity_fp32")

        async def infer():
            for number in range(3):
                assert (await identity.aio([number])).OUTPUT0.tolist() == [number]
            kept = (await identity.aio([1.0, 2.0])).OUTPUT0
            (connection,) = made._loops.values()
            await asyncio.to_thread(servers.stop, first.process)
            with pytest.raises((ConnectionError, InferenceServerException), match="the server has gone|UNAVAILABLE"):
                await identity.aio([2.0])
            monkeypatch.setattr(servers, "free_ports", lambda count: [*ports, *free_ports(count - len(ports))])
            # On this thread, because a server ends with the thread that started it.
            second = launcher.fresh("nerite", "--session-socket=off")
            assert second.url(protocol) == first.url(protocol)
            for number in range(3):
                assert (await identity.aio([number, 4.0], timeout=30)).OUTPUT0.tolist() == [number, 4]
            assert kept.tolist() == [1, 2]
            assert list(made._loops.values()) == [connection], "the loop keeps its client"

        asyncio.run(infer())
        assert made._executor is None, "no thread waited"
        assert identity([5.0]).OUTPUT0.tolist() == [5]


def test_a_second_loop_over_grpc_waits_in_threads(launcher, monkeypatch):
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    server = launcher.get("nerite")
    with nerite.connect(f"grpc://{server.grpc}", buffers="inline") as made:
        made._session_path = None

        async def infer():
            return (await made.model("identity_fp32").aio([1.0])).OUTPUT0.tolist()

        assert asyncio.run(infer()) == [1] and made._executor is None
        assert asyncio.run(infer()) == [1] and made._executor is not None


def test_options_that_only_threads_know_go_through_threads(launcher):
    server = launcher.get("nerite")
    with nerite.connect(f"http://{server.http}", buffers="region") as made:
        made._session_path = None

        async def infer():
            return (await made.model("identity_fp32").aio([1.0])).OUTPUT0.tolist()

        assert asyncio.run(infer()) == [1]
        assert not made._loops and made._executor is not None


class Notes(Counts):
    """Notes what is cancelled, and answers inferences of the model ``slow`` only when it is told to."""

    def __init__(self, path):
        super().__init__(path)
        self.cancelled, self.open = [], []

    def _take(self, connection, packet):
        fields = dict(_protobuf.decode(packet))
        if CLIENT_CANCEL in fields:
            with self.changed:
                self.cancelled.append((fields.get(1, 0), dict(_protobuf.decode(fields[CLIENT_CANCEL])).get(1)))
                self.changed.notify_all()
        else:
            super()._take(connection, packet)

    def infer(self, connection, number, model):
        if model == b"several":
            self.answer(connection, number, 1, more=True)
            self.answer(connection, number, 2)
        elif model == b"slow":
            self.open.append((connection, number))
        else:
            super().infer(connection, number, model)


def test_the_server_is_told_and_a_late_answer_is_nobody_elses(made_server):  # noqa: F811
    server = made_server(Notes)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, quick, several = made.model("slow"), made.model("quick"), made.model("several")

        async def infer():
            for sent in range(1, 4):
                given_up = asyncio.ensure_future(slow.aio([1]))
                await asyncio.to_thread(server.wait, lambda: len(server.received) == sent)
                given_up.cancel()
            await asyncio.to_thread(server.wait, lambda: len(server.cancelled) == 3)
            assert server.cancelled == [(0, number) for _, number in server.open], "no answer is wanted to it"
            waiting = asyncio.ensure_future(quick.aio([1]))
            for connection, number in server.open:
                server.answer(connection, number, 99)
            assert (await waiting).OUT.tolist() == [7]
            await until(lambda: not of_loop(made)._awaited, "late answers are not noted")
            with pytest.raises(InferenceServerException, match="several responses; ask it by .stream"):
                await several.aio([1])
            await until(lambda: not of_loop(made)._awaited, "the rest is not read")
            assert (await quick.aio([1])).OUT.tolist() == [7]

        asyncio.run(infer())
    assert len(server.sockets) == 2, "one for the client, one for the loop"


def test_no_more_calls_are_in_flight_than_a_session_may_have(made_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_loop_connection, "IN_FLIGHT_MAX", 4)
    server = made_server(Notes)
    with nerite.connect(f"unix:{server.path}") as made:
        slow = made.model("slow")

        async def infer():
            waiting = [asyncio.ensure_future(slow.aio([1])) for _ in range(6)]
            await asyncio.to_thread(server.wait, lambda: len(server.open) == 4)
            # A cancelled one has its place until it is answered, and one that waits for a place goes at once.
            waiting[0].cancel(), waiting[5].cancel()
            await asyncio.to_thread(server.wait, lambda: len(server.cancelled) == 1)
            await asyncio.sleep(0.05)
            assert len(server.open) == 4
            server.answer(*server.open[0], 1)
            await asyncio.to_thread(server.wait, lambda: len(server.received) == 5)
            for one in server.open[1:]:
                server.answer(*one, 2)
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [one.OUT.tolist() for one in outcomes[1:5]] == [[2]] * 4

        asyncio.run(infer())


def test_without_room_for_a_session_calls_wait_in_threads(made_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_client, "FULL_S", 0.2)
    server = made_server(Counts)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        server.rejection = (8, "64 sessions of user 1000 are open")

        async def infer():
            outcomes = await asyncio.gather(*(counts.aio([1]) for _ in range(5)))
            assert [one.OUT.tolist() for one in outcomes] == [[7]] * 5 and not made._loops
            server.rejection = None
            await asyncio.sleep(0.3)
            assert (await counts.aio([1])).OUT.tolist() == [7] and len(made._loops) == 1

        asyncio.run(infer())


def test_calls_in_threads_and_loops_do_not_wait_for_each_other(made_server):  # noqa: F811
    server = made_server(Holds)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, quick = made.model("slow"), made.model("quick")
        waiting = [slow.submit([1]) for _ in range(4)]
        server.wait(lambda: server.received.count(b"slow") == 4)

        async def infer():
            return (await quick.aio([2])).OUT.tolist()

        assert asyncio.run(infer()) == [7]
        server.go_on.set()
        assert [one.result(30).OUT.tolist() for one in waiting] == [[7]] * 4


def test_a_fork_has_connections_of_its_own(client):
    identity = client.model("identity_fp32")

    async def infer(number):
        return (await identity.aio([number])).OUTPUT0.tolist()

    assert asyncio.run(infer(1)) == [1]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if asyncio.run(infer(2)) == [2] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(infer(3)) == [3]


class DescribesLate(Counts):
    """Takes its time to describe a model."""

    def _take(self, connection, packet):
        if 16 in dict(_protobuf.decode(packet)):
            time.sleep(0.05)
        super()._take(connection, packet)


def test_a_model_may_be_forgotten_while_a_call_is_made(made_server, monkeypatch):  # noqa: F811
    server = made_server(DescribesLate)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")
        call_with = counts._call_with

        def forgotten(*given):
            # Another thread has just heard that the model was loaded anew.
            counts._metadata, counts._dtypes = None, {}
            return call_with(*given)

        monkeypatch.setattr(counts, "_call_with", forgotten)

        async def infer():
            assert [(await counts.aio([1])).OUT.tolist() for _ in range(2)] == [[7]] * 2

        asyncio.run(infer())
        assert [[int(number) for number in one.OUT] for one in counts.stream([1])] == [[7]]


def test_a_loop_may_begin_while_another_looks_for_ended_ones(made_server):  # noqa: F811
    server = made_server(Counts)
    with nerite.connect(f"unix:{server.path}") as made:

        class Begins:
            """A loop during whose check another thread's loop begins."""

            def is_closed(self):
                made._loops.setdefault(Other(), None)
                return True

        class Other:
            def is_closed(self):
                return False

        made._loops[Begins()] = None

        async def infer():
            return (await made.model("counts").aio([1])).OUT.tolist()

        assert asyncio.run(infer()) == [7]
        assert [type(one) for one in made._loops] == [Other]
        made._loops.clear()


@pytest.mark.parametrize("where", ["its loop", "a thread"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_is_closed_closes_those_of_its_loops(launcher, protocol, where, monkeypatch):
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    server, closed = launcher.get("nerite"), []
    with nerite.connect(f"{protocol}://{server.url(protocol)}", buffers="inline") as made:
        made._session_path = None

        async def infer():
            await made.model("identity_fp32").aio([1.0])
            inner = of_loop(made)._client
            close = inner.close

            async def noted():
                await close()
                closed.append(asyncio.get_running_loop())

            inner.close = noted
            if where == "its loop":
                made.close()
            else:
                await asyncio.to_thread(made.close)
            await until(lambda: closed, "it is never closed")
            assert closed == [asyncio.get_running_loop()]
            with pytest.raises(InferenceServerException, match="the client is closed"):
                await made.model("identity_fp32").aio([1.0])

        asyncio.run(infer())
    assert len(closed) == 1 and not made._loops, "it is closed once"


def test_a_client_that_is_closed_just_before_its_loop_ends_closes_that_of_the_loop(launcher, caplog):
    server = launcher.get("nerite")
    with nerite.connect(f"http://{server.http}", buffers="inline") as made:
        made._session_path = None

        async def infer():
            await made.model("identity_fp32").aio([1.0])
            kept.append(of_loop(made))
            made.close()

        kept = []
        asyncio.run(infer())
        assert kept[0]._is_finished
    gc.collect()
    assert not [one for one in caplog.records if one.name == "asyncio"], caplog.text


class BeginsLate(Counts):
    """Welcomes further sessions when it is told to."""

    def __init__(self, path):
        super().__init__(path)
        self.may_begin, self.waiting = threading.Event(), 0
        self.may_begin.set()

    def _take(self, connection, packet):
        if 3 in dict(_protobuf.decode(packet)):
            with self.changed:
                self.waiting += 1
                self.changed.notify_all()
            self.may_begin.wait(60)
        super()._take(connection, packet)


def test_a_session_that_is_opened_while_the_client_is_closed_is_closed_too(made_server):  # noqa: F811
    server = made_server(BeginsLate)
    with nerite.connect(f"unix:{server.path}") as made:
        counts = made.model("counts")

        async def infer():
            server.may_begin.clear()
            waiting = asyncio.ensure_future(counts.aio([1]))
            await asyncio.to_thread(server.wait, lambda: server.waiting == 2)
            closing = asyncio.ensure_future(asyncio.to_thread(made.close))
            await until(lambda: made._closed, "it is never closed")
            server.may_begin.set()
            with pytest.raises(InferenceServerException, match="the client is closed"):
                await waiting
            await closing
            assert not made._loops and not server.received
            await asyncio.to_thread(server.wait, lambda: server.ended == 2)

        asyncio.run(infer())


def test_no_session_is_opened_once_the_client_is_closed(made_server):  # noqa: F811
    server = made_server(Counts)
    with nerite.connect(f"unix:{server.path}") as made:

        async def infer():
            waiting = asyncio.ensure_future(made.model("counts").aio([1]))
            await asyncio.sleep(0)
            assert made._loops, "the session is about to be opened"
            made.close()
            with pytest.raises(InferenceServerException, match="the client is closed"):
                await waiting
            assert not made._loops

        asyncio.run(infer())
    assert len(server.sockets) == 1


def test_a_client_for_http_that_is_opened_while_the_client_is_closed_is_closed_too(launcher, monkeypatch):
    server, opened = launcher.get("nerite"), []
    with nerite.connect(f"http://{server.http}", buffers="inline") as made:
        made._session_path = None
        open_it = _plain_loop_connection.PlainLoopConnection.open

        async def closed_meanwhile(connection):
            opened.append(connection)
            await open_it(connection)
            await asyncio.to_thread(made.close)

        monkeypatch.setattr(_plain_loop_connection.PlainLoopConnection, "open", closed_meanwhile)

        async def infer():
            with pytest.raises(InferenceServerException, match="the client is closed"):
                await made.model("identity_fp32").aio([1.0])
            assert opened[0]._client._stub.closed and not made._loops

        asyncio.run(infer())


def test_a_loop_that_was_closed_with_calls_in_flight_does_not_fail_those_of_another(made_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_loop_connection, "IN_FLIGHT_MAX", 2)
    server = made_server(Notes)
    with nerite.connect(f"unix:{server.path}") as made:
        slow, loop = made.model("slow"), asyncio.new_event_loop()

        async def infer():
            waiting = [asyncio.ensure_future(slow.aio([1])) for _ in range(4)]
            await asyncio.to_thread(server.wait, lambda: len(server.open) == 2)
            return waiting

        waiting = loop.run_until_complete(infer())
        loop.run_until_complete(loop.shutdown_default_executor())
        # Two are in flight, and two wait for a place.
        loop.close()
        assert asyncio.run(made.model("quick").aio([1])).OUT.tolist() == [7]
        assert loop not in made._loops
        for one in waiting:
            # They are never done.
            one._log_destroy_pending = False
