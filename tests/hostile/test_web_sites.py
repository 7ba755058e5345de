"""Can a web site use the server through its visitor's browser? Can a stranger or a flood of requests do harm through the page?"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import socket

import numpy as np
import pytest
from attack_page import page_in_a_storm, page_with_many_requests
from attack_table import DEFENCE
from clients import http_call, http_infer, open_client
from users import as_user
from witness import lent

ALICE, BOB = 65101, 65102
JSON = {"Content-Type": "application/json"}
LOAD = "/ui/api/v2/repository/models/simple/unload"
DATA = ("/ui/api/visitor", "/ui/api/models", "/ui/api/memory", "/ui/api/requests/0", "/ui/api/v2/models/simple/config")
FLOOD = 4000
# Whole: a source more in any part would let others in.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@pytest.fixture(scope="module")
def loadable(launcher):
    """A server whose models clients may load and unload."""
    if launcher.oracle:
        pytest.skip("2.51 has no page")
    repository = launcher.copy_of("hostile_page", "simple", "identity_fp32")
    flags = ["--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("hostile_page", *flags, repository=repository) as server:
        yield server


@pytest.fixture(scope="module")
def opened(launcher, tmp_path_factory):
    """The same where other hosts can ask, and at a Unix socket."""
    if launcher.oracle:
        pytest.skip("2.51 serves web sites")
    path = tmp_path_factory.mktemp("sockets") / "http"
    flags = ["--http-address=0.0.0.0", f"--http-socket={path}", "--model-control-mode=explicit", "--load-model=*"]
    with launcher.running("opened_page", *flags, repository=launcher.copy_of("opened_page", "simple")) as server:
        server.socket = path
        yield server


@pytest.fixture(scope="module")
def allowing(launcher):
    """Where other hosts can ask, a server with a name and a web site of its own."""
    if launcher.oracle:
        pytest.skip("2.51 has no CORS")
    flags = ["--http-allowed-hosts=models.example", "--http-allowed-origins=https://app.example"]
    flags += ["--http-address=0.0.0.0", "--http-restricted-api=logging:key=sesame"]
    with launcher.running("allowing_page", *flags, repository=launcher.copy_of("allowing_page", "simple")) as server:
        yield server


def is_ready(server) -> bool:
    return http_call(server.http, "GET", "/v2/models/simple/ready").status == 200


FOREIGN = {
    "another origin": {"Origin": "http://evil.example"},
    "no origin": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:1"},
    "the browser says so": {"Sec-Fetch-Site": "cross-site"},
    "a site beside": {"Sec-Fetch-Site": "same-site"},
}
FORMS = {
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "a form with text": {"Content-Type": "text/plain"},
    "a form with parts": {"Content-Type": "multipart/form-data; boundary=x"},
}
ONES = np.ones((1, 16), np.int32).tolist()
INFER = {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": ONES} for name in ("INPUT0", "INPUT1")]}
# What changes the server, or runs in it.
CALLS = {
    "/v2/repository/models/planted/load": {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoKQ=="}},
    "/v2/repository/models/simple/unload": {},
    "/v2/logging": {"log_verbose_level": 9},
    "/v2/trace/setting": {"trace_level": ["TIMESTAMPS"], "trace_file": "/tmp/planted"},
    "/v2/systemsharedmemory/unregister": {},
    "/v2/models/simple/infer": INFER,
}


@pytest.mark.parametrize("site", FOREIGN)
def test_another_site_changes_nothing_at_the_port_for_programs(loadable, opened, site):
    headers = FOREIGN[site] | {"Content-Type": "text/plain", "Sec-Fetch-Mode": "no-cors"}
    for server in (loadable, opened):
        with open_client("http", server) as owner, lent(owner, 64):
            before = state(server)
            for path, body in CALLS.items():
                answer = http_call(server.http, "POST", path, body, headers)
                assert answer.status == 403 and "--http-allowed-origins" in json.loads(answer.body)["error"], (path, answer)
                assert not any(name.startswith("access-control-") for name in answer.headers), answer
            assert http_call(server.metrics, "GET", "/metrics", headers=headers).status == 403
            assert state(server) == before


def state(server) -> list:
    """What a client can read of a server that changes with its calls."""
    reads = ("/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/models/simple/ready")
    index = http_call(server.http, "POST", "/v2/repository/index").ok()
    return [index.body, executions(server), *((answer.status, answer.body) for answer in (http_call(server.http, "GET", path) for path in reads))]


@pytest.mark.parametrize("site", FOREIGN | FORMS)
def test_another_site_changes_nothing_through_the_page(loadable, site):
    headers = JSON | (FOREIGN | FORMS)[site]
    answer = http_call(loadable.metrics, "POST", LOAD, "{}", headers)
    assert answer.status in (403, 415), answer
    assert is_ready(loadable)
    before = executions(loadable)
    infer = http_call(loadable.metrics, "POST", "/ui/api/v2/models/simple/infer", INFER, headers)
    assert infer.status in (403, 415) and executions(loadable) == before


def test_a_user_may_follow_a_link_of_another_site(opened):
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert http_call(opened.http, "GET", "/v2", headers=visit).status == 200
    assert http_call(opened.metrics, "GET", "/metrics", headers=visit).status == 200
    assert http_call(opened.http, "POST", "/v2/models/simple/infer", INFER, visit).status == 403


def test_a_refused_body_is_read_and_the_connection_stays(opened):
    with contextlib.closing(http.client.HTTPConnection(opened.http, timeout=60)) as connection:
        for site, status in (({"Origin": "http://evil.example"}, 403), ({}, 500)):
            connection.request("POST", "/v2/models/simple/infer", bytes(1 << 20), site)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("connection")) == (status, None), answer.read()
            answer.read()


@pytest.mark.parametrize("form", FORMS)
def test_programs_are_served_whatever_the_type_of_their_content(loadable, opened, form):
    for server in (loadable, opened):
        http_call(server.http, "POST", "/v2/models/simple/infer", INFER, FORMS[form]).ok()


def test_a_proxy_that_keeps_the_host_is_served_where_other_hosts_can_ask(opened, loadable):
    proxied = {"Host": "models.example"}
    http_call(opened.http, "POST", "/v2/models/simple/infer", INFER, proxied).ok()
    http_call(opened.metrics, "GET", "/metrics", headers=proxied).ok()
    refused = http_call(loadable.http, "POST", "/v2/models/simple/infer", INFER, proxied)
    assert refused.status == 421 and "--http-allowed-hosts=<name>" in json.loads(refused.body)["error"]


def test_a_unix_socket_serves_whatever_is_sent(opened):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(opened.socket))
        stream.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n")
        assert stream.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_client_without_a_host_is_served(loadable):
    host, _, port = loadable.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as stream:
        stream.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert stream.recv(4096).startswith(b"HTTP/1.0 200 ")


APP = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
ASKED = APP | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_an_allowed_site_asks_first_and_reads_every_answer(allowing):
    for port, path in ((allowing.http, "/v2/models/simple/infer"), (allowing.metrics, "/metrics")):
        preflight = http_call(port, "OPTIONS", path, headers=ASKED)
        assert (preflight.status, preflight.body) == (204, b"")
        shared = {name: value for name, value in preflight.headers.items() if name.startswith("access-control-") or name == "vary"}
        assert shared == {
            "access-control-allow-origin": "https://app.example",
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization,content-type",
            "access-control-max-age": "7200",
            "vary": "Origin",
        }
        assert http_call(port, "OPTIONS", path, headers=ASKED | {"Origin": "http://app.example"}).status == 403
    answers = {
        200: http_call(allowing.http, "POST", "/v2/models/simple/infer", INFER, JSON | APP),
        500: http_call(allowing.http, "POST", "/v2/models/simple/infer", {}, JSON | APP),
        404: http_call(allowing.http, "GET", "/nothing", headers=APP),
        # Behind a header of a restriction.
        403: http_call(allowing.http, "GET", "/v2/logging", headers=APP),
    }
    metrics = http_call(allowing.metrics, "GET", "/metrics", headers=APP).ok()
    for status, answer in [*answers.items(), (200, metrics)]:
        assert answer.status == status and answer.headers["vary"] == "Origin"
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "Inference-Header-Content-Length" in answer.headers["access-control-expose-headers"]


def test_the_page_takes_no_calls_of_an_allowed_site(allowing):
    for answer in (http_call(allowing.metrics, "OPTIONS", LOAD, headers=ASKED), http_call(allowing.metrics, "POST", LOAD, "{}", JSON | APP)):
        assert answer.status == 403 and not any(name.startswith("access-control-") for name in answer.headers), answer


def test_with_allowed_hosts_every_port_refuses_other_names(allowing):
    for host, status in (("models.example", 200), ("models.example:80", 200), (allowing.http, 200), ("evil.example", 421)):
        for port, path in ((allowing.http, "/v2"), (allowing.metrics, "/metrics"), (allowing.metrics, "/ui/api/models")):
            assert http_call(port, "GET", path, headers={"Host": host}).status == status, (host, path)
    own = {"Host": "models.example", "Origin": "https://models.example", "Sec-Fetch-Site": "same-origin"}
    http_call(allowing.http, "POST", "/v2/models/simple/infer", INFER, own).ok()


def executions(server) -> int:
    return json.loads(http_call(server.http, "GET", "/v2/models/simple/stats").body)["model_stats"][0]["execution_count"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8002", "127.0.0.1.evil.example", "localhost.evil.example", "x@127.0.0.1"])
def test_a_name_that_leads_here_is_no_name_of_the_server(loadable, host):
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for path in ("/", "/ui/main.js", "/metrics", *DATA):
        assert http_call(loadable.metrics, "GET", path, headers=headers).status == 421, path
    assert http_call(loadable.metrics, "POST", LOAD, "{}", JSON | headers).status == 421
    before = state(loadable)
    for path, body in CALLS.items():
        assert http_call(loadable.http, "POST", path, body, headers).status == 421, path
    assert http_call(loadable.http, "GET", "/v2", headers=headers).status == 421
    assert state(loadable) == before


def test_where_other_hosts_can_ask_such_a_name_reads_and_changes_nothing(opened):
    """A browser adds no Origin to a GET of its own site, so this server cannot tell it from a program's."""
    named = {"Host": "evil.example:8000"}
    assert http_call(opened.http, "GET", "/v2", headers=named | {"Sec-Fetch-Site": "same-origin"}).status == 200
    before = state(opened)
    for path, body in CALLS.items():
        refused = http_call(opened.http, "POST", path, body, named | {"Origin": "http://evil.example:8000"})
        assert refused.status == 403 and "--http-allowed-hosts" in json.loads(refused.body)["error"], path
    assert state(opened) == before


