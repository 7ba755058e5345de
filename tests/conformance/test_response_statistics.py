"""Do statistics tell of each response of decoupled models what Triton tells, from a backend's own reports and without them?"""

import time

import numpy as np
import pytest
from clients import differs, fp32, grpc_channel, int32, open_client
from compiled_setup import put, serving
from test_decoupled import Stream

DECOUPLED = "model_transaction_policy { decoupled: true }"
KEYS = ["compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"]
# What tests/backends/responses.c does for an element of its input.
UNREPORTED, SUCCEEDS, FAILS, FAILS_WITH_OUTPUTS, IS_EMPTY, IS_CANCELLED, MIXED_UP, MIXED_UP_AND_FAILS, LATE_START, NOBODYS = range(10)
INVALID_ARG = 3
KEPT = 256
OUT_OF_ORDER = "Compute output start cannot happen after response end"


@pytest.fixture(scope="module", params=["server", "process"])
def reporting_server(request: pytest.FixtureRequest, launcher):
    """A backend that reports, in the server's process and in one of its own."""
    is_isolated = request.param == "process"
    if is_isolated and launcher.oracle:
        pytest.skip("Triton has no isolated backends")
    flags = ["--backend-config=responses,isolated=true"] if is_isolated else []
    repository = launcher.scratch / f"responses_{request.param}"
    for name in ("r_each", "r_twice", "r_many", "r_silent", "r_misused"):
        put(repository, name, datatype="INT32", more=DECOUPLED, backend="responses")
    with serving(launcher, repository.name, repository, *flags, sources=("responses",)) as found:
        yield found


def infer(server, model: str, *elements: int) -> tuple[list[int], list[str]]:
    """The codes of the refused reports, and their words."""
    codes, words, is_last = [], [], False
    with grpc_channel(server.grpc) as channel:
        stream = Stream(channel)
        parameters = {"triton_enable_empty_final_response": True}
        stream.sent.put(stream.client.request(model, [int32("IN", list(elements))], None, id="r", parameters=parameters))
        while not is_last:
            message = next(stream.call)
            assert message.error_message == ""
            codes += [int(np.frombuffer(raw, np.int32)[0]) for raw in message.infer_response.raw_output_contents]
            said = message.infer_response.parameters
            words += [said["refused"].string_param] if "refused" in said else []
            is_last = said["triton_final_response"].bool_param
        stream.sent.put(None)
    return codes, words


def response_statistics(client, model: str) -> dict[str, dict]:
    """What the statistics tell, without what is 0."""
    found = client.statistics(model)[0]["response_stats"]
    assert all(sorted(one) == sorted(KEYS) for one in found.values())
    assert all(sorted(part) == ["count", "ns"] for one in found.values() for part in one.values())
    pairs = {index: {key: (one[key]["count"], one[key]["ns"]) for key in KEYS} for index, one in found.items()}
    return {index: {key: pair for key, pair in one.items() if pair != (0, 0)} for index, one in pairs.items()}


def settles(look, wanted) -> None:
    """Reports of a process are read a moment after the answer."""
    deadline = time.monotonic() + 60
    while look() != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert look() == wanted


def test_each_report_counts_at_the_position_of_its_response(reporting_server):
    elements = [SUCCEEDS, FAILS, FAILS_WITH_OUTPUTS, IS_EMPTY, IS_CANCELLED, MIXED_UP, MIXED_UP_AND_FAILS, LATE_START, SUCCEEDS]
    codes, words = infer(reporting_server, "r_each", *elements)
    assert codes == [0] * 5 + [INVALID_ARG] * 3 + [0]
    assert words == [OUT_OF_ORDER] * 2 + ["Response start cannot happen after response end"]
    took = {"compute_infer": (1, 700), "compute_output": (1, 200)}
    wanted = {
        "0": took | {"success": (1, 900)},
        "1": {"compute_infer": (1, 900), "fail": (1, 900)},
        "2": took | {"fail": (1, 900)},
        "3": {"compute_infer": (1, 900), "empty_response": (1, 900)},
        "4": {"cancel": (1, 900)},
        # A report that is refused has a position, and counts nowhere.
        "8": took | {"success": (1, 900)},
    }
    for protocol in ("http", "grpc"):
        with open_client(protocol, reporting_server) as client:
            settles(lambda: response_statistics(client, "r_each"), wanted)


