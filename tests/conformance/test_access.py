"""Do tokens allow the same over every protocol, and are their quotas kept?"""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from clients import grpc_channel, http_call, http_infer, pb, service_stub
from meanwhile import Delay, again_if_too_late
from python_setup import PATIENT
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(servers.ROOT / "python"))

import nerite  # noqa: E402

ONE = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}
EVERYTHING = '["infer", "control", "regions", "read"]'


def token(name: str, scopes: str, rest: str = "") -> str:
    """A token whose secret is `<name>-secret`, by its hash."""
    digest = hashlib.sha256(f"{name}-secret".encode()).hexdigest()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {scopes}\n{rest}\n'


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


FILE = "\n".join([
    token("all", EVERYTHING),
    token("infer", '["infer"]', 'models = ["identity*", "repeat_int32"]'),
    token("read", '["read"]', 'models = ["identity*"]'),
    token("regions", '["regions"]'),
    token("control", '["control"]', 'models = ["simple"]'),
])  # fmt: skip


def put(path: pathlib.Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


@contextlib.contextmanager
def guarded(launcher, name: str, text: str, *flags: str):
    """A server that asks for the tokens of a file, which lies beside its models."""
    if launcher.oracle:
        pytest.skip("2.51 has no tokens")
    repository = launcher.copy_of(name, "identity_fp32", "simple", "repeat_int32")
    path = launcher.scratch / f"{name}.toml"
    put(path, text)
    socket = launcher.scratch / f"{name}.sock"
    mode = ["--model-control-mode=explicit", "--load-model=*", f"--session-socket={socket}"]
    with launcher.running(name, *mode, f"--access-tokens-file={path}", *flags, repository=repository) as found:
        found.tokens, found.session = path, socket
        yield found


@pytest.fixture(scope="module")
def server(launcher):
    with guarded(launcher, "access", FILE) as found:
        yield found


# ------------------------------------------------------------------------------------------ scopes

# What is asked, and the names of the tokens that may.
CALLS = [
    ("GET", "/v2/health/ready", {None, "wrong", "all", "infer", "read", "regions", "control"}),
    ("GET", "/v2/models/simple/ready", {None, "wrong", "all", "infer", "read", "regions", "control"}),
    ("GET", "/v2", {"all", "infer", "read"}),
    ("GET", "/v2/models/identity_fp32", {"all", "infer", "read"}),
    ("GET", "/v2/models/simple", {"all"}),
    ("GET", "/v2/models/identity_fp32/config", {"all", "read"}),
    ("GET", "/v2/models/identity_fp32/stats", {"all", "read"}),
    ("GET", "/v2/models/simple/stats", {"all"}),
    ("POST", "/v2/models/identity_fp32/infer", {"all", "infer"}),
    ("POST", "/v2/repository/index", {"all", "read", "control"}),
    ("POST", "/v2/repository/models/simple/load", {"all", "control"}),
    ("POST", "/v2/repository/models/identity_fp32/load", {"all"}),
    ("GET", "/v2/logging", {"all", "read", "control"}),
    ("POST", "/v2/logging", {"all"}),  # "control" has a list of models
    ("GET", "/v2/trace/setting", {"all", "read", "control"}),
    ("POST", "/v2/trace/setting", {"all"}),
    ("POST", "/v2/models/simple/trace/setting", {"all", "control"}),
    ("GET", "/v2/systemsharedmemory/status", {"all", "read", "regions"}),
    ("POST", "/v2/systemsharedmemory/unregister", {"all", "regions"}),
]
WHO = [None, "wrong", "all", "infer", "read", "regions", "control"]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("method", "path", "allowed"), CALLS)
def test_a_call_over_http_wants_one_of_its_scopes(server, method, path, allowed, who):
    body = json.dumps(ONE if path.endswith("infer") else {}) if method == "POST" else None
    answer = http_call(server.http, method, path, body, bearer(who) if who else {})
    if who in allowed:
        assert answer.status == 200, answer.body
        return
    assert answer.status == (401 if who in (None, "wrong") else 403), answer.body
    assert ("www-authenticate" in answer.headers) == (answer.status == 401)
    assert "-secret" not in answer.error
    expected = {None: "this call wants a token with scope", "wrong": "the request's token is not known"}
    assert expected.get(who, f"token '{who}' ") in answer.error, answer.error


GRPC_CALLS = [
    ("ServerReady", pb.ServerReadyRequest(), set(WHO)),
    ("ServerMetadata", pb.ServerMetadataRequest(), {"all", "infer", "read"}),
    ("ModelMetadata", pb.ModelMetadataRequest(name="simple"), {"all"}),
    ("ModelConfig", pb.ModelConfigRequest(name="identity_fp32"), {"all", "read"}),
    ("ModelStatistics", pb.ModelStatisticsRequest(), {"all", "read"}),
    ("RepositoryIndex", pb.RepositoryIndexRequest(), {"all", "read", "control"}),
    ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="simple"), {"all", "control"}),
    ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(), {"all", "read", "regions"}),
    ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(), {"all", "regions"}),
    ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest(), {"all", "regions"}),
    ("LogSettings", pb.LogSettingsRequest(), {"all", "read", "control"}),
    ("LogSettings", pb.LogSettingsRequest(settings={"log_info": {"bool_param": True}}), {"all"}),
    ("TraceSetting", pb.TraceSettingRequest(settings={"trace_rate": {"value": ["1000"]}}), {"all"}),
]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("rpc", "message", "allowed"), GRPC_CALLS)
def test_a_call_over_grpc_wants_one_of_its_scopes(server, rpc, message, allowed, who):
    metadata = (("authorization", f"Bearer {who}-secret"),) if who else ()
    with grpc_channel(server.grpc) as channel:
        call = getattr(service_stub(channel), rpc)
        if who in allowed:
            assert call(message, metadata=metadata) is not None
            return
        with pytest.raises(grpc.RpcError) as caught:
            call(message, metadata=metadata)
    expected = grpc.StatusCode.UNAUTHENTICATED if who in (None, "wrong") else grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.code() == expected, caught.value.details()


