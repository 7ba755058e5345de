"""Does a request with very many small things delay anybody but its sender?

Each attack runs while a witness asks for health on a connection of its own. How long the witness waits is bounded by a second,
which is far more than a thread that serves connections may be held, and far less than the seconds that comparing all names with
each other took.
"""

import contextlib
import json
import struct
import subprocess
import sys

import grpc
import pytest
from clients import http_call, pb, service_stub
from oversized import field, json_input, many, names
from packets import Raw, encode
from witness import lent

SLOWEST_S = 1.0
TIMEOUT_S = 120
TENSORS_MAX = 4096
INPUTS_REFUSED = "a request has at most 4096 inputs, got {}; send each input that the model's configuration names once"
OUTPUTS_REFUSED = "a request has at most 4096 outputs, got {}; ask for each output that the model's configuration names once"
PARAMETERS_REFUSED = "a request has at most 4096 parameters, got {}; send large data as an input"


@pytest.fixture(scope="module")
def served(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 compares names one by one, too")
    repository = launcher.copy_of("request_sizes", "identity_fp32", "identity_bytes", "simple")
    socket = tmp_path_factory.mktemp("session") / "socket"
    flags = [f"--session-socket={socket}", "--http-thread-count=1", "--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("request_sizes", *flags, repository=repository) as found:
        found.session = socket
        yield found


# In a process of its own, so that it measures the server and not what the tests' threads do to each other.
WATCH = """
import http.client, json, sys, threading, time
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
connection = http.client.HTTPConnection(sys.argv[1], timeout=float(sys.argv[2]))
answers, slowest_s = 0, 0.0
while answers < 3 or not ended.is_set():
    begun = time.monotonic()
    connection.request("GET", "/v2/health/ready")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    slowest_s = max(slowest_s, time.monotonic() - begun)
    answers += 1
    if answers == 1:
        print("asking", flush=True)
    time.sleep(0.002)
print(json.dumps([answers, slowest_s]))
"""


@pytest.fixture
def nobody_waits(served):
    """Somebody asks for health all the time, and the longest wait is bounded."""
    command = [sys.executable, "-c", WATCH, served.http, str(TIMEOUT_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout.readline() == "asking\n"
        yield
        found, _ = watch.communicate()
    assert watch.returncode == 0
    assert served.process.poll() is None, served.log_text()[-3000:]
    answers, slowest_s = json.loads(found)
    print(f"slowest of {answers} answers: {slowest_s * 1000:.0f} ms")
    assert slowest_s < SLOWEST_S


ONE_INPUT = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param(lambda: {"inputs": many(60_000, json_input)}, INPUTS_REFUSED.format(60_000), id="inputs"),
        pytest.param(lambda: {"inputs": many(60_000, lambda n: json_input(0))}, INPUTS_REFUSED.format(60_000), id="equal inputs"),
        pytest.param(lambda: {"inputs": ONE_INPUT, "outputs": many(60_000, lambda n: {"name": f"n{n}"})}, OUTPUTS_REFUSED.format(60_000), id="outputs"),
        pytest.param(lambda: {"inputs": ONE_INPUT, "parameters": {f"p{n}": n for n in range(60_000)}}, PARAMETERS_REFUSED.format(60_000), id="parameters"),
        pytest.param(lambda: {"inputs": many(TENSORS_MAX, json_input)}, "[request id: <id_unknown>] expected 1 inputs but got 4096 inputs for model 'identity_fp32'", id="as many inputs as may be"),
        pytest.param(lambda: {"inputs": ONE_INPUT, "outputs": many(TENSORS_MAX, lambda n: {"name": f"n{n}"})}, "unexpected inference output 'n0' for model 'identity_fp32'", id="as many outputs as may be"),
    ],
)  # fmt: skip
def test_names_over_http(served, nobody_waits, document, text):
    body = json.dumps(document())
    for _ in range(3):
        answer = http_call(served.http, "POST", "/v2/models/identity_fp32/infer", body)
        assert (answer.status, answer.error[: len(text)]) == (400, text)


def test_as_many_parameters_as_may_be(served, nobody_waits):
    document = {"inputs": ONE_INPUT, "parameters": {f"p{n}": n for n in range(4096)}}
    http_call(served.http, "POST", "/v2/models/identity_fp32/infer", document).ok()
    generate = {"INPUT0": [1], **{f"p{n}": n for n in range(4095)}}
    http_call(served.http, "POST", "/v2/models/identity_fp32/generate", generate).ok()
    generate |= {f"q{n}": n for n in range(60_000)}
    text = "a request has at most 4096 members, got 64096; send many values as one array"
    http_call(served.http, "POST", "/v2/models/identity_fp32/generate", generate).refused("INVALID_ARG", text)


GRPC_ATTACKS = [
    pytest.param(5, 100_000, INPUTS_REFUSED.format(100_000), id="inputs"),
    pytest.param(6, 100_000, OUTPUTS_REFUSED.format(100_000), id="outputs"),
    pytest.param(4, 100_000, PARAMETERS_REFUSED.format(100_000), id="parameters"),
    pytest.param(7, 100_000, "a request has at most 4096 raw input contents, got 100000; ", id="raw contents"),
]


@pytest.mark.parametrize(("number", "count", "text"), GRPC_ATTACKS)
def test_names_over_grpc(served, nobody_waits, number, count, text):
    message = names(number, count)
    with grpc.insecure_channel(served.grpc) as channel:
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(message, timeout=TIMEOUT_S)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details().startswith(text)


def one_fp32(value: float, id: str) -> bytes:
    request = pb.ModelInferRequest(model_name="identity_fp32", id=id, raw_input_contents=[struct.pack("<f", value)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    return request.SerializeToString()


@pytest.mark.parametrize(("number", "count", "text"), GRPC_ATTACKS)
def test_names_over_a_stream(served, nobody_waits, number, count, text):
    """What is too much to read ends the stream, as any message does that is none."""
    with grpc.insecure_channel(served.grpc) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = call(iter([one_fp32(1, "first"), names(number, count)]), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as refused:
            found = [pb.ModelStreamInferResponse.FromString(one).infer_response.id for one in answers]
            pytest.fail(f"only answers: {found}")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith(text)


def test_large_requests_of_a_stream_keep_their_order(served, nobody_waits):
    """One that is read elsewhere holds back those behind it."""
    large = pb.ModelInferRequest(model_name="identity_fp32", id="large")
    large.inputs.add(name="INPUT0", datatype="FP32", shape=[500_000]).contents.fp32_contents.extend([1.0] * 500_000)
    strings = pb.ModelInferRequest(model_name="identity_bytes", id="strings", raw_input_contents=[bytes(4 << 20)])
    strings.inputs.add(name="INPUT0", datatype="BYTES", shape=[1 << 20])
    sent = [one_fp32(1, "a"), large.SerializeToString(), one_fp32(2, "b"), strings.SerializeToString(), one_fp32(3, "c")]
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(served.grpc, options=options) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [pb.ModelStreamInferResponse.FromString(one) for one in call(iter(sent), timeout=TIMEOUT_S)]
    assert [one.error_message for one in answers] == [""] * 5
    assert [one.infer_response.id for one in answers] == ["a", "large", "b", "strings", "c"]


def hello(raw: Raw) -> Raw:
    raw.call(1, hello={"version_min": 1, "version_max": 1, "client": "sizes"})
    assert raw.answer().WhichOneof("answer") == "welcome"
    return raw


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_names_in_a_session(served, nobody_waits, number):
    """As many as one packet takes, packet after packet."""
    with contextlib.closing(hello(Raw(served.session)).socket) as wire:
        raw = Raw.__new__(Raw)
        raw.socket = wire
        count = 9000
        for id in range(2, 22):
            raw.send(encode(id, infer={"request": names(number, count)}))
            error = raw.answer().error
            assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert f"at most 4096 {['parameters', 'inputs', 'outputs', 'raw input contents'][number - 4]}, got {count}; " in error.message


@pytest.mark.parametrize("protocol", ["http", "grpc", "region"])
def test_strings_that_are_many_are_checked_elsewhere(served, nobody_waits, protocol):
    count = 4 << 20
    empty = bytes(4 * count)
    request = pb.ModelInferRequest(model_name="identity_bytes")
    given = request.inputs.add(name="INPUT0", datatype="BYTES", shape=[count + 1])
    text = f"expected {count + 1} string elements for inference input 'INPUT0' for model 'identity_bytes', got {count}"
    if protocol == "http":
        document = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [count + 1], "parameters": {"binary_data_size": len(empty)}}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(document))}
        answer = http_call(served.http, "POST", "/v2/models/identity_bytes/infer", document + empty, headers)
        assert (answer.status, text in answer.error) == (400, True), answer.error
        return
    with grpc.insecure_channel(served.grpc) as channel, contextlib.ExitStack() as held:
        if protocol == "region":
            made = held.enter_context(lent(Registrar(channel), len(empty)))
            given.parameters["shared_memory_region"].string_param = made.name
            given.parameters["shared_memory_byte_size"].int64_param = len(empty)
        else:
            request.raw_input_contents.append(empty)
        with pytest.raises(grpc.RpcError) as refused:
            service_stub(channel).ModelInfer(request, timeout=TIMEOUT_S)
        assert text in refused.value.details()


class Registrar:
    """What `lent` needs of a client."""

    def __init__(self, channel):
        self.stub = service_stub(channel)

    def register_system(self, name, key, byte_size):
        self.stub.SystemSharedMemoryRegister(pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size))

    def unregister(self, kind, name):
        self.stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(name=name))


