"""Is a model called as a function, by every way, and does it give what it should?"""

import asyncio
import collections
import contextlib
import gc
import importlib
import importlib.util
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import catalogue
import numpy as np
import pytest
from peers import Found
from session_server import SessionServer
from tritonclient.utils import InferenceServerException

import nerite
from nerite import _connection, _messages, _protobuf

WAYS = ["session", "lease", "region", "inline"]
NUMBERS = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64"]


def connected(server: Found, way: str, protocol: str = "http", **options):
    if way == "session":
        if server.session_socket is None:
            pytest.skip("this server has no sessions")
        return nerite.connect(f"unix:{server.session_socket}", **options)
    if way == "lease" and server.session_socket is None:
        pytest.skip("this server lends no memory")
    # A socket that is not there: the session is not found, but buffers may be leases.
    made = nerite.connect(f"{protocol}://{server.url(protocol)}", buffers="inline" if way == "inline" else way, **options)
    return made


# It returns its input. While there is the file `hold`, it makes the file `begun` and does not end.
HELD = """
import pathlib, time
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path({folder!r})

class TritonPythonModel:
    def execute(self, requests):
        while (FOLDER / "hold").exists():
            (FOLDER / "begun").touch()
            time.sleep(0.01)
        given = [pb_utils.get_input_tensor_by_name(one, "INPUT0").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one)]) for one in given]
"""


class Held:
    """The model `held`, which runs for as long as the test wants. A server with the flag `flag` has it."""

    def __init__(self, folder):
        self.begun, self._hold = folder / "begun", folder / "hold"
        self.flag = f"--model-repository={folder / 'held'}"
        model = folder / "held" / "held"
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(HELD.format(folder=str(folder)))
        (model / "config.pbtxt").write_text(catalogue.config_text(catalogue.identity("held", ("FP32", (-1,))), 'backend: "python"'))

    def hold(self):
        self.begun.unlink(missing_ok=True)
        self._hold.touch()

    def wait_until_begun(self):
        deadline = time.monotonic() + 60
        while not self.begun.exists():
            assert time.monotonic() < deadline, "the model never has the request"
            time.sleep(0.01)

    def go_on(self):
        self._hold.unlink()


@pytest.fixture
def held(tmp_path, monkeypatch) -> Held:
    # The model runs in this Python, which has numpy.
    monkeypatch.setenv("PATH", os.path.join(sys.prefix, "bin"), prepend=os.pathsep)
    return Held(tmp_path)


@contextlib.contextmanager
def stopped(server: Found):
    """The server reads and answers nothing meanwhile."""
    os.kill(server.process.pid, signal.SIGSTOP)
    # Its threads stop a little later than the signal is sent.
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


@pytest.fixture
def nerite_server(launcher) -> Found:
    return launcher.get("nerite")


@pytest.fixture
def client(nerite_server):
    with connected(nerite_server, "session") as made:
        yield made


@pytest.fixture(params=["session", "http-region", "http-inline", "grpc-region", "grpc-inline"])
def any_client(request, server):
    protocol, _, way = request.param.rpartition("-")
    with connected(server, way or "session", protocol or "http") as made:
        assert made.transport == (way or "session")
        yield made


def test_a_model_is_called_with_arrays_by_name_and_in_order(any_client):
    simple = any_client.model("simple")
    left, right = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    for _ in range(3):
        for response in (simple(INPUT0=left, INPUT1=right), simple(left, right), simple({"INPUT0": left, "INPUT1": right})):
            assert response["OUTPUT0"].tolist() == (left + right).tolist()
            assert response.OUTPUT1.tolist() == (left - right).tolist()
            total, difference = response
            assert total is response["OUTPUT0"] and difference is response["OUTPUT1"]
            assert (response.model, response.version, list(response.keys())) == ("simple", "1", ["OUTPUT0", "OUTPUT1"])
    only = simple(left, right, outputs=["OUTPUT1"])
    assert list(only.keys()) == ["OUTPUT1"]
    assert np.asarray(only).tolist() == (left - right).tolist()


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_each_datatype_come_back_as_they_were(any_client, datatype):
    identity = any_client.model(f"identity_{datatype.lower()}")
    dtype = _connection.element_dtype(datatype)
    raw = np.random.default_rng(3).integers(0, 256, 40 * dtype.itemsize, dtype=np.uint8)
    array = (raw % 2).astype(bool) if datatype == "BOOL" else raw.view(dtype)
    for size in (40, 40, 40, 7, 40, 1):
        (found,) = identity(array[:size])
        assert found.dtype == dtype and found.tobytes() == array[:size].tobytes()