def test_the_clients_of_triton_bring_a_token_as_a_header(server):
    array = np.ones(1, np.float32)
    for origin, url in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        with origin.InferenceServerClient(url) as client:
            given = origin.InferInput("INPUT0", [1], "FP32")
            given.set_data_from_numpy(array)
            result = client.infer("identity_fp32", [given], headers=bearer("infer"))
            assert (result.as_numpy("OUTPUT0") == array).all()
            for headers in (None, bearer("wrong"), bearer("read")):
                with pytest.raises(InferenceServerException):
                    client.infer("identity_fp32", [given], headers=headers)


def test_a_token_sees_its_models_only(server):
    def names(path: str, method: str = "GET"):
        found = http_call(server.http, method, path, "{}" if method == "POST" else None, bearer("read")).ok().json
        return {one["name"] for one in (found["model_stats"] if isinstance(found, dict) else found)}

    assert names("/v2/models/stats") == {"identity_fp32"}
    assert names("/v2/repository/index", "POST") == {"identity_fp32"}
    refused = http_call(server.http, "GET", "/v2/models/nobody", headers=bearer("read"))
    assert (refused.status, refused.error) == (403, "token 'read' does not reach model 'nobody'"), "nor whether it is there"


def test_each_request_of_a_stream_is_asked_for(server):
    def request(model: str):
        return pb.ModelInferRequest(model_name=model, id=model)

    with grpc_channel(server.grpc) as channel:
        metadata = (("authorization", "Bearer infer-secret"),)
        answers = list(service_stub(channel).ModelStreamInfer(iter([request("simple")]), metadata=metadata))
        assert [one.error_message for one in answers] == ["token 'infer' does not reach model 'simple'"]
        with pytest.raises(grpc.RpcError) as caught:
            list(service_stub(channel).ModelStreamInfer(iter([request("simple")])))
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_metrics_and_the_page_want_a_token(server):
    assert http_call(server.metrics, "GET", "/metrics").status == 401
    assert http_call(server.metrics, "GET", "/metrics", headers=bearer("infer")).status == 403
    text = http_call(server.metrics, "GET", "/metrics", headers=bearer("read")).ok().body.decode()
    assert 'nerite_token_requests_total{outcome="passed",token="read"}' in text
    assert "nerite_token_file_current 1" in text
    assert http_call(server.metrics, "GET", "/").ok().body.startswith(b"<!"), "the page itself holds nothing of the server"
    for path in ("/ui/api/models", "/ui/api/visitor", "/ui/api/v2/models/identity_fp32"):
        assert http_call(server.metrics, "GET", path).status == 401, path
        assert http_call(server.metrics, "GET", path, headers=bearer("wrong")).status == 401, path
        http_call(server.metrics, "GET", path, headers=bearer("all")).ok()
        refused = http_call(server.metrics, "GET", path)
        assert refused.headers["www-authenticate"] == "Bearer", path
    models = http_call(server.metrics, "GET", "/ui/api/models", headers=bearer("read")).ok().body
    assert b"identity_fp32" in models and b"repeat_int32" not in models


def test_the_commands_bring_the_token_of_the_environment(server):
    ways = [
        ["top", "--once", "--interval=0.1", f"--url=http://{server.metrics}"],
        ["shm", "list", f"--http=http://{server.http}"],
        ["ready", f"http://{server.http}"],
    ]
    for words in ways:
        for token_of, allowed in (("all", True), ("wrong", False), ("", False)):
            environment = {**os.environ, "NERITE_TOKEN": f"{token_of}-secret" if token_of else ""}
            command = [servers.nerite_binary(), *words]
            found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
            # Readiness wants no token.
            assert (found.returncode == 0) == (allowed or words[0] == "ready"), found
            assert "-secret" not in found.stdout + found.stderr


def test_a_token_with_models_controls_no_others(server):
    def load(who: str, path: str, parameters: dict):
        return http_call(server.http, "POST", f"/v2/repository/models/{path}", {"parameters": parameters}, bearer(who))

    config = json.dumps(http_call(server.http, "GET", "/v2/models/simple/config", headers=bearer("all")).ok().json)
    wanted = "which wants a token without a list of models; token 'control' has one"
    for path, parameters in (
        ("simple/load", {"config": config}),
        ("simple/load", {"config": config, "file:1/model.onnx": "eA=="}),
        ("simple/unload", {"unload_dependents": True}),
    ):
        refused = load("control", path, parameters)
        assert refused.status == 403 and wanted in refused.error, refused.body
    assert load("control", "identity_fp32/unload", {}).status == 403
    assert http_call(server.http, "GET", "/v2/models/simple/ready").status == 200
    load("all", "simple/load", {"config": config}).ok()
    for path in ("simple/unload", "simple/load"):
        load("control", path, {}).ok()
    load("all", "simple/unload", {"unload_dependents": True}).ok()
    load("all", "simple/load", {}).ok()


# ------------------------------------------------------------------------------------------ sessions


def test_sessions_bring_a_token_in_hello(server, monkeypatch):
    monkeypatch.delenv("NERITE_TOKEN", raising=False)
    array = np.ones(1, np.float32)
    at = f"unix:{server.session}"
    with nerite.connect(at, token="all-secret") as client:
        assert client.transport == "session"
        assert (client.model("identity_fp32")(array)["OUTPUT0"] == array).all()
    monkeypatch.setenv("NERITE_TOKEN", "all-secret")
    with nerite.connect(at) as client:
        assert (client.model("identity_fp32")(array)["OUTPUT0"] == array).all()
    monkeypatch.delenv("NERITE_TOKEN")
    with pytest.raises(ConnectionError, match="token is not known"):
        nerite.connect(at, token="wrong")
    with nerite.connect(at) as client, pytest.raises(InferenceServerException, match="wants a token"):
        client.model("identity_fp32")(array)
    with nerite.connect(at, token="all-secret") as client:
        assert client.model("simple").inputs


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_the_python_client_brings_its_token_over_http_and_grpc(server, monkeypatch, scheme):
    monkeypatch.delenv("NERITE_TOKEN", raising=False)
    array = np.ones(1, np.float32)
    url = f"{scheme}://{getattr(server, scheme)}"
    with nerite.connect(url, token="all-secret", session_socket=os.devnull) as client:
        assert client.transport == "region"
        assert (client.model("identity_fp32")(array)["OUTPUT0"] == array).all()
    with nerite.connect(url, token="infer-secret", session_socket=os.devnull, buffers="inline") as client:
        assert (client.model("identity_fp32")(array)["OUTPUT0"] == array).all()


