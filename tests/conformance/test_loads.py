"""Is a load looked at before its body comes, and do files come only where the operator lets them?"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import time

import grpc
import pytest
import servers
import tritonclient.http as httpclient
from clients import http_call, open_client, pb, refuses, service_stub
from tritonclient.utils import InferenceServerException

GIB = 1 << 30
BODY_BYTES_MAX = 100_000
CONFIG_BYTES_MAX = 32 << 20
# Of a file that comes with a load: more than the server may keep in memory.
LONG_BYTES = 100 << 20
SMALL_BUDGET = ["--memory-budget=64M", "--memory-budget-per-peer=32M"]
CURE = "put the model into the repository, or start the server with --allow-model-upload=true"
DISABLED = "explicit model load / unload is not allowed if polling is enabled"


@pytest.fixture(autouse=True)
def only_here(launcher):
    if launcher.oracle:
        pytest.skip("2.51 reads every body and takes every file")


@pytest.fixture(scope="module")
def without_upload(launcher):
    """Clients may load here, but send no files."""
    repository = launcher.copy_of("without_upload", "identity_fp32", "simple")
    flags = ["--model-control-mode=explicit", "--allow-model-upload=false", "--load-model=identity_fp32"]
    with launcher.running("without_upload", *flags, repository=repository) as found:
        yield found


@pytest.fixture(scope="module")
def with_upload(launcher, tmp_path_factory):
    """Clients may send files here; what is made of them lies in a directory that the test can look into."""
    repository = launcher.copy_of("with_upload", "identity_fp32", "simple")
    command, environment = servers.nerite_command(repository)
    kept = tmp_path_factory.mktemp("kept")
    flags = ["--session-socket=off", "--model-control-mode=explicit", "--load-model=simple", f"--http-max-input-size={8 * GIB}", *SMALL_BUDGET]
    environment |= {"TMPDIR": str(kept)}
    server = launcher.start(command, environment, flags, launcher.scratch / "with_upload.log", repository)
    server.kept = kept
    try:
        yield server
    finally:
        servers.stop(server)


def answer_without_body(server, byte_size: int, model: str = "simple") -> tuple[int, str]:
    """What a client is told that declares a body and sends none of it."""
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
        connection.putrequest("POST", f"/v2/repository/models/{model}/load")
        connection.putheader("Content-Length", str(byte_size))
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]


def test_a_load_is_refused_before_its_body_comes(server, without_upload, with_upload):
    status, error = answer_without_body(server, 3 * GIB)
    assert status == 503 and error.startswith(DISABLED) and "--model-control-mode=none" in error
    text = f"a load request without files has at most {CONFIG_BYTES_MAX} bytes, got {3 * GIB}; {CURE}"
    assert answer_without_body(without_upload, 3 * GIB) == (501, text)
    text = f"a load request has at most {4 * GIB} bytes, got {5 * GIB}; put the model into the repository"
    assert answer_without_body(with_upload, 5 * GIB) == (400, text)


@pytest.fixture(scope="module")
def with_small_bodies(launcher):
    """Clients may send files here, by short bodies over HTTP."""
    repository = launcher.copy_of("with_small_bodies", "simple")
    flags = ["--model-control-mode=explicit", "--load-model=simple", f"--http-max-input-size={BODY_BYTES_MAX}"]
    with launcher.running("with_small_bodies", *flags, repository=repository) as found:
        yield found


TOO_LARGE = re.compile(
    rf"request JSON size of \d+ bytes exceeds the maximum allowed input size of {BODY_BYTES_MAX} bytes\. "
    r"Use --http-max-input-size to increase the limit\."
)


def test_the_limit_of_inputs_over_http_holds_for_loads(with_small_bodies):
    """Triton's client sends the whole body before it reads the answer."""
    with httpclient.InferenceServerClient(with_small_bodies.http) as client:
        with pytest.raises(InferenceServerException, match=TOO_LARGE):
            client.load_model("simple", config="{}", files={"file:1/model.onnx": bytes(30 << 20)})
        client.load_model("simple")


@pytest.mark.parametrize("path", ["repository/models/simple/load", "repository/models/simple/unload", "repository/index", "logging", "trace/setting"])
@pytest.mark.parametrize("body", [b" " * (BODY_BYTES_MAX + 1), [b" " * 1000] * 101], ids=["declared", "chunked"])
def test_the_limit_of_inputs_over_http_holds_for_every_body(with_small_bodies, path, body):
    answer = http_call(with_small_bodies.http, "POST", f"/v2/{path}", iter(body) if isinstance(body, list) else body)
    assert answer.status == 400 and TOO_LARGE.fullmatch(answer.error), answer


def test_loads_over_grpc_have_a_limit_of_their_own(with_small_bodies):
    parameters = sent_model(with_small_bodies, "sent")
    with open_client("grpc", with_small_bodies) as client:
        client.load("sent", parameters)
        assert client.model_ready("sent")
        client.unload("sent")


def load_message(byte_size: int) -> pb.RepositoryModelLoadRequest:
    request = pb.RepositoryModelLoadRequest(model_name="simple")
    request.parameters["file:1/model.onnx"].bytes_param = bytes(byte_size)
    return request


