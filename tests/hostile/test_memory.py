"""What if clients announce, send or ask for more than there is memory for?

The server gets a bound on its address space, so that the system refuses memory while there is still plenty for others.
"""

import base64
import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import re
import resource
import shutil
import socket
import subprocess
import time
import zlib

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc as grpcclient
from clients import http_call
from oversized import field
from tritonclient.utils import InferenceServerException

ADDRESS_SPACE_BYTES = 900_000 << 10
ANNOUNCED = 2_000_000_000
ANNOUNCERS = 60
UPLOAD = 900 << 20
MIB = bytes(1 << 20)
TIMEOUT_S = 240
# How long what the last test held may be on its way back: the server hears of a client's end when it gets round to it.
GIVES_BACK_WITHIN_S = 60
MODEL = "identity_fp32"
STRINGS = "identity_bytes"
REFUSED = "the server has no memory for "


@pytest.fixture(scope="module")
def tight(launcher, tmp_path_factory):
    """A server with little address space."""
    if launcher.oracle:
        pytest.skip("2.51 does not start in so little memory")
    repository = launcher.copy_of("tight", MODEL, STRINGS)
    command, environment = servers.nerite_command(repository)
    server = servers.start(
        ["prlimit", f"--as={ADDRESS_SPACE_BYTES}", *command],
        environment,
        [
            "--session-socket=off",
            # The budgets of clients would refuse before the system does (test_budgets.py).
            "--memory-budget=1T",
            "--memory-budget-per-peer=1T",
            f"--http-max-input-size={(1 << 31) - 1}",
            "--grpc-infer-response-compression-level=low",
            "--model-control-mode=explicit",
            f"--load-model={MODEL}",
            f"--load-model={STRINGS}",
        ],
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
    infer = functools.partial(http_call, tight.http, "POST", f"/v2/models/{MODEL}/infer", text + raw, framed(text, len(raw)))
    answer = infer()
    deadline = time.monotonic() + GIVES_BACK_WITHIN_S
    while answer.status == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
        answer = infer()
    assert answer.status == 200 and answer.body.endswith(raw), answer
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


def grpc_call(server, method: str, message: bytes) -> tuple[grpc.StatusCode, str]:
    """A message that no library makes; its code and what is said of it."""
    with grpc.insecure_channel(server.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        try:
            channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(message, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@contextlib.contextmanager
def somebody_holds(server, mib: int):
    """A client that sends so much of a body and then no more."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as one:
        one.sendall(
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {(mib << 20) + 1}\r\n\r\n".encode()
        )
        for _ in range(mib):
            one.sendall(MIB)
        yield


def test_much_announced_and_little_sent(tight):
    with contextlib.ExitStack() as open_:
        host, port = tight.http.split(":")
        for _ in range(ANNOUNCERS):
            one = open_.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
            one.sendall(
                f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {ANNOUNCED}\r\n\r\nabc".encode()
            )
        # Others are answered while all of them wait; what they announced takes no room.
        for _ in range(20):
            assert fp32_of(tight) == [1.5, 2.5]
        values = np.zeros(8 << 20, dtype=np.float32)
        with grpcclient.InferenceServerClient(tight.grpc) as client:
            assert np.array_equal(client.infer(MODEL, [given(values)]).as_numpy("OUTPUT0"), values)


def test_frames_announced_and_not_sent(tight):
    """The head of a frame of 4 MiB makes the library of HTTP/2 take as much, and it cannot be refused."""
    host, port = tight.grpc.split(":")
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5)
    frame = ((4 << 20) - 1).to_bytes(3, "big") + b"\x2a" + bytes(5)
    with contextlib.ExitStack() as open_:
        for _ in range(400):
            one = open_.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
            one.sendall(greeting + frame + b"abc")
        time.sleep(1)
        assert tight.process.poll() is None, tight.log_text()[-3000:]


def test_headers_that_do_not_end(tight):
    host, port = tight.http.split(":")
    with contextlib.ExitStack() as open_:
        for _ in range(3000):
            one = open_.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
            # Those that are one too many are ended.
            with contextlib.suppress(OSError):
                one.sendall(b"GET / HTTP/1.1\r\nX: " + bytes(300_000).replace(b"\0", b"a"))
        time.sleep(1)
        assert tight.process.poll() is None, tight.log_text()[-3000:]


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


@pytest.mark.parametrize(
    ("method", "message", "says"),
    [
        pytest.param("ModelInfer", lambda: field(15, bytes(UPLOAD)), f"{REFUSED}a part of a message of {UPLOAD} bytes: ", id="one field"),
        pytest.param("ModelInfer", lambda: field(15, bytes(200_000)) * 4600, f"{REFUSED}a message that is coming in: ", id="small fields"),
        pytest.param("ModelInfer", lambda: field(5, field(1, bytes(150_000))) * 4000, REFUSED, id="long names"),
        pytest.param("ModelInfer", lambda: field(5, field(5, field(3, bytes(50 << 20)))), REFUSED, id="small numbers"),
        pytest.param("ModelInfer", lambda: field(5, field(5, field(8, b"") * 20_000_000)), REFUSED, id="empty strings"),
        pytest.param("RepositoryModelLoad", lambda: load_of(bytes(UPLOAD)), REFUSED, id="a file"),
    ],
)  # fmt: skip
def test_a_grpc_message(tight, method, message, says):
    """Of whatever it is made: what it becomes may be fifty times as much as it is."""
    code, text = grpc_call(tight, method, message())
    assert (code, text[: len(says)]) == (grpc.StatusCode.UNAVAILABLE, says), text


def load_of(content: bytes) -> bytes:
    """A RepositoryModelLoad with one file."""
    return field(2, MODEL.encode()) + field(3, field(1, b"file:1/model.onnx") + field(2, field(4, content)))


@pytest.mark.parametrize(
    ("method", "message", "code", "says"),
    [
        ("ModelInfer", lambda: field(5, b"") * 20_000_000, "INVALID_ARGUMENT", "a request has at most 4096 inputs, got 20000000; "),
        ("ModelInfer", lambda: field(6, b"") * 20_000_000, "INVALID_ARGUMENT", "a request has at most 4096 outputs, got 20000000; "),
        ("ModelInfer", lambda: field(7, b"") * 20_000_000, "INVALID_ARGUMENT", "a request has at most 4096 raw input contents, got 20000000; "),
        ("ModelInfer", lambda: field(4, b"") * 20_000_000, "INVALID_ARGUMENT", "a request has at most 4096 parameters, got 20000000; "),
        ("ModelInfer", lambda: field(5, field(3, bytes(100 << 20))), "INVALID_ARGUMENT", f"a request has at most 4096 dimensions in one shape, got {100 << 20}; "),
        ("RepositoryIndex", lambda: field(15, bytes(UPLOAD)), "RESOURCE_EXHAUSTED", "SERVER: Received message larger than max "),
        ("TraceSetting", lambda: field(1, field(1, b"trace_level") + field(2, field(1, b"") * 20_000_000)), "RESOURCE_EXHAUSTED", "SERVER: Received message larger than max "),
    ],
)  # fmt: skip
def test_a_grpc_message_with_too_much_of_something(tight, method, message, code, says):
    """Refused before anything is made of it."""
    found, text = grpc_call(tight, method, message())
    assert (found.name, text[: len(says)]) == (code, says), text


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_grpc_message_with_a_long_name(tight, number):
    code, text = grpc_call(tight, "ModelInfer", field(number, b"a" * (100 << 20)))
    assert code == grpc.StatusCode.INTERNAL, text
    assert text.endswith(f" has {100 << 20} bytes, a name has at most {1 << 20}"), text


def json_inputs(count: int) -> bytes:
    one = b'{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}'
    return b'{"inputs":[' + b",".join([one] * count) + b"]}"


def json_strings(count: int) -> bytes:
    return b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[%d],"data":[' % count + b'"",' * (count - 1) + b'""]}]}'


@pytest.mark.parametrize(
    ("path", "text", "status", "says"),
    [
        pytest.param(f"models/{MODEL}/infer", lambda: b'{"inputs":[{"name":"' + b"a" * (400 << 20) + b'"}]}', 503, REFUSED, id="a name"),
        pytest.param(f"models/{MODEL}/infer", lambda: b'{"id":"' + b"\xff" * (200 << 20) + b'","inputs":[]}', 503, f"{REFUSED}what a request says: ", id="bytes that are no text"),
        pytest.param(f"models/{STRINGS}/infer", lambda: json_strings(20_000_000), 400, "a request has at most 16777216 strings, got 20000000; ", id="strings"),
        pytest.param(f"models/{STRINGS}/generate", lambda: b'{"INPUT0":"' + b"\\u00e4" * (50 << 20) + b'"}', 503, REFUSED, id="a prompt"),
    ],
)  # fmt: skip
def test_a_json_text(tight, path, text, status, says):
    answer = http_call(tight.http, "POST", f"/v2/{path}", text())
    assert answer.status == status, answer
    assert json.loads(answer.body)["error"].startswith(says), answer


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"id": "a" * (2 << 20), "inputs": []}, f"'id' has {2 << 20} bytes, a name has at most {1 << 20}"),
        ({"inputs": [{"name": "a" * (2 << 20), "datatype": "FP32", "shape": [1], "data": [1]}]}, f"'name' has {2 << 20} bytes, a name has at most {1 << 20}"),
        ({"inputs": [{"name": "a", "datatype": "FP32", "shape": [1] * 5000, "data": [1]}]}, "Unable to parse 'shape': a request has at most 4096 dimensions in one shape, got 5000; send the shape that the model's configuration describes"),
    ],
)  # fmt: skip
def test_a_json_text_that_goes_on_and_on(tight, document, says):
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", document)
    assert (answer.status, json.loads(answer.body)["error"]) == (400, says)


def much_in_little() -> bytes:
    """A MiB that becomes a hundred times smaller: zeros alone become so small that they are refused for that."""
    return np.random.default_rng(7).bytes(10 << 10).ljust(1 << 20, b"\0")


def test_a_long_file_needs_no_memory(tight):
    """It goes to disk as it comes, and from there to the model's directory."""
    content = base64.b64encode(bytes(600 << 20)).decode()
    parameters = {"config": json.dumps({"name": "sent", "backend": "nothing"}), "file:1/a": content}
    answer = http_call(tight.http, "POST", "/v2/repository/models/sent/load", json.dumps({"parameters": parameters}))
    assert answer.status in (400, 500), answer


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (lambda: json_inputs(1_000_000), "a request has at most 4096 inputs, got 1000000; "),
        (lambda: b'{"inputs":[],"outputs":[' + b'{"name":"a"},' * 4_000_000 + b'{"name":"a"}]}', "a request has at most 4096 outputs, got 4000001; "),
    ],
)  # fmt: skip
def test_a_json_text_with_too_much_of_something(tight, text, says):
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text())
    assert (answer.status, json.loads(answer.body)["error"][: len(says)]) == (400, says)


