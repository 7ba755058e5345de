"""Does `nerite ready` find the server beside it by the server's settings?"""

import os
import subprocess

import pytest
import servers

trustme = pytest.importorskip("trustme", reason="trustme is not installed; tests/setup_venv.py does it")

KEY = "health:key=secret"


class Beside:
    """A server with TLS, whose certificate is for another name than its address, and what its operator wrote."""

    def __init__(self, server, folder, chain, key):
        self.folder = folder
        self.http, self.grpc = (address.rpartition(":")[2] for address in (server.http, server.grpc))
        self.tls = {"http-use-ssl": True, "http-server-cert": str(chain), "http-server-key": str(key)}

    def ready(self, *words: str, **variables: str) -> subprocess.CompletedProcess:
        place = {name: value for name, value in os.environ.items() if not name.startswith("NERITE_")}
        command = [servers.nerite_binary(), "ready", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=place | variables)

    def file(self, **settings) -> str:
        """A file with these settings."""
        def written(value) -> str:
            return str(value).lower() if isinstance(value, bool) else f"'{value}'" if not str(value).isdecimal() else str(value)

        path = self.folder / "nerite.toml"
        path.write_text("".join(f"{name.replace('_', '-')} = {written(value)}\n" for name, value in settings.items()))
        return str(path)


@pytest.fixture(scope="module")
def beside(launcher, tmp_path_factory):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    folder = tmp_path_factory.mktemp("beside")
    chain, key = folder / "server.pem", folder / "server.key"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    made = authority.issue_cert("elsewhere.example")
    # The server's own certificate comes first, and its authority's is not there.
    chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    flags = ["--http-use-ssl=true", f"--http-server-cert={chain}", f"--http-server-key={key}", f"--grpc-restricted-protocol={KEY}"]
    socket = folder / "http.sock"
    with launcher.running("beside", *flags, f"--http-socket={socket}", repository=launcher.copy_of("beside", "identity_fp32")) as server:
        found = Beside(server, folder, chain, key)
        found.socket = socket
        yield found


def check(found: subprocess.CompletedProcess, code: int, text: str = "") -> None:
    assert (found.returncode, found.stdout) == (code, "") and text in found.stderr, found


def test_a_file_of_settings_says_port_and_certificate(beside):
    path = beside.file(http_port=beside.http, **beside.tls)
    check(beside.ready("--config", path), 0)
    check(beside.ready(f"--config={path}"), 0)
    check(beside.ready(NERITE_CONFIG=path), 0)


def test_variables_say_port_and_certificate_and_win_over_the_file(beside):
    tls = {f"NERITE_{name.replace('-', '_').upper()}": str(value).lower() if value is True else value for name, value in beside.tls.items()}
    check(beside.ready(NERITE_HTTP_PORT=beside.http, **tls), 0)
    check(beside.ready("--config", beside.file(http_port=1), NERITE_HTTP_PORT=beside.http, **tls), 0)


def test_another_server_than_that_of_the_settings_is_not_believed(beside):
    other = beside.folder / "other.pem"
    other.write_bytes(trustme.CA().issue_cert("elsewhere.example").cert_chain_pems[0].bytes())
    path = beside.file(http_port=beside.http, **{**beside.tls, "http-server-cert": other})
    check(beside.ready("--config", path), 1, "the server shows another certificate")
    # Without the settings it is a matter of authorities, as before.
    url = f"https://127.0.0.1:{beside.http}"
    check(beside.ready(url, "--cacert", str(other)), 1, "no trusted authority signed the server's certificate; --cacert is ")
    name = "the server's certificate is for 'elsewhere.example', and not for '127.0.0.1'; ask by a URL with a name of the certificate"
    check(beside.ready(url, "--cacert", str(beside.folder / "authority.pem")), 1, name)


def test_settings_that_say_otherwise_about_tls_are_told_to_be_others(beside):
    others = "; the address is that of the settings, and the server has others: give its own by NERITE_* variables or --config FILE"
    check(beside.ready("--config", beside.file(http_port=beside.http)), 1, "the port speaks TLS, and the address is of http://" + others)
    # Both protocols say so.
    check(beside.ready("--config", beside.file(allow_http=False, grpc_port=beside.http)), 1, "the port speaks TLS, and the address is of http://" + others)
    check(beside.ready("--config", beside.file(http_port=beside.grpc, **beside.tls)), 1, others)


def test_a_port_that_wants_certificates_is_asked_at_its_socket(beside):
    mutual = {**beside.tls, "http-use-ssl-mutual": True, "http-root-cert": beside.tls["http-server-cert"]}
    check(beside.ready("--config", beside.file(http_port=beside.http, **mutual)), 1, "or set http-socket")
    check(beside.ready("--config", beside.file(http_port=beside.http, http_socket=beside.socket, **mutual)), 0)


def test_a_server_without_http_is_asked_over_grpc_with_the_key_of_its_health(beside):
    path = beside.file(allow_http=False, grpc_port=beside.grpc, grpc_restricted_protocol=KEY)
    check(beside.ready("--config", path), 0)
    check(beside.ready("--config", beside.file(allow_http=False, grpc_port=beside.grpc)), 1, "is not ready")


def test_what_says_no_server_is_said(beside):
    check(beside.ready("--config", "/nowhere/nerite.toml"), 1, "/nowhere/nerite.toml")
    check(beside.ready("--config", beside.file(http_prot=1)), 1, "did you mean 'http-port'?")
    check(beside.ready("--config", beside.file(http_port="many")), 1, "nerite.toml:1: http-port")
    check(beside.ready("--config", beside.file(http_port=0)), 1, "http-port is 0")
    # Another setting that does not hold is the server's to refuse.
    check(beside.ready("--config", beside.file(log_format="xml", http_port=beside.http, **beside.tls)), 0)
    assert beside.ready("--config=f", "http://a:1").returncode != 0