def test_texts_come_back_as_they_were(any_client):
    identity = any_client.model("identity_bytes")
    for texts in (["a", b"\0\xff", ""], ["größer"], [b"x" * 9000, b"y"]):
        (found,) = identity(texts)
        assert found.tolist() == [one if isinstance(one, bytes) else one.encode() for one in texts]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_numbers_are_no_texts(client, dtype):
    with pytest.raises(InferenceServerException, match="input 'INPUT0': got unexpected datatype .* from numpy array, expected BYTES"):
        client.model("identity_bytes")(np.ones(2, dtype))


def test_lists_and_numbers_are_converted_where_nothing_is_lost(any_client):
    identity = any_client.model("identity_fp32")
    assert identity([1, 2.5])["OUTPUT0"].tolist() == [1, 2.5]
    assert identity(np.arange(3, dtype=np.int8))["OUTPUT0"].tolist() == [0, 1, 2]
    assert identity(memoryview(np.ones(2, np.float32)))["OUTPUT0"].tolist() == [1, 1]
    assert identity(np.arange(6, dtype=np.float32)[::2])["OUTPUT0"].tolist() == [0, 2, 4]
    for lost in (np.ones(2, np.float64), ["text"], np.ones(2, np.int64)):
        with pytest.raises(InferenceServerException):
            identity(lost)
    with pytest.raises(InferenceServerException, match="INT32"):
        any_client.model("identity_int32")([1.5])


def test_errors_name_the_mistake_and_the_client_stays_usable(any_client):
    simple = any_client.model("simple")
    ones = np.ones((1, 16), np.int32)
    with pytest.raises(TypeError, match="no input 'INPUT9', it takes INPUT0, INPUT1"):
        simple(INPUT0=ones, INPUT9=ones)
    with pytest.raises(TypeError, match="takes 2 inputs, 3 were given"):
        simple(ones, ones, ones)
    with pytest.raises(InferenceServerException, match="expected 2 inputs but got 1"):
        simple(ones)
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        simple(ones[:, :3], ones[:, :3])
    with pytest.raises(InferenceServerException, match="unexpected inference output"):
        simple(ones, ones, outputs=["NOTHING"])
    with pytest.raises(InferenceServerException, match="nothing_there"):
        any_client.model("nothing_there")(ones)
    with pytest.raises(AttributeError, match="the response has OUTPUT0, OUTPUT1"):
        simple(ones, ones).OUTPUT7
    assert simple(ones, ones).OUTPUT0[0, 0] == 2


def test_a_model_says_what_it_takes(any_client):
    simple = any_client.model("simple")
    assert [(one.name, one.datatype, one.shape) for one in simple.inputs] == [
        ("INPUT0", "INT32", (-1, 16)),
        ("INPUT1", "INT32", (-1, 16)),
    ]
    assert repr(simple) == (
        "<Model 'simple' (INPUT0: INT32[-1, 16], INPUT1: INT32[-1, 16]) -> (OUTPUT0: INT32[-1, 16], OUTPUT1: INT32[-1, 16])>"
    )
    assert "simple(INPUT0=…, INPUT1=…)" in simple.help() and "gives OUTPUT1: INT32 [-1, 16]" in simple.help()
    with pytest.raises(InferenceServerException, match=f"unknown model: 'nothing' .*{re.escape(any_client._where)}"):
        any_client.model("nothing")


def test_single_rows_lose_nothing_but_the_batch_dimension(any_client):
    simple = any_client.model("simple", batch=False)
    for _ in range(2):
        response = simple(np.arange(16, dtype=np.int32), list(range(16)))
        assert response.OUTPUT0.tolist() == list(range(0, 32, 2))


def test_a_first_dimension_that_was_given_stays(any_client):
    simple, identity = any_client.model("simple", batch=False), any_client.model("identity_fp32", batch=False)
    row, rows = np.arange(16, dtype=np.int32), np.arange(32, dtype=np.int32).reshape(2, 16)
    for _ in range(3):
        assert simple(rows, rows).OUTPUT0.tolist() == (2 * rows).tolist()
        assert simple(rows[:1], rows[:1]).OUTPUT0.shape == (1, 16), "the row came with its dimension"
        assert simple(row, row).OUTPUT0.shape == (16,)
        # A model whose only dimension is variable: a number is a row, and an array of shape [1] is all it takes.
        assert identity([5.0]).OUTPUT0.tolist() == [5]
        assert identity(5.0).OUTPUT0.tolist() == 5 and identity(5.0).OUTPUT0.shape == ()
    assert [one.OUTPUT0.shape for one in simple.batch([(row, row), (rows, rows)])] == [(16,), (2, 16)]
    text = any_client.model("identity_bytes", batch=False)
    assert (text(["a"]).OUTPUT0.tolist(), text("a").OUTPUT0.tolist()) == ([b"a"], b"a")


