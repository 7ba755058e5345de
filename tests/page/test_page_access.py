"""What does the page show to people with tokens, at a port of its own that is secured?"""

import contextlib
import hashlib

import pytest
import servers
from hands import Hands, Keys

WANTED = "This call wants a token with scope 'read'. Its secret is kept"


def token(name: str, scopes: str) -> str:
    return f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(f"{name}-secret".encode()).hexdigest()}"\nscopes = {scopes}\n'


@pytest.fixture
def guarded(launcher, tmp_path):
    """A server that asks for tokens, and whose page has a port of its own with the certificate of the metrics port."""
    trustme = pytest.importorskip("trustme", reason="python3 tests/setup_venv.py installs it")
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "tokens.toml").write_text(token("reader", '["read", "infer"]') + token("all", '["read", "infer", "control"]'))
    [port] = servers.free_ports(1)
    flags = [
        f"--ui-port={port}", "--metrics-use-ssl=true", f"--metrics-server-cert={tmp_path / 'cert.pem'}", f"--metrics-server-key={tmp_path / 'key.pem'}",
        f"--access-tokens-file={tmp_path / 'tokens.toml'}", "--model-control-mode=explicit", "--load-model=*", "--session-socket=off",
    ]  # fmt: skip
    with launcher.running("page_tokens", *flags, repository=launcher.copy_of("page_tokens", "simple")) as server:
        server.page = f"https://127.0.0.1:{port}/"
        yield server


@contextlib.contextmanager
def believing(driver):
    """The browser does not know who signed the certificate."""
    driver.execute_cdp_cmd("Security.enable", {})
    driver.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": True})
    try:
        yield
    finally:
        driver.get("about:blank")
        driver.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": False})
        # What it said of refused calls is not for the next test to hear.
        driver.get_log("browser")


def give(hands: Hands, secret: str) -> None:
    hands.until(lambda: hands.shows(".notice input"), "the token is asked for")
    hands.write(".notice input", secret)
    hands.press("Use this key")


def buttons(hands: Hands) -> set[str]:
    return set(hands.texts("main .head button"))


def test_a_token_is_entered_by_click_and_decides_which_buttons_there_are(guarded, browser, pictures):
    hands = Hands(browser, guarded, pictures)
    hands.leave()
    hands.resize(1280, 900)
    with believing(browser):
        browser.get(guarded.page)
        hands.sees(".notice", WANTED)
        hands.sees("#status", "waiting for a key")
        hands.take_picture("token")
        give(hands, "wrong")
        hands.sees(".notice", "Its secret is kept")
        give(hands, "reader-secret")
        hands.until(lambda: not hands.all(".notice"), "nothing is refused")
        hands.press("simple", "main")
        hands.sees("main .head", "Your token may not load models")
        assert buttons(hands) == set()
        hands.press("Run", "form")
        hands.sees('[data-output="OUTPUT1"]', "0  0")
        hands.prefer("dark")
        hands.take_picture("token_reader_dark")
        hands.prefer("light")
        # Somebody else takes the place, at a phone.
        hands.press("Forget the key", "footer")
        hands.resize(360, 740)
        give(hands, "all-secret")
        hands.until(lambda: buttons(hands) == {"Reload", "Unload"}, "loads are allowed")
        assert hands.overflow() <= 0
        hands.take_picture("phone_token_all")
        hands.press("Unload", "main")
        hands.sees("main .badge", "unavailable")
        hands.press("Load", "main")
        hands.sees("main .badge", "ready")
        # The browser tells of each call that was refused. One for the model may come while it is unloaded.
        unloaded = ("/v2/models/simple", "status of 400")
        others = [one for one in hands.complaints() if "status of 401" not in one and not all(part in one for part in unloaded)]
        assert others == []
        hands.press("Forget the key", "footer")
        hands.sees(".notice", WANTED)


def test_a_token_is_entered_and_forgotten_by_keyboard(guarded, browser, pictures):
    hands = Hands(browser, guarded, pictures)
    hands.leave()
    hands.resize(1280, 900)
    with believing(browser):
        browser.get(guarded.page)
        hands.until(lambda: hands.shows(".notice input"), "the token is asked for")
        hands.tab_to(hands.attribute(".notice input", "aria-label"))
        hands.keys("all-secret", Keys.ENTER)
        hands.until(lambda: not hands.all(".notice"), "nothing is refused")
        hands.sees(".model-name", "simple")
        hands.tab_to("Forget the key")
        hands.keys(Keys.ENTER)
        hands.sees(".notice", WANTED)
