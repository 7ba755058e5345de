"""Which requests share a batch where a model brings a batching strategy of its own, in a library as Triton takes it?"""

import concurrent.futures
import dataclasses
import json

import pytest
from batching_setup import Meanwhile, batches, batching, put, runs
from clients import Refused, fp32, open_client
from compiled_setup import compiled, errors
from meanwhile import again_if_too_late

PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
# Three rows of four numbers.
VOLUME = 48
EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def strategic(name: str, strategy: str, settings: str = "", library: str = "", **more):
    """A batching identity model with that strategy, whose library a parameter names, or which finds it."""
    named = parameter(PARAMETER, library) if library else ""
    extra = parameter("strategy", strategy) + parameter("volume_bytes", str(VOLUME)) + named
    return batching(name, settings, extra=extra, **more)


def row(*values: float, rows: int = 1):
    return fp32("INPUT0", [values or (1, 2, 3, 4)] * rows)


@pytest.fixture(scope="module")
def library(launcher):
    return compiled(launcher.scratch / "strategies" / "named.so", source="strategy")


@pytest.fixture(scope="module")
def strategy_server(launcher, library):
    repository = launcher.copy_of("strategies")
    delayed = {"settings": "preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 400000", "delay_ms": 0}
    put(launcher, repository, strategic("s_named", "volume", library=str(library), **delayed))
    for name, place in (("s_of_version", "1"), ("s_of_model", "")):
        put(launcher, repository, strategic(name, "volume", **delayed))
        compiled(repository / name / place / "batchstrategy.so", source="strategy")
    for name in ("volume", "never", "fail_include", "fail_begin", "forbidden"):
        put(launcher, repository, strategic(f"s_{name}", name, library=str(library)))
    with launcher.running("strategies", *EXPLICIT, repository=repository) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(request, strategy_server):
    with open_client(request.param, strategy_server) as found:
        yield found


@pytest.mark.parametrize("model", ["s_named", "s_of_version", "s_of_model"])
def test_a_batch_has_what_the_strategy_lets_in_wherever_its_library_lies(strategy_server, client, model):
    before = batches(client, model)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        replies = list(pool.map(lambda number: client.infer(model, [row(number, 0, 0, 0)]), range(9)))
    assert [reply.outputs["OUTPUT0"].raw for reply in replies] == [row(number, 0, 0, 0).raw for number in range(9)]
    ran = {size: count - before.get(size, 0) for size, count in batches(client, model).items()}
    assert sum(size * count for size, count in ran.items()) == 9
    assert max(size for size, count in ran.items() if count) in (2, 3), ran
    assert f"/{'named' if model == 's_named' else 'batchstrategy'}.so for model {model}" in strategy_server.log_text()


@pytest.mark.triton_differs("2.51 lets no request run that its strategy refuses, and one that is larger than a batch waits for ever", run=False)
@again_if_too_late
def test_batches_are_as_large_as_the_strategy_allows_and_in_order(strategy_server, client):
    with runs(client, "s_volume", _1=3, _3=1, _4=1), Meanwhile(strategy_server, client, "s_volume") as meanwhile:
        for rows in (1, 1, 1, 1, 4, 1):
            meanwhile.comes(row(rows=rows))
    assert [future.result().outputs["OUTPUT0"].shape[0] for future in meanwhile.running] == [1, 1, 1, 1, 4, 1]


@pytest.mark.triton_differs("2.51 lets no request run that its strategy refuses: they wait for ever", run=False)
@pytest.mark.parametrize(("model", "said"), [
    ("s_never", "refuses a request that no other is before: it runs alone"),
    ("s_fail_include", "Custom batching include function failed for model s_fail_include: include fails on purpose"),
    ("s_fail_begin", "Custom batching initialization function failed for model s_fail_begin: begin fails on purpose"),
])  # fmt: skip
@again_if_too_late
def test_a_strategy_that_refuses_or_fails_stops_nobody(strategy_server, client, model, said):
    with runs(client, model, _1=5), Meanwhile(strategy_server, client, model) as meanwhile:
        for _ in range(4):
            meanwhile.comes(row())
    assert all(future.result().outputs["OUTPUT0"].raw == row().raw for future in meanwhile.running)
    found = [line for line in strategy_server.log_text().splitlines() if said in line]
    # A client that sends many requests does not fill the log.
    assert 1 <= len(found) <= 10, found


