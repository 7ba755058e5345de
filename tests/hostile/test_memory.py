"""What if clients announce, send or ask for more than there is memory for?

The server gets a bound on its address space, so that the system refuses memory while there is still plenty for others.
"""

import contextlib
import http.client
import json
import resource
import socket
import zlib

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc as grpcclient
from doors import http_call
from tritonclient.utils import InferenceServerException

ADDRESS_SPACE_BYTES = 900_000 << 10
ANNOUNCED = 2_000_000_000
ANNOUNCERS = 60
UPLOAD = 900 << 20
MIB = bytes(1 << 20)
TIMEOUT_S = 120
MODEL = "identity_fp32"
REFUSED = "the server has no memory for "


@pytest.fixture(scope="module")
def tight(launcher, tmp_path_factory):
    """A server with little address space."""
    if launcher.oracle:
        pytest.skip("2.51 does not start in so little memory")
    repository = launcher.copy_of("tight", MODEL, "identity_bytes")
    command, environment = servers.nerite_command(repository)
    server = servers.start(
        ["prlimit", f"--as={ADDRESS_SPACE_BYTES}", *command],
        environment,
        ["--session-socket=off", f"--http-max-input-size={(1 << 31) - 1}"],
        tmp_path_factory.mktemp("tight") / "log",
        oracle=False,
        repository=repository,
    )
    try:
        yield server
    finally:
        servers.stop(server)


@pytest.fixture(autouse=True)
def it_goes_on(tight):
    """Whatever happened, it is the same process, and a tensor of some MiB comes back through both protocols."""
    yield
    assert tight.process.poll() is None, f"the server died:\n{tight.log_text()[-3000:]}"
    assert resource.prlimit(tight.pid, resource.RLIMIT_AS)[0] == ADDRESS_SPACE_BYTES
    values = np.arange(1 << 20, dtype=np.float32)
    raw = values.tobytes()
    text = head(len(raw))
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text + raw, framed(text, len(raw)))
    assert answer.status == 200 and answer.body.endswith(raw)
    with grpcclient.InferenceServerClient(tight.grpc) as client:
        assert np.array_equal(client.infer(MODEL, [given(values)]).as_numpy("OUTPUT0"), values)


def head(byte_size: int) -> bytes:
    return json.dumps({
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [byte_size // 4], "parameters": {"binary_data_size": byte_size}}],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip


def framed(text: bytes, byte_size: int) -> dict[str, str]:
    return {"Inference-Header-Content-Length": str(len(text)), "Content-Length": str(len(text) + byte_size)}


def given(values: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput("INPUT0", list(values.shape), "FP32")
    made.set_data_from_numpy(values)
    return made


def test_much_announced_and_little_sent(tight):
    with contextlib.ExitStack() as open_:
        host, port = tight.http.split(":")
        for _ in range(ANNOUNCERS):
            one = open_.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
            one.sendall(
                f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {ANNOUNCED}\r\n\r\nabc".encode()
            )
        # Small requests need no block, and are answered while all of them wait.
        for _ in range(20):
            assert fp32_of(tight) == [1.5, 2.5]


def fp32_of(server) -> list[float]:
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1.5, 2.5]}]}
    answer = http_call(server.http, "POST", f"/v2/models/{MODEL}/infer", document)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)["outputs"][0]["data"]


def test_an_upload_over_http(tight):
    text = head(UPLOAD)
    with contextlib.closing(http.client.HTTPConnection(tight.http, timeout=TIMEOUT_S)) as connection:
        connection.putrequest("POST", f"/v2/models/{MODEL}/infer")
        for name, value in framed(text, UPLOAD).items():
            connection.putheader(name, value)
        connection.endheaders(text)
        for _ in range(UPLOAD >> 20):
            connection.send(MIB)
        answer = connection.getresponse()
        says = json.loads(answer.read())["error"]
        assert answer.status == 503
        assert says.startswith(f"{REFUSED}a body of {len(text) + UPLOAD} bytes: the system refused a block of "), says
        # The rest was read for nothing, so the connection is good for more.
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200


def test_an_upload_over_grpc(tight):
    values = np.zeros(UPLOAD // 4, dtype=np.float32)
    with grpcclient.InferenceServerClient(tight.grpc) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(MODEL, [given(values)])
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert refused.value.message().startswith(f"{REFUSED}a tensor of {UPLOAD} bytes: "), refused.value


def test_a_grpc_message_without_tensors(tight):
    """What is no tensor stays in the pieces in which it came; these too are not taken without end."""
    tag, length = b"\x7a", bytearray()
    left = UPLOAD
    while left:
        length.append(left & 127 | (128 if left > 127 else 0))
        left >>= 7
    message = b"".join([tag, bytes(length), bytes(UPLOAD)])
    with grpc.insecure_channel(tight.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(message, timeout=TIMEOUT_S)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE, refused.value
    assert refused.value.details().startswith(f"{REFUSED}a message that is coming in: ")


def test_little_that_inflates_to_much(tight):
    deflate = zlib.compressobj(9)
    body = b"".join([*(deflate.compress(MIB) for _ in range(UPLOAD >> 20)), deflate.flush()])
    headers = {"Content-Encoding": "deflate", "Inference-Header-Content-Length": "10"}
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", body, headers)
    assert answer.status == 503, answer
    assert json.loads(answer.body)["error"].startswith(f"{REFUSED}a body of ")


def test_a_tensor_whose_text_is_long(tight):
    values = np.full(60 << 18, 1 / 3, dtype=np.float32).tobytes()
    text = head(len(values)).replace(b'"binary_data": true', b'"binary_data": false')
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text + values, framed(text, len(values)))
    assert answer.status in (200, 503)
    if answer.status == 503:
        assert json.loads(answer.body)["error"].startswith(f"{REFUSED}the text of output 'OUTPUT0' of {len(values)} bytes: ")
