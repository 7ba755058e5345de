"""Do managed buffers give the same results by every way, protocol and server?"""

import asyncio
import contextlib
import gc
import importlib
import os
import pathlib
import queue
import subprocess
import sys
import time
import urllib.request

import catalogue
import numpy as np
import onnxruntime
import pytest
from meanwhile import Delay, again_if_too_late
from peers import module, shared_objects
from test_call import stopped
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

import nerite.grpc
import nerite.grpc.aio
import nerite.http
import nerite.shm
from nerite import _datatypes, _transports
from nerite._pool import Slab

WAYS = ["inline", "region", "lease"]


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def client(server, protocol, way, nothing_left):
    skip_unless_offered(server, way)
    with server.client(protocol, buffers=way) as found:
        yield found


def skip_unless_offered(server, way):
    if way == "lease" and server.session_socket is None:
        pytest.skip("this server lends no memory")


def sample(datatype: str, count: int = 37) -> np.ndarray:
    """A tensor with the corners of its datatype."""
    if datatype == "BYTES":
        corners = [b"", b"\0", b"plain", "größe".encode(), b"\xff\xfe", b"x" * 5000]
        return np.array([corners[i % len(corners)] for i in range(count)], dtype=np.object_)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    raw = np.random.default_rng(7).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return (raw % 2).astype(bool) if datatype == "BOOL" else raw.view(dtype)


def wire(tensor: np.ndarray) -> bytes:
    """The tensor as it travels; NaNs and all."""
    if tensor.dtype == np.object_:
        return b"".join(len(one).to_bytes(4, "little") + one for one in tensor.ravel().tolist())
    return tensor.tobytes()


def managed(client, protocol, tensor, datatype, name="INPUT0"):
    """An input over a fresh handle that holds the tensor."""
    handle = client.register_input_tensor_with_shared_memory(tensor.shape, datatype)
    client.copy_to_shared_memory(handle, tensor)
    return module(protocol).InferInput(name, list(tensor.shape), datatype).set_shared_memory_request(handle), handle


@pytest.mark.parametrize("datatype", list(catalogue.DATATYPES))
def test_the_bytes_are_the_same_by_every_way(server, protocol, way, client, datatype):
    if datatype == "BF16":
        pytest.importorskip("ml_dtypes")
    m, tensor = module(protocol), sample(datatype)
    plain = m.InferInput("INPUT0", [tensor.size], datatype)
    plain.set_data_from_numpy(tensor)
    expected = client.infer(f"identity_{datatype.lower()}", [plain]).as_numpy("OUTPUT0")
    given, handle = managed(client, protocol, tensor, datatype)
    output = m.InferOutput("OUTPUT0", [tensor.size], datatype, len(wire(tensor)) if datatype == "BYTES" else None)
    got = client.infer(f"identity_{datatype.lower()}", [given], outputs=[output]).as_numpy("OUTPUT0")
    assert client.buffer_transport == way
    assert handle.is_shared == (way != "inline")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert wire(got) == wire(expected) == wire(tensor)
    assert wire(handle.as_numpy()) == wire(tensor)


def test_what_is_written_in_place_is_what_the_model_reads(client, protocol, way):
    m = module(protocol)
    handles = [client.register_input_tensor_with_shared_memory([1, 16], "INT32") for _ in range(2)]
    inputs = [m.InferInput(f"INPUT{i}", [1, 16], "INT32").set_shared_memory_request(one) for i, one in enumerate(handles)]
    outputs = [m.InferOutput("OUTPUT0", [1, 16], "INT32"), m.InferRequestedOutput("OUTPUT1")]
    for round_ in range(3):
        handles[0].as_numpy()[...] = np.arange(16) * round_
        handles[1].as_numpy()[...] = 5
        result = client.infer("simple", inputs, outputs=outputs)
        assert result.as_numpy("OUTPUT0").tolist() == [[i * round_ + 5 for i in range(16)]]
        assert result.as_numpy("OUTPUT1").tolist() == [[i * round_ - 5 for i in range(16)]]
        assert result.as_numpy("ABSENT") is None


