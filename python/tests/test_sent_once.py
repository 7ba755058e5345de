"""Is an inference over HTTP sent only once, unless the program allows more?"""

import asyncio

import pytest
from http_server import HttpServer

import nerite


@pytest.fixture
def server():
    made = HttpServer()
    yield made
    made.close()


def connected(server, **options):
    return nerite.connect(server.url, session_socket="/nonexistent/session.sock", buffers="inline", **options)


@pytest.fixture(params=["threads", "asyncio"])
def infer(request):
    """Runs several inferences one after the other, each given as a model and its input."""
    if request.param == "threads":
        return lambda model, count=1: [model([1]).OUT.tolist() for _ in range(count)]

    async def several(model, count):
        return [(await model.aio([1])).OUT.tolist() for _ in range(count)]

    return lambda model, count=1: asyncio.run(several(model, count))


@pytest.mark.parametrize("end", ["close", "head", "body"])
def test_an_inference_without_an_answer_may_have_run_and_is_not_sent_again(server, infer, end):
    with connected(server) as made:
        counts = made.model("counts")
        assert infer(counts) == [[7]]
        server.then.append(end)
        with pytest.raises(ConnectionError, match="before it answered|the server has gone"):
            infer(counts)
        assert server.received == 2
        assert infer(counts) == [[7]], "the next one connects again"
        assert server.received == 3


def test_a_program_may_allow_that_it_runs_twice(server, infer):
    with connected(server, repeat_lost=True) as made:
        counts = made.model("counts")
        server.then.append("close")
        assert infer(counts) == [[7]] and server.received == 2
        server.then.extend(["close"] * 5)
        with pytest.raises(ConnectionError, match="before it answered|the server has gone"):
            infer(counts)
        assert server.received == 4, "once more, and no further time"


def test_a_connection_that_was_closed_while_idle_is_replaced(server, infer):
    with connected(server) as made:
        counts = made.model("counts")
        for _ in range(3):
            assert infer(counts) == [[7]]
            server.then.append("idle")
            assert infer(counts) == [[7]]
            assert server.closed.acquire(timeout=30)
        assert infer(counts, 2) == [[7]] * 2
        assert server.received == 8


def test_of_a_batch_nothing_is_sent_again_either(server):
    with connected(server) as made:
        counts = made.model("counts")
        server.then.extend(["", "", "close"])
        with pytest.raises(ConnectionError, match="before it answered"):
            counts.batch([[one] for one in range(5)])
        assert server.received == 3


def test_without_a_server_the_error_says_so(server):
    with connected(server) as made:
        counts = made.model("counts")
        assert counts([1]).OUT.tolist() == [7]
        server.then.append("idle")
        counts([1])
        server.close()
        with pytest.raises(ConnectionError, match="refused"):
            counts([1])