@pytest.mark.parametrize(("byte_size", "code"), [(64 << 20, "UNAVAILABLE"), (1, "UNAVAILABLE")])
def test_no_control_over_grpc(server, byte_size, code):
    with grpc.insecure_channel(server.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            service_stub(channel).RepositoryModelLoad(load_message(byte_size))
    assert refused.value.code().name == code and refused.value.details().startswith(DISABLED)


def test_a_long_message_without_files_over_grpc(without_upload):
    request = load_message(64 << 20)
    with grpc.insecure_channel(without_upload.grpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            service_stub(channel).RepositoryModelLoad(request)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    text = f"SERVER: Received message larger than max ({request.ByteSize()} vs. {CONFIG_BYTES_MAX})"
    assert refused.value.details() == text


@pytest.fixture(params=["http", "grpc"])
def closed_client(request, without_upload):
    with open_client(request.param, without_upload) as found:
        yield found


def test_files_are_refused_where_they_are_not_allowed(closed_client):
    text = f"the load of model 'simple' brings 2 files, and this server takes none from clients; {CURE}"
    with refuses("UNSUPPORTED", text):
        closed_client.load("simple", {"config": "{}", "file:1/model.onnx": b"x", "file:1/more": b"y"})


def test_a_configuration_is_taken_where_files_are_not(closed_client):
    closed_client.load("identity_fp32")
    config = {key: closed_client.config("identity_fp32")[key] for key in ("name", "backend", "input", "output")}
    closed_client.load("identity_fp32", {"config": json.dumps(config | {"max_batch_size": 3})})
    assert closed_client.config("identity_fp32")["max_batch_size"] == 3
    closed_client.load("identity_fp32")


@pytest.mark.parametrize("path", ["../1/model.onnx", "/etc/passwd", "a/../../model.onnx"])
def test_a_models_file_is_in_its_versions_directory(closed_client, path):
    closed_client.load("simple")
    config = {key: closed_client.config("simple")[key] for key in ("name", "backend", "max_batch_size", "input", "output")}
    text = (
        "load failed for model 'simple': version 1 is at UNAVAILABLE state: Invalid argument: default_model_filename "
        f"'{path}' of model 'simple' leads out of the version's directory; name a file inside it;"
    )
    with refuses("INVALID_ARG", text):
        closed_client.load("simple", {"config": json.dumps(config | {"default_model_filename": path})})
    assert closed_client.model_ready("simple")


def test_a_link_of_the_operators_may_lead_anywhere(without_upload, tmp_path):
    (tmp_path / "elsewhere.onnx").write_bytes((without_upload.repository / "simple" / "1" / "model.onnx").read_bytes())
    linked = without_upload.repository / "linked"
    (linked / "1").mkdir(parents=True)
    (linked / "1" / "here.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    config = (without_upload.repository / "simple" / "config.pbtxt").read_text().replace('"simple"', '"linked"')
    (linked / "config.pbtxt").write_text(config + '\ndefault_model_filename: "here.onnx"\n')
    with open_client("http", without_upload) as client:
        client.load("linked")
        assert client.model_ready("linked")
        client.unload("linked")


# ---------------------------------------------------------------------------------------------- bodies on disk


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)


def unnamed_files(server) -> list[str]:
    """Files in the directory that have no name any more."""
    found = []
    for one in os.listdir(f"/proc/{server.pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{server.pid}/fd/{one}"))
    return [path for path in found if path.startswith(str(server.kept))]


def sent_model(server, name: str) -> dict:
    """The parameters of a load that brings the model `simple` under another name, and a long file beside it."""
    with open_client("http", server) as client:
        config = {key: client.config("simple")[key] for key in ("backend", "max_batch_size", "input", "output")}
    model = (server.repository / "simple" / "1" / "model.onnx").read_bytes()
    return {"config": json.dumps(config | {"name": name}), "file:1/model.onnx": model, "file:1/long.bin": os.urandom(LONG_BYTES)}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_long_files_arrive_whole_and_go_with_the_model(with_upload, protocol):
    name = f"sent_by_{protocol}"
    parameters = sent_model(with_upload, name)
    with open_client(protocol, with_upload) as client:
        client.load(name, parameters)
        assert client.model_ready(name)
        (long,) = pathlib.Path(with_upload.kept).glob("*/1/long.bin")
        assert long.read_bytes() == parameters["file:1/long.bin"]
        client.unload(name)
    wait_for(lambda: not any(with_upload.kept.iterdir()) and not unnamed_files(with_upload))


def test_a_load_that_breaks_off_leaves_nothing_on_disk(with_upload):
    host, port = with_upload.http.split(":")
    with contextlib.closing(socket.create_connection((host, int(port)), timeout=60)) as wire:
        wire.sendall(b"POST /v2/repository/models/m/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        wire.sendall(b'{"parameters":{"file:1/model.onnx":"' + b"A" * (20 << 20))
        wait_for(lambda: unnamed_files(with_upload))
        assert not any(with_upload.kept.iterdir())
    wait_for(lambda: not unnamed_files(with_upload))


@pytest.mark.parametrize(
    ("before", "after", "code", "text"),
    [
        ('{"parameters":{"config":"{}","file:1/x":"', '"}', "INTERNAL", "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at "),
        ('{"parameters":{"config":"{}","other":"', '"}}', "INTERNAL", "unexpected error on creating Triton parameter"),
        ('{"parameters":{"file:../x":"', '","config":"{}"}}', "INTERNAL", "failed to load 'm', failed to poll from model repository"),
        ('{"parameters":{"file:1/x":"', '"}}', "INTERNAL", "failed to load 'm', failed to poll from model repository"),
    ],
)  # fmt: skip
def test_a_long_body_with_a_fault_is_refused_and_leaves_nothing(with_upload, before, after, code, text):
    body = before + base64.b64encode(os.urandom(6 << 20)).decode() + after
    answer = http_call(with_upload.http, "POST", "/v2/repository/models/m/load", body)
    answer.refused(code, text if not text.endswith("at ") else f"{text}{len(body)}")
    wait_for(lambda: not any(with_upload.kept.iterdir()) and not unnamed_files(with_upload))
