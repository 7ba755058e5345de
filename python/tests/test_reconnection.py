"""Does a call over gRPC wait for a server that was started anew, and is it sent only once?"""

import asyncio
import concurrent.futures
import contextlib
import pickle
import time

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc
from test_call import held  # noqa: F401 - a fixture
from tritonclient.grpc import KeepAliveOptions, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _plain_loop_connection, _reconnection


def made_anew(launcher, monkeypatch, *flags):
    """A server, and a function that starts another one at its address."""
    # As in a process that had no other loop.
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    first = launcher.fresh("nerite", "--session-socket=off", *flags)
    ports = [int(first.url(one).rsplit(":", 1)[1]) for one in ("http", "grpc")]
    free_ports = servers.free_ports

    def start():
        with monkeypatch.context() as patch:
            patch.setattr(servers, "free_ports", lambda count: [*ports, *free_ports(count - len(ports))])
            assert launcher.fresh("nerite", "--session-socket=off", *flags).grpc == first.grpc

    return first, start


@pytest.fixture
def restarted(launcher, monkeypatch):
    return made_anew(launcher, monkeypatch)


def answered(call):
    """The answer of a call that waits for a channel. If the channel connects between the call's failure and the client's look at it, the client cannot
    know whether the call was sent, and does not send it again. The next call finds the channel connected. One that does not wait would fail again."""
    try:
        return call()
    except InferenceServerException as error:
        assert "failed to connect" in str(error)
    return call()


@pytest.mark.parametrize("way", ["session", "http", "grpc"])
def test_where_there_is_no_server_each_transport_raises_the_same_error(launcher, way, monkeypatch):
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    monkeypatch.setattr(_reconnection, "RECONNECT_S", 0.5)
    server = launcher.fresh("nerite")
    address = f"unix:{server.session_socket}" if way == "session" else f"{way}://{server.url(way)}"
    with nerite.connect(address, **({} if way == "session" else {"buffers": "inline"})) as made:
        identity, unknown = made.model("identity_fp32"), made.model("identity_int32")
        assert identity([1.0]).OUTPUT0.tolist() == [1]
        servers.stop(server.process)
        for _ in range(2):
            for call in (lambda: identity([2.0]), lambda: unknown([2]), lambda: identity.batch([[1.0]] * 3), lambda: identity.submit([2.0]).result(), lambda: asyncio.run(identity.aio([2.0]))):
                with pytest.raises(ConnectionError) as raised:
                    call()
                if way == "grpc":
                    assert isinstance(raised.value, InferenceServerException)
                    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("way", ["region", "inline"])
def test_a_call_after_a_restart_waits_for_the_channel(restarted, way):
    first, start = restarted
    with nerite.connect(f"grpc://{first.grpc}", buffers=way) as made:
        identity = made.model("identity_fp32")
        assert identity([1.0]).OUTPUT0.tolist() == [1]
        servers.stop(first.process)
        for _ in range(2):
            # The channel tries later after each failure.
            with pytest.raises(InferenceServerException, match="failed to connect"):
                identity([2.0])
        start()
        assert answered(lambda: identity([3.0])).OUTPUT0.tolist() == [3]
        assert [one.OUTPUT0.tolist() for one in identity.batch([[4.0], [5.0]])] == [[4], [5]]
        assert identity([6.0, 7.0]).OUTPUT0.tolist() == [6, 7]


def test_a_call_for_asyncio_after_a_restart_waits_for_the_channel(restarted):
    first, start = restarted
    with nerite.connect(f"grpc://{first.grpc}", buffers="inline") as made:
        identity = made.model("identity_fp32")

        async def infer():
            assert (await identity.aio([1.0])).OUTPUT0.tolist() == [1]
            await asyncio.to_thread(servers.stop, first.process)
            with pytest.raises(InferenceServerException, match="failed to connect"):
                await identity.aio([2.0])
            with pytest.raises(TimeoutError, match="no answer within 0.2 s"):
                await identity.aio([2.0], timeout=0.2)
            start()

            async def answered_once(number: int):
                # As in `answered`.
                try:
                    return await identity.aio([number])
                except InferenceServerException as error:
                    assert "failed to connect" in str(error)
                return await identity.aio([number])

            found = await asyncio.gather(*(answered_once(number) for number in range(8)))
            assert [one.OUTPUT0.tolist() for one in found] == [[number] for number in range(8)]

        asyncio.run(infer())


def test_a_stream_after_a_restart_waits_for_the_channel(restarted):
    first, start = restarted
    with nerite.connect(f"grpc://{first.grpc}", buffers="inline") as made:
        identity = made.model("identity_fp32")
        assert [one.OUTPUT0.tolist() for one in identity.stream([1.0])] == [[1]]
        servers.stop(first.process)
        with pytest.raises(ConnectionError, match="failed to connect"):
            next(identity.stream([2.0]))
        start()
        assert [one.OUTPUT0.tolist() for one in answered(lambda: list(identity.stream([3.0])))] == [[3]]


