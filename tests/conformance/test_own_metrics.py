"""Do the metrics tell an operator that the server is not ready, that loads fail, and who is refused?"""

import os
import re
import shutil
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from clients import http_call, http_infer, open_client, refuses
from followed_setup import waits_for
from test_access import FILE, ONE, bearer, guarded
from test_missing_models import BROKEN, GOOD, TYPO, put
from tritonclient.utils import InferenceServerException

BUDGET = "64M"


def samples(server) -> "dict[str, float]":
    """The samples of the metrics, by name and labels as they are written."""
    page = http_call(server.metrics, "GET", "/metrics").ok().body.decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", page, re.M)}


def loads(server, model: str) -> "tuple[float, float] | None":
    """How many loads of a model succeeded and failed; None if the model is not there."""
    found = samples(server)
    names = [f'nerite_model_loads_total{{model="{model}",outcome="{outcome}"}}' for outcome in ("success", "failure")]
    return tuple(found[name] for name in names) if names[0] in found else None


def reload_failed(server, model: str) -> "float | None":
    return samples(server).get(f'nerite_model_reload_failed{{model="{model}",version="1"}}')


def refused(server, reason: str) -> float:
    return samples(server)[f'nerite_requests_refused_total{{reason="{reason}"}}']


@pytest.fixture
def repository(launcher, tmp_path):
    if launcher.oracle:
        pytest.skip("2.51 has none of these metrics")
    put(tmp_path / "models", "good", GOOD)
    return tmp_path / "models"


@pytest.fixture
def explicit(launcher, repository):
    with launcher.running("own_metrics", "--model-control-mode=explicit", repository=repository) as server, open_client("http", server) as client:
        yield server, client


def test_ready_is_what_the_probe_answers(explicit, repository):
    server, client = explicit

    def agreed() -> int:
        is_ready = http_call(server.http, "GET", "/v2/health/ready").status == 200
        assert samples(server)["nerite_ready"] == is_ready
        return is_ready

    assert agreed()
    put(repository, "bad", BROKEN)
    with refuses("INVALID_ARG", "load failed for model 'bad'"):
        client.load("bad")
    assert not agreed()
    client.unload("bad")
    assert agreed()


def test_loads_are_counted_by_model_and_outcome_and_made_up_names_are_not(explicit, repository):
    server, client = explicit
    assert loads(server, "good") is None
    client.load("good")
    assert loads(server, "good") == (1, 0)
    put(repository, "bad", BROKEN)
    # Its configuration cannot be read.
    put(repository, "typo", TYPO)
    for model in ("bad", "bad", "typo", "made_up"):
        with pytest.raises(Exception, match=model):
            client.load(model)
    assert (loads(server, "bad"), loads(server, "typo"), loads(server, "made_up")) == ((0, 2), (0, 1), None)
    assert loads(server, "good") == (1, 0)


@pytest.mark.parametrize("broken", [BROKEN, TYPO])
def test_a_failed_reload_is_shown_while_the_old_version_serves(explicit, repository, broken):
    server, client = explicit
    client.load("good")
    assert reload_failed(server, "good") == 0
    put(repository, "good", broken)
    with pytest.raises(Exception, match="good"):
        client.load("good")
    assert client.model_ready("good") and samples(server)["nerite_ready"] == 1
    assert (reload_failed(server, "good"), loads(server, "good")) == (1, (1, 1))
    put(repository, "good", GOOD)
    client.load("good")
    assert (reload_failed(server, "good"), loads(server, "good")) == (0, (2, 1))


def test_a_reload_that_polling_tried_is_shown_too(launcher, repository):
    with launcher.running("own_polled", "--model-control-mode=poll", "--repository-poll-secs=3600", repository=repository) as server:
        assert (reload_failed(server, "good"), loads(server, "good")) == (0, (1, 0))
        put(repository, "good", BROKEN)
        waits_for(lambda: (reload_failed(server, "good"), loads(server, "good")), (1, (1, 1)))
        # The model goes, and so do its metrics.
        shutil.rmtree(repository / "good")
        waits_for(lambda: (reload_failed(server, "good"), loads(server, "good")), (None, None))