# ------------------------------------------------------------------------------------------ quotas

QUOTAS = "\n".join([
    token("few", '["infer"]', "requests_per_second = 1\nburst = 3"),
    token("other", '["infer", "read"]'),
    token("bytes", '["infer"]', "bytes_per_second = 1000"),
])  # fmt: skip


@pytest.fixture(scope="module")
def quotas(launcher):
    with guarded(launcher, "quotas", QUOTAS) as found:
        yield found


def wait_for_quota() -> None:
    time.sleep(3.2)


def refused_soon(call, is_refusal):
    """The first of its answers that is a refusal. Quotas grow again, so on a busy machine there may be others before it."""
    deadline = time.monotonic() + 60
    while not is_refusal(answer := call()):
        assert time.monotonic() < deadline, answer
    return answer


def infer(url: str, who: str):
    return http_infer(url, "identity_fp32", ONE, headers=bearer(who))


def test_what_is_over_a_quota_is_refused_with_the_time_to_wait(quotas):
    wait_for_quota()
    begun = time.monotonic()
    # Each call has a connection of its own.
    statuses = [infer(quotas.http, "few").status for _ in range(10)]
    assert statuses[:3] == [200] * 3 and statuses.count(200) <= 3 + time.monotonic() - begun and set(statuses) <= {200, 429}
    refused = refused_soon(lambda: infer(quotas.http, "few"), lambda answer: answer.status == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.error.startswith("the quota of token 'few' is used up: 1 requests per second, at most 3 at once; try again in ")
    assert infer(quotas.http, "other").status == 200, "another token's quota is its own"
    # The same quota over other protocols.
    with grpc_channel(quotas.grpc) as channel:

        def over_grpc() -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as caught:
                # It lacks an input as well.
                service_stub(channel).ModelInfer(
                    pb.ModelInferRequest(model_name="identity_fp32"), metadata=(("authorization", "Bearer few-secret"),)
                )
            return caught.value.code()

        refused_soon(over_grpc, lambda code: code == grpc.StatusCode.RESOURCE_EXHAUSTED)

    def over_a_session() -> str:
        try:
            with nerite.connect(f"unix:{quotas.session}", token="few-secret") as client:
                client.model("identity_fp32")(np.ones(1, np.float32))
        except (InferenceServerException, ConnectionError) as error:
            return str(error)
        return ""

    refused_soon(over_a_session, lambda text: "quota of token 'few'" in text)


def test_each_request_of_a_stream_counts(quotas):
    wait_for_quota()
    raw = np.ones(1, np.float32).tobytes()
    request = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[raw])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    begun = time.monotonic()
    with grpc_channel(quotas.grpc) as channel:
        metadata = (("authorization", "Bearer few-secret"),)
        answers = list(service_stub(channel).ModelStreamInfer(iter([request] * 100), metadata=metadata))
    texts = [one.error_message for one in answers]
    assert texts[:3] == [""] * 3 and texts.count("") <= 3 + time.monotonic() - begun, texts
    assert all("quota of token 'few'" in text for text in texts if text), texts


def test_the_page_tells_how_long_to_wait(quotas):
    wait_for_quota()
    call = lambda: http_call(quotas.metrics, "GET", "/ui/api/visitor", headers=bearer("few"))
    assert refused_soon(call, lambda answer: answer.status == 429).headers["retry-after"] == "1"


def test_bytes_that_came_are_owed(quotas):
    many = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [5000], "data": [1] * 5000}]}
    begun = time.monotonic()
    assert http_infer(quotas.http, "identity_fp32", many, headers=bearer("bytes")).status == 200
    refused = http_infer(quotas.http, "identity_fp32", ONE, headers=bearer("bytes"))
    assert refused.status == 429 and "1000 bytes of tensors per second" in refused.error
    # 20,000 came and 20,000 went, and a thousand may be used at once. Some of it is paid already.
    assert 39 - (time.monotonic() - begun) <= int(refused.headers["retry-after"]) <= 40
    text = http_call(quotas.metrics, "GET", "/metrics", headers=bearer("other")).ok().body.decode()
    assert 'nerite_token_bytes_total{direction="in",token="bytes"} 20000' in text
    assert 'nerite_token_requests_total{outcome="limited",token="bytes"} 1' in text