def test_the_wait_for_a_server_that_is_gone_is_bounded(restarted):
    first, _ = restarted
    with nerite.connect(f"grpc://{first.grpc}", buffers="inline") as made:
        identity = made.model("identity_fp32")
        identity([1.0])
        servers.stop(first.process)
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="no answer within 0.3 s") as late:
            identity([2.0], timeout=0.3)
        assert "failed to connect" in str(late.value.__cause__)
        assert time.monotonic() - started < _reconnection.RECONNECT_S, "its own timeout is shorter"
        started = time.monotonic()
        found = identity.batch([[1.0]] * 8, return_errors=True)
        assert all("failed to connect" in str(one) for one in found)
        assert time.monotonic() - started < 2 * _reconnection.RECONNECT_S, "they wait once, together"


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("repeats", [False, True], ids=["once", "repeated"])
def test_a_call_whose_server_dies_is_sent_again_only_if_that_was_asked_for(launcher, monkeypatch, held, repeats, is_async):  # noqa: F811
    # A busy machine starts the second server later than a client waits for it.
    monkeypatch.setattr(_reconnection, "RECONNECT_S", 60)
    first, start = made_anew(launcher, monkeypatch, held.flag)
    with nerite.connect(f"grpc://{first.grpc}", buffers="inline", repeat_lost=repeats) as made:
        model = made.model("held")
        model(np.zeros(3, np.float32))
        held.hold()

        def infer():
            if is_async:
                return asyncio.run(model.aio(np.ones(3, np.float32)))
            return model(np.ones(3, np.float32))

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            future = threads.submit(infer)
            held.wait_until_begun()
            first.process.process.kill()
            first.process.process.wait()
            held.go_on()
            start()
            if repeats:
                assert future.result(60).OUTPUT0.tolist() == [1] * 3
            else:
                with pytest.raises(ConnectionError, match="the server closed the connection before it answered"):
                    future.result(60)
        assert model(np.full(3, 2, np.float32)).OUTPUT0.tolist() == [2] * 3


class Proxy(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server whose model asks another server, which is away."""

    def __init__(self, text):
        self.runs = 0
        self.text = f"{text}; last error: of the model"

    def ModelMetadata(self, request, context):
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="IN", datatype="FP32", shape=[-1])
        return service_pb2.ModelMetadataResponse(name="proxy", inputs=[tensor], outputs=[tensor])

    def ModelInfer(self, request, context):
        self.runs += 1
        context.abort(grpc.StatusCode.UNAVAILABLE, self.text)


@contextlib.contextmanager
def serving(proxy):
    made = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(proxy, made)
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        made.stop(0).wait()


@pytest.mark.parametrize("text", [_reconnection.UNSENT, *_reconnection.CUT_OFF])
def test_a_model_that_answers_with_a_text_of_the_library_runs_once(monkeypatch, text):
    monkeypatch.setattr(_plain_loop_connection, "_loop_of_grpc", None)
    proxy = Proxy(text)
    with serving(proxy) as url, nerite.connect(url, buffers="inline", repeat_lost=True) as made:
        model = made.model("proxy")
        with pytest.raises(InferenceServerException, match="of the model"):
            model([1.0])
        assert proxy.runs == 1

        async def infer():
            with pytest.raises(InferenceServerException, match="of the model"):
                await model.aio([1.0])

        asyncio.run(infer())
        assert proxy.runs == 2


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"grpc.max_send_message_length": 2**31 - 1, "grpc.keepalive_timeout_ms": 20000, **dict(_reconnection.BACKOFF_MS)}),
        ({"keepalive_options": KeepAliveOptions(keepalive_timeout_ms=7)}, {"grpc.keepalive_timeout_ms": 7}),
        ({"channel_args": [("grpc.max_reconnect_backoff_ms", 9)]}, {"grpc.max_reconnect_backoff_ms": 9, "grpc.initial_reconnect_backoff_ms": 100}),
    ],
)
def test_the_channel_keeps_what_the_program_asks_for(given, kept):
    found = dict(_reconnection.with_backoff(given)["channel_args"])
    assert {name: found[name] for name in kept} == kept
    if "channel_args" in given:
        assert len(found) == 2


def test_the_default_arguments_are_those_of_tritonclient(monkeypatch):
    seen, make = [], grpc.insecure_channel
    monkeypatch.setattr(grpc, "insecure_channel", lambda url, options: seen.append(options) or make(url, options))
    tritonclient.grpc.InferenceServerClient("127.0.0.1:1").close()
    assert dict(seen[0]) == dict(_reconnection._default_arguments(KeepAliveOptions()))


def test_values_are_not_lost_over_a_restart(restarted):
    first, start = restarted
    with nerite.connect(f"grpc://{first.grpc}", buffers="inline") as made:
        identity = made.model("identity_fp32")
        kept = identity(np.arange(4, dtype=np.float32)).OUTPUT0
        servers.stop(first.process)
        start()
        # The channel noticed the end of the connection meanwhile, and connects at once.
        assert answered(lambda: identity([8.0])).OUTPUT0.tolist() == [8]
        assert kept.tolist() == [0, 1, 2, 3]