def test_a_result_lives_as_long_as_its_array(client, protocol, way):
    m = module(protocol)
    arrays = []
    for value in range(5):
        given, _ = managed(client, protocol, np.full(1000, value, np.float32), "FP32")
        output = m.InferOutput("OUTPUT0", [1000], "FP32")
        arrays.append(client.infer("identity_fp32", [given], outputs=[output]).as_numpy("OUTPUT0"))
    client.close()
    gc.collect()
    assert [set(one.tolist()) for one in arrays] == [{float(value)} for value in range(5)]


@pytest.mark.parametrize("way", ["region", "lease"])
def test_buffers_are_used_again(client, protocol, way):
    m = module(protocol)
    for _ in range(30):
        given, handle = managed(client, protocol, np.zeros(50_000, np.float32), "FP32")
        with handle:
            client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0", [50_000], "FP32")])
    assert client._buffers.census()[way]["slabs"] == 2


def test_larger_and_smaller_outputs_than_expected(client, protocol, way):
    m = module(protocol)
    given, _ = managed(client, protocol, np.arange(100, dtype=np.float32), "FP32")
    result = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0", [500], "FP32")])
    assert result.as_numpy("OUTPUT0").tolist() == list(range(100))
    small = [m.InferOutput("OUTPUT0", [20], "FP32")]
    if way == "inline":
        assert client.infer("identity_fp32", [given], outputs=small).as_numpy("OUTPUT0").size == 100
        return
    with pytest.raises(InferenceServerException, match=r"\(80 bytes\) should be at least 400 bytes"):
        client.infer("identity_fp32", [given], outputs=small)