def test_no_answer_may_be_read_framed_or_guessed_by_others(loadable):
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for answer in (
        http_call(loadable.metrics, "OPTIONS", LOAD, headers=preflight),
        *(http_call(loadable.metrics, "GET", path) for path in ("/", "/ui/main.js", *DATA)),
    ):
        assert not any(name.startswith("access-control-") for name in answer.headers)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/", "/ui/main.js", "/ui/api/models"])
def test_the_ports_for_inference_have_no_page(loadable, path):
    answer = http_call(loadable.http, "GET", path)
    assert answer.status == 404 and b"<html" not in answer.body.lower() and "content-security-policy" not in answer.headers
    host, _, port = loadable.grpc.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {loadable.grpc}\r\n\r\n".encode())
        peer.settimeout(30)
        received = b""
        while part := peer.recv(1 << 16):
            received += part
            if len(received) > 9:
                break
        assert not received.startswith(b"HTTP/1.") and b"<html" not in received.lower(), received[:200]


def test_the_page_itself_and_programs_may_do_what_others_may_not(loadable):
    own = {"Origin": f"http://{loadable.metrics}", "Sec-Fetch-Site": "same-origin"}
    assert http_call(loadable.metrics, "POST", LOAD, "{}", JSON | own).status == 200
    assert not is_ready(loadable)
    assert http_call(loadable.metrics, "POST", LOAD.replace("unload", "load"), "{}", JSON).status == 200
    assert is_ready(loadable)


