"""Does the page keep to what the operator decided about it?"""

import contextlib
import os
import subprocess
import time

import pytest
import servers
from browsers import home_of, opened
from clients import http_call
from hands import Hands

BOB = 65102
RESTRICTED = "--http-restricted-api=model-repository,model-config,metadata,inference:admin-key=sesame"


def test_a_call_behind_a_header_asks_for_its_value(launcher, browser, pictures):
    with launcher.running("page_keys", RESTRICTED, repository=launcher.copy_of("page_keys", "simple")) as server:
        hands = Hands(browser, server, pictures)
        hands.resize(1280, 900)
        hands.leave()
        hands.driver.get(f"http://{server.metrics}/")
        hands.sees(".notice", "expecting header 'admin-key'")
        # The metrics are behind no header.
        hands.sees(".tile", "1 of 1")
        hands.take_picture("key")
        hands.write(".notice input", "wrong")
        hands.press("Use this key")
        hands.sees(".notice", "expecting header 'admin-key'")
        hands.write(".notice input", "sesame")
        hands.press("Use this key")
        hands.until(lambda: not hands.all(".notice"), "nothing is refused")
        hands.press("simple", "main")
        hands.press("Run", "form")
        hands.sees('[data-output="OUTPUT1"]', "0  0")
        # Loads are off in this control mode, and nothing invites to them.
        hands.sees("main .head", "Loads are off")
        assert not hands.all("main .head button")
        # Who comes to a model first is asked there, and need not come again.
        hands.driver.execute_script("sessionStorage.clear(); location.reload()")
        hands.until(lambda: hands.shows(".notice input"), "the key is asked for")
        hands.write(".notice input", "sesame")
        hands.press("Use this key")
        hands.sees("fieldset legend", "INPUT0")
        hands.driver.execute_script("sessionStorage.clear()")
        # The browser tells of each call that was refused.
        assert [one for one in hands.complaints() if "status of 403" not in one] == []


def test_a_port_of_its_own_has_the_page_and_the_metrics_port_has_not(launcher, browser, pictures):
    [port] = servers.free_ports(1)
    flags = [f"--ui-port={port}", "--ui-host=models.example"]
    with launcher.running("page_port", *flags, repository=launcher.copy_of("page_port", "simple")) as server:
        assert http_call(server.metrics, "GET", "/").body == b""
        assert b"nerite_model_ready" in http_call(server.metrics, "GET", "/metrics").ok().body
        at = f"127.0.0.1:{port}"
        for host, status in (("models.example", 200), (f"MODELS.example:{port}", 200), ("other.example", 421)):
            assert http_call(at, "GET", "/ui/api/models", headers={"Host": host}).status == status, host
        hands = Hands(browser, server, pictures)
        hands.leave()
        browser.get(f"http://{at}/")
        hands.sees("#status", "live")
        hands.sees(".model-name", "simple")
        assert hands.complaints() == []


def test_who_may_not_call_sees_what_the_metrics_tell(launcher, pictures, tmp_path):
    """Without HTTP the metrics port is no second way to ask models: Bob could not ask a model before there was a page."""
    if launcher.oracle or os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    with without_http(launcher) as server, opened(user=BOB, home=home_of(BOB, tmp_path)) as driver:
        hands = Hands(driver, server, pictures)
        hands.resize(1280, 900)
        hands.open("/")
        hands.sees(".notice", "since HTTP is off or asks for certificates")
        hands.sees(".model-name", "simple")
        hands.sees(".badge.good", "ready")
        hands.take_picture("no_calls")
        hands.press("simple", "main")
        hands.sees("main h1", "simple")
        hands.press("Memory", "nav")
        hands.sees(".tile", "System regions")
        assert not hands.all("form")
        refused = hands.json("/ui/api/models")["error"]
        assert "the page takes calls of root" in refused
        assert len(hands.complaints()) == 1, "the refused call of this test, and no other"


@contextlib.contextmanager
def without_http(launcher):
    repository = launcher.copy_of("page_metrics_port", "simple")
    [port] = servers.free_ports(1)
    command, environment = servers.nerite_command(repository)
    flags = ["--allow-http=false", "--allow-grpc=false", "--metrics-address=127.0.0.1", f"--metrics-port={port}", "--session-socket=off"]
    log = launcher.scratch / "page_metrics_port.log"
    with log.open("wb") as out:
        process = subprocess.Popen(servers.dying_with_us(command + flags), env=environment, stdout=out, stderr=out)
    server = servers.Server("", "", f"127.0.0.1:{port}", pid=process.pid, log=log, process=process)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                assert http_call(server.metrics, "GET", "/ui/api/models").status == 200, "the operator may ask"
                break
            assert time.monotonic() < deadline and process.poll() is None, server.log_text()
            time.sleep(0.05)
        yield server
    finally:
        servers.stop(server)
