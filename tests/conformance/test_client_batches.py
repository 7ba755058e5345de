"""What do users of tritonclient see of a batch and of a full queue?"""

import functools
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from batching_setup import batching, serving
from footprint import wait_until
from tritonclient.utils import InferenceServerException

REQUESTS = 16
MODELS = [
    batching("b_four", "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 20000000", max_batch=4, delay_ms=0),
    batching("b_queue", "default_queue_policy { max_queue_size: 3 }", max_batch=1),
]


@pytest.fixture(scope="module")
def server(launcher):
    with serving(launcher, "client_batches", *MODELS) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    """The real client, with `begin`, which sends a request and gives a function that waits for the answer."""
    library = {"http": httpclient, "grpc": grpcclient}[request.param]
    connections = {"concurrency": REQUESTS} if request.param == "http" else {}
    with library.InferenceServerClient(getattr(server, request.param), **connections) as found:
        found.begin = functools.partial(begin, library, found)
        yield found


def begin(library, client, model: str, value: float):
    given = library.InferInput("INPUT0", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), value, np.float32))
    if library is httpclient:
        return client.async_infer(model, [given]).get_result
    answers = queue.Queue()
    client.async_infer(model, [given], lambda result, error: answers.put((result, error)))

    def wait():
        result, error = answers.get(timeout=240)
        if error is not None:
            raise error
        return result

    return wait


def batch_stats(client, model: str) -> dict[int, int]:
    """How many batches of each size ran, as the client's statistics have it."""
    if isinstance(client, httpclient.InferenceServerClient):
        found = client.get_inference_statistics(model)["model_stats"]
    else:
        found = client.get_inference_statistics(model, as_json=True)["model_stats"]
    return {int(one["batch_size"]): int(one["compute_infer"]["count"]) for one in found[0].get("batch_stats", [])}


def test_four_requests_are_one_batch_in_the_statistics(client):
    before = batch_stats(client, "b_four").get(4, 0)
    waits = [client.begin("b_four", number) for number in range(4)]
    assert [wait().as_numpy("OUTPUT0").item() for wait in waits] == [0, 1, 2, 3]
    # 2.51 counts a moment after the reply.
    wait_until(lambda: batch_stats(client, "b_four") == {4: before + 1})


def test_a_full_queue_refuses_some_and_answers_the_others(client):
    waits = [client.begin("b_queue", number) for number in range(REQUESTS)]
    answered, refused = [], []
    for number, wait in enumerate(waits):
        try:
            assert wait().as_numpy("OUTPUT0").item() == number
            answered.append(number)
        except InferenceServerException as error:
            assert "Exceeds maximum queue size" in error.message(), error
            refused.append(error.status())
    # The queue holds three. Others are answered where a request begins to run before the next ones come.
    assert len(answered) >= 3 and refused, (answered, refused)
    assert set(refused) <= {"503", "StatusCode.UNAVAILABLE"}, refused