def test_an_output_that_is_requested_twice_is_refused(client, protocol, way):
    m = module(protocol)
    given, _ = managed(client, protocol, np.arange(4, dtype=np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="output 'OUTPUT0' already exists in request"):
        client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0", [4], "FP32"), m.InferOutput("OUTPUT0")])


@pytest.mark.parametrize("known", [True, False])
def test_an_output_goes_to_the_region_that_the_program_named(server, client, protocol, known):
    m = module(protocol)
    given, _ = managed(client, protocol, np.arange(4, dtype=np.float32), "FP32")
    output = m.InferOutput("OUTPUT0", *([[4], "FP32"] if known else []))
    with nerite.shm.Region.create(nerite.shm.fresh_key(), 64) as region:
        client.register_system_shared_memory(region.key[1:], region.key, 64)
        output.set_shared_memory(region.key[1:], 16, offset=32)
        client.infer("identity_fp32", [given], outputs=[output])
        # Triton 2.51 may refuse that so soon after the answer; the name is nobody else's.
        with contextlib.suppress(InferenceServerException):
            client.unregister_system_shared_memory(region.key[1:])
        assert region.as_numpy([4], "FP32", offset=32).tolist() == [0, 1, 2, 3]
    output.unset_shared_memory()
    assert client.infer("identity_fp32", [given], outputs=[output]).as_numpy("OUTPUT0").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("described", [{}, {"shape": [3], "datatype": "BYTES"}, {"shape": [-1], "datatype": "BYTES"}])
def test_outputs_of_unknown_size_come_with_the_response(client, protocol, way, described):
    given, _ = managed(client, protocol, np.array([b"a", b"", b"ccc"], dtype=np.object_), "BYTES")
    result = client.infer("identity_bytes", [given], outputs=[module(protocol).InferOutput("OUTPUT0", **described)])
    assert result.as_numpy("OUTPUT0").tolist() == [b"a", b"", b"ccc"]


def test_an_empty_tensor_needs_no_memory(client, protocol, way):
    given, handle = managed(client, protocol, np.zeros([0], np.float32), "FP32")
    assert handle.byte_size == 0
    result = client.infer("identity_fp32", [given], outputs=[module(protocol).InferOutput("OUTPUT0", [0], "FP32")])
    assert result.as_numpy("OUTPUT0").shape == (0,)


def test_bytes_tensors_grow_and_can_be_written_by_hand(client, protocol, way):
    m = module(protocol)
    handle = client.register_input_tensor_with_shared_memory([2], "BYTES", byte_size=1000)
    given = m.InferInput("INPUT0", [2], "BYTES").set_shared_memory_request(handle)

    def echoed():
        return client.infer("identity_bytes", [given]).as_numpy("OUTPUT0").tolist()

    assert echoed() == [b"", b""]
    assert handle.capacity >= 1000
    handle.copy_from(np.array([b"x" * 100_000, "é"], dtype=np.object_))
    assert echoed() == [b"x" * 100_000, "é".encode()]
    handle.copy_from(b"\2\0\0\0ab\0\0\0\0")
    assert echoed() == [b"ab", b""]
    size = _datatypes.write_elements([b"by", b"hand"], memoryview(handle.as_memory()))
    handle.set_byte_size(size)
    assert echoed() == [b"by", b"hand"]


def test_strided_arrays_are_copied_as_they_look(client, protocol, way):
    tensor = np.arange(60, dtype=np.float32)[::3]
    given, _ = managed(client, protocol, tensor, "FP32")
    result = client.infer("identity_fp32", [given], outputs=[module(protocol).InferOutput("OUTPUT0", [20], "FP32")])
    assert result.as_numpy("OUTPUT0").tolist() == tensor.tolist()


def test_inputs_of_every_kind_go_together(client, protocol, way):
    m = module(protocol)
    first, _ = managed(client, protocol, np.full([1, 16], 7, np.int32), "INT32")
    second = m.InferInput("INPUT1", [1, 16], "INT32")
    second.set_data_from_numpy(np.full([1, 16], 2, np.int32))
    for inputs in ([first, second], [second, first]):
        result = client.infer("simple", inputs, outputs=[m.InferOutput("OUTPUT1", [1, 16], "INT32")])
        assert set(result.as_numpy("OUTPUT1").ravel().tolist()) == {5}
    first.set_data_from_numpy(np.full([1, 16], 9, np.int32))
    assert set(client.infer("simple", [first, second]).as_numpy("OUTPUT1").ravel().tolist()) == {7}


def copied_bytes(server):
    """What nerite has copied, by reason."""
    with urllib.request.urlopen(f"http://{server.process.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines if line.startswith("nerite_copied_bytes_total{")}


@pytest.mark.parametrize("way", ["region", "lease"])
def test_nothing_is_copied_between_two_buffers_and_a_model(launcher, protocol, way):
    library = next(pathlib.Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
    server = launcher.get("nerite", f"--onnxruntime-library={library}")
    m = module(protocol)
    with server.client(protocol, buffers=way) as client:
        inputs = [managed(client, protocol, np.full([1, 16], i, np.int32), "INT32", f"INPUT{i}")[0] for i in range(2)]
        outputs = [m.InferOutput(f"OUTPUT{i}", [1, 16], "INT32") for i in range(2)]
        before = copied_bytes(server)
        result = client.infer("simple", inputs, outputs=outputs)
        assert result.as_numpy("OUTPUT1").tolist() == [[-1] * 16]
        assert copied_bytes(server) == before


@pytest.mark.parametrize("way", ["region", "lease"])
@again_if_too_late
def test_what_is_written_after_sending_is_still_what_a_slow_model_reads(launcher, way):
    server, answers = launcher.get("nerite"), queue.Queue()
    with server.client("grpc", buffers=way) as client:
        given, handle = managed(client, "grpc", np.zeros(100, np.float32), "FP32")
        output = nerite.grpc.InferOutput("OUTPUT0", [100], "FP32")
        delay = Delay(catalogue.SLOW_MS)
        client.async_infer("slow_fp32", [given], lambda result, error: answers.put((result, error)), outputs=[output])
        # The model waits before it reads: a copy taken on the way would still be of zeros.
        delay.wait_for_requests(server.process, "slow_fp32")
        handle.as_numpy()[:] = 42
        delay.must_last()
        result, error = answers.get(timeout=60)
        assert error is None
        assert set(result.as_numpy("OUTPUT0").tolist()) == {42.0}


def test_asynchronous_requests_keep_their_buffers(client, protocol, way):
    m = module(protocol)
    answers = queue.Queue()
    requests = []
    for value in range(6):
        given, handle = managed(client, protocol, np.full(1000, value, np.float32), "FP32")
        output = m.InferOutput("OUTPUT0", [1000], "FP32")
        if protocol == "http":
            requests.append(client.async_infer("identity_fp32", [given], outputs=[output]))
        else:
            client.async_infer(
                "identity_fp32",
                [given],
                lambda result, error, value=value: answers.put((value, result, error)),
                outputs=[output],
            )
        handle.release()
        del given, handle
    if protocol == "http":
        results = list(enumerate(one.get_result() for one in requests))
    else:
        results = [(value, result) for value, result, error in (answers.get(timeout=60) for _ in range(6)) if error is None]
    assert {value: set(one.as_numpy("OUTPUT0").tolist()) for value, one in results} == {v: {float(v)} for v in range(6)}


@pytest.mark.parametrize("way", ["region", "lease"])
def test_a_request_whose_end_was_not_seen_keeps_its_output(server, protocol, way):
    skip_unless_offered(server, way)
    # Over HTTP it is for each call of the client, also for those that must end in time.
    options = {"network_timeout": 3} if protocol == "http" else {}
    late = {} if protocol == "http" else {"client_timeout": 0.6}
    with server.client(protocol, buffers=way, **options) as client:
        given, _ = managed(client, protocol, np.full(64, 3, np.float32), "FP32")
        output = module(protocol).InferOutput("OUTPUT0", [64], "FP32")
        # Its memory is known to the server from now on.
        client.infer("identity_fp32", [given], outputs=[output])
        with stopped(server), pytest.raises(Exception, match="(?i)timed out|deadline|timeout"):
            client.infer("identity_fp32", [given], outputs=[output], **late)
        retired = [slab for way_ in client._buffers._ways for slab in way_.pool._slabs if slab.retired]
        assert len(retired) == 1
        block = client._buffers.lend_shared(256)
        assert block.slab is not retired[0]


@pytest.mark.parametrize("kind", ["nerite", "triton"])
def test_streams_take_managed_inputs(launcher, kind, way, monkeypatch, nothing_left):
    # The model runs in this Python, which has numpy.
    monkeypatch.setenv("PATH", os.path.join(sys.prefix, "bin"), prepend=os.pathsep)
    server, answers = launcher.get(kind, "--id=with_numpy"), queue.Queue()
    skip_unless_offered(server, way)
    with server.client("grpc", buffers=way) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        values, _ = managed(client, "grpc", np.array([4, 5, 6], np.int32), "INT32", "IN")
        delays, _ = managed(client, "grpc", np.array([0, 0, 0], np.uint32), "UINT32", "DELAY")
        outputs = [None, [nerite.grpc.InferOutput("OUT")], [nerite.grpc.InferOutput("OUT", [1], "INT32")]]
        for request_id, requested in zip(("one", "two", ""), outputs):
            client.async_stream_infer("repeat_int32", [values, delays], request_id=request_id, outputs=requested)
            got = [answers.get(timeout=60) for _ in range(3)]
            assert [error for _, error in got] == [None] * 3
            assert [result.as_numpy("OUT")[0] for result, _ in got] == [4, 5, 6]
        client.stop_stream()
        assert client._streamed is None


def test_a_handle_can_be_an_input_of_the_asyncio_clients(client, server, protocol, way):
    aio = importlib.import_module(f"nerite.{protocol}.aio")
    given, _ = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")

    async def infer():
        async with aio.InferenceServerClient(server.url(protocol)) as opened:
            return (await opened.infer("identity_fp32", [given])).as_numpy("OUTPUT0")

    assert asyncio.run(infer()).tolist() == list(range(10))


@pytest.mark.parametrize("way", ["inline", "lease"])
def test_asyncio_clients_have_buffers_of_their_own(server, protocol, way):
    skip_unless_offered(server, way)
    aio = importlib.import_module(f"nerite.{protocol}.aio")

    async def infer():
        arrays = []
        async with aio.InferenceServerClient(
            server.url(protocol), buffers=way, session_socket=server.session_socket
        ) as client:
            for value in range(3):
                with client.register_input_tensor_with_shared_memory([100], "FP32") as handle:
                    handle.as_numpy()[:] = value
                    given = aio.InferInput("INPUT0", [100], "FP32").set_shared_memory_request(handle)
                    output = aio.InferOutput("OUTPUT0", [100], "FP32")
                    arrays.append((await client.infer("identity_fp32", [given], outputs=[output])).as_numpy("OUTPUT0"))
            assert client.buffer_transport == way
        return [set(one.tolist()) for one in arrays]

    assert asyncio.run(infer()) == [{0.0}, {1.0}, {2.0}]


@pytest.mark.parametrize(("refusals", "tries"), [(0, 1), (3, 4), (1000, _transports.TRIES_MAX)])
def test_a_region_that_is_still_in_use_is_unregistered_a_little_later(monkeypatch, refusals, tries):
    monkeypatch.setattr(_transports, "AGAIN_S", 0.0)
    names = []

    def unregister(name):
        names.append(name)
        if len(names) <= refusals:
            raise InferenceServerException(f"Cannot unregister shared memory region '{name}', it is currently in use.")

    transport = _transports.RegionTransport("localhost:1", lambda *_: None, unregister, lambda _: False)
    transport.drop(Slab("a", np.empty(0, np.uint8)))
    assert names == ["a"] * tries


def test_asyncio_clients_register_no_regions():
    with pytest.raises(InferenceServerException, match="one of lease, inline, got 'region'"):
        nerite.grpc.aio.InferenceServerClient("localhost:1", buffers="region")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, h: c.copy_to_shared_memory(h, np.zeros([2, 3], np.float64)), "unexpected datatype FP64.*expected FP32"),
        (lambda c, h: c.copy_to_shared_memory(h, np.zeros([2, 3], "U4")), "unexpected datatype <U4.*expected FP32"),
        (lambda c, h: c.copy_to_shared_memory(h, np.zeros([3, 2], np.float32)), r"shape \[3, 2\], expected \[2, 3\]"),
        (lambda c, h: c.copy_to_shared_memory(h, b"123"), r"\[2, 3\] of FP32 takes 24 bytes, got 3"),
        (lambda c, h: c.copy_to_shared_memory(h, [1, 2]), r"unexpected list shape \[2\], expected \[2, 3\]"),
        (lambda c, h: h.set_byte_size(3), "follows from its shape"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2], "FLOAT"), "unknown datatype 'FLOAT'"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([-1], "FP32"), "must not have unknown dimensions"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2], "FP32", 9), "takes 8 bytes, not the 9"),
        (lambda c, h: nerite.http.InferInput("X", [2, 3], "INT32").set_shared_memory_request(h), "input 'X' is"),
        (lambda c, h: nerite.grpc.InferInput("X", [3, 2], "FP32").set_shared_memory_request(h), "input 'X' is"),
        (lambda c, h: nerite.grpc.InferInput("X", [3, 2], "FP32").set_shared_memory_request(5), "expected a handle"),
        (lambda c, h: nerite.http.InferOutput("X", [2], "NONE"), "unknown datatype"),
        (lambda c, h: (h.release(), h.as_numpy()), "the buffer was released"),
        (lambda c, h: (h.release(), h.copy_from(b"")), "the buffer was released"),
        (lambda c, h: (h.release(), h.__enter__()), "the buffer was released"),
        (lambda c, h: c.copy_to_shared_memory(None, b""), "expected a handle of .*, got NoneType"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2.5], "FP32"), r"shape \[2.5\] is no sequence of whole"),
        (lambda c, h: c.register_input_tensor_with_shared_memory(4, "FP32"), "shape 4 is no sequence of whole"),
        (lambda c, h: c.register_input_tensor_with_shared_memory("12", "FP32"), "shape '12' is no sequence of whole"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2**62], "FP32"), "takes 18446744073709551616 bytes, no mem"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2**62], "BYTES"), "bytes and more, no memory"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2], "BYTES", -5), "byte_size -5 is negative"),
        (lambda c, h: c.register_input_tensor_with_shared_memory([2], "BYTES", "5"), "byte_size '5' is no whole number"),
        (lambda c, h: nerite.http.InferOutput("X", [6], "FP32", byte_size=7), "takes 24 bytes, not the 7 asked for"),
        (lambda c, h: nerite.grpc.InferOutput("X", byte_size=-1), "byte_size -1 is negative"),
        (lambda c, h: (c.close(), c.register_input_tensor_with_shared_memory([2], "FP32")), "the client is closed"),
    ],
)
def test_mistakes_are_errors_that_say_what_is_wrong(call, text):
    client = nerite.http.InferenceServerClient("localhost:1", buffers="inline")
    handle = client.register_input_tensor_with_shared_memory([2, 3], "FP32")
    with pytest.raises(InferenceServerException, match=text):
        call(client, handle)


