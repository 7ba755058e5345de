"""Does each switch of docs/hardening.md stop what the page says?"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import tomllib

import numpy as np
import pytest
import python_catalogue
import servers
import tritonclient.grpc as grpc_client
from clients import http_call
from packets import HELLO, Raw, encode
from python_setup import kernel_refuses
from regions import region
from strangers import close_all, connections_of, is_over
from tritonclient.utils import InferenceServerException
from users import as_user
from witness import comes_to

sys.path.append(str(pathlib.Path(__file__).parents[1] / "packaging"))
import documents  # noqa: E402

PAGE = documents.ROOT / "docs" / "hardening.md"
# The server's own user, and another one.
OWN, STRANGER = 4242, 65101
AS_OWN = ["setpriv", f"--reuid={OWN}", f"--regid={OWN}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
INTERPRETER = pathlib.Path("/usr/bin/python{}.{}".format(*sys.version_info))
SPY = "identity_spy"
# A token of this test that may do everything, so that a refusal comes from another switch.
EVERY = """
[[token]]
name = "every"
secret = "every-secret"
scopes = ["infer", "read", "regions", "control"]
"""
OPERATORS_HEADER = {"nerite-operator": "a-second-secret"}
LOAD = "/v2/repository/models/simple/load"


class Hardened:
    """A server with the files of the page, and a client with a certificate."""

    def __init__(self, folder: pathlib.Path, server: servers.Server):
        self.folder, self.server = folder, server
        self.trust = ssl.create_default_context(cafile=folder / "ca.pem")
        self.shows = ssl.create_default_context(cafile=folder / "ca.pem")
        self.shows.load_cert_chain(folder / "client.pem", folder / "client.key")

    def call(self, method: str, path: str, body=None, token: str = "", headers=None, context=None):
        """The status of a call, and what it answers."""
        sent = {**({"authorization": f"Bearer {token}-secret"} if token else {}), **(headers or {})}
        port = int(self.server.http.rpartition(":")[2])
        with contextlib.closing(http.client.HTTPSConnection("localhost", port, context=context or self.shows, timeout=60)) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def grpc(self, certificate: bool = True) -> grpc_client.InferenceServerClient:
        shown = {"private_key": self.folder / "client.key", "certificate_chain": self.folder / "client.pem"} if certificate else {}
        files = {name: str(path) for name, path in {"root_certificates": self.folder / "ca.pem", **shown}.items()}
        return grpc_client.InferenceServerClient(f"localhost:{self.server.grpc.rpartition(':')[2]}", ssl=True, **files)


@pytest.fixture(scope="module")
def hardened(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has none of these switches")
    if why := kernel_refuses():
        pytest.skip(why)
    if os.geteuid() != 0 or not INTERPRETER.exists():
        pytest.skip("only root can be other users, whose interpreter must lie where they can go")
    # A short path: a session socket lies in it.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="nerite-hardened-"))
    try:
        make_files(launcher, folder)
        command = [*AS_OWN, "env", "-C", str(folder), str(servers.nerite_binary()), "serve", "--config=nerite.toml"]
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV" and not name.startswith("NERITE_")}
        environment["PYTHONPATH"] = str(folder / "packages")
        # The first flag tells `servers.start` that HTTP needs a certificate.
        flags = ["--http-use-ssl-mutual=true", f"--backend-config=python,interpreter={INTERPRETER}"]
        flags += [f"--backend-config={setting}" for setting in settings()["backend-config"]]
        server = servers.start(command, environment, flags, launcher.scratch / "hardened.log", oracle=False)
        try:
            yield Hardened(folder, server)
        finally:
            servers.stop(server)
    finally:
        shutil.rmtree(folder)


def settings() -> dict:
    (found,) = (step.text for step in documents.steps(PAGE.read_text()) if step.name == "nerite.toml")
    return tomllib.loads(found)


def make_files(launcher, folder: pathlib.Path) -> None:
    """What the page writes and makes, and models. All belong to the server's user, but it may not write the models."""
    for step in documents.steps(PAGE.read_text()):
        if step.name:
            (folder / step.name).write_text(step.text)
        elif "openssl" in step.command:
            subprocess.run(["bash", "-ec", step.command], cwd=folder, check=True)
    with (folder / "tokens.toml").open("a") as tokens:
        tokens.write(EVERY)
    subprocess.run(["chown", "-R", f"{OWN}:{OWN}", folder], check=True)
    subprocess.run(["chmod", "-R", "go=", folder], check=True)
    models = folder / "models"
    models.mkdir()
    shutil.copytree(documents.ROOT / "examples" / "models" / "digits", models / "digits")
    for name in ("simple", "identity_fp32"):
        shutil.copytree(launcher.catalogue / name, models / name)
    code, said = python_catalogue.tensors(CODE="BYTES"), python_catalogue.tensors(SAID="BYTES")
    python_catalogue.put(models, python_catalogue.python(SPY, "asking", code, said))
    packages = pathlib.Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            shutil.copytree(packages / name, folder / "packages" / name)
    subprocess.run(["chmod", "-R", "go+rX", models, folder / "packages"], check=True)
    folder.chmod(0o755)