def test_messages_that_come_at_once_cannot_use_the_same_bytes(launcher):
    count = 200_000
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [count], "data": [1] * count}]})
    raw = np.ones(1 << 20, np.float32).tobytes()
    large = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[raw])
    large.inputs.add(name="INPUT0", datatype="FP32", shape=[1 << 20])
    rules = "bytes_per_second = 1000"
    with guarded(launcher, "booked", "\n".join(token(name, '["infer"]', rules) for name in ("one", "two", "broken"))) as server:
        found = []

        def over_http() -> None:
            found.append(http_call(server.http, "POST", "/v2/models/identity_fp32/infer", body, bearer("one")))

        def over_grpc() -> None:
            with grpc_channel(server.grpc) as channel:
                try:
                    service_stub(channel).ModelInfer(large, metadata=(("authorization", "Bearer two-secret"),))
                    found.append("OK")
                except grpc.RpcError as error:
                    found.append(error.code().name)

        for call in (over_http, over_grpc):
            threads = [threading.Thread(target=call) for _ in range(20)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        assert sorted(one.status for one in found[:20]) == [200] + [429] * 19
        assert all(int(one.headers["retry-after"]) <= 3601 for one in found[:20] if one.status == 429)
        assert sorted(found[20:]) == ["OK"] + ["RESOURCE_EXHAUSTED"] * 19, found[20:]
        # What was announced and did not come is given back.
        host, port = server.http.split(":")
        with socket.create_connection((host, int(port))) as opened:
            head = "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer broken-secret\r\n"
            opened.sendall(f"{head}content-length: 2000000\r\nexpect: 100-continue\r\n\r\n".encode())
            # The server asks for the body after it has booked the bytes.
            assert opened.recv(64).startswith(b"HTTP/1.1 100 ")
            assert infer(server.http, "broken").status == 429
        eventually(lambda: infer(server.http, "broken").status == 200)


# ------------------------------------------------------------------------------------------ the file


def eventually(holds, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_changed_file_is_in_force_and_a_broken_one_is_not(launcher):
    with guarded(launcher, "changing", token("old", EVERYTHING)) as server:
        array = np.ones(1, np.float32)
        with nerite.connect(f"unix:{server.session}", token="old-secret") as client:
            model = client.model("identity_fp32")
            assert (model(array)["OUTPUT0"] == array).all()
            put(server.tokens, "[[token]]\nname = 1\n")
            eventually(lambda: "cannot be used" in server.log_text())
            assert infer(server.http, "old").status == 200, "the rules before it are kept"
            text = http_call(server.metrics, "GET", "/metrics", headers=bearer("old")).ok().body.decode()
            assert "nerite_token_file_current 0" in text and "nerite_token_file_faults_total 1" in text
            put(server.tokens, token("new", EVERYTHING))
            eventually(lambda: infer(server.http, "new").status == 200)
            assert infer(server.http, "old").status == 401
            with pytest.raises(InferenceServerException, match="token is not known"):
                model(array)


def test_a_copy_that_a_full_disk_cut_revokes_nothing(launcher):
    with guarded(launcher, "emptied", token("old", EVERYTHING)) as server:
        put(server.tokens, "")
        eventually(lambda: "the file has no [[token]]" in server.log_text())
        assert infer(server.http, "old").status == 200, "the rules before it are kept"
        text = http_call(server.metrics, "GET", "/metrics", headers=bearer("old")).ok().body.decode()
        assert "nerite_token_file_current 0" in text
        put(server.tokens, "token = []\n")
        eventually(lambda: infer(server.http, "old").status == 401)


def test_an_empty_file_ends_the_start(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no tokens")
    path = tmp_path / "tokens.toml"
    path.touch()
    with pytest.raises(RuntimeError, match="the file has no ..token.."), launcher.running("empty", f"--access-tokens-file={path}"):
        pass


def test_a_fifo_in_the_place_of_the_file_ends_no_rereading(launcher):
    with guarded(launcher, "piped", token("old", EVERYTHING)) as server:
        server.tokens.unlink()
        os.mkfifo(server.tokens)
        eventually(lambda: "it is no regular file" in server.log_text())
        assert infer(server.http, "old").status == 200, "the rules before it are kept"
        put(server.tokens, token("new", EVERYTHING))
        eventually(lambda: infer(server.http, "new").status == 200)
        assert infer(server.http, "old").status == 401


def test_a_faulty_file_ends_the_start(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has no tokens")
    path = tmp_path / "tokens.toml"
    path.write_text("[[token]]\nname = \"a\"\nsecret = \"hidden\"\nscopes = [\"all\"]\n")
    flag = f"--access-tokens-file={path}"
    with pytest.raises(RuntimeError, match="line 4: 'all' is no scope") as caught, launcher.running("faulty", flag):
        pass
    assert "hidden" not in str(caught.value)


def test_anonymous_requests_have_what_the_file_gives_them(launcher):
    text = token("all", EVERYTHING) + '[anonymous]\nscopes = ["infer"]\nmodels = ["identity*"]\n'
    with guarded(launcher, "anonymous", text) as server:
        assert http_infer(server.http, "identity_fp32", ONE).status == 200
        refused = http_call(server.http, "GET", "/v2/models/simple")
        assert (refused.status, refused.error) == (403, "a request without a token does not reach model 'simple'")
        assert http_call(server.http, "POST", "/v2/repository/models/simple/load", "{}").status == 401


def test_restricted_categories_are_asked_first(launcher):
    restricted = "--http-restricted-api=inference:key=sesame"
    with guarded(launcher, "both", token("all", EVERYTHING), restricted) as server:
        refused = infer(server.http, "all")
        assert (refused.status, refused.error) == (403, "This API is restricted, expecting header 'key'")
        assert http_infer(server.http, "identity_fp32", ONE, headers={"key": "sesame"}).status == 401
        assert http_infer(server.http, "identity_fp32", ONE, headers={"key": "sesame", **bearer("all")}).status == 200


# ------------------------------------------------------------------------------------------ audit


def test_changes_are_audited(launcher):
    with guarded(launcher, "audited", FILE) as server:
        http_call(server.http, "POST", "/v2/repository/models/simple/unload", "{}", bearer("control")).ok()
        http_call(server.http, "POST", "/v2/repository/models/no%0Asuch/load", "{}", bearer("all"))
        http_call(server.http, "POST", "/v2/logging", {"log_verbose_level": 0}, bearer("all")).ok()
        assert http_call(server.http, "POST", "/v2/logging", {"log_info": False}, bearer("control")).status == 403
        http_call(server.http, "POST", "/v2/repository/models/simple/load", "{}", bearer("read"))
        http_call(server.http, "POST", f"/v2/repository/models/{'m' * 3000}/unload", "{}", bearer("all"))
        http_call(server.http, "POST", "/v2/models/identity_fp32/trace/setting", {"trace_rate": "5"}, bearer("all")).ok()
        metadata = (("authorization", "Bearer read-secret"),)
        with grpc_channel(server.grpc) as channel:
            stub = service_stub(channel)
            log = pb.LogSettingsRequest(settings={"log_info": {"bool_param": True}})
            trace = pb.TraceSettingRequest(settings={"trace_rate": {"value": ["5"]}})
            for call, message in ((stub.LogSettings, log), (stub.TraceSetting, trace)):
                with pytest.raises(grpc.RpcError):
                    call(message, metadata=metadata)
        # What an inference is refused for is no change.
        with nerite.connect(f"unix:{server.session}", token="read-secret") as client, pytest.raises(InferenceServerException):
            client.model("identity_fp32")(np.ones(1, np.float32))
        lines = [line for line in server.log_text().splitlines() if "audit: " in line]
        user = f"user {os.geteuid()}"
        for part in (
            f"audit: token control, {user}: unload model \\\"simple\\\": done",
            f"audit: token all, {user}: load model \\\"no%0Asuch\\\": refused: ",
            f"audit: token all, {user}: change the log settings: ",
            f"audit: token control, {user}: change the log settings: ",
            f"audit: token read, {user}: a change (model-repository): refused: Permission denied",
            f"audit: token read, {user}: a change (logging): refused: Permission denied",
            f"audit: token read, {user}: a change (trace): refused: Permission denied",
            f"audit: token all, {user}: change the trace settings of model \\\"identity_fp32\\\": done",
            f"audit: token all, {user}: unload model \\\"{'m' * 128}\\\": ",
        ):
            assert sum(part in line for line in lines) == 1, (part, lines)
        assert not any("(inference)" in line or len(line) > 1500 for line in lines), lines


def test_changes_of_regions_are_audited_whoever_makes_them(launcher, tmp_path):
    """Over HTTP, gRPC and a session, and by the operator's tool, also after a client has turned the log off."""
    key = f"/nerite_audited_{os.getpid()}"
    system, session = shm.create_shared_memory_region("audited", key, 64), f"--session-socket={launcher.scratch / 'dropped.sock'}"
    with guarded(launcher, "dropped", FILE) as server:
        http_call(server.http, "POST", "/v2/logging", {"log_info": False}, bearer("all")).ok()
        try:
            body = {"key": key, "byte_size": 64}
            for name in ("one", "two"):
                http_call(server.http, "POST", f"/v2/systemsharedmemory/region/{name}/register", body, bearer("regions")).ok()
            http_call(server.http, "POST", "/v2/systemsharedmemory/region/two/unregister", "", bearer("regions")).ok()
            with grpc_channel(server.grpc) as channel:
                metadata = (("authorization", "Bearer regions-secret"),)
                unregister = pb.SystemSharedMemoryUnregisterRequest(name="one")
                service_stub(channel).SystemSharedMemoryUnregister(unregister, metadata=metadata)
            http_call(server.http, "POST", "/v2/systemsharedmemory/region/three/register", body, bearer("regions")).ok()
            for words in (["drop", "three"], ["drop", "three"], ["drop", "--all"], ["drop", "--session", "4000000000"]):
                subprocess.run([servers.nerite_binary(), "shm", *words, session], capture_output=True, timeout=60)
        finally:
            shm.destroy_shared_memory_region(system)
        lines = [line for line in server.log_text().splitlines() if "audit: " in line]
        user = f"user {os.geteuid()}"
        for part in (
            f'audit: token regions, {user}: register region \\"one\\" over \\"{key}\\": 64 bytes at 0: done',
            f'audit: token regions, {user}: unregister system region \\"two\\": done',
            f'audit: token regions, {user}: unregister system region \\"one\\": done',
            f'audit: token -, {user}: as operator: unregister region \\"three\\": done',
            f'audit: token -, {user}: as operator: unregister region \\"three\\": refused: Not found: ',
            f"audit: token -, {user}: as operator: unregister all regions that belong to no session: done",
            f"audit: token -, {user}: as operator: end session 4000000000: refused: Not found: ",
        ):
            assert sum(part in line for line in lines) == 1, (part, lines)


@again_if_too_late
def test_no_client_turns_audit_lines_off(launcher):
    off = {"log_info": False, "log_warning": False, "log_error": False}
    with guarded(launcher, "unsilenced", FILE) as server:
        http_call(server.http, "POST", "/v2/logging", off, bearer("all")).ok()
        http_call(server.http, "POST", "/v2/repository/models/simple/unload", "{}", bearer("control")).ok()
        window = Delay(10_000)
        for _ in range(20):
            http_call(server.http, "POST", "/v2/repository/models/simple/load", "{}", bearer("read"))
            http_call(server.http, "POST", "/v2/logging", off, bearer("wrong"))
        window.must_last()
        with grpc_channel(server.grpc) as channel, pytest.raises(grpc.RpcError):
            metadata = (("authorization", "Bearer wrong-secret"),)
            service_stub(channel).LogSettings(pb.LogSettingsRequest(), metadata=metadata)
        http_call(server.http, "GET", "/v2/logging", None, bearer("wrong"))
        user = f"user {os.geteuid()}"

        def count(part: str) -> int:
            return sum(f"audit: token {part}" in line for line in server.log_text().splitlines())

        assert count(f"all, {user}: change the log settings: ") == 1
        assert count(f"control, {user}: unload model \\\"simple\\\": done") == 1
        assert count(f"read, {user}: a change (model-repository): refused: Permission denied") == 5
        assert count(f"(unknown), {user}: a change (logging): refused: Unauthenticated") == 5
        assert count(f"(unknown), {user}: a call that may be a change (logging): refused: Unauthenticated") == 1
        # The rest is counted, and the count is written even now.
        eventually(lambda: "15 times more within 10 s: audit: token (unknown)" in server.log_text())


def test_without_information_in_the_log_there_are_no_audit_lines_of_what_was_done(launcher):
    with guarded(launcher, "uninformed", FILE, "--log-info=false") as server:
        http_call(server.http, "POST", "/v2/logging", {"log_info": True}, bearer("all")).ok()
        http_call(server.http, "POST", "/v2/repository/models/simple/unload", "{}", bearer("control")).ok()
        assert "audit: " not in server.log_text()


SLOW = "import time\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        time.sleep(2)\n"


def test_a_load_whose_client_has_gone_is_audited(launcher):
    with guarded(launcher, "forsaken", FILE, PATIENT) as server:
        folder = server.repository / "slow" / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(SLOW)
        (folder.parent / "config.pbtxt").write_text('backend: "python"')
        with contextlib.closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
            connection.request("POST", "/v2/repository/models/slow/load", "{}", bearer("all"))
            eventually(lambda: '"loading: slow:1"' in server.log_text())
        line = f'audit: token all, user {os.geteuid()}: load model \\"slow\\": done'
        eventually(lambda: line in server.log_text())


def test_the_secret_is_not_forwarded_to_models(launcher):
    # A model in Python tells the parameters of its request.
    flags = ["--http-header-forward-pattern=(?i)(authorization|x-.*)", "--grpc-header-forward-pattern=(?i)(authorization|x-.*)"]
    with guarded(launcher, "forwarding", FILE, PATIENT, *flags) as server:
        folder = server.repository / "tells" / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(PARAMETERS_MODEL)
        (folder.parent / "config.pbtxt").write_text(PARAMETERS_CONFIG)
        http_call(server.http, "POST", "/v2/repository/models/tells/load", "{}", bearer("all")).ok()
        body = {"inputs": [{"name": "ASKED", "datatype": "FP32", "shape": [1], "data": [1]}]}
        [output] = http_infer(server.http, "tells", body, headers={**bearer("all"), "x-more": "seen"}).ok().json["outputs"]
        assert json.loads(output["data"][0]) == {"x-more": "seen"}
        message = pb.ModelInferRequest(model_name="tells", raw_input_contents=[np.ones(1, np.float32).tobytes()])
        message.inputs.add(name="ASKED", datatype="FP32", shape=[1])
        with grpc_channel(server.grpc) as channel:
            metadata = (("authorization", "Bearer all-secret"), ("x-more", "seen"))
            answer = service_stub(channel).ModelInfer(message, metadata=metadata)
        assert json.loads(answer.raw_output_contents[0][4:]) == {"x-more": "seen"}


PARAMETERS_MODEL = '''
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([tensor(request.parameters())]) for request in requests]


def tensor(parameters):
    return pb_utils.Tensor("SAID", numpy.array([parameters.encode()], dtype=numpy.object_))
'''
PARAMETERS_CONFIG = '''
backend: "python"
input [{ name: "ASKED" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }]
'''


def test_without_a_file_nothing_is_asked_for(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no tokens")
    with launcher.running("tokenless", repository=launcher.copy_of("tokenless", "identity_fp32")) as server:
        assert http_infer(server.http, "identity_fp32", ONE, headers={"Authorization": "Bearer x"}).status == 200
        assert b"nerite_token" not in http_call(server.metrics, "GET", "/metrics").ok().body


# ------------------------------------------------------------------------------------------ a line for each request

RAW = np.ones(2, np.float32).tobytes()


def requests_of_all_kinds(server) -> None:
    """One of each, with an id that tells which it is."""
    http_infer(server.http, "identity_fp32", {**ONE, "id": "over\nhttp"}, headers=bearer("all")).ok()
    http_infer(server.http, "identity_fp32", {**ONE, "id": "not read"}, headers=bearer("read"))
    http_call(server.http, "GET", "/v2/models/nobody", headers=bearer("all"))
    http_call(server.http, "DELETE", "/v2/models/identity_fp32/stats", headers=bearer("read"))
    http_infer(server.http, "nobody", {**ONE, "id": "unknown"}, headers=bearer("all"))
    http_call(server.metrics, "GET", "/ui/api/models", headers=bearer("read")).ok()
    message = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[RAW])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[2])

    def request(name: str, model: str = "identity_fp32"):
        made = pb.ModelInferRequest()
        made.CopyFrom(message)
        made.id, made.model_name = name, model
        return made

    with grpc_channel(server.grpc) as channel:
        metadata = (("authorization", "Bearer infer-secret"),)
        service_stub(channel).ModelInfer(request("over grpc"), metadata=metadata)
        with pytest.raises(grpc.RpcError):
            service_stub(channel).ModelInfer(request("refused", "simple"), metadata=metadata)
        large = request("large")
        large.inputs[0].shape[0], large.raw_input_contents[0] = 1, bytes(1 << 20)
        assert list(service_stub(channel).ModelStreamInfer(iter([large]), metadata=metadata))[0].error_message
        stream = iter([request("one"), request("two"), request("three", "simple")])
        assert len(list(service_stub(channel).ModelStreamInfer(stream, metadata=metadata))) == 3
        service_stub(channel).ModelMetadata(pb.ModelMetadataRequest(name="identity_fp32"), metadata=metadata)
    with nerite.connect(f"unix:{server.session}", token="all-secret") as client:
        model = client.model("identity_fp32")
        for _ in range(3):
            model(np.ones(3, np.float32))
    http_call(server.metrics, "GET", "/metrics", headers=bearer("read")).ok()


WITHOUT_TIME = [
    "protocol=http peer={user} token=all call=inference model=identity_fp32 request_id=\"over\\u000ahttp\" status=200 bytes_in=4 bytes_out=4 us=",
    "protocol=http peer={user} token=read call=inference status=403 bytes_in=0 bytes_out=0 us=",
    "protocol=http peer={user} token=all call=metadata model=nobody status=404 bytes_in=0 bytes_out=0 us=",
    "protocol=http peer={user} token=read call=statistics status=405 bytes_in=0 bytes_out=0 us=",
    "protocol=http peer={user} token=all call=inference model=nobody status=404 bytes_in=0 bytes_out=0 us=",
    "protocol=http peer={user} token=read call=model-repository status=200 bytes_in=0 bytes_out=0 us=",
    "protocol=grpc peer={user} token=infer call=inference model=simple request_id=refused status=7 bytes_in=0 bytes_out=0 us=",
    "protocol=grpc peer={user} token=infer call=inference model=identity_fp32 request_id=large status=3 bytes_in=1048576 bytes_out=0 us=",
    "protocol=grpc peer={user} token=infer call=inference model=identity_fp32 request_id=\"over grpc\" status=0 bytes_in=8 bytes_out=8 us=",
    "protocol=grpc peer={user} token=infer call=inference model=identity_fp32 request_id=one status=0 bytes_in=8 bytes_out=8 us=",
    "protocol=grpc peer={user} token=infer call=inference model=identity_fp32 request_id=two status=0 bytes_in=8 bytes_out=8 us=",
    "protocol=grpc peer={user} token=infer call=inference model=simple request_id=three status=7 bytes_in=0 bytes_out=0 us=",
    "protocol=grpc peer={user} token=infer call=metadata model=identity_fp32 status=0 bytes_in=0 bytes_out=0 us=",
    "protocol=session peer={user} token=all call=metadata status=0 bytes_in=0 bytes_out=0 us=",
    "protocol=session peer={user} token=all call=inference model=identity_fp32 status=0 bytes_in=0 bytes_out=0 us=",
    "protocol=metrics peer={user} token=read call=statistics status=200 bytes_in=0 bytes_out=0 us=",
]  # fmt: skip


SESSION_INFERENCE = "protocol=session .* call=inference"


def test_each_request_is_one_line(launcher):
    with guarded(launcher, "lines", FILE, "--log-access=true") as server:
        requests_of_all_kinds(server)
        user = f'"user {os.geteuid()}"'
        # A client may have its answer before the line is written, and another thread writes that of the metrics.
        eventually(lambda: "protocol=metrics" in server.log_text() and len(re.findall(SESSION_INFERENCE, server.log_text())) == 4)
        found = [line.partition("access: ")[2] for line in server.log_text().splitlines() if "] access: " in line]
        for expected in WITHOUT_TIME:
            begun = expected.replace("{user}", user)
            times = [line for line in found if line.startswith(begun)]
            # The client prepares the inference, and calls it three times.
            wanted = 4 if "call=inference" in expected and "protocol=session" in expected else 1
            assert len(times) == wanted, (begun, found)
            assert all(re.fullmatch(r"\d+( queue_us=\d+)?( request=.+)?", line[len(begun) :]) for line in times), (begun, times)
            # An inference that ran has waited for its model, if only for a moment. A preparation has not.
            ran = min(wanted, 3) if "call=inference" in expected and ("status=200" in expected or "status=0" in expected) else 0
            assert sum(" queue_us=" in line for line in times) == ran, (begun, times)
        # What was asked for, without the query.
        called = {line.partition(" request=")[2] for line in found}
        assert {'"POST /v2/models/identity_fp32/infer"', "ModelInfer", "ModelStreamInfer", '"GET /metrics"', ""} <= called


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def infer_within_a_trace(server) -> None:
    """An inference over each protocol."""
    http_infer(server.http, "identity_fp32", ONE, headers={"traceparent": PARENT}).ok()
    message = pb.ModelInferRequest(model_name="identity_fp32", raw_input_contents=[RAW])
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[2])
    with grpc_channel(server.grpc) as channel:
        service_stub(channel).ModelInfer(message, metadata=(("traceparent", PARENT),))
        assert len(list(service_stub(channel).ModelStreamInfer(iter([message] * 2), metadata=(("traceparent", PARENT),)))) == 2
    with nerite.connect(f"unix:{server.session}") as client:
        model = client.model("identity_fp32")
        for _ in range(3):
            model(np.ones(3, np.float32), trace_parent=PARENT)


@pytest.mark.parametrize("form", ["default", "json"])
def test_the_line_of_an_inference_has_its_trace_and_its_time_in_the_queue(launcher, tmp_path, form):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    name, flags = f"trace_lines_{form}", ["--log-access=true", f"--log-format={form}", f"--session-socket={tmp_path / 'socket'}"]
    with launcher.running(name, *flags, repository=launcher.copy_of(name, "identity_fp32")) as server:
        server.session = tmp_path / "socket"
        infer_within_a_trace(server)
        wanted = [rf"queue_us=\d+ trace_id={TRACE}\b", rf'"queue_us":\d+,"trace_id":"{TRACE}"'][form == "json"]
        protocols = {"http": 1, "grpc": 3, "session": 3}

        def counts() -> dict[str, int]:
            found = [line for line in server.log_text().splitlines() if re.search(wanted, line)]
            return {one: sum(f"protocol={one}" in line or f'"protocol":"{one}"' in line for line in found) for one in protocols}

        eventually(lambda: counts() == protocols)


@pytest.mark.parametrize("shown", [True, False])
def test_health_probes_can_be_left_out(launcher, shown):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    name, flags = f"health_lines_{shown}", ["--log-verbose=2", "--session-socket=off", f"--log-access-health={str(shown).lower()}"]
    with launcher.running(name, *flags, repository=launcher.copy_of(name, "identity_fp32")) as server:
        for path in ("health/live", "health/ready", "models/identity_fp32/ready"):
            http_call(server.http, "GET", f"/v2/{path}").ok()
        with grpc_channel(server.grpc) as channel:
            stub = service_stub(channel)
            stub.ServerLive(pb.ServerLiveRequest())
            stub.ServerReady(pb.ServerReadyRequest())
            stub.ModelReady(pb.ModelReadyRequest(name="identity_fp32"))
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        http_call(server.http, "GET", "/v2/models/identity_fp32").ok()
        eventually(lambda: "call=metadata" in server.log_text())
        requests = set(re.findall(r"call=health .* request=(.+)", server.log_text()))
        both = {"ServerLive", "ServerReady", "ModelReady", '"GET /v2/health/live"', '"GET /v2/models/identity_fp32/ready"'}
        assert requests == set() if not shown else both <= requests and any("Check" in one for one in requests), requests


def test_a_stale_inference_has_a_line(launcher):
    with guarded(launcher, "stale", FILE, "--log-access=true") as server:
        with nerite.connect(f"unix:{server.session}", token="all-secret") as client:
            model, one = client.model("identity_fp32"), np.ones(1, np.float32)
            for _ in range(3):
                # It is prepared once it repeats.
                model(one)
            for what in ("unload", "load"):
                http_call(server.http, "POST", f"/v2/repository/models/identity_fp32/{what}", "{}", bearer("all")).ok()
            # It is prepared anew then.
            assert model(one)["OUTPUT0"][0] == 1
        line = f'protocol=session peer="user {os.geteuid()}" token=all call=inference model=identity_fp32 status=9 '
        eventually(lambda: server.log_text().count(line) == 1)


def test_each_request_is_an_object_of_json(launcher):
    with guarded(launcher, "objects", FILE, "--log-access=true", "--log-format=json") as server:
        requests_of_all_kinds(server)
        eventually(lambda: '"protocol":"metrics"' in server.log_text())
        found = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
        [one] = [line for line in found if line.get("request_id") == "over\nhttp" and "protocol" in line]
        assert (one["level"], one["token"], one["status"], one["bytes_in"]) == ("info", "all", 200, 4)
        assert one["us"] > 0 and one["model"] == "identity_fp32" and "message" not in one


def test_without_tokens_there_are_lines_as_well(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    flags = ["--log-access=true", "--session-socket=off"]
    with launcher.running("tokenless_lines", *flags, repository=launcher.copy_of("tokenless_lines", "identity_fp32")) as server:
        http_infer(server.http, "identity_fp32", ONE).ok()
        eventually(lambda: "token=- call=inference model=identity_fp32 status=200 bytes_in=4 bytes_out=4" in server.log_text())


def test_lines_of_requests_are_written_without_other_information(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    repository = launcher.copy_of("silent_lines", "identity_fp32")
    with launcher.running("silent_lines", "--log-access=true", "--log-info=false", repository=repository) as server:
        off = json.dumps({"log_info": False, "log_warning": False, "log_error": False})
        http_call(server.http, "POST", "/v2/logging", off).ok()
        http_infer(server.http, "identity_fp32", {**ONE, "id": "afterwards"}).ok()
        eventually(lambda: "request_id=afterwards status=200" in server.log_text())


def test_the_line_of_a_client_that_goes_in_the_middle_of_its_body_has_no_status(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    with launcher.running("gone_lines", "--log-access=true", repository=launcher.copy_of("gone_lines", "identity_fp32")) as server:
        host, _, port = server.http.rpartition(":")

        def send(path: str, headers: str, body: str) -> socket.socket:
            client = socket.create_connection((host, int(port)), timeout=60)
            client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}".encode())
            return client

        def line_of(path: str) -> str:
            found = []
            eventually(lambda: found.extend(line for line in server.log_text().splitlines() if path in line and "access: " in line) or found)
            return found[0]

        for model in ("infer", "generate"):
            path = f"/v2/models/identity_fp32/{model}"
            send(path, "Content-Length: 1000", "{").close()
            assert "call=inference" in line_of(path) and " status=" not in line_of(path)
        # This one is still there, and gets its answer.
        path = "/v2/models/identity_fp32/versions/1/infer"
        with send(path, "Transfer-Encoding: chunked", "no number\r\n") as client:
            assert client.recv(4096).startswith(b"HTTP/1.1 400")
        assert " status=400 " in line_of(path)


def test_a_verbose_log_has_the_lines_as_long_as_it_is_that_verbose(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no such lines")
    socket = launcher.scratch / "verbose_lines.sock"
    flags = ["--log-verbose=2", f"--session-socket={socket}"]
    with launcher.running("verbose_lines", *flags, repository=launcher.copy_of("verbose_lines", "identity_fp32")) as server:
        def infer(name: str) -> None:
            http_infer(server.http, "identity_fp32", {**ONE, "id": f"{name}-http"}).ok()
            with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
                given = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
                given.set_data_from_numpy(np.ones(1, np.float32))
                client.infer("identity_fp32", [given], request_id=f"{name}-grpc")

        def lines() -> list[str]:
            return [line.partition("access: ")[2] for line in server.log_text().splitlines() if "] access: " in line]

        with nerite.connect(f"unix:{socket}") as client:
            client.model("identity_fp32")(np.ones(1, np.float32))
            infer("first")
            eventually(lambda: any("request_id=first-grpc" in line for line in lines()))
            by_id = {line.split("request_id=")[1].split()[0]: line for line in lines() if "request_id=" in line}
            assert by_id["first-http"].endswith(' request="POST /v2/models/identity_fp32/infer"')
            assert by_id["first-grpc"].endswith(" request=ModelInfer")
            assert any(line.startswith("protocol=session") for line in lines())
            http_call(server.http, "POST", "/v2/logging", json.dumps({"log_verbose_level": 1})).ok()
            count = len(lines())
            client.model("identity_fp32")(np.ones(1, np.float32))
            infer("second")
            http_call(server.http, "POST", "/v2/logging", json.dumps({"log_verbose_level": 2, "log_format": "json"})).ok()
            infer("third")
            eventually(lambda: '"request_id":"third-grpc"' in server.log_text())
        # Nothing but the end of the change itself, whose line was begun before it.
        assert "second-" not in "".join(lines()) and len(lines()) <= count + 1
        [third] = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{") and "third-http" in line and '"us"' in line]
        assert third["request"] == "POST /v2/models/identity_fp32/infer" and third["status"] == 200


@contextlib.contextmanager
def server_with_unread_log(launcher, tmp_path, *flags: str):
    """The server, and a function that returns all that its log was until now. Nothing of it is read before the function's first call."""
    if launcher.oracle:
        pytest.skip("2.51 waits for its log")
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = b""

    def read() -> bytes:
        nonlocal text
        with contextlib.suppress(BlockingIOError):
            while got := os.read(reader, 1 << 16):
                text += got
        return text

    flags = [f"--log-file={pipe}", "--session-socket=off", *flags]
    with launcher.running("unread_log", *flags, repository=launcher.copy_of("unread_log", "identity_fp32")) as server:
        yield server, read
        os.set_blocking(reader, True)
        draining = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 1 << 16), b"")])
        draining.start()
        assert servers.stop(server) == 0
        draining.join()
    os.close(reader)


def lost_lines(log: bytes) -> int:
    return sum(int(number) for number in re.findall(rb'"(\d+) lines are lost', log))


def request_each(server, count: int, method: str, path: str, body: bytes | None = None) -> None:
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=60)) as connection:
        for _ in range(count):
            connection.request(method, path, body)
            answer = connection.getresponse()
            assert answer.read() and answer.status == 200


def test_a_log_that_nobody_reads_keeps_no_request(launcher, tmp_path):
    # More than the pipe and the queue hold.
    count = 6000
    with server_with_unread_log(launcher, tmp_path, "--log-access=true") as (server, log):
        request_each(server, count, "GET", "/v2/models/identity_fp32")
        eventually(lambda: lost_lines(log()) and log().count(b"call=metadata") + lost_lines(log()) == count)


def test_verbose_lines_that_nobody_reads_keep_no_request(launcher, tmp_path):
    inference = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]})
    with server_with_unread_log(launcher, tmp_path, "--log-verbose=1") as (server, log):
        request_each(server, 3000, "POST", "/v2/models/identity_fp32/infer", inference)
        eventually(lambda: lost_lines(log()))