def test_a_browser_that_has_a_file_is_not_sent_it_again(loadable):
    first = http_call(loadable.metrics, "GET", "/ui/main.js").ok()
    again = http_call(loadable.metrics, "GET", "/ui/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert http_call(loadable.metrics, "GET", "/ui/main.js", headers={"If-None-Match": '"old"'}).body == first.body


def test_metrics_are_as_they_were(loadable, opened):
    page = http_call(loadable.metrics, "GET", "/metrics")
    assert page.status == 200 and page.headers["content-type"] == "text/plain; charset=utf-8"
    assert "content-security-policy" not in page.headers
    assert http_call(opened.metrics, "GET", "/metrics", headers={"Host": "prometheus.example"}).status == 200
    assert http_call(loadable.metrics, "POST", "/").status == 405


@pytest.mark.parametrize("flags", [["--ui=false"], ["--allow-http=true", "--ui=off"]])
def test_without_the_page_there_is_an_empty_one(launcher, flags):
    if launcher.oracle:
        pytest.skip("2.51 has no page")
    with launcher.running("no_page", *flags, repository=launcher.copy_of("no_page", "simple")) as server:
        for path in ("/", *DATA):
            answer = http_call(server.metrics, "GET", path)
            assert (answer.status, answer.body) == (200, b""), path
        assert http_call(server.metrics, "POST", LOAD, "{}", JSON).status == 405


def test_a_stranger_is_told_of_its_own_regions_only(loadable):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    path = pathlib.Path("/dev/shm") / f"nerite-hostile-page-{os.getpid()}"
    path.write_bytes(bytes(64))
    os.chown(path, ALICE, ALICE)
    register = {"key": f"/{path.name}", "offset": 0, "byte_size": 64}

    def memory_page() -> dict:
        return json.loads(http_call(loadable.metrics, "GET", "/ui/api/memory").ok().body)

    try:
        made = as_user(ALICE, lambda: http_call(loadable.http, "POST", "/v2/systemsharedmemory/region/alices/register", register))
        assert made.status == 200, made
        assert [one["name"] for one in as_user(ALICE, memory_page)["regions"]] == ["alices"]
        assert as_user(BOB, memory_page)["regions"] == []
        seen = memory_page()
        assert [(one["name"], one["owner"]) for one in seen["regions"]] == [("alices", f"user {ALICE}")]
    finally:
        as_user(ALICE, lambda: http_call(loadable.http, "POST", "/v2/systemsharedmemory/unregister"))
        path.unlink()


def test_thousands_of_requests_for_the_page_keep_nobody_waiting(victim, nobody_else_is_harmed):
    def send(number: int) -> None:
        connection = http.client.HTTPConnection(victim.metrics, timeout=60)
        for at in range(number, FLOOD, 16):
            path = ("/", "/ui/main.js", "/metrics", *DATA)[at % (3 + len(DATA))]
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200 and len(answer.read()) > 2, path
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(send, range(16)))