def test_memory_that_is_not_contiguous_is_copied_as_it_looks():
    client = nerite.http.InferenceServerClient("localhost:1", buffers="inline")
    handle = client.register_input_tensor_with_shared_memory([2, 3], "FP32")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    client.copy_to_shared_memory(handle, memoryview(values[:, ::-1]))
    assert handle.as_numpy().tolist() == values[:, ::-1].tolist()


def test_a_datatype_without_a_view_is_an_error(monkeypatch):
    # As in versions of tritonclient for which BF16 is float32.
    monkeypatch.setattr(_datatypes, "triton_to_np_dtype", lambda datatype: np.float32)
    client = nerite.http.InferenceServerClient("localhost:1", buffers="inline")
    handle = client.register_input_tensor_with_shared_memory([4], "BF16")
    with pytest.raises(InferenceServerException, match="BF16 element has 2 bytes, .* float32 of 4; install a newer"):
        handle.as_numpy()
    handle.copy_from(b"12345678")
    assert handle.as_memory()[:8].tobytes() == b"12345678"


def test_an_element_too_long_for_its_length_is_an_error(monkeypatch):
    monkeypatch.setattr(_datatypes, "ELEMENT_BYTES_MAX", 3)
    with pytest.raises(InferenceServerException, match="a BYTES element has 4 bytes, it may have 3"):
        _datatypes.encoded_elements(np.array([b"abc", b"abcd"], dtype=np.object_))


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0", b"\1\0\0\0a\0\0\0\0x", b"\xff\xff\xff\xffa"])
def test_bytes_that_are_no_bytes_tensor_are_refused(data):
    client = nerite.http.InferenceServerClient("localhost:1", buffers="inline")
    handle = client.register_input_tensor_with_shared_memory([2], "BYTES")
    with pytest.raises(InferenceServerException):
        handle.copy_from(data)
    assert handle.as_numpy().tolist() == [b"", b""]