def test_a_long_text_is_read_and_an_answer_written_elsewhere(served, nobody_waits):
    values = [1.5] * 1_000_000
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}]}
    body = json.dumps(document)
    for path in ("infer", "infer"):
        answer = http_call(served.http, "POST", f"/v2/models/identity_fp32/{path}", body).ok()
        assert answer.json["outputs"][0]["data"] == values
    answer = http_call(served.http, "POST", "/v2/models/identity_fp32/generate", json.dumps({"INPUT0": values})).ok()
    assert answer.json["OUTPUT0"] == values


CONTROL_BYTES_MAX = 1 << 20


@pytest.mark.parametrize(
    "path",
    ["v2/trace/setting", "v2/logging", "v2/repository/index", "v2/systemsharedmemory/region/r/register", "v2/repository/models/simple/unload"],
)
def test_texts_of_other_calls_are_short(served, nobody_waits, path):
    body = json.dumps({"x": "y" * CONTROL_BYTES_MAX})
    text = f"the body of this call has at most {CONTROL_BYTES_MAX} bytes, got {len(body)}; send only its own members"
    http_call(served.http, "POST", f"/{path}", body).refused("INVALID_ARG", text)


@pytest.mark.parametrize("method", ["TraceSetting", "LogSettings", "RepositoryIndex", "SystemSharedMemoryRegister", "ServerLive"])
def test_messages_of_other_calls_are_short(served, nobody_waits, method):
    message = field(15, b"") * (1 << 20)
    with grpc.insecure_channel(served.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message, timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"({len(message)} vs. {CONTROL_BYTES_MAX})" in refused.value.details()


def test_a_load_of_many_parameters(served, nobody_waits):
    body = b'{"parameters":{' + b",".join(b'"file:%d":""' % n for n in range(200_000)) + b"}}"
    text = "a load request has at most 10001 load parameters, got 200000; put the model into the repository"
    answer = http_call(served.http, "POST", "/v2/repository/models/simple/load", body)
    assert (answer.status, answer.error) == (400, text.replace("a load request", "a request"))
    message = field(2, b"simple") + b"".join(field(3, field(1, b"file:%d" % n)) for n in range(200_000))
    with grpc.insecure_channel(served.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")(message, timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 10001 load parameters, got 200000; " in refused.value.details()


def test_settings_that_are_none_are_not_kept(served, nobody_waits):
    with grpc.insecure_channel(served.grpc) as channel:
        stub = service_stub(channel)
        request = pb.TraceSettingRequest()
        for n in range(1000):
            request.settings[f"nothing{n}"].value.append("x" * 100)
        found = stub.TraceSetting(request).settings
        assert not any(name.startswith("nothing") for name in found)
        # Without a file nothing could be traced. Nothing of such a request is kept.
        request.settings["trace_level"].value.extend(["TIMESTAMPS", "TENSORS"] * 100)
        with pytest.raises(grpc.RpcError, match="trace file name is not given"):
            stub.TraceSetting(request)
        found = stub.TraceSetting(pb.TraceSettingRequest()).settings
        assert list(found["trace_level"].value) == ["OFF"]
        assert not any(name.startswith("nothing") for name in found)
