"""Do outputs whose places the server chooses arrive whole, by every way the same, and do their leases go back?"""

import asyncio
import contextlib
import gc
import importlib
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request

import catalogue
import meanwhile
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from peers import module
from test_call import held  # noqa: F401 - a fixture
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

import nerite.grpc
import nerite.grpc.aio
import nerite.http
from nerite import _datatypes, _session
from nerite._session import Session
from nerite._transports import Refused

COUNT = 41


@pytest.fixture
def server(launcher):
    return launcher.get("nerite")


@pytest.fixture
def client(server, protocol):
    with server.client(protocol, buffers="lease") as found:
        yield found


def raw_tensor(datatype: str) -> bytes:
    """The bytes of COUNT elements, with the corners of their datatype among them, NaNs and all."""
    if datatype == "BYTES":
        corners = [b"", b"\0", b"plain", "größe".encode(), b"\xff\xfe", b"x" * 5000]
        return b"".join(len(one).to_bytes(4, "little") + one for one in (corners[i % 6] for i in range(COUNT)))
    size = {"BF16": 2}.get(datatype) or np.dtype(triton_to_np_dtype(datatype)).itemsize
    raw = np.random.default_rng(11).integers(0, 256, COUNT * size, dtype=np.uint8)
    return (raw % 2 if datatype == "BOOL" else raw).tobytes()


def raw_output(result, protocol: str, name: str = "OUTPUT0") -> bytes:
    """An output as the server wrote it, wherever that was."""
    block = result._placed.get(name)
    if block is not None:
        shape, datatype = result._described(name)
        size = _datatypes.fixed_byte_size(shape, datatype) or _datatypes.walk_elements(block.array().data, COUNT)[1]
        return block.array()[:size].tobytes()
    if protocol == "grpc":
        return result.get_response().raw_output_contents[0]
    start = result._output_name_to_buffer_map[name]
    size = result.get_output(name)["parameters"]["binary_data_size"]
    return bytes(result._buffer[start : start + size])


def identity_of(client, protocol, datatype, raw, output):
    """The identity model's output for ``raw``, through one handle."""
    m = module(protocol)
    with client.register_input_tensor_with_shared_memory([COUNT], datatype, len(raw) if datatype == "BYTES" else None) as one:
        one.copy_from(raw)
        given = m.InferInput("INPUT0", [COUNT], datatype).set_shared_memory_request(one)
        return client.infer(f"identity_{datatype.lower()}", [given], outputs=[output])


@pytest.mark.parametrize("datatype", list(catalogue.DATATYPES))
def test_every_way_gives_the_same_bytes(server, protocol, datatype):
    m, raw = module(protocol), raw_tensor(datatype)
    known = m.InferOutput("OUTPUT0", [COUNT], datatype, len(raw) if datatype == "BYTES" else None)
    unknown = m.InferOutput("OUTPUT0")
    for way, output, is_placed in [
        ("inline", known, False),
        ("region", known, True),
        ("lease", known, True),
        ("lease", unknown, True),
        ("inline", unknown, False),
        ("region", unknown, False),
    ]:
        with server.client(protocol, buffers=way) as client:
            result = identity_of(client, protocol, datatype, raw, output)
            assert raw_output(result, protocol) == raw, way
            assert ("OUTPUT0" in result._placed) == is_placed, way
            found = result.as_numpy("OUTPUT0")
            assert found.shape == (COUNT,)
            if datatype not in ("BF16", "BYTES"):
                assert found.tobytes() == raw