def test_the_server_is_a_user_without_rights_and_cannot_write_its_models(hardened):
    status = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{hardened.server.pid}/status").read_text().splitlines())
    assert status["Uid"].split() == [str(OWN)] * 4
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0} and status["NoNewPrivs"] == "1"
    assert subprocess.run([*AS_OWN, "test", "-w", hardened.folder / "models" / "simple"]).returncode == 1


def test_a_client_without_a_certificate_is_served_by_neither_port(hardened):
    assert hardened.call("GET", "/v2/health/ready")[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError)):
        hardened.call("GET", "/v2/health/ready", context=hardened.trust)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        http_call(hardened.server.http, "GET", "/v2/health/ready")
    with hardened.grpc() as client:
        assert client.is_server_ready()
    with hardened.grpc(certificate=False) as client, pytest.raises(InferenceServerException):
        client.is_server_ready()


def infer(hardened, model: str = "identity_fp32", token: str = "app"):
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    return hardened.call("POST", f"/v2/models/{model}/infer", body, token)


def test_a_token_does_what_it_may(hardened):
    assert infer(hardened)[0] == 200
    assert infer(hardened, token="")[0] == 401
    assert infer(hardened, token="wrong")[0] == 401
    assert infer(hardened, token="deploy")[0] == 403, "the scope"
    assert infer(hardened, model="simple")[0] == 403, "the model"
    assert any(infer(hardened)[0] == 429 for _ in range(500)), "the quota"


@pytest.mark.parametrize(("path", "body"), [(LOAD, {}), ("/v2/logging", {"log_verbose_level": 0}), ("/v2/trace/setting", {"trace_rate": "7"})])
def test_a_token_alone_changes_nothing(hardened, path, body):
    status, answer = hardened.call("POST", path, body, "deploy")
    assert status == 403 and "nerite-operator" in answer, answer
    assert hardened.call("POST", path, body, "deploy", OPERATORS_HEADER)[0] == 200
    assert hardened.call("POST", path, body, "app", OPERATORS_HEADER)[0] == 403


def test_over_grpc_neither(hardened):
    token = {"authorization": "Bearer deploy-secret"}
    with hardened.grpc() as client:
        with pytest.raises(InferenceServerException, match="nerite-operator"):
            client.load_model("simple", headers=token)
        client.load_model("simple", headers=token | {f"triton-grpc-protocol-{name}": value for name, value in OPERATORS_HEADER.items()})


def test_no_client_brings_a_model(hardened):
    source = base64.b64encode(b"raise SystemExit").decode()
    config = json.dumps({"backend": "python", "max_batch_size": 0})
    body = {"parameters": {"config": config, "file:1/model.py": source}}
    status, answer = hardened.call("POST", "/v2/repository/models/brought/load", body, "every", OPERATORS_HEADER)
    assert status >= 400 and "--allow-model-upload" in answer, answer


