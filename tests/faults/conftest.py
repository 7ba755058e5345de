"""Which server may the tests of faults hurt, and what must hold after each of them?"""

import contextlib

import pytest
from clients import GrpcClient, HttpClient, http_infer, open_client
from half_requests import BODY


@pytest.fixture(scope="module")
def victims(launcher, request: pytest.FixtureRequest):
    """Starts a server, and another one whenever the last did not survive a test."""
    repository = launcher.copy_of("victim", "identity_fp32", "identity_bytes", "slow_fp32", "simple", "mixed")
    with contextlib.ExitStack() as held:
        found = []

        def alive():
            if not found or found[-1].process.poll() is not None:
                name = f"victim_{request.module.__name__}_{len(found)}"
                found.append(held.enter_context(launcher.running(name, repository=repository)))
            return found[-1]

        yield alive


@pytest.fixture
def victim(victims):
    """A server that only these tests may hurt."""
    return victims()


@pytest.fixture(autouse=True)
def unharmed(victim):
    """After each test the same process still answers."""
    yield
    assert victim.process.poll() is None, f"the server died:\n{victim.log_text()[-3000:]}"
    answer = http_infer(victim.http, "identity_fp32", BODY).ok()
    assert answer.json["outputs"][0]["data"] == [1, 2]


@pytest.fixture(scope="module", autouse=True)
def clients_agree_in_the_end(victims):
    """After the last test of a file both protocols give the same statistics."""
    yield
    with open_client("http", victims()) as first, open_client("grpc", victims()) as second:
        assert isinstance(first, HttpClient) and isinstance(second, GrpcClient)
        for name in ("identity_fp32", "simple"):
            assert first.statistics(name)[0]["inference_count"] == second.statistics(name)[0]["inference_count"]
