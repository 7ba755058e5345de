"""What can a client get by a header of the PROXY protocol, or by half of one?"""

import contextlib
import http.client
import json
import os
import secrets
import time

import pytest
from clients import http_call
from proxies import CLIENT, LOCAL, PROXY, SIGNATURE, TRUSTED, connect, header
from regions import region
from strangers import close_all, hello, is_ended, is_over, read_exactly
from witness import are_answered, comes_to, witnesses

CLIENT_A, CLIENT_B = "203.0.113.7", "203.0.113.8"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# The server answers it before the body has come, when it begins to read that. The connection is not idle then.
BUSY = (
    b"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    b"Expect: 100-continue\r\n\r\n"
)
PER_PEER = 8
SOON_S = 30


@pytest.fixture(scope="module")
def victim(launcher):
    if launcher.oracle:
        pytest.skip("2.51 reads no header of a proxy")
    flags = [TRUSTED, f"--connections-per-peer-max={PER_PEER}", "--model-control-mode=explicit", "--load-model=*"]
    repository = launcher.copy_of("proxy_headers", "identity_fp32", "simple")
    with launcher.running("proxy_headers", *flags, repository=repository) as server:
        yield server


def call(server, first: bytes, method: str, path: str, body=None, source: str = PROXY):
    """The status and the document of one call on a connection that begins with `first`."""
    with connect(server.http, first, source) as one:
        made = http.client.HTTPConnection("localhost")
        made.sock = one
        made.request(method, path, json.dumps(body) if body is not None else None)
        answer = made.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None


def short(command: int, family: int, size: int) -> bytes:
    return SIGNATURE + bytes([command, family]) + size.to_bytes(2, "big") + bytes(min(size, 4000))


FAULTS = {
    "no header": GET,
    "http2": hello(),
    "version 1": b"PROXY TCP4 203.0.113.7 10.0.0.1 40000 8000\r\n" + GET,
    "a byte": b"\0",
    "version 3": short(0x31, 0x11, 12),
    "a command that is not known": short(0x22, 0x11, 12),
    "too long": short(CLIENT, 0x11, 521),
    "much too long": short(CLIENT, 0x11, 65535),
    "too long, for itself": short(LOCAL, 0, 521),
    "too short for IPv4": short(CLIENT, 0x11, 11),
    "too short for IPv6": short(CLIENT, 0x21, 35),
}


@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_connection_of_a_proxy_without_a_legal_header_is_closed(victim, port, fault):
    with connect(getattr(victim, port), FAULTS[fault]) as one:
        assert is_ended(one, SOON_S)
    with connect(victim.http, header(CLIENT_A) + GET) as one:
        assert read_exactly(one, 12) == b"HTTP/1.1 200"


def test_the_log_names_the_proxy_and_the_cure(victim):
    cure = f"a connection of the trusted proxy {PROXY} was closed: it did not begin with a PROXY header of version 2; set the proxy to send one"
    # A line is written once a second at most.
    deadline = time.monotonic() + SOON_S
    while cure not in victim.log_text():
        assert time.monotonic() < deadline
        connect(victim.http, GET).close()


def test_nobody_else_is_believed(victim):
    """A header is no HTTP, and the connection keeps its user."""
    with connect(victim.http, header(CLIENT_A) + GET, source="127.0.0.1") as one:
        answer = http.client.HTTPResponse(one)
        answer.begin()
        assert answer.status == 400
    with connect(victim.grpc, header(CLIENT_A) + hello(), source="127.0.0.1") as one:
        assert is_ended(one, SOON_S)
    # A second header after that of the proxy is none either.
    assert_refused(victim, header(CLIENT_A) + header(CLIENT_B))


def assert_refused(server, first: bytes) -> None:
    with connect(server.http, first + GET) as one:
        answer = http.client.HTTPResponse(one)
        answer.begin()
        assert answer.status == 400


OPERATOR, SOMEBODY = os.geteuid(), 65101
CLAIMS = [*(header(address) for address in ("127.0.0.1", PROXY, "::1", "::ffff:127.0.0.1", CLIENT_A)), header(CLIENT_A, LOCAL)]


@pytest.mark.skipif(OPERATOR != 0, reason="only root gives an object to somebody else")
@pytest.mark.parametrize("first", CLAIMS)
def test_no_header_gives_rights_of_a_user(victim, first):
    """This test's user is the operator: it registers all objects, and changes settings of the log. Through the proxy it may not."""
    path, name = "/v2/systemsharedmemory", f"own_{secrets.token_hex(4)}"
    for owner in (OPERATOR, SOMEBODY):
        with region(64) as made:
            os.chown(made.path, owner, owner)
            registration = {"key": made.key, "offset": 0, "byte_size": 64}
            status, answer = call(victim, first, "POST", f"{path}/region/{name}/register", registration)
            assert status >= 400 and "asks, whose user" in answer["error"], answer
            assert http_call(victim.http, "POST", f"{path}/region/{name}/register", registration).status == 200
            # Nor does it see the operator's region.
            assert call(victim, first, "GET", f"{path}/region/{name}/status")[0] >= 400
            assert call(victim, first, "GET", f"{path}/status") == (200, [])
            assert http_call(victim.http, "POST", f"{path}/region/{name}/unregister").status == 200
    settings = {"log_verbose_level": 0}
    assert call(victim, first, "POST", "/v2/logging", settings)[0] >= 400
    assert http_call(victim.http, "POST", "/v2/logging", settings).status == 200


def test_half_headers_delay_nobody_and_are_bounded(victim):
    """Those of the proxy itself make room for each other, and connections with a header do not wait for them."""
    with witnesses(victim) as watching, contextlib.ExitStack() as held:
        halves = []
        for _ in range(20):
            halves += [held.enter_context(connect(victim.http, header(CLIENT_A)[:20])) for _ in range(PER_PEER)]
            with connect(victim.http, header(CLIENT_B) + GET) as one:
                assert read_exactly(one, 12) == b"HTTP/1.1 200"
            are_answered(watching, 3)
        comes_to(lambda: sum(not is_over(one) for one in halves) <= PER_PEER, True)
        # The last ones may still be completed.
        halves[-1].settimeout(SOON_S)
        halves[-1].sendall(header(CLIENT_A)[20:] + GET)
        assert read_exactly(halves[-1], 12) == b"HTTP/1.1 200"


def test_each_client_behind_a_proxy_has_its_own_limit(victim):
    busy = []
    try:
        for _ in range(PER_PEER):
            busy.append(connect(victim.http, header(CLIENT_A) + BUSY))
            assert read_exactly(busy[-1], 12) == b"HTTP/1.1 100"
        status, answer = call(victim, header(CLIENT_A), "GET", "/v2")
        assert status == 503
        assert answer["error"].startswith(f"address {CLIENT_A} behind a proxy has {PER_PEER} connections open, of {PER_PEER} that one peer may have")
        assert call(victim, header(CLIENT_B), "GET", "/v2")[0] == 200
        assert call(victim, header("2001:db8::1"), "GET", "/v2")[0] == 200
    finally:
        close_all(busy)