class OnlyDlpack:
    """An array of a library that speaks DLPack alone, on a device or on the host."""

    def __init__(self, array, kind=1, can_copy=True):
        self.array, self.kind, self.can_copy = array, kind, can_copy

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self.kind != 1 and (dl_device != (1, 0) or not self.can_copy):
            raise BufferError("it is on the device")
        return self.array.__dlpack__()


def test_arrays_of_other_libraries_are_taken(any_client):
    identity = any_client.model("identity_fp32")
    array = np.arange(6, dtype=np.float32)
    # Libraries of DLPack 1.0 copy from their device to the host.
    given = [OnlyDlpack(array), OnlyDlpack(array[::2]), OnlyDlpack(array, kind=2)]
    for library in ("torch", "jax.numpy"):
        try:
            given.append(importlib.import_module(library).asarray(array))
        except ImportError:
            pass
    for one in given:
        assert identity(one).OUTPUT0.tolist() == np.from_dlpack(OnlyDlpack(one.array) if isinstance(one, OnlyDlpack) else one).tolist()
    with pytest.raises(InferenceServerException, match="bring it to the host first, with .cpu"):
        identity(OnlyDlpack(array, kind=2, can_copy=False))


def test_options_are_obeyed_or_refused(nerite_server, monkeypatch):
    socket, infer = nerite_server.session_socket, lambda made: made.model("identity_fp32")([1.5]).OUTPUT0.tolist()
    for protocol in ("http", "grpc"):
        url = f"{protocol}://{nerite_server.url(protocol)}"
        for way, transport in (("inline", "inline"), ("region", "region"), ("lease", "lease"), ("auto", "lease")):
            with nerite.connect(url, session_socket=socket, buffers=way) as made:
                assert (made.transport, infer(made)) == (transport, [1.5])
        with pytest.raises(TypeError, match=f"over {'HTTP' if protocol == 'http' else 'gRPC'} has no option 'nonsense', it takes verbose, .*buffers"):
            nerite.connect(url, session_socket=socket, nonsense=3)
    with nerite.connect(f"http://{nerite_server.http}", session_socket=socket, concurrency=2) as made:
        assert infer(made) == [1.5]
    with nerite.connect(f"unix:{socket}", buffers="lease") as made:
        assert (made.transport, infer(made)) == ("session", [1.5])
    with pytest.raises(ValueError, match="buffers='inline' does not go with a session socket.*name an http:// or grpc:// address"):
        nerite.connect(f"unix:{socket}", buffers="inline")
    with pytest.raises(TypeError, match="to a session socket has no option 'nonsense'"):
        nerite.connect(f"unix:{socket}", nonsense=3)
    # Without an address.
    monkeypatch.setenv("NERITE_SESSION_SOCKET", socket)
    with pytest.raises(TypeError, match="without an address has no option 'nonsense'"):
        nerite.connect(nonsense=3)
    monkeypatch.setattr("nerite._client.HTTP_DEFAULT", f"http://{nerite_server.http}")
    with nerite.connect(buffers="inline") as made:
        assert (made.transport, infer(made)) == ("inline", [1.5])
    with nerite.connect() as made:
        assert (made.transport, infer(made)) == ("session", [1.5])


