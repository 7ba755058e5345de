"""Are HTTP, gRPC, metrics and the page secured by the operator's certificates, also by those that replace them while the server runs?"""

import datetime
import os
import re
import socket
import ssl
import subprocess
import time
import urllib.request

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from clients import pb, service_stub
from followed_setup import waits_for
from certificates import HOST, Certificates, fingerprint
from tritonclient.utils import InferenceServerException

# Certificates are checked again after a second.
DEADLINE_S = 30


def shown(address: str, protocol: str) -> str:
    """The fingerprint of the certificate that a port shows to a new connection."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2" if protocol == "grpc" else "http/1.1"])
    with socket.create_connection((host, int(port)), timeout=60) as plain, context.wrap_socket(plain, server_hostname=HOST) as secured:
        assert secured.selected_alpn_protocol() == ("h2" if protocol == "grpc" else "http/1.1")
        return fingerprint(secured.getpeercert(True))


def open_client(server, certificates: Certificates, protocol: str, with_certificate: bool = False):
    root, cert, key = (certificates.path(name) for name in ("root.pem", "client.pem", "client.key"))
    if protocol == "grpc":
        more = {"private_key": key, "certificate_chain": cert} if with_certificate else {}
        return grpc_client.InferenceServerClient(server.grpc, ssl=True, root_certificates=root, **more)
    options = {"ca_certs": root} | ({"certfile": cert, "keyfile": key} if with_certificate else {})
    return http_client.InferenceServerClient(server.http, ssl=True, ssl_options=options)


def echo(client, protocol: str, count: int) -> None:
    module = grpc_client if protocol == "grpc" else http_client
    given = module.InferInput("INPUT0", [count], "FP32")
    numbers = np.arange(count, dtype=np.float32)
    given.set_data_from_numpy(numbers)
    np.testing.assert_array_equal(client.infer("identity_fp32", [given]).as_numpy("OUTPUT0"), numbers)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(launcher, certificates):
    if launcher.oracle:
        pytest.skip("2.51 has no TLS over HTTP, and reads certificates once")
    flags = certificates.flags("http") + certificates.flags("grpc")
    with launcher.running("tls", *flags, "--http-handshake-timeout=2", repository=launcher.copy_of("tls", "identity_fp32")) as found:
        yield found


@pytest.fixture(scope="module")
def mutual(launcher, certificates):
    if launcher.oracle:
        pytest.skip("2.51 has no TLS over HTTP")
    flags = certificates.flags("http", mutual=True) + certificates.flags("grpc", mutual=True)
    with launcher.running("mutual", *flags, repository=launcher.copy_of("mutual", "identity_fp32")) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("count", [4, 1_000_000])
def test_inferences_go_through_tls(server, certificates, protocol, count):
    with open_client(server, certificates, protocol) as client:
        assert client.is_server_ready()
        echo(client, protocol, count)


@pytest.mark.parametrize(
    ("scheme", "protocol", "options"),
    [("https", "http", {"ssl_options": {"ca_certs": "root.pem"}}), ("grpcs", "grpc", {"root_certificates": "root.pem"})],
)
def test_a_model_is_called_as_a_function_through_tls(server, certificates, monkeypatch, scheme, protocol, options):
    nerite = pytest.importorskip("nerite")
    monkeypatch.chdir(certificates.folder)
    numbers = np.arange(8, dtype=np.float32)
    with nerite.connect(f"{scheme}://{getattr(server, protocol)}", **options) as client:
        np.testing.assert_array_equal(client.model("identity_fp32")(INPUT0=numbers)["OUTPUT0"], numbers)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_who_has_a_certificate_is_served_where_one_is_wanted(mutual, certificates, protocol):
    with open_client(mutual, certificates, protocol, with_certificate=True) as client:
        echo(client, protocol, 4)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_who_has_none_is_not(mutual, certificates, protocol):
    with open_client(mutual, certificates, protocol) as client, pytest.raises((InferenceServerException, OSError)):
        client.is_server_live()


def test_plain_clients_get_no_answer_and_disturb_nobody(server, certificates):
    host, _, port = server.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
        # An alert of TLS at the most.
        assert b"HTTP" not in answer and len(answer) < 16
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=2)
    with open_client(server, certificates, "http") as client:
        assert client.is_server_live()


def test_a_handshake_that_does_not_go_on_ends(server):
    host, _, port = server.http.rpartition(":")
    for first in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)):
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as held:
            held.sendall(first)
            # Closed by the server: an alert may come before.
            while held.recv(4096):
                pass


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_renewed_certificate_is_shown_without_a_restart(server, certificates, protocol):
    address = getattr(server, protocol)
    with open_client(server, certificates, protocol) as before:
        echo(before, protocol, 4)
        renewed = certificates.issue("server")
        deadline = time.monotonic() + DEADLINE_S
        while shown(address, protocol) != renewed:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # A connection that is open goes on.
        echo(before, protocol, 4)
    with open_client(server, certificates, protocol) as after:
        echo(after, protocol, 4)


def test_the_metrics_tell_when_each_certificate_ends_also_of_files_that_no_client_has_met(server, certificates):
    ends = datetime.datetime(2031, 5, 17, tzinfo=datetime.timezone.utc)
    certificates.issue("server", ends)
    wanted = {port: int(ends.timestamp()) for port in ("http", "grpc")}

    def found() -> "dict[str, int]":
        page = urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60).read().decode()
        return {port: int(value) for port, value in re.findall(r'^nerite_certificate_not_after_seconds\{port="(\w+)"\} (\d+)$', page, re.M)}

    waits_for(found, wanted)


def test_files_that_cannot_be_used_leave_the_certificate_in_use(server, certificates):
    renewed = certificates.issue("server")
    deadline = time.monotonic() + DEADLINE_S
    while shown(server.http, "http") != renewed:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    certificates.put("server.pem", b"no certificate\n")
    deadline = time.monotonic() + DEADLINE_S
    while "the certificate in use is kept" not in server.log_text():
        assert time.monotonic() < deadline
        assert shown(server.http, "http") == renewed
        time.sleep(0.2)
    with open_client(server, certificates, "http") as client:
        echo(client, "http", 4)
    certificates.issue("server")


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_a_fifo_in_the_place_of_a_file_ends_no_rereading(server, certificates, name):
    path = certificates.folder / name
    count = server.log_text().count("it is no regular file")
    path.unlink()
    os.mkfifo(path)
    deadline = time.monotonic() + DEADLINE_S
    while server.log_text().count("it is no regular file") == count:
        assert time.monotonic() < deadline
        for protocol in ("http", "grpc"):
            shown(getattr(server, protocol), protocol)
        time.sleep(0.2)
    path.unlink()
    renewed = certificates.issue("server")
    for protocol in ("http", "grpc"):
        deadline = time.monotonic() + DEADLINE_S
        while shown(getattr(server, protocol), protocol) != renewed:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--http-use-ssl=true"], "--http-use-ssl needs --http-server-cert=<file> and --http-server-key=<file>, in PEM format"),
        (["--http-use-ssl-mutual=true", "--http-server-cert=a", "--http-server-key=b"], "--http-use-ssl-mutual needs --http-root-cert"),
        (["--http-use-ssl=true", "--http-server-cert=/none.pem", "--http-server-key=/none.key"], "'/none.pem' cannot be read as PEM"),
    ],
)
def test_what_is_missing_is_named_at_the_start(launcher, flags, text):
    if launcher.oracle:
        pytest.skip("2.51 has no TLS over HTTP")
    with pytest.raises(RuntimeError) as ended, launcher.running("missing", *flags, repository=launcher.copy_of("missing")):
        pass
    assert text in str(ended.value)


# ------------------------------------------------------------------------------------------ the metrics port


def metrics(server, certificates: Certificates, with_certificate: bool = False, path: str = "/metrics") -> bytes:
    """What the metrics port answers over TLS."""
    context = ssl.create_default_context(cafile=certificates.path("root.pem"))
    if with_certificate:
        context.load_cert_chain(certificates.path("client.pem"), certificates.path("client.key"))
    port = server.metrics.rpartition(":")[2]
    with urllib.request.urlopen(f"https://{HOST}:{port}{path}", timeout=60, context=context) as answer:
        return answer.read()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "mutual"])
def secured_metrics(request, launcher, certificates):
    """A server whose metrics alone are secured; with the second, clients show a certificate."""
    if launcher.oracle:
        pytest.skip("2.51 has no TLS at the metrics port")
    name, mutual = f"tls_metrics_{request.param}", request.param
    flags = [*certificates.flags("metrics", mutual=mutual), "--metrics-address=127.0.0.1", "--http-handshake-timeout=2"]
    with launcher.running(name, *flags, repository=launcher.copy_of(name, "identity_fp32")) as found:
        found.is_mutual = mutual
        yield found


def test_metrics_and_the_page_go_through_tls(secured_metrics, certificates):
    is_mutual = secured_metrics.is_mutual
    assert b"nv_inference_request_success" in metrics(secured_metrics, certificates, is_mutual)
    assert metrics(secured_metrics, certificates, is_mutual, "/").startswith(b"<!")
    if is_mutual:
        with pytest.raises(OSError):
            metrics(secured_metrics, certificates)
    host, _, port = secured_metrics.metrics.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
        assert b"HTTP" not in answer and len(answer) < 16
    for first in (b"", b"\x16\x03\x01"):
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as held:
            held.sendall(first)
            while held.recv(4096):
                pass
    assert b"nv_inference_request_success" in metrics(secured_metrics, certificates, is_mutual)


# What commands say where a server asks for a certificate that they were not given.
WANTED = "the server requires a certificate of its clients; present one that an authority of the server signed: --cert FILE and --key FILE"


def test_nerite_top_speaks_tls(secured_metrics, certificates):
    port = secured_metrics.metrics.rpartition(":")[2]

    def top(*words: str, scheme: str = "https") -> subprocess.CompletedProcess:
        command = [servers.nerite_binary(), "top", "--once", "--interval=0.1", f"--url={scheme}://{HOST}:{port}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    root = f"--cacert={certificates.path('root.pem')}"
    paper = ["--cert", certificates.path("client.pem"), "--key", certificates.path("client.key")]
    found = top(root, *(paper if secured_metrics.is_mutual else []))
    assert found.returncode == 0 and "identity_fp32" in found.stdout, found
    untrusting = top(f"--cacert={certificates.path('client.pem')}")
    assert untrusting.returncode == 1 and f"; --cacert is '{certificates.path('client.pem')}', which has none that did;" in untrusting.stderr, untrusting
    plain = top(scheme="http")
    assert plain.returncode == 1 and f"the port speaks TLS, and the address is of http://; give the URL https://{HOST}:{port}," in plain.stderr, plain
    if secured_metrics.is_mutual:
        unknown = top(root)
        assert unknown.returncode == 1 and unknown.stderr.endswith(f"{WANTED}\n"), unknown
    assert "--cert and --key are given together" in top(root, paper[0], paper[1]).stderr


def test_nerite_ready_and_shm_speak_tls(server, certificates):
    port = server.http.rpartition(":")[2]
    url, root = f"https://{HOST}:{port}", f"--cacert={certificates.path('root.pem')}"
    for words in (["ready", url, root], ["shm", "list", "--http", url, root]):
        found = subprocess.run([servers.nerite_binary(), *words], capture_output=True, text=True, timeout=60)
        assert found.returncode == 0, found


def test_commands_that_do_not_agree_on_tls_with_a_port_name_the_cure(server, mutual, certificates):
    secured, wanting, plain = (f"{HOST}:{address.rpartition(':')[2]}" for address in (server.http, mutual.http, server.metrics))
    root, missing, no_pem = f"--cacert={certificates.path('root.pem')}", str(certificates.folder / "none.pem"), str(certificates.folder / "no.pem")
    certificates.put("no.pem", b"nothing\n")
    cert, key = certificates.path("client.pem"), certificates.path("client.key")
    cases = [
        ([f"http://{secured}"], f"cannot connect to http://{secured}: the port speaks TLS, and the address is of http://; give the URL https://{secured},"),
        ([f"https://{plain}", root], f"the address is of https://, and the port does not speak TLS; give the URL http://{plain}, without --cacert"),
        ([f"https://{secured}"], "no trusted authority signed the server's certificate; name the file with the authority's certificate, in PEM: --cacert FILE"),
        ([f"https://{wanting}", root], WANTED),
        ([f"https://{secured}", f"--cacert={missing}"], f"--cacert '{missing}' cannot be read: No such file or directory (os error 2); name a PEM file"),
        ([f"https://{secured}", f"--cacert={no_pem}"], f"--cacert '{no_pem}': no certificate in it; give the authority's in PEM"),
        ([f"https://{wanting}", root, f"--cert={missing}", f"--key={key}"], f"--cert '{missing}' cannot be read: "),
        ([f"https://{wanting}", root, f"--cert={cert}", f"--key={no_pem}"], f"and --key '{no_pem}': TLS: the key to show a certificate: no private key in it"),
        ([f"http://{secured}", root], f"are for addresses of https://, and the address is 'http://{secured}'; write https://"),
    ]  # fmt: skip
    for words, text in cases:
        for command in (["ready"], ["shm", "list", "--http"]):
            found = subprocess.run([servers.nerite_binary(), *command, *words], capture_output=True, text=True, timeout=60)
            assert found.returncode == 1 and text in found.stderr, found


@pytest.mark.parametrize("secured_metrics", [False], ids=["plain"], indirect=True)
def test_a_renewed_certificate_is_shown_at_the_metrics_port(secured_metrics, certificates):
    renewed = certificates.issue("server")
    deadline = time.monotonic() + DEADLINE_S
    while shown(secured_metrics.metrics, "http") != renewed:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert b"nv_inference_request_success" in metrics(secured_metrics, certificates)


# ------------------------------------------------------------------------------------------ all ports alike

PORTS = ["http", "grpc", "metrics", "page"]


@pytest.fixture(scope="module")
def walled(launcher, tmp_path_factory):
    """A server that asks for a client's certificate at each of its ports, with an authority of its own."""
    if launcher.oracle:
        pytest.skip("2.51 has no TLS over HTTP")
    own = Certificates(tmp_path_factory.mktemp("walled"))
    [port] = servers.free_ports(1)
    flags = [flag for protocol in ("http", "grpc", "metrics") for flag in own.flags(protocol, mutual=True)]
    with launcher.running("walled", *flags, f"--ui-port={port}", repository=launcher.copy_of("walled", "identity_fp32")) as found:
        found.certificates, found.page = own, f"127.0.0.1:{port}"
        yield found


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Somebody with a certificate of another authority."""
    return Certificates(tmp_path_factory.mktemp("stranger"))


def admits(server, at: str, who: Certificates) -> bool:
    """Whether one call at this port is answered for a client that shows the certificate of `who`."""
    paths = [server.certificates.path("root.pem"), who.path("client.key"), who.path("client.pem")]
    if at == "grpc":
        texts = [open(path, "rb").read() for path in paths]
        with grpc.secure_channel(f"{HOST}:{server.grpc.rpartition(':')[2]}", grpc.ssl_channel_credentials(*texts)) as channel:
            try:
                return service_stub(channel).ServerLive(pb.ServerLiveRequest(), timeout=60).live
            except grpc.RpcError:
                return False
    context = ssl.create_default_context(cafile=paths[0])
    context.load_cert_chain(paths[2], paths[1])
    path = {"http": "/v2/health/live", "metrics": "/metrics", "page": "/ui/api/models"}[at]
    port = getattr(server, at).rpartition(":")[2]
    try:
        with urllib.request.urlopen(f"https://{HOST}:{port}{path}", timeout=60, context=context) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("at", PORTS)
def test_a_certificate_of_another_authority_is_refused_at_each_port(walled, stranger, at):
    assert admits(walled, at, walled.certificates)
    assert not admits(walled, at, stranger)


def test_the_roots_of_clients_are_read_again_when_they_change(walled, stranger):
    own = open(walled.certificates.path("root.pem"), "rb").read()
    added = open(stranger.path("root.pem"), "rb").read()
    ports = set(PORTS)
    # For the client the server's own root stays the one to believe: it is the first of the file, and the second does no harm.
    for roots, admitted in ((own + added, ports), (own, set())):
        walled.certificates.put("root.pem", roots)
        deadline = time.monotonic() + DEADLINE_S
        while (found := {at for at in PORTS if admits(walled, at, stranger)}) != admitted:
            assert time.monotonic() < deadline, (admitted, found)
            time.sleep(0.3)
        assert {at for at in PORTS if admits(walled, at, walled.certificates)} == ports
