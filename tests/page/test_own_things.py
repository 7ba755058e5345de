"""Does the page show a visitor the state of what is the visitor's own, and models that are in no repository?"""

import base64
import os

import pytest
from clients import http_call, open_client
from regions import Region
from users import as_user

BOB = 65104


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has no page")
    repository = launcher.copy_of("own_things", "identity_fp32", "simple")
    with launcher.running("own_things", "--model-control-mode=explicit", "--load-model=*", repository=repository) as found:
        yield found


def test_a_stranger_sees_the_state_of_an_own_region(server):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")

    def register(name: str, key: str) -> None:
        with open_client("http", server) as client:
            client.register_system(name, key, 64)

    def states() -> dict:
        report = http_call(server.metrics, "GET", "/ui/api/memory").ok().json
        return {region["name"]: (region["state"].split(":")[0], region["is_stale"]) for region in report["regions"]}

    regions = [Region(64) for _ in range(2)]
    for region, name in zip(regions, ("kept", "unlinked")):
        os.chown(region.path, BOB, BOB)
        as_user(BOB, lambda name=name, region=region: register(name, region.key))
    assert as_user(BOB, states) == {"kept": ("good", False), "unlinked": ("good", False)}
    regions[1].close()
    assert as_user(BOB, states) == {"kept": ("good", False), "unlinked": ("key unlinked", True)}
    regions[0].close()


def test_a_model_whose_files_a_client_sent_is_listed(server):
    path = server.repository / "simple" / "1" / "model.onnx"
    config = http_call(server.http, "GET", "/v2/models/simple/config").ok().body.decode().replace("simple", "sent")
    parameters = {"config": config, "file:1/model.onnx": base64.b64encode(path.read_bytes()).decode()}
    http_call(server.http, "POST", "/v2/repository/models/sent/load", {"parameters": parameters}).ok()

    def listed() -> list:
        models = http_call(server.metrics, "GET", "/ui/api/models").ok().json["models"]
        return [(model["name"], model["version"], model["state"]) for model in models if model["name"] == "sent"]

    assert listed() == [("sent", "1", "READY")]
    index = http_call(server.http, "POST", "/v2/repository/index", "{}").ok().json
    assert all(entry["name"] != "sent" for entry in index), "as in Triton"
    http_call(server.http, "POST", "/v2/repository/models/sent/unload", "{}").ok()
    assert listed() == []
