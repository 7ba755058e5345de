"""Do clients behind a proxy that sends headers of the PROXY protocol get the same answers, and count each for itself?"""

import http.client
import re
import socket
import ssl
import subprocess

import grpc
import numpy as np
import pytest
import servers
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from certificates import Certificates
from clients import http_call, pb, service_stub
from proxies import LOCAL, PROXY, TRUSTED, connect, header, proxy
from test_access import eventually

ARRAY = np.arange(12, dtype=np.float32)
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: %s\r\n\r\n"


@pytest.fixture(scope="module")
def behind(launcher, tmp_path_factory):
    if launcher.oracle:
        pytest.skip("2.51 reads no header of a proxy")
    path = tmp_path_factory.mktemp("sockets") / "http"
    flags = [TRUSTED, "--log-access=true", f"--http-socket={path}"]
    with launcher.running("behind_proxy", *flags, repository=launcher.copy_of("behind_proxy", "identity_fp32")) as server:
        server.socket = path
        yield server


def infer(module, url: str, **options):
    """An inference by NVIDIA's client of this module."""
    with module.InferenceServerClient(url, **options) as client:
        given = module.InferInput("INPUT0", [len(ARRAY)], "FP32")
        given.set_data_from_numpy(ARRAY)
        assert (client.infer("identity_fp32", [given]).as_numpy("OUTPUT0") == ARRAY).all()


def status(server, *pieces: bytes, source: str = PROXY) -> int:
    """The status of the answer to a request in these pieces, which begin with a header."""
    with connect(server.http, source=source) as one:
        for piece in pieces:
            one.sendall(piece)
        answer = http.client.HTTPResponse(one)
        answer.begin()
        return answer.status


def seen(server, pattern: str) -> bool:
    return any(re.search(pattern, line) for line in server.log_text().splitlines())


@pytest.mark.parametrize("module", [http_client, grpc_client])
@pytest.mark.parametrize(
    ("address", "peer"), [("203.0.113.7", "address 203.0.113.7 behind a proxy"), ("2001:db8:0:1::7", "network 2001:db8:0:1::/64 behind a proxy")]
)
def test_real_clients_are_served_and_known_by_their_addresses(behind, module, address, peer):
    protocol = "http" if module is http_client else "grpc"
    with proxy(getattr(behind, protocol), address) as url:
        infer(module, url)
    eventually(lambda: seen(behind, f'access: protocol={protocol} peer="{peer}" token=- call=inference'))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_header_comes_before_tls(launcher, tmp_path, protocol):
    if launcher.oracle:
        pytest.skip("2.51 reads no header of a proxy")
    certificates = Certificates(tmp_path)
    flags = [TRUSTED, "--log-access=true", *certificates.flags(protocol)]
    repository = launcher.copy_of(f"proxy_tls_{protocol}", "identity_fp32")
    with launcher.running(f"proxy_tls_{protocol}", *flags, repository=repository) as server:
        with proxy(getattr(server, protocol), "203.0.113.7") as url:
            if protocol == "grpc":
                infer(grpc_client, url, ssl=True, root_certificates=certificates.path("root.pem"))
            else:
                context = ssl.create_default_context(cafile=certificates.path("root.pem"))
                infer(http_client, url, ssl=True, ssl_context_factory=lambda: context)
        eventually(lambda: seen(server, f'access: protocol={protocol} peer="address 203.0.113.7 behind a proxy"'))


def test_a_header_may_come_in_pieces_and_with_additions(behind):
    whole = header("203.0.113.7", more=b"\4\0\1\0")
    assert status(behind, whole + GET % b"-") == 200
    assert status(behind, *(whole[at : at + 1] for at in range(len(whole))), GET % b"-") == 200
    assert status(behind, header("203.0.113.7", more=bytes(508)) + GET % b"-") == 200


def test_the_proxy_may_ask_for_itself(behind):
    """A health check. A connection that is closed before its first byte is one, too, and makes no line of the log."""
    assert status(behind, header("203.0.113.7", LOCAL), GET % b"itself") == 200
    eventually(lambda: seen(behind, 'peer="an unidentified client of this host" forwarded_for=itself '))
    connect(behind.http).close()


def test_others_are_served_as_without_a_proxy(behind):
    assert http_call(behind.http, "GET", "/v2/health/live").status == 200
    assert status(behind, GET % b"-", source="127.0.0.1") == 200
    with grpc.insecure_channel(behind.grpc) as channel:
        assert service_stub(channel).ServerLive(pb.ServerLiveRequest()).live
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(behind.socket))
        one.sendall(GET % b"-")
        assert one.recv(12).startswith(b"HTTP/1.1")
    assert http_call(behind.metrics, "GET", "/metrics").status == 200
    # The metrics port reads no header, whoever connects.
    with connect(behind.metrics, GET % b"-") as one:
        assert one.recv(12).startswith(b"HTTP/1.1")


def test_x_forwarded_for_is_logged_cut_and_escaped_and_changes_nothing_else(behind):
    http_call(behind.http, "GET", "/v2", headers={"X-Forwarded-For": '198.51.100.9, "x"'})
    http_call(behind.http, "GET", "/v2", headers={"X-Forwarded-For": "a" * 4000})
    with grpc.insecure_channel(behind.grpc) as channel:
        service_stub(channel).ServerMetadata(pb.ServerMetadataRequest(), metadata=[("x-forwarded-for", "198.51.100.10")])
    for protocol, text in (("http", r'"198\.51\.100\.9, \\"x\\""'), ("http", "a{128}"), ("grpc", r"198\.51\.100\.10")):
        eventually(lambda: seen(behind, f'access: protocol={protocol} peer="user \\d+" forwarded_for={text} token=- '))


def test_a_wrong_list_does_not_start_a_server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 reads no header of a proxy")
    command = [servers.nerite_binary(), "config", "check", f"--model-repository={launcher.catalogue}"]
    ended = subprocess.run([*command, "--trusted-proxies=10.1.2.3/8"], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "'10.1.2.3/8' has bits after its prefix; write 10.0.0.0/8 for the network" in ended.stdout + ended.stderr
