"""Which requests are answered from the response cache, and is each answer the model's own?"""

import time

import numpy as np
import pytest
from cache_setup import caching, samples, serving
from clients import Given, RequestedOutput, fp32, open_client
from regions import registered
from test_statistics import moves, settles

MODELS = [
    caching("c_plain"),
    caching("c_batched", "dynamic_batching { }\n"),
    caching("c_two", inputs=(("FP32", (-1,)), ("FP32", (-1,)))),
    caching("c_step"),
]
HIT = {"success": 1, "queue": 1, "cache_hit": 1}
MISS = dict.fromkeys(
    ("success", "queue", "compute_input", "compute_infer", "compute_output", "cache_miss", "inference_count", "execution_count"), 1
)


@pytest.fixture(scope="module")
def cache_server(launcher):
    with serving(launcher, "cache", *MODELS, ensembles=[("c_ensemble", "c_step")]) as found:
        yield found


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, cache_server):
    with open_client(request.param, cache_server) as found:
        yield found


_fresh = iter(range(1, 10_000_000))


def fresh() -> float:
    """A number that no request had before."""
    return float(next(_fresh))


def row(*values: float) -> Given:
    return fp32("INPUT0", [values])


def answer(client, model: str, *inputs: Given, **more) -> np.ndarray:
    output = client.infer(model, list(inputs), **more).outputs["OUTPUT0"]
    return np.frombuffer(output.raw, np.float32).reshape(output.shape)


@pytest.mark.parametrize("model", ["c_plain", "c_batched", "c_ensemble"])
def test_the_second_of_two_equal_requests_is_not_computed(client, model):
    value = fresh()
    moves(client, model, lambda: answer(client, model, row(value, 2)), **MISS)
    for _ in range(2):
        moves(client, model, lambda: np.testing.assert_array_equal(answer(client, model, row(value, 2)), [[value, 2]]), **HIT)


def test_both_protocols_share_what_is_kept(cache_server):
    value = fresh()
    with open_client("http", cache_server) as http, open_client("grpc", cache_server) as grpc:
        moves(http, "c_plain", lambda: answer(http, "c_plain", row(value)), **MISS)
        moves(http, "c_plain", lambda: answer(grpc, "c_plain", row(value)), **HIT)


def test_other_bytes_and_other_models_are_other_requests(client):
    value = fresh()
    moves(client, "c_plain", lambda: answer(client, "c_plain", row(value)), **MISS)
    moves(client, "c_plain", lambda: answer(client, "c_plain", row(value, 1)), **MISS)
    moves(client, "c_batched", lambda: answer(client, "c_batched", row(value)), **MISS)


def test_the_order_of_inputs_and_the_requests_id_do_not_count(client):
    both = [row(fresh()), fp32("INPUT1", [[fresh()]])]
    moves(client, "c_two", lambda: answer(client, "c_two", *both), **MISS)
    moves(client, "c_two", lambda: answer(client, "c_two", *both[::-1]), **HIT)
    moves(client, "c_two", lambda: answer(client, "c_two", *both, id="mine"), **HIT)


@pytest.mark.triton_differs("equal bytes of another shape get the first shape")
def test_a_shape_counts(client):
    value = fresh()
    assert answer(client, "c_plain", fp32("INPUT0", [[value, 2]])).shape == (1, 2)
    assert answer(client, "c_plain", fp32("INPUT0", [[value], [2]])).shape == (2, 1)


@pytest.mark.triton_differs("a request gets the outputs that the first request wanted")
def test_the_outputs_that_are_wanted_count(client):
    both = [row(fresh()), fp32("INPUT1", [[fresh()]])]
    assert set(client.infer("c_two", both, [RequestedOutput("OUTPUT1")]).outputs) == {"OUTPUT1"}
    assert set(client.infer("c_two", both).outputs) == {"OUTPUT0", "OUTPUT1"}


@pytest.mark.triton_differs("what else a request says to its model does not count")
def test_parameters_count(client):
    value = fresh()
    moves(client, "c_plain", lambda: answer(client, "c_plain", row(value), parameters={"a": 1}), **MISS)
    moves(client, "c_plain", lambda: answer(client, "c_plain", row(value), parameters={"a": 2}), **MISS)
    moves(client, "c_plain", lambda: answer(client, "c_plain", row(value), parameters={"a": 1}), **HIT)