def metric(server, name: str) -> int:
    with urllib.request.urlopen(f"http://{server.process.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith(name))


def answered(server, model: str) -> int:
    """How many requests the model is done with, well or not."""
    with urllib.request.urlopen(f"http://{server.process.metrics}/metrics") as answer:
        found = re.findall(rf'^nv_inference_request_(?:success|failure){{model="{model}",.*}} (\d+)$', answer.read().decode(), re.M)
    return sum(map(int, found))


def lent_bytes(server) -> int:
    """What the server has lent, by its own account."""
    return metric(server, 'nerite_lease_bytes{state="lent"}')


def lent_at_rest(server) -> int:
    """As much, once it has taken leave of all sessions but those that are open here."""
    gc.collect()
    here = [one for one in _session._sessions if one.is_alive() and one._socket.getpeername() == server.session_socket]
    wait_until(lambda: metric(server, "nerite_sessions ") == len(here))
    seen = [lent_bytes(server)]

    def still() -> bool:
        time.sleep(0.1)
        seen.append(lent_bytes(server))
        return seen[-1] == seen[-2]

    wait_until(still)
    return seen[-1]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it does not come true")
        time.sleep(0.005)


def large(client, protocol, value=1.0, count=300_000, model="identity_fp32"):
    """An input of 1.2 MB and its model."""
    handle = client.register_input_tensor_with_shared_memory([count], "FP32")
    handle.as_numpy()[:] = value
    return [module(protocol).InferInput("INPUT0", [count], "FP32").set_shared_memory_request(handle)]


def test_an_array_keeps_its_lease_and_nothing_else_does(server, protocol, client):
    m = module(protocol)
    given = large(client, protocol, 3.0)
    before = lent_at_rest(server)
    kept = client.infer("identity_fp32", given, outputs=[m.InferOutput("OUTPUT0")]).as_numpy("OUTPUT0")
    one = lent_bytes(server) - before
    assert one >= kept.nbytes
    for _ in range(50):
        client.infer("identity_fp32", given, outputs=[m.InferOutput("OUTPUT0")])
    wait_until(lambda: lent_bytes(server) - before == one)
    assert (kept == 3).all()
    assert len(client._buffers.placing_session()._mappings) <= 4
    slice_ = kept[1000:1010]
    del kept
    gc.collect()
    assert lent_bytes(server) - before == one
    del slice_
    wait_until(lambda: lent_bytes(server) <= before)


def test_an_array_outlives_its_client_and_its_server(launcher, protocol):
    m, server = module(protocol), launcher.fresh("nerite")
    client = server.client(protocol, buffers="lease")
    array = client.infer("identity_fp32", large(client, protocol, 7.0), outputs=[m.InferOutput("OUTPUT0")]).as_numpy("OUTPUT0")
    client.close()
    del client
    gc.collect()
    assert (array == 7).all()
    server.process.process.kill()
    server.process.process.wait()
    assert (array == 7).all()
    array[:] = 1


def test_outputs_of_known_and_unknown_size_go_together(client, protocol):
    m = module(protocol)
    inputs = []
    for index, value in enumerate([7, 2]):
        handle = client.register_input_tensor_with_shared_memory([1, 16], "INT32")
        handle.as_numpy()[:] = value
        inputs.append(m.InferInput(f"INPUT{index}", [1, 16], "INT32").set_shared_memory_request(handle))
    for outputs in (
        [m.InferOutput("OUTPUT0"), m.InferOutput("OUTPUT1", [1, 16], "INT32")],
        [m.InferOutput("OUTPUT0"), m.InferOutput("OUTPUT1")],
        [m.InferRequestedOutput("OUTPUT0"), m.InferOutput("OUTPUT1")],
    ):
        result = client.infer("simple", inputs, outputs=outputs)
        assert set(result.as_numpy("OUTPUT0").ravel().tolist()) == {9}
        assert set(result.as_numpy("OUTPUT1").ravel().tolist()) == {5}
        assert "OUTPUT1" in result._placed


def copied_bytes(server):
    with urllib.request.urlopen(f"http://{server.process.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines if line.startswith("nerite_copied_bytes_total{")}


def test_the_model_writes_to_the_lease_itself(launcher, protocol):
    library = next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
    server, m = launcher.get("nerite", f"--onnxruntime-library={library}"), module(protocol)
    with server.client(protocol, buffers="lease") as client:
        inputs = []
        for index in range(2):
            handle = client.register_input_tensor_with_shared_memory([1, 16], "INT32")
            handle.as_numpy()[:] = index
            inputs.append(m.InferInput(f"INPUT{index}", [1, 16], "INT32").set_shared_memory_request(handle))
        before = copied_bytes(server)
        result = client.infer("simple", inputs, outputs=[m.InferOutput("OUTPUT0"), m.InferOutput("OUTPUT1")])
        assert set(result._placed) == {"OUTPUT0", "OUTPUT1"}
        assert copied_bytes(server) == before


def test_an_empty_output_needs_no_lease(client, protocol):
    m = module(protocol)
    given = m.InferInput("INPUT0", [0], "FP32")
    given.set_data_from_numpy(np.zeros([0], np.float32))
    result = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])
    assert result.as_numpy("OUTPUT0").shape == (0,)


@meanwhile.again_if_too_late
def test_leases_of_a_lost_response_are_returned(launcher, held, protocol):  # noqa: F811
    server = launcher.get("nerite", held.flag)
    held.hold()
    options = {"network_timeout": 3} if protocol == "http" else {}
    late = {} if protocol == "http" else {"client_timeout": 3}
    with server.client(protocol, buffers="lease", **options) as client:
        given = large(client, protocol)
        before = lent_at_rest(server)
        with pytest.raises(Exception, match="(?i)timed out|deadline|timeout"):
            client.infer("held", given, outputs=[module(protocol).InferOutput("OUTPUT0")], **late)
        has_begun = held.begun.exists()
        held.go_on()
        if not has_begun:
            raise meanwhile.TooLate
        wait_until(lambda: answered(server, "held") > 0)
        wait_until(lambda: lent_bytes(server) <= before)
        assert client._buffers.placing_session().is_alive()


def test_leases_of_results_that_are_never_read_are_returned(server, protocol, client):
    m, given = module(protocol), large(client, protocol)
    before, seen = lent_at_rest(server), queue.Queue()
    for _ in range(4):
        if protocol == "http":
            client.async_infer("identity_fp32", given, outputs=[m.InferOutput("OUTPUT0")])
        else:
            client.async_infer("identity_fp32", given, lambda result, error: seen.put(error), outputs=[m.InferOutput("OUTPUT0")])
    if protocol == "http":
        client._pool.join()
    else:
        assert [seen.get(timeout=60) for _ in range(4)] == [None] * 4
    gc.collect()
    wait_until(lambda: lent_bytes(server) <= before)


def test_many_threads_share_a_client(server):
    with server.client("grpc", buffers="lease") as client:
        before, wrong = lent_at_rest(server), []

        def work(value):
            given = large(client, "grpc", value, 20_000)
            for _ in range(20):
                array = client.infer("identity_fp32", given, outputs=[nerite.grpc.InferOutput("OUTPUT0")]).as_numpy("OUTPUT0")
                if not (array == value).all():
                    wrong.append(value)

        threads = [threading.Thread(target=work, args=(float(value),)) for value in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert wrong == []
        gc.collect()
        client._buffers.retire_all()
        wait_until(lambda: lent_bytes(server) <= before + 6 * 98304)


def test_an_output_without_a_free_lease_comes_with_the_response(launcher, protocol):
    server, m = launcher.get("nerite", "--lease-max-bytes=1048576", "--session-max-bytes=524288"), module(protocol)
    with server.client(protocol, session_socket=server.session_socket) as client:
        given = m.InferInput("INPUT0", [60_000], "FP32")
        given.set_data_from_numpy(np.arange(60_000, dtype=np.float32))
        results = [client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")]) for _ in range(4)]
        assert [bool(one._placed) for one in results] == [True, True, False, False]
        for one in results:
            assert one.as_numpy("OUTPUT0").tolist() == list(range(60_000))


def test_a_refused_request_is_the_servers_error(server, protocol, client):
    m, before = module(protocol), lent_at_rest(server)
    given = m.InferInput("INPUT0", [3], "INT32")
    given.set_data_from_numpy(np.zeros([3], np.int32))
    for model, text in [("identity_fp32", "data-type"), ("nothing_of_this_name", "nothing_of_this_name")]:
        with pytest.raises(InferenceServerException, match=text):
            client.infer(model, [given], outputs=[m.InferOutput("OUTPUT0")])
    assert lent_bytes(server) == before


def plain(protocol):
    return tritonclient.http if protocol == "http" else tritonclient.grpc


def parameters_of(result, protocol):
    """The parameters of the first output in a plain client's result."""
    if protocol == "http":
        return result.get_response()["outputs"][0].get("parameters", {})
    found = result.get_response().outputs[0].parameters
    return {key: one.string_param or one.int64_param for key, one in found.items()}


def infer_plainly(client, protocol, key, count=COUNT):
    m = plain(protocol)
    given = m.InferInput("INPUT0", [count], "FP32")
    given.set_data_from_numpy(np.arange(count, dtype=np.float32))
    output = m.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory(key, 0)
    return client.infer("identity_fp32", [given], outputs=[output])


def test_a_client_of_triton_can_have_outputs_placed_too(server, protocol):
    session = Session(server.session_socket)
    with plain(protocol).InferenceServerClient(server.url(protocol)) as client:
        said = parameters_of(infer_plainly(client, protocol, session.key), protocol)
    name, offset, byte_size = (said.get(f"shared_memory_{key}", 0) for key in ("region", "offset", "byte_size"))
    assert name.startswith("lease-")
    assert byte_size == 4 * COUNT
    assert not session.has([name])
    session.fetch([name])
    assert session._mappings[name][offset : offset + byte_size].view(np.float32).tolist() == list(range(COUNT))
    session.close()


def test_the_key_of_no_session_is_an_error(server, protocol):
    session = Session(server.session_socket)
    session.close()
    with plain(protocol).InferenceServerClient(server.url(protocol)) as client:
        for key in (session.key, f"session-{'0' * 32}", f"session-{'0' * 32}-5"):
            with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'session-.*no session"):
                # The end of a session reaches the server a moment later.
                wait_until(lambda: infer_plainly(client, protocol, key) is None)


def test_a_session_fetches_its_own_leases_only(server):
    one, other = Session(server.session_socket), Session(server.session_socket)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        name = parameters_of(infer_plainly(client, "http", one.key), "http")["shared_memory_region"]
    for names in ([name], ["lease-" + "0" * 32], ["nonsense"], [""]):
        with pytest.raises(Refused, match="no lease of that name is lent to this session"):
            other.fetch(names)
    with pytest.raises(Refused, match="no lease of that name"):
        one.fetch([name, "lease-" + "0" * 32])
    assert not one.has([name])
    one.fetch([name])
    assert one.has([name])
    for session in (one, other):
        assert session.is_alive()
        session.close()


def test_an_abandoned_request_gets_no_more_leases(server):
    session = Session(server.session_socket)
    key, tag = session.new_key()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        kept, lost = (parameters_of(infer_plainly(client, "grpc", key), "grpc")["shared_memory_region"] for _ in range(2))
        session.abandon(tag, [(kept, 0)])
        session.fetch([kept])
        with pytest.raises(Refused, match="no lease of that name"):
            session.fetch([lost])
        with pytest.raises(InferenceServerException, match="abandoned this request's outputs"):
            infer_plainly(client, "grpc", key)
        other, _ = session.new_key()
        assert parameters_of(infer_plainly(client, "grpc", other), "grpc")["shared_memory_region"] not in (kept, "")
    session.close()


def test_the_server_says_who_it_is(server, protocol, client):
    session = Session(server.session_socket)
    assert len(session.server_id) == 32
    found = client.get_server_metadata()
    extensions = found["extensions"] if protocol == "http" else found.extensions
    assert f"nerite_server({session.server_id})" in extensions
    session.close()


@pytest.mark.parametrize("has_id", [True, False])
def test_a_socket_is_used_only_with_its_own_server(launcher, protocol, monkeypatch, has_id):
    """With or without an answer to who the server is: then /proc decides."""
    server, other = launcher.get("nerite"), launcher.get("nerite", "--allow-client-shm=false")
    monkeypatch.setenv("NERITE_SESSION_SOCKET", server.session_socket)
    if not has_id:
        monkeypatch.setattr(_session, "SERVER_EXTENSION", "nothing")
        monkeypatch.setattr(module(protocol).InferenceServerClient, "_fetch_server_id", lambda self: None)
    with module(protocol).InferenceServerClient(server.url(protocol)) as client:
        assert client.buffer_transport == "lease"
    with module(protocol).InferenceServerClient(other.url(protocol)) as client:
        assert client.buffer_transport == "inline"
        assert "is not seen to be that of" in client._buffers.refusals()["lease"]


def test_another_kind_of_server_is_not_that_of_a_socket_found_by_default(launcher, protocol, monkeypatch):
    nerite_server, triton = launcher.get("nerite"), launcher.get("triton")
    monkeypatch.setenv("NERITE_SESSION_SOCKET", nerite_server.session_socket)
    m = module(protocol)
    with m.InferenceServerClient(triton.url(protocol)) as client:
        result = client.infer("identity_fp32", [m_input(protocol)], outputs=[m.InferOutput("OUTPUT0")])
        assert not result._placed
        assert result.as_numpy("OUTPUT0").tolist() == list(range(COUNT))
        assert client.buffer_transport == "region"
        assert "is not seen to be that of" in client._buffers.refusals()["lease"]


def test_a_server_behind_a_unix_socket_is_known_by_its_name(launcher, tmp_path, monkeypatch):
    server = launcher.get("nerite", f"--grpc-socket={tmp_path}/grpc.sock")
    monkeypatch.setenv("NERITE_SESSION_SOCKET", server.session_socket)
    with nerite.grpc.InferenceServerClient(f"unix:{tmp_path}/grpc.sock") as client:
        assert client.buffer_transport == "lease"
        result = client.infer("identity_fp32", [m_input("grpc")], outputs=[nerite.grpc.InferOutput("OUTPUT0")])
        assert result._placed


def streamed(server, count, **options):
    """What an identity model answers to ``count`` requests of one stream."""
    answers = queue.Queue()
    with server.client("grpc", **options) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for value in range(count):
            given = large(client, "grpc", value, 5000)
            output = [nerite.grpc.InferOutput("OUTPUT0"), nerite.grpc.InferOutput("OUTPUT0", [5000], "FP32")][value % 2]
            client.async_stream_infer("identity_fp32", given, outputs=[output], request_id=str(value) if value % 3 else "")
        found = [answers.get(timeout=60) for _ in range(count)]
        client.stop_stream()
    assert [error for _, error in found] == [None] * count
    return [result for result, _ in found]


def test_each_response_of_a_stream_has_a_lease_of_its_own(server):
    before = lent_at_rest(server)
    results = streamed(server, 9, buffers="lease")
    arrays = [one.as_numpy("OUTPUT0") for one in results]
    assert [set(one.tolist()) for one in arrays] == [{float(value)} for value in range(9)]
    assert all(one._placed for one in results)
    # The session lives as long as they do.
    assert lent_bytes(server) > before
    assert len({one.ctypes.data for one in arrays}) == 9
    del arrays, results
    gc.collect()
    wait_until(lambda: lent_bytes(server) <= before)


def test_a_stream_without_leases_carries_its_outputs(server):
    results = streamed(server, 4, buffers="inline")
    assert [set(one.as_numpy("OUTPUT0").tolist()) for one in results] == [{float(value)} for value in range(4)]


def test_a_stream_that_is_stopped_keeps_what_was_seen_and_returns_the_rest(launcher, held):  # noqa: F811
    server, answers = launcher.get("nerite", held.flag), queue.Queue()
    held.hold()
    with server.client("grpc", buffers="lease") as client:
        given = large(client, "grpc", 5.0)
        before = lent_at_rest(server)
        client.start_stream(lambda result, error: answers.put((result, error)))
        for model in ("identity_fp32", "held"):
            client.async_stream_infer(model, given, outputs=[nerite.grpc.InferOutput("OUTPUT0")])
        array = answers.get(timeout=60)[0].as_numpy("OUTPUT0")
        held.wait_until_begun()
        client.stop_stream(cancel_requests=True)
        held.go_on()
        wait_until(lambda: answered(server, "held") > 0)
        wait_until(lambda: lent_bytes(server) - before in range(array.nbytes, 2 * array.nbytes))
        again = client.infer("identity_fp32", large(client, "grpc", 6.0), outputs=[nerite.grpc.InferOutput("OUTPUT0")])
        assert set(again.as_numpy("OUTPUT0").tolist()) == {6.0}
        assert set(array.tolist()) == {5.0}


def test_a_closed_client_keeps_no_session_until_the_garbage_is_collected(server):
    gc.collect()
    before = len(_session._sessions)
    gc.disable()
    try:
        for _ in range(3):
            answers = queue.Queue()
            with server.client("grpc", buffers="lease") as client:
                given, output = m_input("grpc"), nerite.grpc.InferOutput("OUTPUT0")
                client.start_stream(lambda result, error, answers=answers: answers.put((result, error)))
                client.async_stream_infer("identity_fp32", [given], outputs=[output])
                client.async_infer("identity_fp32", [given], lambda result, error: None, outputs=[output])
                client.infer("identity_fp32", [given], outputs=[output])
                assert answers.get(timeout=60)[1] is None
            del client
            with server.client("http", buffers="lease") as client:
                given, output = m_input("http"), nerite.http.InferOutput("OUTPUT0")
                assert client.async_infer("identity_fp32", [given], outputs=[output]).get_result()._placed
                client.async_infer("identity_fp32", [given], outputs=[output])
            del client
        wait_until(lambda: len(_session._sessions) <= before)
    finally:
        gc.enable()


@contextlib.contextmanager
def threads_of(monkeypatch, *names):
    """The names of the threads in which a session was asked."""
    seen = []
    for name in names:
        plain_call = getattr(Session, name)

        def spied(self, *args, plain_call=plain_call):
            seen.append(threading.current_thread() is threading.main_thread())
            return plain_call(self, *args)

        monkeypatch.setattr(Session, name, spied)
    yield seen


def aio_client(server, protocol, **options):
    aio = importlib.import_module(f"nerite.{protocol}.aio")
    options.setdefault("session_socket", server.session_socket)
    return aio, aio.InferenceServerClient(server.url(protocol), **options)


def test_asyncio_clients_wait_for_the_session_in_threads(server, protocol, monkeypatch):
    async def infer():
        aio, client = aio_client(server, protocol, buffers="lease")
        async with client:
            with threads_of(monkeypatch, "_fetch", "borrow", "__init__") as in_loop:
                given = aio.InferInput("INPUT0", [50_000], "FP32")
                given.set_data_from_numpy(np.arange(50_000, dtype=np.float32))
                results = []
                for output in [aio.InferOutput("OUTPUT0"), aio.InferOutput("OUTPUT0", [50_000], "FP32")] * 3:
                    results.append(await client.infer("identity_fp32", [given], outputs=[output]))
                    assert results[-1]._placed
                assert in_loop
                assert not any(in_loop)
        return [one.as_numpy("OUTPUT0") for one in results]

    for array in asyncio.run(infer()):
        assert array.tolist() == list(range(50_000))


def test_asyncio_clients_find_their_servers_socket(launcher, protocol, monkeypatch):
    server, other = launcher.get("nerite"), launcher.get("nerite", "--allow-client-shm=false")
    monkeypatch.setenv("NERITE_SESSION_SOCKET", server.session_socket)

    async def way(one):
        _, client = aio_client(one, protocol, session_socket=None)
        async with client:
            return client.buffer_transport

    assert asyncio.run(way(server)) == "lease"
    assert asyncio.run(way(other)) == "inline"


def test_many_asyncio_requests_at_once(server, protocol):
    async def infer():
        before = lent_at_rest(server)
        aio, client = aio_client(server, protocol, buffers="lease")

        async def one(value):
            with client.register_input_tensor_with_shared_memory([1000], "FP32") as handle:
                handle.as_numpy()[:] = value
                given = aio.InferInput("INPUT0", [1000], "FP32").set_shared_memory_request(handle)
                result = await client.infer("identity_fp32", [given], outputs=[aio.InferOutput("OUTPUT0")])
                return set(result.as_numpy("OUTPUT0").tolist())

        async with client:
            found = await asyncio.gather(*(one(float(value)) for value in range(40)))
            cancelled = asyncio.create_task(one(1.0))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        return found, before

    found, before = asyncio.run(infer())
    assert found == [{float(value)} for value in range(40)]
    gc.collect()
    wait_until(lambda: lent_bytes(server) <= before)


@pytest.mark.parametrize("way", ["lease", "inline"])
def test_asyncio_streams_take_outputs_of_any_size(server, way):
    async def infer():
        aio, client = aio_client(server, "grpc", buffers=way)

        async def requests():
            for value in range(6):
                handle = client.register_input_tensor_with_shared_memory([1000], "FP32")
                handle.as_numpy()[:] = value
                given = aio.InferInput("INPUT0", [1000], "FP32").set_shared_memory_request(handle)
                del handle
                yield {"model_name": "identity_fp32", "inputs": [given], "outputs": [aio.InferOutput("OUTPUT0")]}
                del given

        async with client:
            found = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                assert bool(result._placed) == (way == "lease")
                found.append(result.as_numpy("OUTPUT0"))
        return [set(one.tolist()) for one in found]

    assert asyncio.run(infer()) == [{float(value)} for value in range(6)]


KILLED = """
import os, sys
import numpy as np
import nerite.http as m
client = m.InferenceServerClient(sys.argv[1], buffers="lease", session_socket=sys.argv[2])
given = m.InferInput("INPUT0", [300_000], "FP32")
given.set_data_from_numpy(np.zeros(300_000, np.float32))
kept = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")]).as_numpy("OUTPUT0")
print(kept.size, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_client_leaves_nothing(server):
    before = lent_at_rest(server)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, server.http, server.session_socket], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.stdout == "300000\n"
    wait_until(lambda: lent_bytes(server) <= before)


def test_a_lost_session_is_opened_again(server, protocol, client):
    m, given = module(protocol), m_input(protocol)
    first = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")]).as_numpy("OUTPUT0")
    session = client._buffers.placing_session()
    # What a server that goes away looks like from here.
    session._socket.shutdown(2)
    second = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])
    assert second._placed
    assert client._buffers.placing_session() is not session
    assert first.tolist() == second.as_numpy("OUTPUT0").tolist() == list(range(COUNT))


def m_input(protocol):
    given = module(protocol).InferInput("INPUT0", [COUNT], "FP32")
    given.set_data_from_numpy(np.arange(COUNT, dtype=np.float32))
    return given


def test_notices_of_freed_leases_do_not_accumulate(server, client, protocol):
    m, given = module(protocol), m_input(protocol)
    session = None
    before = lent_at_rest(server)
    for _ in range(3):
        client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])
        session = client._buffers.placing_session()
        names = set(session._mappings)
        # Idle leases are forgotten after three seconds; the news comes with what is said next.
        wait_until(lambda: lent_bytes(server) <= before and metric(server, 'nerite_lease_bytes{state="idle"}') == 0)
    client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])
    client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0")])
    assert len(session._mappings) <= 2, names


def test_no_descriptor_stays_open(server, protocol, client):
    m, given = module(protocol), large(client, protocol)
    client.infer("identity_fp32", given, outputs=[m.InferOutput("OUTPUT0")])
    before = len(os.listdir("/proc/self/fd"))
    kept = [client.infer("identity_fp32", given, outputs=[m.InferOutput("OUTPUT0")]) for _ in range(20)]
    assert all(one._placed for one in kept)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
