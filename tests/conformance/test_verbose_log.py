"""Can the way of a request be read in the verbose log?"""

import re

import pytest
from batching_setup import batching
from cache_setup import caching, serving
from clients import fp32, open_client
from test_statistics import settles


@pytest.fixture(scope="module", params=[0, 1])
def verbosity(request, launcher):
    if launcher.oracle:
        pytest.skip("the lines are nerite's own")
    models = [caching("told"), batching("batched", delay_ms=0)]
    with serving(launcher, f"verbose_{request.param}", *models, flags=[f"--log-verbose={request.param}"]) as server:
        yield request.param, server


def test_queue_batch_instance_and_cache_are_told_if_asked_for(verbosity):
    level, server = verbosity
    with open_client("grpc", server) as client:
        for _ in range(2):
            client.infer("told", [fp32("INPUT0", [[1]])], id="mine")
        client.infer("batched", [fp32("INPUT0", [[1], [2]])], id="yours\n" + "x" * 1000)
    wanted = [
        r"model 'told': response cache miss", r"\[request id: mine\] model 'told_1': comes to the queue with 1 rows",
        r"model 'told_1': instance 0 runs 1 requests of 1 rows: mine", r"model 'told_1': ran for \d+ µs",
        r"model 'told': response cache hit", r"instance 0 runs 1 requests of 2 rows: yours\S*x{50,60}…",
    ]  # fmt: skip
    settles(lambda: not level or all(re.search(line, server.log_text()) for line in wanted))
    found = [bool(re.search(line, server.log_text())) for line in wanted]
    assert found == [level == 1] * len(wanted), server.log_text()[-3000:]
