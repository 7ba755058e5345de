"""Does a queue delay that tunes itself bring requests together that come together, and keep nobody waiting who comes alone?"""

import concurrent.futures
import time

import pytest
from batching_setup import batching, serving
from clients import fp32, open_client

BOUND_US = 200_000
RUN_MS = 5
PARAMETER = 'parameters {{ key: "nerite.latency_bound_microseconds" value {{ string_value: "{}" }} }}'


@pytest.fixture(scope="module")
def tuned(launcher):
    if launcher.oracle:
        pytest.skip("2.51 has a fixed delay")
    model = batching("tuned", extra=PARAMETER.format(BOUND_US), delay_ms=RUN_MS)
    faulty = batching("fixed_too", "max_queue_delay_microseconds: 7", extra=PARAMETER.format(BOUND_US))
    with serving(launcher, "tuned", model, faulty, flags=["--exit-on-error=false"]) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def tuned_client(request, tuned):
    with open_client(request.param, tuned) as found:
        yield found


def executions(client) -> int:
    return int(client.statistics("tuned")[0]["execution_count"])


def test_one_client_is_not_kept_waiting(tuned_client):
    tuned_client.infer("tuned", [fp32("INPUT0", [[1]])])
    before, begun = executions(tuned_client), time.monotonic()
    for _ in range(20):
        tuned_client.infer("tuned", [fp32("INPUT0", [[1]])])
    assert executions(tuned_client) == before + 20
    # The bound, which a fixed delay of that length would take, twenty times over.
    assert time.monotonic() - begun < 20 * BOUND_US / 1e6


def test_clients_that_ask_together_share_runs(tuned_client):
    def infer(_):
        for _ in range(40):
            tuned_client.infer("tuned", [fp32("INPUT0", [[1]])])

    # On a busy machine the clients may ask one after the other.
    for _ in range(5):
        before = executions(tuned_client)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(infer, range(6)))
        if (ran := executions(tuned_client) - before) <= 240 / 2:
            break
    assert ran <= 240 / 2


def test_a_bound_beside_a_fixed_delay_fails_the_load_and_is_said(tuned):
    text = "model 'fixed_too' has 'max_queue_delay_microseconds: 7' and parameter 'nerite.latency_bound_microseconds'"
    assert text in tuned.log_text()