@pytest.mark.parametrize("encoding", ["deflate", "gzip"])
def test_little_that_inflates_to_much(tight, encoding):
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    piece = much_in_little()
    body = b"".join([*(deflate.compress(piece) for _ in range(UPLOAD >> 20)), deflate.flush()])
    headers = {"Content-Encoding": encoding, "Inference-Header-Content-Length": "10"}
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", body, headers)
    assert answer.status == 503, answer
    assert json.loads(answer.body)["error"].startswith(f"{REFUSED}a body of ")


@pytest.mark.parametrize("compression", ["deflate", "gzip"])
def test_little_that_inflates_to_much_over_grpc(tight, compression):
    values = np.frombuffer(much_in_little() * (UPLOAD >> 20), dtype=np.float32)
    with grpcclient.InferenceServerClient(tight.grpc) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(MODEL, [given(values)], compression_algorithm=compression)
    assert refused.value.status() == "StatusCode.UNAVAILABLE", refused.value
    assert refused.value.message().startswith(f"{REFUSED}a tensor of {UPLOAD} bytes: "), refused.value


def test_a_tensor_whose_text_is_long(tight):
    values = np.full(60 << 18, 1 / 3, dtype=np.float32).tobytes()
    text = head(len(values)).replace(b'"binary_data": true', b'"binary_data": false')
    answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text + values, framed(text, len(values)))
    assert answer.status in (200, 503)
    if answer.status == 503:
        assert json.loads(answer.body)["error"].startswith(f"{REFUSED}the text of output 'OUTPUT0' of {len(values)} bytes: ")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_an_answer_that_does_not_get_smaller(tight, encoding):
    values = np.random.default_rng(7).bytes(64 << 20)
    text = head(len(values))
    headers = framed(text, len(values)) | {"Accept-Encoding": encoding}
    with somebody_holds(tight, 450):
        answer = http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text + values, headers)
        assert answer.status in (200, 503)
        assert answer.status == 200 or json.loads(answer.body)["error"].startswith(REFUSED), answer