def test_an_output_of_bf16_supports_dlpack(any_client):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from nerite.model import dlpack

    identity = any_client.model("identity_bf16")
    given = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    of_batch = [one.OUTPUT0 for one in identity.batch([given] * 3)]
    for output in [identity(given).OUTPUT0 for _ in range(3)] + of_batch + [asyncio.run(identity.aio(given)).OUTPUT0]:
        assert (output.dtype, output.tolist(), output.__dlpack_device__()) == (given.dtype, given.tolist(), (1, 0))
        datatype, bits = dlpack.borrowed(output)
        assert (datatype, bits.tolist()) == ("BF16", given.view(np.uint16).tolist())
        assert np.shares_memory(bits, output) == output.flags.writeable
        assert dlpack.borrowed(output[::2])[1].tolist() == given.view(np.uint16)[::2].tolist()
        # numpy has no BF16. It drops the capsule.
        lent = len(dlpack._lent)
        with pytest.raises(Exception):
            np.from_dlpack(output)
        assert len(dlpack._lent) == lent
        # Other arrays of numpy are as they were.
        assert np.from_dlpack(output.astype(np.float32)).tolist() == given.tolist()
        assert type(np.asarray(output)) is type(pickle.loads(pickle.dumps(output))) is np.ndarray
        assert identity(output).OUTPUT0.tolist() == given.tolist()
    assert type(any_client.model("identity_fp32")([1.0]).OUTPUT0) is np.ndarray
    if importlib.util.find_spec("torch"):
        assert importlib.import_module("torch").from_dlpack(output).tolist() == given.tolist()


def test_memory_of_bf16_is_used_again_when_nobody_refers_to_it(client):
    identity, kept = client.model("identity_bf16"), []
    for number in range(100):
        output = identity([float(number % 64)] * 4).OUTPUT0
        if number % 10 == 0:
            kept.append((number % 64, output[1:3]))
    assert all(view.tolist() == [number] * 2 for number, view in kept)
    (connection,) = client._all
    assert connection.slots < 20


def test_an_id_and_parameters_go_with_a_request(any_client):
    simple = any_client.model("simple")
    ones = np.ones((1, 16), np.int32)
    response = simple(ones, ones, id="mine", parameters={"priority": 0})
    assert (response.id, response.OUTPUT0[0, 0]) == ("mine", 2)


@pytest.mark.parametrize(("way", "protocol"), [("session", ""), ("region", "http"), ("inline", "grpc")])
def test_a_sequence_is_named_with_its_start_and_end(nerite_server, way, protocol):
    with connected(nerite_server, way, protocol) as made:
        model = made.model("sequence_int32")
        one = np.ones((1, 1), np.int32)
        number = {"session": 71, "region": 72, "inline": "a name"}[way]
        with pytest.raises(InferenceServerException, match="(?i)start"):
            model(one, sequence=number)
        for marked in ((number, "start"), number, (number, "end"), (number, "start", "end")):
            assert model(one, sequence=marked).OUTPUT0.tolist() == [[1]]
        with pytest.raises(ValueError, match="'start' or 'end', not 'begin'"):
            model(one, sequence=(number, "begin"))


@pytest.mark.parametrize(("way", "protocol"), [("session", ""), ("region", "http"), ("inline", "grpc")])
def test_numbers_that_would_become_others_are_refused_before_anything_is_sent(nerite_server, way, protocol):
    with connected(nerite_server, way, protocol) as made:
        model, one = made.model("sequence_int32"), np.ones((1, 1), np.int32)
        for number in (2**64 + 581, 2**64, -1, 2**70):
            for call in (model, lambda *given, **named: asyncio.run(model.aio(*given, **named))):
                with pytest.raises(ValueError, match=f"sequence {number} is none of the numbers from 0 to {2**64 - 1}; name it by a str"):
                    call(one, sequence=(number, "start"))
        with pytest.raises(InferenceServerException, match="(?i)start"):
            model(one, sequence=581)
        for number in (np.int64(581), np.uint64(2**64 - 1), 2**63):
            assert model(one, sequence=(number, "start", "end")).OUTPUT0.tolist() == [[1]]
        with pytest.raises(TypeError, match="a sequence is a whole number or a str, got 5.0"):
            model(one, sequence=5.0)
        for number in (2**63, -(2**63) - 1, 2**70):
            with pytest.raises(ValueError, match=f"parameter 'k' is {number}, whole numbers go from {-(2**63)} to {2**63 - 1}; give it as a str"):
                model(one, parameters={"k": number})
        with pytest.raises(ValueError, match="sequence"):
            model(one, parameters={"sequence_id": 2**64})
        with pytest.raises(TypeError, match="parameter 'k' is None; parameters are bool, int, float or str"):
            model(one, parameters={"k": None})


def test_many_at_once_are_answered_in_order(any_client):
    identity = any_client.model("identity_int32")
    for _ in range(3):
        found = identity.batch([np.full(5, number, np.int32) for number in range(70)])
        assert [one.OUTPUT0.tolist() for one in found] == [[number] * 5 for number in range(70)]
        del found
    mixed = identity.batch([np.ones(2, np.int32), {"INPUT0": [7]}, ([8, 9],)])
    assert [one.OUTPUT0.tolist() for one in mixed] == [[1, 1], [7], [8, 9]]


