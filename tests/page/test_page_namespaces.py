"""Can a person tell the models of two repositories apart that have the same name?"""

import json

import pytest
from clients import http_call
from hands import Hands


@pytest.fixture
def page(browser, namespaced, pictures):
    hands = Hands(browser, namespaced, pictures)
    hands.resize(1280, 900)
    hands.open("/")
    yield hands
    assert hands.foreign_resources() == []
    assert hands.complaints() == []


def identifiers(server) -> list[str]:
    return [f"{repository}::same" for repository in server.repositories]


def test_both_are_shown_and_one_alone_by_its_name(page):
    page.press("Models", "nav")
    page.until(lambda: len(page.all(".model-name")) == 3, "three models")
    assert sorted(page.texts(".model-name")) == sorted([*identifiers(page.server), "only_first"])
    page.take_picture("namespaces")


@pytest.mark.parametrize(("which", "datatype"), [(0, "FP32"), (1, "INT32")])
def test_each_can_be_opened_and_tried(page, which, datatype):
    identifier = identifiers(page.server)[which]
    page.press("Models", "nav")
    page.press(identifier, "main")
    page.sees("main h1", identifier)
    page.until(lambda: len(page.all("form textarea.mono")) >= 1, "a field for JSON")
    page.sees("main", datatype)
    page.write('[aria-label="JSON for IN"]', "[7, 8]")
    page.press("Run", "form")
    page.sees('[data-output="OUT"]', "7  8")


def test_one_is_unloaded_and_loaded_and_the_other_stays(page):
    mine, other = identifiers(page.server)
    page.press("Models", "nav")
    page.press(mine, "main")
    page.press("Unload", "main")
    page.sees("main .badge", "unavailable")
    listed = {entry["identifier"]: entry["state"] for entry in page.json("/ui/api/models")["models"] if entry["name"] == "same"}
    assert listed == {mine: "UNAVAILABLE", other: "READY"}
    page.press("Load", "main")
    page.sees("main .badge", "ready")


def test_a_path_over_http_may_name_the_repository(namespaced):
    for identifier, datatype in zip(identifiers(namespaced), ("FP32", "INT32"), strict=True):
        path = "/v2/models/" + identifier.replace("/", "%2F")
        assert json.loads(http_call(namespaced.http, "GET", path).ok().body)["inputs"][0]["datatype"] == datatype
    # What names no repository and no model is a name, as it stands.
    assert http_call(namespaced.http, "GET", "/v2/models/only%5Ffirst").ok().json["name"] == "only_first"
    http_call(namespaced.http, "GET", "/v2/models/no%5Fbody").refused("NOT_FOUND", "Request for unknown model: 'no%5Fbody' is not found")
    http_call(namespaced.http, "GET", "/v2/models/%2Fetc::same").refused("NOT_FOUND", "Request for unknown model: '%2Fetc::same' is not found")