def test_many_who_ask_at_the_same_time(tight):
    """Each alone would find room; all of them look before one has taken it."""
    values = np.full(12 << 18, 1 / 3, dtype=np.float32).tobytes()
    text = head(len(values)).replace(b'"binary_data": true', b'"binary_data": false')

    def infer(_):
        return http_call(tight.http, "POST", f"/v2/models/{MODEL}/infer", text + values, framed(text, len(values)))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(infer, range(24)))
    assert {answer.status for answer in answers} <= {200, 503}
    assert any(answer.status == 200 for answer in answers)
    for answer in answers:
        if answer.status == 503:
            assert json.loads(answer.body)["error"].startswith(REFUSED)
        else:
            assert len(json.loads(answer.body)["outputs"][0]["data"]) == 12 << 18


GROUP_BYTES = 800 << 20
# What a container shows as the limit of its control group.
GROUPED = """
set -e
mount -t tmpfs tmpfs /sys/fs/cgroup
echo "$1" > /sys/fs/cgroup/memory.max
shift
exec "$@"
"""


@pytest.fixture
def grouped(launcher, tmp_path):
    """A server in a container of little memory: the system refuses it nothing, and ends who takes too much."""
    if launcher.oracle:
        pytest.skip("2.51 asks nobody")
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace to be had: not root")
    repository = launcher.copy_of("grouped", MODEL)
    command, environment = servers.nerite_command(repository)
    furnished = ["unshare", "-m", "--propagation", "private", "sh", "-c", GROUPED, "sh", str(GROUP_BYTES), *command]
    flags = ["--session-socket=off", f"--http-max-input-size={(1 << 31) - 1}"]
    server = servers.start(furnished, environment, flags, tmp_path / "log", oracle=False, repository=repository)
    try:
        yield server
    finally:
        servers.stop(server)