def test_requests_add_up_and_others_have_none(reporting_server):
    infer(reporting_server, "r_twice", SUCCEEDS, SUCCEEDS)
    infer(reporting_server, "r_twice", FAILS)
    assert infer(reporting_server, "r_silent", UNREPORTED, UNREPORTED) == ([0, 0], [])
    wanted = {
        "0": {"compute_infer": (2, 1600), "compute_output": (1, 200), "success": (1, 900), "fail": (1, 900)},
        "1": {"compute_infer": (1, 700), "compute_output": (1, 200), "success": (1, 900)},
    }
    for protocol in ("http", "grpc"):
        with open_client(protocol, reporting_server) as client:
            settles(lambda: response_statistics(client, "r_twice"), wanted)
            assert response_statistics(client, "r_silent") == {}


@differs("2.51 keeps an entry for each position that any request ever reached")
def test_positions_are_bounded(reporting_server):
    assert infer(reporting_server, "r_many", *[SUCCEEDS] * (KEPT + 44))[0] == [0] * (KEPT + 44)
    with open_client("http", reporting_server) as client:
        settles(lambda: set(response_statistics(client, "r_many")), {str(index) for index in range(KEPT)})


@differs("2.51 reads an instance at NULL", run=False)
def test_a_report_of_nobody_is_refused(reporting_server):
    codes, words = infer(reporting_server, "r_misused", NOBODYS, SUCCEEDS)
    assert codes == [INVALID_ARG, 0]
    assert words == ["the model instance is NULL"]
    with open_client("http", reporting_server) as client:
        wanted = {"0": {"compute_infer": (1, 700), "compute_output": (1, 200), "success": (1, 900)}}
        settles(lambda: response_statistics(client, "r_misused"), wanted)


def counts(client, model: str) -> dict[str, dict[str, int]]:
    """How often each part of each response happened."""
    return {index: {key: count for key, (count, _) in one.items()} for index, one in response_statistics(client, model).items()}


def times_of_the_third(client) -> dict[str, int]:
    """The sums of its durations in nanoseconds, over all requests of this server."""
    found = client.statistics("py_decoupled")[0].get("response_stats", {}).get("2", {})
    return {key: of["ns"] for key, of in found.items()}


@differs("2.51's Python backend reports no responses")
def test_responses_of_a_decoupled_python_model_are_counted(python_server, python_client):
    before, times_before = counts(python_client, "py_decoupled"), times_of_the_third(python_client)
    with grpc_channel(python_server.grpc) as channel:
        stream = Stream(channel)
        said = stream.send("send(text('a')); send(error('no')); time.sleep(0.05); send(text('b')); send(flags=FINAL)").rest()
        stream.sent.put(None)
    assert said == ["a", "error: no", "b", "|"]
    more = [
        {"compute_infer": 1, "compute_output": 1, "success": 1},
        {"compute_infer": 1, "compute_output": 1, "fail": 1},
        {"compute_infer": 1, "compute_output": 1, "success": 1},
        {"compute_infer": 1, "empty_response": 1},
    ]
    after = counts(python_client, "py_decoupled")
    for index, wanted in enumerate(more):
        then, now = before.get(str(index), {}), after[str(index)]
        assert {key: now[key] - then.get(key, 0) for key in now if now[key] != then.get(key, 0)} == wanted
    # The third response took its pause of 50 ms, and no other one did. The server counts from where it handled the response before, which may be a
    # little after the model began to wait.
    taken = {key: ns - times_before.get(key, 0) for key, ns in times_of_the_third(python_client).items()}
    assert taken["success"] >= taken["compute_infer"] >= 40_000_000


def test_other_models_have_no_statistics_of_responses(python_client):
    python_client.infer("identity_fp32", [fp32("INPUT0", [1])])
    assert response_statistics(python_client, "identity_fp32") == {}