def test_the_build_and_the_start_are_shown(launcher, repository):
    before = time.time()
    with launcher.running("own_start", repository=repository) as server:
        version = http_call(server.http, "GET", "/v2").ok().json["version"]
        found = samples(server)
        assert found[f'nerite_build_info{{version="{version}"}}'] == 1
        # The kernel counts the start in hundredths of a second.
        assert before - 0.1 <= found["process_start_time_seconds"] <= time.time()


def test_unknown_models_are_counted_once_for_each_request(explicit):
    server, client = explicit
    client.load("good")
    before = refused(server, "unknown_model")
    http_infer(server.http, "nothing", ONE).refused("NOT_FOUND", "Request for unknown model")
    http_call(server.http, "GET", "/v2/models/nothing").refused("NOT_FOUND", "Request for unknown model")
    http_call(server.http, "GET", "/v2/models/good/versions/7/config").refused("NOT_FOUND", "Request for unknown model")
    assert refused(server, "unknown_model") == before + 3
    given = tritonclient.grpc.InferInput("INPUT0", [1], "FP32")
    given.set_data_from_numpy(np.zeros(1, np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as grpc_client:
        with pytest.raises(InferenceServerException, match="unknown model"):
            grpc_client.infer("nothing", [given])
        assert refused(server, "unknown_model") == before + 4
        answers = []
        grpc_client.start_stream(lambda result, error: answers.append(error))
        grpc_client.async_stream_infer("nothing", [given])
        grpc_client.stop_stream()
        assert ["unknown model" in error.message() for error in answers] == [True]
    assert refused(server, "unknown_model") == before + 5
    # Who waits for a model is not refused.
    with tritonclient.http.InferenceServerClient(server.http) as http_client:
        assert not http_client.is_model_ready("nothing")
    http_infer(server.http, "good", ONE).ok()
    assert refused(server, "unknown_model") == before + 5


def test_a_model_that_requests_load_is_not_refused(launcher, repository):
    with launcher.running("own_demand", "--model-control-mode=demand", repository=repository) as server:
        http_infer(server.http, "good", ONE).ok()
        assert (refused(server, "unknown_model"), loads(server, "good")) == (0, (1, 0))
        http_infer(server.http, "nothing", ONE).refused("NOT_FOUND", "Request for unknown model")
        assert refused(server, "unknown_model") == 1


def test_requests_without_the_right_token_are_counted(launcher):
    with guarded(launcher, "own_tokens", FILE) as server:

        def scrape() -> "dict[str, float]":
            page = http_call(server.metrics, "GET", "/metrics", headers=bearer("read")).ok().body.decode()
            return {reason: int(count) for reason, count in re.findall(r'^nerite_requests_refused_total\{reason="(\w+)"\} (\d+)$', page, re.M)}

        def check(who: "str | None", model: str, status: int) -> None:
            assert http_infer(server.http, model, ONE, headers=bearer(who) if who else {}).status == status

        before = scrape()
        check(None, "identity_fp32", 401)
        check("wrong", "identity_fp32", 401)
        # It lacks the scope, and it does not reach the model.
        check("read", "identity_fp32", 403)
        check("infer", "simple", 403)
        check("infer", "identity_nothing", 404)
        check("infer", "identity_fp32", 200)
        after = scrape()
        assert {reason: after[reason] - before[reason] for reason in after} == {
            "unauthenticated": 2, "denied": 2, "restricted": 0, "quota": 0, "unknown_model": 1, "memory": 0,
        }  # fmt: skip


def test_restricted_calls_are_counted(launcher, repository):
    with launcher.running("own_restricted", "--http-restricted-api=model-config:key=value", repository=repository) as server:
        path = "/v2/models/good/config"
        assert http_call(server.http, "GET", path).status == 403
        http_call(server.http, "GET", path, headers={"key": "value"}).ok()
        assert refused(server, "restricted") == 1


def test_requests_beyond_the_memory_budget_are_counted(launcher, repository):
    flags = [f"--memory-budget={BUDGET}", "--memory-budget-per-connection=1M"]
    with launcher.running("own_budget", *flags, repository=repository) as server:
        http_infer(server.http, "good", ONE).ok()
        assert refused(server, "memory") == 0
        answer = http_call(server.http, "POST", "/v2/models/good/infer", os.urandom(2 << 20), {"Inference-Header-Content-Length": "64"})
        assert answer.status != 200 and "memory budget" in answer.error, answer
        assert refused(server, "memory") == 1