def test_nothing_stays_registered_after_closing(server, protocol):
    client = server.client(protocol, buffers="region")
    handle = client.register_input_tensor_with_shared_memory([1000], "FP32")
    assert handle._block.slab.name in server.regions()
    array = handle.as_numpy()
    client.close()
    assert handle._block.slab.name not in server.regions()
    array[:] = 1
    given = module(protocol).InferInput("INPUT0", [1000], "FP32").set_shared_memory_request(handle)
    with server.client(protocol) as other, pytest.raises(InferenceServerException, match="was closed"):
        other.infer("identity_fp32", [given])


@pytest.mark.parametrize("in_cycle", [False, True])
def test_nothing_stays_registered_after_collecting_the_garbage(server, protocol, in_cycle):
    client = server.client(protocol, buffers="region")
    name = client.register_input_tensor_with_shared_memory([1000], "FP32")._block.slab.name
    assert name in server.regions()
    if in_cycle:
        client.itself = client
    del client
    gc.collect()
    assert name not in server.regions()


ENDINGS = {
    "exit": "",
    "exit with an exception": "1 / 0",
    "os._exit": "os._exit(3)",
    "kill": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_process_leaves_no_object_behind_however_it_ends(server, protocol, ending):
    code = (
        f"import nerite.{protocol}, os\n"
        f"client = nerite.{protocol}.InferenceServerClient('{server.url(protocol)}', buffers='region')\n"
        "handle = client.register_input_tensor_with_shared_memory([1000], 'FP32')\n"
        "print(handle._block.slab.name, flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code + ENDINGS[ending]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60
    )
    name = ended.stdout.strip()
    assert name.startswith("nerite-"), ended.stderr
    assert name not in os.listdir("/dev/shm")
    if "exit" in ending and ending != "os._exit":
        assert name not in server.regions()
    else:
        with server.client("http") as client:
            client.unregister_system_shared_memory(name)


FORK_SETUP = """
import gc, os, sys
import numpy as np
import nerite.http as m

client = m.InferenceServerClient(sys.argv[1], buffers="region")
handle = client.register_input_tensor_with_shared_memory([10], "FP32")
handle.as_numpy()[...] = np.arange(10)
name = handle._block.slab.name

def names():
    with m.InferenceServerClient(sys.argv[1]) as other:
        return [one["name"] for one in other.get_system_shared_memory_status()]

def works(client, handle):
    given = m.InferInput("INPUT0", [10], "FP32").set_shared_memory_request(handle)
    assert client.infer("identity_fp32", [given]).as_numpy("OUTPUT0").tolist() == list(range(10))

child = os.fork()
if child == 0:
    try:
"""

FORK_END = """
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert name in names()
works(client, handle)
client.close()
assert name not in names()
"""

CHILDREN = {
    "closes the client": "client.close(); del client, handle; gc.collect()",
    "ends as usual": "del client, handle; import atexit; atexit._run_exitfuncs()",
    # The event loop that the HTTP library runs on has to be told of a fork.
    "makes its own": (
        "import gevent; gevent.reinit(); own = m.InferenceServerClient(sys.argv[1], buffers='region'); "
        "mine = own.register_input_tensor_with_shared_memory([10], 'FP32'); mine.as_numpy()[...] = np.arange(10); "
        "works(own, mine); assert mine._block.slab.name != name; own.close()"
    ),
}


@pytest.mark.parametrize("child", list(CHILDREN))
def test_a_forked_child_leaves_its_parents_buffers_alone(server, child):
    # In a process of its own: this one has the threads of the gRPC library, which do not survive a fork.
    code = FORK_SETUP + "        " + CHILDREN[child] + FORK_END
    subprocess.run([sys.executable, "-c", code, server.http], check=True, timeout=60)


def test_a_server_that_refuses_regions_gets_inline_bytes(launcher, protocol):
    server = launcher.get("nerite", "--allow-client-shm=false", "--session-socket=off")
    with server.client(protocol) as client:
        assert client.buffer_transport == "inline"
        assert "disabled" in client._buffers.refusals()["region"]
        given, handle = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")
        output = module(protocol).InferOutput("OUTPUT0", [10], "FP32")
        assert client.infer("identity_fp32", [given], outputs=[output]).as_numpy("OUTPUT0").tolist() == list(range(10))
        assert not handle.is_shared
    with server.client(protocol, buffers="region") as client:
        with pytest.raises(InferenceServerException, match="disabled"):
            client.register_input_tensor_with_shared_memory([10], "FP32")


LEASE_CODE = """
import os, sys
import numpy as np
import nerite.http, nerite.grpc
module = getattr(nerite, sys.argv[1])
client = module.InferenceServerClient(sys.argv[2])
handle = client.register_input_tensor_with_shared_memory([10], "FP32")
handle.as_numpy()[...] = np.arange(10)
given = module.InferInput("INPUT0", [10], "FP32").set_shared_memory_request(handle)
result = client.infer("identity_fp32", [given], outputs=[module.InferOutput("OUTPUT0", [10], "FP32")])
assert result.as_numpy("OUTPUT0").tolist() == list(range(10))
print(client.buffer_transport, client._buffers.refusals().get("lease"))
"""


@pytest.mark.parametrize("other_url", [False, True])
def test_the_session_socket_is_found_and_only_used_for_its_own_server(launcher, protocol, other_url):
    server, other = launcher.get("nerite"), launcher.get("nerite", "--allow-client-shm=false", "--session-socket=off")
    url = (other if other_url else server).url(protocol)
    environment = {**os.environ, "NERITE_SESSION_SOCKET": server.session_socket}
    ended = subprocess.run(
        [sys.executable, "-c", LEASE_CODE, protocol, url], env=environment, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == 0
    if other_url:
        assert ended.stdout.startswith("inline ")
        assert "is not seen to be that of" in ended.stdout
    else:
        assert ended.stdout == "lease None\n"


def test_buffers_are_sent_in_another_way_when_the_quota_is_used_up(launcher, protocol):
    server = launcher.get("nerite", "--lease-max-bytes=1048576", "--session-max-bytes=524288")
    with server.client(protocol, session_socket=server.session_socket) as client:
        handles = [client.register_input_tensor_with_shared_memory([70_000], "FP32") for _ in range(3)]
        kinds = ["lease" if one._block.slab.name.startswith("lease-") else "region" for one in handles]
        assert kinds == ["lease", "region", "region"]
        for handle in handles:
            given = module(protocol).InferInput("INPUT0", [70_000], "FP32").set_shared_memory_request(handle)
            handle.as_numpy()[...] = 2
            output = module(protocol).InferOutput("OUTPUT0", [70_000], "FP32")
            assert client.infer("identity_fp32", [given], outputs=[output]).as_numpy("OUTPUT0").sum() == 140_000
    with server.client(protocol, buffers="lease") as client:
        client.register_input_tensor_with_shared_memory([70_000], "FP32")
        with pytest.raises(InferenceServerException, match="lease: .*bytes"):
            client.register_input_tensor_with_shared_memory([200_000], "FP32")


def test_a_server_on_another_host_gets_inline_bytes(server, protocol, monkeypatch):
    monkeypatch.setattr(_transports, "is_this_host", lambda url: False)
    with server.client(protocol) as client:
        given, handle = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")
        assert not handle.is_shared
        assert client.infer("identity_fp32", [given]).as_numpy("OUTPUT0").tolist() == list(range(10))


@pytest.mark.parametrize(
    ("url", "host", "here"),
    [
        ("localhost:8000", "localhost", True),
        ("127.0.0.1:8000/base", "127.0.0.1", True),
        ("[::1]:8001", "::1", True),
        ("unix:/run/x", "", True),
        ("dns:///127.0.0.5:8001", "127.0.0.5", True),
        ("192.0.2.1:8000", "192.0.2.1", False),
        ("no-such-host.invalid:8000", "no-such-host.invalid", False),
    ],
)
def test_a_url_tells_whether_its_server_can_be_here(url, host, here):
    assert _transports.host_of(url) == host
    assert _transports.is_this_host(url) == here


def test_new_buffers_work_after_the_server_was_restarted(launcher, protocol):
    # The port is another one then; the registration alone is what the server loses.
    server = launcher.get("nerite")
    with server.client(protocol, buffers="region") as client:
        given, handle = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")
        client.unregister_system_shared_memory(handle._block.slab.name)
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            client.infer("identity_fp32", [given])
        again, _ = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")
        assert client.infer("identity_fp32", [again]).as_numpy("OUTPUT0").tolist() == list(range(10))


def test_objects_of_killed_processes_are_removed_and_no_others():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    old, prefix = time.time() - 3600, _transports.POOL_PREFIX
    cases = {  # name: (age, swept)
        f"{prefix}-{gone.pid}-a": (old, True),
        f"{prefix}-{gone.pid}-b": (time.time(), False),
        f"{prefix}-{os.getpid()}-c": (old, False),
        f"{prefix}-x-d": (old, False),
        f"nerite-{gone.pid}-e": (old, False),
    }
    for name, (age, _) in cases.items():
        path = pathlib.Path("/dev/shm") / name
        path.write_bytes(b"")
        os.utime(path, (age, age))
    _transports.sweep_orphans()
    left = {name for name in cases if os.path.exists(f"/dev/shm/{name}")}
    for name in left:
        os.unlink(f"/dev/shm/{name}")
    assert left == {name for name, (_, swept) in cases.items() if not swept}


def test_a_server_that_dies_is_an_error_and_a_new_one_is_used(launcher, protocol):
    m, first = module(protocol), launcher.fresh("nerite")
    with first.client(protocol, session_socket=first.session_socket) as client:
        assert client.buffer_transport == "lease"
        given, handle = managed(client, protocol, np.arange(10, dtype=np.float32), "FP32")
        kept = client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0", [10], "FP32")]).as_numpy("OUTPUT0")
        first.process.process.kill()
        first.process.process.wait()
        with pytest.raises(Exception, match="(?i)refused|unavailable|closed|reset|connect"):
            client.infer("identity_fp32", [given], outputs=[m.InferOutput("OUTPUT0", [10], "FP32")])
        # Without a server there is nothing to share; that is said by the request, not by the buffer.
        assert not client.register_input_tensor_with_shared_memory([10], "FP32").is_shared
        handle.as_numpy()[:] = 1
        assert kept.tolist() == list(range(10))


def test_no_shared_object_is_left_after_the_tests():
    gc.collect()
    assert shared_objects() == set()