def test_no_client_registers_memory_and_no_other_user_borrows_any(hardened):
    with region(64) as made:
        registration = {"key": made.key, "offset": 0, "byte_size": 64}
        path = "/v2/systemsharedmemory/region/a/register"
        status, answer = hardened.call("POST", path, registration, "every")
        assert status >= 400 and "--allow-client-shm" in answer, answer
    session = hardened.folder / "session.sock"
    with as_user(OWN, lambda: Raw(session)) as raw:
        raw.call(1, hello=HELLO)
    with contextlib.suppress(PermissionError), as_user(STRANGER, lambda: Raw(session)) as raw:
        raw.send_anyway(encode(1, hello=HELLO))
        assert raw.refusal().startswith(f"user {STRANGER} may not open sessions with a server of user {OWN}")


CONFINED = {
    "reads a file of the system": "out = refused(open, '/etc/shadow')",
    "reads another model": "out = refused(open, '{models}/digits/config.pbtxt')",
    "reads the key": "out = refused(open, '{folder}/server.key')",
    "makes a socket": "import socket; out = refused(socket.socket)",
    "starts a process": "import subprocess; out = refused(subprocess.run, ['true'])",
    "ends the server": "out = refused(os.kill, os.getppid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("attempt", CONFINED)
def test_a_model_is_confined(hardened, attempt):
    code = CONFINED[attempt].format(models=hardened.folder / "models", folder=hardened.folder)
    assert "PermissionError" in said(hardened, code)


def said(hardened, code: str) -> str:
    """What the model answers that runs this code."""
    status, answer = run_code(hardened, code)
    assert status == 200, answer
    return json.loads(answer)["outputs"][0]["data"][0]


def run_code(hardened, code: str) -> tuple[int, str]:
    body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}]}
    return hardened.call("POST", f"/v2/models/{SPY}/infer", body, "every")


def test_the_end_of_a_models_process_is_not_the_servers(hardened):
    status, answer = run_code(hardened, "os._exit(3)")
    assert status >= 400 and "process" in answer, answer
    assert said(hardened, "out = 'again'") == "again"
    for model in ("digits", "simple"):
        assert f"model '{model}' is confined" in hardened.server.log_text()


def test_one_client_takes_neither_all_memory_nor_all_connections(hardened):
    large = np.zeros(17 << 20, np.float32)
    given = grpc_client.InferInput("INPUT0", [len(large)], "FP32")
    given.set_data_from_numpy(large)
    with hardened.grpc() as client, pytest.raises(InferenceServerException, match=f"of {64 << 20} that a connection may hold"):
        client.infer("identity_fp32", [given], headers={"authorization": "Bearer every-secret"})
    most = settings()["connections-per-peer-max"]
    opened = connections_of(STRANGER, hardened.server.http, most + 8)
    try:
        comes_to(lambda: sum(not is_over(one) for one in opened), most)
        assert hardened.call("GET", "/v2/health/live")[0] == 200
    finally:
        close_all(opened)


def test_metrics_are_for_this_host_and_there_is_no_page(hardened):
    port = int(hardened.server.metrics.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=60)
    bearer = {"authorization": "Bearer deploy-secret"}
    assert http_call(hardened.server.metrics, "GET", "/metrics", headers=bearer).status == 200
    assert http_call(hardened.server.metrics, "GET", "/metrics").status == 401
    assert http_call(hardened.server.metrics, "GET", "/ui/api/models", headers=bearer).body == b""


def test_each_call_is_a_line_with_its_client(hardened):
    assert hardened.call("GET", "/v2/models/digits/config", token="deploy")[0] == 200
    wanted = 'access: protocol=http peer="user 0" token=deploy call=model-config model=digits status=200'
    comes_to(lambda: wanted in hardened.server.log_text(), True)
