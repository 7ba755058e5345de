"""Who sees which requests on the page, and where their time went?"""

import os
import time

import numpy as np
import pytest
from browsers import home_of, opened
from clients import fp32, http_call, int32, open_client
from hands import Hands
from packets import open_session
from users import as_user

ALICE, BOB = 65101, 65102
# As long as requests are noted after somebody looked (crates/trace/src/recent.rs), and a little.
WATCH_S = 5.5


def infer(server, protocol: str = "http", times: int = 1, **more) -> None:
    ones = np.ones((1, 16), np.int32)
    with open_client(protocol, server) as client:
        for _ in range(times):
            client.infer("simple", [int32("INPUT0", ones), int32("INPUT1", ones)], **more)


def look(server, after: int = 0) -> list[dict]:
    return http_call(server.metrics, "GET", f"/ui/api/requests/{after}").ok().json["requests"]


def points(request: dict) -> list[str]:
    return [note["point"] for note in request["notes"] if "point" in note]


def newest(page) -> int:
    """The number of the first row; 0 while there is none."""
    numbers = page.attributes("main tbody tr", "data-number")
    return int(numbers[0]) if numbers else 0


def open_list(page) -> int:
    """Goes to the list, from where on requests are noted. The number of the newest that other tests made."""
    page.press("Requests", "nav")
    page.sees("main .hint", "You see ")
    return newest(page)


def choose_newest(page, before: int) -> None:
    """Opens the first row, once there is one that came after `before`."""
    page.until(lambda: newest(page) > before, "a row more")
    page.click("main tbody tr button")
    page.until(lambda: page.shows(".facts"), "the request")


@pytest.fixture
def only_root_can_be_somebody_else():
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")


def test_requests_appear_with_their_phases(page):
    before = open_list(page)
    infer(page.server, id="<b>mine</b>")
    choose_newest(page, before)
    phases = page.attributes(".fall-row", "data-phase")
    assert phases == ["Receive", "Queue", "Batch", "Compute", "Output", "Send"]
    page.sees(".facts", "<b>mine</b>")
    page.sees(".facts", "HTTP")
    page.take_picture("requests")
    # The list says which colour is which phase.
    assert page.texts("main .legend li") == ["Receive", "Queue", "Batch", "Compute", "Output", "Send"]
    page.press("Close", "main")
    page.until(lambda: not page.all(".facts dt") or not page.shows(".facts"), "it is closed")


def test_each_front_end_is_shown(page):
    open_list(page)
    infer(page.server, "grpc")
    page.sees("main table", "gRPC")
    with open_session(page.server.session) as session:
        session.infer("identity_fp32", [fp32("INPUT0", [1, 2])])
        page.sees("main table", "session")
    page.send('main input[type="text"]', "identity")
    page.until(lambda: {text.split()[0] for text in page.texts("main tbody tr")} == {"identity_fp32"}, "only the model that was asked for")
    page.take_picture("requests_ways")


def test_what_an_ensemble_asks_lies_below_it(page):
    before = open_list(page)
    with open_client("http", page.server) as client:
        # Another test unloads a model that it asks.
        client.load("chain")
        client.infer("chain", [fp32("INPUT0", [1, 2])])
    choose_newest(page, before)
    page.sees("main h2", "chain")
    labels = [row.split("\n")[0] for row in page.texts(".fall-row")]
    assert (labels[0], labels[-1]) == ("Receive", "Send"), labels
    assert sum(label.endswith(": compute") for label in labels) >= 2, labels


def test_pause_keeps_the_list_as_it_is(page):
    before = open_list(page)
    infer(page.server)
    page.until(lambda: newest(page) > before, "a row more")
    page.click('main input[type="checkbox"]')
    rows = len(page.all("main tbody tr"))
    infer(page.server)
    time.sleep(2.5)
    assert len(page.all("main tbody tr")) == rows
    page.click('main input[type="checkbox"]')

    def goes_on() -> bool:
        # The server stops noting requests where the page has asked for none for a while.
        infer(page.server)
        return len(page.all("main tbody tr")) > rows

    page.until(goes_on, "the list goes on")


def test_a_phone_shows_the_list_without_scrolling_sideways(page):
    page.resize(360, 740)
    before = open_list(page)
    infer(page.server)
    choose_newest(page, before)
    page.sees(".facts", "HTTP")
    assert page.overflow() <= 0
    page.take_picture("phone_requests")


def test_nothing_is_noted_while_nobody_looks(shown):
    look(shown)
    time.sleep(WATCH_S)
    infer(shown)
    before = look(shown)
    infer(shown, id="seen")
    after = look(shown, before[-1]["number"] if before else 0)
    assert [one["request_id"] for one in after] == ["seen"]


@pytest.mark.usefixtures("only_root_can_be_somebody_else")
def test_the_operator_sees_the_requests_of_all(page):
    open_list(page)
    as_user(ALICE, lambda: infer(page.server, id="alices"))
    page.sees("main table", f"user {ALICE}")
    page.sees("main .hint", "You see the requests of all clients")


@pytest.mark.usefixtures("only_root_can_be_somebody_else")
def test_a_stranger_sees_no_requests_of_others(shown, pictures, tmp_path):
    # The operator looks as well, so that all requests are noted.
    look(shown)
    with opened(user=BOB, home=home_of(BOB, tmp_path)) as driver:
        page = Hands(driver, shown, pictures)
        page.open("/#/requests")
        look(shown)
        as_user(ALICE, lambda: infer(shown, id="alices"))
        as_user(BOB, lambda: infer(shown, id="bobs"))
        page.sees("main table", "simple")
        report = page.json("/ui/api/requests/0")
        assert {one["client"] for one in report["requests"]} == {f"user {BOB}"}
        assert not report["is_operator"] and "alices" not in str(report) and f"user {ALICE}" not in page.text("body")
        assert {"alices", "bobs"} <= {one["request_id"] for one in look(shown)}
        page.sees("main .hint", "Root and the user who runs the server see those of all clients")
        page.take_picture("requests_stranger")
        assert page.complaints() == []


@pytest.mark.usefixtures("only_root_can_be_somebody_else")
def test_a_busy_client_hides_no_other(shown):
    look(shown)
    as_user(ALICE, lambda: infer(shown, times=400))
    as_user(BOB, lambda: infer(shown, id="bobs"))
    look(shown)
    as_user(ALICE, lambda: infer(shown, times=400))
    seen = look(shown)
    assert len(seen) <= 256 and "bobs" in {one["request_id"] for one in seen}
    assert sum(one["client"] == f"user {ALICE}" for one in seen) <= 64


def test_a_trace_file_gets_what_it_would_without_a_visitor(launcher, tmp_path):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    file = tmp_path / "trace.json"
    flags = [f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with launcher.running("page_traced", *flags, repository=launcher.copy_of("page_traced", "simple")) as server:
        look(server)
        infer(server, id="both")
        (seen,) = look(server)
        assert seen["request_id"] == "both" and "COMPUTE_START" in points(seen)
    assert file.read_text().count("COMPUTE_START") == 1


def test_restricted_traces_are_behind_their_header(launcher):
    if launcher.oracle or any(launcher.urls):
        pytest.skip("needs a nerite of its own")
    flag = "--http-restricted-api=trace:admin-key=sesame"
    with launcher.running("page_trace_key", flag, repository=launcher.copy_of("page_trace_key", "simple")) as server:
        assert http_call(server.metrics, "GET", "/ui/api/requests/0").status == 403
        assert http_call(server.metrics, "GET", "/ui/api/requests/0", headers={"admin-key": "sesame"}).status == 200