@pytest.mark.parametrize("act", [page_in_a_storm, page_with_many_requests])
def test_an_attack_through_the_page_ends_with_its_connections(victim, nobody_else_is_harmed, act):
    for _ in range(3):
        with contextlib.suppress(*DEFENCE):
            act(victim)


def test_traces_that_nobody_fetches_are_forgotten(victim, nobody_else_is_harmed):
    for token in range(500):
        headers = JSON | {"nerite-page-trace": str(token)}
        http_call(victim.metrics, "POST", "/ui/api/v2/models/simple/infer", INFER, headers).ok()
    kept = [token for token in range(500) if http_call(victim.metrics, "GET", f"/ui/api/traces/{token}").ok().body != b"null"]
    assert kept == list(range(492, 500))


def test_bodies_that_nobody_reads_or_that_never_come_hold_nothing(victim, nobody_else_is_harmed):
    host, port = victim.metrics.split(":")
    heads = [
        f"GET /ui/api/models HTTP/1.1\r\nHost: {victim.metrics}\r\nContent-Length: 1000000000\r\n\r\n",
        f"POST /ui/api/v2/models/simple/infer HTTP/1.1\r\nHost: {victim.metrics}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n",
        f"POST /ui/api/v2/models/simple/infer HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2000000000\r\n\r\n",
    ]
    with contextlib.ExitStack() as open_:
        for at in range(60):
            one = open_.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                one.sendall(heads[at % len(heads)].encode() + b"x" * 4096)
        assert http_infer(victim.http, "simple", {"inputs": []}).status == 400