@pytest.mark.parametrize("floats", [4, 400_000])
def test_regions_are_read_and_written_as_by_the_model(cache_server, client, floats):
    """Beyond 256 KiB a request is looked up on another thread."""
    content = np.arange(floats, dtype=np.float32) + np.float32(fresh() / 1000)
    size = content.nbytes
    with registered(client, 2 * size, content.tobytes()) as region:
        given = Given("INPUT0", "FP32", [1, floats], region=(region.name, size, 0))
        output = RequestedOutput("OUTPUT0", (region.name, size, size))
        for expected in (MISS, HIT):
            region.write(bytes(size), size)
            moves(client, "c_plain", lambda: client.infer("c_plain", [given], [output]), **expected)
            assert region.read(size, size) == content.tobytes()
        # The place of an output says nothing about the request.
        moves(client, "c_plain", lambda: answer(client, "c_plain", given), **HIT)


def test_what_was_used_longest_ago_goes_first(launcher):
    with serving(launcher, "cache_small", caching("c_small"), size=40_000) as server, open_client("grpc", server) as client:
        first, second = [row(*np.full(2500, number, np.float32)) for number in (1, 2)]
        moves(client, "c_small", lambda: answer(client, "c_small", first), **MISS)
        moves(client, "c_small", lambda: answer(client, "c_small", second), **MISS)
        moves(client, "c_small", lambda: answer(client, "c_small", first), **HIT)
        for number in (3, 4):
            moves(client, "c_small", lambda: answer(client, "c_small", row(*np.full(2500, number, np.float32))), **MISS)
        settles(lambda: samples(server)["nv_cache_num_evictions"] >= 1)
        moves(client, "c_small", lambda: answer(client, "c_small", second), **MISS)
        found = samples(server)
        assert 0 < found["nv_cache_util"] <= 1 and found["nv_cache_num_entries"] <= 3
        # What is larger than the cache is computed each time, and nothing goes for it.
        large = row(*np.arange(50_000, dtype=np.float32))
        for _ in range(2):
            moves(client, "c_small", lambda: answer(client, "c_small", large), **MISS)
        moves(client, "c_small", lambda: answer(client, "c_small", second), **HIT)
        settles(lambda: "Failed to insert key" in server.log_text())


def test_metrics_of_the_cache(cache_server, client):
    labels = '{model="c_plain",version="1"}'
    names = [f"nv_cache_num_{what}_per_model{labels}" for what in ("hits", "misses")]
    names += [f"nv_cache_num_{what}" for what in ("hits", "misses", "lookups")]
    # 2.51 looks at its cache now and then.
    time.sleep(2 if cache_server.oracle else 0)
    before = samples(cache_server)
    value = fresh()
    for _ in range(3):
        answer(client, "c_plain", row(value))

    def moved() -> list[float]:
        after = samples(cache_server)
        return [after[name] - before[name] for name in names]

    settles(lambda: moved() == [2, 1, 2, 1, 3])
    assert moved() == [2, 1, 2, 1, 3]
    assert 0 < before["nv_cache_util"] < 1
    found = samples(cache_server)
    for name in ("nv_cache_num_entries", "nv_cache_num_evictions", "nv_cache_lookup_duration", "nv_cache_insertion_duration"):
        assert name in found
    for name in ("nv_cache_hit_duration_per_model", "nv_cache_miss_duration_per_model"):
        assert name + labels in found


REFUSED = [
    ("c_sequence", "sequence_batching { }\n", "with sequence batching scheduler"),
    ("c_decoupled", "model_transaction_policy { decoupled: true }\n", "with 'decoupled' transaction policy"),
]


@pytest.mark.parametrize(("name", "settings", "text"), REFUSED, ids=[one[0] for one in REFUSED])
def test_models_whose_responses_cannot_be_kept_are_not_loaded(launcher, name, settings, text):
    with serving(launcher, name, caching(name, settings), flags=["--exit-on-error=false"]) as server:
        whole = f"Response Cache does not currently support model {name} {text}"
        assert whole in server.log_text()


def test_without_a_cache_every_request_is_computed(launcher):
    with serving(launcher, "cache_none", caching("c_none"), size=0) as server, open_client("http", server) as client:
        for _ in range(2):
            moves(
                client, "c_none", lambda: answer(client, "c_none", row(1)),
                **{key: count for key, count in MISS.items() if key != "cache_miss"},
            )  # fmt: skip
        found = samples(server)
        assert not any(name.startswith("nv_cache") for name in found if "_per_model" not in name)
        assert found['nv_cache_num_misses_per_model{model="c_none",version="1"}'] == 0