def test_more_than_the_control_group_may_have(grouped):
    text = head(UPLOAD)
    path = f"/v2/models/{MODEL}/infer"
    answer = http_call(grouped.http, "POST", path, text + bytes(UPLOAD), framed(text, UPLOAD))
    says = json.loads(answer.body)["error"]
    assert answer.status == 503, says
    # A connection may hold a part of the group's memory. A body that says how long it is is refused by its length.
    found = re.match(r"memory budget of a connection: a message of (\d+) bytes is announced, of (\d+) that", says)
    assert found, says
    announced, budget = map(int, found.groups())
    assert announced == len(text) + UPLOAD and GROUP_BYTES // 8 < budget < GROUP_BYTES // 2, says

    # A body in chunks announces nothing. It is refused at the budget.
    chunks = itertools.chain([text], itertools.repeat(bytes(1 << 20), UPLOAD >> 20))
    headers = {"Inference-Header-Content-Length": str(len(text))}
    answer = http_call(grouped.http, "POST", path, chunks, headers)
    says = json.loads(answer.body)["error"]
    assert answer.status == 503, says
    # The connection and its client may hold as much here, and the client's budget includes what the connection itself needs.
    found = re.match(r"memory budget of a (?:connection: this one of|client:) .* holds (\d+) of (\d+) bytes", says)
    assert found, says
    held, most = map(int, found.groups())
    assert most == budget and held < budget + (1 << 20), says
    assert fp32_of(grouped) == [1.5, 2.5]
