"""Does a batching strategy that takes 10 s for each request stop anybody but the clients of its model?"""

import concurrent.futures
import time

import pytest
from batching_setup import batching, pending, put
from clients import fp32, http_call, open_client, refuses
from compiled_setup import compiled

SLEEP_MS = 10_000
# What a request of the slow model waits for at most.
TIMEOUT_US = 2_000_000
CLIENTS = 8
# In the 2 s for which all requests of the slow model wait. On a free machine it is thousands.
OTHERS_MIN = 20
POLICY = f"default_queue_policy {{ default_timeout_microseconds: {TIMEOUT_US} }}"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


@pytest.fixture(scope="module")
def server(launcher):
    if launcher.oracle:
        pytest.skip("2.51 asks a strategy while the queue of its model is locked")
    library = compiled(launcher.scratch / "slow_strategies" / "slow.so", source="strategy")
    repository = launcher.copy_of("slow_strategies")
    for name, settings, sleep_ms in (("slow", POLICY, SLEEP_MS), ("patient", "", 1000)):
        slow = parameter("strategy", "sleeps") + parameter("sleep_ms", str(sleep_ms)) + parameter("volume_bytes", "1000000")
        slow += parameter("TRITON_BATCH_STRATEGY_PATH", str(library))
        put(launcher, repository, batching(name, settings, extra=slow, delay_ms=0))
    put(launcher, repository, batching("other", delay_ms=0))
    with launcher.running("slow_strategies", "--http-thread-count=2", repository=repository) as found:
        yield found


def row():
    return fp32("INPUT0", [(1, 2, 3, 4)])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_health_and_other_models_answer_while_a_strategy_sleeps(server, protocol):
    def infer_slow(_: int) -> float:
        began = time.monotonic()
        with open_client(protocol, server) as client, refuses("UNAVAILABLE", "Request timeout expired"):
            client.infer("slow", [row()])
        return time.monotonic() - began

    others = 0
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool, open_client(protocol, server) as client:
        running = [pool.submit(infer_slow, number) for number in range(CLIENTS)]
        deadline = time.monotonic() + 60
        while pending(server, "slow") == 0:
            assert time.monotonic() < deadline and not running[0].done()
        while not all(one.done() for one in running):
            assert http_call(server.http, "GET", "/v2/health/ready").status == 200
            assert client.infer("other", [row()]).outputs["OUTPUT0"].raw == row().raw
            assert client.statistics("slow")
            others += 1
        times = [one.result() for one in running]
    assert others > OTHERS_MIN, (others, times)
    # None of them waited for the strategy.
    assert max(times) < SLEEP_MS / 1000, times


def test_a_request_that_may_wait_runs_when_the_strategy_has_answered(server):
    with open_client("grpc", server) as client:
        assert client.infer("patient", [row()]).outputs["OUTPUT0"].raw == row().raw
        assert client.infer("other", [row()]).outputs["OUTPUT0"].raw == row().raw
    assert "the batching strategy of model 'patient' took 1" in server.log_text()