@pytest.mark.triton_differs("2.51 takes what a strategy does with a request at its word", run=False)
@again_if_too_late
def test_a_strategy_looks_at_requests_and_does_nothing_else(strategy_server, client):
    with runs(client, "s_forbidden", _1=1, _3=1), Meanwhile(strategy_server, client, "s_forbidden") as meanwhile:
        for _ in range(3):
            meanwhile.comes(row())
    assert all(future.result().outputs["OUTPUT0"].raw == row().raw for future in meanwhile.running)
    log = strategy_server.log_text()
    for call in ("ResponseNew", "ResponseFactoryNew", "RequestRelease"):
        assert f"{call}: Invalid argument" in log and f"{call}: allowed" not in log
    assert "a batching strategy may look at it and do nothing else" in log


def test_a_strategy_ends_with_its_model(strategy_server):
    with open_client("http", strategy_server) as client:
        client.infer("s_named", [row()])
        client.unload("s_named")
        client.load("s_named")
        client.infer("s_named", [row()])
    assert "strategy ends: " in strategy_server.log_text()
    if strategy_server.oracle:
        return
    begun, _, ended = (int(part.split()[0]) for part in strategy_server.log_text().split("strategy ends: ")[1].split("\n")[0].split(","))
    assert begun == ended > 0


# ---------------------------------------------------------------------------------------------- what cannot be loaded


@pytest.fixture(scope="module")
def refused(launcher, library):
    """A server of models whose strategies cannot be used."""
    repository = launcher.copy_of("strategies_refused")
    empty = compiled(launcher.scratch / "strategies" / "backend.so")
    some = compiled(launcher.scratch / "strategies" / "some.so", source="strategy", flags=("-DTRITONBACKEND_ModelBatchFinalize=another",))
    put(launcher, repository, strategic("s_missing", "volume", library="/nowhere/strategy.so"))
    if not launcher.oracle:
        put(launcher, repository, strategic("s_some", "volume", library=str(some)))
    put(launcher, repository, strategic("s_fail_start", "fail_start", library=str(library)))
    put(launcher, repository, strategic("s_none", "volume", library=str(empty), delay_ms=0))
    one = strategic("s_sequence", "volume")
    put(launcher, repository, dataclasses.replace(one, extra="sequence_batching { }\n" + parameter(PARAMETER, str(library))))
    with launcher.running("strategies_refused", *EXPLICIT, "--exit-on-error=false", repository=repository) as found:
        yield found


@pytest.mark.parametrize(("model", "said"), [
    ("s_missing", "Batching library path not found: /nowhere/strategy.so"),
    pytest.param("s_some", "does not define all required custom batching functions for model s_some", marks=pytest.mark.triton_differs(
        "2.51 loads no model any more once it has refused such a library: a lock is never given back", run=False)),
    ("s_fail_start", "start fails on purpose"),
    ("s_sequence", "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"),
])  # fmt: skip
def test_a_strategy_that_cannot_be_used_fails_the_load(refused, model, said):
    with open_client("http", refused) as client:
        found = [one["reason"] for one in client.index() if one["name"] == model]
    assert len(found) == 1 and said in found[0], found


def test_a_library_without_the_functions_decides_nothing(refused):
    with open_client("http", refused) as client:
        assert client.infer("s_none", [row()]).outputs["OUTPUT0"].raw == row().raw


@pytest.mark.triton_differs("2.51 opens whatever library a client names", run=False)
def test_a_client_names_no_library(strategy_server, library):
    """The code of a library would run in the server."""
    with open_client("http", strategy_server) as client:
        config = client.call("GET", "/v2/models/s_volume/config").json
        client.load("s_volume", {"config": json.dumps(config)})
        config["parameters"][PARAMETER] = {"string_value": "/tmp/other.so"}
        with pytest.raises(Refused) as refused:
            client.load("s_volume", {"config": json.dumps(config)})
        assert "a batching library runs in the server's process: set it there" in refused.value.text
        assert client.infer("s_volume", [row()]).outputs["OUTPUT0"].raw == row().raw
    assert not [line for line in errors(strategy_server) if "panicked" in line]