def test_one_of_many_fails_alone(client):
    simple = client.model("simple")
    good, bad = np.ones((1, 16), np.int32), np.ones((1, 3), np.int32)
    outcomes = simple.batch([(good, good), (bad, bad), (good, good)], return_errors=True)
    assert [isinstance(one, Exception) for one in outcomes] == [False, True, False]
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        simple.batch([(good, good), (bad, bad)])


def test_futures_and_asyncio(any_client):
    identity = any_client.model("identity_int32")
    futures = [identity.submit(np.full(3, number, np.int32)) for number in range(20)]
    assert [one.result().OUTPUT0[0] for one in futures] == list(range(20))

    async def all_of_them():
        return await asyncio.gather(*(identity.aio([number]) for number in range(20)))

    assert [one.OUTPUT0[0] for one in asyncio.run(all_of_them())] == list(range(20))


def test_threads_share_a_client(any_client):
    identity = any_client.model("identity_int32")
    wrong = []

    def infer(number):
        for round in range(30):
            value = number * 1000 + round
            if identity(np.full(9, value, np.int32)).OUTPUT0.tolist() != [value] * 9:
                wrong.append(value)

    threads = [threading.Thread(target=infer, args=(number,)) for number in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_a_child_process_connects_anew_and_leaves_its_parent_alone(client):
    identity = client.model("identity_int32")
    mine = identity([1, 2, 3]).OUTPUT0
    child = os.fork()
    if child == 0:
        try:
            ok = all(identity([number]).OUTPUT0[0] == number for number in range(50))
            os._exit(0 if ok and mine.tolist() == [1, 2, 3] else 1)
        except BaseException:
            os._exit(2)
    for number in range(50):
        assert identity([number]).OUTPUT0[0] == number
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert identity([9]).OUTPUT0[0] == 9


def test_a_child_process_over_http_connects_anew(server):
    with connected(server, "region") as made:
        identity = made.model("identity_int32")
        assert identity([1]).OUTPUT0[0] == 1
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                os._exit(0 if all(identity([number]).OUTPUT0[0] == number for number in range(20)) else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert identity([9]).OUTPUT0[0] == 9


FORK_OVER_GRPC = """
import os, signal, sys
import nerite

# A test that hangs ends.
signal.alarm(60)
with nerite.connect(f"grpc://{sys.argv[1]}", session_socket="/nonexistent/session.sock", buffers=sys.argv[2]) as made:
    identity = made.model("identity_int32")
    for number in range(3):
        assert identity([number]).OUTPUT0[0] == number
    children = []
    for first in (10, 20):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            try:
                os._exit(0 if all(identity([first + number]).OUTPUT0[0] == first + number for number in range(5)) else 1)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(2)
        children.append(child)
        assert identity([9]).OUTPUT0[0] == 9
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    assert identity([9]).OUTPUT0[0] == 9
"""


@pytest.mark.parametrize("way", ["region", "inline"])
def test_a_child_process_over_grpc_connects_anew(nerite_server, way):
    # In a process of its own, whose threads are few.
    ended = subprocess.run(
        [sys.executable, "-c", FORK_OVER_GRPC, nerite_server.grpc, way], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=90
    )
    assert (ended.returncode, ended.stdout) == (0, "[0, 0]\n"), ended.stderr


def test_outputs_live_for_as_long_as_they_are_referred_to(client):
    identity = client.model("identity_int32")
    kept = []
    for number in range(300):
        view = identity(np.full(16, number, np.int32)).OUTPUT0[3:5]
        if number % 10 == 0:
            kept.append((number, view, np.from_dlpack(view)))
    # Whatever keeps the memory keeps it: a view on the base, and a memoryview.
    output = identity(np.full(16, 1000, np.int32)).OUTPUT0
    others = [output.base[:8].view(np.ndarray).view(np.int32), np.frombuffer(memoryview(output), np.int32)]
    del output
    for number in range(20):
        identity(np.full(16, number, np.int32))
    gc.collect()
    assert all(np.all(one == 1000) for one in others)
    assert all(view.tolist() == [number] * 2 == seen.tolist() for number, view, seen in kept)
    last = kept[-1][1]
    client.close()
    assert last.tolist() == [290, 290]


def test_more_outputs_are_kept_than_the_server_prepares(client):
    identity = client.model("identity_int32")
    kept = [identity(np.full(16, number, np.int32)).OUTPUT0 for number in range(600)]
    assert [int(one[0]) for one in kept] == list(range(600))
    (connection,) = client._all
    assert connection.slots <= _connection.SLOTS_MAX
    for shape in range(1, 150):
        identity(np.ones(shape, np.int32))
        identity(np.ones(shape, np.int32))
    assert connection.slots <= _connection.SLOTS_MAX and len(connection.plans) <= _connection.PLANS_MAX
    assert [int(one[-1]) for one in kept] == list(range(600))
    assert identity([5]).OUTPUT0[0] == 5


def test_memory_is_used_again_when_nobody_refers_to_it(client):
    identity = client.model("identity_int32")
    array = np.ones(1 << 18, np.int32)
    for _ in range(200):
        identity(array)
    (connection,) = client._all
    assert connection.pool.census()["bytes"] <= 12 << 20
    assert connection.slots <= 3


def test_a_call_is_one_packet_of_six_bytes_and_one_of_four(client):
    identity = client.model("identity_fp32")
    array = np.ones(16, np.float32)
    for _ in range(3):
        identity(array)
    (connection,) = client._all
    sent, received = [], []
    send, receive = connection.send_packet, connection.receive_packet
    connection.send_packet = lambda packet: (sent.append(len(packet)), send(packet))[1]

    def counted(buffer):
        received.append(receive(buffer))
        return received[-1]

    connection.receive_packet = counted
    before = client.copied_bytes
    for _ in range(50):
        identity(array)
    assert (sent, received) == ([6] * 50, [4] * 50)
    assert client.copied_bytes - before == 50 * 64
    identity.batch([array] * 32)
    sent.clear()
    received.clear()
    identity.batch([array] * 32)
    assert (len(sent), len(received)) == (1, 1), "one packet each way for 32 calls"


def test_a_call_runs_few_functions_and_one_of_many_fewer(client):
    identity = client.model("identity_fp32")
    array = np.ones(16, np.float32)
    many = [array] * 32

    def functions(infer):
        for _ in range(4):
            infer()
        counted = collections.Counter()
        sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
        try:
            infer()
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert functions(lambda: identity(array)) <= 9
    # For each the constructor of its response, and 28 for all. They were nine for each.
    assert functions(lambda: identity.batch(many)) <= 32 + 31


def test_many_calls_stay_one_packet_while_results_are_kept(client):
    identity = client.model("identity_fp32")
    many = [np.full(16, number, np.float32) for number in range(32)]
    kept = [identity.batch(many) for _ in range(3)]
    for _ in range(3):
        identity.batch(many)
    (connection,) = client._all
    sent, send = [], connection.send_packet
    connection.send_packet = lambda packet: (sent.append(len(packet)), send(packet))[1]
    for _ in range(20):
        # Nobody keeps these. The slots of the kept ones come up again and again.
        found = identity.batch(many)
        assert [one.OUTPUT0[0] for one in found] == list(range(32))
        del found
    assert len(sent) == 20, "one packet for each 32 calls"
    assert all(one.OUTPUT0.tolist() == array.tolist() for results in kept for one, array in zip(results, many))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_call_costs_two_system_calls(nerite_server, tmp_path):
    code = (
        "import os, sys, numpy as np, nerite\n"
        f"model = nerite.connect('unix:{nerite_server.session_socket}').model('identity_fp32')\n"
        "array = np.ones(16, np.float32)\n"
        "for _ in range(10): model(array)\n"
        "os.write(1, b'BEGIN')\n"
        "for _ in range(500): model(array)\n"
        "os.write(1, b'END')\n"
    )
    # By the thread that calls alone: libraries have others.
    command = ["strace", "-o", str(tmp_path / "calls"), sys.executable, "-c", code]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    if "Operation not permitted" in ended.stdout:
        pytest.skip("this system lets nobody trace")
    assert ended.returncode == 0, ended.stdout
    lines = (tmp_path / "calls").read_text().splitlines()
    first, last = (next(at for at, line in enumerate(lines) if word in line) for word in ("BEGIN", '"END'))
    named = [line.split("(", 1)[0] for line in lines[first + 1 : last]]
    assert (named.count("sendto"), named.count("recvfrom"), len(named)) == (500, 500, 1000), collections.Counter(named)


def test_a_lent_buffer_is_read_where_it_lies(any_client):
    identity = any_client.model("identity_fp32")
    buffer = identity.input("INPUT0", [16])
    before = any_client.copied_bytes
    for number in range(10):
        buffer[:] = number
        assert identity().OUTPUT0.tolist() == [number] * 16
    if any_client.transport == "session":
        assert any_client.copied_bytes == before
    assert identity(np.full(3, 7, np.float32)).OUTPUT0.tolist() == [7] * 3
    assert identity().OUTPUT0.tolist() == [9] * 16


def test_a_lent_buffer_cannot_be_written_to_while_a_request_is_in_flight(client, nerite_server):
    identity = client.model("identity_fp32")
    buffer = identity.input("INPUT0", [4])
    buffer[...] = 0.3
    with stopped(nerite_server):
        future = identity.submit()
        with pytest.raises(ValueError, match="read-only"):
            buffer[...] = 1
    future.result()
    deadline = time.monotonic() + 60
    while not buffer.flags.writeable and time.monotonic() < deadline:
        time.sleep(0.001)
    buffer[...] = 0


def test_a_lent_buffer_may_be_a_single_row(any_client):
    rows, whole = any_client.model("simple", batch=False), any_client.model("simple")
    first, second = rows.input("INPUT0"), rows.input("INPUT1", [16])
    assert first.shape == (16,)
    first[:], second[:] = 3, 1
    for response in (rows(), rows(), rows.submit().result(), asyncio.run(rows.aio()), *rows.batch([{}, {}])):
        assert response.OUTPUT0.tolist() == [4] * 16 and response.OUTPUT1.tolist() == [2] * 16
    assert rows(INPUT1=np.full(16, 2, np.int32)).OUTPUT0.tolist() == [5] * 16
    # All dimensions may be given as well.
    rows.input("INPUT0", [1, 16])[:], rows.input("INPUT1", [1, 16])[:] = 1, 1
    assert rows().OUTPUT0.tolist() == [[2] * 16]
    whole.input("INPUT0")[:], whole.input("INPUT1")[:] = 1, 1
    assert whole().OUTPUT0.tolist() == [[2] * 16]


def test_a_lent_buffer_cannot_be_written_to_while_a_batch_is_in_flight(client, monkeypatch):
    identity = client.model("identity_fp32")
    buffer, written = identity.input("INPUT0", [4]), []

    def infer_many(*given):
        # As another thread would.
        with pytest.raises(ValueError, match="read-only"):
            buffer[:] = 1
        written.append(given)
        return type(identity)._infer_many(identity, *given)

    monkeypatch.setattr(identity, "_infer_many", infer_many)

    def requests():
        for _ in range(40):
            # The buffer may be filled before.
            buffer[:] = 3
            yield {}

    assert [one.OUTPUT0.tolist() for one in identity.batch(requests())] == [[3] * 4] * 40
    assert len(written) == 2
    buffer[:] = 5
    with pytest.raises(InferenceServerException):
        identity.batch([np.ones(4, np.int64)])
    buffer[:] = 6


def test_a_request_that_takes_too_long_is_given_up(any_client):
    slow = any_client.model("slow_fp32")
    shape = [abs(dim) for dim in slow.inputs[0].shape]
    slow(np.zeros(shape, np.float32))
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="given up"):
        slow(np.full(shape, 3, np.float32), timeout=0.1)
    assert time.monotonic() - started < 2.5
    assert slow(np.zeros(shape, np.float32), timeout=30)


class Repeats(SessionServer):
    """A server whose one model answers with each number of its input."""

    def _take(self, connection, packet):
        fields = dict(_protobuf.decode(packet))
        number = fields.get(1, 0)
        if 16 in fields:
            tensor = [(2, "INT32"), (3, _messages.packed([-1]))]
            metadata = [(kind, _protobuf.encode([(1, name), *tensor])) for kind, name in ((4, "IN"), (5, "OUT"))]
            self._say(connection, number, [(15, _protobuf.encode([(1, _protobuf.encode(metadata))]))])
        elif 8 in fields:
            for value in (3, 1, 2):
                output = _protobuf.encode([(1, "OUT"), (2, "INT32"), (3, _messages.packed([1]))])
                response = _protobuf.encode([(1, "repeat"), (5, output), (6, np.int32(value).tobytes())])
                self._say(connection, number, [(3, 1), (9, _protobuf.encode([(1, response)]))])
            self._say(connection, number, [(9, b"")])
        elif 9 not in fields:
            super()._take(connection, packet)

    @staticmethod
    def _say(connection, number, fields):
        connection.send(_protobuf.encode([(1, number), *fields]))


def test_a_decoupled_model_gives_its_responses_one_by_one(tmp_path):
    server = Repeats(tmp_path / "s")
    with nerite.connect(f"unix:{server.path}") as made:
        repeat = made.model("repeat")
        for _ in range(2):
            assert [int(one.OUT[0]) for one in repeat.stream([3, 1, 2])] == [3, 1, 2]

        async def gathered():
            return [int(one.OUT[0]) async for one in repeat.aio_stream(IN=[3, 1, 2])]

        assert asyncio.run(gathered()) == [3, 1, 2]
        assert [int(one.OUT[0]) for one, _ in zip(repeat.stream([3, 1, 2]), range(1))] == [3]
        with pytest.raises(InferenceServerException, match="several responses; ask it by .stream"):
            repeat([1])
        assert [int(one.OUT[0]) for one in repeat.stream([3, 1, 2])] == [3, 1, 2]
    server.close()


def test_a_model_that_is_loaded_anew_is_asked_all_the_same(launcher):
    server = launcher.fresh("nerite", "--model-control-mode=explicit", "--load-model=identity_fp32")
    import nerite.http

    with connected(server, "session") as made, nerite.http.InferenceServerClient(server.http) as control:
        identity = made.model("identity_fp32")
        for _ in range(3):
            assert identity([1.0]).OUTPUT0.tolist() == [1]
        control.unload_model("identity_fp32")
        with pytest.raises(InferenceServerException):
            identity([1.0])
        control.load_model("identity_fp32")
        assert identity([2.0]).OUTPUT0.tolist() == [2]


def test_a_server_that_was_started_anew_is_found(launcher):
    import servers

    first = launcher.fresh("nerite")
    with connected(first, "session") as made:
        identity = made.model("identity_fp32")
        kept = identity([1.0, 2.0]).OUTPUT0
        identity([1.0, 2.0])
        servers.stop(first.process)
        with pytest.raises(ConnectionError):
            identity([3.0])
        second = launcher.fresh("nerite", f"--session-socket={first.session_socket}")
        assert second.session_socket
        assert identity([4.0, 5.0]).OUTPUT0.tolist() == [4, 5]
        assert identity([6.0, 7.0]).OUTPUT0.tolist() == [6, 7]
        assert kept.tolist() == [1, 2]


def test_a_request_that_was_sent_to_a_server_that_died_is_not_sent_again(launcher, held):
    server = launcher.fresh("nerite", held.flag)
    with connected(server, "session") as made:
        model = made.model("held")
        model([0.0])
        held.hold()
        future = model.submit([5.0])
        held.wait_until_begun()
        server.process.process.kill()
        with pytest.raises(ConnectionError, match="before it answered"):
            future.result(timeout=60)


def test_without_an_address_the_session_of_this_user_is_used(nerite_server, monkeypatch):
    monkeypatch.setenv("NERITE_SESSION_SOCKET", nerite_server.session_socket)
    with nerite.connect() as made:
        assert made.transport == "session"
        assert made.model("identity_fp32")([1.0]).OUTPUT0.tolist() == [1]
    for protocol in ("http", "grpc"):
        with nerite.connect(f"{protocol}://{nerite_server.url(protocol)}") as made:
            assert made.transport == "lease", "the server behind the address is that of the socket"


def test_a_wrong_address_is_an_error_that_says_so(tmp_path):
    with pytest.raises(ConnectionError, match="no session at"):
        nerite.connect(f"unix:{tmp_path}/nothing")
    with pytest.raises(ValueError, match="give host:port, http://host:port"):
        nerite.connect("localhost")


def test_a_program_that_only_uses_a_session_needs_neither_gevent_nor_grpc(nerite_server):
    code = (
        "import sys, nerite\n"
        f"client = nerite.connect('unix:{nerite_server.session_socket}')\n"
        "print(client.model('identity_fp32')([1.0, 2.0]).OUTPUT0)\n"
        "assert not {'gevent', 'grpc', 'geventhttpclient'} & set(sys.modules), 'too much was imported'\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


def test_help_is_enough_to_begin():
    shown = subprocess.run([sys.executable, "-c", "import nerite; help(nerite)"], stdout=subprocess.PIPE, text=True).stdout
    for part in ("nerite.connect()", "client.model(", "digits(image=array)", "model.submit", "model.batch"):
        assert part in shown
